"""Checks a SQLite file, as a database and as a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dragoman.model.caller import INDEXED
from dragoman.stores import reservations
from dragoman.stores.context_values import faults
from dragoman.stores.integrity import (
    BATCH,
    HANGING,
    Beside,
    CursorRow,
    Progress,
    Stub,
    counted,
    log,
)
from dragoman.stores.sqlite.driver import fetch
from dragoman.stores.sqlite.rows import FOUND, SqliteHead, named
from dragoman.stores.sqlite.schema import BITS, Unusable, identity
from dragoman.stores.sqlite.transfer import NEXT_RESERVATION
from dragoman.stores.store import Unreadable

SHOWN = 100
"""The maximum number of problems that SQLite reports."""


def audit(db: sqlite3.Connection, progress: Progress) -> Iterator[str]:
    """Yield every problem, with its place. While a server writes, it sees one state after the
    other, never half of a change."""
    try:
        yield from _pages(db, progress)
        yield from _about(db)
        yield from _logs(db, progress)
        yield from _hanging(db)
        yield from _counts(db)
        yield from _values(db)
        yield from _reservations(db)
    except sqlite3.DatabaseError as error:
        yield f"the rest of the file cannot be read: {error}"


def _about(db: sqlite3.Connection) -> Iterator[str]:
    try:
        identity(db)
    except Unusable as error:
        yield error.message


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
    """Check that every log is complete and agrees with its head."""
    (total,) = db.execute("SELECT count(*) FROM task").fetchone()
    key = done = 0
    while True:
        db.execute("BEGIN")
        try:
            found = fetch(db, f"{FOUND} WHERE task.key > ? ORDER BY task.key LIMIT ?", (key, BATCH))
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
    """Find entries between the logs of two neighbouring tasks."""
    (number, place) = db.execute(
        "SELECT count(*), min(place) FROM entry WHERE place >= ? AND place <= ?",
        ((key + 1) << BITS if key else -(1 << 63), until << BITS),
    ).fetchone()
    if number:
        yield f"{number} entries have no task (the first at place {place})"


def _log(db: sqlite3.Connection, columns: tuple[object, ...]) -> Iterator[str]:
    try:
        row = SqliteHead.restored(columns)
    except Unreadable as error:
        yield str(error)
        return
    base = row.key << BITS
    yield from log(
        row,
        db.execute(
            "SELECT place - ?, turn, kind, body FROM entry WHERE place > ? AND place < ? "
            "ORDER BY place",
            (base, base, base + (1 << BITS)),
        ),
        _beside(db, row.key),
    )


def _beside(db: sqlite3.Connection, key: int) -> Beside:
    snapshots = fetch(db, "SELECT number, body FROM snapshot WHERE task = ?", (key,))
    lines = fetch(
        db,
        "SELECT id, webhook, attempts, due, reason, ticket FROM line WHERE task = ? ORDER BY id",
        (key,),
    )
    stubs = fetch(db, "SELECT name, digest, number FROM receipt WHERE task = ?", (key,))
    return Beside(
        snapshots[0] if snapshots else None,
        [CursorRow(named(id), *rest) for id, *rest in lines],
        [Stub(named(name), *rest) for name, *rest in stubs],
        fetch(db, "SELECT number, at FROM message WHERE task = ?", (key,)),
        fetch(db, "SELECT number, body FROM replay_value WHERE task = ?", (key,)),
    )


_HANGING = (
    (
        "SELECT key, id FROM task WHERE born NOT IN (0, 1) OR replied NOT IN (0, 1) "
        "OR hooked NOT IN (0, 1)",
        "task {1}: born, replied and hooked in its head must be 0 or 1",
    ),
    (
        "SELECT task.id, line.id FROM line JOIN task ON task.key = line.task "
        "WHERE taken NOT IN (0, 1) OR behind NOT IN (0, 1) OR parked NOT IN (0, 1)",
        "task {0}: webhook {1}: taken, behind and parked must be 0 or 1",
    ),
    (
        "SELECT task.id, line.id FROM line JOIN task ON task.key = line.task "
        "WHERE line.lane <> task.scope",
        "task {0}: webhook {1} is in the lane of another owner",
    ),
    (
        "SELECT task.id, scope.agent FROM task JOIN scope ON scope.key = task.scope "
        "WHERE scope.agent <> task.agent",
        "task {0}: its scope belongs to another agent, {1}",
    ),
    (
        f"SELECT key, agent FROM scope WHERE length(CAST(owner AS BLOB)) > {INDEXED}",
        f"the owner of scope {{0}} is longer than {INDEXED} bytes, but is not stored as a digest",
    ),
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
        "SELECT task.id, receipt.name FROM receipt JOIN task ON task.key = receipt.task "
        "WHERE receipt.scope <> task.scope",
        "task {0}: its receipt {1!r} belongs to another owner",
    ),
    (
        "SELECT task.id, message.number FROM message JOIN task ON task.key = message.task "
        "WHERE message.scope <> task.scope OR message.context <> task.context",
        "task {0}: its message {1} is in another conversation",
    ),
    (
        "SELECT scope, context FROM context_value WHERE NOT EXISTS (SELECT 1 FROM message "
        "WHERE message.scope = context_value.scope AND message.context = context_value.context)",
        "the value of context {1} has no task",
    ),
    *HANGING,
)


def _hanging(db: sqlite3.Connection) -> Iterator[str]:
    """Check that everything that belongs to a task has one."""
    for sql, words in _HANGING:
        for found in fetch(db, sql):
            yield words.format(
                *(named(item) if isinstance(item, bytes) else item for item in found)
            )


def _counts(db: sqlite3.Connection) -> Iterator[str]:
    """Check that the counts for listings are those of the tasks."""
    for agent, state, said, number in fetch(
        db,
        "WITH real AS (SELECT scope, state, count(*) AS number FROM task WHERE born = 1 "
        "GROUP BY scope, state), both AS (SELECT scope, state, number AS said, 0 AS number "
        "FROM tally UNION ALL SELECT scope, state, 0, number FROM real) "
        "SELECT scope.agent || ' ' || scope.tenant || ' ' || scope.owner, both.state, "
        "sum(said), sum(both.number) FROM both LEFT JOIN scope ON scope.key = both.scope "
        "GROUP BY both.scope, both.state HAVING sum(said) <> sum(both.number)",
    ):
        yield counted(agent, state, said, number)


def _values(db: sqlite3.Connection) -> Iterator[str]:
    """Check that the values of contexts are readable."""
    row = 0
    while found := fetch(
        db,
        "SELECT rowid, context, version, saver, body FROM context_value WHERE rowid > ? "
        "ORDER BY rowid LIMIT 1",
        (row,),
    ):
        ((row, context, *columns),) = found
        for problem in faults(*columns):
            yield f"the value of context {named(context)}: {problem}"


def _reservations(db: sqlite3.Connection) -> Iterator[str]:
    """Check that reservations are readable."""
    row = 0
    while found := fetch(db, NEXT_RESERVATION, (row,)):
        ((row, *columns),) = found
        for problem in reservations.faults(*columns):
            yield f"{reservations.named(*columns[:2])}: {problem}"
