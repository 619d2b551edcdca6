"""Durable handlers on every store: they come back to where they were."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Task, TaskState, Turn
from dragoman.admin import open_store
from dragoman.agent import durable
from dragoman.agent.step_results import StepFailed, StepUncertain
from dragoman.client import Client
from dragoman.model.errors import Unavailable
from dragoman.model.events import Private
from dragoman.security.encryption import Encryption, key
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Store
from tests.harness.lives import Lives
from tests.harness.stores import Make
from tests.harness.workers import WorkerHarness

C = TaskState.COMPLETED


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeps of tests are short, and give the task back all the same."""
    monkeypatch.setattr(durable, "SHORT", 0.01)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that died runs again soon."""
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)


def texts(task: Task) -> list[str]:
    return ["".join(part.text or "" for part in artifact.parts) for artifact in task.artifacts]


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("die_at", range(1, 7))
async def test_a_finished_step_is_done_once(store: Store, die_at: int) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        first = await turn.step("first", lives.effect, "first")
        await lives.point()
        yield turn.working(first)
        await lives.point()
        second = await turn.step("second", lives.effect, "second")
        yield turn.artifact(f"{first}, {second}")

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life(die_at)
    await lives.recover()
    await lives.life()
    found = await lives.task(task)
    assert found.status.state is C
    assert texts(found) == ["did first, did second"]
    said = [m.text for m in found.history if m.role.name == "AGENT"]
    assert said == ["did first"]
    # the step under way once more, no other
    again = {2: "first", 6: "second"}.get(die_at)
    assert lives.done == Counter({"first": 1, "second": 1}) + Counter([again] if again else [])


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("die_at", range(1, 8))
async def test_output_is_neither_doubled_nor_lost(store: Store, die_at: int, written: bool) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        life = len(lives.workers)
        for word in (f"one in life {life}, ", "two, "):
            yield word
            await lives.point(written=written)
        await turn.step("step", lives.effect, "step")
        for word in ("three, ", f"four in life {life}"):
            yield word
            await lives.point(written=written)
        await lives.point(written=written)

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life(die_at)
    await lives.recover()
    await lives.life()
    found = await lives.task(task)
    assert found.status.state is C
    # at the fourth point the step has had its effect, but is not in the log
    before = 2 if die_at <= 4 else 1
    assert texts(found) == [f"one in life {before}, two, three, four in life 2"]


async def test_a_question_is_answered_to_another_worker(store: Store) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield "before "
        await turn.step("step", lives.effect, "step")
        answer = await turn.ask_for("Which one?")
        yield f"after {answer.text} to {turn.text}"

    lives = Lives(handler, store)
    task = (await lives.send("me")).head.id
    await lives.life()
    head = await lives.head(task)
    assert (head.state, head.holder) == (TaskState.INPUT_REQUIRED, "")
    assert (await lives.task(task)).status.message.text == "Which one?"  # type: ignore[union-attr]
    await lives.send("that", task)
    await lives.life()
    found = await lives.task(task)
    assert found.status.state is C
    assert texts(found) == ["before after that to me"]
    assert lives.done["step"] == 1
    assert [m.text for m in found.history] == ["me", "Which one?", "that"]


@pytest.mark.parametrize("away", ["private", "read"])
async def test_a_store_that_is_away_while_a_handler_is_resumed(
    store: Store, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        answer = await turn.ask_for("Which one?")
        await turn.step("step", lives.effect, "step")
        await turn.ask_for("Really?")
        yield answer.text

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.send("this", task)
    await lives.life()
    await lives.send("yes", task)
    call, failures = getattr(store, away), 2

    async def absent(*arguments: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise Unavailable("The store is not available")
        return await call(*arguments)

    monkeypatch.setattr(store, away, absent)
    await lives.life()
    monkeypatch.undo()
    assert failures < 0
    assert texts(await lives.task(task)) == ["this"]
    assert lives.done["step"] == 1


async def test_two_answers_that_came_early(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        first = await turn.ask_for("First?")
        second = await turn.ask_for("Second?")
        return f"{first.text} {second.text}"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.send("a", task)
    await lives.send("b", task)
    for _ in range(3):
        await lives.life()
    assert texts(await lives.task(task)) == ["a b"]


async def test_a_sleep_holds_no_worker(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        before = turn.now()
        await turn.sleep(0.2)
        return f"slept {(turn.now() - before).total_seconds() >= 0.2}"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    head = await lives.head(task)
    assert (head.state, head.holder, head.unread) == (TaskState.WORKING, "", False)
    assert not await lives.store.wake(lives.agents, 10)
    assert await lives.store.claim(lives.agents, "w", 30.0, 1) == []
    # a message does not end it, and gets a turn of its own afterwards
    await lives.send("later", task)
    assert await lives.store.claim(lives.agents, "w", 30.0, 1) == []
    assert (await lives.store.census(lives.agents))[lives.agent.key].ready == 0
    await lives.recover()
    await lives.life()
    assert (await lives.head(task)).state is TaskState.WORKING
    assert texts(await lives.task(task)) == ["slept True"]
    await lives.life()
    head = await lives.head(task)
    assert (head.state, head.began, head.unread) == (TaskState.WORKING, head.turn, False)


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("waiting", ["sleep", "receive"])
async def test_a_crash_cuts_no_sleep_short(store: Store, waiting: str) -> None:
    """One that comes after the entry that begins the sleep, and before the claim is released."""

    async def handler(turn: Turn) -> str:
        before = turn.now()
        try:
            await (turn.sleep(0.5) if waiting == "sleep" else turn.receive(timeout=0.5))
        finally:
            await lives.point()
        return f"slept {(turn.now() - before).total_seconds() >= 0.5}"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life(die_at=1)
    assert (await lives.private(task))[-1] in ("sleep", "listening")
    await lives.recover()
    await lives.life()
    assert (await lives.head(task)).state is not C
    await lives.recover()
    await lives.life()
    assert texts(await lives.task(task)) == ["slept True"]


async def test_a_drain_cuts_no_sleep_short(store: Store) -> None:
    async def handler(turn: Turn) -> None:
        await turn.sleep(0.02)
        try:
            await turn.sleep(60)
        finally:
            lives.now.stop("drain")  # type: ignore[union-attr]
            await asyncio.sleep(0)

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.recover()
    await lives.life()
    assert await store.claim(lives.agents, "w", 30.0, 1) == []
    assert not await store.wake(lives.agents, 1)
    head = await lives.head(task)
    assert (head.state, head.holder, head.woken) == (TaskState.WORKING, "", False)


async def test_more_sleepers_than_one_look_wakes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.server.maintenance.WAKE", 2)

    async def handler(turn: Turn) -> None:
        await turn.sleep(0.05)

    lives = Lives(handler, store, poll=60)
    for _ in range(5):
        await lives.send()
        await lives.life()
    await asyncio.sleep(0.1)
    await lives.maintenance.wake_tasks()
    assert (await store.census(lives.agents))[lives.agent.key].ready == 5


async def test_a_message_that_is_waited_for(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        first = await turn.receive(timeout=60)
        second = await turn.receive(timeout=0.05)
        return f"{first.text if first else None} {second}"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    assert (await lives.head(task)).state is TaskState.WORKING
    await lives.send("hello", task)
    await lives.life()
    await lives.recover()
    await lives.life()
    assert texts(await lives.task(task)) == ["hello None"]


async def test_a_canceled_sleep_undoes_its_work(store: Store) -> None:
    async def handler(turn: Turn) -> None:
        await turn.step("buy", lives.effect, "buy")
        try:
            await turn.sleep(days=1)
        except asyncio.CancelledError:
            await turn.step("refund", lives.effect, "refund")
            raise

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.ask_to_cancel(task, undo=True)
    assert not (await lives.head(task)).state.terminal
    await lives.life()
    assert (await lives.head(task)).state is TaskState.CANCELED
    assert lives.done == {"buy": 1, "refund": 1}


@pytest.mark.parametrize("place", ["private", "load", "received"])
async def test_a_cancel_while_it_goes_back_to_where_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """What was done after the place where the replay is must be undone, too."""

    async def handler(turn: Turn) -> None:
        await turn.ask_for("?")
        try:
            await turn.step("buy", lives.effect, "buy")
            await turn.sleep(0.02)
        except asyncio.CancelledError:
            await turn.step("refund", lives.effect, "refund")
            raise

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.send("yes", task)
    await lives.life()
    await lives.recover()
    worker = lives.worker()
    run = worker.begin(await lives.claim(worker))
    there, canceled = asyncio.Event(), asyncio.Event()
    part: Any = run if place == "received" else store
    read = getattr(part, place)

    async def slow(*args: Any) -> Any:
        there.set()
        await canceled.wait()
        return await read(*args)

    monkeypatch.setattr(part, place, slow)
    async with asyncio.timeout(10):
        await there.wait()
        await lives.ask_to_cancel(task)
        run.stop("cancel")
        canceled.set()
        await run.task
    assert (await lives.head(task)).state is TaskState.CANCELED
    assert lives.done == {"buy": 1, "refund": 1}


async def test_a_cancel_without_a_worker_ends_after_its_grace(store: Store) -> None:
    async def handler(turn: Turn) -> None:
        await turn.sleep(days=1)

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.ask_to_cancel(task, grace=0.01, undo=True)
    await asyncio.sleep(0.05)
    await lives.reap()
    assert (await lives.head(task)).state is TaskState.CANCELED


async def test_a_step_that_fails_for_good_fails_again(store: Store) -> None:
    async def broken() -> None:
        lives.done["broken"] += 1
        raise ValueError("no")

    async def handler(turn: Turn) -> str:
        try:
            await turn.step("broken", broken)
        except StepFailed as error:
            caught = str(error)
        await turn.ask_for("?")
        return caught

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.send("x", task)
    await lives.life()
    assert texts(await lives.task(task)) == ["step 'broken': ValueError: no"]
    assert lives.done["broken"] == 1


@pytest.mark.usefixtures("delays")
async def test_a_step_with_once_is_never_done_twice(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        try:
            return await turn.step("pay", lives.effect, "pay", once=True)
        except StepUncertain:
            return "asking the bank"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life(die_at=2)
    await lives.recover()
    await lives.life()
    assert texts(await lives.task(task)) == ["asking the bank"]
    assert lives.done["pay"] == 1


@pytest.mark.usefixtures("delays")
async def test_a_step_that_is_uncertain_is_so_on_replay(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        try:
            await turn.step("pay", lives.effect, "pay", once=True)
        except StepUncertain:
            await turn.step("look", lives.effect, "look")
        answer = await turn.ask_for("Did you pay?")
        return answer.text

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life(die_at=2)
    await lives.recover()
    await lives.life()
    await lives.send("yes", task)
    await lives.life()
    assert texts(await lives.task(task)) == ["yes"]
    assert lives.done == {"pay": 1, "look": 1}


@pytest.mark.usefixtures("delays")
async def test_messages_have_the_same_ids_on_replay(store: Store) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working("before")
        await turn.ask_for("Well?")
        yield turn.working("after")
        await lives.point()

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.send("early", task)  # so that one run asks and goes on
    await lives.life()
    await lives.life(die_at=1)
    await lives.recover()
    await lives.life()
    found = await lives.task(task)
    said = [message for message in found.history if message.role.name == "AGENT"]
    assert [message.text for message in said] == ["before", "Well?", "after"]
    assert len({message.message_id for message in found.history}) == 5


async def test_steps_at_the_same_time(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        async def branch(name: str) -> str:
            first = await turn.step(name, lives.effect, name)
            await asyncio.sleep(0.001 * len(name))
            return first + await turn.step("same", lives.effect, "same")

        found = await asyncio.gather(branch("a"), branch("bb"), branch("ccc"))
        await turn.ask_for("?")
        return ", ".join(found)

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.send("x", task)
    await lives.life()
    assert (await lives.head(task)).state is C
    assert lives.done == {"a": 1, "bb": 1, "ccc": 1, "same": 3}


@pytest.mark.parametrize("wait", ["ask", "receive", "sleep"])
async def test_what_has_begun_ends_before_the_handler_is_suspended(store: Store, wait: str) -> None:
    async def slow() -> None:
        await asyncio.sleep(0.05)
        lives.done["slow"] += 1

    async def handler(turn: Turn) -> None:
        step = asyncio.ensure_future(turn.step("slow", slow))
        await asyncio.sleep(0)
        if wait == "ask":
            await turn.ask_for("?")
        elif wait == "receive":
            await turn.receive()
        else:
            await turn.sleep(days=1)
        await step

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    assert "step" in await lives.private(task)
    await lives.send("x", task)
    if wait != "sleep":
        await lives.life()
        assert (await lives.head(task)).state is C
    assert lives.done["slow"] == 1


async def test_what_is_the_same_on_replay(store: Store) -> None:
    seen: list[tuple[Any, ...]] = []

    async def handler(turn: Turn) -> None:
        key = await turn.step("key", lambda: turn.idempotency_key, returns=str)
        seen.append((turn.now(), turn.uuid(), turn.uuid(), turn.random(), turn.version, key))
        await turn.ask_for("?")

    lives = Lives(handler, store, version="7")
    task = (await lives.send()).head.id
    await lives.life()
    await lives.send("x", task)
    await lives.life()
    assert (await lives.head(task)).state is C
    assert seen[0] == seen[1]
    assert seen[0][1] != seen[0][2]
    assert seen[0][4:] == ("7", f"{task}:1:key:0")
    await lives.send()
    await lives.life()
    assert not {*seen[0][1:4]} & {*seen[2][1:4]}, "each turn has its own"


async def test_a_saved_value_is_there_in_later_turns(store: Store) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        saved = turn.saved or []
        await turn.save([*saved, turn.text])
        yield turn.ask(f"{len(saved)} before")

    harness = WorkerHarness(handler, store=store)
    task = (await harness.send("a")).head.id
    await harness.run()
    await harness.send("b", task)
    await harness.run()
    found = await harness.task(task)
    assert found.status.message.text == "1 before"  # type: ignore[union-attr]
    private = await store.private(harness.scope, task)
    assert [bytes(entry.event.value) for entry in private] == [b'["a"]', b'["a","b"]']  # type: ignore[union-attr]


async def test_code_that_does_not_fit_the_log_is_tried_again_later(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    name = "old"

    async def handler(turn: Turn) -> str:
        await turn.step(name, lives.effect, name)
        await turn.ask_for("?")
        return "done"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    name = "new"
    await lives.send("x", task)
    await lives.life()
    await asyncio.gather(*lives.workers[-1]._returned)
    assert "the log has step 'old' (1) next, but the handler does step 'new' (1)" in caplog.text
    head = await lives.head(task)
    assert (head.state, head.holder, lives.done["new"]) == (TaskState.WORKING, "", 0)


@pytest.mark.parametrize("timeout", [None, 60])
async def test_a_message_whose_turn_was_revoked_waits(store: Store, timeout: float | None) -> None:
    async def handler(turn: Turn) -> str:
        found = await turn.receive(timeout)
        return found.text if found else ""

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.send("hello", task)
    claim = await lives.claim(lives.worker())
    assert await store.revoke(claim.head, None, delay=60)  # as code that does not fit the log
    assert await store.claim(lives.agents, "w", 30.0, 1) == []
    assert (await store.census(lives.agents))[lives.agent.key].ready == 0


async def test_a_message_whose_turn_was_handed_back_is_read_at_once(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        found = await turn.receive(timeout=60)
        return found.text if found else ""

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.send("hello", task)
    claim = await lives.claim(lives.worker())
    assert await store.revoke(claim.head, None, begun=False)
    await lives.life()
    assert texts(await lives.task(task)) == ["hello"]


async def test_private_entries_are_not_shown(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        await turn.step("secret", lives.effect, "secret")
        return "shown"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    assert await lives.private(task) == ["step"]
    record = await store.load(lives.scope, task)
    assert record is not None
    assert b"secret" not in repr(record.task).encode()
    stream = [entry.event for entry in await lives.log(task)]
    assert [type(event).__name__ for event in stream].count("Private") == 1
    assert (await lives.head(task)).private == 1


async def test_private_values_are_encrypted_with_a_key(make: Make, tmp_path: Path) -> None:
    async def handler(turn: Turn) -> str:
        found = await turn.step("secret", lives.effect, "tell nobody")
        await turn.save({"hidden": found})
        await turn.ask_for("?")
        return f"{found}, {turn.saved}"

    try:
        store = await make(encryption=Encryption([key()]))
    except TypeError:
        return  # memory writes nothing down
    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    assert await lives.private(task) == ["step", "saved", "asked"]

    def stored_events() -> list[str]:
        with open_store(store.url) as admin:
            events = [entry.event for entry in admin.read(task)]
            return [str(bytes(event.value)) for event in events if isinstance(event, Private)]

    stored = await asyncio.to_thread(stored_events)
    assert sum("sealed:v1" in text for text in stored) == 3
    assert not any("nobody" in text for text in stored)
    await lives.send("x", task)
    await lives.life()
    assert texts(await lives.task(task)) == ["did tell nobody, {'hidden': 'did tell nobody'}"]


async def test_waiting_for_another_agents_task(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "FIRST_LOOK", 0.05)
    gate = asyncio.Event()
    other = Agent("Other", description="Takes its time.")

    @other.skill
    async def slow(turn: Turn) -> str:
        await gate.wait()
        return f"done: {turn.text}"

    async def handler(turn: Turn) -> str:
        async with turn.connect(app=app) as client:
            begun = await turn.step("begin", begin, client)
            found = await turn.wait(client.task(begun))
        await turn.ask_for("?")
        return "".join(part.text or "" for part in found.artifacts[0].parts)

    async def begin(client: Client) -> str:
        result = await client.send("work", wait=False)
        assert result.task is not None
        return result.task.id

    async with App(other) as app:
        lives = Lives(handler, store)
        task = (await lives.send()).head.id
        await lives.life()
        head = await lives.head(task)
        assert (head.state, head.holder) == (TaskState.WORKING, "")
        gate.set()
        while (await lives.head(task)).state is TaskState.WORKING:
            await lives.recover()
            await lives.life()
        await lives.send("x", task)
        await lives.life()
    assert texts(await lives.task(task)) == ["done: work"]
    assert (await lives.private(task)).count("waiting") == 1


async def test_an_entry_of_a_newer_version_does_not_fail_the_task(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(turn: Turn) -> str:
        await turn.step("step", lives.effect, "step")
        await turn.ask_for("?")
        return "done"

    store = await make()
    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    if isinstance(store, SqliteStore):
        with closing(sqlite3.connect(store.path)) as db, db:
            db.execute("UPDATE entry SET kind = 7 WHERE kind = 6")
    elif isinstance(store, PostgresStore):
        await store._pool.fetch("UPDATE entry SET kind = 7 WHERE kind = 6")
    else:
        return  # memory has no other versions
    await lives.send("x", task)
    await lives.life()
    await asyncio.gather(*lives.workers[-1]._returned)
    assert "is of the unknown kind 7" in caplog.text
    head = await lives.head(task)
    assert (head.state, head.holder) == (TaskState.WORKING, "")
    assert (await lives.task(task)).status.state is TaskState.WORKING
    assert await store.claim(lives.agents, "w", 30.0, 1) == [], "it waits for its time"


async def test_a_cancel_survives_the_restart_of_a_file(tmp_path: Path) -> None:
    async def handler(turn: Turn) -> None:
        await turn.sleep(days=1)

    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.ask_to_cancel(task, grace=10_000.0, undo=True)
    await store.close()
    await store.open()
    await lives.reap()
    assert (await lives.head(task)).state is TaskState.CANCELED
    await store.close()


async def test_parameters_stay_while_a_handler_asks(store: Store) -> None:
    async def handler(turn: Turn, item: str, count: int) -> str:
        answer = await turn.ask_for("Which color?")
        return f"{count} {item} in {answer.parts[0].data['color']}"

    lives = Lives(handler, store)
    task = (await lives.send({"item": "bikes", "count": 2})).head.id
    await lives.life()
    await lives.send({"color": "red", "count": "many"}, task)
    await lives.life()
    assert texts(await lives.task(task)) == ["2 bikes in red"]
