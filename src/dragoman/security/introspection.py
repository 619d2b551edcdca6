"""Verifies opaque tokens at their issuer (token introspection, RFC 7662).

It needs the extra `client` (aiohttp), and `crypto` (joserfc) for tokens that are bound to a key.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Awaitable, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from dragoman.model.caller import Request
from dragoman.model.errors import Unauthenticated, Unavailable
from dragoman.model.types import HTTPAuthSecurityScheme, SecurityScheme
from dragoman.security.bearer_tokens import KeySets, Terms, Verdict, challenge
from dragoman.security.client_network import loopback
from dragoman.security.extras import need
from dragoman.security.issuer_requests import Backoff, read
from dragoman.security.realms import Tenants
from dragoman.security.schemes import Found

BRIEF = 10.0
"""Seconds until the server asks again about an inactive token."""
AT_ONCE = 64
"""The most concurrent requests: a caller who invents tokens must not flood the issuer."""
PATIENCE = 10.0
"""Seconds that the issuer may take for a whole response."""
LARGEST = 64 * 1024
"""The most bytes of a response."""
FAILURES = 5
"""This many consecutive failures start a pause. A single token for which the issuer fails starts
none."""


class Introspection:
    """Accepts tokens that the server at `url` reports as active. The identity is their `sub`, else
    their `username`, else their `client_id`.

    A response is cached for `age` seconds, so a revoked token is accepted no longer than that. If
    `audience` is given, the token must have it. If `issuer` is given, the token must not have
    another one, and a 401 response names it.
    """

    def __init__(
        self,
        *,
        url: str,
        client_id: str,
        client_secret: str,
        audience: str | Sequence[str] = (),
        issuer: str = "",
        scopes: Sequence[str] = (),
        tenant: str = "tenant",
        age: float = 60.0,
        dpop: bool = False,
        realm: str | None = None,
        tenants: Tenants = (),
        name: str = "",
    ) -> None:
        if not url or not client_id or not client_secret:
            raise ValueError("Introspection: url, client_id and client_secret are required")
        parts = urlsplit(url)
        local = parts.scheme == "http" and loopback(parts.hostname or "")
        if parts.scheme != "https" and not local:
            raise ValueError(f"Introspection: {url}: tokens and secrets are sent by https only")
        # Now, not when the first caller sends a token.
        need("aiohttp", "client", "Introspection")
        if dpop:
            need("joserfc", "crypto", "Introspection(dpop=True)")
        self.issuer = issuer
        self.scopes = tuple(scopes)
        """The scopes that every token must have."""
        self.dpop = dpop
        self.realm, self.tenants = realm, tenants
        self.space = "introspection", url
        """Two schemes with the same server have the same identities."""
        self.name = name or "introspection"
        self._url = url
        pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        self._login = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._age = age
        self._terms = Terms(
            issuer=issuer,
            audience=(audience,) if isinstance(audience, str) else tuple(audience),
            scopes=self.scopes,
            tenant=tenant,
            leeway=0.0,  # the issuer's clock decides
            lenient=True,
        )
        self._book = KeySets(self._ask_once, dpop=dpop)
        self._asking: dict[bytes, asyncio.Task[Verdict]] = {}
        self._backoff = Backoff(FAILURES)

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        whose = f"A token of {self.issuer}" if self.issuer else ""
        http = HTTPAuthSecurityScheme(scheme="DPoP" if self.dpop else "Bearer", description=whose)
        return SecurityScheme(http_auth_security_scheme=http)

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return challenge(realm, self.scopes, dpop=self.dpop)

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """See `Scheme.identify`."""
        return self._book.identify(request)

    async def _ask_once(self, token: str, digest: bytes) -> Verdict:
        """Ask about the token, once for all concurrent requests."""
        asking = self._asking.get(digest)
        if asking is None:
            backoff = self._backoff
            # After a pause, one request finds out whether the issuer is back.
            if backoff.failing and (self._asking or backoff.left()):
                raise Unavailable(
                    "The issuer cannot verify the token at the moment",
                    headers=backoff.retry_after(),
                )
            if len(self._asking) >= AT_ONCE:
                raise Unavailable(
                    "Too many requests to the issuer are in progress", headers={"retry-after": "1"}
                )
            asking = self._asking[digest] = asyncio.create_task(self._ask(token))
            asking.add_done_callback(lambda done: self._answered(digest, done))
        return await asyncio.shield(asking)

    def _answered(self, digest: bytes, done: asyncio.Task[Verdict]) -> None:
        self._asking.pop(digest, None)
        if not done.cancelled():
            done.exception()  # perhaps nobody waits any more

    async def _ask(self, token: str) -> Verdict:
        try:
            found = await self._post(token)
            if not isinstance(found, dict) or not isinstance(found.get("active"), bool):
                raise ValueError(
                    f"the response of {self._url} does not say whether the token is active"
                )
        except (OSError, ValueError, TimeoutError, RecursionError) as error:
            if self._backoff.failed():
                logging.getLogger("dragoman").warning(
                    "%s cannot verify tokens: %s", self._url, error or type(error).__name__
                )
            raise Unavailable(
                "The issuer cannot verify the token at the moment", headers={"retry-after": "5"}
            ) from None
        self._backoff.succeeded()
        until = time.time() + BRIEF
        if not found["active"]:
            return Verdict(until=until, fault="The token is not active")
        named = (found.get(name) for name in ("sub", "username", "client_id"))
        identity = next((name for name in named if isinstance(name, str) and name), "")
        try:
            return self._terms.verdict(found, identity, self._age)
        except Unauthenticated as error:
            return Verdict(until=until, fault=error.message)

    async def _post(self, token: str) -> Any:
        import aiohttp

        body = urlencode({"token": token, "token_type_hint": "access_token"})
        headers = {
            "authorization": self._login,
            "content-type": "application/x-www-form-urlencoded",
            "accept": "application/json",
        }
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(
                    self._url, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                if response.status != 200:
                    raise ValueError(f"it answered with HTTP {response.status}")
                return json.loads(await read(response, LARGEST))
        except aiohttp.ClientError as error:
            raise OSError(str(error) or type(error).__name__) from error
