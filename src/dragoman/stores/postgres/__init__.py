"""Logs in PostgreSQL, for any number of machines. All times are those of the database."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dragoman.model.caller import Scope
from dragoman.model.errors import TaskNotFound, Unavailable
from dragoman.model.events import Entry
from dragoman.model.types import TaskState
from dragoman.security.encryption import Encryption, Undecryptable
from dragoman.server.settings import MAX_TASK_BYTES, Settings
from dragoman.stores import log_changes
from dragoman.stores.cache import LogCache
from dragoman.stores.codec import body, webhook_of
from dragoman.stores.encrypted_values import decrypt_private, decrypted, encrypt_private
from dragoman.stores.postgres import context_values, deliveries, reservations
from dragoman.stores.postgres.claims import MESSAGE, Claims, message
from dragoman.stores.postgres.pool import Pool, place
from dragoman.stores.postgres.prune import MOST, SHARDS, START, delete, merge
from dragoman.stores.postgres.queries import Queries
from dragoman.stores.postgres.schema import Unusable, usable
from dragoman.stores.postgres.transaction import NOW, Transaction
from dragoman.stores.postgres.writer import Writer
from dragoman.stores.sql_store import RECEIPTS, SWEEP, SqlStore
from dragoman.stores.store import (
    MANY,
    NOBODY,
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
    Record,
    Renewal,
    Stale,
    Unreadable,
    Webhook,
    WebhookCursor,
)
from dragoman.stores.task_reads import Folded
from dragoman.stores.unreadable_rows import DECODING
from dragoman.stores.url_options import split
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.stores.postgres.admin import PostgresAdmin

T = TypeVar("T")

WHILE = 1.0
"""For this many seconds, what this process has written is read from memory. Only operators can
delete it meanwhile, from other processes."""
WOKEN_AT_ONCE = 100
"""How many tasks whose time has come are made ready in one statement."""
CLOSE = 5.0
"""How long running work may take at the end."""


class Duplicate(msgspec.Struct, frozen=True):
    """An earlier request."""

    head: Head
    key: int
    number: int


class PostgresStore(SqlStore):
    """The store in a database that other processes use too."""

    shared = True
    _writer: Writer

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
        super().__init__(retention=retention, max_task_bytes=max_task_bytes, encryption=encryption)
        self.url = url
        self.migrate = migrate
        """Whether to update older tables; otherwise they are refused."""
        self._pool = Pool(url, size=pool_size, prepared=prepared)
        self.bell = url
        self.name = place(url)
        self._shard = random.randrange(SHARDS)
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
        self._claims = Claims(self, self._pool, self._transaction, self._recent, self._damage)
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
        await self._claims.close()
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
        rows = await self._pool.fetch(MESSAGE, found.key, found.number)
        if not rows:  # it has been deleted meanwhile
            raise TaskNotFound
        event = message(found.head.id, found.number, rows[0])
        return Accepted(found.head, found.number, event, False)

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
        here = self._writer.submit(
            partial(
                self._claims.accepted_here,
                agents=(names := self._in_turn(agents)),
                worker=worker,
                lease=lease,
                limit=limit,
                passing=passing,
                spare=spare,
            )
        )
        return self._work(
            self._claims.take(here, names, worker, float(lease), limit, passing, spare)
        )

    async def _set_aside(self, task: str | int, error: Unreadable) -> None:
        await self._claims.set_aside(task, error)

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
        return await self._claims.renew(claims, lease)

    async def held(self, worker: str) -> Sequence[Head]:
        """See `Store.held`."""
        return await self._view.held(worker)

    # -- for every replica

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """See `Store.expired`."""
        found, broken = await self._view.expired(agents, limit)
        for task, error in broken:
            await self._set_aside(task, error)
        return found

    async def wake(self, agents: Collection[str], limit: int) -> Mapping[str, int]:
        """See `Store.wake`."""
        found: Counter[str] = Counter()
        tasks = await self._view.due_tasks(agents, limit)
        for start in range(0, len(tasks), WOKEN_AT_ONCE):
            some = tasks[start : start + WOKEN_AT_ONCE]
            work = partial(log_changes.wake, tasks=some)
            found += await self._writer.submit(work, *some, fresh=True)
        return found

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """See `Store.moved`."""
        return await self._view.moved(places)

    async def census(self, agents: Collection[str]) -> Mapping[str, Census]:
        """See `Store.census`."""
        return await self._view.census(agents)

    async def probe(self) -> None:
        """See `Store.probe`."""
        await self._writer.probe()

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
        count = await delete(self._pool, self._shard, self._floor, before, now - RECEIPTS)
        if count < MOST:  # tasks that were skipped are checked again much later
            self._floor = before
        if count:
            self._recent.clear()
        return count

    async def _delete_reservations(self) -> int:
        return await reservations.prune(self._pool)

    async def _reserve_body(self, space: str, key: str, body: bytes, keep: float | None) -> bytes:
        return await reservations.reserve(self._pool, space, key, body, keep)

    async def _reserved_body(self, space: str, key: str) -> bytes | None:
        return await reservations.reserved(self._pool, space, key)

    async def release(self, space: str, key: str) -> bool:
        """See `Store.release`."""
        return await reservations.release(self._pool, space, key)

    async def _listed(
        self, space: str, prefix: str, after: str, limit: int
    ) -> Sequence[tuple[str, bytes, float | None]]:
        return await reservations.listed(self._pool, space, prefix, after, limit)

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
            found = await deliveries.due_lanes(
                self._pool, self._delivery_order, agents, rest, passing
            )
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
        """See `Store.undelivered`."""
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
