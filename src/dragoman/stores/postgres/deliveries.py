"""Webhook cursors in PostgreSQL. One process at a time holds a cursor, with a lease."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.model.caller import Scope
from dragoman.stores.codec import stub, webhook_of
from dragoman.stores.delivery_order import DeliveryOrder, Lane
from dragoman.stores.postgres.pool import Pool, Source
from dragoman.stores.postgres.schema import LANE
from dragoman.stores.postgres.transaction import ASKED, NOW
from dragoman.stores.store import Owner, Unreadable, Webhook, WebhookCursor
from dragoman.stores.unreadable_rows import DECODING, UnreadableRows

LINE = (
    "line.task, line.id, task.agent, task.tenant, task.owner, task.id, line.webhook, "
    "line.cursor, line.attempts, line.due, line.parked, line.reason, line.ticket"
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
# The head is read under its lock: a concurrent append sets `behind` before or after this, never in
# between.
RECORD = f"""
WITH head AS (SELECT key, last FROM task WHERE id = $1 FOR SHARE)
UPDATE line SET cursor = $4, behind = $4 < head.last, due = {NOW} + $5, parked = $6,
  attempts = CASE WHEN $7 <> '' THEN attempts + 1 WHEN cursor = $4 THEN attempts ELSE 0 END,
  reason = CASE WHEN $7 = '' AND cursor = $4 THEN reason ELSE $7 END
FROM head WHERE line.task = head.key AND line.id = $2 AND line.ticket = $3 RETURNING 1
"""


PARK = "UPDATE line SET parked = true, reason = $3, ticket = ticket + 1 WHERE task = $1 AND id = $2"


def line(columns: Any) -> WebhookCursor:
    """Return the cursor of these columns, with its secrets as stored. Raises Unreadable."""
    _, id, _, _, _, task, webhook, *_ = columns
    try:
        return _line(columns, webhook_of(webhook, named(id), task))
    except DECODING as error:
        raise Unreadable("webhook", task, f"{id!r}: {error}") from None


def shown(columns: Any) -> WebhookCursor:
    """Return the cursor for an operator. An unreadable one has no URL."""
    try:
        return line(columns)
    except Unreadable as error:
        id, task = columns[1], columns[5]
        name = id.decode("utf-8", "backslashreplace")
        return replace(_line(columns, stub(name, task)), reason=str(error))


def named(id: bytes) -> str:
    """Return the id of a webhook, as its caller chose it."""
    return id.decode("utf-8", "surrogatepass")


def _line(columns: Any, webhook: Webhook) -> WebhookCursor:
    _, _, agent, tenant, owner, task, _, cursor, attempts, due, parked, reason, ticket = columns
    return WebhookCursor(
        scope=Scope(agent, tenant, owner),
        task=task,
        webhook=webhook,
        cursor=cursor,
        attempts=attempts,
        due=due,
        parked=parked,
        reason=reason,
        ticket=ticket,
    )


async def take(
    pool: Pool, agents: Collection[str], limit: int, lease: float, damage: UnreadableRows
) -> Sequence[WebhookCursor]:
    """Lease the webhooks that have been due for the longest time. Unreadable ones are parked."""
    found: list[WebhookCursor] = []
    more = True
    while more and len(found) < limit:
        taken = await pool.fetch(TAKE, list(agents), limit - len(found), lease)
        more = await _read(pool, taken, found, damage)
    return sorted(found, key=lambda item: item.due)


async def take_of(
    pool: Pool, lanes: Sequence[Lane], limit: int, lease: float, damage: UnreadableRows
) -> Sequence[WebhookCursor]:
    """Lease webhooks that are due in these lanes, the same number in each. Unreadable ones are
    parked."""
    found: list[WebhookCursor] = []
    more = True
    while more and (left := limit - len(found)) > 0:
        each = max(1, left // max(1, len(lanes)))
        agents, places = [agent for agent, _ in lanes[:left]], [lane for _, lane in lanes[:left]]
        taken = await pool.fetch(TAKE_OF, agents, each, lease, places)
        more = await _read(pool, taken, found, damage)
    return found


async def _read(
    pool: Pool, taken: Iterable[Any], found: list[WebhookCursor], damage: UnreadableRows
) -> bool:
    """Decode leased webhooks. Returns whether some were unreadable and were parked, so that others
    can replace them."""
    parked = False
    for columns in taken:
        try:
            found.append(line(columns))
        except Unreadable as error:
            parked = True
            damage.found(error, "the webhook is parked")
            await pool.fetch(PARK, *columns[:2], f"it cannot be read: {error.why}")
    return parked


async def due_lanes(
    pool: Pool,
    turns: DeliveryOrder,
    agents: Collection[str],
    limit: int,
    passing: Collection[Owner],
) -> Sequence[Lane]:
    """Return the next lanes in which something is due, without those of skipped owners."""
    passed = set[int]()
    if passing:
        tenants, owners = [tenant for tenant, _ in passing], [owner for _, owner in passing]
        passed = {row[0] for row in await pool.fetch(PASSED, tenants, owners)}
    found: list[Lane] = []
    for agent in agents:

        async def walk(after: int, most: int, agent: str = agent) -> Sequence[tuple[int, bool]]:
            return [tuple(row) for row in await pool.fetch(WALK, agent, after, most)]

        found += await turns.due(agent, walk, limit, passed)
    return found


async def record(
    pool: Pool, line: WebhookCursor, cursor: int, *, wait: float, failed: str, parked: bool
) -> bool:
    """Record the result of a delivery. Returns False if the lease was lost."""
    reason = failed.replace("\0", "")
    id = key(line.webhook.config.id)
    values = (line.task, id, line.ticket, cursor, float(wait), parked, reason)
    return bool(await pool.fetch(RECORD, *values))


async def waiting(pool: Pool, limit: int, parked: bool | None) -> Sequence[WebhookCursor]:
    """Return webhooks with undelivered events."""
    kinds = {None: ("parked", "NOT parked"), True: ("parked",), False: ("NOT parked",)}[parked]
    part = "(SELECT * FROM line WHERE behind AND {} ORDER BY due LIMIT $1)"
    found = await pool.fetch(
        f"SELECT {LINE} FROM ({' UNION ALL '.join(map(part.format, kinds))}) AS line "
        "JOIN task ON task.key = line.task ORDER BY line.due LIMIT $1",
        limit,
    )
    return [shown(columns) for columns in found]


async def redrive(pool: Source, task: str, webhook: str) -> int:
    """Resume parked webhooks."""
    found = await pool.fetch(
        "UPDATE line SET parked = false, attempts = 0, due = 0 WHERE parked "
        "AND ($1 = '' OR task = (SELECT key FROM task WHERE id = $1)) "
        "AND ($2::bytea = '' OR id = $2) RETURNING 1",
        task,
        key(webhook),
    )
    return len(found)


def key(id: str) -> bytes:
    """Return the stored form of a webhook's id, which callers choose."""
    return id.encode("utf-8", "surrogatepass")
