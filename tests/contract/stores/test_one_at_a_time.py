"""Turns of a context that run one at a time, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Message, TaskState, Turn
from dragoman.agent import durable
from dragoman.client import Client
from dragoman.model import clock
from dragoman.server import context_order
from dragoman.testing import SilentBell
from tests.harness.stores import BACKENDS, database


class Room:
    """An agent whose turns of a context must not meet, and who was in it."""

    def __init__(self, one_at_a_time: str = "context", **skill: Any) -> None:
        self.inside: dict[str, int] = {}
        self.most = 0
        self.order: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.agent = Agent("Room", description="Lets one in.")

        @self.agent.skill(one_at_a_time=one_at_a_time, **skill)  # type: ignore[arg-type]
        async def enter(turn: Turn) -> str:
            here = self.inside[turn.context_id] = self.inside.get(turn.context_id, 0) + 1
            self.most = max(self.most, here)
            self.order.append(turn.text)
            gate = self.gates.get(turn.text)
            await (gate.wait() if gate else asyncio.sleep(0.01))
            self.inside[turn.context_id] -= 1
            if turn.text == "fail":
                raise ValueError("on purpose")
            return turn.text

        @self.agent.handler
        async def other(turn: Turn) -> str:
            return f"other {turn.text}"

    async def begun(self, text: str) -> None:
        """Wait until a turn is inside."""
        async with asyncio.timeout(10):
            while text not in self.order:
                await asyncio.sleep(0.005)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def room(backend: str, tmp_path: Path) -> AsyncIterator[tuple[Room, Client]]:
    room = Room()
    app = App(room.agent, store=BACKENDS[backend](tmp_path), poll=0.05)
    async with asyncio.timeout(30), app, Client.connect(app=app) as client:
        yield room, client


async def test_turns_of_a_context_run_in_order(room: tuple[Room, Client]) -> None:
    agent, client = room
    texts = [str(number) for number in range(12)]
    sends = []
    for text in texts:
        await client.send(text, context="c", skill="enter", wait=False)
        sends.append(text)
    async with asyncio.timeout(20):
        while len(agent.order) < len(texts):
            await asyncio.sleep(0.01)
    assert agent.order == texts
    assert agent.most == 1


async def test_other_contexts_and_skills_do_not_wait(room: tuple[Room, Client]) -> None:
    agent, client = room
    gate = agent.gates["slow"] = asyncio.Event()
    slow = asyncio.create_task(client.send("slow", context="c", skill="enter"))
    await agent.begun("slow")
    waiting = asyncio.create_task(client.send("waits", context="c", skill="enter"))
    elsewhere = await client.send("elsewhere", context="d", skill="enter")
    assert elsewhere.text == "elsewhere"
    assert (await client.send("x", context="c")).text == "other x"
    assert "waits" not in agent.order
    gate.set()
    assert (await waiting).state is TaskState.COMPLETED
    assert (await slow).state is TaskState.COMPLETED


async def test_many_at_the_same_time_never_meet(room: tuple[Room, Client]) -> None:
    agent, client = room
    texts = [str(number) for number in range(10)]
    found = await asyncio.gather(*(client.send(text, context="c", skill="enter") for text in texts))
    assert sorted(result.text for result in found) == texts
    assert agent.most == 1


async def test_an_earlier_one_that_came_late_waits_for_a_later_one(
    room: tuple[Room, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does whose replica was slow to write it, or has a clock that is behind."""
    agent, client = room
    agent.gates["later"] = asyncio.Event()
    later = asyncio.create_task(client.send("later", context="c", skill="enter"))
    await agent.begun("later")
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: "2026-01-01T00:00:00.000Z")
        patch.setattr(context_order, "LOOKS", 2)
        late = await client.send("late", context="c", skill="enter", wait=False)
        await asyncio.sleep(0.2)
        assert "late" not in agent.order
    agent.gates["later"].set()
    assert (await later).state is TaskState.COMPLETED
    assert late.task is not None
    assert (await client.task(late.task.id).wait()).status.state is TaskState.COMPLETED
    assert agent.most == 1


async def test_the_next_one_runs_after_a_failure_and_a_cancel(room: tuple[Room, Client]) -> None:
    agent, client = room
    agent.gates["held"] = asyncio.Event()
    failing = asyncio.create_task(client.send("fail", context="c", skill="enter"))
    await agent.begun("fail")
    held = await client.send("held", context="c", skill="enter", wait=False)
    await agent.begun("held")
    waiting = await client.send("never", context="c", skill="enter", wait=False)
    last = asyncio.create_task(client.send("last", context="c", skill="enter"))
    assert (await failing).state is TaskState.FAILED
    assert waiting.task is not None
    assert held.task is not None
    canceled = await client.task(waiting.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED
    await client.task(held.task.id).cancel()
    assert (await last).text == "last"
    assert "never" not in agent.order


async def test_a_task_that_asks_lets_the_next_one_run(backend: str, tmp_path: Path) -> None:
    agent = Agent("Asks", description="Asks.")

    @agent.skill(one_at_a_time="context", durable=True)
    async def ask(turn: Turn) -> str:
        if turn.text == "question":
            return f"answer: {(await turn.ask_for('What?')).text}"
        return turn.text

    app = App(agent, store=BACKENDS[backend](tmp_path), poll=0.05)
    async with asyncio.timeout(30), app, Client.connect(app=app) as client:
        first = await client.send("question", context="c")
        assert first.state is TaskState.INPUT_REQUIRED
        assert (await client.send("between", context="c")).text == "between"
        assert first.task is not None
        assert (await client.send("this", task=first.task.id)).text == "answer: this"


async def test_a_sleep_keeps_its_place(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "SHORT", 0.01)  # the claim is given back
    order: list[str] = []
    agent = Agent("Sleeps", description="Sleeps.")

    @agent.skill(one_at_a_time="context", durable=True)
    async def sleep(turn: Turn) -> str:
        if turn.text == "sleeper":
            await turn.sleep(0.3)
        order.append(turn.text)
        return turn.text

    app = App(agent, store=BACKENDS[backend](tmp_path), poll=0.05)
    async with asyncio.timeout(60), app, Client.connect(app=app) as client:
        await client.send("sleeper", context="c", wait=False)
        await client.send("next", context="c")
    assert order == ["sleeper", "next"]


async def test_direct_replies_run_one_at_a_time_too(backend: str, tmp_path: Path) -> None:
    inside = most = 0
    agent = Agent("Replies", description="Replies.")

    @agent.skill(one_at_a_time="context")
    async def answer(turn: Turn) -> Message:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return turn.message

    app = App(agent, store=BACKENDS[backend](tmp_path), poll=0.05)
    async with asyncio.timeout(30), app, Client.connect(app=app) as client:
        found = await asyncio.gather(*(client.send(str(n), context="c") for n in range(5)))
    assert len(found) == 5
    assert most == 1


async def test_the_order_with_a_silent_bell(backend: str, tmp_path: Path) -> None:
    room = Room()
    app = App(room.agent, store=BACKENDS[backend](tmp_path), bell=SilentBell(), poll=0.02)
    async with asyncio.timeout(30), app, Client.connect(app=app) as client:
        texts = [str(number) for number in range(4)]
        for text in texts:
            await client.send(text, context="c", skill="enter", wait=False)
        while len(room.order) < len(texts):
            await asyncio.sleep(0.02)
    assert room.order == texts
    assert room.most == 1


async def test_replicas_share_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    room, url = Room(), database()
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        clients = []
        for _ in range(3):
            app = await stack.enter_async_context(App(room.agent, store=url, poll=0.05))
            clients.append(await stack.enter_async_context(Client.connect(app=app)))
        for number in range(6):
            client = clients[number % 3]
            await client.send(f"first {number}", context="c", skill="enter", wait=False)
        await asyncio.gather(
            *(
                clients[number % 3].send(f"then {number}", context="c", skill="enter")
                for number in range(9)
            )
        )
    assert room.most == 1
    assert len(room.order) == 15
    assert room.order[:6] == [f"first {number}" for number in range(6)]


async def test_the_turn_after_a_crash_waits_no_longer_than_a_delay(
    room: tuple[Room, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody wakes it if the process that should have done so is gone."""
    monkeypatch.setattr(context_order, "FIRST_DELAY", 0.2)

    async def nobody(*_: Any) -> None:
        return None

    monkeypatch.setattr(context_order, "wake_next", nobody)
    agent, client = room
    agent.gates["slow"] = asyncio.Event()
    slow = asyncio.create_task(client.send("slow", context="c", skill="enter"))
    await agent.begun("slow")
    waiting = asyncio.create_task(client.send("waits", context="c", skill="enter"))
    await asyncio.sleep(0.05)
    agent.gates["slow"].set()
    assert (await waiting).text == "waits"
    await slow


def test_another_word_is_refused() -> None:
    with pytest.raises(TypeError, match="one_at_a_time must be 'context', not 'task'"):
        Room("task")
