"""Durable handlers with a bell that never rings: a lost ring costs time, nothing else."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, TaskState, Turn
from dragoman.agent import durable
from dragoman.client import Client
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.store import Store
from dragoman.testing import SilentBell
from tests.harness.stores import BACKENDS, database

agent = Agent("Shop", description="Sells things.")
done: Counter[str] = Counter()


def effect(name: str) -> str:
    done[name] += 1
    return f"did {name}"


@agent.handler(durable=True)
async def order(turn: Turn) -> AsyncIterator[Any]:
    yield turn.working(await turn.step("quote", effect, "quote"))
    try:
        answer = await turn.ask_for("Shall I buy?")
        await turn.sleep(0.1)
        more = await turn.receive(timeout=None if answer.text == "wait" else 0.1)
    except asyncio.CancelledError:
        await turn.step("undo", effect, "undo")
        raise
    said = [one.text for one in await turn.conversation()]
    yield turn.artifact(f"{answer.text}, {more.text if more else None}, {said}")


PAYMENT = {"pay": 5}


@agent.skill(durable=True)
async def pay(turn: Turn) -> str:
    await turn.ask_for(turn.require_auth("May I?", operation=PAYMENT, expires=1.0))
    granted = await turn.granted(PAYMENT)
    await turn.sleep(1.2)  # until the approval has expired
    return f"{granted}, {await turn.granted(PAYMENT)}"


@pytest.fixture(params=BACKENDS)
async def clients(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Client]]:
    """One for each replica; only PostgreSQL has two."""
    monkeypatch.setattr(durable, "SHORT", 0.01)
    done.clear()
    backend: str = request.param
    url = database() if backend == "postgres" else ""

    def new() -> Store:
        return PostgresStore(url) if url else BACKENDS[backend](tmp_path)

    async with asyncio.timeout(30), AsyncExitStack() as stack:
        found = []
        for _ in range(2 if url else 1):
            app = App(agent, store=new(), bell=SilentBell(), poll=0.02)
            await stack.enter_async_context(app)
            found.append(await stack.enter_async_context(Client.connect(app=app)))
        yield found


async def test_it_goes_on_wherever_the_messages_come(clients: list[Client]) -> None:
    first, last = clients[0], clients[-1]
    for number, more in enumerate(("None", "here"), start=1):
        asked = await first.send("a lamp", context="c")
        assert asked.task is not None and asked.text == "Shall I buy?"
        answer = "yes" if more == "None" else "wait"
        going = asyncio.create_task(last.send(answer, task=asked.task.id))
        if answer == "wait":
            async with asyncio.timeout(10):
                while len((await first.task(asked.task.id).get()).history) < 3:
                    await asyncio.sleep(0.02)
            await first.send(more, task=asked.task.id, wait=False)
        result = await going
        assert result.text.startswith(f"{answer}, {more}, ")
        assert done == {"quote": number}
    assert "a lamp" in result.text and "yes, None" in result.text  # the conversation


async def test_a_cancel_undoes_the_work(clients: list[Client]) -> None:
    asked = await clients[0].send("a lamp")
    assert asked.task is not None
    await clients[-1].send("wait", task=asked.task.id, wait=False)
    task = await clients[0].task(asked.task.id).cancel()
    assert task.status.state is TaskState.CANCELED
    assert done == {"quote": 1, "undo": 1}


async def test_an_approval_stays_one(clients: list[Client]) -> None:
    """It is used once, and what it allowed is allowed when the handler runs again."""
    asked = await clients[0].send("pay", skill="pay")
    assert asked.task is not None and asked.grant is not None
    result = await clients[-1].task(asked.task.id).approve(asked.grant)
    assert result.text == "True, False"
