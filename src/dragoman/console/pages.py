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


def log_in(schemes: Sequence[SchemeView], *, failed: str = "", client: str = "") -> Response:
    """The page to log in. `client` is the console's client id at the authorization server."""
    told = f'<p class="bad" role="alert">{escape(failed)}</p>' if failed else ""
    forms = "".join(form for each in schemes for form in _forms(each, client))
    if not forms:
        forms = "<p>The agents of this server have no scheme that works in a browser.</p>"
    return page(
        "Log in",
        f"<h1>Console</h1><p class=dim>Log in as for an agent of this server.</p>{told}{forms}",
        status=401 if failed else 200,
        headers={"referrer-policy": "strict-origin"},  # without it, browsers send no Origin
    )


def told(text: str, status: int = 200) -> Response:
    """A page that says one thing."""
    return page("Log in", f"<h1>Console</h1><p>{escape(text)}</p>", status=status)


def forward(url: str, server: str, headers: Mapping[str, str]) -> Response:
    """A page that leads to an authorization server. A form must not redirect to it."""
    link = escape(url, quote=True)
    text = f'<h1>Console</h1><p><a href="{link}">Log in at {escape(server)}</a></p>'
    return page("Log in", text, headers={"refresh": f"0; url={url}", **headers})


def logged_in(headers: Mapping[str, str]) -> Response:
    """A page that leads to the console. A redirect would come from another site, and have no
    cookie."""
    text = '<h1>Console</h1><p><a href="/console/">Go on to the console</a></p>'
    return page("Logged in", text, headers={"refresh": "0; url=/console/", **headers})


def _forms(scheme: SchemeView, client: str) -> Iterator[str]:
    name = escape(scheme.name, quote=True)
    match scheme.kind:
        case "key":
            yield _form(scheme, _field("secret", f"Key ({scheme.where} {scheme.field})", name))
        case "bearer":
            yield _form(scheme, _field("secret", "Token", name))
        case "basic":
            user = _field("user", "User", name, "text")
            yield _form(scheme, user + _field("secret", "Password", name))
        case "certificate":
            yield _form(scheme, "<p>The browser sends its certificate.</p>")
        case "oauth":
            if "code" in scheme.flows:
                field = _field("client", "Client id", name, "text", client)
                yield _form(scheme, field, f"Log in at {scheme.server}")
            yield _form(scheme, _field("secret", "Access token that you have", name))


def _form(scheme: SchemeView, fields: str, button: str = "Log in") -> str:
    name = escape(scheme.name, quote=True)
    about = f"<p class=dim>{escape(scheme.description)}</p>" if scheme.description else ""
    other = "" if name.lower() == scheme.title.lower() else f" <span class=dim>{name}</span>"
    return (
        f'<form class=card method=post action="/console/login"><h3>{escape(scheme.title)}{other}'
        f"</h3>{about}"
        f'<input type=hidden name=scheme value="{name}">{fields}'
        f"<button>{escape(button)}</button></form>"
    )


def _field(name: str, label: str, scheme: str, kind: str = "password", value: str = "") -> str:
    filled = f' value="{escape(value, quote=True)}"' if value else ""
    return (
        f'<label for="{scheme}-{name}">{escape(label)}</label><input id="{scheme}-{name}" '
        f"name={name} type={kind}{filled} autocomplete=off required>"
    )


def filled(body: bytes) -> dict[str, str]:
    """The fields of a filled form."""
    return {name: text[-1] for name, text in parse_qs(body.decode("utf-8", "replace")).items()}


def credentials(schemes: Sequence[SchemeView], given: Mapping[str, str]) -> Credentials | None:
    """The credentials that a person has typed; None if they are not valid."""
    scheme = next((each for each in schemes if each.name == given.get("scheme")), None)
    secret = given.get("secret", "").strip()
    if scheme is None or not secret.isprintable():
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
            pair = f"{given.get('user', '')}:{given.get('secret', '')}"
            encoded = b64encode(pair.encode("utf-8", "replace")).decode()
            return Credentials({"authorization": f"Basic {encoded}"})
        case "certificate":
            return Credentials()
        case _:
            return None
