"""The connections of `dragoman serve`: how long each may take to say what it wants, and how much it
may say."""

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
"""Data up to this size that begins at most two requests is parsed at once."""
SLICE = 256
"""Other data is parsed in slices of this size, so that few requests can queue up in one of them."""


class CoalescingTransport:
    """A transport that sends the head of an answer together with the first of its body, and that
    can keep uvicorn from reading on."""

    __slots__ = ("_held", "_transport", "stopped")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._held = b""
        self.stopped = False
        """Whether nothing is read, whatever uvicorn says: requests wait that were read already."""

    def stop_reading(self) -> None:
        """Read nothing more until `start_reading`."""
        if not self.stopped and not self._transport.is_closing():
            self.stopped = True
            self._transport.pause_reading()

    def start_reading(self, paused: bool) -> None:
        """Read again, unless uvicorn has paused it."""
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
        """Hold a head until its body comes; an empty one lets it go, too."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.writelines((held, data))
        elif data.startswith(b"HTTP/1.1 2"):
            self._held = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Hold nothing back."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def close(self) -> None:
        """Close, when all is written."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(UvicornProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's HTTP, with one write for a short answer instead of two, and with deadlines."""

    def __init__(
        self,
        *arguments: Any,
        book: ConnectionLimits,
        budget: ByteBudget,
        settings: Settings,
        who: str = "",
    ) -> None:
        super().__init__(*arguments)
        self.book = book
        self.budget = budget
        self.settings = settings
        self.who = who
        """Whose connection it is, as the book has it; empty until it is entered."""
        self._since = 0.0
        """Since when a head has been due; 0 if none is."""
        self._last: Any = None
        """The request that was the last one then."""
        self._left = 0
        """What was left to write when it was looked at, and since when it is as much."""
        self._stuck = 0.0

    def connection_made(self, transport: Any) -> None:
        """A connection with a cork in it, if there is room for it."""
        if not self.who:
            peer = transport.get_extra_info("peername")
            address = peer[0] if isinstance(peer, tuple) else ""
            who = client_network(address)
            if not self.book.enter(who, address):
                transport.write(refusal(503, "Too many open connections"))
                transport.close()
                return
            self.who = who
        self._since = self._stuck = time.monotonic()
        super().connection_made(CoalescingTransport(transport))
        about = tls.about(transport)
        if about is not None:
            self.app = _extended(self.config.loaded_app, {"tls": about})

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        if self.transport is not None:  # it was let in
            self.book.leave(self.who)
            super().connection_lost(exc)

    def look(self, now: float) -> None:
        """End it if its request is late, or if nothing is read of what it was sent."""
        transport, cycle = self.transport, self.cycle
        closing = transport.is_closing()
        left = transport.get_write_buffer_size()
        if left != self._left or not (left or closing):
            self._left, self._stuck = left, now
        elif now - self._stuck > self.settings.stall:
            transport.abort()
            return
        # With a request under way its body is due, or its answer: they have their own deadlines.
        # After an answer uvicorn's timer runs until a byte comes; from then on nothing else does.
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
        """Read on only when no request waits for the one before it."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Answer the next request, if one waits; uvicorn would read on before that."""
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        """(h11 keeps what it has been given while a request is under way.)"""
        if self.begun() and self.cycle is not None and not self.cycle.response_complete:
            self.transport.stop_reading()
        else:
            self.transport.start_reading(self.flow.read_paused)

    def unfinished(self) -> bool:
        """Whether a part of a request has come, head or body, and not all of it."""
        cycle = self.cycle
        return not self.transport.is_closing() and (
            self.begun() or (cycle is not None and cycle.more_body and not cycle.response_started)
        )

    def refuse(self) -> None:
        """End it, without the rest of its request."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(refusal(503, "The server is shutting down"))
        self.transport.close()

    def due(self) -> bool:
        """Whether a request will come, or the rest of it: nobody connects for nothing."""
        return not self.transport.is_closing() and (self.cycle is None or self.begun())

    def begun(self) -> bool:
        """Whether there is a part of a request that is due."""
        return bool(self.conn.trailing_data[0])


class Counted(Protocol):
    """The same on httptools, which by itself takes a head of any size."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._size = 0
        """How much has come since the last that was of any use: the end of a head, or a body."""
        self._most = self.settings.max_head
        self._rest, self._place = b"", 0
        """What was read, and from where on it is not parsed yet: requests wait for those before
        them."""
        self._counted = 0
        """How much of it counts as under way."""
        self._body_of: Any = None
        self._body_size = 0
        """How much of the body of that request has come."""

    def data_received(self, data: bytes) -> None:
        """Parse it, but not beyond a request that must wait for the one before it: uvicorn would
        queue all that was read, and read on."""
        if len(data) <= PLAIN and not self._rest and data.count(b" HTTP/") <= 2:
            self._parse(data)
            if self.pipeline:
                self.transport.stop_reading()
        else:
            self._rest = self._rest[self._place :] + data
            self._place = 0
            self._advance()

    def on_response_complete(self) -> None:
        """Answer the next request, then parse on."""
        _completed(self)
        if self._rest or self.transport.stopped:
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what waits."""
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
        """Count what waits as under way. If too much is, hang up: an answer is being written, so
        that nothing can be said."""
        if size <= max(SMALL, self._counted):
            return
        try:
            self.budget.take(self.who, size - self._counted)
            self._counted = size
        except A2AError:
            self._forget()
            self.transport.close()

    def _forget(self) -> None:
        self._rest, self._place = b"", 0
        if self._counted:
            self.budget.give(self.who, self._counted)
            self._counted = 0

    def _step(self) -> int:
        """How much may be parsed at once: the rest of a body whose length is known, or a slice."""
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.scope is not self.scope:
            return SLICE
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        came = self._body_size if self._body_of is cycle else 0
        return max(SLICE, int(length) - came if length.isdigit() and len(length) < 19 else 0)

    def _parse(self, data: bytes) -> None:
        """Also trailers, and whatever stands between requests, end somewhere."""
        self._size += len(data)
        if self._size > self._most:
            return self._much(data)
        cycle = self.cycle
        _received(self, data)
        if self.cycle is not cycle:
            self._size = 0
        return None

    def _much(self, data: bytes) -> None:
        cycle, app = self.cycle, self.app
        self.app = self._checked  # a head that has come all at once may be too large as well
        _received(self, data)
        self.app = app
        if self.cycle is not cycle:
            self._size = 0
        elif self._size > self._most and not self.transport.is_closing():
            if cycle is None or (cycle.response_complete and self.begun()):
                self.transport.write(refusal(431, TOO_LARGE))
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        """Bodies have a limit of their own."""
        self._size = 0
        if self._body_of is not self.cycle:
            self._body_of, self._body_size = self.cycle, 0
        self._body_size += len(body)
        _body(self, body)

    def begun(self) -> bool:
        """See `Protocol`."""
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    async def _checked(self, scope: Any, receive: Any, send: Any) -> None:
        """The application, for requests whose head is not too large."""
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


# by name, since each of a request's steps counts
_received: Callable[[Any, bytes], None] = UvicornProtocol.data_received
_completed: Callable[[Any], None] = UvicornProtocol.on_response_complete
_body: Callable[[Any, bytes], None] = getattr(
    UvicornProtocol, "on_body", UvicornProtocol.data_received
)

HTTP = Counted if hasattr(UvicornProtocol, "on_body") else Protocol
"""What is spoken, by the parser that is installed; h11 limits what it holds by itself."""

App = Callable[[Any, Any, Any], Awaitable[None]]
TOO_LARGE = "The request line and headers are too large"


def refusal(status: int, text: str) -> bytes:
    """An answer to somebody whose request is not looked at."""
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        "content-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\n"
        f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}"
    ).encode()


def _extended(app: App, extensions: dict[str, Any]) -> App:
    """The application, told more of each request."""

    def extended(scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        scope["extensions"] = extensions
        return app(scope, receive, send)

    return extended
