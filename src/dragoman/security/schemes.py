"""Security schemes: one declaration enforces a scheme and lists it on the card.

A scheme checks a request. It finds no credential of its kind (None), a valid one (a `Caller`), or
an invalid one (raises Unauthenticated). An `Authenticator` combines schemes: a list means any of
them, `AllOf` means all.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl

from msgspec.structs import replace

from dragoman.model.caller import Caller, Request
from dragoman.model.errors import (
    A2AError,
    AmbiguousRequest,
    Forbidden,
    Unauthenticated,
    Unavailable,
)
from dragoman.model.types import (
    AgentCard,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from dragoman.security import cookie_header
from dragoman.security.custom_verifier import CustomVerifier, Verify
from dragoman.security.realms import Mark, Tenants, check

DIGEST = "sha256:"
Found = Caller | None
Keys = Mapping[str, str | Sequence[str] | Caller] | Iterable[str]
"""Secrets by identity, several for one while they are being replaced; or a plain list of secrets.
Each is the secret itself, or `sha256:` and its hexadecimal digest. If the value is a `Caller`, the
key is the secret."""


NOBODY: Mapping[str, str] = {}
WRONG = "The name or the password is wrong"
_PLAIN = re.compile(r"[!#-\[\]-~]+")
"""The characters that are allowed inside the quotes of a challenge."""


class Scheme(Protocol):
    """A way to authenticate. A scheme with `scopes` accepts tokens. A scheme with an `issuer`
    accepts tokens of an authorization server, which a 401 response names.

    A scheme with a `realm` puts its callers into that realm; a scheme with `tenants` lets them name
    those tenants. The `Authenticator` applies both. Schemes with an equal `space` have the same
    identities.
    """

    name: str
    """The card's name for it."""

    def declared(self) -> SecurityScheme:
        """The entry for the card."""

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """Identify the caller. Returns None if the request has no credential of this kind. Raises
        Unauthenticated."""

    def challenge(self, realm: str) -> str:
        """The challenge for `WWW-Authenticate`; empty if there is none for this scheme."""


class Secrets:
    """Stores secrets as digests, and finds them in a time that does not depend on the secret."""

    def __init__(self, keys: Keys) -> None:
        self._known: dict[bytes, Caller] = {}
        if isinstance(keys, Mapping):
            for name, value in keys.items():
                if isinstance(value, Caller):
                    self._known[digest(name)] = value
                    continue
                for secret in (value,) if isinstance(value, str) else value:
                    self._known[digest(secret)] = Caller(identity=name)
        else:
            if isinstance(keys, str):
                raise ValueError("keys: expected a list of strings or a mapping, not a string")
            for secret in keys:
                known = digest(secret)
                self._known[known] = Caller(identity=f"key-{known.hex()[:12]}")
        if not self._known:
            raise ValueError("keys: must not be empty, or no caller could authenticate")

    def find(self, secret: str) -> Caller | None:
        """Return the caller that has this secret."""
        return self._known.get(hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest())


def digest(secret: str) -> bytes:
    """The digest of a secret, which may already be one."""
    if secret.startswith(DIGEST):
        try:
            found = bytes.fromhex(secret.removeprefix(DIGEST))
        except ValueError:
            found = b""
        if len(found) != hashlib.sha256().digest_size:
            raise ValueError(f"{DIGEST} must be followed by 64 hexadecimal digits")
        return found
    if not secret:
        raise ValueError("a key must not be empty")
    return hashlib.sha256(secret.encode()).digest()


Find = Callable[[Request, str], Found | Awaitable[Found]]


def _find(scheme: str, keys: Keys, verify: Verify | None, value: str, unknown: str) -> Find:
    """Make a function that finds the caller of a secret: by the keys, or by `verify`. It raises
    Unauthenticated."""
    if verify is not None:
        if keys:
            raise ValueError(f"{scheme}: give either fixed values or verify=, not both")
        return CustomVerifier(scheme, verify, value, unknown=unknown)
    secrets = Secrets(keys)

    def find(_: Request, secret: str) -> Caller:
        caller = secrets.find(secret)
        if caller is None:
            raise Unauthenticated(unknown)
        return caller

    return find


class ApiKey:
    """A key in a header, a query parameter or a cookie. Pass `keys`, or a function `verify` that
    returns the caller."""

    def __init__(
        self,
        *,
        keys: Keys = (),
        verify: Verify | None = None,
        header: str = "",
        query: str = "",
        cookie: str = "",
        realm: str | None = None,
        tenants: Tenants = (),
        name: str = "",
    ) -> None:
        places = [("header", header), ("query", query), ("cookie", cookie)]
        given = [(where, what) for where, what in places if what]
        if len(given) != 1:
            raise ValueError("ApiKey: give exactly one of header=, query=, cookie=")
        ((self._where, self._what),) = given
        self.headers = (header.lower(),) if header else ()
        """See `Authenticator.headers`."""
        self._find = _find("ApiKey", keys, verify, "key", "The API key is not known")
        self.realm, self.tenants = realm, tenants
        self.name = name or "key"

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        key = APIKeySecurityScheme(location=self._where, name=self._what)
        return SecurityScheme(api_key_security_scheme=key)

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """See `Scheme.identify`."""
        secret = self._secret(request)
        return None if secret is None else self._find(request, secret)

    def _secret(self, request: Request) -> str | None:
        if self._where == "header":
            return request.headers.get(self._what.lower())
        if self._where == "query":
            found = [value for name, value in parse_qsl(request.query) if name == self._what]
        else:
            try:
                found = cookie_header.values(request.headers.get("cookie", ""), self._what)
            except ValueError as error:
                raise Unauthenticated(str(error)) from None
        if len(found) > 1:
            raise AmbiguousRequest(f"The {self._where} contains the API key more than once")
        return found[0] if found else None

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return ""


class Token:
    """Bearer tokens. Pass the tokens, or a function `verify` that returns the caller."""

    def __init__(
        self,
        tokens: Keys = (),
        *,
        verify: Verify | None = None,
        realm: str | None = None,
        tenants: Tenants = (),
        name: str = "",
    ) -> None:
        self._find = _find("Token", tokens, verify, "token", "The token is not known")
        self.realm, self.tenants = realm, tenants
        self.name = name or "token"

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        return SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """See `Scheme.identify`."""
        token = credentials(request, "bearer")
        return None if token is None else self._find(request, token)

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return f'Bearer realm="{realm}"'


class Basic:
    """A user name and a password. Pass the users, or a function `verify` that returns the
    caller."""

    def __init__(
        self,
        users: Mapping[str, str | Sequence[str]] = NOBODY,
        *,
        verify: Verify | None = None,
        realm: str | None = None,
        tenants: Tenants = (),
        name: str = "",
    ) -> None:
        self._users = {
            user: [digest(word) for word in ((words,) if isinstance(words, str) else words)]
            for user, words in users.items()
        }
        if verify is not None and self._users:
            raise ValueError("Basic: give either users or verify=, not both")
        if verify is None and not self._users:
            raise ValueError("Basic: users must not be empty, or no caller could authenticate")
        self._verify = verify and CustomVerifier("Basic", verify, "user", "password", unknown=WRONG)
        self.realm, self.tenants = realm, tenants
        self.name = name or "login"

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        return SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Basic"))

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """See `Scheme.identify`."""
        encoded = credentials(request, "basic")
        if encoded is None:
            return None
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise Unauthenticated(
                "The name and password are not in the format of HTTP Basic"
            ) from None
        if self._verify is not None:
            return self._verify(request, user, password)
        given = hashlib.sha256(password.encode()).digest()
        # An unknown user takes as long.
        known = self._users.get(user) or [bytes(len(given))]
        if sum(hmac.compare_digest(given, each) for each in known) == 0:
            raise Unauthenticated(WRONG)
        return Caller(identity=user)

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return f'Basic realm="{realm}", charset="UTF-8"'


class Anonymous:
    """Accepts callers without credentials. It must be configured explicitly. `tenants` are the
    tenants that anonymous callers may name; by default none."""

    name = ""

    def __init__(self, *, tenants: Sequence[str] = ()) -> None:
        self.tenants = tenants

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        return SecurityScheme()

    def identify(self, request: Request) -> Found:
        """See `Scheme.identify`."""
        return Caller()

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return ""


class AllOf:
    """Several schemes that are required together. The first one sets the identity and the realm;
    the scopes of all are combined. The first one with `tenants` decides about tenants."""

    def __init__(self, *schemes: Scheme) -> None:
        if len(schemes) < 2:
            raise ValueError("AllOf: needs two or more schemes")
        self.schemes = schemes


Auth = Scheme | AllOf | Sequence[Scheme | AllOf]


class Refusal(Unauthenticated):
    """The caller is not authenticated. `bad` has the schemes with a wrong credential, and the
    reason."""

    def __init__(self, message: str, bad: Mapping[str, str]) -> None:
        super().__init__(message)
        self.bad = bad


class Authenticator:
    """Authenticates callers with any of the alternatives on the card."""

    def __init__(self, auth: Auth, *, realm: str = "agents") -> None:
        given = auth if isinstance(auth, Sequence) else (auth,)
        self._ways: list[tuple[Scheme, ...]] = [
            way.schemes if isinstance(way, AllOf) else (way,) for way in given
        ]
        if not self._ways:
            raise ValueError("auth: must not be empty; use Anonymous() to accept any caller")
        self._named = self._names()
        self._marks = _marks(self._ways)
        self._mark = self._marks.get(id(self._ways[0][0]))
        """The realm and tenants of the first scheme, which is usually the only one."""
        self._realm = realm
        found = [scheme for way in self._ways for scheme in way]
        self.tokens = [scheme for scheme in found if getattr(scheme, "scopes", None) is not None]
        """The schemes that accept tokens with scopes."""
        self.issued: list[Any] = [scheme for scheme in self.tokens if getattr(scheme, "issuer", "")]
        """Those of them that have a known issuer."""
        self.headers = frozenset(name for each in found for name in getattr(each, "headers", ()))
        """The headers, except `Authorization`, that carry credentials, in lower case."""

    @property
    def open(self) -> bool:
        """Whether anonymous callers are accepted."""
        return any(isinstance(scheme, Anonymous) for way in self._ways for scheme in way)

    @property
    def only(self) -> bool:
        """Whether all callers are anonymous."""
        return all(isinstance(scheme, Anonymous) for way in self._ways for scheme in way)

    def _names(self) -> dict[str, Scheme]:
        found: dict[str, Scheme] = {}
        for way in self._ways:
            for scheme in way:
                if not scheme.name or found.get(scheme.name) is scheme:
                    continue
                if scheme.name in found:
                    raise ValueError(
                        f"auth: two schemes have the name {scheme.name!r}; set name= for "
                        "one of them"
                    )
                found[scheme.name] = scheme
        return found

    # -- on the card

    def declared(self, card: AgentCard, skills: Mapping[str, Collection[str]]) -> AgentCard:
        """The card with the schemes, which of them are required together, and the scopes that
        single skills need."""
        return replace(
            card,
            security_schemes={name: found.declared() for name, found in self._named.items()},
            security_requirements=self._requirements(()),
            skills=tuple(
                replace(skill, security_requirements=self._requirements(scopes))
                if (scopes := skills.get(skill.id))
                else skill
                for skill in card.skills
            ),
        )

    def _requirements(self, scopes: Collection[str]) -> tuple[SecurityRequirement, ...]:
        return tuple(
            SecurityRequirement(
                schemes={
                    scheme.name: StringList(list=_scopes(scheme, scopes))
                    for scheme in way
                    if scheme.name
                }
            )
            for way in self._ways
        )

    # -- authentication

    def identify(self, request: Request) -> Caller | Awaitable[Caller]:
        """Identify the caller. Raises `Refusal`, which says how to authenticate, or Forbidden,
        which names the missing scope."""
        if len(self._ways) > 1 or len(self._ways[0]) > 1:
            return self._try(request)
        # The usual case needs no task switch if the scheme needs none.
        (scheme,) = self._ways[0]
        try:
            found = scheme.identify(request)
            if found is None:
                raise self._refusal("Authentication is required", {})
            if inspect.isawaitable(found):
                return self._later(scheme, found)
            return found if self._mark is None else self._mark.on(found)
        except Unauthenticated as error:
            raise self._refused(error, scheme) from None

    async def _later(self, scheme: Scheme, found: Awaitable[Found]) -> Caller:
        try:
            caller = await found
            if caller is None:
                raise self._refusal("Authentication is required", {})
            return caller if self._mark is None else self._mark.on(caller)
        except Unauthenticated as error:
            raise self._refused(error, scheme) from None

    async def _try(self, request: Request) -> Caller:
        met: Met = {}
        refused: A2AError | None = None
        for way in self._ways:
            try:
                found = await self._all(way, request, met)
            except (Unauthenticated, Forbidden, Unavailable) as error:
                # Another alternative may succeed. If none does, report the error that knew most
                # about the caller.
                if refused is None or _rank(error) > _rank(refused):
                    refused = error
                continue
            if found is not None and not (refused and isinstance(way[0], Anonymous)):
                return found
        if refused is not None and not isinstance(refused, Unauthenticated):
            raise refused
        bad = {
            scheme.name: _fault(what)
            for scheme in self._named.values()
            if isinstance(what := met.get(id(_verifier_of(scheme))), Unauthenticated)
        }
        raise self._refusal(refused.message if refused else "Authentication is required", bad)

    async def _all(self, way: tuple[Scheme, ...], request: Request, met: Met) -> Found:
        callers = []
        for scheme in way:
            # A proof may be valid only once, so each scheme is asked once for all alternatives.
            if (key := id(_verifier_of(scheme))) not in met:
                try:
                    asked = scheme.identify(request)
                    met[key] = await asked if inspect.isawaitable(asked) else asked
                except (Unauthenticated, Forbidden, Unavailable) as error:
                    met[key] = error
            found = met[key]
            if isinstance(found, A2AError):
                raise found
            if found is None:
                return None
            mark = self._marks.get(id(scheme))
            callers.append(found if mark is None else mark.on(found))
        first, *others = callers
        for other in others:
            first = replace(first, scopes=first.scopes | other.scopes)
            if not first.tenant and not first.tenants:
                first = replace(first, tenant=other.tenant, tenants=other.tenants)
            if other.expires and not 0 < first.expires <= other.expires:
                first = replace(first, expires=other.expires)
        return first

    def _refused(self, error: Unauthenticated, scheme: Scheme) -> Refusal:
        if isinstance(error, Refusal):
            return error
        return self._refusal(error.message, {scheme.name: _fault(error)})

    def _refusal(self, message: str, bad: Mapping[str, str]) -> Refusal:
        names = ", ".join(self._named) or "none"
        error = Refusal(f"{message}; the card's security schemes are: {names}", bad)
        error.headers["www-authenticate"] = self.challenge(error)
        return error

    def challenge(self, error: A2AError, where: str = "") -> str:
        """The `WWW-Authenticate` header for this error; empty if there is none. `where` is the URL
        of the metadata that name the issuers."""
        if isinstance(error, Forbidden):
            lacks = error.metadata.get("scope", "")
            more = f'error="insufficient_scope", scope="{lacks}"'
            schemes = self.tokens if _PLAIN.fullmatch(lacks) else []
            words = [
                (scheme, f"{_without_scopes(scheme, self._realm)}, {more}") for scheme in schemes
            ]
        else:
            schemes = [scheme for way in self._ways for scheme in way]
            words = [(scheme, self._word(scheme, error)) for scheme in schemes]
        if _PLAIN.fullmatch(where):
            place = f', resource_metadata="{where}"'
            words = [(scheme, word + place * (scheme in self.issued)) for scheme, word in words]
        challenges = ", ".join(dict.fromkeys(word for _, word in words if word))
        if challenges or isinstance(error, Forbidden):
            return challenges
        # API keys have no registered challenge, but a 401 must have one.
        return f'ApiKey realm="{self._realm}"'

    def _word(self, scheme: Scheme, error: A2AError) -> str:
        word = scheme.challenge(self._realm)
        bad = error.bad.get(scheme.name) if isinstance(error, Refusal) else None
        return f'{word}, error="{bad}"' if bad and word.startswith(_TOKENS) else word


def _marks(ways: Sequence[Sequence[Scheme]]) -> dict[int, Mark]:
    """The realm and tenants by scheme. Raises ValueError if callers of two schemes could be
    confused."""
    naming: dict[Any, list[Scheme]] = {}
    for first, *_ in ways:  # the other schemes of an alternative do not identify
        if not isinstance(first, Anonymous):
            verifier = _verifier_of(first)
            naming.setdefault(getattr(verifier, "space", None) or id(verifier), []).append(first)
    check(list(naming.values()))
    found = {id(scheme): Mark(scheme) for way in ways for scheme in way}
    return {key: mark for key, mark in found.items() if mark}


_TOKENS = ("Bearer ", "DPoP ")
Met = dict[int, Caller | A2AError | None]
"""The results of the schemes for a request, by the scheme's id."""


def _verifier_of(scheme: Scheme) -> Any:
    """The object that decides for a scheme: itself, or its `verify`."""
    return getattr(scheme, "verify", scheme)


def _rank(error: A2AError) -> int:
    kinds = (Unauthenticated, Forbidden, Unavailable)
    return next(place for place, kind in enumerate(kinds) if isinstance(error, kind))


def _fault(error: Unauthenticated) -> str:
    return getattr(error, "fault", "invalid_token")


def _without_scopes(scheme: Scheme, realm: str) -> str:
    """The challenge without the scopes that every token needs."""
    return scheme.challenge(realm).partition(', scope="')[0]


def _scopes(scheme: Scheme, more: Collection[str]) -> tuple[str, ...]:
    """The scopes that a token must have; other credentials have none."""
    own = getattr(scheme, "scopes", None)
    return () if own is None else tuple(dict.fromkeys((*own, *sorted(more))))


def credentials(request: Request, scheme: str) -> str | None:
    """The value of the `Authorization` header for this scheme."""
    kind, _, rest = request.headers.get("authorization", "").strip().partition(" ")
    return rest.strip() if kind.lower() == scheme else None
