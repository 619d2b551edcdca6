"""Cancel of a task without a worker: what the author and the task have begun is undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman import Agent, App, RemoteTask, Task, TaskState, Turn
from dragoman.agent import durable
from dragoman.bells.bell import Bell
from dragoman.bells.memory import MemoryBell
from dragoman.client import Client
from dragoman.model.errors import TaskNotCancelable
from dragoman.model.events import CancelRequested
from dragoman.model.types import CancelTaskRequest
from dragoman.stores.store import Store
from dragoman.testing import SilentBell
from tests.harness.workers import CALL, WorkerHarness

CANCELED = TaskState.CANCELED
REMOTE = "https://helper.example"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeps of tests are short, and give the task back all the same."""
    monkeypatch.setattr(durable, "SHORT", 0.01)


async def cancel(harness: WorkerHarness, task: str) -> Task:
    """What CancelTask answers."""
    return await harness.service.cancel(CancelTaskRequest(id=task), CALL)


async def waiting(harness: WorkerHarness) -> str:
    """A task whose first turn is over."""
    task = (await harness.send()).head.id
    await harness.run()
    return task


async def kinds(harness: WorkerHarness, task: str) -> list[type]:
    """What is in the log."""
    return [type(entry.event) for entry in await harness.log(task)]


async def ask(turn: Turn) -> Any:
    """Ask."""
    return turn.ask("Which?")


async def save(turn: Turn) -> Any:
    """Keep a value, and ask."""
    await turn.save("kept")
    return turn.ask("Which?")


@pytest.mark.parametrize("handler", [ask, save])
async def test_without_anything_to_undo_it_is_one_transaction(store: Store, handler: Any) -> None:
    harness = WorkerHarness(handler, store=store, cancel_grace=60.0)
    task = await waiting(harness)
    async with asyncio.timeout(5):
        assert (await cancel(harness, task)).status.state is CANCELED
    assert not await store.claim(harness.agents, "w", 30, 1)


class Careful:
    """Asks, and tidies up."""

    canceled = 0

    async def run(self, turn: Turn) -> Any:
        """Ask."""
        return turn.ask("Which?")

    async def cancel(self, turn: Turn) -> Any:
        """Tidy up."""
        assert turn.canceled
        Careful.canceled += 1
        await turn.emit(turn.artifact("tidied up"))


@pytest.mark.parametrize("bell", [MemoryBell, SilentBell])
async def test_the_authors_cancel_is_called_for_a_task_that_waits(
    store: Store, bell: type[Bell]
) -> None:
    Careful.canceled = 0
    harness = WorkerHarness(Careful, store=store, bell=bell())
    task = await waiting(harness)
    async with harness.working(keeping=True):
        answers = await asyncio.gather(*(cancel(harness, task) for _ in range(3)))
    assert [answer.status.state for answer in answers] == [CANCELED] * 3
    assert [artifact.text for artifact in answers[0].artifacts] == ["tidied up"]
    assert Careful.canceled == 1
    assert (await kinds(harness, task)).count(CancelRequested) == 1
    with pytest.raises(TaskNotCancelable):
        await cancel(harness, task)


async def test_without_a_worker_it_is_canceled_after_the_grace(store: Store) -> None:
    Careful.canceled = 0
    harness = WorkerHarness(Careful, store=store, cancel_grace=0.05)
    task = await waiting(harness)
    assert (await cancel(harness, task)).status.state is CANCELED
    assert Careful.canceled == 0
    assert not await store.claim(harness.agents, "w", 30, 1)


async def test_a_durable_handler_is_replayed_to_its_await(store: Store) -> None:
    done: list[str] = []

    async def book() -> str:
        done.append("booked")
        return "room 7"

    async def handler(turn: Turn) -> AsyncIterator[Any]:
        room = await turn.step("book", book)
        try:
            await turn.sleep(days=1)
        except asyncio.CancelledError:
            done.append(f"released {room}")
            raise
        yield room

    harness = WorkerHarness(handler, store=store, skill={"durable": True})
    task = await waiting(harness)
    async with harness.working():
        assert (await cancel(harness, task)).status.state is CANCELED
    assert done == ["booked", "released room 7"]


async def test_a_durable_handler_can_have_a_cancel_of_its_own(store: Store) -> None:
    done: list[str] = []

    async def act(what: str) -> None:
        done.append(what)

    class Booking:
        """Books a room."""

        async def run(self, turn: Turn) -> AsyncIterator[Any]:
            """Book."""
            yield turn.working("booking")
            await turn.step("book", act, "booked")
            await turn.sleep(days=1)
            done.append("slept")

        async def cancel(self, turn: Turn) -> AsyncIterator[Any]:
            """Release."""
            await turn.step("release", act, "released")
            yield turn.artifact("released")

    harness = WorkerHarness(Booking, store=store, skill={"durable": True})
    task = await waiting(harness)
    async with harness.working():
        found = await cancel(harness, task)
    assert (found.status.state, done) == (CANCELED, ["booked", "released"])
    assert [artifact.text for artifact in found.artifacts] == ["released"]


class Helper:
    """Another agent, which works until it is canceled."""

    def __init__(self) -> None:
        agent = Agent("Helper", description="Helps.")
        agent.handler(self.help)
        self.app = App(agent, drain_timeout=0.0, poll=0.02)
        self.asked: list[str] = []

    async def help(self, turn: Turn) -> str:
        """Help."""
        self.asked.append(turn.text)
        await asyncio.Event().wait()
        return "never"

    async def states(self) -> list[TaskState]:
        """How its tasks stand."""
        async with Client.connect(app=self.app) as client:
            return [task.status.state async for task in client.list()]


async def delegate(turn: Turn) -> Any:
    """Have others do it, and ask."""
    if turn.text == "list":
        return turn.ask(str(turn.delegated))
    async with turn.connect(REMOTE) as other:
        found = await other.send("do it", wait=False)
        assert found.task is not None
        assert turn.delegated == (RemoteTask(REMOTE, found.task.id),)
    return turn.ask("Anything else?")


async def test_what_a_task_delegated_is_canceled_with_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    helper = Helper()
    harness = WorkerHarness(delegate, store=store)
    harness.agent.connections = {REMOTE: {"app": helper.app}}
    async with helper.app:
        task = await waiting(harness)
        await harness.send("list", task)
        await harness.run()
        question = (await harness.task(task)).status.message
        assert question is not None and REMOTE in question.text
        assert await helper.states() == [TaskState.SUBMITTED]
        async with harness.working():
            assert (await cancel(harness, task)).status.state is CANCELED
        assert await helper.states() == [CANCELED]
    assert "which it began" not in caplog.text


async def test_what_earlier_turns_delegated_is_canceled_with_a_turn_in_work(store: Store) -> None:
    helper = Helper()
    begun = asyncio.Event()

    async def handler(turn: Turn) -> Any:
        if turn.text == "wait":
            begun.set()
            await asyncio.Event().wait()
        return await delegate(turn)

    harness = WorkerHarness(handler, store=store)
    harness.agent.connections = lambda address: {"app": helper.app}
    async with helper.app:
        task = await waiting(harness)
        async with harness.working(keeping=True):
            await harness.send("wait", task)
            await begun.wait()
            assert (await cancel(harness, task)).status.state is CANCELED
        assert await helper.states() == [CANCELED]


async def dead(scope: Any, receive: Any, send: Any) -> None:
    raise OSError("sent no response")


def no_credentials(address: str) -> dict[str, Any]:
    raise KeyError(address)


@pytest.mark.parametrize(
    ("connections", "reason"),
    [(lambda address: {"app": dead}, "sent no response"), (no_credentials, repr(REMOTE))],
    ids=["dead", "raises"],
)
async def test_what_could_not_be_canceled_is_logged(
    store: Store, caplog: pytest.LogCaptureFixture, connections: Any, reason: str
) -> None:
    helper = Helper()
    harness = WorkerHarness(delegate, store=store)
    harness.agent.connections = lambda address: {"app": helper.app}
    async with helper.app:
        task = await waiting(harness)
        (remote,) = await turn_delegated(harness, task)
        harness.agent.connections = connections
        async with harness.working():
            assert (await cancel(harness, task)).status.state is CANCELED
        told = [line for line in caplog.messages if f"not task {remote.id} at {REMOTE}" in line]
        assert len(told) == 1 and reason in told[0].partition("which it began")[2]
        assert await helper.states() == [TaskState.SUBMITTED]


async def test_without_a_worker_what_was_delegated_is_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    helper = Helper()
    harness = WorkerHarness(delegate, store=store, cancel_grace=0.05)
    harness.agent.connections = lambda address: {"app": helper.app}
    async with helper.app:
        task = await waiting(harness)
        (remote,) = await turn_delegated(harness, task)
        assert (await cancel(harness, task)).status.state is CANCELED
        assert f"not task {remote.id} at {REMOTE}, which it began: no worker" in caplog.text


async def turn_delegated(harness: WorkerHarness, task: str) -> tuple[RemoteTask, ...]:
    """What the log of a task says."""
    from dragoman.server.delegated_tasks import delegated_by

    return await delegated_by(harness.store, await harness.head(task))
