"""A raw HTTP client, which can send what no client library sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

HANG = 30.0
"""Seconds after which a missing response counts as never sent."""

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)


class Connection:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Write raw bytes; a closed connection is not an error."""
        with contextlib.suppress(OSError):
            self.writer.write(data)
            await self.writer.drain()
            if hasattr(socket, "TCP_QUICKACK"):
                # Otherwise a server that writes head and body separately waits for the delayed ACK.
                peer = self.writer.get_extra_info("socket")
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    async def answer(self, *, whole: bool = True) -> Answer | None:
        """Read the next response, with `whole` its body, too. Returns None if the server closed
        the connection."""
        async with asyncio.timeout(HANG):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
                first, *lines = head[:-4].split(b"\r\n")
                pairs = (line.decode("latin-1").partition(":") for line in lines)
                headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
                answer = Answer(int(first.split()[1]), headers, b"")
                if not whole:
                    return answer
                return Answer(answer.status, headers, await self._body(answer))
            except (asyncio.IncompleteReadError, ConnectionError):
                return None

    async def _body(self, answer: Answer) -> bytes:
        if answer.status in (204, 304):
            return b""
        if "content-length" in answer.headers:
            return await self.reader.readexactly(int(answer.headers["content-length"]))
        if answer.headers.get("transfer-encoding") != "chunked":
            return await self.reader.read()
        pieces: list[bytes] = []
        while size := int(await self.reader.readline(), 16):
            pieces.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return b"".join(pieces)

    async def over(self) -> bool:
        """Whether the server closes the connection."""
        try:
            async with asyncio.timeout(HANG):
                while await self.reader.read(65536):
                    pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True


@contextlib.asynccontextmanager
async def connect(url: str) -> AsyncIterator[Connection]:
    """Connect to the server of a URL."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def request(
    method: bytes | str, target: bytes | str, body: bytes | None = None, headers: Headers = ()
) -> bytes:
    """Encode a request."""
    method, target = (
        part.encode("latin-1") if isinstance(part, str) else part for part in (method, target)
    )
    lines = [b"%b %b HTTP/1.1" % (method, target), b"Host: localhost"]
    lines += [b"%b: %b" % header for header in headers]
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body or b""])


class Client:
    """Sends requests over one connection, and reconnects when the server has closed it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stack = contextlib.AsyncExitStack()
        self._connection: Connection | None = None

    async def ask(
        self,
        method: bytes | str,
        target: bytes | str,
        body: bytes | None = None,
        headers: Headers = (),
    ) -> Answer | None:
        """Send a request and read the response; None if the server closed the connection."""
        if self._connection is None:
            self._connection = await self._stack.enter_async_context(connect(self.url))
        await self._connection.send(request(method, target, body, headers))
        answer = await self._connection.answer()
        if answer is None or answer.headers.get("connection") == "close":
            await self.close()
        return answer

    async def close(self) -> None:
        """Close the connection."""
        self._connection = None
        await self._stack.aclose()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
