"""A store and workers in this process, which a test runs step by step."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from dragoman import Agent, Caller, Settings, Task, TaskState, Turn
from dragoman.bells.bell import Bell
from dragoman.bells.memory import MemoryBell
from dragoman.model.caller import Call, Scope
from dragoman.model.events import CancelRequested, Entry
from dragoman.model.types import SendMessageRequest, TaskStatus, TaskStatusUpdateEvent
from dragoman.server.maintenance import LOOKS_IN_TIME, Maintenance
from dragoman.server.reader import Shutdown
from dragoman.server.run import Run
from dragoman.server.service import Service
from dragoman.server.worker import Worker
from dragoman.stores.memory import MemoryStore
from dragoman.stores.store import Accepted, Claim, Head, Store
from dragoman.testing import message

AT = "2026-01-31T12:00:00.000Z"
CALL = Call(Caller())
OVER = -1.0
"""A lease that has expired."""


class WorkerHarness:
    """A store, its workers and its maintenance; nothing runs in the background."""

    def __init__(
        self,
        handler: Any,
        *,
        retries: int = 0,
        bell: Bell | None = None,
        store: Store | None = None,
        reply: bool | None = None,
        skill: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.agent = Agent("Test", description="For tests.", retries=retries)
        self.agent.skill(reply=reply, **(skill or {}))(handler)
        self.agents = {self.agent.key: self.agent}
        self.settings = Settings(**{"poll": 0.01, "cancel_grace": 5.0, **settings})
        self.store: Any = store or MemoryStore()
        self.bell = bell or MemoryBell()
        self.closing = Shutdown()
        self.service = Service(self.agent, self.store, self.bell, self.settings, self.closing)
        self.maintenance = Maintenance(self.agents, self.store, self.bell, self.settings)
        self.scope = Scope(self.agent.key)
        self.workers: list[Worker] = []

    def worker(self) -> Worker:
        """Add a worker."""
        worker = Worker(self.agents, self.store, self.bell, self.settings)
        self.workers.append(worker)
        return worker

    async def send(self, text: Any = "x", task: str = "") -> Accepted:
        """Accept a message without waiting."""
        asked = message(text)
        asked = type(asked)(
            message_id=asked.message_id, role=asked.role, parts=asked.parts, task_id=task
        )
        return await self.service._accept(SendMessageRequest(message=asked), self.scope, CALL)

    async def claim(self, worker: Worker, lease: float = 30.0) -> Claim:
        """Claim the waiting task."""
        (claim,) = await self.store.claim(self.agents, worker.id, lease, 1)
        return claim

    async def orphan(self, text: str = "x") -> Claim:
        """Create a task whose worker has died."""
        await self.send(text)
        return await self.claim(self.worker(), OVER)

    async def run(self, worker: Worker | None = None, lease: float = 30.0) -> Run:
        """Run the waiting turn until the handler has ended."""
        worker = worker or self.worker()
        run = worker.begin(await self.claim(worker, lease))
        await run.task
        return run

    async def head(self, task: str) -> Head:
        """Return the head of a log."""
        found = await self.store.head(self.scope, task)
        assert found is not None
        return found

    async def task(self, task: str) -> Task:
        """Return the current task."""
        found = await self.store.load(self.scope, task)
        assert found is not None
        return found.task

    async def log(self, task: str) -> list[Entry]:
        """Return all entries."""
        return list(await self.store.read(self.scope, task, 0, 10_000) or ())

    async def reap(self) -> None:
        """Run maintenance until a lease that is not renewed has expired; one run is not enough."""
        for _ in range(1 + LOOKS_IN_TIME):
            await self.maintenance.reap()

    async def ask_to_cancel(self, task: str, grace: float = 30.0, *, undo: bool = False) -> None:
        """Request the cancellation of a task."""
        head = await self.head(task)
        status = TaskStatus(state=TaskState.CANCELED, timestamp=AT)
        canceled = TaskStatusUpdateEvent(task_id=task, context_id=head.context, status=status)
        asked = CancelRequested(caller=Caller(), at=AT)
        await self.store.cancel(self.scope, task, asked, canceled, grace, undo=undo)

    @asynccontextmanager
    async def working(self, *, keeping: bool = False) -> AsyncIterator[Worker]:
        """Run a worker, and optionally the maintenance, in the background."""
        worker = self.worker()
        jobs = [asyncio.create_task(worker.run())]
        if keeping:
            jobs.append(asyncio.create_task(self.maintenance.run()))
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(30):
                yield worker
        finally:
            await worker.drain(0.0)
            for job in jobs[1:]:
                job.cancel()
            await asyncio.wait(jobs)
            gc.collect()  # logs exceptions that were never retrieved
        await jobs[0]  # raises if the worker failed

    async def until(self, ready: Callable[[], Any]) -> None:
        """Wait until a condition is true."""
        async with asyncio.timeout(30):
            while not ready():
                await asyncio.sleep(0.002)

    async def ended(self, task: str) -> Task:
        """Wait until a task has ended, and return it."""
        async with asyncio.timeout(30):
            while not (await self.head(task)).state.terminal:
                await asyncio.sleep(0.002)
        return await self.task(task)


async def echo(turn: Turn) -> str:
    """Repeats the text."""
    return turn.text
