"""Log-in of an operator at the authorization server of the agents: OAuth with a code and PKCE.

Any replica can finish what another one has begun: what is needed for it is in a signed cookie of
the browser that began.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from dragoman.client import HTTPTransport, TransportRequest
from dragoman.console.access import KEY, Credentials, origin_of
from dragoman.console.http import ConsoleError, Request
from dragoman.console.session import ACT, ALL, SEE, Session, cookie_name, opened, sealed
from dragoman.console.source import required_scopes

PATH = "/console/login/code"
"""Where the browser comes back to."""
AGE = 600
"""Seconds that a person may take."""
KEPT = 300.0
"""Seconds for which is remembered what a server says about itself: anybody may begin a log-in."""
TIMEOUT = 15.0
"""Seconds that the authorization server may take."""
LONGEST = 1 << 20
"""The most bytes of its answers."""
COOKIE = "dragoman-console-login"
PURPOSE = "login"


class Begun(Struct, frozen=True):
    """A log-in that somebody has begun."""

    scheme: str
    client: str
    state: str
    verifier: str
    ends: float
    session: Session | None = None
    """The session that gets a caller for the chat; None if an operator logs in to the console."""


class Endpoints(Struct, frozen=True):
    """Where a person logs in, where tokens come from, and which scopes there are."""

    person: str
    token: str
    scopes: tuple[str, ...]


class OperatorLogin:
    """Logs in at authorization servers."""

    def __init__(self) -> None:
        self._few = asyncio.Semaphore(4)
        self._documents: dict[str, tuple[float, dict[str, Any]]] = {}
        """What servers of OpenID Connect say about themselves, and until when that is kept."""

    async def begin(
        self,
        request: Request,
        card: Mapping[str, Any],
        name: str,
        client: str,
        session: Session | None = None,
    ) -> tuple[str, dict[str, str]]:
        """The URL to which the browser must go, and the headers to answer with. Raises
        ConsoleError."""
        found = await self._endpoints(card, name)
        begun = Begun(
            scheme=name,
            client=client.strip(),
            state=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            ends=time.time() + AGE,
            session=session,
        )
        digest = hashlib.sha256(begun.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": begun.client,
            "redirect_uri": f"{origin_of(request)}{PATH}",
            "state": begun.state,
            "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            "resource": request.scope["dragoman.url"],
        }
        own = () if session is not None and session.operator.local else (SEE, ACT, ALL)
        if scopes := _scopes(card, name, found.scopes, own):
            query["scope"] = " ".join(scopes)
        key = await request.scope["dragoman.app"].secret(KEY)
        joint = "&" if "?" in found.person else "?"
        cookie = _cookie(request, sealed(begun, key, PURPOSE))
        return f"{found.person}{joint}{urlencode(query)}", {"set-cookie": cookie}

    async def begun(self, request: Request) -> Begun | None:
        """What the browser that comes back has begun; None if nothing."""
        name = cookie_name(origin_of(request), COOKIE)
        key = await request.scope["dragoman.app"].secret(KEY)
        for item in request.header(b"cookie").split(";"):
            found, _, value = item.strip().partition("=")
            begun = opened(value, key, Begun, PURPOSE) if found == name else None
            if begun is not None and begun.ends > time.time():
                same = hmac.compare_digest(begun.state.encode(), request.one("state").encode())
                return begun if same else None
        return None

    async def finish(self, request: Request, card: Mapping[str, Any], begun: Begun) -> Credentials:
        """Get the access token of somebody who has logged in. Raises ConsoleError."""
        code = request.one("code")
        if not code:
            why = request.one("error_description") or request.one("error") or "it gave no code"
            raise ConsoleError(f"The authorization server refused: {why[:500]}")
        server = (await self._endpoints(card, begun.scheme)).token
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": f"{origin_of(request)}{PATH}",
            "client_id": begun.client,
            "code_verifier": begun.verifier,
            "resource": request.scope["dragoman.url"],
        }
        answer = await self._fetch("POST", server, urlencode(form).encode())
        token = answer.get("access_token")
        if not isinstance(token, str) or not token.isprintable():
            why = str(answer.get("error_description") or answer.get("error") or "no token")
            raise ConsoleError(f"The authorization server refused: {why[:500]}")
        return Credentials({"authorization": f"Bearer {token}"})

    async def _endpoints(self, card: Mapping[str, Any], name: str) -> Endpoints:
        """The URLs of a scheme. Raises ConsoleError."""
        scheme = (card.get("securitySchemes") or {}).get(name) or {}
        flows = (scheme.get("oauth2SecurityScheme") or {}).get("flows") or {}
        if flow := flows.get("authorizationCode"):
            offered = tuple(flow.get("scopes") or ())
            return Endpoints(flow["authorizationUrl"], flow["tokenUrl"], offered)
        url = (scheme.get("openIdConnectSecurityScheme") or {}).get("openIdConnectUrl", "")
        if not url:
            raise ConsoleError("This scheme has no log-in with a code.")
        until, document = self._documents.get(url, (0.0, {}))
        if time.monotonic() > until:
            document = await self._fetch("GET", url)
            self._documents = {url: (time.monotonic() + KEPT, document)}
        found = [document.get(f"{each}_endpoint") for each in ("authorization", "token")]
        if not all(isinstance(each, str) and each.startswith("http") for each in found):
            raise ConsoleError("The authorization server has no log-in with a code.")
        offered = document.get("scopes_supported") or ()
        return Endpoints(str(found[0]), str(found[1]), ("openid", *map(str, offered)))

    async def _fetch(self, method: str, url: str, body: bytes = b"") -> dict[str, Any]:
        """The JSON object that the authorization server answers."""
        headers = {"accept": "application/json"}
        if body:
            headers["content-type"] = "application/x-www-form-urlencoded"
        transport = HTTPTransport()
        try:
            async with asyncio.timeout(TIMEOUT), self._few:
                response = await transport.send(TransportRequest(method, url, headers, body))
                text = b""
                async for chunk in response.chunks():
                    text += chunk
                    if len(text) > LONGEST:
                        raise ConsoleError("The answer of the authorization server is too long.")
            found = json.loads(text)
        except (OSError, TimeoutError):
            raise ConsoleError("The authorization server does not answer.") from None
        except ValueError:
            raise ConsoleError("The authorization server did not answer with JSON.") from None
        finally:
            await transport.close()
        if not isinstance(found, dict):
            raise ConsoleError("The authorization server did not answer with an object.")
        return found


def _cookie(request: Request, value: str) -> str:
    origin = origin_of(request)
    secure = "; Secure" if origin.startswith("https:") else ""
    # not Strict: the browser comes from another site
    return (
        f"{cookie_name(origin, COOKIE)}={value}; Path={PATH}; Max-Age={AGE}; "
        f"HttpOnly; SameSite=Lax{secure}"
    )


def _scopes(
    card: Mapping[str, Any], name: str, offered: Sequence[str], own: Sequence[str]
) -> list[str]:
    """The scopes to ask for: what the agent requires, and the console's `own` that are offered."""
    found = dict.fromkeys(required_scopes(card, name))
    found |= dict.fromkeys(each for each in ("openid", *own) if each in offered)
    return list(found)
