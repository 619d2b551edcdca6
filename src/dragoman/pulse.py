"""Whether the store answers, and what is in it: asked seldom, however often somebody wants it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping

from dragoman.store import Census, Store
from dragoman.telemetry import logger

FRESH = 1.0
"""For so long an answer of the store is good."""
PATIENCE = 2.0
"""How long the store may take to answer; a probe should wait a little longer."""
COUNTED = 5.0
"""For so long a count is good."""


class Pulse:
    """Whether the store answers. Probes share one look at it, also while that takes its time."""

    def __init__(self, store: Store) -> None:
        self.up = True
        self._store = store
        self._looking: asyncio.Task[None] | None = None
        self._began = -FRESH

    async def beats(self) -> bool:
        """Whether the store has answered just now, in time."""
        now = time.monotonic()
        if self._looking is None and now - self._began >= FRESH:
            self._began = now
            self._looking = asyncio.create_task(self._look())
        if self._looking is not None:
            left = self._began + PATIENCE - now
            if left > 0:
                await asyncio.wait([self._looking], timeout=left)
            if self._looking is not None:
                self._tell(f"no answer within {PATIENCE:g} s")
        return self.up

    async def _look(self) -> None:
        problem = ""
        try:
            await self._store.moved({"": 0})
        except Exception as error:  # noqa: BLE001 - whatever it is, the store does not answer
            problem = str(error) or type(error).__name__
        finally:
            self._looking = None
        self._tell(problem)

    def _tell(self, problem: str) -> None:
        if problem and self.up:
            logger.warning("the store does not answer, so this process is not ready: %s", problem)
        elif not problem and not self.up:
            logger.info("the store answers again")
        self.up = not problem

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
                logger.warning("the store could not be counted: %s", error or type(error).__name__)
            self._at = time.monotonic()
