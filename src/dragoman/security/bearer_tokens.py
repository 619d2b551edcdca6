"""Bearer tokens that an issuer signed (JWT). The keys come from discovery or from the
configuration.

It needs the extra `crypto` (joserfc), and `client` (aiohttp) to fetch keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dragoman.model.caller import Caller, Request, fault
from dragoman.model.errors import Forbidden, Unauthenticated, Unavailable
from dragoman.model.types import HTTPAuthSecurityScheme, OpenIdConnectSecurityScheme, SecurityScheme
from dragoman.security.extras import need
from dragoman.security.issuer_requests import Backoff, read
from dragoman.security.realms import Tenants
from dragoman.security.schemes import Found

if TYPE_CHECKING:
    from dragoman.security.dpop import Proofs

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "EdDSA", "Ed25519"),
)
"""Asymmetric algorithms: a verifier cannot sign."""
REMEMBERED = 10_000
"""The most tokens whose verdict is cached."""
AGE = 300.0
"""The most seconds that a verdict is cached: a key that its issuer withdraws is accepted no
longer."""
LONGEST = 16 * 1024
FRESH = 3600.0
"""Seconds for which fetched keys are used before the server asks again."""
OUTAGE = 24 * 3600.0
"""How many seconds longer they are used while the issuer cannot be reached."""
PAUSE = 30.0
"""The least seconds between two fetches, however many unknown keys are named."""
DISCOVERY = "/.well-known/openid-configuration"
PATIENCE = 10.0
"""Seconds that an issuer may take for a whole response."""
LARGEST = 1 << 20
"""The most bytes of an issuer's document."""
Fetch = Callable[[str], Awaitable[Any]]


# ---- verdicts ------------------------------------------------------------------------------


class Verdict(Struct, frozen=True, kw_only=True):
    """The result of checking a token."""

    until: float
    """The Unix time when to check again."""
    caller: Caller | None = None
    """The caller; None if the token is not valid."""
    fault: str = ""
    """Why it is not valid."""
    lacks: str = ""
    """A required scope that the token lacks."""
    key: str = ""
    """The thumbprint of the key that the sender must prove to hold (`cnf.jkt`)."""
    certificate: str = ""
    """The digest of the certificate that the sender must present (`cnf.x5t#S256`)."""
    plain: bool = False
    """Whether no further proof is needed."""


class KeySets:
    """The verdicts of checked tokens, by digest, with a limit on their number and age. What a token
    is bound to is checked with every request."""

    def __init__(
        self, examine: Callable[[str, bytes], Awaitable[Verdict]], *, dpop: bool = False
    ) -> None:
        self._examine = examine
        self._dpop = dpop
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._proofs: Proofs | None = None

    def __len__(self) -> int:
        return len(self._known)

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """Identify the caller by the token in the request; None if it has none."""
        kind, _, token = request.headers.get("authorization", "").strip().partition(" ")
        kind = kind.lower()
        if kind not in ("bearer", "dpop"):
            return None
        token = token.strip()
        digest = hashlib.sha256(token.encode("latin-1", "replace")).digest()
        known = self._known.get(digest)
        if known is None or time.time() >= known.until:
            return self._look(request, kind, token, digest)
        if known.plain and kind == "bearer":
            return known.caller
        return self._admit(known, request, kind, token)

    async def _look(self, request: Request, kind: str, token: str, digest: bytes) -> Found:
        self._known.pop(digest, None)
        if len(token) > LONGEST:
            raise Unauthenticated("The token is too long")
        verdict = await self._examine(token, digest)
        self._keep(digest, verdict)
        return self._admit(verdict, request, kind, token)

    def _keep(self, digest: bytes, verdict: Verdict) -> None:
        known, now = self._known, time.time()
        known[digest] = verdict
        # The first one is the oldest, so expired verdicts are removed soon.
        while known and (len(known) > REMEMBERED or next(iter(known.values())).until <= now):
            known.popitem(last=False)

    def _admit(self, verdict: Verdict, request: Request, kind: str, token: str) -> Caller:
        if verdict.caller is None:
            raise Unauthenticated(verdict.fault)
        if verdict.lacks:
            raise Forbidden(
                f"The token lacks the scope {verdict.lacks!r}", metadata={"scope": verdict.lacks}
            )
        if verdict.certificate:
            from dragoman.security.certificates import thumbprint

            if thumbprint(request.certificate) != verdict.certificate:
                raise Unauthenticated(
                    "The token is bound to a client certificate that was not sent"
                )
        if verdict.key or self._dpop or kind == "dpop":
            self._prove(verdict, request, kind, token)
        return verdict.caller

    def _prove(self, verdict: Verdict, request: Request, kind: str, token: str) -> None:
        from dragoman.security.dpop import Proofs

        if not verdict.key:
            raise Unauthenticated("The token is not bound to a key")
        if kind != "dpop":
            raise Unauthenticated("The token is bound to a key: send it as DPoP, with a proof")
        self._proofs = self._proofs or Proofs()
        self._proofs.check(request, token, verdict.key)


class Terms(Struct, frozen=True, kw_only=True):
    """What a token must contain. A missing claim is an error, except with `lenient`: then the
    introspection server has already checked issuer and time."""

    issuer: str = ""
    audience: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    tenant: str = "tenant"
    leeway: float = 60.0
    lenient: bool = False

    def verdict(self, claims: Mapping[str, Any], identity: str, age: float) -> Verdict:
        """Make the verdict for these claims. Raises Unauthenticated."""
        now = time.time()
        expires = self._expires(claims, now)
        until = min(expires + self.leeway, now + age)
        issuer = claims.get("iss")
        if self.issuer and issuer != self.issuer and not (self.lenient and issuer is None):
            raise Unauthenticated("The token was issued by another issuer")
        if self.audience:
            audience = claims.get("aud")
            named = (audience,) if isinstance(audience, str) else audience
            if not isinstance(named, list | tuple) or not set(self.audience) & set(map(str, named)):
                raise Unauthenticated("The token is for another audience")
        if not identity:
            raise Unauthenticated("The token has no subject")
        claim = claims.get("scope", claims.get("scp")) or ()
        words = claim.split() if isinstance(claim, str) else claim
        if not isinstance(words, list | tuple) or not all(map(_word, words)):
            raise Unauthenticated("The scope of the token is not a list of words")
        scopes = frozenset(words)
        lacks = next((scope for scope in self.scopes if scope not in scopes), "")
        tenant = claims.get(self.tenant)
        if not isinstance(tenant, str | None):
            raise Unauthenticated("The tenant of the token is not text")
        key, certificate = _confirmation(claims.get("cnf"))
        return Verdict(
            until=until,
            caller=Caller(
                identity=identity,
                tenant=tenant or "",
                scopes=scopes,
                expires=0.0 if math.isinf(expires) else expires,
            ),
            lacks=lacks,
            key=key,
            certificate=certificate,
            plain=not (lacks or key or certificate),
        )

    def _expires(self, claims: Mapping[str, Any], now: float) -> float:
        expires, before = _moment(claims.get("exp")), _moment(claims.get("nbf", 0))
        if expires is None and self.lenient and "exp" not in claims:
            expires = math.inf
        if expires is None or now >= expires + self.leeway:
            raise Unauthenticated("The token has expired")
        if before is None or now < before - self.leeway:
            raise Unauthenticated("The token is not valid yet")
        return expires


def _confirmation(claim: Any) -> tuple[str, str]:
    """The key and the certificate that a token is bound to."""
    if claim is None:
        return "", ""
    if isinstance(claim, Mapping):
        key, certificate = claim.get("jkt", ""), claim.get("x5t#S256", "")
        if isinstance(key, str) and isinstance(certificate, str) and (key or certificate):
            return key, certificate
    # The sender must prove something, but the method is unknown.
    raise Unauthenticated("The token is bound in an unknown way (cnf)")


def _moment(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if known and math.isfinite(value) else None
    except OverflowError:
        return None


# ---- JWT -----------------------------------------------------------------------------------


class Bearer:
    """Accepts tokens of an issuer for this audience. The identity is their `sub`. With `dpop`, only
    tokens that are bound to a key are accepted; a bound token always needs a proof."""

    called = "bearer"

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
        dpop: bool = False,
        realm: str | None = None,
        tenants: Tenants = (),
        name: str = "",
        fetch: Fetch | None = None,
    ) -> None:
        title = type(self).__name__
        for algorithm in algorithms:
            if algorithm not in ALGORITHMS:
                raise ValueError(f"{title}: {algorithm}: must be one of {', '.join(ALGORITHMS)}")
        if not issuer or not audience or not algorithms:
            raise ValueError(f"{title}: issuer, audience and algorithms are required")
        # Now, not when the first caller sends a token.
        need("joserfc", "crypto", title)
        if isinstance(jwks, str) and fetch is None:
            need("aiohttp", "client", title)
        self.issuer = issuer
        self.audience = (audience,) if isinstance(audience, str) else tuple(audience)
        self.scopes = tuple(scopes)
        """The scopes that every token must have."""
        self.dpop = dpop
        self.realm, self.tenants = realm, tenants
        self.space = "sub", issuer
        """Two schemes with the same issuer have the same identities."""
        self.name = name or self.called
        self._terms = Terms(
            issuer=issuer,
            audience=self.audience,
            scopes=self.scopes,
            tenant=tenant,
            leeway=leeway,
        )
        self._algorithms = list(algorithms)
        self._types = frozenset(kind.lower() for kind in types)
        self._keys = Keyring(issuer, jwks, fetch or _get)
        self._book = KeySets(self._verify, dpop=dpop)

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        http = HTTPAuthSecurityScheme(
            scheme="DPoP" if self.dpop else "Bearer",
            bearer_format="JWT",
            description=f"A token of {self.issuer}",
        )
        return SecurityScheme(http_auth_security_scheme=http)

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return challenge(realm, self.scopes, dpop=self.dpop)

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """See `Scheme.identify`. A valid token is cached until it expires, or for `AGE`."""
        return self._book.identify(request)

    async def _verify(self, token: str, _: bytes) -> Verdict:
        header = unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self._algorithms:
            raise Unauthenticated(f"The algorithm of the token must be one of {self._algorithms}")
        # The signer does not choose the key: it must be a key of the issuer.
        if "crit" in header or not isinstance(kid, str | None):
            raise Unauthenticated("The header of the token is not supported")
        if str(header.get("typ", "jwt")).lower() not in self._types:
            raise Unauthenticated("The token is of another type")
        claims = await self._claims(token, kid, algorithm)
        subject = claims.get("sub")
        return self._terms.verdict(claims, subject if isinstance(subject, str) else "", AGE)

    async def _claims(self, token: str, kid: str | None, algorithm: str) -> dict[str, Any]:
        from joserfc.errors import JoseError

        for key in await self._keys.named(kid):
            try:
                return verified_claims(token, key, algorithm)
            except (JoseError, ValueError, TypeError, RecursionError):
                continue
        raise Unauthenticated("No key of the issuer made the signature of the token")


class OpenId(Bearer):
    """Accepts tokens of an OpenID provider: checked like `Bearer`. The card has the URL of the
    discovery document, so that clients find out where to get a token."""

    called = "openid"

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        openid = OpenIdConnectSecurityScheme(
            open_id_connect_url=self.issuer.rstrip("/") + DISCOVERY
        )
        return SecurityScheme(open_id_connect_security_scheme=openid)


def challenge(realm: str, scopes: Sequence[str], *, dpop: bool = False) -> str:
    """The `WWW-Authenticate` challenge for tokens."""
    scope = f', scope="{" ".join(scopes)}"' if scopes else ""
    if dpop:
        from dragoman.security.dpop import ALGORITHMS as PROVING

        return f'DPoP realm="{realm}", algs="{" ".join(PROVING)}"{scope}'
    return f'Bearer realm="{realm}"{scope}'


class Keyring:
    """The keys of an issuer. Concurrent requests share one fetch. An unknown key causes another
    fetch, but many unknown keys do not cause many. While no key is known and the issuer fails, the
    pauses between fetches grow."""

    def __init__(self, issuer: str, jwks: str | Mapping[str, Any], fetch: Fetch) -> None:
        self._issuer = issuer
        self._url = jwks if isinstance(jwks, str) else ""
        self._fetch = fetch
        self._keys: dict[str, Any] = {}
        self._fixed = not isinstance(jwks, str)
        self._given = jwks if self._fixed else None
        self._until = 0.0
        self._asked = -PAUSE
        self._backoff = Backoff()
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
            if (stale or unknown) and (self._fetching is not None or self._due(now)):
                await self._renew()
            if time.monotonic() >= self._until + OUTAGE:
                self._keys = {}
            if not self._keys:
                raise Unavailable(
                    "The keys of the issuer cannot be fetched", headers=self._backoff.retry_after()
                )
        if kid is not None:
            return [self._keys[kid]] if kid in self._keys else []
        return list(self._keys.values())[:8]

    def _due(self, now: float) -> bool:
        """Whether the issuer may be asked now."""
        return now >= self._asked + PAUSE if self._keys else not self._backoff.left()

    async def _renew(self) -> None:
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._get())
            self._fetching.add_done_callback(self._fetched)
        await asyncio.shield(self._fetching)

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        self._asked = time.monotonic()

    async def _get(self) -> None:
        try:
            url = self._url
            if not url:
                found = await self._fetch(self._issuer.rstrip("/") + DISCOVERY)
                if found.get("issuer") != self._issuer:
                    raise ValueError("the metadata belong to another issuer")
                url = str(found["jwks_uri"])
            self._take(await self._fetch(url))
            self._until = time.monotonic() + FRESH
            self._backoff.succeeded()
        except (
            *(OSError, ValueError, TypeError, KeyError, AttributeError),
            *(TimeoutError, RecursionError),
        ) as error:
            if self._backoff.failed():
                logging.getLogger("dragoman").warning(
                    "cannot fetch the keys of %s: %s", self._issuer, error or type(error).__name__
                )

    def _take(self, document: Any) -> None:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        found: dict[str, Any] = {}
        for number, item in enumerate(document["keys"]):
            if item.get("kty") == "oct" or item.get("use", "sig") != "sig":
                continue  # a symmetric key: a verifier could sign
            try:
                (key,) = KeySet.import_key_set({"keys": [item]}).keys
            except (JoseError, ValueError, TypeError):
                continue  # of an unknown kind
            found[str(item.get("kid", f"#{number}"))] = key
        if not found:
            raise ValueError("it contains no keys")
        self._keys = found


def unverified_header(token: str) -> dict[str, Any]:
    """The header of a JWT, not verified. Raises Unauthenticated."""
    import base64
    import binascii

    first = token.partition(".")[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        found = None
    if token.count(".") != 2 or not isinstance(found, dict):
        raise Unauthenticated("The token is not a JWT")
    return found


def verified_claims(token: str, key: Any, algorithm: str) -> dict[str, Any]:
    """The claims of a JWT that this key has signed. Raises JoseError. Unknown header fields are
    accepted (the caller checks `crit`), and a key in the header may be long."""
    from joserfc import jwt
    from joserfc.jws import JWSRegistry

    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = LONGEST
    quiet = warnings.catch_warnings() if algorithm == "EdDSA" else nullcontext()
    with quiet:
        if algorithm == "EdDSA":  # a deprecated name, but still in use
            warnings.simplefilter("ignore")
        return dict(jwt.decode(token, key, algorithms=[algorithm], registry=registry).claims)


def _word(value: Any) -> bool:
    return isinstance(value, str) and not fault(value)


async def _get(url: str) -> Any:
    """Fetch a small JSON document from a server that the configuration names."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise ValueError(f"{url} answered {response.status}")
            return json.loads(await read(response, LARGEST))
    except aiohttp.ClientError as error:
        raise OSError(f"{url}: {error}") from error
