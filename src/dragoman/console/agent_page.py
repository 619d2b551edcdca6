"""The page about the agents of a server, for a person with a browser. It has no scripts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from html import escape
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.console import pages
from dragoman.console.http import Request, Response, respond
from dragoman.console.source import CARD, ServedAgents, schemes_of

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
    headers, client, flag = _credentials(schemes_of(card))
    body = json.dumps(
        {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": text}]}},
        ensure_ascii=False,
    )
    lines = [f"curl {url}/message:send", "-H 'Content-Type: application/json'"]
    lines += ["-H 'A2A-Version: 1.0'", *(f"-H '{header}'" for header in headers)]
    lines.append(f"-d {shlex.quote(body)}")
    curl = " \\\n  ".join(lines)
    imports = "Client" + (f", {client.partition('(')[0]}" if client else "")
    auth = f", auth={client}" if client else ""
    python = (
        f"import asyncio\n\nfrom dragoman.client import {imports}\n\n\n"
        "async def main():\n"
        f"    async with Client.connect({url + '/'!r}{auth}) as client:\n"
        f"        print((await client.send({text!r})).text)\n\n\n"
        "asyncio.run(main())"
    )
    command = f"dragoman send {url}/ {flag}{shlex.quote(text)}"
    shown = (("curl", curl), ("Python", python), ("Command line", command))
    blocks = "".join(
        f"<h3>{title}</h3><pre tabindex=0>{escape(code)}</pre>" for title, code in shown
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


def _credentials(schemes: list[Any]) -> tuple[list[str], str, str]:
    """The headers for curl, the client's `auth` and the option of the command, for one scheme."""
    for each in schemes:
        if each.kind == "key" and each.where == "header":
            return [f"{each.field}: YOUR-KEY"], 'StaticToken("YOUR-KEY")', "--token YOUR-KEY "
        if each.kind in ("bearer", "oauth"):
            header = "Authorization: Bearer YOUR-TOKEN"
            return [header], 'StaticToken("YOUR-TOKEN")', "--token YOUR-TOKEN "
        if each.kind == "basic":
            return (
                ["Authorization: Basic USER-AND-PASSWORD-IN-BASE64"],
                'BasicAuth("USER", "PASSWORD")',
                "--user USER:PASSWORD ",
            )
    return [], "", ""


def _log_in(card: dict[str, Any]) -> str:
    found = schemes_of(card)
    if not found:
        return "<h2>Who may call it</h2><p>Callers need no credentials.</p>"
    rows = "".join(
        f"<li>{escape(each.title)}{_where(each)}"
        f"{': ' + escape(each.description) if each.description else ''}</li>"
        for each in found
    )
    return f"<h2>Who may call it</h2><p>Callers need one of these:</p><ul>{rows}</ul>"


def _where(scheme: Any) -> str:
    if scheme.kind != "key":
        return ""
    return f" in the {escape(scheme.where)} <code>{escape(scheme.field)}</code>"
