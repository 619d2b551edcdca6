"""The lines of webhooks in PostgreSQL. A line is taken by whoever comes first, for a while."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dragoman.caller import Scope
from dragoman.store import Line, Party
from dragoman.stores.codec import decode_webhook
from dragoman.stores.lanes import Lane, Turns
from dragoman.stores.postgres.ledger import ASKED, NOW
from dragoman.stores.postgres.link import Link, Source
from dragoman.stores.postgres.schema import LANE

LINE = (
    "task.agent, task.tenant, task.owner, task.id, line.webhook, line.cursor, line.attempts, "
    "line.due, line.parked, line.reason, line.ticket"
)

_TAKEN = f"""taken AS (
  UPDATE line SET ticket = ticket + 1, due = {NOW} + $3 FROM due
  WHERE line.task = due.task AND line.id = due.id RETURNING line.*
)
SELECT {LINE.replace("line.", "taken.")} FROM taken JOIN task ON task.key = taken.task
"""
TAKE = f"""
WITH due AS (
  SELECT task, id FROM line WHERE agent = ANY($1::text[]) AND behind AND NOT parked
  AND due <= {ASKED} ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED
), {_TAKEN}"""
TAKE_OF = f"""
WITH due AS (
  SELECT found.task, found.id FROM unnest($1::text[], $4::bigint[]) AS asked (agent, lane)
  CROSS JOIN LATERAL (
    SELECT task, id FROM line WHERE line.agent = asked.agent AND line.lane = asked.lane
    AND behind AND NOT parked AND line.due <= {ASKED} ORDER BY line.due LIMIT $2
    FOR UPDATE SKIP LOCKED
  ) AS found
), {_TAKEN}"""
WALK = f"""
WITH RECURSIVE walk AS (
  (SELECT lane, due, 1 AS step FROM line WHERE agent = $1 AND behind AND NOT parked AND lane > $2
   ORDER BY lane, due LIMIT 1)
  UNION ALL
  SELECT next.lane, next.due, walk.step + 1 FROM walk CROSS JOIN LATERAL (
    SELECT lane, due FROM line WHERE agent = $1 AND behind AND NOT parked AND lane > walk.lane
    ORDER BY lane, due LIMIT 1
  ) AS next WHERE walk.step < $3
)
SELECT lane, due <= {ASKED} FROM walk
"""
PASSED = (
    f"SELECT {LANE.format('asked')} FROM unnest($1::text[], $2::text[]) AS asked (tenant, owner)"
)
# The head is read under its lock: an append that is under way sets `behind` before or after this,
# never in between.
RECORD = f"""
WITH head AS (SELECT key, last FROM task WHERE id = $1 FOR SHARE)
UPDATE line SET cursor = $4, behind = $4 < head.last, due = {NOW} + $5, parked = $6,
  attempts = CASE WHEN $7 <> '' THEN attempts + 1 WHEN cursor = $4 THEN attempts ELSE 0 END,
  reason = CASE WHEN $7 = '' AND cursor = $4 THEN reason ELSE $7 END
FROM head WHERE line.task = head.key AND line.id = $2 AND line.ticket = $3 RETURNING 1
"""


def line(columns: Any) -> Line:
    """The line of these columns; its secrets as they are stored."""
    agent, tenant, owner, task, webhook, cursor, attempts, due, parked, reason, ticket = columns
    return Line(
        scope=Scope(agent, tenant, owner),
        task=task,
        webhook=decode_webhook(webhook),
        cursor=cursor,
        attempts=attempts,
        due=due,
        parked=parked,
        reason=reason,
        ticket=ticket,
    )


async def take(link: Link, agents: Collection[str], limit: int, lease: float) -> Sequence[Line]:
    """Take those that are due, the longest first."""
    found = await link.fetch(TAKE, list(agents), limit, lease)
    return sorted(map(line, found), key=lambda item: item.due)


async def take_of(link: Link, lanes: Sequence[Lane], limit: int, lease: float) -> Sequence[Line]:
    """Take those that are due in these lanes, as many of each."""
    each = max(1, limit // max(1, len(lanes)))
    agents, places = [agent for agent, _ in lanes[:limit]], [lane for _, lane in lanes[:limit]]
    return [line(each) for each in await link.fetch(TAKE_OF, agents, each, lease, places)]


async def due_lanes(
    link: Link, turns: Turns, agents: Collection[str], limit: int, passing: Collection[Party]
) -> Sequence[Lane]:
    """The next lanes in which something is due, but for those of owners that are passed over."""
    passed = set[int]()
    if passing:
        tenants, owners = [tenant for tenant, _ in passing], [owner for _, owner in passing]
        passed = {row[0] for row in await link.fetch(PASSED, tenants, owners)}
    found: list[Lane] = []
    for agent in agents:

        async def walk(after: int, most: int, agent: str = agent) -> Sequence[tuple[int, bool]]:
            return [tuple(row) for row in await link.fetch(WALK, agent, after, most)]

        found += await turns.due(agent, walk, limit, passed)
    return found


async def record(
    link: Link, line: Line, cursor: int, *, wait: float, failed: str, parked: bool
) -> bool:
    """Record what came of a line that was taken; False if it is not the taker's any more."""
    reason = failed.replace("\0", "")
    id = key(line.webhook.config.id)
    values = (line.task, id, line.ticket, cursor, float(wait), parked, reason)
    return bool(await link.fetch(RECORD, *values))


async def waiting(link: Link, limit: int, parked: bool | None) -> Sequence[Line]:
    """Lines with something to deliver."""
    kinds = {None: ("parked", "NOT parked"), True: ("parked",), False: ("NOT parked",)}[parked]
    part = "(SELECT * FROM line WHERE behind AND {} ORDER BY due LIMIT $1)"
    found = await link.fetch(
        f"SELECT {LINE} FROM ({' UNION ALL '.join(map(part.format, kinds))}) AS line "
        "JOIN task ON task.key = line.task ORDER BY line.due LIMIT $1",
        limit,
    )
    return [line(columns) for columns in found]


async def redrive(link: Source, task: str, webhook: str) -> int:
    """Let parked lines go on."""
    found = await link.fetch(
        "UPDATE line SET parked = false, attempts = 0, due = 0 WHERE parked "
        "AND ($1 = '' OR task = (SELECT key FROM task WHERE id = $1)) "
        "AND ($2::bytea = '' OR id = $2) RETURNING 1",
        task,
        key(webhook),
    )
    return len(found)


def key(id: str) -> bytes:
    """The id of a webhook, which callers choose, as it is kept."""
    return id.encode("utf-8", "surrogatepass")
