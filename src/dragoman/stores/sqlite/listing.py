"""The table of tasks of all owners in a SQLite file, for operators."""

from __future__ import annotations

import heapq
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from dragoman.model.types import TaskState
from dragoman.stores.codec import STATES, STATUS
from dragoman.stores.sqlite.driver import fetch
from dragoman.stores.sqlite.queries import Queries
from dragoman.stores.sqlite.rows import SqliteHead, named
from dragoman.stores.sqlite.schema import BITS
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

INDEXES = {
    "task_listed": "task (state, changed, id, agent, scope, skill) WHERE born = 1",
    "task_in_context": "task (context, scope) WHERE born = 1",
    "task_of_skill": "task (skill, state, changed, id, agent, scope) "
    "WHERE born = 1 AND skill <> ''",
}
"""They exist only in prepared stores. The first one has all columns of the filters, so that the
tasks themselves are not read."""
NAMED = 2000
"""The maximum number of tasks with a common prefix that are found by their ids."""
_STATUSES = (
    f"SELECT CASE WHEN length(body) <= {LONGEST_STATUS} THEN body ELSE x'' END FROM entry "
    f"WHERE place > ? AND place <= ? AND kind = {STATUS} ORDER BY place DESC LIMIT 8"
)

Part = tuple[str, list[Any]]
"""A condition that an index answers in the order of the table, and its values."""


def prepared(db: sqlite3.Connection) -> bool:
    """Whether the store has the indexes of the table of tasks."""
    return bool(db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'task_listed'").fetchone())


def page(db: sqlite3.Connection, choice: Choice) -> TaskPage:
    """Return a page of the table."""
    best: list[tuple[str, str]] = []
    limit = choice.limit + 1
    rest, values = _filters(choice)
    if choice.cursor is not None:
        rest, values = f"{rest} AND (changed, id) < (?, ?)", [*values, *choice.cursor]
    for where, own in _parts(db, choice):
        floor = best[0] if len(best) == limit else ("", "")
        found = fetch(
            db,
            f"SELECT changed, id FROM task WHERE {where}{rest} AND (changed, id) > (?, ?) "
            "ORDER BY changed DESC, id DESC LIMIT ?",
            (*own, *values, *floor, limit),
        )
        for changed, id in found:
            place = (named(changed), named(id))
            if len(best) < limit:
                heapq.heappush(best, place)
            else:
                heapq.heappushpop(best, place)
    places = sorted(best, reverse=True)
    cursor = places[choice.limit - 1] if len(places) == limit else None
    view, rows = Queries(db), []
    for _, id in places[: choice.limit]:
        with suppress(Unreadable):  # it is logged, and the others are listed
            if (head := view.row(id)) is not None:
                rows.append(row(db, head))
    return TaskPage(rows, cursor)


def counts(db: sqlite3.Connection, choice: Choice, most: int) -> Counts:
    """Count the tasks of a choice by state."""
    narrow = choice.context or choice.id or choice.since or choice.until
    where, values = _whose(choice)
    found = db.execute(  # these numbers are kept while writing
        "SELECT state, sum(number) FROM tally JOIN scope ON scope.key = tally.scope "
        f"WHERE {where} GROUP BY state",
        values,
    ).fetchall()
    known = {STATES[state]: number for state, number in found if state in STATES and number > 0}
    if choice.states:
        known = {state: number for state, number in known.items() if state in choice.states}
    if not narrow and choice.skill is None:
        return Counts(known, True)
    sums: dict[TaskState, int] = {}
    rest, values = _filters(choice)
    complete = True
    for state in known:
        number = 0
        for where, own in _parts(db, choice, (state,)):
            (more,) = db.execute(
                f"SELECT count(*) FROM (SELECT 1 FROM task WHERE {where}{rest} LIMIT ?)",
                (*own, *values, most + 1 - number),
            ).fetchone()
            number += more
            if number > most:
                complete = False
                break
        if number:
            sums[state] = min(number, most)
    return Counts(sums, complete)


def row(db: sqlite3.Connection, head: SqliteHead) -> TaskRow:
    """Make the row of a head."""
    base = head.key << BITS
    first = fetch(db, "SELECT at FROM message WHERE task = ? AND number = 1", (head.key,))
    after = max(head.last - RECENT, 0)
    bodies = db.execute(_STATUSES, (base + after, base + head.last)).fetchall()
    return task_row(
        head,
        created=named(first[0][0]) if first else "",
        text=status_text(body for (body,) in bodies),
        lease=max(head.lease - time.monotonic() + time.time(), 0.0),
        size=head.size,
        ended=head.ended_at,
    )


def _parts(
    db: sqlite3.Connection, choice: Choice, states: Sequence[TaskState] | None = None
) -> Iterator[Part]:
    """Yield conditions that together find the tasks of a choice, each by an index."""
    numbers = [state.number for state in (choice.states if states is None else states)]
    if choice.id and _few_named(db, choice.id):
        where, values = _whose(choice)
        kinds = f" AND state IN ({', '.join(map(str, numbers))})" if numbers else ""
        same = " AND context = ?" if choice.context else ""
        yield (
            f"+born = 1 AND id >= ? AND id < ?{kinds}{same} "
            f"AND scope IN (SELECT key FROM scope WHERE {where})",
            [*_range(choice.id), *([choice.context] if same else []), *values],
        )
        return
    scopes = _scopes(db, choice)
    if scopes is None:
        yield from _wide(choice, numbers or [state.number for state in TaskState])
        return
    same = " AND context = ?" if choice.context else ""
    context = [choice.context] if choice.context else []
    for scope in scopes:
        if numbers:
            for number in numbers:
                yield (
                    f"born = 1 AND scope = ?{same} AND state = ?",
                    [scope, *context, number],
                )
        else:
            yield f"born = 1 AND scope = ?{same}", [scope, *context]


def _wide(choice: Choice, numbers: Sequence[int]) -> Iterator[Part]:
    """Yield conditions for the index of all tasks."""
    where, values = "born = 1 AND state = ?", []
    if choice.agent is not None:
        where += " AND agent = ?"
        values.append(choice.agent)
    if choice.tenant is not None or choice.owner is not None:
        whose, names = _whose(choice)
        where += f" AND scope IN (SELECT key FROM scope WHERE {whose})"
        values += names
    if choice.context:
        where += " AND context = ?"
        values.append(choice.context)
    for number in numbers:
        yield where, [number, *values]


def _scopes(db: sqlite3.Connection, choice: Choice) -> list[int] | None:
    """Return the scopes of a choice; None if they are too many, so that the index of all tasks is
    faster."""
    ready = prepared(db)
    where, values = _whose(choice)
    if choice.context and ready:
        found = _of_context(db, choice.context)
        if found is not None:
            theirs = (
                db.execute(f"SELECT key FROM scope WHERE key = ? AND {where}", (key, *values))
                for key in found
            )
            return [key for rows in theirs for (key,) in rows.fetchall()]
        return None
    limit = FEW + 1 if ready else -1
    keys = [
        key
        for (key,) in db.execute(
            f"SELECT key FROM scope WHERE {where} LIMIT ?", (*values, limit)
        ).fetchall()
    ]
    return None if ready and len(keys) > FEW else keys


def _of_context(db: sqlite3.Connection, context: str) -> list[int] | None:
    """Return the scopes that have tasks of a context; None if they are many."""
    found: list[int] = []
    while len(found) <= FEW:
        (key,) = db.execute(
            "SELECT min(scope) FROM task WHERE born = 1 AND context = ? AND scope > ?",
            (context, found[-1] if found else -1),
        ).fetchone()
        if key is None:
            return found
        found.append(key)
    return None


def _few_named(db: sqlite3.Connection, beginning: str) -> bool:
    (number,) = db.execute(
        "SELECT count(*) FROM (SELECT 1 FROM task WHERE id >= ? AND id < ? LIMIT ?)",
        (*_range(beginning), NAMED + 1),
    ).fetchone()
    return bool(number <= NAMED)


def _range(beginning: str) -> tuple[str, str]:
    return beginning, beginning + "\U0010ffff"


def _whose(choice: Choice) -> Part:
    """Return the condition for scopes."""
    names = {"agent": choice.agent, "tenant": choice.tenant, "owner": choice.owner}
    given = {name: value for name, value in names.items() if value is not None}
    where = " AND ".join(["1", *(f"scope.{name} = ?" for name in given)])
    return where, list(given.values())


def _filters(choice: Choice) -> Part:
    """Return the conditions that are the same for each part."""
    where, values = "", []
    if choice.skill is not None:
        where += " AND skill = ?"
        where += " AND skill <> ''" if choice.skill else ""  # the index is only for these
        values.append(choice.skill)
    if choice.id:
        where += " AND id >= ? AND id < ?"
        values += _range(choice.id)
    if choice.since:
        where += " AND changed >= ?"
        values.append(choice.since)
    if choice.until:
        where += " AND changed < ?"
        values.append(choice.until)
    return where, values
