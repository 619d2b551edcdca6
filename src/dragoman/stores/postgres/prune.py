"""Deletion of ended tasks, and merging of counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from dragoman.stores.postgres.pool import Source

SHARDS = 1024
"""Counts are kept in so many parts, so that replicas do not wait for each other."""
MERGED = -1
"""The part that nobody counts in: what processes that are gone have left is added up there."""
FEW = 8
"""So many parts of one count are left alone."""
PAGE = 4096
"""So many parts are looked at at once; more than one count can have."""
MOST = 256
"""So many tasks are forgotten at once. It is no parameter: how many there are decides how to."""
LOCK = 0x74616C6C
"""The advisory lock of whoever adds them up."""

Place: TypeAlias = tuple[str, str, str, int]
"""A count: agent, tenant, owner, state."""
START: Place = ("", "", "", -1)

# Asked for each task, by index: as EXISTS, all receipts and lines would be read to be joined.
BEHIND = "(SELECT 1 FROM line WHERE line.task = task.key AND behind AND NOT parked LIMIT 1)"
SENT = "(SELECT 1 FROM receipt WHERE receipt.task = task.key LIMIT 1)"
# whatever `old` names is gone, and is not counted any more
DROP = """gone AS (DELETE FROM task USING old WHERE task.key = old.key),
entries AS (DELETE FROM entry USING old WHERE entry.task = old.key),
snapshots AS (DELETE FROM snapshot USING old WHERE snapshot.task = old.key),
receipts AS (DELETE FROM receipt USING old WHERE receipt.task = old.key),
messages AS (DELETE FROM message USING old WHERE message.task = old.key),
hooks AS (DELETE FROM line USING old WHERE old.hooked AND line.task = old.key),
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
"""The statement answers with the number of tasks, and the contexts of these that have a value: for
`forget_values`. There is one row at least."""
OLD = f"""
WITH old AS (
  SELECT key, agent, tenant, owner, context, state, born, hooked FROM task
  WHERE ended >= $1 AND ended < $2
  AND {BEHIND} IS NULL AND (ended < $3 OR {SENT} IS NULL)
  ORDER BY ended LIMIT {MOST} FOR UPDATE SKIP LOCKED
), """ + DROP.format(shard="$4")
"""The statement that forgets some that ended in between."""


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
# It waits for nobody, so that no writer and it can wait for each other: parts in use are passed
# over, and the part that it adds to is only its own, by the lock.
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


async def forget_values(db: Any, answer: Sequence[Any]) -> None:
    """Delete the values of contexts whose last task is gone, by what a statement that forgot tasks
    has answered. It belongs into that one's transaction. Of two processes that each forget one of
    the last two tasks, the second waits for the first here, and then sees what it has done."""
    found = [tuple(row)[1:] for row in answer if row[1] is not None]
    if found:
        columns = [list(column) for column in zip(*found, strict=True)]
        await db.fetch(LOCK_VALUES, *columns)
        await db.execute(FORGET_VALUES, *columns)


async def merge(source: Source, place: Place = START) -> Place | None:
    """Add up the parts of the next counts after a place; where it ended, None at the last one.
    Sums are the same before and after, whoever writes and reads meanwhile."""
    found = await source.fetch(CROWDED, *place, PAGE)
    full = sum(row[4] for row in found) == PAGE
    if full:  # the last one may go on
        found = found[:-1]
    crowded = [row for row in found if row[4] > FEW or not row[5]]
    if crowded:
        columns = zip(*(tuple(row)[:4] for row in crowded), strict=True)
        await source.fetch(MERGE, *map(list, columns))
    return tuple(found[-1])[:4] if full else None
