"""A minimal HTTP/1.1 client, cheap enough not to disturb what it measures."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, cast


class Broken(Exception):
    """An answer that is not what it must be; the figures would be worthless."""


class Caller(Protocol):
    """Who has at most one request under way."""

    def send(self, payload: bytes) -> Awaitable[Any]:
        """The whole answer to a request; Broken if it is an error."""


Connect = Callable[[int, int], AbstractAsyncContextManager[Sequence[Caller]]]
"""How so many callers of a port are come by."""


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    def __init__(self, port: int, version: str = "1.0") -> None:
        named = f"A2A-Version: {version}\r\n" if version else ""
        self._head = (
            f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\n{named}Content-Length: "
        ).encode()
        self._buffer = bytearray()
        self._body = bytearray()
        self._length: int | None = None
        self._in_body = False
        self._answer: asyncio.Future[bytes] | None = None
        self._begun: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop; an answer that is still awaited will not come."""
        for waiter in (self._answer, self._begun):
            if waiter is not None and not waiter.done():
                waiter.set_exception(exc or Broken("the server closed the connection"))

    def close(self) -> None:
        """Let go of the connection and of what is still awaited from it."""
        for waiter in (self._answer, self._begun):
            if waiter is not None:
                waiter.cancel()
        self.transport.abort()

    def send(self, payload: bytes) -> asyncio.Future[bytes]:
        """Write a request; the future holds the whole body of its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(payload), payload))
        return self._answer

    async def open(self, payload: bytes) -> bytes:
        """Write a request and wait only for the first bytes of its body."""
        self._begun = asyncio.get_running_loop().create_future()
        self.send(payload)
        await self._begun
        return bytes(self._body)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._buffer += data
        if not self._in_body and not self._read_head():
            return
        if self._length is None:
            self._read_chunks()
        elif len(self._buffer) >= self._length:
            self._body = self._buffer[: self._length]
            del self._buffer[: self._length]
            self._finish()
        if self._begun is not None and self._body and not self._begun.done():
            self._begun.set_result(None)

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        status, *lines = bytes(self._buffer[:end]).lower().split(b"\r\n")
        del self._buffer[: end + 4]
        fields = dict(line.split(b":", 1) for line in lines)
        length = fields.get(b"content-length")
        self._length = None if length is None else int(length)
        self._in_body = True
        if b" 200" not in status:
            self._fail(Broken(f"answered {status.decode()}"))
        return True

    def _read_chunks(self) -> None:
        buffer, position = self._buffer, 0
        while (eol := buffer.find(b"\r\n", position)) >= 0:
            size = int(buffer[position:eol], 16)
            end = eol + 2 + size
            if len(buffer) < end + 2:
                break
            self._body += buffer[eol + 2 : end]
            position = end + 2
            if size == 0:
                del buffer[:position]
                self._finish()
                return
        del buffer[:position]

    def _finish(self) -> None:
        body, self._body, self._in_body = bytes(self._body), bytearray(), False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(body)

    def _fail(self, error: Broken) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


@asynccontextmanager
async def connect(
    port: int, count: int = 1, receive_buffer: int | None = None, version: str = "1.0"
) -> AsyncIterator[list[Connection]]:
    """Open connections to a local server and close them afterwards. Without a version, none is
    named."""
    loop = asyncio.get_running_loop()
    opened: list[Connection] = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            _, connection = await loop.create_connection(
                lambda: Connection(port, version), sock=sock
            )
            opened.append(connection)
        yield opened
    finally:
        for connection in opened:
            connection.close()


async def drive(
    connections: Sequence[Caller],
    count: int,
    payload: Callable[[], bytes],
    check: Callable[[Any], None],
    timeout: float = 300,
) -> None:
    """Send `count` requests over all connections, each sending again when it is answered."""
    left = iter(range(count))

    async def one(connection: Caller) -> None:
        for _ in left:
            check(await connection.send(payload()))

    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(one(connection))
    except ExceptionGroup as failed:
        # The connections fail alike; the first says it for all.
        raise failed.exceptions[0] from None
