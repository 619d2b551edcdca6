"""Whether the file is sound: as a database, and as a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

import msgspec

from dragoman.lifecycle import IllegalEvent, fold
from dragoman.stores.codec import STATES, entry
from dragoman.stores.sqlite.ledger import FOUND, Leaf
from dragoman.stores.sqlite.schema import BITS

BATCH = 256
"""How many tasks are looked at in one state of the file."""
SHOWN = 100
"""The most problems that SQLite names."""

Progress = Callable[[str, int, int], None]
"""Is told what is looked at, how much of it is done, and of how much."""


def audit(db: sqlite3.Connection, progress: Progress) -> Iterator[str]:
    """Every problem, by name. Beside a running server it sees one state after the other, never
    half of a change."""
    try:
        yield from _pages(db, progress)
        yield from _logs(db, progress)
        yield from _hanging(db)
        yield from _counts(db)
    except sqlite3.DatabaseError as error:
        yield f"the file cannot be read on: {error}"


def _pages(db: sqlite3.Connection, progress: Progress) -> Iterator[str]:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        progress("pages", steps, 0)
        return 0

    db.set_progress_handler(step, 1_000_000)
    try:
        for (text,) in db.execute(f"PRAGMA integrity_check({SHOWN})"):
            if text != "ok":
                yield f"pages: {text}"
    finally:
        db.set_progress_handler(None, 0)


def _logs(db: sqlite3.Connection, progress: Progress) -> Iterator[str]:
    """Every log is whole, and says what its head says."""
    (total,) = db.execute("SELECT count(*) FROM task").fetchone()
    key = done = 0
    while True:
        db.execute("BEGIN")
        try:
            found = db.execute(
                f"{FOUND} WHERE task.key > ? ORDER BY task.key LIMIT ?", (key, BATCH)
            ).fetchall()
            for columns in found:
                yield from _strays(db, key, columns[0])
                key = columns[0]
                yield from _log(db, columns)
                done += 1
                progress("tasks", done, max(done, total))
            if not found:
                yield from _strays(db, key, (1 << 63 - BITS) - 1)
                return
        finally:
            db.execute("COMMIT")


def _strays(db: sqlite3.Connection, key: int, until: int) -> Iterator[str]:
    """Entries between the logs of two tasks that follow each other."""
    (number, place) = db.execute(
        "SELECT count(*), min(place) FROM entry WHERE place >= ? AND place <= ?",
        ((key + 1) << BITS if key else -(1 << 63), until << BITS),
    ).fetchone()
    if number:
        yield f"{number} entries have no task (the first at place {place})"


def _log(db: sqlite3.Connection, columns: tuple[object, ...]) -> Iterator[str]:
    try:
        row = Leaf.restored(columns)
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        yield f"task {columns[1]}: its head cannot be read: {error}"
        return
    base, size = row.key << BITS, 0
    events = []
    numbers = 0
    rows = db.execute(
        "SELECT place, turn, kind, body FROM entry WHERE place > ? AND place < ? ORDER BY place",
        (base, base + (1 << BITS)),
    )
    for place, turn, kind, body in rows:
        numbers += 1
        size += len(body)
        if place - base != numbers:
            yield f"task {row.id}: entry {numbers} is missing"
            return
        try:
            events.append(entry(numbers, turn, kind, body).event)
        except (msgspec.DecodeError, AssertionError) as error:
            yield f"task {row.id}: entry {numbers} cannot be read: {error}"
            return
    if numbers != row.last:
        yield f"task {row.id}: its log has {numbers} entries, and its head says {row.last}"
        return
    if size != row.size:
        yield f"task {row.id}: its log has {size} bytes, and its head says {row.size}"
    try:
        state = fold(None, events).status.state  # type: ignore[arg-type]
    except IllegalEvent as error:
        yield f"task {row.id}: its log cannot be: {error}"
        return
    if state is not row.state:
        says = row.state.name.lower()
        yield f"task {row.id}: its log ends {state.name.lower()}, and its head says {says}"


_HANGING = (
    (
        "SELECT key, id FROM task WHERE NOT EXISTS (SELECT 1 FROM scope WHERE key = task.scope)",
        "task {1}: it has no scope",
    ),
    (
        "SELECT scope, name FROM receipt "
        "WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = receipt.task)",
        "receipt {1!r} has no task",
    ),
    (
        "SELECT task, id FROM line WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = line.task)",
        "webhook {1} has no task",
    ),
    (
        "SELECT task, number FROM snapshot "
        "WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = snapshot.task)",
        "the snapshot of key {0} has no task",
    ),
    (
        "SELECT task.id, snapshot.number FROM snapshot JOIN task ON task.key = snapshot.task "
        "WHERE snapshot.number > task.last",
        "task {0}: its snapshot is of entry {1}, which is not in its log",
    ),
    (
        "SELECT task.id, receipt.name FROM receipt JOIN task ON task.key = receipt.task "
        "WHERE receipt.number NOT BETWEEN 1 AND task.last OR receipt.scope <> task.scope",
        "task {0}: its receipt {1!r} is for an entry that is not in its log",
    ),
    (
        "SELECT task.id, line.id FROM line JOIN task ON task.key = line.task "
        "WHERE line.cursor > task.last OR line.behind <> (line.cursor < task.last)",
        "task {0}: webhook {1} is at a place that does not agree with its log",
    ),
)


def _hanging(db: sqlite3.Connection) -> Iterator[str]:
    """What hangs on a task has one."""
    for sql, words in _HANGING:
        for found in db.execute(sql):
            yield words.format(*found)


def _counts(db: sqlite3.Connection) -> Iterator[str]:
    """The counts that lists tell are those of the tasks."""
    for agent, state, said, number in db.execute(
        "WITH real AS (SELECT scope, state, count(*) AS number FROM task WHERE born = 1 "
        "GROUP BY scope, state), both AS (SELECT scope, state, number AS said, 0 AS number "
        "FROM tally UNION ALL SELECT scope, state, 0, number FROM real) "
        "SELECT scope.agent || ' ' || scope.tenant || ' ' || scope.owner, both.state, "
        "sum(said), sum(both.number) FROM both LEFT JOIN scope ON scope.key = both.scope "
        "GROUP BY both.scope, both.state HAVING sum(said) <> sum(both.number)"
    ):
        name = STATES[state].name.lower() if state in STATES else f"state {state}"
        yield f"the count of {agent}: {said} tasks {name}, and there are {number}"
