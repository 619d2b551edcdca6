"""Calls that wait in their connections for the answer of the client, each for a limited time."""

from __future__ import annotations

import asyncio

from dragoman.mcp.client.connection_pool import ConnectionPool
from dragoman.mcp.client.running_call import RunningCall

HELD = 600.0
"""Seconds for which a call waits in its connection for an answer."""


class HeldCalls:
    """The calls that wait for an answer, each for a limited time."""

    def __init__(self, seconds: float = HELD) -> None:
        self._seconds = seconds
        self._calls: dict[str, tuple[RunningCall, ConnectionPool]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def keep(self, key: str, call: RunningCall, pool: ConnectionPool) -> None:
        """Keep a call until its answer comes."""
        self._calls[key] = call, pool
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(self._seconds, self.drop, key)

    def take(self, key: str) -> RunningCall | None:
        """The call that waits, if its connection still lives."""
        found = self._calls.get(key)
        if found is not None and found[0].connection.ended.is_set():
            self.drop(key)
            return None
        if found is None:
            return None
        del self._calls[key]
        self._timers.pop(key).cancel()
        return found[0]

    def drop(self, key: str) -> None:
        """End a call that waits, and notify the server."""
        if (found := self._calls.pop(key, None)) is None:
            return
        self._timers.pop(key).cancel()
        task = asyncio.ensure_future(_ended(*found))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all of them."""
        for key in list(self._calls):
            self.drop(key)
        if self._ending:
            await asyncio.wait(set(self._ending))


async def _ended(call: RunningCall, pool: ConnectionPool) -> None:
    await call.cancel()
    await pool.give_back(call.connection)
