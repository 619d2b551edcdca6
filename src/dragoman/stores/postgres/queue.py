"""The queue in PostgreSQL: ready tasks, in the order of ranks.

The column `ready` is the rank. Its values are as large as times, which it had in older versions, so
that replicas of both versions can claim from one queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from dragoman.model.caller import Scope
from dragoman.stores.claim_order import RANKED, QueueRanks, owners
from dragoman.stores.postgres.pool import Source
from dragoman.stores.postgres.transaction import COLUMNS, MORE, NEXT, NOW
from dragoman.stores.store import UNTIMED, Owner

_TIMED = f"split_part(plan, ',', 1) <> ALL ('{{{','.join(map(str, UNTIMED))}}}')"
"""Waits for something other than a message. NULL, which is not true, if no handler is suspended."""
_TAKEN = f"""
taken AS (
  UPDATE task SET epoch = {MORE.format("epoch")}, version = {MORE.format("version")},
  attempt = {MORE.format("attempt")}, holder = $3, lease = {NOW} + $4,
  turn = CASE WHEN inbox = '' OR {_TIMED} THEN turn ELSE {NEXT.format("inbox")} END,
  ready = NULL
  FROM next WHERE task.key = next.key RETURNING task.*, next.ready AS waited
)
SELECT {COLUMNS}, entry.turn, entry.kind, entry.body
FROM taken AS task LEFT JOIN entry ON entry.task = task.key AND entry.number = task.turn
ORDER BY task.waited, task.key
"""
START = ("", "")
CLAIM = f"""
WITH next AS (
  SELECT key, ready FROM task WHERE agent = $1 AND ready IS NOT NULL ORDER BY ready, key LIMIT $2
  FOR UPDATE SKIP LOCKED
), {_TAKEN}
"""
# From owner to owner: the waiting tasks of each are not read.
_OWNERS = """
WITH RECURSIVE owners AS (
  (SELECT tenant, owner, 1 AS place FROM task WHERE agent = $1 AND ready IS NOT NULL
  AND (tenant, owner) >= ($2::text, $3::text) ORDER BY tenant, owner LIMIT 1)
  UNION ALL
  SELECT other.tenant, other.owner, owners.place + 1 FROM owners CROSS JOIN LATERAL (
    SELECT task.tenant, task.owner FROM task WHERE agent = $1 AND ready IS NOT NULL
    AND (task.tenant, task.owner) > (owners.tenant, owners.owner)
    ORDER BY task.tenant, task.owner LIMIT 1
  ) AS other WHERE owners.place < $4
)
SELECT tenant, owner FROM owners ORDER BY place
"""
_THEIRS = f"""
WITH found AS (
  SELECT first.key FROM unnest($5::text[], $6::text[]) AS u(tenant, owner) CROSS JOIN LATERAL (
    SELECT key, ready FROM task WHERE agent = $1 AND tenant = u.tenant AND owner = u.owner
    AND ready IS NOT NULL ORDER BY ready LIMIT $2
  ) AS first ORDER BY first.ready, first.key LIMIT $2
), next AS (
  SELECT key, ready FROM task WHERE key IN (SELECT key FROM found) AND ready IS NOT NULL
  FOR UPDATE SKIP LOCKED
), {_TAKEN}
"""
_PROBE = f"""
SELECT u.place, (SELECT ready FROM task WHERE agent = u.agent AND {RANKED}
ORDER BY ready LIMIT 1), (SELECT ready FROM task WHERE agent = u.agent AND tenant = u.tenant
AND owner = u.owner AND {RANKED} ORDER BY ready DESC LIMIT 1)
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS u(place, agent, tenant, owner)
"""


async def probe(db: Source, scopes: Iterable[Scope]) -> dict[str, QueueRanks]:
    """Return what waits for these agents and owners."""
    named = list(dict.fromkeys(scopes))
    queues: dict[str, QueueRanks] = {}
    for place, lowest, highest in await db.fetch(
        _PROBE,
        list(range(len(named))),
        [scope.agent for scope in named],
        [scope.tenant for scope in named],
        [scope.owner for scope in named],
    ):
        scope = named[place]
        queues.setdefault(scope.agent, QueueRanks(lowest)).highest[scope] = highest
    return queues


class Others:
    """Claims ready tasks of owners that are not skipped."""

    def __init__(self) -> None:
        self._after: dict[str, Owner] = {}
        """Where the search for owners continues."""

    async def claim(
        self,
        db: Source,
        agent: str,
        limit: int,
        worker: str,
        lease: float,
        passing: Collection[Owner],
    ) -> list[Any]:
        """Return up to this many rows. If there are fewer, there are no more."""
        window = owners(limit)
        found: list[Any] = []
        after = began = self._after.pop(agent, START)
        while True:
            named = [tuple(row) for row in await db.fetch(_OWNERS, agent, *after, window)]
            wanted = [each for each in named if each not in passing]
            if wanted:
                tenants, names = (list(column) for column in zip(*wanted, strict=True))
                left = limit - len(found)
                found += await db.fetch(_THEIRS, agent, left, worker, lease, tenants, names)
            more = len(named) == window
            if more:
                self._after[agent] = named[-1]
            if len(found) >= limit or not (more or began != START):
                return found
            if not more:  # from the beginning to the start of the search
                began = START
            after = named[-1] if more else START
