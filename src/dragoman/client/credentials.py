"""Credentials for the security schemes of a card, and the guard that adds them to requests.

Credentials belong to the origin (scheme, host, port) where the card was found. The client sends
them to no other origin, and not over plain HTTP except to loopback: it raises `CredentialsNotSent`
before it connects.
"""

from __future__ import annotations

import base64
import re
import time
from asyncio import Timeout, get_running_loop
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from ssl import SSLContext
from typing import Protocol
from urllib.parse import quote, unquote_plus, urlsplit, urlunsplit

from msgspec import Struct
from msgspec.structs import replace

from dragoman.client import tls
from dragoman.client.transport import (
    Transport,
    TransportRequest,
    TransportResponse,
    origin,
)
from dragoman.model.types import AgentCard, AgentInterface, SecurityScheme
from dragoman.security.address_policy import Rule
from dragoman.security.client_network import loopback
from dragoman.telemetry.logs import MASK, secretive

FIELDS = (
    "access_token|refresh_token|id_token|client_secret|device_code|code|code_verifier|password"
    "|token|credentials"
)
"""The names of body fields that hold a secret, as a pattern."""
# A piece of a body may end in the middle of a value.
_JSON = re.compile(rf'("(?:{FIELDS})"\s*:\s*)"((?:[^"\\]|\\.)*)(?:"|$)')
_FORM = re.compile(rf"((?:^|&)(?:{FIELDS})=)([^&\s]+)")


ANYWHERE = "*"
"""Trust every origin, where no other party is involved."""


HELD = 5.0
"""After this many seconds, a 401 means that the token has expired, not that it was refused."""
LIMIT: ContextVar[Timeout | None] = ContextVar("limit", default=None)
"""The timeout of the current call."""


@contextmanager
def paused_timeout() -> Iterator[None]:
    """Stop the timeout of the call in this block, because a person may have to log in."""
    limit, loop = LIMIT.get(), get_running_loop()
    if limit is None or (end := limit.when()) is None or limit.expired():
        yield
        return
    left = end - loop.time()
    limit.reschedule(None)
    try:
        yield
    finally:
        limit.reschedule(loop.time() + left)


class CredentialsNotSent(PermissionError):
    """A credential was not sent, because it must not go to that address. The text says what to
    do."""


class AuthRequest(Struct, frozen=True):
    """What a card asks of a client: one of its security schemes, with these scopes."""

    name: str
    """The card's name for the scheme."""
    scheme: SecurityScheme
    scopes: tuple[str, ...]
    url: str
    """The agent's URL."""
    origins: frozenset[str]
    """The origins that may receive the secrets for this card."""
    transport: Transport
    """A transport for providers that request a token from another server."""
    refused: str = ""
    """The token that the agent refused with 401; empty at first."""
    agent: str = ""
    """The URL of the interface that is called, in normal form: without a trailing slash, query or
    fragment."""


class TokenProvider(Protocol):
    """Provides tokens. If it returns the refused token again, it has no other."""

    async def token(self, need: AuthRequest) -> str:
        """Return the token to send, without the scheme's prefix such as `Bearer`."""


class StaticToken(Struct, frozen=True):
    """A fixed API key or token. The card says where to send it."""

    value: str

    def __repr__(self) -> str:
        return "StaticToken(…)"

    async def token(self, need: AuthRequest) -> str:
        """See `TokenProvider.token`."""
        return self.value


class BasicAuth(Struct, frozen=True):
    """A user name and password for HTTP Basic."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"BasicAuth({self.user!r}, …)"

    async def token(self, need: AuthRequest) -> str:
        """See `TokenProvider.token`."""
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class ClientCertificate:
    """A client certificate for mutual TLS: PEM files; the key may be in the certificate's file.
    `ca` is a file with the CAs to trust instead of the system's."""

    def __init__(self, file: str, key: str = "", *, password: str = "", ca: str = "") -> None:
        self._files = {"certificate": file, "key": key, "password": password, "ca": ca}
        self._context: SSLContext | None = None

    async def token(self, need: AuthRequest) -> str:
        """Return an empty token: TLS presents the certificate."""
        return ""

    def context(self) -> SSLContext:
        """The TLS context for the connection."""
        if self._context is None:
            self._context = tls.context(**self._files)
        return self._context


Auth = TokenProvider | Sequence[TokenProvider] | Mapping[str, TokenProvider]


# ---- choice of credentials ------------------------------------------------------------------


def kind(scheme: SecurityScheme) -> str:
    """Name the kind of a scheme in a word or two."""
    if (key := scheme.api_key_security_scheme) is not None:
        return f"API key in {key.location} {key.name}"
    if (http := scheme.http_auth_security_scheme) is not None:
        return f"HTTP {http.scheme}"
    if scheme.oauth2_security_scheme is not None:
        return "OAuth 2"
    if scheme.open_id_connect_security_scheme is not None:
        return "OpenID Connect"
    return "client certificate" if scheme.mtls_security_scheme is not None else "unknown"


def fits(provider: TokenProvider, scheme: SecurityScheme) -> bool:
    """Whether the provider can answer this scheme. Providers of other classes are assumed to
    fit."""
    what = kind(scheme)
    if isinstance(provider, ClientCertificate) or what == "client certificate":
        return isinstance(provider, ClientCertificate) and what == "client certificate"
    if getattr(provider, "bearing", False):  # the scheme must say where its tokens come from
        return what in ("OAuth 2", "OpenID Connect")
    http = scheme.http_auth_security_scheme
    basic = http is not None and http.scheme.lower() == "basic"
    return basic == isinstance(provider, BasicAuth) or (
        basic and not isinstance(provider, StaticToken)
    )


def required_schemes(card: AgentCard) -> str:
    """Describe the security schemes that a card requires, for error messages; empty if none."""
    ways = []
    for requirement in card.security_requirements:
        names = [
            f"{name} ({kind(card.security_schemes[name])})"
            for name in requirement.schemes
            if name in card.security_schemes
        ]
        ways.append(" and ".join(names) or "nothing")
    return ", or ".join(ways)


def choose(
    card: AgentCard, auth: Auth, skill: str = ""
) -> dict[str, tuple[TokenProvider, tuple[str, ...]]]:
    """Pick a credential for each scheme of the first alternative that can be met, with its scopes:
    those of this skill, if the card has some for it. Raises CredentialsNotSent if there are
    credentials and none fits."""
    named = auth if isinstance(auth, Mapping) else {}
    loose = (
        [] if isinstance(auth, Mapping) else list(auth) if isinstance(auth, Sequence) else [auth]
    )
    if not named and not loose:
        return {}
    for name in named:
        if name not in card.security_schemes:
            known = ", ".join(card.security_schemes) or "none"
            raise CredentialsNotSent(f"the card has no security scheme {name!r}; it has: {known}")

    def answer(name: str) -> TokenProvider | None:
        scheme = card.security_schemes.get(name)
        if scheme is None:
            return None
        if name in named:
            return named[name]
        fitting = [one for one in loose if fits(one, scheme)]
        # A static token would fit, too, but a provider that can request one is better.
        return min(fitting, key=lambda one: not getattr(one, "bearing", False), default=None)

    own = (each.security_requirements for each in card.skills if each.id == skill)
    requirements = next(own, ()) or card.security_requirements
    ways = [
        {name: tuple(scopes.list) for name, scopes in requirement.schemes.items()}
        for requirement in requirements
    ]
    # If a card declares schemes but requires none, use the first that has a credential.
    ways += [{name: ()} for name in card.security_schemes if not ways]
    for way in ways:
        found = {name: (one, way[name]) for name in way if (one := answer(name)) is not None}
        if way and len(found) == len(way):
            return found
    if any(not way for way in ways):
        return {}  # the agent also accepts anonymous callers
    if not card.security_schemes:
        raise CredentialsNotSent(
            "the card names no security scheme; send the credentials in a header, such as "
            "headers={'authorization': 'Bearer …'}"
        )
    raise CredentialsNotSent(
        f"the card requires {required_schemes(card) or kinds(card)}; auth= contains no such "
        "credential"
    )


def kinds(card: AgentCard) -> str:
    """List the schemes that a card declares, for error messages."""
    return ", or ".join(f"{name} ({kind(item)})" for name, item in card.security_schemes.items())


# ---- the guard -----------------------------------------------------------------------------


class Guard:
    """A transport that adds credentials to requests. Nothing else adds them."""

    def __init__(
        self,
        transport: Transport,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Auth = (),
        scopes_for: str = "",
        trust: Iterable[str] = (),
        insecure: bool = False,
        allow: Sequence[str] = (),
    ) -> None:
        self.transport = transport
        self._allow = tuple(map(Rule.parse, allow))
        self._confined = False
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._auth = auth
        self._scopes_for = scopes_for
        self._origins = {origin(url) or url for url in trust}
        self._insecure = insecure
        given = auth.values() if isinstance(auth, Mapping) else auth
        several = given if isinstance(given, Iterable) else (given,)
        self._certificate = next(
            (one for one in several if isinstance(one, ClientCertificate)), None
        )
        self._plan: list[tuple[AuthRequest, TokenProvider]] = []
        self._agents: list[str] = []
        """The URLs of the card's interfaces."""

    @property
    def has_credentials(self) -> bool:
        """Whether there are any credentials."""
        return bool(self._headers or self._plan)

    def trust(self, urls: Iterable[str]) -> None:
        """Allow credentials to go to these URLs."""
        self._origins.update(found for url in urls if (found := origin(url)))

    def confine(self) -> None:
        """The card came from a public address: from now on connect only to public or allowed
        addresses."""
        self._confined = True

    def bounded(self, request: TransportRequest, vouched: str = "") -> TransportRequest:
        """Return the request with the address rules that apply. `vouched` is an origin that the
        caller named."""
        if not self._confined or (vouched and origin(request.url) == vouched):
            return request
        return replace(request, allow=self._allow)

    def enter(self, url: str) -> None:
        """Start with this address. Raises CredentialsNotSent if its network must not see
        credentials."""
        self.trust([url])
        if self._auth or self._headers:
            self._check(url)

    def read(self, card: AgentCard) -> None:
        """Pick the credentials for this card."""
        self._agents = [interface.url for interface in card.supported_interfaces]
        self._plan = [
            (
                AuthRequest(
                    name=name,
                    scheme=card.security_schemes[name],
                    scopes=scopes,
                    url=card.supported_interfaces[0].url,
                    origins=frozenset(self._origins),
                    transport=Errand(self, getattr(provider, "issuer", "")),
                ),
                provider,
            )
            for name, (provider, scopes) in choose(card, self._auth, self._scopes_for).items()
        ]

    def allowed_interfaces(self, interfaces: Collection[AgentInterface]) -> list[AgentInterface]:
        """Return the interfaces that may receive credentials. Raises CredentialsNotSent if there
        are none."""
        if not self.has_credentials:
            return list(interfaces)
        found, why = [], CredentialsNotSent()
        for interface in interfaces:
            try:
                self._check(interface.url)
                found.append(interface)
            except CredentialsNotSent as error:
                why = error
        if not found:
            raise why
        return found

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        request = self.bounded(request)
        if self._certificate and not self._plan and origin(request.url) in self._origins:
            # A server that requires a client certificate does so before it shows its card.
            request = replace(request, tls=self._certificate.context())
        if not self.has_credentials:
            return await self.transport.send(request)
        self._check(request.url)
        request = replace(request, headers={**self._headers, **request.headers})
        about = {"url": request.url, "agent": canonical(self._interface_url(request.url))}
        plan = [(replace(need, **about), provider) for need, provider in self._plan]
        with paused_timeout():
            tokens = [await provider.token(need) for need, provider in plan]
        response = await self.transport.send(self._with_tokens(request, tokens))
        held = True
        while response.status == 401 and self._plan and held:
            with paused_timeout():
                renewed = [
                    await provider.token(replace(need, refused=token))
                    for (need, provider), token in zip(plan, tokens, strict=True)
                ]
            if renewed == tokens:
                break
            await response.close()
            tokens, began = renewed, time.monotonic()
            response = await self.transport.send(self._with_tokens(request, tokens))
            # A silent gRPC stream responds only when the token has expired.
            held = time.monotonic() - began > HELD
        return response

    async def close(self) -> None:
        """See `Transport.close`."""
        await self.transport.close()

    def _check(self, url: str) -> None:
        where = origin(url)
        if where not in self._origins and ANYWHERE not in self._origins:
            raise CredentialsNotSent(
                f"the card says that the agent is at {where}, but credentials are only sent "
                f"to {', '.join(sorted(self._origins))}; if both belong together, use "
                f"trust=[{where!r}] (--trust {where})"
            )
        secret = self._auth or any(map(secretive, self._headers))
        if secret and not (self._insecure or private(url)):
            raise CredentialsNotSent(
                f"credentials are not sent over plain HTTP (to {where}); use https, or "
                "insecure=True (--insecure-http) on a safe network"
            )

    def _interface_url(self, url: str) -> str:
        """Return the URL of the interface that a request goes to. The token is requested for that
        interface, whatever else the card says."""
        scheme, where = url.partition("://")[0], origin(url)
        ways = [f"{scheme}://{_rest(way)}" for way in self._agents]
        ways = [way for way in ways if origin(way) == where and url.startswith(way)]
        return max(ways, key=len, default=where)

    def _with_tokens(self, request: TransportRequest, tokens: Sequence[str]) -> TransportRequest:
        for (need, provider), token in zip(self._plan, tokens, strict=True):
            if isinstance(provider, ClientCertificate):
                request = replace(request, tls=provider.context())
            else:
                request = add_token(request, need.scheme, token)
        return request


class Errand:
    """A transport to other servers than the agent, such as an OAuth server. It adds no credentials
    and has the guard's address rules, except for an `issuer` that the caller named."""

    def __init__(self, guard: Guard, issuer: str) -> None:
        self._guard = guard
        self._issuer = issuer

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        return await self._guard.transport.send(self._guard.bounded(request, self._issuer))

    async def close(self) -> None:
        """Does nothing: the guard closes the transport."""


def add_token(request: TransportRequest, scheme: SecurityScheme, token: str) -> TransportRequest:
    """Return the request with the token where the scheme wants it."""
    headers = dict(request.headers)
    if (key := scheme.api_key_security_scheme) is None:
        http = scheme.http_auth_security_scheme
        name = http.scheme if http else "Bearer"
        headers["authorization"] = f"{name[:1].upper()}{name[1:]} {token}"
    elif key.location == "query":
        parts = urlsplit(request.url)
        pair = f"{quote(key.name, safe='')}={quote(token, safe='')}"
        query = f"{parts.query}&{pair}" if parts.query else pair
        return replace(request, url=urlunsplit(parts._replace(query=query)))
    elif key.location == "cookie":
        before = headers.get("cookie")
        headers["cookie"] = f"{before + '; ' if before else ''}{key.name}={token}"
    else:
        headers[key.name.lower()] = token
    return replace(request, headers=headers)


def canonical(url: str) -> str:
    """Return an agent's URL in the form that identifies it to an authorization server (RFC
    8707)."""
    scheme = {"grpc": "http", "grpcs": "https"}.get(url.partition("://")[0], "")
    where = origin(f"{scheme}://{_rest(url)}" if scheme else url)
    return where + urlsplit(url).path.rstrip("/") if where else ""


def _rest(url: str) -> str:
    """Return a URL without its scheme, which cards omit for gRPC."""
    first, slashes, last = url.partition("://")
    return last if slashes else first


def masked(body: str) -> str:
    """Mask the secrets in a body, or in a piece of one, by their field names."""
    return _FORM.sub(rf"\1{MASK}", _JSON.sub(rf'\1"{MASK}"', body))


def secrets(body: str) -> Iterator[str]:
    """Find the secrets in a body, or in a piece of one, by their field names."""
    for match in (*_JSON.finditer(body), *_FORM.finditer(body)):
        yield match[2]
        yield unquote_plus(match[2])


def private(url: str) -> bool:
    """Whether nobody can eavesdrop: the URL uses TLS or loopback."""
    parts = urlsplit(url)
    if parts.scheme in ("https", "grpcs"):
        return True
    return loopback(parts.hostname or "")
