"""The page about the agents of a server, for a person with a browser. It has no scripts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from html import escape
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from dragoman.console import pages
from dragoman.console.http import Request, Response, respond
from dragoman.console.shapes import SchemeView
from dragoman.console.source import CARD, ServedAgents, required_scopes, schemes_of, ways_of

FLOWS = {
    "code": "with a browser (authorization code with PKCE)",
    "device": "with a code on another device",
    "client": "with the client's secret",
}
"""How a person or a program gets a token, by the flow of OAuth."""
SCHEMAS = "urn:dragoman:skill-schema:v1"


async def serve(scope: Any, receive: Any, send: Any) -> bool:
    """Answer with the page of an agent, or with the list of them. Leaves the request alone if the
    card cannot be had."""
    request = Request.read(scope, receive)
    app = scope["dragoman.app"]
    source, key = ServedAgents(app), scope["path"].strip("/")
    if not key and len(app.agents) > 1:
        response: Response | None = _list(request, source)
    else:
        response = await _agent(request, source, key or next(iter(app.agents)))
    if response is None:
        return False
    await respond(request, send, response)
    return True


def _list(request: Request, source: ServedAgents) -> Response:
    base = request.scope["dragoman.url"]
    rows = "".join(
        f'<div class=card><h3><a href="{escape(base + source.prefix(key))}/">'
        f"{escape(agent.name)}</a></h3><p>{escape(agent.description)}</p></div>"
        for key, agent in source.app.agents.items()
    )
    return _page("Agents", f"<h1>Agents</h1>{rows}")


async def _agent(request: Request, source: ServedAgents, key: str) -> Response | None:
    status, _, body = await source.get(request, source.prefix(key) + CARD)
    if status != 200:
        return None
    card: dict[str, Any] = msgspec.json.decode(body)
    url = request.scope["dragoman.url"] + source.prefix(key)
    parts = [_head(card), _skills(card), _calls(card, url), _log_in(card)]
    if len(source.app.agents) > 1:
        base = escape(request.scope["dragoman.url"])
        parts.append(f'<p><a href="{base}/">All agents of this server</a></p>')
    return _page(card["name"], "".join(parts))


def _page(title: str, body: str) -> Response:
    return pages.page(title, body, headers={"vary": "Accept"})


def _head(card: dict[str, Any]) -> str:
    text = f"<h1>{escape(card['name'])}</h1><p>{escape(card['description'])}</p>"
    about = [f"Version {escape(card['version'])}"]
    if provider := card.get("provider"):
        about.append(f"by {_link(provider.get('url', ''), provider.get('organization', ''))}")
    if url := card.get("documentationUrl"):
        about.append(_link(url, "documentation"))
    return f"{text}<p class=dim>{' · '.join(about)}</p>"


def _link(url: str, text: str) -> str:
    """A link that shows its host; only the text if the address is not of the web."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return escape(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return escape(text)
    return (
        f'<a href="{escape(url)}" rel="noreferrer noopener nofollow">{escape(text)}</a> '
        f"({escape(parts.hostname)})"
    )


def _skills(card: dict[str, Any]) -> str:
    schemas = _schemas(card)
    found = "".join(_skill(skill, schemas.get(skill["id"], {})) for skill in card["skills"])
    return f"<h2>Skills</h2>{found}" if found else ""


def _schemas(card: dict[str, Any]) -> dict[str, Any]:
    for extension in card.get("capabilities", {}).get("extensions", ()):
        if extension.get("uri") == SCHEMAS:
            return extension.get("params") or {}
    return {}


def _skill(skill: dict[str, Any], schema: dict[str, Any]) -> str:
    tags = "".join(f"<span>{escape(tag)}</span>" for tag in skill.get("tags", ()))
    text = f"<h3>{escape(skill['name'])}</h3><p>{escape(skill['description'])}</p>"
    text += f"<p class=tags>{tags}</p>" if tags else ""
    if examples := skill.get("examples"):
        lines = "".join(f"<li>{escape(example)}</li>" for example in examples)
        text += f"<p class=dim>Examples</p><ul>{lines}</ul>"
    for name, title in (("input", "Input"), ("output", "Output")):
        if found := schema.get(name):
            shown = escape(json.dumps(found, indent=2, ensure_ascii=False))
            text += f"<details><summary>{title} as JSON Schema</summary>"
            text += f"<pre tabindex=0>{shown}</pre></details>"
    return f"<div class=card>{text}</div>"


def _calls(card: dict[str, Any], url: str) -> str:
    text = _example(card)
    known = {each.name: each for each in schemes_of(card)}
    way = next(iter(ways_of(card)), [])
    shown = [_shown(known[name]) for name in way]
    query = "&".join(each.query for each in shown if each.query)
    address = f"{url}/message:send" + (f"?{query}" if query else "")
    body = json.dumps(
        {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": text}]}},
        ensure_ascii=False,
    )
    lines = [f"curl {shlex.quote(address)}", "-H 'Content-Type: application/json'"]
    lines += ["-H 'A2A-Version: 1.0'", *(each.curl for each in shown if each.curl)]
    lines.append(f"-d {shlex.quote(body)}")
    curl = " \\\n  ".join(lines)
    needed = [each.auth for each in shown]
    imports = ", ".join(
        sorted({"Client", *(each.partition("(")[0] for each in needed)}, key=str.lower)
    )
    auth = f"[{', '.join(needed)}]" if len(needed) > 1 else "".join(needed)
    auth = f", auth={auth}" if auth else ""
    python = (
        f"import asyncio\n\nfrom dragoman.client import {imports}\n\n\n"
        "async def main():\n"
        f"    async with Client.connect({url + '/'!r}{auth}) as client:\n"
        f"        print((await client.send({text!r})).text)\n\n\n"
        "asyncio.run(main())"
    )
    options = "".join(f"{each.options} " for each in shown)
    command = f"dragoman send {url}/ {options}{shlex.quote(text)}"
    blocks = "".join(
        f"<h3>{title}</h3><pre tabindex=0>{escape(code)}</pre>"
        for title, code in (("curl", curl), ("Python", python), ("Command line", command))
    )
    kinds: Iterable[str] = dict.fromkeys(
        f"{each['protocolBinding']} {each.get('protocolVersion', '')}".strip()
        for each in card["supportedInterfaces"]
    )
    about = (
        f"The card is at <code>{escape(url + CARD)}</code>. It speaks {escape(', '.join(kinds))}."
    )
    return f"<h2>How to call it</h2><p class=dim>{about}</p>{blocks}"


def _example(card: dict[str, Any]) -> str:
    for skill in card["skills"]:
        for example in skill.get("examples", ()):
            return str(example)
    return "Hello"


class Shown(Struct, frozen=True):
    """How a call shows the credentials of a scheme: to curl, to the Python client and as options of
    the command."""

    curl: str = ""
    query: str = ""
    auth: str = ""
    options: str = ""


def _shown(scheme: SchemeView) -> Shown:
    match scheme.kind:
        case "key":
            auth, options = 'StaticToken("YOUR-KEY")', "--api-key YOUR-KEY"
            if scheme.where == "query":
                return Shown("", f"{quote(scheme.field)}=YOUR-KEY", auth, options)
            cookie = scheme.where == "cookie"
            header = f"Cookie: {scheme.field}=YOUR-KEY" if cookie else f"{scheme.field}: YOUR-KEY"
            return Shown(f"-H {shlex.quote(header)}", "", auth, options)
        case "basic":
            return Shown(
                "-u USER:PASSWORD", "", 'BasicAuth("USER", "PASSWORD")', "--user USER:PASSWORD"
            )
        case "certificate":
            return Shown(
                "--cert CLIENT.pem", "", 'ClientCertificate("CLIENT.pem")', "--cert CLIENT.pem"
            )
    bearer = "-H 'Authorization: Bearer YOUR-TOKEN'"
    if scheme.kind == "oauth" and {"code", "device"}.intersection(scheme.flows):
        return Shown(bearer, "", 'OAuth("YOUR-CLIENT-ID")', "--client-id YOUR-CLIENT-ID")
    if scheme.kind == "oauth" and "client" in scheme.flows:
        auth = f'OAuth("YOUR-CLIENT-ID", "YOUR-SECRET", issuer={scheme.server!r})'
        options = "--client-id YOUR-CLIENT-ID --client-secret @SECRET-FILE --issuer "
        return Shown(bearer, "", auth, options + shlex.quote(scheme.server))
    return Shown(bearer, "", 'StaticToken("YOUR-TOKEN")', "--bearer YOUR-TOKEN")


def _log_in(card: dict[str, Any]) -> str:
    known = {each.name: each for each in schemes_of(card)}
    ways = ways_of(card)
    if not ways:
        return "<h2>Who may call it</h2><p>Callers need no credentials.</p>"
    rows = "".join(
        f"<li>{' and '.join(_way(card, known[name]) for name in way)}</li>" for way in ways
    )
    told = "Callers need one of these:" if len(ways) > 1 else "Callers need:"
    return f"<h2>Who may call it</h2><p>{told}</p><ul>{rows}</ul>"


def _way(card: dict[str, Any], scheme: SchemeView) -> str:
    text = escape(scheme.title)
    if scheme.kind == "key":
        text += f" in the {escape(scheme.where)} <code>{escape(scheme.field)}</code>"
    if scheme.server:
        text += f" of {_link(scheme.server, 'the authorization server')}"
    if how := [FLOWS[flow] for flow in scheme.flows if flow in FLOWS]:
        text += f": log in {escape(', or '.join(how))}"
    if scopes := required_scopes(card, scheme.name):
        words = ", ".join(f"<code>{escape(each)}</code>" for each in scopes)
        text += f", with the scopes {words}" if len(scopes) > 1 else f", with the scope {words}"
    return text + (f" ({escape(scheme.description)})" if scheme.description else "")
