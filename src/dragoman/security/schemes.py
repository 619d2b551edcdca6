"""Who may call: schemes that stand on the card and are in force by the same declaration.

A scheme looks at a request. It finds no credential of its kind (None), a good one (a `Caller`), or
a bad one (Unauthenticated). An `Authenticator` combines them: a list means any of them, `AllOf`
means all.
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
from dragoman.security import cookies
from dragoman.security.realms import Mark, Tenants, check
from dragoman.security.verify import Verifier, Verify

DIGEST = "sha256:"
Found = Caller | None
Keys = Mapping[str, str | Sequence[str] | Caller] | Iterable[str]
"""Secrets by whom they identify, several for one while they are being replaced; or a bare list of
them. Each is the secret itself or `sha256:` and the hexadecimal digest of it. Where the value is a
`Caller`, the key is the secret."""


NOBODY: Mapping[str, str] = {}
WRONG = "The name or the password is wrong"
_PLAIN = re.compile(r"[!#-\[\]-~]+")
"""What may stand between the quotes of a challenge."""


class Scheme(Protocol):
    """One way to say who one is. One that has `scopes` takes tokens, one that has an `issuer` takes
    those of an authorization server, which is told to who has none.

    A scheme with a `realm` names its callers within it; one with `tenants` lets them name those.
    The `Authenticator` applies both. Schemes with an equal `space` name the same people."""

    name: str
    """What the card calls it."""

    def declared(self) -> SecurityScheme:
        """What stands on the card."""

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """Who asks; None if the request has nothing of this kind; Unauthenticated."""

    def challenge(self, realm: str) -> str:
        """What `WWW-Authenticate` says of it; empty if there is no word for it."""


class Secrets:
    """Secrets that are kept as digests, and found in a time that does not depend on them."""

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
        """Whose secret this is."""
        return self._known.get(hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest())


def digest(secret: str) -> bytes:
    """The digest of a secret, which may be given as one already."""
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
    """Whose secret it is: by the keys, or by the function; Unauthenticated."""
    if verify is not None:
        if keys:
            raise ValueError(f"{scheme}: give either fixed values or verify=, not both")
        return Verifier(scheme, verify, value, unknown=unknown)
    secrets = Secrets(keys)

    def find(_: Request, secret: str) -> Caller:
        caller = secrets.find(secret)
        if caller is None:
            raise Unauthenticated(unknown)
        return caller

    return find


class ApiKey:
    """A key in a header, a query parameter or a cookie. `keys` are known beforehand, or `verify`
    says whose a key is."""

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
                found = cookies.values(request.headers.get("cookie", ""), self._what)
            except ValueError as error:
                raise Unauthenticated(str(error)) from None
        if len(found) > 1:
            raise AmbiguousRequest(f"The {self._where} contains the API key more than once")
        return found[0] if found else None

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return ""


class Token:
    """Bearer tokens that are known beforehand, or of which `verify` says whose they are."""

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
    """A name and a password. The users are known beforehand, or `verify` says who they are."""

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
        self._verify = verify and Verifier("Basic", verify, "user", "password", unknown=WRONG)
        self.realm, self.tenants = realm, tenants
        self.name = name or "login"

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        return SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Basic"))

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """See `Scheme.identify`."""
        told = credentials(request, "basic")
        if told is None:
            return None
        try:
            user, _, password = base64.b64decode(told, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise Unauthenticated(
                "The name and password are not in the format of HTTP Basic"
            ) from None
        if self._verify is not None:
            return self._verify(request, user, password)
        given = hashlib.sha256(password.encode()).digest()
        # one that is not there takes as long
        known = self._users.get(user) or [bytes(len(given))]
        if sum(hmac.compare_digest(given, each) for each in known) == 0:
            raise Unauthenticated(WRONG)
        return Caller(identity=user)

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return f'Basic realm="{realm}", charset="UTF-8"'


class Anonymous:
    """Anybody, without a word. That is a choice, and it is made in so many letters. `tenants` are
    those that anybody may name; without it, nobody may name any."""

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
    """Several schemes that are needed together. Who asks is what the first one says, in the realm
    of the first one; the scopes are those of all. The first one that says something of tenants
    decides about them."""

    def __init__(self, *schemes: Scheme) -> None:
        if len(schemes) < 2:
            raise ValueError("AllOf: needs two or more schemes")
        self.schemes = schemes


Auth = Scheme | AllOf | Sequence[Scheme | AllOf]


class Refusal(Unauthenticated):
    """Nobody was let in. `bad` are the schemes whose credential was wrong, and in which way."""

    def __init__(self, message: str, bad: Mapping[str, str]) -> None:
        super().__init__(message)
        self.bad = bad


class Authenticator:
    """Lets in who can say who they are, in one of the ways that stand on the card."""

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
        """That of the first scheme, which is the only one as a rule."""
        self._realm = realm
        found = [scheme for way in self._ways for scheme in way]
        self.tokens = [scheme for scheme in found if getattr(scheme, "scopes", None) is not None]
        """The schemes that take tokens, which are good for something."""
        self.issued: list[Any] = [scheme for scheme in self.tokens if getattr(scheme, "issuer", "")]
        """Those of them whose tokens come from an issuer that is known."""
        self.headers = frozenset(name for each in found for name in getattr(each, "headers", ()))
        """The headers, beside `Authorization`, that say who asks: in lower case."""

    @property
    def open(self) -> bool:
        """Whether anybody is let in."""
        return any(isinstance(scheme, Anonymous) for way in self._ways for scheme in way)

    @property
    def only(self) -> bool:
        """Whether nobody is asked for anything."""
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
        """The card with the schemes, which of them are needed together, and the scopes that single
        skills need."""
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

    # -- in force

    def identify(self, request: Request) -> Caller | Awaitable[Caller]:
        """Who asks; `Refusal` says how to, Forbidden what a token lacks."""
        if len(self._ways) > 1 or len(self._ways[0]) > 1:
            return self._try(request)
        # the usual case costs no task switch where the scheme needs none
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
                # another way may be the right one; if none is, who knew most of the caller is told
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
            if isinstance(what := met.get(id(_judge(scheme))), Unauthenticated)
        }
        raise self._refusal(refused.message if refused else "Authentication is required", bad)

    async def _all(self, way: tuple[Scheme, ...], request: Request, met: Met) -> Found:
        callers = []
        for scheme in way:
            # what proves something may do so only once, however many ways begin with it
            if (key := id(_judge(scheme))) not in met:
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
        """What `WWW-Authenticate` says with this error, if anything. `where` is the address of the
        metadata that name the issuers."""
        if isinstance(error, Forbidden):
            lacks = error.metadata.get("scope", "")
            more = f'error="insufficient_scope", scope="{lacks}"'
            schemes = self.tokens if _PLAIN.fullmatch(lacks) else []
            words = [(scheme, f"{_bare(scheme, self._realm)}, {more}") for scheme in schemes]
        else:
            schemes = [scheme for way in self._ways for scheme in way]
            words = [(scheme, self._word(scheme, error)) for scheme in schemes]
        if _PLAIN.fullmatch(where):
            place = f', resource_metadata="{where}"'
            words = [(scheme, word + place * (scheme in self.issued)) for scheme, word in words]
        told = ", ".join(dict.fromkeys(word for _, word in words if word))
        if told or isinstance(error, Forbidden):
            return told
        # an API key has no word there, and a 401 without one is none
        return f'ApiKey realm="{self._realm}"'

    def _word(self, scheme: Scheme, error: A2AError) -> str:
        word = scheme.challenge(self._realm)
        bad = error.bad.get(scheme.name) if isinstance(error, Refusal) else None
        return f'{word}, error="{bad}"' if bad and word.startswith(_TOKENS) else word


def _marks(ways: Sequence[Sequence[Scheme]]) -> dict[int, Mark]:
    """What is added by which scheme; ValueError if one scheme's callers could be taken for those
    of another."""
    naming: dict[Any, list[Scheme]] = {}
    for first, *_ in ways:  # the others of a way say nothing of who it is
        if not isinstance(first, Anonymous):
            judge = _judge(first)
            naming.setdefault(getattr(judge, "space", None) or id(judge), []).append(first)
    check(list(naming.values()))
    found = {id(scheme): Mark(scheme) for way in ways for scheme in way}
    return {key: mark for key, mark in found.items() if mark}


_TOKENS = ("Bearer ", "DPoP ")
Met = dict[int, Caller | A2AError | None]
"""What came of the schemes that a request has met, by their ids."""


def _judge(scheme: Scheme) -> Any:
    """What decides for a scheme: itself, or what it has verify."""
    return getattr(scheme, "verify", scheme)


def _rank(error: A2AError) -> int:
    kinds = (Unauthenticated, Forbidden, Unavailable)
    return next(place for place, kind in enumerate(kinds) if isinstance(error, kind))


def _fault(error: Unauthenticated) -> str:
    return getattr(error, "fault", "invalid_token")


def _bare(scheme: Scheme, realm: str) -> str:
    """The challenge without the scopes that every token needs."""
    return scheme.challenge(realm).partition(', scope="')[0]


def _scopes(scheme: Scheme, more: Collection[str]) -> tuple[str, ...]:
    """What a token must be good for; other credentials have no scopes to name."""
    own = getattr(scheme, "scopes", None)
    return () if own is None else tuple(dict.fromkeys((*own, *sorted(more))))


def credentials(request: Request, scheme: str) -> str | None:
    """What `Authorization` says in this scheme."""
    kind, _, rest = request.headers.get("authorization", "").strip().partition(" ")
    return rest.strip() if kind.lower() == scheme else None
