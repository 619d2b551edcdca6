"""Sleeping handlers: across restarts, clocks that are set, and replicas; and very many of them."""

from __future__ import annotations

import asyncio
import gc
import re
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
from dragoman.stores.sqlite.schema import BITS
from dragoman.testing import message
from tests.harness.scale import SCALE, SOAK, say
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
    async def replica(self, within: float = 30) -> AsyncIterator[App]:
        """One more replica."""
        async with asyncio.timeout(within), App(self.agent, store=self.url, poll=POLL) as app:
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
    sql(url, postgres, "UPDATE task SET due = 1 WHERE due > 0")


# ---- very many of them ---------------------------------------------------------------------

MANY = int(100_000 * SCALE) if SOAK else 3000


@pytest.mark.soak
async def test_very_many_sleepers(url: str, postgres: Postgres) -> None:
    dormitory = Dormitory(url)
    async with dormitory.replica(within=900 if SOAK else 60) as app:
        (first,) = await dormitory.begin(app, NIGHT)
        await asyncio.sleep(2 * POLL)
        memory = rss()
        await asyncio.to_thread(clone, url, postgres, first, MANY)
        await asyncio.sleep(5 * POLL)  # everybody looks
        grown = rss() - memory
        say(f"{MANY} sleepers: {grown / 1e6:.1f} MB more memory")
        assert grown < 50 * MANY + 8e6  # of which the caches of the store have some
        assert dormitory.runs == Counter([first])
        census = (await app.store.census([dormitory.agent.key]))[dormitory.agent.key]
        assert census.ready == 0
        assert sum(census.tasks.values()) == MANY + 1
        some = [name(first, number) for number in range(1, MANY, MANY // 10)]
        which = ", ".join(f"'{task}'" for task in some)
        began = time.monotonic()
        sql(url, postgres, f"UPDATE task SET due = 1 WHERE id IN ({which})")
        await dormitory.ended(app, some)
        took = time.monotonic() - began
        say(f"{len(some)} of them woken and completed in {took:.2f} s; poll is {POLL} s")
        assert took < POLL + 3  # of which the machine may take some
        assert dormitory.runs == Counter([first, *some])
        if SOAK:
            began = time.monotonic()
            await asyncio.to_thread(morning, url, postgres)
            while int(sql(url, postgres, "SELECT count(*) FROM task WHERE due > 0")):
                await asyncio.sleep(1)
            woken = time.monotonic() - began
            while len(dormitory.after) < MANY + 1:
                await asyncio.sleep(1)
            took = time.monotonic() - began
            say(f"all due at once: woken in {woken:.1f} s, and run in {took:.1f} s")


def rss() -> int:
    """The memory of this process."""
    gc.collect()
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def name(first: str, number: int) -> str:
    """The id of a copy."""
    return f"{first[:-6]}{number:06d}"


def clone(url: str, postgres: Postgres, task: str, number: int) -> None:
    """Copy a task so many times."""
    lite = url.startswith("sqlite")
    columns = _columns(url, postgres)
    head = {"key": f"key + {1 if lite else 1000} + n", "id": _id(lite)}
    listed = ", ".join(columns)
    taken = ", ".join(head.get(column, column) for column in columns)
    numbers = (
        f"(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {number}) "
        "SELECT n FROM c)"
        if lite
        else f"generate_series(1, {number})"
    )
    body = (
        f"CAST(replace(CAST(body AS TEXT), task.id, {_id(lite)}) AS BLOB)"
        if lite
        else f"convert_to(replace(convert_from(body, 'UTF8'), task.id, {_id(lite)}), 'UTF8')"
    )
    source = f"{numbers} AS c JOIN task ON task.id = '{task}'"
    entries = (
        f"INSERT INTO entry (place, turn, kind, body) SELECT place + ((1 + n) << {BITS}), "
        f"entry.turn, kind, {body} FROM {source} JOIN entry ON place >> {BITS} = task.key"
        if lite
        else "INSERT INTO entry (task, number, turn, kind, body) SELECT task.key + 1000 + n, "
        f"number, entry.turn, kind, {body} FROM {source.replace('AS c', 'AS c(n)')} "
        "JOIN entry ON entry.task = task.key"
    )
    tasks = f"INSERT INTO task ({listed}) SELECT {taken} FROM {source}"
    for statement in (
        entries,
        tasks if lite else tasks.replace("AS c", "AS c(n)"),
        f"UPDATE tally SET number = number + {number} WHERE state = 2",
    ):
        sql(url, postgres, statement)


def _id(lite: bool) -> str:
    digits = "printf('%06d', n)" if lite else "lpad(n::text, 6, '0')"
    return f"substr(id, 1, length(id) - 6) || {digits}"


def _columns(url: str, postgres: Postgres) -> list[str]:
    if url.startswith("sqlite"):
        return sql(url, postgres, "SELECT name FROM pragma_table_info('task')").split()
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = 'task'"
    return sql(url, postgres, query).split()


def sql(url: str, postgres: Postgres, statement: str) -> str:
    """What a statement answers, a line for each row."""
    if not url.startswith("sqlite"):
        return postgres.sql(statement, url.rpartition("/")[2])
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as db, db:
        return "\n".join(str(row[0]) for row in db.execute(statement))
