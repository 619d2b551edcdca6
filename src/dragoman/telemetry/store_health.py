"""Store health: whether the store responds, and how many tasks it has. Checks are limited to an
interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping

from dragoman.stores.store import Census, Store
from dragoman.telemetry.logs import logger

FRESH = 1.0
"""Seconds for which a response of the store is reused."""
PATIENCE = 2.0
"""Seconds that the store may take to respond; a probe should wait a little longer."""
COUNTED = 5.0
"""Seconds for which a count is reused."""


UNREACHABLE = "store unreachable"
UNWRITABLE = "store not writable"


class StoreHealth:
    """Whether the store responds and accepts writes. Concurrent probes share one check."""

    def __init__(self, store: Store) -> None:
        self.up = True
        self.state = ""
        """UNREACHABLE or UNWRITABLE while the store is down."""
        self._store = store
        self._looking: asyncio.Task[None] | None = None
        self._began = -FRESH

    async def beats(self) -> bool:
        """Whether the store has just responded in time and accepts writes."""
        now = time.monotonic()
        if self._looking is None and now - self._began >= FRESH:
            self._began = now
            self._looking = asyncio.create_task(self._look())
        if self._looking is not None:
            left = self._began + PATIENCE - now
            if left > 0:
                await asyncio.wait([self._looking], timeout=left)
            if self._looking is not None:
                self._report(UNREACHABLE, f"no answer within {PATIENCE:g} s")
        return self.up

    async def _look(self) -> None:
        state, problem = UNREACHABLE, ""
        try:
            await self._store.moved({"": 0})
            state = UNWRITABLE
            await self._store.probe()
            state = ""
        except Exception as error:  # noqa: BLE001 - any error means that the store is down
            problem = str(error) or type(error).__name__
        finally:
            self._looking = None
        self._report(state, problem)

    def _report(self, state: str, problem: str) -> None:
        if state and state != self.state:
            logger.warning("this process is not ready: %s (%s)", state, problem)
        elif not state and self.state:
            logger.info("the store is available again")
        self.state, self.up = state, not state

    def close(self) -> None:
        """Stop checking."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None


class Headcount:
    """The number of tasks of some agents in the store."""

    def __init__(self, agents: Collection[str], store: Store) -> None:
        self.latest: Mapping[str, Census] = {}
        self._agents = agents
        self._store = store
        self._counting = asyncio.Lock()
        self._at = -COUNTED

    async def take(self) -> None:
        """Refresh the count if it is old; no count if the store does not respond."""
        async with self._counting:
            if time.monotonic() - self._at < COUNTED:
                return
            try:
                async with asyncio.timeout(PATIENCE):
                    self.latest = await self._store.census(self._agents)
            except Exception as error:  # noqa: BLE001 - without a count, the gauge is omitted
                self.latest = {}
                logger.warning(
                    "cannot count the tasks in the store: %s", error or type(error).__name__
                )
            self._at = time.monotonic()
