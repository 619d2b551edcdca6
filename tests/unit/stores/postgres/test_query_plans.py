"""How PostgreSQL does what the store asks: by index, and with work that does not grow.

`PLAN_TASKS=1000000 PLAN_SHOW=1` asks the same of more tasks, and says what each statement took.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from dragoman import ContextChanged
from dragoman.model.caller import Caller, Scope
from dragoman.model.events import CancelRequested, Entry
from dragoman.model.types import TaskState
from dragoman.stores.postgres import PostgresStore, listing, prune
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.store import MessagePlace, Query, Receipt
from dragoman.stores.task_rows import Choice
from tests.harness.fill_postgres import fill
from tests.harness.stores import AT, W, accept, artifact, database, hook, status

pytestmark = pytest.mark.slow  # it needs PostgreSQL

NUMBER = int(os.environ.get("PLAN_TASKS", "50000"))
BUFFERS = 3000
"""The most pages that a statement may touch, whatever the number of tasks."""
EARLY = 8
"""The same of one that finds nothing: leases and lines whose time has not come are not read."""
OWNER = Scope("agent", "tenant", "owner")
BIG = {"task", "entry", "line", "receipt", "message", "context_value", "reservation"}
SHOW = os.environ.get("PLAN_SHOW")


class Seen:
    """The statements that were sent, each with the last values that it had."""

    def __init__(self) -> None:
        self.statements: dict[str, tuple[Any, ...]] = {}

    def __call__(self, record: Any) -> None:
        self.statements[record.query] = record.args or ()


@pytest.fixture(scope="module")
def filled() -> str:
    """The URL of a store with many tasks."""

    async def build() -> str:
        url = database()
        store = PostgresStore(url)
        await store.open()
        await store.close()
        connection = await asyncpg.connect(url)
        await fill(connection, NUMBER)
        await connection.close()
        return url

    return asyncio.run(build())


@pytest.fixture
async def store(filled: str) -> AsyncIterator[PostgresStore]:
    """A store on it."""
    store = PostgresStore(filled, retention=2 * 86400.0 + NUMBER // 2)
    await store.open()
    yield store
    await store.close()


class Watch:
    """A connection for a while, with every statement noted."""

    def __init__(self, inner: Any, seen: Seen) -> None:
        self.inner, self.seen = inner, seen

    async def __aenter__(self) -> Any:
        db = await self.inner.__aenter__()
        self.logging = db.query_logger(self.seen)
        self.logging.__enter__()
        return db

    async def __aexit__(self, *error: Any) -> None:
        self.logging.__exit__(None, None, None)
        await self.inner.__aexit__(*error)


async def everything(store: PostgresStore) -> None:
    """Ask for all that a store can be asked for."""
    scope, task = OWNER, "task-000000010"
    for query in (
        Query(size=50),
        Query(size=50, artifacts=True),
        Query(size=50, state=TaskState.WORKING),
        Query(size=50, context="context-1"),
        Query(size=50, cursor=("2026-01-01T01:00:00.000Z", "task-000003600")),
        Query(size=50, state=TaskState.COMPLETED, cursor=("2026-01-01T01:00:00.000Z", "x")),
    ):
        assert (await store.list(scope, query)).tasks is not None
    await store.head(scope, task)
    await store.read(scope, task, 0, 100)
    await store.messages(scope, "context-1", MessagePlace("task-000000011", 1, "2027"), 20)
    await store.tally(scope)
    await store.owner(scope, task)
    await store.moved({f"task-{n:09}": 4 for n in range(1, 100)})
    await store.expired(["agent"], 64)
    await store.webhooks(scope, task)
    await store.undelivered(50)
    await store.undelivered(50, parked=True)
    await store.undelivered(50, parked=False)
    await accept(store, "fresh", scope=scope, receipt=Receipt("key", b"x"))
    await accept(store, "hooked", scope=scope, webhook=hook(task="hooked"))
    (claim, *_) = await store.claim(["agent"], "w", 600, 10)
    await store.claim(["agent"], "v", 600, 4, {("tenant", "owner-1")})
    await store.append(claim, [Entry(0, status(claim.head.id, W), 1)])
    await store.append(claim, [Entry(0, artifact(claim.head.id, "x"), 1)], release=True)
    await store.renew([claim], 900)
    (held,) = await store.claim(["agent"], "w", 600, 1)
    for version in (0, 1, 2):
        with suppress(ContextChanged):
            await store.save_context(held, b"1", version, f"{held.head.id}:1")
    assert await store.context_value(held)
    await store.held("w")
    await store.dispatch(["agent"], 10, 30)
    await store.dispatch(["agent"], 10, 30, {("", "another")})
    canceled = status("fresh", TaskState.CANCELED)
    await store.cancel(scope, "fresh", CancelRequested(caller=Caller(), at=AT), canceled, 5)
    await store.delete_webhook(scope, "hooked", "h")
    await store.redrive("task-000000010", "w")
    for key in ("key-10", "another"):
        assert await store.reserve("space", key, b"1", 600.0)
    assert len(await store.reservations("space", "key-", "key-10", 4)) == 4
    assert await store.release("space", "another")
    await store.prune()
    store._reservations_swept = time.monotonic()  # then it looks for tasks
    await store.prune()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan and all that is below it."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


async def explained(db: Any, sql: str, values: tuple[Any, ...]) -> dict[str, Any]:
    """How a statement is done with these values; what it did is undone."""
    transaction = db.transaction()
    await transaction.start()
    try:
        if "INSERT INTO task" in sql:  # as if it had not been sent yet
            for name in ("entry", "receipt", "line", "message"):
                await db.execute(f"DELETE FROM {name} WHERE task > $1", NUMBER)
            await db.execute("DELETE FROM task WHERE key > $1", NUMBER)
        text = await db.fetchval(f"EXPLAIN (FORMAT JSON, ANALYZE, BUFFERS) {sql}", *values)
    finally:
        await transaction.rollback()
    found: dict[str, Any] = json.loads(text)[0]["Plan"]
    return found


async def generic(db: Any, sql: str, number: int) -> dict[str, Any]:
    """How it is done with any values, which a statement that is used again comes to."""
    await db.execute("SET plan_cache_mode = force_generic_plan")
    await db.execute(f"PREPARE asked AS {sql}")
    given = f"({', '.join(['NULL'] * number)})" if number else ""
    text = await db.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE asked{given}")
    await db.execute("DEALLOCATE asked")
    await db.execute("RESET plan_cache_mode")
    found: dict[str, Any] = json.loads(text)[0]["Plan"]
    return found


def scanned(plan: dict[str, Any]) -> list[str]:
    """The large tables that are read from end to end."""
    return [
        node["Relation Name"]
        for node in nodes(plan)
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in BIG
    ]


async def test_every_statement_uses_an_index(
    store: PostgresStore, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    lend = Pool.connection
    monkeypatch.setattr(Pool, "connection", lambda pool: Watch(lend(pool), seen))
    monkeypatch.setattr(store._writer, "_hold", Watch(store._writer._hold, seen))
    await everything(store)
    monkeypatch.undo()
    statements = {
        sql: values
        for sql, values in seen.statements.items()
        if any(f" {name}" in sql for name in ("task", "entry", "line", "tally", "context_value"))
        or " reservation" in sql
    }
    assert len(statements) > 25
    assert {prune.LOCK_VALUES, prune.FORGET_VALUES} <= set(statements)
    db = await asyncpg.connect(filled, server_settings={"jit": "off"})
    for choice in (
        Choice(),
        Choice(owner="owner"),
        Choice(states=(W,)),
        Choice(context="context-1"),
    ):
        sql, *values = await listing.latest(db, choice)
        statements[sql] = tuple(values)
    wrong = []
    for sql, values in statements.items():
        plan = await explained(db, sql, values)
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        if SHOW:
            took = plan["Actual Total Time"]
            sys.stderr.write(f"{pages} pages, {took} ms: {' '.join(sql.split())[:160]}\n")
        if found := scanned(plan):
            wrong.append(f"scans {found}: {sql}")
        if found := scanned(await generic(db, sql, len(values))):
            wrong.append(f"scans {found}, as a prepared statement: {sql}")
        early = "AND lease <" in sql or "AND due <=" in sql
        if pages > (EARLY if early else BUFFERS):
            wrong.append(f"touches {pages} pages: {sql}\n{json.dumps(plan, indent=1)[:3000]}")
    await db.close()
    assert not wrong, "\n".join(wrong)
