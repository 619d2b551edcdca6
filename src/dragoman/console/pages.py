"""The pages that the server writes: to log in, and the messages of errors. They have no scripts."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from urllib.parse import parse_qs

from dragoman.console.access import Credentials
from dragoman.console.http import Response
from dragoman.console.shapes import SchemeView

STYLE = """
:root { color-scheme: light dark; --back: #fbfbfa; --text: #1c2024; --dim: #5b6068; --line: #d9dbdf;
  --link: #0b57d0; --bad: #b3261e; --box: #fff; }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --text: #e6e8ea; --dim: #a1a7ae;
  --line: #363b41; --link: #8ab4f8; --bad: #f2b8b5; --box: #1b1f23; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 52rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
p, li { overflow-wrap: anywhere; }
a { color: var(--link); }
.dim { color: var(--dim); }
.bad { color: var(--bad); }
.card { background: var(--box); border: 1px solid var(--line); border-radius: 8px; padding: 1rem;
  margin: .8rem 0; }
.tags span { display: inline-block; border: 1px solid var(--line); border-radius: 99px;
  padding: 0 .6rem; margin: .2rem .3rem 0 0; font-size: .85rem; color: var(--dim); }
pre { background: var(--box); border: 1px solid var(--line); border-radius: 6px; padding: .8rem;
  overflow: auto; font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; user-select: all;
  margin: .4rem 0; }
summary { cursor: pointer; color: var(--dim); }
label { display: block; margin: .8rem 0 .2rem; }
input { width: 100%; font: inherit; padding: .5rem; border: 1px solid var(--dim);
  border-radius: 6px; background: var(--back); color: var(--text); }
button { font: inherit; padding: .5rem 1.2rem; margin-top: 1rem; border: 0; border-radius: 6px;
  background: var(--link); color: var(--back); cursor: pointer; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
"""
_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""The content security policy of these pages."""


def page(title: str, body: str, *, status: int = 200, headers: Mapping[str, str] = {}) -> Response:
    """A page. The title is text, the body is HTML."""
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>"
    )
    more = {"content-security-policy": POLICY, **headers}
    return Response(text.encode("utf-8", "replace"), status, "text/html; charset=utf-8", more)


def log_in(
    schemes: Sequence[SchemeView],
    ways: Sequence[Sequence[str]],
    *,
    failed: str = "",
    client: str = "",
) -> Response:
    """The page to log in. `client` is the console's client id at the authorization server."""
    known = {each.name: each for each in schemes}
    told = f'<p class="bad" role="alert">{escape(failed)}</p>' if failed else ""
    forms = "".join(form for way in ways for form in _forms([known[name] for name in way], client))
    if not forms:
        forms = "<p>The agents of this server have no scheme that works in a browser.</p>"
    return page(
        "Log in",
        f"<h1>Console</h1><p class=dim>Log in as for an agent of this server.</p>{told}{forms}",
        status=401 if failed else 200,
        headers={"referrer-policy": "strict-origin"},  # without it, browsers send no Origin
    )


def told(text: str, status: int = 200, *, to: str = "") -> Response:
    """A page that says one thing, and may lead to another page."""
    link = f'<p><a href="{to}">Back to the console</a></p>' if to else ""
    return page("Log in", f"<h1>Console</h1><p>{escape(text)}</p>{link}", status=status)


def forward(url: str, headers: Mapping[str, str]) -> Response:
    """A page that leads to an authorization server. A form must not redirect to it."""
    server = "/".join(url.split("/")[:3])
    link = escape(url, quote=True)
    text = f'<h1>Console</h1><p><a href="{link}">Log in at {escape(server)}</a></p>'
    return page("Log in", text, headers={"refresh": f"0; url={url}", **headers})


def logged_in(headers: Mapping[str, str], to: str = "/console/") -> Response:
    """A page that leads to the console. A redirect would come from another site, and have no
    cookie."""
    text = f'<h1>Console</h1><p><a href="{to}">Go on to the console</a></p>'
    return page("Logged in", text, headers={"refresh": f"0; url={to}", **headers})


def _forms(way: Sequence[SchemeView], client: str) -> Iterator[str]:
    if len(way) == 1 and way[0].kind == "oauth" and "code" in way[0].flows:
        label = f"Log in at {way[0].server}"
        yield _form(way, _field(way[0], "client", "Client id", "text", client), label)
    if len(way) == 1:
        yield _form(way, _typed(way[0]))
    else:
        yield _form(way, "".join(_typed(each, f":{each.name}") for each in way))


def _typed(scheme: SchemeView, suffix: str = "") -> str:
    """What a person types for a scheme. With several in a form, the names of fields have a
    suffix."""
    name = f"secret{suffix}"
    match scheme.kind:
        case "key":
            return _field(scheme, name, f"Key ({scheme.where} {scheme.field})")
        case "bearer":
            return _field(scheme, name, "Token")
        case "basic":
            user = _field(scheme, f"user{suffix}", "User", "text")
            return user + _field(scheme, name, "Password")
        case "certificate":
            return "<p>The browser sends its certificate.</p>"
        case _:
            return _field(scheme, name, "Access token that you have")


def _form(way: Sequence[SchemeView], fields: str, button: str = "Log in") -> str:
    title, about, names = [], "", ""
    for each in way:
        name = escape(each.name, quote=True)
        other = "" if name.lower() == each.title.lower() else f" <span class=dim>{name}</span>"
        title.append(f"{escape(each.title)}{other}")
        about += f"<p class=dim>{escape(each.description)}</p>" if each.description else ""
        names += f'<input type=hidden name=scheme value="{name}">'
    return (
        f'<form class=card method=post action="/console/login"><h3>{" and ".join(title)}</h3>'
        f"{about}{names}{fields}<button>{escape(button)}</button></form>"
    )


def _field(
    scheme: SchemeView, name: str, label: str, kind: str = "password", value: str = ""
) -> str:
    filled = f' value="{escape(value, quote=True)}"' if value else ""
    id, field = escape(f"{scheme.name}-{name}", quote=True), escape(name, quote=True)
    return (
        f'<label for="{id}">{escape(label)}</label><input id="{id}" '
        f'name="{field}" type={kind}{filled} autocomplete=off required>'
    )


def filled(body: bytes) -> dict[str, str]:
    """The fields of a filled form. The names of several schemes are lines of one text."""
    found = parse_qs(body.decode("utf-8", "replace"))
    return {name: "\n".join(text) if name == "scheme" else text[-1] for name, text in found.items()}


def credentials(schemes: Sequence[SchemeView], given: Mapping[str, str]) -> Credentials | None:
    """The credentials that a person has typed, for one scheme or for several together; None if
    they are not valid."""
    names = given.get("scheme", "").split("\n")
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    for name in names:
        scheme = next((each for each in schemes if each.name == name), None)
        suffix = f":{name}" if len(names) > 1 else ""
        secret, user = given.get(f"secret{suffix}", ""), given.get(f"user{suffix}", "")
        found = _credentials(scheme, user, secret) if scheme is not None else None
        if found is None:
            return None
        query |= found.query
        for key, text in found.headers.items():
            known = headers.get(key)
            headers[key] = f"{known}; {text}" if known and key == "cookie" else text
    return Credentials(headers, query)


def _credentials(scheme: SchemeView, user: str, password: str) -> Credentials | None:
    secret = password.strip()
    if not secret.isprintable():
        return None
    match scheme.kind:
        case "key" if scheme.where == "query" and secret:
            return Credentials(query={scheme.field: secret})
        case "key" if scheme.where == "cookie" and secret:
            return Credentials({"cookie": f"{scheme.field}={secret}"})
        case "key" if secret:
            return Credentials({scheme.field: secret})
        case "bearer" | "oauth" if secret:
            return Credentials({"authorization": f"Bearer {secret}"})
        case "basic":
            encoded = b64encode(f"{user}:{password}".encode("utf-8", "replace")).decode()
            return Credentials({"authorization": f"Basic {encoded}"})
        case "certificate":
            return Credentials()
        case _:
            return None
