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
    """A request as the proxy received it."""

    raw: bytes
    streams: bool
    """Whether the client asks for a stream."""
    resumes: bool
    """Whether it names the last received event."""


@dataclass(frozen=True)
class Lost:
    """Cut the connection without a response, before the request is delivered or just after."""

    delivered: bool
    reset: bool = False


@dataclass(frozen=True)
class Cut:
    """Deliver the response up to this byte, then close or reset the connection."""

    after: int
    reset: bool = False


@dataclass(frozen=True)
class Stall:
    """Deliver the response up to this byte; when the event is set, continue or cut."""

    after: int
    cut: bool = False
    until: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Truncate:
    """Deliver the body up to this byte, framed as if it were complete."""

    after: int


@dataclass(frozen=True)
class Garble:
    """Deliver the body up to this byte, then bytes that are not HTTP."""

    after: int


@dataclass(frozen=True)
class Repeat:
    """After this many events of a stream, repeat the last `back` of them."""

    events: int
    back: int = 1


@dataclass(frozen=True)
class Twice:
    """Deliver the request twice at once, and return the second response."""


Fault = Lost | Cut | Stall | Truncate | Garble | Repeat | Twice


def streams(*faults: Fault | None) -> Plan:
    """A plan with one fault for each stream in turn, and none for all other requests."""
    left = list(faults)
    return lambda request: left.pop(0) if left and request.streams else None


def requests(*faults: Fault | None) -> Plan:
    """A plan with one fault for each request in turn, and then none."""
    left = list(faults)
    return lambda _: left.pop(0) if left else None


class Proxy:
    """A proxy for the server of a URL. `struck` counts the faults that took effect."""

    def __init__(self, upstream: str, plan: Plan) -> None:
        self.plan = plan
        self.url = ""
        self.struck = 0
        self.passed: list[int] = []
        """The size of each complete response."""
        self.seen: list[Request] = []
        """The requests, in the order of arrival."""
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client."""
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
        """Forward one request and its response. Returns whether the connection is still usable."""
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
        """Forward bytes up to the position of the fault."""
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
        stack.callback(lambda: writer.transport.abort())  # keeps a reference to the writer
        writer.transport.set_write_buffer_limits(0)
        writer.write(request.raw)
        await writer.drain()  # now it is sent, whatever happens to the connection
        return reader


class _Client:
    """Writes to the client, up to a limit."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.transport.set_write_buffer_limits(0)
        self.limit: int | None = None
        self.written = 0
        self.gone = False

    async def write(self, data: bytes) -> bytes | None:
        """Write up to the limit. Returns the bytes after it, or None if it is not reached."""
        room = len(data) + 1 if self.limit is None else self.limit - self.written
        self._writer.write(data[:room])
        self.written += len(data[:room])
        await self._writer.drain()  # now it is sent, and a cut can follow
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
    """Yield the body of a response in pieces, without its framing."""
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
    """Yield complete events of a stream; the rest at the end is yielded as it is."""
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
    """Run a proxy on a free loopback port until the block ends."""
    proxy = Proxy(upstream, plan)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 24)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
