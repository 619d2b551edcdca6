"""Bearer tokens that an issuer signed: JWT by discovery or by keys that are given.

It needs the extra `crypto` (joserfc), and for fetching keys `client` (aiohttp).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from dragoman.caller import Caller, Request
from dragoman.errors import Unauthenticated, Unavailable
from dragoman.security.schemes import Found, credentials
from dragoman.types import HTTPAuthSecurityScheme, SecurityScheme

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Signatures with two keys: who can verify cannot sign."""
REMEMBERED = 10_000
"""The most tokens whose verdict is kept."""
LONGEST = 16 * 1024
FRESH = 3600.0
"""How long keys that were fetched are used without asking again."""
PAUSE = 30.0
"""How soon keys are asked for again, however many unknown ones are named."""
DISCOVERY = "/.well-known/openid-configuration"
Fetch = Callable[[str], Awaitable[Any]]


class Bearer:
    """Tokens of an issuer, for this audience. Who asks is their `sub`."""

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Sequence[str],
        jwks: str | Mapping[str, Any] = "",
        algorithms: Sequence[str] = ALGORITHMS,
        scopes: Sequence[str] = (),
        tenant: str = "tenant",
        leeway: float = 60.0,
        types: Sequence[str] = ("at+jwt", "application/at+jwt", "jwt"),
        name: str = "",
        fetch: Fetch | None = None,
    ) -> None:
        for algorithm in algorithms:
            if algorithm not in ALGORITHMS:
                raise ValueError(f"Bearer: {algorithm} is not among {', '.join(ALGORITHMS)}")
        if not issuer or not audience or not algorithms:
            raise ValueError("Bearer: give issuer, audience and algorithms")
        self.issuer = issuer
        self.audience = (audience,) if isinstance(audience, str) else tuple(audience)
        self.scopes = tuple(scopes)
        """What every token must be good for."""
        self.name = name or "bearer"
        self._algorithms = list(algorithms)
        self._tenant = tenant
        self._leeway = leeway
        self._types = frozenset(kind.lower() for kind in types)
        self._keys = Keyring(issuer, jwks, fetch or _get)
        self._known: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        http = HTTPAuthSecurityScheme(
            scheme="Bearer", bearer_format="JWT", description=f"A token of {self.issuer}"
        )
        return SecurityScheme(http_auth_security_scheme=http)

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        scope = f', scope="{" ".join(self.scopes)}"' if self.scopes else ""
        return f'Bearer realm="{realm}"{scope}'

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """See `Scheme.identify`. A token that was good is known until it expires."""
        token = credentials(request, "bearer")
        if token is None:
            return None
        known = self._known.get(
            digest := hashlib.sha256(token.encode("latin-1", "replace")).digest()
        )
        if known is not None and time.time() < known[0]:
            return known[1]
        return self._verify(token, digest)

    async def _verify(self, token: str, digest: bytes) -> Caller:
        if len(token) > LONGEST:
            raise Unauthenticated("The token is too long")
        header = _header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self._algorithms:
            raise Unauthenticated(f"The token's algorithm is not among {self._algorithms}")
        # whoever signs does not choose the key: it is one of the issuer's, or none
        if "crit" in header or not isinstance(kid, str | None):
            raise Unauthenticated("The token's header is not understood")
        if str(header.get("typ", "jwt")).lower() not in self._types:
            raise Unauthenticated("The token is of another type")
        claims = await self._claims(token, kid)
        caller, until = self._caller(claims)
        self._known[digest] = until, caller
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return caller

    async def _claims(self, token: str, kid: str | None) -> dict[str, Any]:
        from joserfc import jwt
        from joserfc.errors import JoseError

        for key in await self._keys.named(kid):
            try:
                return dict(jwt.decode(token, key, algorithms=self._algorithms).claims)
            except (JoseError, ValueError, TypeError):
                continue
        raise Unauthenticated("The token's signature is not one of the issuer's")

    def _caller(self, claims: Mapping[str, Any]) -> tuple[Caller, float]:
        now = time.time()
        expires, before = _moment(claims.get("exp")), _moment(claims.get("nbf", 0))
        if claims.get("iss") != self.issuer:
            raise Unauthenticated("The token is of another issuer")
        audience = claims.get("aud")
        named = (audience,) if isinstance(audience, str) else audience
        if not isinstance(named, list | tuple) or not set(self.audience) & set(map(str, named)):
            raise Unauthenticated("The token is for another audience")
        if expires is None or now >= expires + self._leeway:
            raise Unauthenticated("The token has expired")
        if before is None or now < before - self._leeway:
            raise Unauthenticated("The token is not valid yet")
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise Unauthenticated("The token names nobody")
        told = claims.get("scope", claims.get("scp", ""))
        scopes = frozenset(told.split() if isinstance(told, str) else map(str, told or ()))
        missing = [scope for scope in self.scopes if scope not in scopes]
        if missing:
            raise Unauthenticated(f"The token lacks the scope {missing[0]}")
        tenant = claims.get(self._tenant, "")
        caller = Caller(
            identity=subject, tenant=tenant if isinstance(tenant, str) else "", scopes=scopes
        )
        return caller, expires + self._leeway


class Keyring:
    """The keys of an issuer. They are fetched once for all who wait, and again when a key is named
    that is not there, but not because somebody names many."""

    def __init__(self, issuer: str, jwks: str | Mapping[str, Any], fetch: Fetch) -> None:
        self._issuer = issuer
        self._url = jwks if isinstance(jwks, str) else ""
        self._fetch = fetch
        self._keys: dict[str, Any] = {}
        self._fixed = not isinstance(jwks, str)
        self._given = jwks if self._fixed else None
        self._until = 0.0
        self._asked = 0.0
        self._fetching: asyncio.Task[None] | None = None

    async def named(self, kid: str | None) -> list[Any]:
        """The keys that may have signed."""
        if self._given is not None:
            self._take(self._given)
            self._given = None
        if not self._fixed:
            now = time.monotonic()
            stale = now >= self._until
            unknown = kid is not None and kid not in self._keys
            if (stale or unknown) and now >= self._asked + PAUSE:
                await self._renew()
            elif not self._keys and self._fetching is not None:
                await asyncio.shield(self._fetching)
            if not self._keys:
                raise Unavailable("The issuer's keys cannot be had", headers={"retry-after": "5"})
        if kid is not None:
            return [self._keys[kid]] if kid in self._keys else []
        return list(self._keys.values())[:8]

    async def _renew(self) -> None:
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._get())
            self._fetching.add_done_callback(self._fetched)
        await asyncio.shield(self._fetching)

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        self._asked = time.monotonic() if self._keys else 0.0

    async def _get(self) -> None:
        try:
            url = self._url
            if not url:
                found = await self._fetch(self._issuer.rstrip("/") + DISCOVERY)
                if found.get("issuer") != self._issuer:
                    raise ValueError("the issuer's metadata is of another issuer")
                url = str(found["jwks_uri"])
            self._take(await self._fetch(url))
            self._until = time.monotonic() + FRESH
        except (OSError, ValueError, TypeError, KeyError, AttributeError, TimeoutError) as error:
            import logging

            logging.getLogger("dragoman").warning(
                "the keys of %s cannot be had: %s", self._issuer, error or type(error).__name__
            )

    def _take(self, document: Any) -> None:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        found: dict[str, Any] = {}
        for number, item in enumerate(document["keys"]):
            if item.get("kty") == "oct" or item.get("use", "sig") != "sig":
                continue  # whoever could verify with it could sign
            try:
                (key,) = KeySet.import_key_set({"keys": [item]}).keys
            except (JoseError, ValueError, TypeError):
                continue  # of a kind that is not known here
            found[str(item.get("kid", f"#{number}"))] = key
        if not found:
            raise ValueError("there are no keys in it")
        self._keys = found


def _header(token: str) -> dict[str, Any]:
    import base64
    import binascii

    first = token.partition(".")[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        found = None
    if token.count(".") != 2 or not isinstance(found, dict):
        raise Unauthenticated("The token is no JWT")
    return found


def _moment(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) else None


async def _get(url: str) -> Any:
    """A small JSON document of somebody whom the configuration names."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise ValueError(f"{url} answered {response.status}")
            return json.loads(await response.content.read(1 << 20))
    except aiohttp.ClientError as error:
        raise OSError(f"{url}: {error}") from error
