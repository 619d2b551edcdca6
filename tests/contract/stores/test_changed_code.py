"""Durable handlers whose code has changed: their turns wait for code that fits the log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dragoman import Agent, Part, TaskState, Turn
from dragoman.server.replay import POSTPONED
from dragoman.server.worker import Worker
from dragoman.stores.store import Store
from dragoman.telemetry.metrics import Metrics, render
from tests.harness.lives import Lives

C = TaskState.COMPLETED
done: Counter[str] = Counter()


def quote() -> int:
    done["quote"] += 1
    return 40


async def order(turn: Turn, item: str) -> str:
    price = await turn.step("quote", quote)
    answer = await turn.ask_for("Shall I buy?")
    return f"{item} for {price}: {answer.text}"


def renamed() -> Agent:
    async def order(turn: Turn, item: str) -> str:
        return str(await turn.step("price", quote))

    return agent(order, durable=True)


def another_type() -> Agent:
    def in_euros() -> str:
        done["quote"] += 1
        return "40 EUR"

    async def order(turn: Turn, item: str) -> str:
        return await turn.step("quote", in_euros)

    return agent(order, durable=True)


def another_parameter() -> Agent:
    async def order(turn: Turn, item: str, count: int) -> str:
        return str(await turn.step("quote", quote))

    return agent(order, durable=True)


def another_question() -> Agent:
    async def order(turn: Turn, item: str, count: int) -> str:
        return str(await turn.step("quote", quote))

    return agent(order, durable=True, ask=True)


def not_durable() -> Agent:
    async def order(turn: Turn, item: str) -> str:
        return f"{item} for {quote()}"

    return agent(order)


def without_the_skill() -> Agent:
    async def other(turn: Turn) -> str:
        return f"for {quote()}"

    return agent(other)


def agent(handler: Any, **options: Any) -> Agent:
    made = Agent("Test", description="For tests.")
    made.skill(**options)(handler)
    return made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that was postponed is tried again soon."""
    monkeypatch.setattr("dragoman.server.worker.LATER", 0.01)
    done.clear()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (renamed, "the log has step 'quote' (1) next, but the handler does step 'price' (1)"),
        (another_type, "step 'quote': the result is not of the type str: Expected `str`"),
        (another_parameter, "its parameters do not fit: message.parts[0].data.count: is required"),
        (another_question, "its parameters do not fit: nothing was given for count"),
        (not_durable, "a durable handler began this turn, and the handler of the skill 'order' is"),
        (without_the_skill, "began this turn, and the handler of the skill 'order' is none"),
    ],
)
async def test_a_corrected_deployment_goes_on(
    store: Store, caplog: pytest.LogCaptureFixture, change: Callable[[], Agent], reason: str
) -> None:
    lives = Lives(order, store)
    key, good = lives.agent.key, lives.agent
    task = (await lives.send([Part(data={"item": "a lamp"})])).head.id
    await lives.life()
    await lives.send("yes", task)
    for _ in range(3):
        lives.agents[key] = change()
        await lives.life()
        await asyncio.gather(*lives.workers[-1]._returned)
        head = await lives.head(task)
        assert (head.state, head.holder, done["quote"]) == (TaskState.WORKING, "", 1)
        await lives.recover()
    assert caplog.text.count(reason) == 3
    # said once, however often it was tried
    assert (await lives.private(task)).count(POSTPONED) == 1
    lives.agents[key] = good
    await lives.life()
    found = await lives.task(task)
    assert (found.status.state, done["quote"]) == (C, 1)
    assert found.artifacts[-1].parts[0].text == "a lamp for 40: yes"


async def test_a_turn_keeps_the_version_with_which_it_began(store: Store) -> None:
    async def order(turn: Turn) -> str:
        first = turn.version
        await turn.ask_for("?")
        return f"{first}, {turn.version}"

    lives = Lives(order, store, version="1")
    task = (await lives.send()).head.id
    await lives.life()
    await lives.send("yes", task)
    lives.agents[lives.agent.key] = agent(order, durable=True, version="2")
    await lives.life()
    assert (await lives.task(task)).artifacts[-1].parts[0].text == "1, 1"


async def test_metrics_count_steps_and_postponed_turns(store: Store) -> None:
    class Counting(Lives):
        def worker(self) -> Worker:
            made = Worker(self.agents, self.store, self.bell, self.settings, metrics=metrics)
            self.workers.append(made)
            return made

    metrics = Metrics()
    lives = Counting(order, store)
    task = (await lives.send([Part(data={"item": "a lamp"})])).head.id
    await lives.life()
    lives.agents[lives.agent.key] = renamed()
    await lives.send("yes", task)
    for _ in range(2):
        await lives.life()
        await asyncio.gather(*lives.workers[-1]._returned)
        await lives.recover()
    lines = render([metrics.postponed, metrics.steps]).decode().splitlines()
    assert 'dragoman_turns_postponed_total{agent="test"} 2' in lines
    assert 'dragoman_steps_total{agent="test",result="step"} 1' in lines


async def test_another_reason_is_said_too(store: Store) -> None:
    lives = Lives(order, store)
    key, good = lives.agent.key, lives.agent
    task = (await lives.send([Part(data={"item": "a lamp"})])).head.id
    await lives.life()
    await lives.send("yes", task)
    for change in (renamed, renamed, not_durable, renamed):
        lives.agents[key] = change()
        await lives.life()
        await asyncio.gather(*lives.workers[-1]._returned)
        await lives.recover()
    assert (await lives.private(task)).count(POSTPONED) == 3
    lives.agents[key] = good
    await lives.life()
    assert (await lives.task(task)).status.state is C


async def test_a_cancel_ends_a_turn_that_no_code_fits(store: Store) -> None:
    lives = Lives(order, store)
    task = (await lives.send([Part(data={"item": "a lamp"})])).head.id
    await lives.life()
    lives.agents[lives.agent.key] = without_the_skill()
    await lives.ask_to_cancel(task, undo=True)
    await lives.life()
    await asyncio.gather(*lives.workers[-1]._returned)
    assert (await lives.head(task)).state is TaskState.CANCELED
