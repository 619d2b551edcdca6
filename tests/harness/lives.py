"""Workers that die where a test wants them to, one after the other on one store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from dragoman.model.events import Private
from dragoman.server.run import Run
from dragoman.stores.store import Store
from tests.harness.workers import OVER, WorkerHarness


class Lives(WorkerHarness):
    """A harness whose workers die where a test wants them to."""

    def __init__(self, handler: Any, store: Store, *, poll: float = 0.01, **skill: Any) -> None:
        super().__init__(handler, store=store, skill={"durable": True, **skill}, poll=poll)
        self.done: Counter[str] = Counter()
        """How often each effect took place."""
        self.die_at = 0
        """At which point of its way the next run dies; 0 is never."""
        self.points = 0
        self.now: Run | None = None

    async def point(self, *, written: bool = True) -> None:
        """A place at which the process may end; what was said before it is written, or not."""
        self.points += 1
        if self.points == self.die_at:
            assert self.now is not None
            if written:
                await self.now.relieve()
            self.workers[-1].abandon(self.now)
            await asyncio.sleep(1)

    async def effect(self, name: str) -> str:
        """A side effect."""
        await self.point()
        self.done[name] += 1
        await self.point()
        return f"did {name}"

    async def life(self, die_at: int = 0) -> Run:
        """One run of what is ready, by a worker of its own, which may die."""
        self.die_at, self.points = die_at, 0
        worker = self.worker()
        claim = await self.claim(worker, OVER if die_at else 30.0)
        self.now = worker.begin(claim)
        await asyncio.wait([self.now.task])
        return self.now

    async def killed(self, ready: Awaitable[Any]) -> None:
        """One run, whose worker dies as soon as this is ready."""
        worker = self.worker()
        self.now = run = worker.begin(await self.claim(worker, OVER))
        watching = asyncio.ensure_future(ready)
        async with asyncio.timeout(30):
            await asyncio.wait([run.task, watching], return_when=asyncio.FIRST_COMPLETED)
        assert watching.done(), "the run has ended before"
        await watching
        worker.abandon(run)
        await asyncio.wait([run.task])
        await self.recover()

    async def logged(self, task: str, kind: str, number: int = 1) -> None:
        """Wait until the log has so many private entries of a kind."""
        async with asyncio.timeout(30):
            while (await self.private(task)).count(kind) < number:
                await asyncio.sleep(0.005)

    async def recover(self) -> None:
        """Take the claims of the dead, and make ready what is due."""
        await self.reap()
        async with asyncio.timeout(30):
            while not await self.store.wake(self.agents, 10):
                await asyncio.sleep(0.01)

    async def private(self, task: str) -> list[str]:
        """The kinds of the private entries."""
        found = await self.store.private(self.scope, task)
        return [entry.event.kind for entry in found if isinstance(entry.event, Private)]
