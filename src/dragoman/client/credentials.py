"""Who the client says it is: credentials by the security schemes of a card, and the guard that
gives them to nobody else.

They belong to the origin (scheme, host, port) where the card was found. The client sends them to
no other origin, and not over plain HTTP except to loopback: it raises `CredentialsNotSent` before
it connects.
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
from dragoman.security.addresses import loopback
from dragoman.security.egress import Rule
from dragoman.telemetry.logs import MASK, secretive

FIELDS = (
    "access_token|refresh_token|id_token|client_secret|device_code|code|code_verifier|password"
    "|token|credentials"
)
"""What holds a secret in bodies, as a pattern."""
# a piece of a body may end in the middle of a value
_JSON = re.compile(rf'("(?:{FIELDS})"\s*:\s*)"((?:[^"\\]|\\.)*)(?:"|$)')
_FORM = re.compile(rf"((?:^|&)(?:{FIELDS})=)([^&\s]+)")


ANYWHERE = "*"
"""What to trust where there is no other party."""


HELD = 5.0
"""A token that was good for so long was not refused, but has expired."""
LIMIT: ContextVar[Timeout | None] = ContextVar("limit", default=None)
"""How long the call that is going on may take."""


@contextmanager
def unhurried() -> Iterator[None]:
    """The time of a call stands still: a person may have to log in first."""
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
    """A credential was not sent, because it must not go there; the text says what to do."""


class AuthRequest(Struct, frozen=True):
    """What a card asks of a client: one of its schemes, with these scopes."""

    name: str
    """What the card calls the scheme."""
    scheme: SecurityScheme
    scopes: tuple[str, ...]
    url: str
    """The agent's address."""
    origins: frozenset[str]
    """Where the card's own secrets may go."""
    transport: Transport
    """A way out, for those who must ask somebody else for a token."""
    refused: str = ""
    """The token that was answered with 401; empty at first."""
    agent: str = ""
    """The agent's own URL, in one form: of the interface that is called, without a slash at the
    end, a query or a fragment."""


class TokenProvider(Protocol):
    """Whatever can answer a need. The same token after a refusal means that there is no other."""

    async def token(self, need: AuthRequest) -> str:
        """The token to send, without the name of its scheme."""


class StaticToken(Struct, frozen=True):
    """A string that somebody gave you: an API key or a token. The card says where it goes."""

    value: str

    def __repr__(self) -> str:
        return "StaticToken(…)"

    async def token(self, need: AuthRequest) -> str:
        """See `TokenProvider.token`."""
        return self.value


class BasicAuth(Struct, frozen=True):
    """A name and a password, for HTTP Basic."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"BasicAuth({self.user!r}, …)"

    async def token(self, need: AuthRequest) -> str:
        """See `TokenProvider.token`."""
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class ClientCertificate:
    """A client certificate, for mutual TLS: files in PEM form, the key in its own or the same.
    `ca` is a file with the authorities to trust instead of the system's."""

    def __init__(self, file: str, key: str = "", *, password: str = "", ca: str = "") -> None:
        self._files = {"certificate": file, "key": key, "password": password, "ca": ca}
        self._context: SSLContext | None = None

    async def token(self, need: AuthRequest) -> str:
        """None: it is shown below HTTP."""
        return ""

    def context(self) -> SSLContext:
        """What the connection is made with."""
        if self._context is None:
            self._context = tls.context(**self._files)
        return self._context


Auth = TokenProvider | Sequence[TokenProvider] | Mapping[str, TokenProvider]


# ---- which, for what -----------------------------------------------------------------------


def kind(scheme: SecurityScheme) -> str:
    """What a scheme is, in a word or two."""
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
    """Whether this can answer such a scheme. Of a stranger's provider it is assumed."""
    what = kind(scheme)
    if isinstance(provider, ClientCertificate) or what == "client certificate":
        return isinstance(provider, ClientCertificate) and what == "client certificate"
    if getattr(provider, "bearing", False):  # it must be told where tokens come from
        return what in ("OAuth 2", "OpenID Connect")
    http = scheme.http_auth_security_scheme
    basic = http is not None and http.scheme.lower() == "basic"
    return basic == isinstance(provider, BasicAuth) or (
        basic and not isinstance(provider, StaticToken)
    )


def wanted(card: AgentCard) -> str:
    """The ways in that a card names, for people; empty if it names none."""
    ways = []
    for requirement in card.security_requirements:
        names = [
            f"{name} ({kind(card.security_schemes[name])})"
            for name in requirement.schemes
            if name in card.security_schemes
        ]
        ways.append(" and ".join(names) or "nothing")
    return ", or ".join(ways)


def choose(card: AgentCard, auth: Auth) -> dict[str, tuple[TokenProvider, tuple[str, ...]]]:
    """A credential for each scheme of the first alternative that can be met, and its scopes;
    CredentialsNotSent if there are credentials and no use for them."""
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
        # a secret would do as a token, but who can get one knows better
        return min(fitting, key=lambda one: not getattr(one, "bearing", False), default=None)

    ways = [
        {name: tuple(scopes.list) for name, scopes in requirement.schemes.items()}
        for requirement in card.security_requirements
    ]
    # a card that names schemes and requires none is taken at the one that can be answered
    ways += [{name: ()} for name in card.security_schemes if not ways]
    for way in ways:
        found = {name: (one, way[name]) for name in way if (one := answer(name)) is not None}
        if way and len(found) == len(way):
            return found
    if any(not way for way in ways):
        return {}  # it lets anybody in
    if not card.security_schemes:
        raise CredentialsNotSent(
            "the card names no security scheme; send the credentials in a header, such as "
            "headers={'authorization': 'Bearer …'}"
        )
    raise CredentialsNotSent(
        f"the card requires {wanted(card) or kinds(card)}; auth= contains no such credential"
    )


def kinds(card: AgentCard) -> str:
    """The schemes that a card declares, for people."""
    return ", or ".join(f"{name} ({kind(item)})" for name, item in card.security_schemes.items())


# ---- the guard -----------------------------------------------------------------------------


class Guard:
    """A transport that adds what is secret to a request: the one place where that is done."""

    def __init__(
        self,
        transport: Transport,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Auth = (),
        trust: Iterable[str] = (),
        insecure: bool = False,
        allow: Sequence[str] = (),
    ) -> None:
        self.transport = transport
        self._allow = tuple(map(Rule.parse, allow))
        self._confined = False
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._auth = auth
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
    def carries(self) -> bool:
        """Whether there is anything to guard."""
        return bool(self._headers or self._plan)

    def trust(self, urls: Iterable[str]) -> None:
        """What is secret may go there."""
        self._origins.update(found for url in urls if (found := origin(url)))

    def confine(self) -> None:
        """The card is from a public address: go to no other ones from now on, unless allowed."""
        self._confined = True

    def bounded(self, request: TransportRequest, vouched: str = "") -> TransportRequest:
        """The request, as far as it may go. `vouched` is an origin that the caller named."""
        if not self._confined or (vouched and origin(request.url) == vouched):
            return request
        return replace(request, allow=self._allow)

    def enter(self, url: str) -> None:
        """Begin at this address; CredentialsNotSent if the network there is not to be trusted."""
        self.trust([url])
        if self._auth or self._headers:
            self._check(url)

    def read(self, card: AgentCard) -> None:
        """Take the credentials that this card wants."""
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
            for name, (provider, scopes) in choose(card, self._auth).items()
        ]

    def admitted(self, interfaces: Collection[AgentInterface]) -> list[AgentInterface]:
        """Those that may be told what is secret; CredentialsNotSent if there are none."""
        if not self.carries:
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
            # a server that demands it does so before it shows its card
            request = replace(request, tls=self._certificate.context())
        if not self.carries:
            return await self.transport.send(request)
        self._check(request.url)
        request = replace(request, headers={**self._headers, **request.headers})
        about = {"url": request.url, "agent": canonical(self._called(request.url))}
        plan = [(replace(need, **about), provider) for need, provider in self._plan]
        with unhurried():
            tokens = [await provider.token(need) for need, provider in plan]
        response = await self.transport.send(self._placed(request, tokens))
        held = True
        while response.status == 401 and self._plan and held:
            with unhurried():
                renewed = [
                    await provider.token(replace(need, refused=token))
                    for (need, provider), token in zip(plan, tokens, strict=True)
                ]
            if renewed == tokens:
                break
            await response.close()
            tokens, began = renewed, time.monotonic()
            response = await self.transport.send(self._placed(request, tokens))
            # a quiet stream of gRPC answers only when the token has expired
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

    def _called(self, url: str) -> str:
        """The URL of the interface that a request is for: what it is for decides what its token
        is for, whatever else the card says."""
        scheme, where = url.partition("://")[0], origin(url)
        ways = [f"{scheme}://{_rest(way)}" for way in self._agents]
        ways = [way for way in ways if origin(way) == where and url.startswith(way)]
        return max(ways, key=len, default=where)

    def _placed(self, request: TransportRequest, tokens: Sequence[str]) -> TransportRequest:
        for (need, provider), token in zip(self._plan, tokens, strict=True):
            if isinstance(provider, ClientCertificate):
                request = replace(request, tls=provider.context())
            else:
                request = place(request, need.scheme, token)
        return request


class Errand:
    """The way to others than the agent, such as an OAuth server: nothing secret is added, and it
    leads no further than the guard's. An `issuer` that the caller named may be anywhere."""

    def __init__(self, guard: Guard, issuer: str) -> None:
        self._guard = guard
        self._issuer = issuer

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        return await self._guard.transport.send(self._guard.bounded(request, self._issuer))

    async def close(self) -> None:
        """It is the guard's to close."""


def place(request: TransportRequest, scheme: SecurityScheme, token: str) -> TransportRequest:
    """The request with a token where the scheme wants it."""
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
    """An agent's URL in the form that names it to an authorization server (RFC 8707)."""
    scheme = {"grpc": "http", "grpcs": "https"}.get(url.partition("://")[0], "")
    where = origin(f"{scheme}://{_rest(url)}" if scheme else url)
    return where + urlsplit(url).path.rstrip("/") if where else ""


def _rest(url: str) -> str:
    """A URL without its scheme, which cards leave out for gRPC."""
    first, slashes, last = url.partition("://")
    return last if slashes else first


def masked(body: str) -> str:
    """A body, or a piece of one, without the secrets that are known by their names."""
    return _FORM.sub(rf"\1{MASK}", _JSON.sub(rf'\1"{MASK}"', body))


def secrets(body: str) -> Iterator[str]:
    """The secrets in a body, or in a piece of one, that are known by their names."""
    for match in (*_JSON.finditer(body), *_FORM.finditer(body)):
        yield match[2]
        yield unquote_plus(match[2])


def private(url: str) -> bool:
    """Whether nobody can listen on the way: TLS, or this machine."""
    parts = urlsplit(url)
    if parts.scheme in ("https", "grpcs"):
        return True
    return loopback(parts.hostname or "")
