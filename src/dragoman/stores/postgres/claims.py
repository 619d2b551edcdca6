"""The claims of one process in PostgreSQL: they are taken, renewed, and released if their task
cannot be read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.model.errors import Unavailable
from dragoman.model.events import Received
from dragoman.model.lifecycle import birth
from dragoman.model.types import TaskState
from dragoman.stores.cache import LogCache
from dragoman.stores.claim_order import fair
from dragoman.stores.codec import entry
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.postgres.queue import CLAIM, Others
from dragoman.stores.postgres.transaction import MORE, NAMES, NOW, PostgresHead, Transaction
from dragoman.stores.sql_store import UNREADABLE
from dragoman.stores.store import NOBODY, Claim, Owner, Renewal, Unreadable, owner_of
from dragoman.stores.unreadable_rows import ASIDE, DECODING, PAUSE, UnreadableRows

if TYPE_CHECKING:
    from dragoman.stores.postgres import PostgresStore

DRAINED = 1.5
"""For how long an empty queue counts as empty; longer than the interval of polls."""

# A row that is being written is renewed the next time: if this waited for many rows while appends
# wait for some of them, it would be a deadlock.
RENEW = f"""
WITH mine AS (
  SELECT task.key, task.id, task.epoch, task.cancel_at FROM task
  JOIN unnest($1::text[], $2::int[]) AS u(id, epoch) USING (id, epoch)
), late AS (
  SELECT task.key FROM task JOIN mine USING (key, epoch)
  WHERE task.lease - {NOW} < $3 * 2 / 3 FOR NO KEY UPDATE OF task SKIP LOCKED
), renewed AS (
  UPDATE task SET lease = {NOW} + $3 FROM late WHERE task.key = late.key
)
SELECT id, cancel_at > 0 FROM mine
"""
SET_ASIDE = f"""
UPDATE task SET ready = NULL, holder = $2, lease = {NOW} + $3,
  epoch = {MORE.format("epoch")}, version = {MORE.format("version")} WHERE {{}} = $1
"""
MESSAGE = "SELECT turn, kind, body FROM entry WHERE task = $1 AND number = $2"


def message(task: str, number: int, columns: Any) -> Received:
    """Decode the message of the columns that `MESSAGE` selects. Raises Unreadable."""
    try:
        event = entry(number, *columns).event
        assert isinstance(event, Received)
    except DECODING as error:
        raise Unreadable("log", task, error) from None
    return event


class Claims:
    """Claims tasks for the workers of this process."""

    def __init__(
        self,
        store: PostgresStore,
        pool: Pool,
        transaction: Transaction,
        cache: LogCache,
        damage: UnreadableRows,
    ) -> None:
        self._store = store
        self._pool = pool
        self._transaction = transaction
        self._cache = cache
        self._damage = damage
        # a separate connection: claims are renewed while all others are busy
        self._renewing = pool.hold()
        self.others = Others()
        self._drained = -DRAINED
        """When this process last claimed everything that waited."""

    async def close(self) -> None:
        """Close the connection for renewals."""
        await self._renewing.end()

    def accepted_here(
        self,
        transaction: Transaction,
        agents: Sequence[str],
        worker: str,
        lease: float,
        limit: int,
        passing: Collection[Owner],
        spare: int,
    ) -> Sequence[Claim]:
        """Claim what this process has just accepted, unless older tasks wait."""
        taken: list[Claim] = []
        if time.monotonic() - self._drained > DRAINED or self._drained <= transaction.left:
            return taken
        rows = [row for agent in agents for row in transaction.fresh(agent)]
        if len(rows) > limit:
            rows = fair(rows, passing)[:limit]
        passed = [row for row in rows if owner_of(row.scope) in passing] if passing else []
        for row in rows:
            if row in passed[spare:]:
                continue
            assert row.latest is not None  # it was accepted together with it
            received = row.latest[1]
            row.take(worker, transaction.now + lease)
            taken.append(row.claim(birth(received), received))
        return taken

    async def take(
        self,
        here: asyncio.Future[Sequence[Claim]],
        agents: Sequence[str],
        worker: str,
        lease: float,
        limit: int,
        passing: Collection[Owner],
        spare: int,
    ) -> Sequence[Claim]:
        """Return the claims of `accepted_here`; if there are none, claim what waits in the
        database."""
        if taken := list(await here):
            return taken
        looked, left = time.monotonic(), limit
        for passed in (passing, NOBODY) if passing else (NOBODY,):
            if passing and not passed:
                left = min(left, spare)
            rest = list(agents)
            while rest and left:
                # each agent gets its share, so that a busy agent does not starve the others
                share = max(1, left // len(rest))
                agent = rest.pop(0)
                # If this fails, the claims that were made before are lost; see `Store.held`.
                if passed:
                    found = await self.others.claim(self._pool, agent, share, worker, lease, passed)
                else:
                    found = await self._pool.fetch(CLAIM, agent, share, worker, lease)
                if len(found) >= share:
                    rest.append(agent)
                claims = [claim for row in found if (claim := await self._readable(row))]
                taken += claims
                left -= len(claims)
        if left:
            self._drained = looked
        return taken

    async def _readable(self, columns: Any) -> Claim | None:
        """Return the claim of a claimed row. An unreadable one does not delay the others."""
        try:
            row = PostgresHead.restored(columns[: len(NAMES)])
        except Unreadable as error:
            await self.set_aside(columns[0], error)
            return None
        self._transaction.prime(row)
        head = row.head()
        self._cache.publish([(head.id, head, (), 0)])
        try:
            written = columns[len(NAMES) :]
            # it was added after the start of the statement that claimed its task
            if written[0] is None:
                (written,) = await self._pool.fetch(MESSAGE, row.key, head.turn)
            received = message(head.id, head.turn, written)
            task = birth(received)
            if head.turn > 1:
                folded = await self._store.load(head.scope, head.id)
                assert folded is not None  # a claimed task is not deleted
                task = folded.task
            return Claim(head=head, task=task, received=received)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - every error concerns this task alone
            if not isinstance(error, Unreadable):
                error = Unreadable("log", head.id, error)
            self._damage.found(error, "the task has failed")
            ending = head.ending(TaskState.FAILED, UNREADABLE)
            await self._store.revoke(head, ending, begun=False)
            return None

    async def renew(self, claims: Collection[Claim], lease: float) -> Renewal:
        """See `Store.renew`."""
        named = {claim.head.id: claim.epoch for claim in claims}
        found = await self._renewing.fetch(RENEW, list(named), list(named.values()), float(lease))
        held = dict(found)
        lost = [task for task in named if task not in held]
        return Renewal(lost, [task for task, canceling in held.items() if canceling])

    async def set_aside(self, task: str | int, error: Unreadable) -> None:
        """Set a task with an unreadable head aside, by its id or its key."""
        which = "key" if isinstance(task, int) else "id"
        await self._pool.fetch(SET_ASIDE.format(which), task, ASIDE, PAUSE)
        self._damage.found(error, "the task is set aside")
