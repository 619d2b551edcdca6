"""Leases while everything stands still: no live turn is ended, and no dead one is kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, TaskState, Turn
from dragoman.bells.bell import Bell
from dragoman.bells.memory import MemoryBell
from dragoman.model.caller import Call, Caller, Scope
from dragoman.model.types import SendMessageConfiguration, SendMessageRequest
from dragoman.server import maintenance
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Claim, Head, Renewal, Store
from dragoman.telemetry.logs import logger
from dragoman.testing import message
from tests.harness.gate import Gate
from tests.harness.services import Postgres
from tests.harness.workers import OVER, WorkerHarness, echo

CALL = Call(Caller())
TURNS = 6


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """What was logged, whatever an earlier test did to the loggers."""
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level("INFO", "dragoman")
    return caplog


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is open after the test."""
    found = Gate()
    yield found
    found.release()


class Office:
    """An agent whose turns go on until they are told to end, and some replicas of it."""

    def __init__(self, *, lease: float, poll: float) -> None:
        self.settings = {"lease": lease, "poll": poll, "drain_timeout": 0.2}
        self.go_on = asyncio.Event()
        self.begun = 0
        self.ring: Callable[[], None] = lambda: None
        self.agent = Agent("Office", description="Waits.")

        @self.agent.handler
        async def wait(turn: Turn) -> str:
            self.begun += 1
            if turn.text.startswith("block"):
                self.ring()  # has claims renewed, and the answer comes when it is too late
                for _ in range(int(turn.text.split()[1])):
                    await asyncio.sleep(0)
                time.sleep(2.5 * lease)
            await self.go_on.wait()
            return "done"

    def app(self, store: Store | str, bell: Bell | None = None, *, serve_only: bool = False) -> App:
        """One more replica."""
        return App(self.agent, store=store, bell=bell, serve_only=serve_only, **self.settings)

    async def send(self, app: App, *texts: str) -> list[str]:
        """Begin these turns."""
        service = app.endpoints[self.agent.key].service
        known, tasks = self.begun, []
        for text in texts:
            asked = SendMessageRequest(
                message=message(text),
                configuration=SendMessageConfiguration(return_immediately=True),
            )
            answer = await service.send(asked, CALL)
            assert answer.task is not None
            tasks.append(answer.task.id)
        while self.begun < known + len(texts):
            await asyncio.sleep(0.01)
        return tasks

    async def end(self, app: App, tasks: list[str]) -> list[str]:
        """Let them end; how they did."""
        self.go_on.set()
        scope, reader = Scope(self.agent.key), app.endpoints[self.agent.key].service.reader
        found = []
        for task in tasks:
            await reader.until(lambda head: head.state.terminal, scope, task, 20)
            record = await app.store.load(scope, task)
            assert record is not None
            status = record.task.status
            found.append(status.message.text if status.message else status.state.name)
        return found


async def test_a_blocked_loop_ends_no_live_turn(tmp_path: Path) -> None:
    """Whoever reaps was blocked as long as whoever renews."""
    office = Office(lease=0.3, poll=0.05)
    async with office.app(SqliteStore(tmp_path / "tasks.db"), MemoryBell()) as app:
        assert app._worker is not None
        office.ring = partial(app.bell.ring, app._worker.id)
        tasks = await office.send(app, *["wait"] * TURNS)
        for steps in (1, 2, 3):
            tasks += await office.send(app, f"block {steps}")
            await asyncio.sleep(0.2)  # everybody looks
        assert await office.end(app, tasks) == [TaskState.COMPLETED.name] * (TURNS + 3)
        assert office.begun == TURNS + 3


@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_database_that_hangs_ends_no_live_turn(postgres: Postgres, replicas: int) -> None:
    office = Office(lease=1.0, poll=0.2)
    url = postgres.create()
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        apps = [
            await stack.enter_async_context(office.app(url, serve_only=number >= 2))
            for number in range(replicas)
        ]
        tasks = [task for app in apps for task in await office.send(app, *["wait"] * TURNS)]
        with postgres.hanging():
            await asyncio.sleep(1.7)
        await asyncio.sleep(0.8)  # everybody looks
        assert await office.end(apps[0], tasks) == [TaskState.COMPLETED.name] * len(tasks)
        assert office.begun == len(tasks)


# ---- when a claim is taken -----------------------------------------------------------------


class Slow(MemoryStore):
    """Takes its time to tell what has expired."""

    seconds = 0.0

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """Late."""
        await asyncio.sleep(self.seconds)
        return await super().expired(agents, limit)


async def taken(harness: WorkerHarness, claim: Claim) -> bool:
    """Whether one more look has taken this claim."""
    await harness.maintenance.reap()
    return (await harness.head(claim.head.id)).epoch != claim.epoch


async def test_a_claim_is_taken_when_it_is_seen_expired_twice_in_time() -> None:
    harness = WorkerHarness(echo)
    await harness.maintenance.reap()
    claim = await harness.orphan()
    assert not await taken(harness, claim)
    assert await taken(harness, claim)


async def test_after_a_look_that_was_late_there_are_two_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "LATE", 0.2)
    harness = WorkerHarness(echo, store=Slow())
    await harness.maintenance.reap()
    claim = await harness.orphan()
    assert not await taken(harness, claim)
    harness.store.seconds = 0.5  # type: ignore[attr-defined]
    assert not await taken(harness, claim)
    harness.store.seconds = 0.0  # type: ignore[attr-defined]
    assert not await taken(harness, claim)
    assert await taken(harness, claim)


async def test_a_claim_that_was_renewed_meanwhile_is_as_if_seen_for_the_first_time() -> None:
    harness = WorkerHarness(echo)
    await harness.maintenance.reap()
    claim = await harness.orphan()
    for _ in range(10):  # each of these renewals has run out before the next look
        assert not await taken(harness, claim)
        await harness.store.renew([claim], OVER)
    assert not await taken(harness, claim)
    assert await taken(harness, claim)


async def test_a_store_that_is_always_late_has_the_dead_buried_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "LATE", 0.0)
    harness = WorkerHarness(echo, store=Slow())
    harness.store.seconds = 0.05  # type: ignore[attr-defined]
    claim = await harness.orphan()
    for _ in range(maintenance.LOOKS - 1):
        assert not await taken(harness, claim)
    assert await taken(harness, claim)


async def test_what_a_dead_server_held_is_taken_at_the_first_look(tmp_path: Path) -> None:
    """Of a file that one server has, at its start."""
    first, again = SqliteStore(tmp_path / "tasks.db"), SqliteStore(tmp_path / "tasks.db")
    await first.open()
    harness = WorkerHarness(echo, store=first)  # type: ignore[arg-type]
    await harness.send()
    claim = await harness.claim(harness.worker())
    await first.close()
    await again.open()
    try:
        harness.store = harness.maintenance.store = again  # type: ignore[assignment]
        assert await taken(harness, claim)
    finally:
        await again.close()


# ---- renewing ------------------------------------------------------------------------------


class Hanging(MemoryStore):
    """Never answers some calls, and counts renewals."""

    def __init__(self, *hangs: str) -> None:
        super().__init__()
        self.hangs = hangs
        self.free = asyncio.Event()
        self.renewed = 0

    async def _hang(self, name: str) -> None:
        if name in self.hangs:
            await self.free.wait()

    async def revoke(self, *arguments: Any, **named: Any) -> Head | None:
        """Perhaps never."""
        await self._hang("revoke")
        return await super().revoke(*arguments, **named)

    async def held(self, worker: str) -> Sequence[Head]:
        """Perhaps never."""
        await self._hang("held")
        return await super().held(worker)

    async def renew(self, claims: Collection[Claim], lease: float) -> Renewal:
        """Perhaps never, for the first time."""
        self.renewed += 1
        if self.renewed == 1:
            await self._hang("renew")
        return await super().renew(claims, lease)


async def test_a_renewal_waits_for_no_turn_that_is_overdue(gate: Gate) -> None:
    async def stubborn(turn: Turn) -> None:
        await gate.wait_stubbornly()

    store = Hanging("revoke")
    harness = WorkerHarness(stubborn, store=store, turn_timeout=0.05, cancel_grace=0.02)
    async with harness.working() as worker:
        await harness.send()
        await harness.until(lambda: bool(worker._overdue))
        known = store.renewed
        await harness.until(lambda: store.renewed > known + 5)
        assert len(worker._overdue) == 1
        store.free.set()
        gate.release()


async def test_a_renewal_waits_for_no_claim_that_is_in_doubt(gate: Gate) -> None:
    async def handler(turn: Turn) -> None:
        await gate.wait()

    store = Hanging("held")
    harness = WorkerHarness(handler, store=store)
    async with harness.working() as worker:
        await harness.send()
        await gate.came.wait()
        worker._doubtful = True
        await harness.until(lambda: worker._settling)
        known = store.renewed
        await harness.until(lambda: store.renewed > known + 5)
        assert len(worker._returned) == 1
        store.free.set()
        gate.release()


async def test_a_renewal_that_is_not_answered_is_tried_again(
    gate: Gate, log: pytest.LogCaptureFixture
) -> None:
    async def handler(turn: Turn) -> None:
        await gate.wait()

    store = Hanging("renew")
    harness = WorkerHarness(handler, store=store, lease=0.15)
    async with harness.working(keeping=True):
        task = (await harness.send()).head.id
        await harness.until(lambda: store.renewed > 10)
        gate.release()
        assert (await harness.ended(task)).status.state is TaskState.COMPLETED
    assert "did not answer within 0.05 s" in log.text


# ---- processes that were stopped -----------------------------------------------------------


class Stopped(MemoryStore):
    """The process that claims is stopped for a while, before it hears what it has claimed."""

    for_seconds = 0.0

    def claim(self, *arguments: Any, **named: Any) -> asyncio.Future[Sequence[Claim]]:
        """Late."""
        found = super().claim(*arguments, **named)
        seconds, self.for_seconds = self.for_seconds, 0.0
        time.sleep(seconds)
        return found


async def test_what_was_claimed_before_a_long_sleep_is_not_begun() -> None:
    seen: list[int] = []

    async def handler(turn: Turn) -> None:
        seen.append(turn.attempt)

    store = Stopped()
    harness = WorkerHarness(handler, store=store, lease=0.1)
    async with harness.working():
        store.for_seconds = 0.3
        sent = await harness.send()
        assert (await harness.ended(sent.head.id)).status.state is TaskState.COMPLETED
        assert (await harness.head(sent.head.id)).epoch > 3  # it was let go, and claimed again
    assert seen == [1]


async def _coroutine(turn: Turn) -> None:
    turn.state.append(turn.attempt)


async def _async_generator(turn: Turn) -> AsyncIterator[Any]:
    turn.state.append(turn.attempt)
    yield turn.working()


def _function(turn: Turn) -> None:
    turn.state.append(turn.attempt)


def _generator(turn: Turn) -> Iterator[Any]:
    turn.state.append(turn.attempt)
    yield turn.working()


@pytest.mark.parametrize("handler", [_coroutine, _async_generator, _function, _generator])
async def test_a_handler_does_not_begin_after_a_long_sleep(
    handler: Any, log: pytest.LogCaptureFixture
) -> None:
    """Also one that has waited for a thread."""
    seen: list[int] = []
    harness = WorkerHarness(handler, threads=1)
    worker = harness.worker()
    worker.states[harness.agent.key] = seen
    task = (await harness.send()).head.id
    held = threading.Event()
    waiting = asyncio.create_task(worker.threads.run(held.wait, 10))
    await asyncio.sleep(0)
    run = worker.begin(await harness.claim(worker), time.monotonic() + 0.2)
    if handler in (_function, _generator):
        for _ in range(5):
            await asyncio.sleep(0)
    time.sleep(0.4)  # the process is stopped
    held.set()
    await waiting
    await run.task
    assert not seen
    await harness.until(lambda: not worker._returned)
    head = await harness.head(task)
    assert (head.holder, head.unread, head.attempt) == ("", True, 0)
    assert not worker.runs
    assert "a claim expired before its turn started" in log.text
    await harness.run(worker)
    assert seen == [1]
    assert (await harness.task(task)).status.state is TaskState.COMPLETED


@pytest.mark.parametrize("grouped", [True, False])
async def test_a_step_does_not_begin_after_a_long_sleep(
    grouped: bool, log: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    async def effect(name: str) -> None:
        done.append(name)

    async def handler(turn: Turn) -> str:
        await turn.step("first", effect, "first")
        if len(harness.workers) == 1:
            time.sleep(0.4)  # the process is stopped
        try:
            async with asyncio.TaskGroup() as group:
                step = turn.step("second", effect, "second")
                await (group.create_task(step) if grouped else step)
        except Exception as error:  # noqa: BLE001 - as authors do
            return f"caught {error}"
        return "done"

    harness = WorkerHarness(handler, skill={"durable": True})
    worker = harness.worker()
    task = (await harness.send()).head.id
    run = worker.begin(await harness.claim(worker), time.monotonic() + 0.2)
    await run.task
    await harness.until(lambda: not worker._returned)
    assert done == ["first"]
    assert "a claim expired before" in log.text
    await harness.run()
    assert done == ["first", "second"]
    found = await harness.task(task)
    assert found.artifacts[0].parts[0].text == "done"


async def test_a_step_that_waits_for_a_thread_does_not_begin_after_a_long_sleep() -> None:
    done: list[int] = []

    def effect() -> None:
        done.append(len(harness.workers))

    async def handler(turn: Turn) -> None:
        await turn.step("step", effect)

    harness = WorkerHarness(handler, skill={"durable": True}, threads=1)
    worker = harness.worker()
    await harness.send()
    held = threading.Event()
    waiting = asyncio.create_task(worker.threads.run(held.wait, 10))
    await asyncio.sleep(0)
    run = worker.begin(await harness.claim(worker), time.monotonic() + 0.2)
    for _ in range(10):
        await asyncio.sleep(0)
    time.sleep(0.4)  # the process is stopped
    held.set()
    await waiting
    await run.task
    await harness.until(lambda: not worker._returned)
    assert not done
    await harness.run()
    assert done == [2]
