"""Checks the tables as a store. (`pg_amcheck` checks the database itself.)"""

from __future__ import annotations

from typing import Any

from dragoman.model.caller import INDEXED
from dragoman.stores import integrity, reservations
from dragoman.stores.admin import HEAVY
from dragoman.stores.context_values import faults
from dragoman.stores.integrity import BATCH, Beside, CursorRow, Stub
from dragoman.stores.postgres.schema import BLOCK, LANE
from dragoman.stores.postgres.transaction import COLUMNS, PostgresHead
from dragoman.stores.postgres.transfer import NEXT_RESERVATIONS, VALUES, ValueKey
from dragoman.stores.store import Unreadable

HANGING = (
    (
        "SELECT count(*), min(task) FROM entry "
        "WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = entry.task) HAVING count(*) > 0",
        "{0} entries have no task (the key of the first is {1})",
    ),
    (
        "SELECT encode(name, 'hex'), task FROM receipt "
        "WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = receipt.task)",
        "receipt {0} has no task",
    ),
    (
        "SELECT task.id, encode(receipt.name, 'hex') FROM receipt "
        "JOIN task ON task.key = receipt.task WHERE (receipt.agent, receipt.tenant, receipt.owner) "
        "<> (task.agent, task.tenant, task.owner)",
        "task {0}: its receipt {1} belongs to another owner",
    ),
    (
        f"SELECT encode(name, 'hex'), task FROM receipt WHERE length(name) <> {integrity.DIGEST}",
        "receipt {0}: its name is not a digest",
    ),
    (
        f"SELECT max(task.key), task_key.last_value + {BLOCK} FROM task, task_key "
        f"GROUP BY task_key.last_value HAVING max(task.key) >= task_key.last_value + {BLOCK}",
        "the sequence task_key is at {1}, but there is a task with key {0}",
    ),
    (
        f"SELECT key, id FROM task WHERE octet_length(owner) > {INDEXED}",
        f"task {{1}}: its owner is longer than {INDEXED} bytes, but is not stored as a digest",
    ),
    (
        # an older process that still runs does not write it
        "SELECT task.id, line.id FROM line JOIN task ON task.key = line.task "
        f"WHERE line.lane NOT IN (0, {LANE.format('task')})",
        "task {0}: webhook {1} is in the lane of another owner",
    ),
    (
        "SELECT task.id, message.number FROM message JOIN task ON task.key = message.task "
        "WHERE (message.agent, message.tenant, message.owner, message.context) "
        "<> (task.agent, task.tenant, task.owner, sha256(convert_to(task.context, 'UTF8')))",
        "task {0}: its message {1} is in another conversation",
    ),
    (
        "SELECT encode(context, 'hex'), owner FROM context_value AS value WHERE NOT EXISTS "
        "(SELECT 1 FROM message WHERE message.agent = value.agent "
        "AND message.tenant = value.tenant AND message.owner = value.owner "
        "AND message.context = value.context)",
        "the value of context {0} has no task",
    ),
    *integrity.HANGING,
)
COUNTS = """
SELECT agent || ' ' || tenant || ' ' || owner, state, sum(said), sum(number) FROM (
  SELECT agent, tenant, owner, state, number AS said, 0 AS number FROM tally UNION ALL
  SELECT agent, tenant, owner, state, 0, count(*) FROM task WHERE born GROUP BY 1, 2, 3, 4
) AS counts GROUP BY agent, tenant, owner, state HAVING sum(said) <> sum(number)
"""


async def logs(db: Any, key: int) -> tuple[int, int, list[str]] | None:
    """Check the next logs after a key. Returns the last key, the number of logs and their problems;
    None at the end."""
    problems: list[str] = []
    rows: list[PostgresHead] = []
    heavy = seen = 0
    async with db.transaction(isolation="repeatable_read", readonly=True):
        found = await db.fetch(
            f"SELECT {COLUMNS} FROM task WHERE key > $1 ORDER BY key LIMIT $2", key, BATCH
        )
        if not found:
            return None
        for columns in found:
            key = columns[0]
            seen += 1
            try:
                rows.append(PostgresHead.restored(columns))
            except Unreadable as error:
                problems.append(str(error))
                continue
            heavy += rows[-1].size
            if heavy >= HEAVY:
                break
        entries: dict[int, list[Any]] = {row.key: [] for row in rows}
        for task, *columns in await db.fetch(
            "SELECT task, number, turn, kind, body FROM entry WHERE task = ANY($1) "
            "ORDER BY task, number",
            list(entries),
        ):
            entries[task].append(columns)
        beside = await _beside(db, list(entries))
    for row in rows:
        problems += integrity.log(row, entries[row.key], beside[row.key])
    return key, seen, problems


async def _beside(db: Any, keys: list[int]) -> dict[int, Beside]:
    """Return what is stored beside the logs of these keys."""
    found = await db.fetch("SELECT task, number, body FROM snapshot WHERE task = ANY($1)", keys)
    snapshots = {task: (number, body) for task, number, body in found}
    lines: dict[int, list[CursorRow]] = {key: [] for key in keys}
    for task, id, *columns in await db.fetch(
        "SELECT task, id, webhook, attempts, due, reason, ticket FROM line WHERE task = ANY($1) "
        "ORDER BY id",
        keys,
    ):
        lines[task].append(CursorRow(id.decode("utf-8", "backslashreplace"), *columns))
    stubs: dict[int, list[Stub]] = {key: [] for key in keys}
    for task, digest, number in await db.fetch(
        "SELECT task, digest, number FROM receipt WHERE task = ANY($1)", keys
    ):
        stubs[task].append(Stub("", digest, number))
    messages: dict[int, list[tuple[int, str]]] = {key: [] for key in keys}
    for task, *message in await db.fetch(
        "SELECT task, number, at FROM message WHERE task = ANY($1)", keys
    ):
        messages[task].append(tuple(message))
    replays: dict[int, list[tuple[int, bytes]]] = {key: [] for key in keys}
    for task, number, body in await db.fetch(
        "SELECT task, number, body FROM replay_value WHERE task = ANY($1)", keys
    ):
        replays[task].append((number, body))
    return {
        key: Beside(snapshots.get(key), lines[key], stubs[key], messages[key], replays[key])
        for key in keys
    }


async def values(db: Any, place: ValueKey) -> tuple[ValueKey, list[str]] | None:
    """Check the next values of contexts after a position. Returns the position of the last one and
    their problems; None at the end."""
    found = await db.fetch(
        "SELECT agent, tenant, owner, context, version, saver, body FROM context_value "
        "WHERE (agent, tenant, owner, context) > ($1, $2, $3, $4) "
        "ORDER BY agent, tenant, owner, context LIMIT $5",
        *(*place, VALUES),
    )
    problems = [
        f"the value of context {context.hex()}: {problem}"
        for *_, context, version, saver, body in found
        for problem in faults(version, saver, body)
    ]
    return (tuple(found[-1])[:4], problems) if found else None


async def reserved(db: Any, place: tuple[str, str]) -> tuple[tuple[str, str], list[str]] | None:
    """The same for reservations."""
    found = await db.fetch(NEXT_RESERVATIONS, *place, VALUES)
    problems = [
        f"{reservations.named(space, key)}: {problem}"
        for space, key, body, expires in found
        for problem in reservations.faults(space, key, body, expires)
    ]
    return (tuple(found[-1])[:2], problems) if found else None


async def hanging(db: Any) -> list[str]:
    """Check that everything that belongs to a task has one, and that counts are those of the
    tasks."""
    problems = []
    for sql, words in HANGING:
        problems += [words.format(*map(_text, row)) for row in await db.fetch(sql)]
    problems += [integrity.counted(*row) for row in await db.fetch(COUNTS)]
    return problems


def _text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
