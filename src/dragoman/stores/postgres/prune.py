"""Deletes ended tasks, and merges counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from dragoman.model.errors import A2AError
from dragoman.stores.postgres.pool import Pool, Source

SHARDS = 1024
"""Each count is stored in this many parts, so that replicas do not wait for each other."""
MERGED = -1
"""The part that no process counts in. It gets the sums of the parts of processes that are gone."""
FEW = 8
"""How many parts of one count are not merged."""
PAGE = 4096
"""How many parts are read at once; more than one count can have."""
MOST = 256
"""How many tasks are deleted at once. It is no parameter, because the plan of the statement depends
on it."""
LOCK = 0x74616C6C
"""The advisory lock for merging parts."""

CountKey: TypeAlias = tuple[str, str, str, int]
"""A count: agent, tenant, owner, state."""
START: CountKey = ("", "", "", -1)

# Asked for each task, by index: with EXISTS, the database would read all receipts and webhooks for
# a join.
BEHIND = "(SELECT 1 FROM line WHERE line.task = task.key AND behind AND NOT parked LIMIT 1)"
SENT = "(SELECT 1 FROM receipt WHERE receipt.task = task.key LIMIT 1)"
# everything in `old` is gone, and is not counted any more
DROP = """gone AS (DELETE FROM task USING old WHERE task.key = old.key),
entries AS (DELETE FROM entry USING old WHERE entry.task = old.key),
snapshots AS (DELETE FROM snapshot USING old WHERE snapshot.task = old.key),
receipts AS (DELETE FROM receipt USING old WHERE receipt.task = old.key),
messages AS (DELETE FROM message USING old WHERE message.task = old.key),
replays AS (DELETE FROM replay_value USING old WHERE replay_value.task = old.key),
webhooks AS (DELETE FROM line USING old WHERE old.hooked AND line.task = old.key),
counts AS (
  INSERT INTO tally SELECT agent, tenant, owner, state, {shard}, -count(*) FROM old WHERE born
  GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
  ON CONFLICT (agent, tenant, owner, state, shard) DO UPDATE
  SET number = tally.number + excluded.number
)
SELECT whole.number, value.* FROM (SELECT count(*) AS number FROM old) AS whole LEFT JOIN (
  SELECT agent, tenant, owner, context FROM (
    SELECT DISTINCT agent, tenant, owner, sha256(convert_to(context, 'UTF8')) AS context FROM old
  ) AS emptied JOIN context_value USING (agent, tenant, owner, context)
) AS value ON true"""
"""The statement returns the number of tasks, and their contexts that have a value, for
`forget_values`. It returns at least one row."""
OLD = f"""
WITH old AS (
  SELECT key, agent, tenant, owner, context, state, born, hooked FROM task
  WHERE ended >= $1 AND ended < $2
  AND {BEHIND} IS NULL AND (ended < $3 OR {SENT} IS NULL)
  ORDER BY ended LIMIT {MOST} FOR UPDATE SKIP LOCKED
), """ + DROP.format(shard="$4")
"""The statement that deletes some tasks that ended between two times."""


THESE = (
    "WITH old AS (SELECT key, agent, tenant, owner, context, state, born, hooked FROM task "
    "WHERE key = ANY($1::bigint[])), " + DROP.format(shard="$2")
)

_VALUES = "unnest($1::text[], $2::text[], $3::text[], $4::bytea[])"
_OF = "AS u(agent, tenant, owner, context)"
LOCK_VALUES = f"""
SELECT 1 FROM context_value JOIN {_VALUES} {_OF} USING (agent, tenant, owner, context)
ORDER BY agent, tenant, owner, context FOR UPDATE OF context_value
"""
FORGET_VALUES = f"""
DELETE FROM context_value AS value USING {_VALUES} {_OF}
WHERE value.agent = u.agent AND value.tenant = u.tenant AND value.owner = u.owner
AND value.context = u.context AND NOT EXISTS (
  SELECT 1 FROM message WHERE message.agent = u.agent AND message.tenant = u.tenant
  AND message.owner = u.owner AND message.context = u.context
)
"""

CROWDED = """
SELECT agent, tenant, owner, state, count(*), sum(number) FROM (
  SELECT agent, tenant, owner, state, number FROM tally
  WHERE (agent, tenant, owner, state) > ($1, $2, $3, $4)
  ORDER BY agent, tenant, owner, state LIMIT $5
) AS page GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""
# It waits for nobody, so that it and a writer cannot wait for each other. It skips parts in use,
# and the lock makes the part that it adds to its own.
MERGE = f"""
WITH mine AS MATERIALIZED (SELECT pg_try_advisory_xact_lock({LOCK}) AS it),
old AS (
  SELECT tally.agent, tally.tenant, tally.owner, tally.state, tally.shard FROM mine, tally
  JOIN unnest($1::text[], $2::text[], $3::text[], $4::smallint[])
  AS u(agent, tenant, owner, state) USING (agent, tenant, owner, state)
  WHERE mine.it FOR UPDATE OF tally SKIP LOCKED
), gone AS (
  DELETE FROM tally USING old WHERE tally.agent = old.agent AND tally.tenant = old.tenant
  AND tally.owner = old.owner AND tally.state = old.state AND tally.shard = old.shard
  RETURNING tally.agent, tally.tenant, tally.owner, tally.state, tally.number
), merged AS (
  INSERT INTO tally SELECT agent, tenant, owner, state, {MERGED}, sum(number) FROM gone
  GROUP BY 1, 2, 3, 4 HAVING sum(number) <> 0
  ON CONFLICT (agent, tenant, owner, state, shard) DO UPDATE
  SET number = tally.number + excluded.number
)
SELECT count(*) FROM gone
"""


async def delete(pool: Pool, shard: int, floor: float, before: float, receipts: float) -> int:
    """Delete some tasks that ended between two times, and whose receipts are older than a third.
    Returns how many."""
    try:
        async with pool.connection() as db, db.transaction():
            answer = await db.fetch(OLD, floor, before, receipts, shard)
            await forget_values(db, answer)
            return int(answer[0][0])
    except A2AError:
        raise
    except Exception as error:
        raise pool.unavailable(error) from error


async def forget_values(db: Any, answer: Sequence[Any]) -> None:
    """Delete the values of contexts whose last task is gone, from the result of a deletion and in
    its transaction. If two processes delete the last two tasks, the second waits here for the
    first, and then sees its result."""
    found = [tuple(row)[1:] for row in answer if row[1] is not None]
    if found:
        columns = [list(column) for column in zip(*found, strict=True)]
        await db.fetch(LOCK_VALUES, *columns)
        await db.execute(FORGET_VALUES, *columns)


async def merge(source: Source, place: CountKey = START) -> CountKey | None:
    """Merge the parts of the next counts after a position. Returns the last position, or None at
    the end. The sums stay the same, also for concurrent readers and writers."""
    found = await source.fetch(CROWDED, *place, PAGE)
    full = sum(row[4] for row in found) == PAGE
    if full:  # the last count may continue after this batch
        found = found[:-1]
    crowded = [row for row in found if row[4] > FEW or not row[5]]
    if crowded:
        columns = zip(*(tuple(row)[:4] for row in crowded), strict=True)
        await source.fetch(MERGE, *map(list, columns))
    return tuple(found[-1])[:4] if full else None
