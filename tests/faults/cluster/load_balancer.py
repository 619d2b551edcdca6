"""What stands before the replicas: each connection goes to the next one that accepts it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence


class Balance:
    """Hands connections on in turn. It tries nothing again that a replica has accepted."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = ports
        self.port = 0
        self.carried = [0] * len(ports)
        """How many connections each has had."""
        self._next = 0
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if (there := await self._accepted()) is not None:
                await _both(reader, writer, *there)
        except asyncio.CancelledError:
            pass  # it is being closed
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def _accepted(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        first, self._next = self._next, self._next + 1
        for place in range(first, first + len(self.ports)):
            place %= len(self.ports)
            with contextlib.suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", self.ports[place])
                self.carried[place] += 1
                return there
        return None

    async def close(self) -> None:
        """End all connections."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream: asyncio.StreamReader,
    downstream: asyncio.StreamWriter,
) -> None:
    """Carry bytes both ways until one of the two hangs up."""
    ways = [
        asyncio.ensure_future(_carry(reader, downstream)),
        asyncio.ensure_future(_carry(upstream, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        downstream.transport.abort()


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        target.write_eof()
        await target.drain()


@contextlib.asynccontextmanager
async def balancing(ports: Sequence[int]) -> AsyncIterator[Balance]:
    """Such a thing, until the block ends."""
    balance = Balance(ports)
    server = await asyncio.start_server(balance.serve, "127.0.0.1", 0, backlog=1024)
    balance.port = server.sockets[0].getsockname()[1]
    try:
        yield balance
    finally:
        server.close()
        await balance.close()
        await server.wait_closed()
