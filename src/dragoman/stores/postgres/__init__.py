"""Logs in PostgreSQL, for any number of machines. All times are those of the database."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import msgspec

from dragoman.model.caller import Scope
from dragoman.model.errors import A2AError, TaskNotFound, Unavailable
from dragoman.model.events import CancelRequested, Entry, Received
from dragoman.model.lifecycle import birth
from dragoman.model.types import TaskState, TaskStatusUpdateEvent
from dragoman.security.encryption import Encryption, Undecryptable
from dragoman.server.settings import MAX_TASK_BYTES, Settings
from dragoman.stores import log_changes
from dragoman.stores.cache import LogCache
from dragoman.stores.claim_order import fair
from dragoman.stores.codec import body, entry, secrets, webhook_of
from dragoman.stores.delivery_order import DeliveryOrder
from dragoman.stores.encrypted_values import decrypt_private, decrypted, encrypt_private
from dragoman.stores.postgres import context_values, deliveries, reservations
from dragoman.stores.postgres.pool import Pool, place
from dragoman.stores.postgres.prune import MOST, OLD, SHARDS, START, forget_values, merge
from dragoman.stores.postgres.queries import Queries
from dragoman.stores.postgres.queue import CLAIM, Others
from dragoman.stores.postgres.schema import Unusable, usable
from dragoman.stores.postgres.transaction import MORE, NAMES, NOW, PostgresHead, Transaction
from dragoman.stores.postgres.writer import Writer
from dragoman.stores.reservations import (
    PRUNE_AT_ONCE,
    PRUNE_EVERY,
    decode_value,
    encode_value,
)
from dragoman.stores.store import (
    MANY,
    NOBODY,
    PROBE,
    WRITTEN,
    Accepted,
    Census,
    Claim,
    ContextValue,
    Draft,
    Head,
    MessagePlace,
    Owner,
    Page,
    Pause,
    Query,
    Receipt,
    Record,
    Renewal,
    Stale,
    Unreadable,
    Webhook,
    WebhookCursor,
    owner_of,
)
from dragoman.stores.task_reads import Folded
from dragoman.stores.unreadable_rows import ASIDE, DECODING, PAUSE, UnreadableRows
from dragoman.stores.url_options import split
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.stores.postgres.admin import PostgresAdmin

T = TypeVar("T")

WHILE = 1.0
"""For this many seconds, what this process has written is read from memory. Only operators can
delete it meanwhile, from other processes."""
SWEEP = 600.0
"""How often tasks that are old enough, but had to stay, are checked again."""
DRAINED = 1.5
"""For how long an empty queue counts as empty; longer than the interval of polls."""
WOKEN_AT_ONCE = 100
"""How many tasks whose time has come are made ready in one statement."""
CLOSE = 5.0
"""How long running work may take at the end."""
RECEIPTS = 24 * 3600.0
"""How long a repeated send is recognised, at least."""
UNREADABLE = "The log of this task cannot be read"

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
ENTRY = "SELECT turn, kind, body FROM entry WHERE task = $1 AND number = $2"


class Duplicate(msgspec.Struct, frozen=True):
    """An earlier request."""

    head: Head
    key: int
    number: int


class PostgresStore:
    """The store in a database that other processes use too."""

    shared = True

    def __init__(
        self,
        url: str,
        *,
        retention: float = 0.0,
        max_task_bytes: int = MAX_TASK_BYTES,
        encryption: Encryption | None = None,
        pool_size: int = 8,
        migrate: bool = True,
        prepared: bool = True,
    ) -> None:
        self.id = ""
        self.url = url
        self.retention = retention
        """How long a task is kept after its end; 0 is for ever."""
        self.max_task_bytes = max_task_bytes
        self.migrate = migrate
        """Whether to update older tables; otherwise they are refused."""
        self._damage = UnreadableRows()
        self.unreadable: Mapping[str, int] = self._damage.counts
        self._encryption = encryption or Encryption(())
        self._pool = Pool(url, size=pool_size, prepared=prepared)
        self.bell = url
        self.name = place(url)
        self._shard = random.randrange(SHARDS)
        self._drained = -DRAINED
        """When this process last claimed everything that waited."""
        self._others = Others()
        self._turn = 0
        self._floor = 0.0
        self._turns = DeliveryOrder()
        self._swept = self._reservations_swept = -math.inf
        self._merged = START
        self._working: set[asyncio.Future[Any]] = set()

    def admin(self, *, write: bool = False, create: bool = False) -> PostgresAdmin:
        """See `Store.admin`."""
        from dragoman.stores.postgres.admin import PostgresAdmin

        return PostgresAdmin(
            self.url,
            write=write,
            create=create,
            encryption=self._encryption,
            prepared=self._pool.prepared,
        )

    async def open(self) -> None:
        """Connect, and update the tables."""
        await self._pool.open()
        try:
            async with self._pool.connection() as db:
                await self._check(db)
                await usable(db, migrating=self.migrate)
                self.id = await db.fetchval("SELECT id FROM about")
        except Unavailable:
            await self._pool.close()
            raise
        except Exception as error:
            await self._pool.close()
            raise self._pool.unavailable(error) from error
        self._view = Queries(self._pool, self._damage)
        self._transaction = Transaction(
            max_task_bytes=self.max_task_bytes, shard=self._shard, damage=self._damage
        )
        self._recent = LogCache()
        # a separate connection: claims are renewed while all others are busy
        self._renewing = self._pool.hold()
        self._writer = Writer(
            self._transaction, self._pool, self._recent.publish, self._recent.clear
        )

    async def _check(self, db: Any) -> None:
        if await db.fetchval("SHOW synchronous_commit") == "off":
            raise Unusable(
                "store: synchronous_commit is off, so accepted messages could be lost; set "
                "it to on, for this role or database"
            )
        if await db.fetchval("SHOW fsync") == "off":
            logger.warning("PostgreSQL runs with fsync = off: a power loss can lose everything")

    async def close(self) -> None:
        """Finish running work if the database allows it, and close all connections."""
        await self._writer.close(CLOSE)
        if self._working:
            _, hanging = await asyncio.wait(self._working, timeout=CLOSE)
            for work in hanging:
                work.cancel()
        await self._renewing.end()
        await self._pool.close()

    # -- for callers

    def accept(self, scope: Scope, draft: Draft) -> asyncio.Future[Accepted]:
        """See `Store.accept`."""

        webhook = draft.webhook and self._encrypted(draft.webhook)

        def work(transaction: Transaction) -> Duplicate | Callable[[], Accepted]:
            row, number, new = log_changes.accept(transaction, scope, draft, webhook)
            if not new:
                return Duplicate(row.head(), row.key, number)
            # it may be claimed before it is written
            return lambda: Accepted(row.head(), number, draft.received, True)

        receipt = None if draft.receipt is None else (scope, draft.receipt.key)
        tasks = () if draft.new else (draft.task,)
        future: asyncio.Future[Any] = self._writer.submit(
            work, *tasks, receipt=receipt, new=draft.new, owner=scope
        )
        if receipt is None:
            return future
        return self._work(self._accepted(future))

    async def _accepted(self, future: asyncio.Future[Accepted | Duplicate]) -> Accepted:
        found = await future
        if isinstance(found, Accepted):
            return found
        rows = await self._pool.fetch(ENTRY, found.key, found.number)
        if not rows:  # it has been deleted meanwhile
            raise TaskNotFound
        event = self._received(found.head.id, found.number, rows[0])
        return Accepted(found.head, found.number, event, False)

    def _received(self, task: str, number: int, written: Any) -> Received:
        """Decode the message of these columns. Raises Unreadable."""
        try:
            event = entry(number, *written).event
            assert isinstance(event, Received)
        except DECODING as error:
            raise Unreadable("log", task, error) from None
        return event

    async def head(self, scope: Scope, task: str) -> Head | None:
        """See `Store.head`. What has ended does not change; of all else, others may know more."""
        live = self._recent.find(scope, task)
        if live and _ended(live.head) and live.young(WHILE):
            return live.head
        return await self._view.head((scope, task))

    async def load(self, scope: Scope, task: str) -> Record | None:
        """See `Store.load`."""
        live = self._recent.find(scope, task)
        if live and live.first == 1 and live.current and _ended(live.head) and live.young(WHILE):
            return Record(live.task(), live.head) if live.head.born else None
        folded = await self._view.load((scope, task))
        if folded is not None and folded.grown:
            self._work(self._kept(folded))
        return folded

    async def _kept(self, folded: Folded) -> None:
        try:
            await self._view.keep(folded)
        except Unavailable as error:  # without it, only the next read is slower
            logger.warning("cannot store a snapshot: %s", error)

    async def read(self, scope: Scope, task: str, after: int, limit: int) -> Sequence[Entry] | None:
        """See `Store.read`. Entries that were written here are what they are everywhere; if there
        are none, others may have written some."""
        live = self._recent.find(scope, task)
        if live and live.current and live.first <= after + 1 < live.after and live.young(WHILE):
            place = after + 1 - live.first
            return live.entries[place : place + limit]
        return await self._view.read((scope, task, after, limit))

    async def list(self, scope: Scope, query: Query) -> Page:
        """See `Store.list`."""
        return await self._view.page(scope, query)

    async def messages(
        self, scope: Scope, context: str, before: MessagePlace, limit: int, task: str = ""
    ) -> Sequence[MessagePlace]:
        """See `Store.messages`."""
        return await self._view.messages(scope, context, before, limit, task)

    async def tally(self, scope: Scope) -> Mapping[TaskState, int]:
        """See `Store.tally`."""
        return await self._view.tally(scope)

    async def find(self, agent: str, task: str) -> Head | None:
        """See `Store.find`."""
        return await self._view.find(agent, task)

    async def owner(self, scope: Scope, task: str) -> str | None:
        """See `Store.owner`."""
        return await self._view.owner(scope, task)

    async def cancel(
        self,
        scope: Scope,
        task: str,
        request: CancelRequested,
        canceled: TaskStatusUpdateEvent,
        grace: float,
        receipt: Receipt | None = None,
        *,
        undo: bool = False,
    ) -> Head:
        """See `Store.cancel`."""

        work = partial(
            log_changes.cancel,
            scope=scope,
            task=task,
            request=request,
            canceled=canceled,
            grace=grace,
            receipt=receipt,
            undo=undo,
        )
        known = None if receipt is None else (scope, receipt.key)
        return await self._writer.submit(work, task, receipt=known, owner=scope)

    async def put_webhook(self, scope: Scope, webhook: Webhook) -> None:
        """See `Store.put_webhook`."""

        work = partial(log_changes.put_webhook, scope=scope, webhook=self._encrypted(webhook))
        await self._writer.submit(work, webhook.config.task_id, owner=scope)

    async def webhooks(self, scope: Scope, task: str) -> Sequence[Webhook]:
        """See `Store.webhooks`."""
        await self._born(scope, task)
        found = await self._pool.fetch(
            "SELECT line.webhook, line.id FROM line JOIN task ON task.key = line.task "
            "WHERE task.id = $1 ORDER BY line.id",
            task,
        )
        try:
            return [
                self._decrypted(webhook_of(data, deliveries.named(id), task)) for data, id in found
            ]
        except DECODING as error:
            damage = Unreadable("webhook", task, error)
            self._damage.found(damage)
            raise damage from None
        except Undecryptable as error:
            raise Unavailable(f"The webhooks of this task cannot be read: {error}") from None

    async def delete_webhook(self, scope: Scope, task: str, webhook: str) -> None:
        """See `Store.delete_webhook`."""
        await self._born(scope, task)
        self._floor = 0.0
        await self._pool.fetch(
            "DELETE FROM line USING task WHERE line.task = task.key AND task.id = $1 "
            "AND line.id = $2",
            *(task, deliveries.key(webhook)),
        )

    # -- for workers

    def claim(
        self,
        agents: Collection[str],
        worker: str,
        lease: float,
        limit: int,
        passing: Collection[Owner] = NOBODY,
        spare: int = MANY,
    ) -> asyncio.Future[Sequence[Claim]]:
        """See `Store.claim`."""
        names = list(agents)
        self._turn += 1
        first = self._turn % len(names) if names else 0
        names = names[first:] + names[:first]

        def work(transaction: Transaction) -> Sequence[Claim]:
            """Return what this process has just accepted, unless older tasks wait."""
            taken: list[Claim] = []
            if time.monotonic() - self._drained > DRAINED or self._drained <= transaction.left:
                return taken
            rows = [row for name in names for row in transaction.fresh(name)]
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

        here = self._writer.submit(work)
        return self._work(self._claim(here, names, worker, float(lease), limit, passing, spare))

    async def _claim(
        self,
        here: asyncio.Future[Sequence[Claim]],
        names: Sequence[str],
        worker: str,
        lease: float,
        limit: int,
        passing: Collection[Owner],
        spare: int,
    ) -> Sequence[Claim]:
        if taken := list(await here):
            return taken
        looked, left = time.monotonic(), limit
        for passed in (passing, NOBODY) if passing else (NOBODY,):
            if passing and not passed:
                left = min(left, spare)
            rest = list(names)
            while rest and left:
                # each agent gets its share, so that a busy agent does not starve the others
                share = max(1, left // len(rest))
                name = rest.pop(0)
                # If this fails, the claims that were made before are lost; see `held`.
                if passed:
                    found = await self._others.claim(self._pool, name, share, worker, lease, passed)
                else:
                    found = await self._pool.fetch(CLAIM, name, share, worker, lease)
                if len(found) >= share:
                    rest.append(name)
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
            await self._set_aside(columns[0], error)
            return None
        self._transaction.prime(row)
        head = row.head()
        self._recent.publish([(head.id, head, (), 0)])
        try:
            written = columns[len(NAMES) :]
            # it was added after the start of the statement that claimed its task
            if written[0] is None:
                (written,) = await self._pool.fetch(ENTRY, row.key, head.turn)
            received = self._received(head.id, head.turn, written)
            task = birth(received)
            if head.turn > 1:
                folded = await self.load(head.scope, head.id)
                assert folded is not None  # a claimed task is not deleted
                task = folded.task
            return Claim(head=head, task=task, received=received)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this task's alone
            if not isinstance(error, Unreadable):
                error = Unreadable("log", head.id, error)
            self._damage.found(error, "the task has failed")
            await self.revoke(head, head.ending(TaskState.FAILED, UNREADABLE), begun=False)
            return None

    async def _set_aside(self, task: str | int, error: Unreadable) -> None:
        """Set a task with an unreadable head aside, by its id or its key."""
        which = "key" if isinstance(task, int) else "id"
        await self._pool.fetch(SET_ASIDE.format(which), task, ASIDE, PAUSE)
        self._damage.found(error, "the task is set aside")

    async def private(self, scope: Scope, task: str) -> Sequence[Entry]:
        """See `Store.private`."""
        return decrypt_private(await self._view.private(scope, task), task, self._encryption)

    def append(
        self,
        claim: Claim,
        entries: Sequence[Entry],
        *,
        release: bool = False,
        pause: Pause | None = None,
    ) -> asyncio.Future[bool]:
        """See `Store.append`."""

        encrypt_private(entries, claim.head.id, self._encryption)

        def work(transaction: Transaction) -> bool:
            return log_changes.append(transaction, claim, entries, release, pause)

        if entries and entries[0].number:
            # it was tried before, and it is not known whether it was written
            return self._work(self._again(claim, entries, release, work))
        return self._writer.submit(work, claim.head.id)

    async def _again(
        self,
        claim: Claim,
        entries: Sequence[Entry],
        release: bool,
        work: Callable[[Transaction], bool],
    ) -> bool:
        numbers = [entry.number for entry in entries if entry.number]
        found = await self._pool.fetch(
            "SELECT entry.number, entry.body FROM entry JOIN task ON task.key = entry.task "
            "WHERE task.id = $1 AND entry.number = ANY($2::int[])",
            *(claim.head.id, numbers),
        )
        written = dict(found)
        if all(written.get(item.number) == body(item)[1] for item in entries if item.number):
            head = await self.head(claim.head.scope, claim.head.id)
            if head is None or (head.epoch != claim.epoch and not (release or head.over)):
                raise Stale(claim.head.id)
            return head.unread and not head.state.terminal
        return await self._writer.submit(work, claim.head.id)

    async def context_value(self, claim: Claim) -> ContextValue | None:
        """See `Store.context_value`."""
        return await context_values.read(self._pool, claim.head.id, self._encryption)

    async def save_context(self, claim: Claim, value: bytes, version: int, key: str) -> int:
        """See `Store.save_context`."""
        return await context_values.save(self._pool, claim, value, version, key, self._encryption)

    async def renew(self, claims: Collection[Claim], lease: float) -> Renewal:
        """See `Store.renew`."""
        named = {claim.head.id: claim.epoch for claim in claims}
        found = await self._renewing.fetch(RENEW, list(named), list(named.values()), float(lease))
        held = dict(found)
        lost = [task for task in named if task not in held]
        return Renewal(lost, [task for task, canceling in held.items() if canceling])

    async def held(self, worker: str) -> Sequence[Head]:
        """See `Store.held`."""
        return await self._view.held(worker)

    # -- for every replica

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """See `Store.expired`."""
        found, broken = await self._view.expired(agents, limit)
        for key, error in broken:
            await self._set_aside(key, error)
        return found

    async def revoke(
        self,
        head: Head,
        event: TaskStatusUpdateEvent | None,
        *,
        expired: bool = False,
        begun: bool = True,
        delay: float = 0.0,
    ) -> Head | None:
        """See `Store.revoke`."""

        work = partial(
            log_changes.revoke, head=head, event=event, expired=expired, begun=begun, delay=delay
        )
        try:
            return await self._writer.submit(work, head.id, fresh=True)
        except Unreadable as error:
            await self._set_aside(head.id, error)
            return None

    async def wake(self, agents: Collection[str], limit: int) -> Mapping[str, int]:
        """See `Store.wake`."""
        found: Counter[str] = Counter()
        tasks = await self._view.due_tasks(agents, limit)
        for start in range(0, len(tasks), WOKEN_AT_ONCE):
            some = tasks[start : start + WOKEN_AT_ONCE]
            work = partial(log_changes.wake, tasks=some)
            found += await self._writer.submit(work, *some, fresh=True)
        return found

    async def wake_now(self, tasks: Collection[str]) -> Mapping[str, int]:
        """See `Store.wake_now`."""
        if not tasks:
            return {}
        work = partial(log_changes.wake_now, tasks=tasks)
        return await self._writer.submit(work, *tasks, fresh=True)

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """See `Store.moved`."""
        return await self._view.moved(places)

    async def census(self, agents: Collection[str]) -> Mapping[str, Census]:
        """See `Store.census`."""
        return await self._view.census(agents)

    async def probe(self) -> None:
        """See `Store.probe`."""
        writer = self._writer
        if not writer.failed and time.monotonic() - writer.wrote < WRITTEN:
            return
        try:
            async with self._pool.connection() as db, db.transaction():
                await db.execute("UPDATE about SET id = id")
                if writer.failed:  # a small change may find space where a message finds none
                    key = -random.randrange(1, 1 << 62)
                    noise = random.randbytes(PROBE)  # uniform bytes would be compressed
                    await db.execute("INSERT INTO snapshot VALUES ($1, 0, $2)", key, noise)
                    await db.execute("DELETE FROM snapshot WHERE task = $1", key)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            writer.failed = True
            raise Unavailable(f"The store is not available: {error}") from error
        writer.wrote, writer.failed = time.monotonic(), False

    async def prune(self) -> int:
        """See `Store.prune`."""
        if time.monotonic() - self._swept > SWEEP:
            self._swept = time.monotonic()
            self._floor = 0.0
            self._recent.clear()  # others may have deleted what is in the cache
            self._merged = await merge(self._pool, self._merged) or START
        if count := await self._prune_reservations():
            return count
        if not self.retention:
            return 0
        ((now,),) = await self._pool.fetch(f"SELECT {NOW}")
        before = now - self.retention
        count = await self._forget(before, now - RECEIPTS)
        if count < MOST:  # tasks that were skipped are checked again much later
            self._floor = before
        if count:
            self._recent.clear()
        return count

    async def _prune_reservations(self) -> int:
        if time.monotonic() - self._reservations_swept < PRUNE_EVERY:
            return 0
        count = await reservations.prune(self._pool)
        if count < PRUNE_AT_ONCE:
            self._reservations_swept = time.monotonic()
        return count

    async def _forget(self, before: float, receipts: float) -> int:
        """Delete some tasks that ended before a time."""
        try:
            async with self._pool.connection() as db, db.transaction():
                answer = await db.fetch(OLD, self._floor, before, receipts, self._shard)
                await forget_values(db, answer)
                return int(answer[0][0])
        except A2AError:
            raise
        except Exception as error:
            raise self._pool.unavailable(error) from error

    # -- independent of tasks

    async def reserve(self, space: str, key: str, value: bytes, keep: float | None) -> bytes:
        """See `Store.reserve`."""
        body = encode_value(value, space, key, self._encryption)
        found = await reservations.reserve(self._pool, space, key, body, keep)
        if found is body:
            return value
        return decode_value(found, space, key, self._encryption)

    # -- for the delivery of webhooks

    async def dispatch(
        self,
        agents: Collection[str],
        limit: int,
        lease: float,
        passing: Collection[Owner] = NOBODY,
    ) -> Sequence[WebhookCursor]:
        """See `Store.dispatch`."""
        taken: list[WebhookCursor] = []
        first = (limit + 1) // 2
        if not passing:
            taken += await deliveries.take(self._pool, agents, first, lease, self._damage)
        if passing or (len(taken) == first < limit):
            rest = limit - len(taken)
            found = await deliveries.due_lanes(self._pool, self._turns, agents, rest, passing)
            if found:
                taken += await deliveries.take_of(self._pool, found, rest, lease, self._damage)
        return [line for item in taken if (line := await decrypted(self, self._encryption, item))]

    async def dispatched(
        self,
        line: WebhookCursor,
        cursor: int,
        *,
        wait: float = 0.0,
        failed: str = "",
        parked: bool = False,
    ) -> bool:
        """See `Store.dispatched`."""
        if parked or not (wait or failed):
            self._floor = 0.0  # now its task may be deleted
        return await deliveries.record(
            self._pool, line, cursor, wait=wait, failed=failed, parked=parked
        )

    async def undelivered(
        self, limit: int, *, parked: bool | None = None
    ) -> Sequence[WebhookCursor]:
        """See `Store.lines`."""
        return await deliveries.waiting(self._pool, limit, parked)

    async def redrive(self, task: str = "", webhook: str = "") -> int:
        """See `Store.redrive`."""
        return await deliveries.redrive(self._pool, task, webhook)

    # -- inside

    async def _born(self, scope: Scope, task: str) -> None:
        head = await self._view.head((scope, task))
        if head is None or not head.born:
            raise TaskNotFound

    def _work(self, doing: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Keep a background task until it ends."""
        work: asyncio.Future[T] = asyncio.ensure_future(doing)
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        return work

    def _encrypted(self, webhook: Webhook) -> Webhook:
        return secrets(webhook, self._encryption.encrypt)

    def _decrypted(self, webhook: Webhook) -> Webhook:
        return secrets(webhook, self._encryption.decrypt)


def _ended(head: Head) -> bool:
    return head.state.terminal or head.replied


def store(settings: Settings) -> PostgresStore:
    """Make the store that the settings name. Raises ValueError."""
    url, options = split(settings.store)
    return PostgresStore(
        url,
        retention=settings.retention or 0.0,
        max_task_bytes=settings.max_task_bytes,
        encryption=Encryption(settings.encryption_keys),
        **options,
    )
