"""One agent's front door: who calls, in which manner, and what is answered at which address."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman import dialects
from dragoman.bindings.exchange import Exchange
from dragoman.bindings.sse import Streams
from dragoman.caller import Call, Caller, Request
from dragoman.dialects import v1_0
from dragoman.errors import InvalidParams
from dragoman.operations import Operation
from dragoman.service import Service
from dragoman.settings import Settings
from dragoman.types import AgentCard, Wire

Identify = Callable[[Request], Caller | Awaitable[Caller]]

ANONYMOUS = Call(Caller())
PARTICULARS = frozenset(
    (
        *(b"a2a-extensions", b"x-a2a-extensions"),
        *(b"idempotency-key", b"last-event-id", b"traceparent"),
    )
)
"""The headers without which one anonymous call is like the other."""
CARDS = 64
LONGEST_KEY = 256


class Endpoint:
    """A service, and what the bindings share."""

    def __init__(
        self,
        service: Service,
        settings: Settings,
        streams: Streams,
        *,
        identify: Identify | None = None,
        prefix: str = "",
    ) -> None:
        self.service = service
        self.settings = settings
        self.streams = streams
        self.identify = identify
        self.prefix = prefix
        """The agent's own part of the path, where several share an application."""
        self._open = identify is None and not service.required
        self._cards: dict[str, tuple[bytes, bytes]] = {}

    def plain(self, exchange: Exchange) -> bool:
        """Whether the call is like any other anonymous one."""
        headers = exchange.headers
        return (
            self._open and headers.get(b"a2a-version") == b"1.0" and PARTICULARS.isdisjoint(headers)
        )

    async def caller(self, exchange: Exchange) -> Caller:
        """Who asks; comes before anything else is looked at."""
        if self.identify is None:
            return ANONYMOUS.caller
        found = self.identify(exchange.request())
        caller = await found if inspect.isawaitable(found) else found
        # It is stored with the message: what cannot be read back must not get there.
        return msgspec.json.decode(msgspec.json.encode(caller), type=Caller)

    def call(self, exchange: Exchange, caller: Caller, version: str = "") -> Call:
        """The circumstances of a request; errors if it may not be made in this manner."""
        dialects.version(exchange.header(b"a2a-version") or version)
        asked = exchange.every(b"a2a-extensions") or exchange.every(b"x-a2a-extensions")
        active = self.service.negotiate([uri for text in asked.split(",") if (uri := text.strip())])
        if active:
            caller = replace(caller, extensions=active)
        key = exchange.header(b"idempotency-key")
        if len(key) > LONGEST_KEY:
            raise InvalidParams.at("Idempotency-Key", f"is longer than {LONGEST_KEY} characters")
        trace = exchange.header(b"traceparent")
        return Call(
            caller,
            key,
            exchange.header(b"last-event-id"),
            trace if len(trace) <= LONGEST_KEY and trace.isascii() else "",
        )

    def operate(
        self, operation: Operation, request: Wire, call: Call, exchange: Exchange
    ) -> Awaitable[Any]:
        """Run an operation: its answer, or the stream it opened."""
        if operation.call == "extended_card":
            return self.service.extended_card(request, call, self.card(exchange))  # type: ignore[arg-type]
        answer: Awaitable[Any] = getattr(self.service, operation.call)(request, call)
        return answer

    def card(self, exchange: Exchange) -> AgentCard:
        """The public card, with the address that the caller used."""
        return self.service.agent.card(self.url(exchange), push=self.settings.push)

    def card_bytes(self, exchange: Exchange) -> tuple[bytes, bytes]:
        """The public card encoded, and its tag."""
        url = self.url(exchange)
        known = self._cards.get(url)
        if known is None:
            body = v1_0.encode(self.card(exchange))
            known = body, b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
            if len(self._cards) >= CARDS:  # callers choose the host they name
                self._cards.clear()
            self._cards[url] = known
        return known

    def url(self, exchange: Exchange) -> str:
        """Where the caller reaches this agent: as configured, else as it asked."""
        if self.settings.url:
            return self.settings.url.rstrip("/") + self.prefix
        scheme = exchange.scope.get("scheme", "http")
        host = exchange.header(b"host")
        root = exchange.root
        if self.settings.forwarded:
            scheme = _first(exchange.header(b"x-forwarded-proto")) or scheme
            host = _first(exchange.header(b"x-forwarded-host")) or host
            root = _first(exchange.header(b"x-forwarded-prefix")).rstrip("/") + root
        if not host:
            server = exchange.scope.get("server") or ("127.0.0.1", None)
            host = f"{server[0]}:{server[1]}" if server[1] else str(server[0])
        return f"{scheme}://{host}{root}{self.prefix}"


def _first(text: str) -> str:
    return text.partition(",")[0].strip()
