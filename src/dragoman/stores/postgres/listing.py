"""The table of tasks of all owners in PostgreSQL, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from dragoman.model.types import TaskState
from dragoman.stores.codec import STATES, STATUS
from dragoman.stores.postgres.schema import LOCK, LONG
from dragoman.stores.postgres.transaction import COLUMNS, PostgresHead
from dragoman.stores.store import Unreadable
from dragoman.stores.task_rows import (
    FEW,
    LONGEST_STATUS,
    RECENT,
    Choice,
    Counts,
    TaskPage,
    TaskRow,
    status_text,
    task_row,
)
from dragoman.stores.unreadable_rows import UnreadableRows

INDEXES = {
    "task_listed": "task (state, changed, id) INCLUDE (agent, tenant, skill) WHERE born",
    "task_in_context": "task (md5(context)) WHERE born",
    "task_of_skill": "task (skill, state, changed, id) WHERE born AND skill <> ''",
}
"""They exist only in prepared stores."""
PAUSE = 0.2
"""Seconds between two looks whether another process has created them."""
NAMED = 2000
"""The maximum number of tasks with a common prefix that are found by their ids."""

ROWS = f"""
SELECT {COLUMNS}, message.at, ARRAY(
  SELECT CASE WHEN octet_length(body) <= {LONGEST_STATUS} THEN body END FROM entry
  WHERE entry.task = task.key AND number > task.last - {RECENT} AND kind = {STATUS}
  ORDER BY number DESC LIMIT 8
) FROM task LEFT JOIN message ON message.task = task.key AND message.number = 1
"""
_SCOPE = "agent = scope.agent AND tenant = scope.tenant AND owner = scope.owner"
_ORDER = "ORDER BY changed DESC, id DESC"


class Statement:
    """A statement with its values."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, value: Any) -> str:
        """Add a value. Returns its name in the statement."""
        self.values.append(value)
        return f"${len(self.values)}"

    def whose(self, choice: Choice, table: str = "") -> str:
        """Return the condition for agent, tenant and owner."""
        names = {"agent": choice.agent, "tenant": choice.tenant, "owner": choice.owner}
        found = [
            f"{table}{name} = {self.add(value)}"
            for name, value in names.items()
            if value is not None
        ]
        return " AND ".join(["true", *found])

    def context(self, context: str) -> str:
        """Return the condition for a context."""
        name = self.add(context)
        return f"md5(context) = md5({name}) AND context = {name}"

    def filters(self, choice: Choice) -> str:
        """Return the other conditions, without that for the state."""
        where = ""
        if choice.context:
            where += f" AND {self.context(choice.context)}"
        if choice.skill is not None:
            where += f" AND skill = {self.add(choice.skill)}"
            where += " AND skill <> ''" if choice.skill else ""  # the index is only for these
        if choice.id:
            first, end = self.add(choice.id), self.add(choice.id + "\U0010ffff")
            where += f" AND id >= {first} AND id < {end}"
        if choice.since:
            where += f" AND changed >= {self.add(choice.since)}"
        if choice.until:
            where += f" AND changed < {self.add(choice.until)}"
        return where


async def prepared(db: Any) -> bool:
    """Whether the store has the indexes of the table of tasks."""
    return bool(
        await db.fetchval(
            "SELECT count(*) = 1 FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid "
            "WHERE relname = 'task_listed' AND indisvalid AND pg_table_is_visible(pg_class.oid)"
        )
    )


async def prepare(db: Any) -> None:
    """Create the indexes, one process at a time. Servers continue to write meanwhile."""
    # A statement that waits for a lock would keep the index from being finished.
    while not await db.fetchval("SELECT pg_try_advisory_lock($1)", LOCK + 1):  # noqa: ASYNC110
        await asyncio.sleep(PAUSE)
    try:
        before = await _indexes(db)
        for name, what in INDEXES.items():
            broken = await db.fetchval(
                "SELECT count(*) FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid "
                "WHERE relname = $1 AND NOT indisvalid AND pg_table_is_visible(pg_class.oid)",
                name,
            )
            if broken:  # a process ended while it created the index
                await _drop(db, name)
            sql = f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {what}"
            await db.execute(sql, timeout=LONG)
        if before != await _indexes(db):  # without statistics, the planner reads whole tables
            await db.execute("ANALYZE task, tally", timeout=LONG)
    finally:
        await db.fetchval("SELECT pg_advisory_unlock($1)", LOCK + 1)


async def _indexes(db: Any) -> int:
    found: int = await db.fetchval(
        "SELECT count(*) FROM pg_class WHERE relname = ANY($1) AND pg_table_is_visible(oid)",
        list(INDEXES),
    )
    return found


async def unprepare(db: Any) -> None:
    """Delete the indexes."""
    for name in INDEXES:
        await _drop(db, name)


async def _drop(db: Any, name: str) -> None:
    await db.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}", timeout=LONG)


async def page(db: Any, choice: Choice) -> TaskPage:
    """Return a page of the table."""
    statement = await latest(db, choice)
    found = await db.fetch(*statement)
    places = [(changed, id) for changed, id in found]
    cursor = places[choice.limit - 1] if len(places) > choice.limit else None
    ids = [id for _, id in places[: choice.limit]]
    damage, rows = UnreadableRows(), {}
    for columns in await db.fetch(f"{ROWS} WHERE task.id = ANY($1::text[])", ids):
        try:
            rows[columns["id"]] = row(columns)
        except Unreadable as error:  # the others are listed
            damage.found(error)
    return TaskPage([rows[id] for id in ids if id in rows], cursor)


def row(columns: Any) -> TaskRow:
    """Make the row of the columns that `ROWS` selects. Raises Unreadable."""
    *stored, created, bodies = columns
    head = PostgresHead.restored(stored)
    return task_row(
        head,
        created=created or "",
        text=status_text(body for body in bodies if body is not None),
        lease=head.lease,
        size=head.size,
        ended=head.ended_at,
    )


async def latest(db: Any, choice: Choice) -> tuple[Any, ...]:
    """Return the statement that finds the latest tasks, and its values."""
    statement = Statement()
    limit = statement.add(choice.limit + 1)
    numbers = [state.number for state in choice.states]
    if choice.id and await _few_named(db, choice.id):
        where = f"{statement.whose(choice)}{statement.filters(choice)}"
        if numbers:
            where += f" AND state = ANY({statement.add(numbers)}::int[])"
        where += _after(statement, choice)
        # materialized, so that the planner does not read all tasks in the order of their change
        sql = (
            f"WITH found AS MATERIALIZED (SELECT changed, id FROM task WHERE born AND {where}) "
            f"SELECT changed, id FROM found {_ORDER} LIMIT {limit}"
        )
        return (sql, *statement.values)
    scopes = await _scopes(db, choice)
    if scopes is not None:
        where = _SCOPE + statement.filters(choice) + _after(statement, choice)
        source = _unnested(statement, scopes)
        if numbers:
            wanted = f"unnest({statement.add(numbers)}::int[]) AS wanted (state)"
            source = f"(SELECT * FROM {source} CROSS JOIN {wanted}) AS scope"
            where += " AND state = scope.state"
        # The latest tasks are in the scopes with the latest tasks, so first find these.
        newest = (
            f"SELECT scope.* FROM {source} CROSS JOIN LATERAL (SELECT changed, id FROM task "
            f"WHERE born AND {where} {_ORDER} LIMIT 1) AS first "
            f"ORDER BY first.changed DESC, first.id DESC LIMIT {limit}"
        )
        source = f"({newest}) AS scope"
    else:
        every = numbers or [state.number for state in TaskState]
        source = f"unnest({statement.add(every)}::int[]) AS wanted (state)"
        where = f"state = wanted.state AND {statement.whose(choice)}{statement.filters(choice)}"
        where += _after(statement, choice)
    sql = (
        f"SELECT found.changed, found.id FROM {source} CROSS JOIN LATERAL (SELECT changed, id "
        f"FROM task WHERE born AND {where} {_ORDER} LIMIT {limit}) AS found {_ORDER} LIMIT {limit}"
    )
    return (sql, *statement.values)


def _after(statement: Statement, choice: Choice) -> str:
    if choice.cursor is None:
        return ""
    changed, id = map(statement.add, choice.cursor)
    return f" AND (changed, id) < ({changed}, {id})"


def _unnested(statement: Statement, scopes: Sequence[Any]) -> str:
    agents, tenants, owners = zip(*scopes, strict=True) if scopes else ((), (), ())
    names = (statement.add(list(each)) for each in (agents, tenants, owners))
    given = ", ".join(f"{name}::text[]" for name in names)
    return f"unnest({given}) AS scope (agent, tenant, owner)"


async def _scopes(db: Any, choice: Choice) -> Sequence[Any] | None:
    """Return the scopes of a choice; None if they are too many, so that the index of all tasks is
    faster."""
    ready = await prepared(db)
    statement = Statement()
    where = statement.whose(choice)
    table = "tally"
    if choice.context and ready:
        table, where = "task", f"born AND {statement.context(choice.context)} AND {where}"
    most = f" LIMIT {FEW + 1}" if ready else ""
    found: Sequence[Any] = await db.fetch(
        f"SELECT DISTINCT agent, tenant, owner FROM {table} WHERE {where}{most}",
        *statement.values,
    )
    return None if ready and len(found) > FEW else found


async def _few_named(db: Any, beginning: str) -> bool:
    number = await db.fetchval(
        "SELECT count(*) FROM (SELECT 1 FROM task WHERE id >= $1 AND id < $2 LIMIT $3) AS found",
        *(beginning, beginning + "\U0010ffff", NAMED + 1),
    )
    return bool(number <= NAMED)


async def counts(db: Any, choice: Choice, most: int) -> Counts:
    """Count the tasks of a choice by state."""
    narrow = choice.context or choice.id or choice.since or choice.until
    statement = Statement()
    wanted = choice.states or tuple(TaskState)
    if not narrow and choice.skill is None:  # these numbers are kept while writing
        rows = await db.fetch(
            f"SELECT state, sum(number)::bigint FROM tally WHERE {statement.whose(choice)} "
            "GROUP BY state",
            *statement.values,
        )
        known = {STATES[state]: number for state, number in rows if state in STATES}
        return Counts({s: n for s, n in known.items() if n > 0 and s in wanted}, True)
    limit = statement.add(most + 1)
    states = f"unnest({statement.add([state.number for state in wanted])}::int[]) AS wanted (state)"
    scopes = None if choice.id and await _few_named(db, choice.id) else await _scopes(db, choice)
    if scopes is None:
        source = states
        where = f"{statement.whose(choice)}{statement.filters(choice)}"
    else:
        source = f"{states} CROSS JOIN {_unnested(statement, scopes)}"
        where = _SCOPE + statement.filters(choice)
    sql = (
        f"SELECT wanted.state, sum(found.number)::bigint FROM {source} CROSS JOIN LATERAL ("
        "SELECT count(*) AS number FROM (SELECT 1 FROM task WHERE born AND state = wanted.state "
        f"AND {where} LIMIT {limit}) AS one) AS found GROUP BY wanted.state"
    )
    found = {STATES[state]: int(number) for state, number in await db.fetch(sql, *statement.values)}
    return Counts(
        {state: min(number, most) for state, number in found.items() if number},
        all(number <= most for number in found.values()),
    )
