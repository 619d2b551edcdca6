"""The HTTP connections of `dragoman serve`: limits how long a request may take to arrive, and how
much of it is held in memory."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from dragoman.bindings.access_log import AccessLine
from dragoman.cli import tls
from dragoman.cli.connection_limits import ConnectionLimits
from dragoman.model.errors import A2AError
from dragoman.security.byte_budget import SMALL, ByteBudget
from dragoman.security.client_network import client_network
from dragoman.server.settings import Settings
from dragoman.third_party_internals import uvicorn_protocol

UvicornProtocol = uvicorn_protocol()

PLAIN = 4096
"""Data up to this size that starts at most two requests is parsed at once."""
SLICE = 256
"""Other data is parsed in slices of this size, so that a slice adds only few requests to the
queue."""


class CoalescingTransport:
    """A transport that sends the head of a response together with the start of its body, and that
    can stop uvicorn from reading."""

    __slots__ = ("_held", "_transport", "stopped")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._held = b""
        self.stopped = False
        """Whether reading is stopped, even if uvicorn resumes it, because earlier requests wait."""

    def stop_reading(self) -> None:
        """Stop reading until `start_reading`."""
        if not self.stopped and not self._transport.is_closing():
            self.stopped = True
            self._transport.pause_reading()

    def start_reading(self, paused: bool) -> None:
        """Read again, unless uvicorn has paused reading."""
        if self.stopped:
            self.stopped = False
            if not paused and not self._transport.is_closing():
                self._transport.resume_reading()

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        if not self.stopped:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        if not self.stopped:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Write data. Holds a response head until the next write, which may be empty."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.writelines((held, data))
        elif data.startswith(b"HTTP/1.1 2"):
            self._held = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Write the head if one is held."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def close(self) -> None:
        """Close after all data is written."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(UvicornProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's HTTP protocol, with deadlines, and with one write for a short response instead of
    two."""

    def __init__(
        self,
        *arguments: Any,
        limits: ConnectionLimits,
        budget: ByteBudget,
        settings: Settings,
        network: str = "",
    ) -> None:
        super().__init__(*arguments)
        self.limits = limits
        self.budget = budget
        self.settings = settings
        self.network = network
        """The client network that the limits count this connection for; empty until they do."""
        self._since = 0.0
        """When the connection began to wait for a request head; 0 if it does not wait."""
        self._last: Any = None
        """The last request at that time."""
        self._left = 0
        """The unsent bytes at the last check."""
        self._stuck = 0.0
        """Since when the number of unsent bytes has not changed."""

    def connection_made(self, transport: Any) -> None:
        """Accept the connection if the limits allow it, else refuse it with 503."""
        if not self.network:
            peer = transport.get_extra_info("peername")
            address = peer[0] if isinstance(peer, tuple) else ""
            network = client_network(address)
            if not self.limits.enter(network, address):
                transport.write(refusal(503, "Too many open connections"))
                transport.close()
                return
            self.network = network
        self._since = self._stuck = time.monotonic()
        super().connection_made(CoalescingTransport(transport))
        about = tls.about(transport)
        if about is not None:
            self.app = _extended(self.config.loaded_app, {"tls": about})

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        if self.transport is not None:  # None if it was refused
            self.limits.leave(self.network)
            super().connection_lost(exc)

    def look(self, now: float) -> None:
        """Close the connection if its request is late, or if the client does not read."""
        transport, cycle = self.transport, self.cycle
        closing = transport.is_closing()
        left = transport.get_write_buffer_size()
        if left != self._left or not (left or closing):
            self._left, self._stuck = left, now
        elif now - self._stuck > self.settings.stall:
            transport.abort()
            return
        # A request in progress waits for its body or its response, which have their own deadlines.
        # After a response, uvicorn's keep-alive timer runs only until the next byte arrives.
        if closing or not (
            cycle is None or (cycle.response_complete and self.timeout_keep_alive_task is None)
        ):
            self._since = 0.0
        elif not self._since or cycle is not self._last:
            self._since, self._last = now, cycle
        elif now - self._since > self.settings.header_timeout:
            if self.begun():
                transport.write(refusal(408, "The request did not arrive in time"))
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse data, and read more only if no request waits for an earlier one."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Start the next waiting request before more is read; uvicorn would read first."""
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        """Stop reading while a request waits; h11 buffers its data during another request."""
        if self.begun() and self.cycle is not None and not self.cycle.response_complete:
            self.transport.stop_reading()
        else:
            self.transport.start_reading(self.flow.read_paused)

    def unfinished(self) -> bool:
        """Whether only a part of a request has arrived."""
        cycle = self.cycle
        return not self.transport.is_closing() and (
            self.begun() or (cycle is not None and cycle.more_body and not cycle.response_started)
        )

    def refuse(self) -> None:
        """Refuse the unfinished request with 503, and close the connection."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(refusal(503, "The server is shutting down"))
        self.transport.close()

    def due(self) -> bool:
        """Whether the client is expected to send a request or the rest of its head."""
        return not self.transport.is_closing() and (self.cycle is None or self.begun())

    def begun(self) -> bool:
        """Whether a part of a request head has arrived."""
        return bool(self.conn.trailing_data[0])


class Counted(Protocol):
    """`Protocol` for httptools, which does not limit the size of a request head."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._size = 0
        """The bytes received since the last end of a head or piece of a body."""
        self._most = self.settings.max_head
        self._rest, self._place = b"", 0
        """The data that was read, and the position from which it is not parsed, because a request
        waits for an earlier one."""
        self._counted = 0
        """The bytes of it that are counted in the budget."""
        self._body_of: Any = None
        self._body_size = 0
        """The bytes that have arrived of the body of this request."""

    def data_received(self, data: bytes) -> None:
        """Parse data, but stop at a request that must wait for an earlier one. uvicorn would queue
        all requests that it has read, and continue to read."""
        if len(data) <= PLAIN and not self._rest and data.count(b" HTTP/") <= 2:
            self._parse(data)
            if self.pipeline:
                self.transport.stop_reading()
        else:
            self._rest = self._rest[self._place :] + data
            self._place = 0
            self._advance()

    def on_response_complete(self) -> None:
        """Start the next waiting request, then continue to parse."""
        _completed(self)
        if self._rest or self.transport.stopped:
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the data that is not parsed."""
        self._forget()
        super().connection_lost(exc)

    def _advance(self) -> None:
        rest, start = self._rest, self._place
        while start < len(rest) and not self.pipeline and not self.transport.is_closing():
            end = start + self._step()
            self._parse(rest[start:end])
            start = end
        if start >= len(rest) or self.transport.is_closing():
            self._forget()
        else:
            self._place = start
            self._count(len(rest))
        if self.pipeline:
            self.transport.stop_reading()
        else:
            self.transport.start_reading(self.flow.read_paused)

    def _count(self, size: int) -> None:
        """Count the waiting data in the budget. If the budget is exceeded, close the connection; an
        error response is not possible, because another response is being written."""
        if size <= max(SMALL, self._counted):
            return
        try:
            self.budget.take(self.network, size - self._counted)
            self._counted = size
        except A2AError:
            self._forget()
            self.transport.close()

    def _forget(self) -> None:
        self._rest, self._place = b"", 0
        if self._counted:
            self.budget.give(self.network, self._counted)
            self._counted = 0

    def _step(self) -> int:
        """Return how much to parse at once: the rest of a body of known length, or a slice."""
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.scope is not self.scope:
            return SLICE
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        arrived = self._body_size if self._body_of is cycle else 0
        return max(SLICE, int(length) - arrived if length.isdigit() and len(length) < 19 else 0)

    def _parse(self, data: bytes) -> None:
        """Parse data, within the limit on the size of heads, trailers and anything between
        requests."""
        self._size += len(data)
        if self._size > self._most:
            return self._parse_excess(data)
        cycle = self.cycle
        _received(self, data)
        if self.cycle is not cycle:
            self._size = 0
        return None

    def _parse_excess(self, data: bytes) -> None:
        """Parse data that may exceed the limit, and refuse the request with 431 if it does."""
        cycle, app = self.cycle, self.app
        self.app = self._checked  # a complete head may be too large, too
        _received(self, data)
        self.app = app
        if self.cycle is not cycle:
            self._size = 0
        elif self._size > self._most and not self.transport.is_closing():
            if cycle is None or (cycle.response_complete and self.begun()):
                self.transport.write(refusal(431, TOO_LARGE))
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        """Count the body apart from the head, because it has its own limit."""
        self._size = 0
        if self._body_of is not self.cycle:
            self._body_of, self._body_size = self.cycle, 0
        self._body_size += len(body)
        _body(self, body)

    def begun(self) -> bool:
        """See `Protocol`."""
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    async def _checked(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application, or refuse a request whose head is too large."""
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        size += len(scope["raw_path"]) + len(scope["query_string"])
        if size <= self._most:
            return await self.app(scope, receive, send)
        if self.settings.access_log:
            line = AccessLine(
                scope["method"],
                scope["raw_path"].decode("latin-1"),
                str((scope.get("client") or ("",))[0]),
            )
            line.status, line.outcome = 431, "HEAD_TOO_LARGE"
            line.write()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"x-content-type-options", b"nosniff"),
            (b"content-length", b"%d" % len(TOO_LARGE)),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 431, "headers": headers})
        await send({"type": "http.response.body", "body": TOO_LARGE.encode()})
        return None


# looked up once, because each request calls them several times
_received: Callable[[Any, bytes], None] = UvicornProtocol.data_received
_completed: Callable[[Any], None] = UvicornProtocol.on_response_complete
_body: Callable[[Any, bytes], None] = getattr(
    UvicornProtocol, "on_body", UvicornProtocol.data_received
)

HTTP = Counted if hasattr(UvicornProtocol, "on_body") else Protocol
"""The protocol for the installed parser; h11 limits the size of heads itself."""

App = Callable[[Any, Any, Any], Awaitable[None]]
TOO_LARGE = "The request line and headers are too large"


def refusal(status: int, text: str) -> bytes:
    """Return a response that refuses a request before it is parsed."""
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        "content-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\n"
        f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}"
    ).encode()


def _extended(app: App, extensions: dict[str, Any]) -> App:
    """Wrap the application so that each scope contains these extensions."""

    def extended(scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        scope["extensions"] = extensions
        return app(scope, receive, send)

    return extended
