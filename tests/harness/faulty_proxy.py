"""A proxy that injects faults. It knows where each request and each response ends.

A plan selects the fault for each request. Positions in a response count from the first byte of its
head, positions in a body without the framing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

Plan = Callable[["Request"], "Fault | None"]

_END = re.compile(rb"\r?\n\r?\n")
"""Where an event of a stream ends."""


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    raw: bytes
    streams: bool
    """Its answer is wanted as a stream."""
    resumes: bool
    """It tells the place of the last event that came."""


@dataclass(frozen=True)
class Lost:
    """The connection is cut without an answer: before the request was delivered, or just after."""

    delivered: bool
    reset: bool = False


@dataclass(frozen=True)
class Cut:
    """The answer comes up to this byte, then the connection is closed, or reset."""

    after: int
    reset: bool = False


@dataclass(frozen=True)
class Stall:
    """The answer comes up to this byte; when the event is set, it goes on, or is cut."""

    after: int
    cut: bool = False
    until: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Truncate:
    """The body comes up to this byte, and looks complete."""

    after: int


@dataclass(frozen=True)
class Garble:
    """The body comes up to this byte, and goes on with what is no HTTP."""

    after: int


@dataclass(frozen=True)
class Repeat:
    """After so many events of a stream, the last `back` of them come again."""

    events: int
    back: int = 1


@dataclass(frozen=True)
class Twice:
    """The request is delivered twice, at once; the answer is that to the second."""


Fault = Lost | Cut | Stall | Truncate | Garble | Repeat | Twice


def streams(*faults: Fault | None) -> Plan:
    """A plan with a fault for each stream in turn; then, and for all else, there is none."""
    left = list(faults)
    return lambda request: left.pop(0) if left and request.streams else None


def requests(*faults: Fault | None) -> Plan:
    """A plan with a fault for each request in turn, and then none."""
    left = list(faults)
    return lambda _: left.pop(0) if left else None


class Proxy:
    """Stands before the server of a URL. `struck` counts the faults that took effect."""

    def __init__(self, upstream: str, plan: Plan) -> None:
        self.plan = plan
        self.url = ""
        self.struck = 0
        self.passed: list[int] = []
        """The bytes of each answer that came to its end."""
        self.seen: list[Request] = []
        """The requests, in the order in which they came."""
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(reader, _Client(writer)):
                    pass
        except asyncio.CancelledError:
            pass  # the proxy is being closed
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def close(self) -> None:
        """End all connections."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _exchange(self, reader: asyncio.StreamReader, client: _Client) -> bool:
        """One request and its answer; whether the connection is still good."""
        request = await _request(reader)
        self.seen.append(request)
        fault = self.plan(request)
        if isinstance(fault, Lost) and not fault.delivered:
            return self._cut(client, fault.reset)
        async with contextlib.AsyncExitStack() as stack:
            if isinstance(fault, Twice):
                await self._deliver(request, stack)
                self.struck += 1
            server = await self._deliver(request, stack)
            if isinstance(fault, Lost):
                return self._cut(client, fault.reset)
            return await self._answer(server, client, fault)

    async def _answer(
        self, server: asyncio.StreamReader, client: _Client, fault: Fault | None
    ) -> bool:
        head = await server.readuntil(b"\r\n\r\n")
        chunked = b"transfer-encoding: chunked" in head.lower()
        pieces = _body(server, head, chunked)
        if chunked and isinstance(fault, Truncate | Garble):
            pieces = self._shortened(pieces, fault.after)
        elif chunked and isinstance(fault, Repeat):
            pieces = self._repeated(pieces, fault)
        if isinstance(fault, Cut | Stall):
            client.limit = fault.after
        await self._pass(client, head, fault)
        async for piece in pieces:
            framed = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
            await self._pass(client, framed, fault)
            if client.gone:
                return False
        if chunked:
            end = b"no size\r\n" if isinstance(fault, Garble) else b"0\r\n\r\n"
            await self._pass(client, end, fault)
        self.passed.append(client.written)
        return not client.gone

    async def _pass(self, client: _Client, data: bytes, fault: Fault | None) -> None:
        """Pass bytes on, up to where the fault strikes."""
        rest = await client.write(data)
        if rest is None or client.gone:
            return
        if isinstance(fault, Cut):
            self._cut(client, fault.reset)
        elif isinstance(fault, Stall):
            self.struck += 1
            fault.begun.set()
            await fault.until.wait()
            client.limit = None
            if fault.cut:
                client.cut(reset=False)
            else:
                await client.write(rest)

    async def _shortened(self, pieces: AsyncIterator[bytes], left: int) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if len(piece) > left:
                self.struck += 1
                if left:
                    yield piece[:left]
                return
            left -= len(piece)
            yield piece

    async def _repeated(self, pieces: AsyncIterator[bytes], fault: Repeat) -> AsyncIterator[bytes]:
        events: list[bytes] = []
        async for event in _events(pieces):
            events.append(event)
            yield event
            if len(events) == fault.events:
                self.struck += 1
                yield b"".join(events[-fault.back :])

    def _cut(self, client: _Client, reset: bool) -> bool:
        self.struck += 1
        client.cut(reset)
        return False

    async def _deliver(
        self, request: Request, stack: contextlib.AsyncExitStack
    ) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(*self._upstream, limit=1 << 24)
        stack.callback(lambda: writer.transport.abort())  # a writer that nobody holds hangs up
        writer.transport.set_write_buffer_limits(0)
        writer.write(request.raw)
        await writer.drain()  # now it has gone out, whatever becomes of the connection
        return reader


class _Client:
    """The way back to the client, open up to a limit."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.transport.set_write_buffer_limits(0)
        self.limit: int | None = None
        self.written = 0
        self.gone = False

    async def write(self, data: bytes) -> bytes | None:
        """Write up to the limit; what is held back there, or None if the limit is further on."""
        room = len(data) + 1 if self.limit is None else self.limit - self.written
        self._writer.write(data[:room])
        self.written += len(data[:room])
        await self._writer.drain()  # now it has gone out, and can be followed by a cut
        return None if room > len(data) else data[room:]

    def cut(self, reset: bool) -> None:
        """Close the connection, or reset it."""
        self.gone = True
        if reset:
            sock: socket.socket = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


async def _request(reader: asyncio.StreamReader) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    body = await reader.readexactly(_length(lower) or 0)
    return Request(head + body, b"accept: text/event-stream" in lower, b"\nlast-event-id:" in lower)


def _length(head: bytes) -> int | None:
    found = re.search(rb"content-length: *(\d+)", head.lower())
    return int(found[1]) if found else None


async def _body(reader: asyncio.StreamReader, head: bytes, chunked: bool) -> AsyncIterator[bytes]:
    """The body of an answer in pieces, without its framing."""
    if chunked:
        while size := int(await reader.readline(), 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        return
    length = _length(head)
    if length is None and head.split(b" ", 2)[1].startswith(b"204"):
        return
    if length is not None:
        yield await reader.readexactly(length)
        return
    while piece := await reader.read(1 << 16):
        yield piece


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events of a stream, each whole; what is no event in the end comes as it is."""
    rest = b""
    async for piece in pieces:
        rest += piece
        while found := _END.search(rest):
            yield rest[: found.end()]
            rest = rest[found.end() :]
    if rest:
        yield rest


@contextlib.asynccontextmanager
async def proxying(upstream: str, plan: Plan) -> AsyncIterator[Proxy]:
    """A proxy on a free port of loopback, until the block ends."""
    proxy = Proxy(upstream, plan)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 24)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
