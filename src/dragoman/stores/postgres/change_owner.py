"""Giving the tasks of one owner to another."""

from __future__ import annotations

from typing import Any

from dragoman.dialects.v0_1 import PREFIX
from dragoman.stores.admin import Renamed
from dragoman.stores.postgres.schema import LANE
from dragoman.stores.postgres.transaction import MORE

_WHOSE = (
    "owner = $1 AND ($2::text IS NULL OR agent = $2::text) "
    "AND ($3::text IS NULL OR tenant = $3::text)"
)
# in the order in which writers lock them
_LOCK = f"SELECT key FROM task WHERE {_WHOSE} ORDER BY key FOR UPDATE"
_COUNT = f"""
SELECT count(*), count(*) FILTER (WHERE starts_with(id, $4)) FROM task WHERE {_WHOSE}
"""
# those of tasks that are moved; a task that is sent meanwhile stays where it is, with its receipt
_SENT = """
SELECT count(*), count(*) FILTER (WHERE EXISTS (
  SELECT 1 FROM receipt AS other WHERE other.agent = receipt.agent
  AND other.tenant = receipt.tenant AND other.owner = $2 AND other.name = receipt.name
)) FROM receipt WHERE owner = $1 AND task = ANY($3::bigint[])
"""
_DROP = """
DELETE FROM receipt USING receipt AS other WHERE receipt.owner = $1
AND receipt.task = ANY($3::bigint[]) AND other.owner = $2 AND other.agent = receipt.agent
AND other.tenant = receipt.tenant AND other.name = receipt.name
"""
_RECEIPTS = "UPDATE receipt SET owner = $2 WHERE owner = $1 AND task = ANY($3::bigint[])"
# a server that remembers the row reads it again, by its version
_MOVE = f"""
WITH moved AS (
  UPDATE task SET owner = $2, version = {MORE.format("version")}
  WHERE owner = $1 AND key = ANY($3::bigint[])
  RETURNING agent, tenant, state, born
), counts AS (
  SELECT agent, tenant, state, count(*) AS number FROM moved WHERE born GROUP BY 1, 2, 3
)
INSERT INTO tally SELECT agent, tenant, owner, state, 0, number * sign FROM counts
CROSS JOIN (VALUES ($1::text, -1), ($2::text, 1)) AS side(owner, sign)
ORDER BY 1, 2, 3, 4
ON CONFLICT (agent, tenant, owner, state, shard) DO UPDATE
SET number = tally.number + excluded.number
"""
_LANES = (
    f"UPDATE line SET lane = {LANE.format('task')} FROM task WHERE task.key = line.task "
    "AND task.owner = $1 AND task.key = ANY($2::bigint[])"
)


async def rename(
    db: Any, old: str, new: str, *, agent: str | None, tenant: str | None, dry: bool
) -> Renamed:
    """Do it in one transaction; or only count."""
    async with db.transaction(isolation="repeatable_read" if dry else "read_committed"):
        locking = _LOCK.removesuffix(" FOR UPDATE") if dry else _LOCK
        keys = [row[0] for row in await db.fetch(locking, old, agent, tenant)]
        tasks, named = await db.fetchrow(_COUNT, old, agent, tenant, PREFIX)
        receipts, dropped = await db.fetchrow(_SENT, old, new, keys)
        if not dry:
            tasks = len(keys)
            await db.execute(_DROP, old, new, keys)
            await db.execute(_RECEIPTS, old, new, keys)
            await db.execute(_MOVE, old, new, keys)
            await db.execute(_LANES, new, keys)
    return Renamed(tasks, receipts - dropped, dropped, named)
