"""Gives the tasks of one owner to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.dialects.versions import CHOSEN_ID_PREFIX
from dragoman.model.caller import Scope
from dragoman.security.encryption import Encryption
from dragoman.stores.admin import Renamed
from dragoman.stores.context_values import decrypt_value, encrypt_value, encrypted
from dragoman.stores.postgres.context_values import DIGEST
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
# Receipts of moved tasks. A task that is created meanwhile stays where it is, with its receipt.
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
_MESSAGES = "UPDATE message SET owner = $2 WHERE owner = $1 AND task = ANY($3::bigint[])"
# a server that has the row in its cache reads it again, because of its version
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
# values of contexts in which a task is moved
_VALUES = f"""
SELECT value.agent, value.tenant, value.context, EXISTS (
  SELECT 1 FROM context_value AS other WHERE other.agent = value.agent
  AND other.tenant = value.tenant AND other.owner = $2 AND other.context = value.context
) FROM (
  SELECT DISTINCT agent, tenant, {DIGEST} AS context FROM task WHERE key = ANY($3::bigint[])
) AS moved JOIN context_value AS value ON value.agent = moved.agent
AND value.tenant = moved.tenant AND value.owner = $1 AND value.context = moved.context
"""
_VALUE = "agent = $1 AND tenant = $2 AND context = $3 AND owner = $4"
_LANES = (
    f"UPDATE line SET lane = {LANE.format('task')} FROM task WHERE task.key = line.task "
    "AND task.owner = $1 AND task.key = ANY($2::bigint[])"
)


async def rename(
    db: Any,
    old: str,
    new: str,
    *,
    agent: str | None,
    tenant: str | None,
    dry: bool,
    encryption: Encryption,
) -> Renamed:
    """Move the tasks in one transaction; or only count them. Raises UnknownEntry if a value is
    encrypted and the key is missing."""
    async with db.transaction(isolation="repeatable_read" if dry else "read_committed"):
        locking = _LOCK.removesuffix(" FOR UPDATE") if dry else _LOCK
        keys = [row[0] for row in await db.fetch(locking, old, agent, tenant)]
        tasks, named = await db.fetchrow(_COUNT, old, agent, tenant, CHOSEN_ID_PREFIX)
        receipts, dropped = await db.fetchrow(_SENT, old, new, keys)
        values = await db.fetch(_VALUES, old, new, keys)
        doubles = sum(double for *_, double in values)
        if not dry:
            tasks = len(keys)
            await _move_values(db, old, new, values, encryption)
            await db.execute(_DROP, old, new, keys)
            await db.execute(_RECEIPTS, old, new, keys)
            await db.execute(_MESSAGES, old, new, keys)
            await db.execute(_MOVE, old, new, keys)
            await db.execute(_LANES, new, keys)
    return Renamed(tasks, receipts - dropped, dropped, named, len(values) - doubles, doubles)


async def _move_values(
    db: Any, old: str, new: str, values: Sequence[Any], encryption: Encryption
) -> None:
    """Give the values of contexts to another owner. The values that the new owner has stay
    unchanged."""
    for agent, tenant, context, double in values:
        where = (agent, tenant, context, old)
        if double:
            await db.execute(f"DELETE FROM context_value WHERE {_VALUE}", *where)
            continue
        body = await db.fetchval(
            f"SELECT body FROM context_value WHERE {_VALUE} FOR UPDATE", *where
        )
        if encrypted(body):  # the encryption is bound to the owner
            value = decrypt_value(body, Scope(agent, tenant, old), context, encryption)
            body = encrypt_value(value, Scope(agent, tenant, new), context, encryption)
        await db.execute(
            f"UPDATE context_value SET owner = $5, body = $6 WHERE {_VALUE}", *where, new, body
        )
