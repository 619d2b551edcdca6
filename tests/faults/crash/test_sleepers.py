"""Sleeping handlers: across restarts, clocks that are set, and replicas; and very many of them."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from dragoman import Agent, App, Turn
from dragoman.agent import durable
from dragoman.model.caller import Call, Caller, Scope
from dragoman.model.types import SendMessageConfiguration, SendMessageRequest
from dragoman.testing import message
from tests.harness.services import Postgres

CALL = Call(Caller())
SLEEPERS = 20
POLL = 0.05
NIGHT = 600.0
"""So long that it does not end by itself in a test."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sleeps give the task back, too."""
    monkeypatch.setattr(durable, "SHORT", 0.01)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that outlives an application."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tasks.db'}"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.create()


class Dormitory:
    """An agent whose tasks sleep, and its replicas."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.runs: Counter[str] = Counter()
        """How often the handler of each task was run."""
        self.before: Counter[str] = Counter()
        self.after: Counter[str] = Counter()
        self.agent = Agent("Sleeper", description="Sleeps.")

        async def count(counter: Counter[str], task: str) -> None:
            counter[task] += 1

        @self.agent.skill(durable=True)
        async def sleep(turn: Turn) -> str:
            self.runs[turn.task.id] += 1
            await turn.step("before", count, self.before, turn.task.id)
            await turn.sleep(float(turn.text))
            await turn.step("after", count, self.after, turn.task.id)
            return "slept"

        self.scope = Scope(self.agent.key)

    @asynccontextmanager
    async def replica(self) -> AsyncIterator[App]:
        """One more replica."""
        async with asyncio.timeout(30), App(self.agent, store=self.url, poll=POLL) as app:
            yield app

    async def begin(self, app: App, seconds: float, number: int = 1) -> list[str]:
        """Send tasks, and wait until they sleep."""
        service = app.endpoints[self.agent.key].service
        tasks = []
        for _ in range(number):
            request = SendMessageRequest(
                message=message(str(seconds)),
                configuration=SendMessageConfiguration(return_immediately=True),
            )
            answer = (await service.send(request, CALL)).task
            assert answer is not None
            tasks.append(answer.id)
        for task in tasks:
            while not await self.sleeps(app, task):
                await asyncio.sleep(0.01)
        return tasks

    async def sleeps(self, app: App, task: str) -> bool:
        """Whether a task has begun and has no worker."""
        head = await app.store.head(self.scope, task)
        assert head is not None
        return bool(head.began) and not head.holder and not head.woken and not head.state.terminal

    async def ended(self, app: App, tasks: list[str]) -> None:
        """Wait until they have completed."""
        reader = app.endpoints[self.agent.key].service.reader
        for task in tasks:
            head = await reader.until(lambda head: head.state.terminal, self.scope, task, 20)
            assert head is not None
            assert head.state.name == "COMPLETED"

    def once(self, tasks: list[str]) -> None:
        """Every step took place once, and every task was woken once."""
        assert self.before == self.after == Counter(tasks)
        assert self.runs == Counter([*tasks, *tasks])


async def test_sleepers_wake_in_another_process(url: str, postgres: Postgres) -> None:
    dormitory = Dormitory(url)
    async with dormitory.replica() as app:
        tasks = await dormitory.begin(app, NIGHT, SLEEPERS)
    morning(url, postgres)
    async with dormitory.replica() as app:
        await dormitory.ended(app, tasks)
    dormitory.once(tasks)


async def test_each_sleeper_wakes_at_one_replica(postgres: Postgres) -> None:
    url = postgres.create()
    dormitory = Dormitory(url)
    async with dormitory.replica() as one, dormitory.replica() as other:
        tasks = await dormitory.begin(one, NIGHT, 2 * SLEEPERS)
        morning(url, postgres)
        await dormitory.ended(other, tasks)
        await asyncio.sleep(2 * POLL)  # both look again
    dormitory.once(tasks)


async def test_a_clock_that_is_set_back_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dormitory = Dormitory(f"sqlite:///{tmp_path / 'tasks.db'}")
    real, off = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + off)
    async with dormitory.replica() as app:
        tasks = await dormitory.begin(app, NIGHT)
        off = -NIGHT
        await asyncio.sleep(3 * POLL)
        assert await dormitory.sleeps(app, tasks[0])
        off = 1.5 * NIGHT
        await dormitory.ended(app, tasks)
        off = 0.0  # again, when it is over
        await asyncio.sleep(3 * POLL)
    dormitory.once(tasks)


@pytest.mark.parametrize("jump", [2 * NIGHT, -2 * NIGHT])
async def test_the_clock_of_the_database_counts(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    url = postgres.create()
    dormitory = Dormitory(url)
    real, off = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + off)
    async with dormitory.replica() as app:
        tasks = await dormitory.begin(app, NIGHT)
        off = jump
        await asyncio.sleep(3 * POLL)
        assert await dormitory.sleeps(app, tasks[0])
        morning(url, postgres)
        await dormitory.ended(app, tasks)
    dormitory.once(tasks)


def morning(url: str, postgres: Postgres) -> None:
    """The time of all sleepers has come."""
    update = "UPDATE task SET due = 1 WHERE due > 0"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db, db:
            db.execute(update)
    else:
        postgres.sql(update, url.rpartition("/")[2])
