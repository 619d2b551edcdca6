"""Who sends a request, and under which address: the same for agents and mounted applications."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dragoman.bindings.http_request import HTTPRequest, RequestInfo, named
from dragoman.bindings.repeated_headers import SINGLE
from dragoman.bindings.trusted_hosts import TrustedHosts
from dragoman.model.caller import Caller, Request, fault, long
from dragoman.model.errors import A2AError, Forbidden, Unauthenticated
from dragoman.model.reserved_path_names import reserved
from dragoman.security.limits import Limits
from dragoman.server.settings import Settings
from dragoman.telemetry.logs import SHOWN, audit

if TYPE_CHECKING:
    from dragoman.security.schemes import Authenticator

Identify = Callable[[Request], Caller | Awaitable[Caller]]

NOBODY = Caller()
METADATA = "/.well-known/oauth-protected-resource"
"""The path of the protected resource metadata, which the path of the agent follows."""
_PREFIX = re.compile(r"(?:/[\w.~!$&'()*+,;=:@%-]+)*", re.ASCII)


class Authentication:
    """Authenticates the callers of what is served at one path below the application."""

    def __init__(
        self,
        settings: Settings,
        hosts: TrustedHosts,
        *,
        identify: Identify | None = None,
        authenticator: Authenticator | None = None,
        limits: Limits | None = None,
        prefix: str = "",
        name: str = "",
        title: str = "",
        scopes: Sequence[str] = (),
    ) -> None:
        self.settings = settings
        self.hosts = hosts
        self.identify = identify
        self.authenticator = authenticator
        self.limits = limits
        self.prefix = prefix
        self.name = name
        """The key of the agent, or the path of the mounted application, for the audit log."""
        self.title, self.scopes = title, scopes
        """The name for people, and the scopes that some requests need, for token metadata."""
        self.single = (
            SINGLE | {name.encode() for name in authenticator.headers} if authenticator else SINGLE
        )
        """The headers that must not be repeated."""

    async def caller(self, incoming: RequestInfo) -> Caller:
        """Authenticate the caller and apply its rate limits. Call it before reading the body."""
        try:
            if self.limits is not None and incoming.caller is None:
                self.limits.knock(incoming.peer, incoming.every(b"x-forwarded-for"))
            caller = await self._identified(incoming)
            if self.limits is not None and caller.identity:
                self.limits.enter(caller)
        except Exception as error:
            self.challenge(error, incoming)
            if self.settings.audit:
                self.note("identify", incoming, outcome(error))
            raise
        if incoming.line is not None:
            incoming.line.caller = caller
        return caller

    async def _identified(self, incoming: RequestInfo) -> Caller:
        if incoming.caller is not None:
            if 0 < incoming.caller.expires <= time.time():
                raise Unauthenticated("The credential of the caller has expired")
            return incoming.caller
        if self.identify is None:
            return NOBODY
        request = incoming.request()
        if "dpop" in request.headers and self.known(incoming):
            request = replace(request, url=incoming.called(self.base(incoming)))
        SHOWN.set((request.headers, request.query))
        found = self.identify(request)
        caller = await found if inspect.isawaitable(found) else found
        return checked(caller)

    def challenge(self, error: Exception, incoming: RequestInfo) -> None:
        """Add to the error how to authenticate, if that is what was missing."""
        if self.authenticator is None or not isinstance(error, Unauthenticated | Forbidden):
            return
        # a gRPC request does not name the server's HTTP address
        known = self.settings.url or (isinstance(incoming, HTTPRequest) and self.known(incoming))
        where = f"{self.base(incoming)}{METADATA}{self.prefix}" if known else ""
        if challenge := self.authenticator.challenge(error, where):
            error.headers["www-authenticate"] = challenge

    def note(
        self,
        event: str,
        incoming: RequestInfo,
        result: str,
        caller: Caller | None = None,
        **about: str,
    ) -> None:
        """Write a line to the audit log."""
        caller = caller or NOBODY
        audit(
            event,
            result=result,
            agent=self.name,
            who=caller.identity,
            realm=caller.realm,
            tenant=caller.tenant,
            client=origin(incoming, self.limits),
            path=incoming.request().path,
            **about,
        )

    # -- addresses

    def known(self, incoming: RequestInfo) -> bool:
        """Whether the address that the request names is known to be this server's. The server
        never puts another address into token metadata, nor compares a DPoP proof with it."""
        return self.hosts.own(incoming) if isinstance(incoming, HTTPRequest) else True

    def url(self, incoming: RequestInfo) -> str:
        """Return the URL of what is served here."""
        return self.base(incoming) + self.prefix

    def base(self, incoming: RequestInfo) -> str:
        """Return the application's URL: from the setting `url`, else as the request names it. Code
        of this process reaches the application only at the address that it names."""
        if incoming.caller is not None:
            return "{}://{}{}".format(*incoming.base)
        return self.settings.url.rstrip("/") or self.reached(incoming)

    def reached(self, incoming: RequestInfo) -> str:
        """Return the application's URL as the request and trusted proxies name it."""
        scheme, host, root = incoming.base
        if self.settings.trust_forwarded:
            forwarded = _first(incoming.header(b"x-forwarded-proto")).lower()
            scheme = forwarded if forwarded in ("http", "https") else scheme
            host = named(_first(incoming.header(b"x-forwarded-host"))) or host
            prefix = _first(incoming.header(b"x-forwarded-prefix")).rstrip("/")
            root = prefix + root if _PREFIX.fullmatch(prefix) else root
        return f"{scheme}://{host}{root}"


def checked(caller: Caller) -> Caller:
    """Return the caller as it is stored with a message. Raises Unauthenticated if its names are not
    valid."""
    for name in ("identity", "realm", "tenant"):
        if why := fault(getattr(caller, name)):
            raise Unauthenticated(f"The {name} of the caller {why}")
    if why := long(caller.tenant) or reserved(caller.tenant):
        raise Unauthenticated(f"The tenant of the caller {why}")
    # It must survive encoding and decoding.
    return msgspec.json.decode(msgspec.json.encode(caller), type=Caller)


def origin(incoming: RequestInfo, limits: Limits | None) -> str:
    """Return the address of the client behind the trusted proxies; empty for code of this
    process."""
    if incoming.caller is not None:
        return ""
    if limits is None:
        return incoming.peer
    return limits.proxies.origin(incoming.peer, incoming.every(b"x-forwarded-for"))


def outcome(error: Exception) -> str:
    """Return how the audit log names an error."""
    return error.reason if isinstance(error, A2AError) else type(error).__name__


def _first(text: str) -> str:
    return text.partition(",")[0].strip()
