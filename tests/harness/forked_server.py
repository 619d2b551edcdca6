"""A server as a forked process, with the methods of a process of asyncio; see
`tests.harness.forks`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from tests.harness.forks import COMMAND, ROOT, SERVERS, Forked


class ForkedServer:
    """A process whose errors are read line by line."""

    def __init__(self, process: Forked, stderr: asyncio.StreamReader) -> None:
        self.pid = process.pid
        self.stderr = stderr
        self.returncode: int | None = None
        self._ending = asyncio.create_task(self._end(process))

    async def _end(self, process: Forked) -> int:
        self.returncode = await process.ended()
        return self.returncode

    async def wait(self) -> int:
        """Wait until it has ended, and return the exit status."""
        return await asyncio.shield(self._ending)

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that has not ended."""
        os.kill(self.pid, number)


async def forked_server(*arguments: str, environment: Mapping[str, str]) -> ForkedServer:
    """Run the command."""
    read, write = os.pipe()
    try:
        process = await asyncio.to_thread(
            SERVERS.start,
            *(COMMAND, *arguments),
            folder=ROOT,
            environment=environment,
            stderr=write,
        )
    finally:
        os.close(write)
    stderr = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stderr), os.fdopen(read, "rb", 0)
    )
    return ForkedServer(process, stderr)
