"""A cancel gives the agent its grace, also while the server goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dragoman import Agent, App, Task, TaskState, Turn
from dragoman.bells.memory import MemoryBell
from dragoman.model.types import CancelTaskRequest, SendMessageConfiguration, SendMessageRequest
from dragoman.stores.memory import MemoryStore
from dragoman.testing import message
from tests.harness.workers import CALL, WorkerHarness


class Polite:
    """A handler that has something to say when it is canceled, and takes its time."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.canceled = asyncio.Event()
        self.may_end = asyncio.Event()

    async def run(self, turn: Turn) -> AsyncIterator[Any]:
        """Work for ever."""
        yield turn.working()
        self.begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.canceled.set()
            await self.may_end.wait()
            yield turn.artifact("last words")


def said(task: Task) -> tuple[TaskState, list[str | None]]:
    """How it ended, and with which words."""
    return task.status.state, [part.text for a in task.artifacts for part in a.parts]


LAST = (TaskState.CANCELED, ["last words"])


async def turns(count: int = 50) -> None:
    """Let everybody do what they can do at once."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_the_handlers_last_words_are_kept(when: str) -> None:
    handler = Polite()
    harness = WorkerHarness(handler, cancel_grace=60.0)
    async with harness.working():
        task = (await harness.send()).head.id
        await handler.begun.wait()
        harness.closing.now = when == "before"
        cancel = asyncio.create_task(harness.service.cancel(CancelTaskRequest(id=task), CALL))
        await handler.canceled.wait()
        harness.closing.now = True
        harness.bell.listeners.wake_all()
        await turns()
        handler.may_end.set()
        assert said(await cancel) == LAST


async def test_one_that_does_not_end_is_ended_after_the_grace() -> None:
    handler = Polite()
    harness = WorkerHarness(handler, cancel_grace=0.05)
    async with harness.working():
        task = (await harness.send()).head.id
        await handler.begun.wait()
        harness.closing.now = True
        found = await harness.service.cancel(CancelTaskRequest(id=task), CALL)
        handler.may_end.set()
        assert said(found) == (TaskState.CANCELED, [])


async def test_a_worker_that_drains_gives_it_too() -> None:
    handler = Polite()
    harness = WorkerHarness(handler, cancel_grace=60.0)
    async with harness.working() as worker:
        task = (await harness.send()).head.id
        await handler.begun.wait()
        cancel = asyncio.create_task(harness.service.cancel(CancelTaskRequest(id=task), CALL))
        await handler.canceled.wait()
        drain = asyncio.create_task(worker.drain(0.0))
        await turns()
        handler.may_end.set()
        await drain
        assert said(await cancel) == LAST


async def test_an_application_waits_for_the_cancels_of_those_who_work_elsewhere() -> None:
    handler = Polite()
    agent = Agent("Polite", description="Says goodbye.")
    agent.handler(handler)
    store, bell = MemoryStore(), MemoryBell()

    def app(**settings: Any) -> App:
        return App(agent, store=store, bell=bell, poll=0.05, drain_timeout=0.0, **settings)

    async with asyncio.timeout(20), app(), app(serve_only=True, cancel_grace=10.0) as serving:
        service = serving.endpoints[agent.key].service
        task = await accepted(service)
        await handler.begun.wait()
        cancel = asyncio.create_task(service.cancel(CancelTaskRequest(id=task), CALL))
        await handler.canceled.wait()
        stop = asyncio.create_task(serving.stop())
        await until(lambda: serving.closing.now)
        await turns()
        assert not stop.done()
        handler.may_end.set()
        assert said(await cancel) == LAST
        await stop


async def accepted(service: Any) -> str:
    """The id of a task that was begun, and not waited for."""
    immediately = SendMessageConfiguration(return_immediately=True)
    asked = SendMessageRequest(message=message("x"), configuration=immediately)
    answer = await service.send(asked, CALL)
    assert answer.task is not None
    return str(answer.task.id)


async def until(ready: Callable[[], bool]) -> None:
    """Until something is so."""
    while not ready():
        await asyncio.sleep(0.002)
