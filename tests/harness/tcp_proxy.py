"""A TCP proxy that can become silent: connections stay open, but no byte passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Pipe:
    """Forwards bytes to a local port, unless it is silent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.silent = False
        """Discard all bytes of the open connections. A new connection ends this."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, away = await asyncio.open_connection("127.0.0.1", self._target)
        self.silent = False
        self._writers |= {writer, away}
        await asyncio.gather(self._pass(reader, away), self._pass(there, writer))
        self._writers -= {writer, away}
        self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dead = False
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                dead = dead or self.silent
                if not dead:
                    writer.write(data)
                    await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def cut(self) -> None:
        """Close the open connections."""
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)


@contextlib.asynccontextmanager
async def piping(port: int) -> AsyncIterator[Pipe]:
    """Run a proxy to a port, on a free port."""
    pipe = Pipe(port)
    server = await asyncio.start_server(pipe.serve, "127.0.0.1", 0)
    pipe.port = server.sockets[0].getsockname()[1]
    try:
        yield pipe
    finally:
        server.close()
        await pipe.cut()
