"""Store health: whether it answers, and how many tasks it has. It is asked at most at an
interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping

from dragoman.stores.store import Census, Store
from dragoman.telemetry.logs import logger

FRESH = 1.0
"""For so long an answer of the store is good."""
PATIENCE = 2.0
"""How long the store may take to answer; a probe should wait a little longer."""
COUNTED = 5.0
"""For so long a count is good."""


UNREACHABLE = "store unreachable"
UNWRITABLE = "store not writable"


class StoreHealth:
    """Whether the store answers and can be written. Probes share one look at it, also while that
    takes its time."""

    def __init__(self, store: Store) -> None:
        self.up = True
        self.state = ""
        """UNREACHABLE or UNWRITABLE while it is not up."""
        self._store = store
        self._looking: asyncio.Task[None] | None = None
        self._began = -FRESH

    async def beats(self) -> bool:
        """Whether the store has just answered in time, and could be written."""
        now = time.monotonic()
        if self._looking is None and now - self._began >= FRESH:
            self._began = now
            self._looking = asyncio.create_task(self._look())
        if self._looking is not None:
            left = self._began + PATIENCE - now
            if left > 0:
                await asyncio.wait([self._looking], timeout=left)
            if self._looking is not None:
                self._tell(UNREACHABLE, f"no answer within {PATIENCE:g} s")
        return self.up

    async def _look(self) -> None:
        state, problem = UNREACHABLE, ""
        try:
            await self._store.moved({"": 0})
            state = UNWRITABLE
            await self._store.probe()
            state = ""
        except Exception as error:  # noqa: BLE001 - whatever it is, the store does not work
            problem = str(error) or type(error).__name__
        finally:
            self._looking = None
        self._tell(state, problem)

    def _tell(self, state: str, problem: str) -> None:
        if state and state != self.state:
            logger.warning("this process is not ready: %s (%s)", state, problem)
        elif not state and self.state:
            logger.info("the store is available again")
        self.state, self.up = state, not state

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None


class Headcount:
    """What the store has of some agents."""

    def __init__(self, agents: Collection[str], store: Store) -> None:
        self.latest: Mapping[str, Census] = {}
        self._agents = agents
        self._store = store
        self._counting = asyncio.Lock()
        self._at = -COUNTED

    async def take(self) -> None:
        """Have the latest count, or one that is good; none if the store does not answer."""
        async with self._counting:
            if time.monotonic() - self._at < COUNTED:
                return
            try:
                async with asyncio.timeout(PATIENCE):
                    self.latest = await self._store.census(self._agents)
            except Exception as error:  # noqa: BLE001 - what cannot be counted is not told
                self.latest = {}
                logger.warning(
                    "cannot count the tasks in the store: %s", error or type(error).__name__
                )
            self._at = time.monotonic()
