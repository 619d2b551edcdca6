"""Durable handlers on every store: attempts, time limits, and what a step cannot have."""

from __future__ import annotations

import asyncio
import math
import time
from itertools import pairwise
from typing import Any

import pytest

from dragoman import Agent, TaskState, Turn
from dragoman.agent import durable
from dragoman.agent.step_results import StepFailed
from dragoman.model import clock
from dragoman.model.lineage import LINEAGE
from dragoman.server.maintenance import ATTEMPTS
from dragoman.stores.store import Store
from tests.harness.lives import Lives
from tests.harness.stores import Make

C = TaskState.COMPLETED


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeps of tests are short, and give the task back all the same."""
    monkeypatch.setattr(durable, "SHORT", 0.01)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that died runs again soon."""
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)


async def test_the_whole_has_a_deadline(store: Store) -> None:
    async def handler(turn: Turn) -> None:
        await turn.sleep(days=1)

    lives = Lives(handler, store, timeout=0.01)
    task = (await lives.send()).head.id
    await lives.life()
    await asyncio.sleep(0.05)
    await lives.reap()
    found = await lives.task(task)
    assert found.status.state is TaskState.FAILED
    assert "did not finish" in found.status.message.text  # type: ignore[union-attr]


async def test_a_stretch_is_no_longer_than_the_whole(store: Store) -> None:
    async def handler(turn: Turn) -> None:
        await asyncio.sleep(60)

    lives = Lives(handler, store, timeout=0.05)
    task = (await lives.send()).head.id
    async with lives.working():
        found = await lives.ended(task)
    assert found.status.state is TaskState.FAILED
    assert "within 0.05 seconds" in found.status.message.text  # type: ignore[union-attr]


async def test_the_deadline_of_the_whole_is_told_to_others(store: Store) -> None:
    told: list[float] = []

    def tell(turn: Turn) -> None:
        delegation = turn.connect("http://127.0.0.1:9")._sends.delegation
        assert delegation is not None
        told.append(clock.seconds(delegation.metadata()[LINEAGE]["deadline"]) - time.time())

    async def handler(turn: Turn) -> None:
        tell(turn)
        await turn.sleep(0.02)
        tell(turn)

    lives = Lives(handler, store, timeout=86400.0)
    assert lives.settings.turn_timeout < 7200
    task = (await lives.send()).head.id
    await lives.life()
    await lives.recover()
    await lives.life()
    assert (await lives.task(task)).status.state is C
    assert all(86000 < seconds < 86401 for seconds in told) and len(told) == 3
    assert abs(told[2] - told[1]) < 60


async def test_what_no_step_can_have_is_refused(store: Store) -> None:
    """The log must stay readable, whatever an author gives."""
    refused: list[str] = []

    async def fails(turn: Turn, *args: Any, **options: Any) -> None:
        try:
            await turn.step(*args, **options)
        except (TypeError, ValueError, StepFailed) as error:
            refused.append(str(error))

    def words() -> int:
        lives.done["words"] += 1
        return "many"  # type: ignore[return-value]

    async def handler(turn: Turn) -> str:
        for name in (5, None, b"name", "\ud800"):
            await fails(turn, name, words)
        await fails(turn, "a", words, retries=-1)
        for timeout in (0, -1.0, math.nan):
            await fails(turn, "a", words, timeout=timeout)
        for seconds in (math.nan, math.inf):
            with pytest.raises(ValueError, match="finite"):
                await turn.sleep(seconds)
            with pytest.raises(ValueError, match="finite"):
                await turn.receive(seconds)
        await fails(turn, "typed", words, retries=3)
        odd = "\x00\n" + "n" * 5000
        assert await turn.step(odd, lives.effect, "odd") == "did odd"
        await turn.sleep(0.02)
        return "done"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    first, refused[:] = list(refused), []
    await lives.recover()
    await lives.life()
    assert (await lives.task(task)).status.state is C
    assert refused == first and len(first) == 9
    assert "the result is not of the type int: Expected `int`, got `str`" in first[-1]
    assert lives.done == {"words": 1, "odd": 1}


async def test_each_call_of_a_step_has_a_time_limit_and_pauses_grow(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(durable, "LONGEST_PAUSE", 0.15)
    begun: list[float] = []

    async def hangs() -> None:
        begun.append(time.monotonic())
        await asyncio.Event().wait()

    async def handler(turn: Turn) -> str:
        try:
            await turn.step("hangs", hangs, retries=3, timeout=0.02)
        except StepFailed as error:
            return str(error)
        raise AssertionError

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    async with asyncio.timeout(10):
        await lives.life()
    found = await lives.task(task)
    assert found.artifacts[0].parts[0].text == "step 'hangs': TimeoutError: "
    pauses = [after - before for before, after in pairwise(begun)]
    assert len(begun) == 4
    for pause, least in zip(pauses, (0.07, 0.12, 0.17), strict=True):
        assert pause >= least


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf])
def test_a_time_limit_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        Agent("Test", description="For tests.").skill(durable=True, timeout=timeout)(_nothing)


async def _nothing(turn: Turn) -> None: ...


@pytest.mark.usefixtures("delays")
async def test_a_handler_that_makes_no_progress_fails_in_the_end(store: Store) -> None:
    async def handler(turn: Turn) -> None:
        await turn.step("step", lives.effect, "step")

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    for _ in range(ATTEMPTS - 1):
        await lives.life(die_at=1)
        await lives.recover()
    await lives.life(die_at=1)
    await lives.reap()
    found = await lives.task(task)
    assert found.status.state is TaskState.FAILED
    assert f"{ATTEMPTS} times" in found.status.message.text  # type: ignore[union-attr]


@pytest.mark.usefixtures("delays")
async def test_a_finished_step_gives_new_attempts(store: Store) -> None:
    async def handler(turn: Turn) -> str:
        await turn.step("one", lives.effect, "one")
        return await turn.step("two", lives.effect, "two")

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    # before the first step, and with its entry (the fourth run) before the second one
    for die_at in (1, 1, 1, 3, 1, 1, 1):
        await lives.life(die_at)
        await lives.recover()
    await lives.life()
    assert (await lives.task(task)).status.state is C
    assert lives.done == {"one": 1, "two": 1}


async def test_waking_is_no_attempt(store: Store) -> None:
    attempts: list[int] = []

    async def handler(turn: Turn) -> None:
        attempts.append(turn.attempt)
        for _ in range(ATTEMPTS + 1):
            await turn.sleep(0.02)

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    for _ in range(ATTEMPTS + 1):
        await lives.life()
        await lives.recover()
    await lives.life()
    assert (await lives.task(task)).status.state is C
    assert attempts == [1] * (ATTEMPTS + 2)


async def test_a_turn_has_only_so_many_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(durable, "MOST", 5)

    async def handler(turn: Turn) -> None:
        for number in range(6):
            await turn.step(f"{number}", lives.effect, f"{number}")

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    assert (await lives.task(task)).status.state is TaskState.FAILED
    assert "more than 5 steps; do several things in one step, or hand" in caplog.text
    assert sum(lives.done.values()) == 5


@pytest.mark.parametrize("durable", [False, True])
async def test_what_is_saved_is_durable_at_once(store: Store, durable: bool) -> None:
    kinds: list[list[str]] = []

    async def handler(turn: Turn) -> None:
        await turn.save({"number": 1})
        kinds.append(await lives.private(turn.task.id))

    lives = Lives(handler, store, durable=durable)
    await lives.send()
    await lives.life()
    assert kinds == [["saved"]]


async def test_private_entries_count_in_the_size_of_a_task(make: Make) -> None:
    async def handler(turn: Turn) -> None:
        for number in range(20):
            await turn.save("x" * 20_000)
            saved.append(number)

    saved: list[int] = []
    try:
        store = await make(max_task_bytes=100_000)
    except TypeError:
        return  # in memory, tasks are limited in number
    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    found = await lives.task(task)
    assert found.status.state is TaskState.FAILED
    assert "larger than 100000 bytes" in found.status.message.text  # type: ignore[union-attr]
    assert len(saved) == 4
