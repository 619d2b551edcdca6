"""Creates a PostgreSQL store with the tasks of `fill`. The store's own code writes the first task
of each kind; the database copies it under new ids."""

from __future__ import annotations

import asyncpg

from benchmarks import fill
from dragoman.stores.postgres.schema import BLOCK, migrate
from dragoman.stores.postgres.transaction import NAMES, Transaction
from dragoman.stores.unreadable_rows import UnreadableRows

FIRST = 2
"""One that waits, and one that is completed."""
FLOOR = 1000
"""The keys of copies begin behind those of the first."""
_MIXED = f"lpad(to_hex(mod({{0}}::numeric * {fill.MIX}, {1 << 48})::bigint), 12, '0')"
_NAMED = f"""
CREATE TEMP TABLE copied ON COMMIT DROP AS SELECT {FLOOR} + n AS key, seed.key AS seed,
  lpad(to_hex(n >> 16), 8, '0') || '-' || lpad(to_hex(n & 65535), 4, '0') || '-7000-8000-'
  || {_MIXED.format("n")} AS id,
  lpad(to_hex(n / {fill.CONTEXT}), 8, '0') || '-0000-7000-9000-'
  || {_MIXED.format(f"(n / {fill.CONTEXT})")} AS context,
  to_char(to_timestamp({fill.BEGAN} + n / 1000.0) AT TIME ZONE 'UTC',
  'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS changed
FROM generate_series({FIRST}, {{tasks}} - 1) AS n
JOIN task AS seed
  ON seed.id = CASE n % {fill.WAITING} WHEN 0 THEN '{fill.task(0)}' ELSE '{fill.task(1)}' END
"""
_NEW = {"key", "id", "context", "changed"}
_TASKS = "INSERT INTO task SELECT {columns} FROM copied JOIN task ON task.key = copied.seed".format(
    columns=", ".join(f"{'copied' if name in _NEW else 'task'}.{name}" for name in NAMES)
)
_ENTRIES = """
INSERT INTO entry SELECT copied.key, entry.number, entry.turn, entry.kind, convert_to(
  replace(replace(replace(convert_from(entry.body, 'UTF8'), task.id, copied.id),
  task.context, copied.context), task.changed, copied.changed), 'UTF8')
FROM copied JOIN task ON task.key = copied.seed JOIN entry ON entry.task = task.key
"""
_MESSAGES = """
INSERT INTO message SELECT message.agent, message.tenant, message.owner,
  sha256(convert_to(copied.context, 'UTF8')), copied.changed, copied.key, message.number
FROM copied JOIN message ON message.task = copied.seed
"""
_TALLY = """
INSERT INTO tally SELECT agent, tenant, owner, state, 1, count(*)
FROM copied JOIN task ON task.key = copied.key GROUP BY 1, 2, 3, 4
"""


async def _first(db: asyncpg.Connection) -> None:
    """Write the first of each kind."""
    transaction = Transaction(max_task_bytes=1 << 30, shard=0, damage=UnreadableRows())
    await transaction.keys(db, FIRST)
    transaction.now = float(fill.BEGAN)
    for number in range(FIRST):
        transaction.touch(fill.row(transaction, number))
    sql, values, _ = transaction.statement()
    await db.fetch(sql, *values)


async def write(url: str, tasks: int) -> None:
    """Write them into an empty database."""
    db = await asyncpg.connect(url)
    try:
        await migrate(db)
        await _first(db)
        for table in ("task", "entry"):  # it is vacuumed below, and not while it is measured
            await db.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        async with db.transaction():
            for statement in (_NAMED.format(tasks=tasks), _TASKS, _ENTRIES, _MESSAGES, _TALLY):
                await db.execute(statement)
            await db.execute(f"SELECT setval('task_key', {FLOOR + tasks + BLOCK})")
        await db.execute("VACUUM ANALYZE")
        await db.execute("CHECKPOINT")
    finally:
        await db.close()
