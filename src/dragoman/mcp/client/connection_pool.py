"""The connections to one MCP server: how many there are, for whom, and when they end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from dragoman.mcp.client.connection import AUTO, LEGACY, Connection, ServerUnavailable
from dragoman.mcp.client.mcp_servers import MCPServer

logger = logging.getLogger("dragoman")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a server that has failed is started again; each pause is twice the last."""
SOUND = 60.0
"""A server that has run for this many seconds has not failed at its start."""
IDLE = 600.0
"""A connection ends after this many seconds without a call, except the one for everybody."""


class ConnectionPool:
    """Connections to one server. Each is for everybody or, with `per_caller`, for one caller."""

    def __init__(
        self,
        server: MCPServer,
        make: Callable[[str, bool], Connection],
        *,
        most: int,
        per_caller: bool,
        connect_timeout: float,
    ) -> None:
        self.server = server
        self._make = make
        self._most, self._per_caller = most, per_caller
        self._connect_timeout = connect_timeout
        self._open: list[Connection] = []
        self._opening = self._ending = 0
        self._mode = LEGACY if server.older else AUTO
        self._failures = 0
        self._not_before = 0.0
        self._changed = asyncio.Condition()
        self._starts: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closed = False
        self.task_tools: set[str] = set()
        """The tools that the server runs only as tasks of its own."""

    def __len__(self) -> int:
        return len(self._open) + self._opening + self._ending

    async def take(self, caller: str, *, tasks: bool = False) -> Connection:
        """A connection for a call of this caller (empty: anonymous); the caller gives it back. With
        `tasks`, one that declares the extension for tasks. Raises ServerUnavailable if there is
        none in time."""
        key = caller if self._per_caller else ""
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._find(key, tasks)
        except TimeoutError:
            raise ServerUnavailable(
                f"All connections to the MCP server {self.server.name} are in use"
            ) from None
        return connection

    async def give_back(self, connection: Connection) -> None:
        """A call in this connection has ended."""
        connection.calls -= 1
        connection.idle_since = time.monotonic()
        async with self._changed:
            self._changed.notify_all()

    async def replace(self, connection: Connection) -> None:
        """End a connection that does not work any more."""
        await connection.close()
        self._forget_ended()

    async def end_idle(self) -> None:
        """End the connections that had no call for long. One that is for everybody stays."""
        self._forget_ended()
        late = time.monotonic() - IDLE
        shared = [each for each in self._open if not each.key]
        for each in list(self._open):
            last = not each.key and shared == [each]
            if not each.calls and each.idle_since < late and not last:
                if each in shared:
                    shared.remove(each)
                await self._end(each)

    async def close(self) -> None:
        """End all connections."""
        self._closed = True
        await asyncio.gather(*(each.close() for each in self._open))
        self._open.clear()

    # -- inside

    async def _find(self, key: str, tasks: bool) -> Connection:
        start = self._starts.setdefault(key, asyncio.Lock())
        async with start:
            while True:
                self._forget_ended()
                if (found := self._free(key, tasks)) is not None:
                    found.calls += 1
                    return found
                if len(self) < self._most:
                    return await self._start(key, tasks)
                idle = [each for each in self._open if not each.calls]
                if idle:
                    await self._end(min(idle, key=lambda each: each.idle_since))
                else:
                    async with self._changed:
                        await self._changed.wait()

    def _free(self, key: str, tasks: bool) -> Connection | None:
        """A connection of this key that may take one more call."""
        for each in self._open:
            if (each.key, each.tasks) != (key, tasks):
                continue
            if self._per_caller or not each.asks_back or not each.calls:
                return each
        return None

    async def _start(self, key: str, tasks: bool) -> Connection:
        if self._closed:
            raise ServerUnavailable(f"The MCP server {self.server.name} has ended")
        self._opening += 1
        try:
            await asyncio.sleep(max(self._not_before - time.monotonic(), 0.0))
            connection = await self._opened(key, tasks)
        except ServerUnavailable:
            self._failed()
            raise
        finally:
            self._opening -= 1
        connection.calls = 1
        self._open.append(connection)
        return connection

    async def _opened(self, key: str, tasks: bool) -> Connection:
        connection = self._make(key, tasks)
        try:
            await connection.open(self._mode, self._connect_timeout)
        except ServerUnavailable as error:
            legacy = self._mode == LEGACY
            if not self.server.older:
                self._mode = AUTO  # it may be a newer server now
            if legacy or not error.started:
                raise
            # some older servers end at the first request of a newer protocol
            connection = self._make(key, tasks)
            await connection.open(LEGACY, self._connect_timeout)
        self._mode = LEGACY if connection.asks_back else AUTO
        return connection

    async def _end(self, connection: Connection) -> None:
        self._open.remove(connection)
        self._ending += 1
        try:
            await connection.close()
        finally:
            self._ending -= 1

    def _forget_ended(self) -> None:
        for each in [each for each in self._open if each.ended.is_set()]:
            self._open.remove(each)
            logger.warning("%s: the connection has ended", self.server.name)
            if time.monotonic() - each.opened_at < SOUND:
                self._failed()
            else:
                self._failures = 0

    def _failed(self) -> None:
        pause = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        self._failures += 1
        self._not_before = time.monotonic() + pause
