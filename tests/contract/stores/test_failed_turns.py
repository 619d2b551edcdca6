"""What a turn that failed, was lost or runs again leaves in the log, on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import Turn, UserError
from dragoman.admin import FailedTurn, failed_turn, open_store
from dragoman.model.events import Entry, Private
from dragoman.model.types import TaskState
from dragoman.security.encryption import Encryption, key
from dragoman.stores.store import Store
from dragoman.telemetry.logs import secret
from tests.harness.stores import Make
from tests.harness.workers import WorkerHarness


async def entries(store: Store, task: str) -> list[Entry]:
    """The log, as an operator reads it."""

    def read() -> list[Entry]:
        assert store.admin is not None
        with store.admin() as admin:
            return list(admin.read(task))

    if store.url == "memory:":
        await store.open()  # again, which changes nothing
    return await asyncio.to_thread(read)


async def failures(store: Store, task: str) -> list[FailedTurn]:
    """The turns that went wrong."""
    found = (failed_turn(entry.event) for entry in await entries(store, task))
    return [each for each in found if each is not None]


async def test_an_error_of_the_handler(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        yield turn.working("so far")
        raise RuntimeError("token=tok-1234567 and hunter2-secret")

    secret("hunter2-secret")
    harness = WorkerHarness(handler, store=store)
    task = (await harness.send()).head.id
    run = await harness.run()
    (found,) = await failures(store, task)
    assert (found.turn, found.attempt, found.worker) == (1, 1, run.worker.id)
    assert (found.reason, found.text) == ("error", "the handler raised RuntimeError")
    shown = await harness.task(task)
    assert shown.status.message is not None
    assert found.correlation in shown.status.message.parts[0].text
    assert "in handler" in found.traceback and "RuntimeError: token=***" in found.traceback
    assert "hunter2" not in found.traceback and "1234567" not in found.traceback
    assert "traceback" not in repr(shown).lower()  # clients never see it
    log = await entries(store, task)
    assert [type(entry.event) for entry in log].count(Private) == 1
    assert type(log[-2].event) is Private and log[-2].turn == 0


class Long(Exception):
    def __str__(self) -> str:
        return "x" * 100_000 + "the end\ud800"


@pytest.mark.parametrize(
    ("error", "reason", "shown"),
    [
        (UserError("No seats"), "user_error", "UserError: No seats"),
        (Long(), "error", "the end?"),
        (ValueError("password='pass-word-1'"), "error", "***"),
    ],
)
async def test_other_errors(error: Exception, reason: str, shown: str) -> None:
    def handler(turn: Turn) -> str:
        raise error

    harness = WorkerHarness(handler)
    task = (await harness.send()).head.id
    await harness.run()
    (found,) = await failures(harness.store, task)
    assert found.reason == reason and shown in found.traceback
    assert len(found.traceback) < 17_000 and "pass-word-1" not in found.traceback
    assert (await harness.head(task)).state is TaskState.FAILED


async def test_output_that_is_wrong() -> None:
    async def handler(turn: Turn) -> Any:
        yield turn.working()
        yield object()

    harness = WorkerHarness(handler)
    task = (await harness.send()).head.id
    await harness.run()
    (found,) = await failures(harness.store, task)
    assert found.reason == "invalid" and "object" in found.text


async def test_a_lost_turn_runs_again(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        return f"attempt {turn.attempt}"

    harness = WorkerHarness(handler, store=store, retries=1)
    claim = await harness.orphan()
    await asyncio.sleep(0.01)
    for _ in range(5):
        await harness.maintenance.reap()
    (found,) = await failures(store, claim.head.id)
    assert (found.reason, found.attempt, found.worker) == ("lost", 1, claim.head.holder)
    assert "lease expired" in found.text and not found.traceback
    await harness.run()
    task = await harness.task(claim.head.id)
    assert task.status.state is TaskState.COMPLETED
    assert task.artifacts[0].parts[0].text == "attempt 2"
    assert len(await failures(store, claim.head.id)) == 1


async def test_a_turn_past_its_deadline() -> None:
    async def handler(turn: Turn) -> None:
        await asyncio.Event().wait()

    harness = WorkerHarness(handler, turn_timeout=0.05)
    task = (await harness.send()).head.id
    worker = harness.worker()
    run = worker.begin(await harness.claim(worker))
    await asyncio.sleep(0.06)
    worker._check_deadlines()
    await run.task
    (found,) = await failures(harness.store, task)
    assert found.reason == "deadline" and "await asyncio.Event().wait()" in found.traceback


async def test_a_server_that_stops() -> None:
    async def handler(turn: Turn) -> None:
        await asyncio.Event().wait()

    harness = WorkerHarness(handler, retries=1)
    task = (await harness.send()).head.id
    worker = harness.worker()
    run = worker.begin(await harness.claim(worker))
    await asyncio.sleep(0)
    await worker.drain(0)
    await asyncio.wait([run.task])
    (found,) = await failures(harness.store, task)
    assert (found.reason, found.attempt) == ("shutdown", 1)
    assert (await harness.head(task)).unread  # it runs again


async def test_a_turn_that_does_not_fail_leaves_nothing(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        return "ok"

    harness = WorkerHarness(handler, store=store)
    task = (await harness.send()).head.id
    await harness.run()
    assert (await harness.head(task)).private == 0
    assert await failures(store, task) == []


async def test_it_is_encrypted(make: Make) -> None:
    async def handler(turn: Turn) -> str:
        raise RuntimeError("nobody reads this")

    encryption_key = key()
    store = await make()
    if store.url == "memory:":
        pytest.skip("memory is not encrypted")
    store = await make(encryption=Encryption([encryption_key]))
    harness = WorkerHarness(handler, store=store)
    lost = await harness.orphan()
    await asyncio.sleep(0.01)
    for _ in range(5):
        await harness.maintenance.reap()
    task = (await harness.send()).head.id
    await harness.run()

    def read(*keys: str) -> str:
        with open_store(store.url, encryption_keys=keys) as admin:
            log = [*admin.read(task), *admin.read(lost.head.id)]
            found = [entry.event for entry in log if isinstance(entry.event, Private)]
            return repr([(event.sealed, bytes(event.value)) for event in found])

    sealed = await asyncio.to_thread(read)
    assert "nobody reads" not in sealed and "lease" not in sealed and sealed.count("sealed:v1") == 2
    opened = await asyncio.to_thread(read, encryption_key)
    assert "nobody reads" in opened and "lease expired" in opened
