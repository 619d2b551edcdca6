"""An MCP server that runs as a child process.

It may be hostile: a line and the number of messages in a second are limited, and what it writes to
its standard error is logged in small amounts. At the end the process and its children end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import mcp.types as mcp
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from dragoman.mcp.client.mcp_servers import StdioServer
from dragoman.prompt_safety import clean

logger = logging.getLogger("dragoman")

LARGEST_MESSAGE = 16 << 20
"""The most bytes of a message of a server."""
MESSAGES = 1000
"""The most messages that are read in a second. A server that writes more must wait."""
LINES = 10
"""How many lines of its standard error are logged in a second."""
PATIENCE = 2.0
"""Seconds that a process has to end by itself, and then to end after SIGTERM."""

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


class Pace:
    """Limits how many things happen in a second."""

    def __init__(self, most: int) -> None:
        self._most, self._count, self._since = most, 0, 0.0

    def exceeded(self, count: int = 1) -> bool:
        """Count things that happen now, and return whether they are too many."""
        now = time.monotonic()
        if now - self._since >= 1.0:
            self._since, self._count = now, 0
        self._count += count
        return self._count > self._most

    async def keep(self, count: int = 1) -> None:
        """Count things that happen now, and wait if they are too many."""
        if self.exceeded(count):
            await asyncio.sleep(max(self._since + 1.0 - time.monotonic(), 0.0))


@asynccontextmanager
async def server_process(
    server: StdioServer, *, ended: Callable[[], None]
) -> AsyncIterator[Streams]:
    """Run a server until the block ends. The stream of its messages ends when the server does, or
    when it breaks a limit; `ended` is called then. Raises OSError if it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        *server.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=server.environment(),
        cwd=server.cwd,
        limit=LARGEST_MESSAGE,
        start_new_session=True,
    )
    incoming_end, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, outgoing_end = anyio.create_memory_object_stream[SessionMessage](0)
    reading = asyncio.create_task(_read(process, incoming_end, server.name, ended))
    writing = asyncio.create_task(_write(process, outgoing_end))
    logging_errors = asyncio.create_task(_log_errors(process, server.name))
    try:
        yield incoming, outgoing
    finally:
        ending = asyncio.ensure_future(_end(process, reading, writing, logging_errors))
        try:
            await asyncio.shield(ending)
        finally:
            for stream in (incoming, outgoing, incoming_end, outgoing_end):
                stream.close()


async def _read(
    process: asyncio.subprocess.Process,
    to: MemoryObjectSendStream[Incoming],
    name: str,
    ended: Callable[[], None],
) -> None:
    """Pass the messages on until the process closes its output."""
    # that nobody listens any more is no error
    try:
        with to, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for message in _messages(process, name):
                await to.send(SessionMessage(message))
    finally:
        ended()


async def _messages(
    process: asyncio.subprocess.Process, name: str
) -> AsyncIterator[mcp.JSONRPCMessage]:
    assert process.stdout is not None
    pace = Pace(MESSAGES)
    while True:
        try:
            line = await process.stdout.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            logger.error(
                "%s: a message is longer than %d bytes; the process ends", name, LARGEST_MESSAGE
            )
            return
        await pace.keep()
        try:
            yield mcp.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:  # some servers write their log there
            logger.debug("%s: wrote a line that is no message", name)


async def _write(
    process: asyncio.subprocess.Process, source: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    assert process.stdin is not None
    with source, suppress(OSError):
        async for item in source:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _log_errors(process: asyncio.subprocess.Process, name: str) -> None:
    assert process.stderr is not None
    pace = Pace(LINES)
    while chunk := await process.stderr.read(16 << 10):
        for line in chunk.decode(errors="replace").splitlines():
            if line.strip() and not pace.exceeded():
                logger.info("%s: %s", name, " ".join(clean(line, 500).split()))


async def _end(
    process: asyncio.subprocess.Process,
    reading: asyncio.Task[None],
    writing: asyncio.Task[None],
    logging_errors: asyncio.Task[None],
) -> None:
    """End the process and its children: at first politely."""
    assert process.stdin is not None
    reading.cancel()
    await asyncio.wait((reading,))
    # a process that writes cannot end before somebody reads
    draining = asyncio.create_task(_drain(process))
    process.stdin.close()
    if not await _ended(process):
        _signal(process, signal.SIGTERM)
        await _ended(process)
    _signal(process, signal.SIGKILL)  # also children that outlive it
    await _ended(process)
    jobs = (draining, logging_errors, writing)
    await asyncio.wait(jobs[:2], timeout=PATIENCE)  # the pipes are read to their end
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    with suppress(OSError):
        await process.stdin.wait_closed()


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass


async def _ended(process: asyncio.subprocess.Process) -> bool:
    """Wait a little until the process has ended. `process.wait` would also wait for its output,
    which children may keep open."""
    until = time.monotonic() + PATIENCE
    while process.returncode is None and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return process.returncode is not None


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
