"""Logs in one SQLite file. One writer commits many changes at once; readers run beside it.

Only one server uses the file at a time. So at its start it can continue the work of a killed server
without waiting for leases. Leases use the machine's monotonic clock, so setting the clock ends none
of them.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from dragoman.model.caller import Scope
from dragoman.model.errors import TaskNotFound, Unavailable
from dragoman.model.events import CancelRequested, Entry, Received
from dragoman.model.lifecycle import birth
from dragoman.model.types import Task, TaskState, TaskStatusUpdateEvent
from dragoman.security.encryption import Encryption, Undecryptable
from dragoman.server.settings import MAX_TASK_BYTES, Settings
from dragoman.stores import log_changes
from dragoman.stores.cache import LogCache
from dragoman.stores.codec import keep, secrets
from dragoman.stores.delivery_order import DeliveryOrder, Lane
from dragoman.stores.encrypted_values import decrypt_private, decrypted, encrypt_private
from dragoman.stores.reservations import (
    PRUNE_AT_ONCE,
    PRUNE_EVERY,
    decode_value,
    encode_value,
)
from dragoman.stores.sqlite import context_values, deliveries, reservations
from dragoman.stores.sqlite.driver import STANDARD, Driver, prepare, unavailable
from dragoman.stores.sqlite.lock import Lock
from dragoman.stores.sqlite.queries import Queries
from dragoman.stores.sqlite.rows import SqliteHead
from dragoman.stores.sqlite.schema import Unusable, identity, migrate, version
from dragoman.stores.sqlite.transaction import Transaction
from dragoman.stores.sqlite.writer import Writer
from dragoman.stores.store import (
    GIVEN_UP,
    MANY,
    NOBODY,
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
    Unreadable,
    Webhook,
    WebhookCursor,
)
from dragoman.stores.task_reads import Folded
from dragoman.stores.unreadable_rows import UnreadableRows
from dragoman.stores.url_options import split
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.stores.sqlite.admin import SqliteAdmin

T = TypeVar("T")

READERS = 2
PRUNED = 256
SWEEP = 600.0
"""How often tasks that are old enough, but had to stay, are checked again."""
RECEIPTS = 24 * 3600.0
"""How long a repeated send is recognised, at least."""
UNREADABLE = "The log of this task cannot be read"
KNOWN = 10_000
"""The maximum number of tasks whose keys are cached for reading."""


class SqliteStore:
    """The store in a file."""

    bell = "memory:"
    shared = False

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "full",
        retention: float = 0.0,
        max_task_bytes: int = MAX_TASK_BYTES,
        encryption: Encryption | None = None,
        driver: Driver = STANDARD,
    ) -> None:
        self.path = Path(path)
        self.url = f"sqlite:///{path}"
        self.name = str(path)
        self.id = ""
        self.synchronous = synchronous
        self.retention = retention
        """How long a task is kept after its end; 0 is for ever."""
        self.max_task_bytes = max_task_bytes
        self.driver = driver
        self._encryption = encryption or Encryption(())
        self._damage = UnreadableRows()
        self.unreadable: Mapping[str, int] = self._damage.counts
        self._open: list[Any] = []
        self._folding: set[asyncio.Future[None]] = set()
        self._floor = 0.0
        self._turns = DeliveryOrder()
        self._swept = self._reservations_swept = -math.inf
        self._turn = 0

    def admin(self, *, write: bool = False, create: bool = False) -> SqliteAdmin:
        """See `Store.admin`."""
        from dragoman.stores.sqlite.admin import SqliteAdmin

        return SqliteAdmin(self.path, write=write, create=create, encryption=self._encryption)

    async def open(self) -> None:
        """Lock the file, update its tables, and release the claims of a dead server."""
        if self._open:
            raise Unusable(f"{self.path}: the store is already open")
        self._loop = asyncio.get_running_loop()
        self._recent = LogCache()
        self._keys: dict[str, tuple[int, Scope]] = {}
        self._views = threading.local()
        self._lock = Lock(self.path)
        self._pool = ThreadPoolExecutor(READERS, "dragoman-reader")
        try:
            transaction = await self._loop.run_in_executor(self._pool, self._prepare)
            self._view = self._new_view()
        except self.driver.error as error:
            self._release()
            raise Unusable(f"{self.path}: {unavailable(error).message}") from error
        except OSError as error:
            self._release()
            raise Unusable(f"{self.path}: {error.strerror}") from error
        except BaseException:
            self._release()
            raise
        self._writer = Writer(
            transaction, self.driver, self._loop, self._recent.publish, self._forget
        )

    def _prepare(self) -> Transaction:
        if not self.path.parent.is_dir():  # probably a mistake, not intended
            raise Unusable(f"{self.path}: the directory {self.path.parent} does not exist")
        self._lock.take()
        # The file contains secrets. The files that SQLite creates beside it get the same mode.
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        db = self.driver.connect(self.path)
        self._open.append(db)
        try:
            version(db)  # a file of another program stays unchanged
            prepare(db, synchronous=self.synchronous)
            migrate(db)
            self.id = identity(db)
        except Unusable as error:
            raise Unusable(f"{self.path}: {error.message}") from None
        # Nobody else uses the file, so the holder of each claim is dead.
        db.execute(
            "UPDATE task SET lease = ?1, cancel_at = min(cancel_at, ?1) WHERE lease > 0",
            (GIVEN_UP,),
        )
        # The time of a cancel without a worker is by the clock of the process that accepted it.
        db.execute(
            "UPDATE task SET cancel_at = ? WHERE cancel_at > 0 AND holder = '' AND ended IS NULL",
            (GIVEN_UP,),
        )
        db.execute(
            "UPDATE line SET due = 0, taken = 0 WHERE behind = 1 AND parked = 0 AND taken = 1"
        )
        return Transaction(db, max_task_bytes=self.max_task_bytes, damage=self._damage)

    async def close(self) -> None:
        """Finish the running writes and close the file."""
        await self._writer.close()
        self._release()

    def _release(self) -> None:
        self._pool.shutdown()
        for db in self._open:
            db.close()
        self._open.clear()
        self._lock.release()

    # -- for callers

    def accept(self, scope: Scope, draft: Draft) -> asyncio.Future[Accepted]:
        """See `Store.accept`."""

        webhook = draft.webhook and self._encrypted(draft.webhook)

        def work(transaction: Transaction) -> Accepted:
            row, number, new = log_changes.accept(transaction, scope, draft, webhook)
            received = draft.received if new else transaction.received(row, number)
            return Accepted(row.head(), number, received, new)

        return self._writer.submit(work)

    async def head(self, scope: Scope, task: str) -> Head | None:
        """See `Store.head`."""
        if live := self._recent.find(scope, task):
            return live.head
        row = self._row(scope, task)
        return row.head() if row else None

    async def load(self, scope: Scope, task: str) -> Record | None:
        """See `Store.load`."""
        live = self._recent.find(scope, task)
        if live is not None and live.first == 1:
            return Record(live.task(), live.head) if live.head.born else None
        folded = self._now(lambda view: view.small(task, scope))
        if isinstance(folded, SqliteHead):
            folded = await self._read(lambda view: view.load(task, scope))
        if not isinstance(folded, Folded) or not folded.head.born:
            return None
        self._keep(folded)
        return folded

    async def read(self, scope: Scope, task: str, after: int, limit: int) -> Sequence[Entry] | None:
        """See `Store.read`."""
        live = self._recent.find(scope, task)
        if live is not None and live.first <= after + 1:
            place = after + 1 - live.first
            return live.entries[place : place + limit]
        known = self._keys.get(task)
        if known is None or known[1] != scope:
            row = self._row(scope, task)
            if row is None:
                return None
            if len(self._keys) >= KNOWN:
                self._keys.clear()
            known = self._keys[task] = (row.key, row.scope)
        return self._now(lambda view: view.read(task, known[0], after, limit))

    async def list(self, scope: Scope, query: Query) -> Page:
        """See `Store.list`."""
        return await self._read(lambda view: view.page(scope, query))

    async def messages(
        self, scope: Scope, context: str, before: MessagePlace, limit: int, task: str = ""
    ) -> Sequence[MessagePlace]:
        """See `Store.messages`."""
        return self._now(lambda view: view.messages(scope, context, before, limit, task))

    async def tally(self, scope: Scope) -> Mapping[TaskState, int]:
        """See `Store.tally`."""
        return self._now(lambda view: view.tally(scope))

    async def find(self, agent: str, task: str) -> Head | None:
        """See `Store.find`."""
        row = self._now(lambda view: view.row(task))
        return row.head() if row and row.scope.agent == agent else None

    async def owner(self, scope: Scope, task: str) -> str | None:
        """See `Store.owner`."""
        return self._now(lambda view: view.owner(scope, task))

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
        return await self._writer.submit(work)

    async def put_webhook(self, scope: Scope, webhook: Webhook) -> None:
        """See `Store.put_webhook`."""
        work = partial(log_changes.put_webhook, scope=scope, webhook=self._encrypted(webhook))
        await self._writer.submit(work)

    async def webhooks(self, scope: Scope, task: str) -> Sequence[Webhook]:
        """See `Store.webhooks`."""
        row = self._row(scope, task)
        if row is None or not row.born:
            raise TaskNotFound
        found = self._now(lambda view: view.webhooks(row))
        try:
            return [self._decrypted(webhook) for webhook in found]
        except Undecryptable as error:
            raise Unavailable(f"The webhooks of this task cannot be read: {error}") from None

    async def delete_webhook(self, scope: Scope, task: str, webhook: str) -> None:
        """See `Store.delete_webhook`."""

        def work(transaction: Transaction) -> None:
            row = transaction.mine(scope, task)
            transaction.flush()
            transaction.db.execute("DELETE FROM line WHERE task = ? AND id = ?", (row.key, webhook))

        self._floor = 0.0
        await self._writer.submit(work)

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

        def work(transaction: Transaction) -> Sequence[tuple[Head, Received]]:
            taken: list[tuple[Head, Received]] = []
            until, left = time.monotonic() + lease, limit
            if passing:
                queues = [transaction.others(agent, left, passing) for agent in names]
                taken += _take(transaction, queues, worker, until, left)
                left = min(left - len(taken), spare)
            if left:
                queues = [transaction.ready(agent, left) for agent in names]
                taken += _take(transaction, queues, worker, until, left)
                for agent, queue in zip(names, queues, strict=True):
                    if len(queue) < left and not any(row.ready for row in queue):
                        transaction.taken(agent)
            return taken

        claims: asyncio.Future[Sequence[Claim]] = self._loop.create_future()
        taking = self._writer.submit(work)

        def taken(future: asyncio.Future[Sequence[tuple[Head, Received]]]) -> None:
            if error := future.exception():
                claims.set_exception(error)
                return
            found = [
                Claim(head=head, task=birth(received), received=received)
                for head, received in future.result()
            ]
            if all(claim.turn == 1 for claim in found):
                claims.set_result(found)
            else:  # the entries before the message have to be read
                folding = asyncio.ensure_future(self._folded(found, claims))
                self._folding.add(folding)
                folding.add_done_callback(self._folding.discard)

        taking.add_done_callback(taken)
        return claims

    async def _folded(
        self, found: Sequence[Claim], claims: asyncio.Future[Sequence[Claim]]
    ) -> None:
        """Complete claims by their tasks. An unreadable one does not delay the others."""
        whole = []
        for claim in found:
            try:
                whole.append(replace(claim, task=await self._folded_task(claim)))
            except Exception as error:  # noqa: BLE001 - it concerns this task alone
                if not isinstance(error, Unreadable):  # it has been logged
                    logger.error("a task cannot be read: %s", error, extra={"task": claim.head.id})
                away = isinstance(error, Unavailable)
                event = None if away else claim.head.ending(TaskState.FAILED, UNREADABLE)
                try:
                    await self.revoke(claim.head, event, begun=False)
                except Unavailable as worse:  # its lease expires
                    logger.error("cannot release a claim: %s", worse)
        claims.set_result(whole)

    async def _folded_task(self, claim: Claim) -> Task:
        live = self._recent.find(claim.head.scope, claim.head.id)
        if live is not None and live.first == 1:
            return live.task()
        if claim.turn == 1:
            return claim.task
        folded = await self._read(partial(Queries.load, task=claim.head.id))
        assert folded is not None  # a claimed task is not deleted
        self._keep(folded)
        return folded.task

    async def private(self, scope: Scope, task: str) -> Sequence[Entry]:
        """See `Store.private`."""
        found = await self._read(lambda view: view.private(task, scope))
        return decrypt_private(found, task, self._encryption)

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
        return self._writer.submit(
            lambda transaction: log_changes.append(transaction, claim, entries, release, pause)
        )

    async def context_value(self, claim: Claim) -> ContextValue | None:
        """See `Store.context_value`."""
        task, encryption = claim.head.id, self._encryption
        return await self._read(lambda view: context_values.read(view.db, task, encryption))

    async def save_context(self, claim: Claim, value: bytes, version: int, key: str) -> int:
        """See `Store.save_context`."""
        return await self._writer.submit(
            partial(
                context_values.save,
                claim=claim,
                value=value,
                version=version,
                key=key,
                encryption=self._encryption,
            )
        )

    async def renew(self, claims: Collection[Claim], lease: float) -> Renewal:
        """See `Store.renew`."""

        def work(transaction: Transaction) -> Renewal:
            now = transaction.now
            lost, canceling = [], []
            for claim in claims:
                row = transaction.claimed(claim.head.id)
                if row is None or row.epoch != claim.epoch:
                    lost.append(claim.head.id)
                    continue
                if row.lease - now < lease * 2 / 3:  # not with every renewal, because it is a write
                    row.lease = now + lease
                    transaction.touch(row)
                if row.cancel_at:
                    canceling.append(row.id)
            return Renewal(lost, canceling)

        return await self._writer.submit(work)

    async def held(self, worker: str) -> Sequence[Head]:
        """See `Store.held`."""
        return await self._read(lambda view: view.held(worker))

    # -- for every replica

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """See `Store.expired`."""
        found, broken = await self._read(lambda view: view.expired(agents, limit))
        if broken:
            await self._set_aside(broken)
        return found

    async def _set_aside(self, broken: Sequence[tuple[str | int, Unreadable]]) -> None:
        """Set tasks with unreadable heads aside, by id or key."""

        def work(transaction: Transaction) -> None:
            for task, error in broken:
                transaction.set_aside(task, error)

        await self._writer.submit(work)

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
            return await self._writer.submit(work)
        except Unreadable as error:
            await self._set_aside([(head.id, error)])
            return None

    async def wake(self, agents: Collection[str], limit: int) -> Mapping[str, int]:
        """See `Store.wake`."""
        tasks = await self._read(lambda view: view.due_tasks(agents, limit))
        return await self._writer.submit(partial(log_changes.wake, tasks=tasks)) if tasks else {}

    async def wake_now(self, tasks: Collection[str]) -> Mapping[str, int]:
        """See `Store.wake_now`."""
        return (
            await self._writer.submit(partial(log_changes.wake_now, tasks=tasks)) if tasks else {}
        )

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """See `Store.moved`."""
        return await self._read(lambda view: view.moved(places))

    async def census(self, agents: Collection[str]) -> Mapping[str, Census]:
        """See `Store.census`."""
        return await self._read(lambda view: view.census(agents))

    async def probe(self) -> None:
        """See `Store.probe`."""
        writer = self._writer
        if writer.failed or time.monotonic() - writer.wrote >= WRITTEN:
            await writer.submit(Transaction.probe)
            writer.wrote, writer.failed = time.monotonic(), False

    async def prune(self) -> int:
        """See `Store.prune`."""
        if count := await self._prune_reservations():
            return count
        if not self.retention:
            return 0
        now = time.time()
        if time.monotonic() - self._swept > SWEEP:
            self._swept = time.monotonic()
            self._floor = 0.0

        def work(transaction: Transaction) -> int:
            before = now - self.retention
            old = transaction.old(self._floor, before, now - RECEIPTS, PRUNED)
            values = bool(old) and context_values.any_there(transaction.db)
            for row in old:
                transaction.drop(row, values=values)
            if len(old) < PRUNED:  # tasks that were skipped are checked again much later
                self._floor = before
            return len(old)

        count = await self._writer.submit(work)
        if count:
            self._keys.clear()
        return count

    async def _prune_reservations(self) -> int:
        if time.monotonic() - self._reservations_swept < PRUNE_EVERY:
            return 0
        count = await self._writer.submit(lambda transaction: reservations.prune(transaction.db))
        if count < PRUNE_AT_ONCE:
            self._reservations_swept = time.monotonic()
        return count

    # -- independent of tasks

    async def reserve(self, space: str, key: str, value: bytes, keep: float | None) -> bytes:
        """See `Store.reserve`."""
        body = encode_value(value, space, key, self._encryption)
        work = partial(reservations.reserve, space=space, key=key, body=body, keep=keep)
        found = await self._writer.submit(work)
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
        if not await self._read(lambda view: view.due(agents)):
            return ()  # called often, and usually nothing is due
        taken: list[WebhookCursor] = []
        first = (limit + 1) // 2
        if not passing:
            work = partial(deliveries.take, agents=agents, limit=first, lease=lease)
            taken = await self._writer.submit(work)
        if passing or (len(taken) == first < limit):
            rest = limit - len(taken)
            found = [
                lane for agent in agents for lane in await self._due_lanes(agent, rest, passing)
            ]
            work = partial(deliveries.take_of, lanes=found, limit=rest, lease=lease)
            taken += await self._writer.submit(work) if found else ()
        return [line for item in taken if (line := await decrypted(self, self._encryption, item))]

    async def _due_lanes(
        self, agent: str, limit: int, passing: Collection[Owner]
    ) -> Sequence[Lane]:
        skipped = await self._read(lambda view: view.passed(agent, passing))

        async def walk(after: int, most: int) -> Sequence[tuple[int, bool]]:
            return await self._read(lambda view: view.walk(agent, after, most))

        return await self._turns.due(agent, walk, limit, skipped)

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
        work = partial(
            deliveries.record, line=line, cursor=cursor, wait=wait, failed=failed, parked=parked
        )
        if parked or not (wait or failed):
            self._floor = 0.0  # now its task may be deleted
        return await self._writer.submit(work)

    async def undelivered(
        self, limit: int, *, parked: bool | None = None
    ) -> Sequence[WebhookCursor]:
        """See `Store.lines`."""
        return await self._read(lambda view: view.undelivered(limit, parked))

    async def redrive(self, task: str = "", webhook: str = "") -> int:
        """See `Store.redrive`."""
        return await self._writer.submit(partial(deliveries.redrive, task=task, webhook=webhook))

    # -- inside

    def _forget(self) -> None:
        """Another process has written, so the cache may be wrong."""
        self._recent.clear()
        self._keys.clear()

    def _new_view(self) -> Queries:
        db = self.driver.connect(self.path)
        self._open.append(db)
        prepare(db, synchronous=self.synchronous, query_only=True)
        return Queries(db, self._damage)

    def _now(self, look: Callable[[Queries], T]) -> T:
        """Read in the event loop: a few pages, probably in memory, cost less than a change of
        threads."""
        try:
            return look(self._view)
        except self.driver.error as error:
            raise unavailable(error) from error

    async def _read(self, look: Callable[[Queries], T]) -> T:
        """Read in a thread."""

        def run() -> T:
            view = getattr(self._views, "view", None)
            if view is None:
                view = self._views.view = self._new_view()
            return look(view)

        if not self._open:
            raise Unavailable("The store is closed")
        try:
            return await self._loop.run_in_executor(self._pool, run)
        except self.driver.error as error:
            raise unavailable(error) from error

    def _row(self, scope: Scope, task: str) -> SqliteHead | None:
        return self._now(lambda view: view.row(task, scope))

    def _keep(self, folded: Folded) -> None:
        """Store a snapshot of what was folded, if it is worth it."""
        if not folded.grown:
            return
        key, number = folded.key, folded.head.last

        def work(transaction: Transaction) -> None:
            if transaction.row(folded.head.id) is not None:
                if folded.broken:
                    transaction.db.execute("DELETE FROM snapshot WHERE task = ?", (key,))
                transaction.db.execute(
                    "INSERT OR REPLACE INTO snapshot (task, number, body) "
                    "SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM snapshot WHERE task = ?1 "
                    "AND number >= ?2)",
                    (key, number, keep(folded.task)),
                )

        self._writer.submit(work).add_done_callback(lambda future: future.exception())

    def _encrypted(self, webhook: Webhook) -> Webhook:
        return secrets(webhook, self._encryption.encrypt)

    def _decrypted(self, webhook: Webhook) -> Webhook:
        return secrets(webhook, self._encryption.decrypt)


def _take(
    transaction: Transaction,
    queues: Sequence[Sequence[SqliteHead]],
    worker: str,
    until: float,
    limit: int,
) -> list[tuple[Head, Received]]:
    """Claim rows: one of each agent in turn, so that a busy agent does not starve the others."""
    taken: list[tuple[Head, Received]] = []
    for place in range(max(map(len, queues), default=0)):
        for queue in queues:
            if place < len(queue) and len(taken) < limit:
                row = queue[place]
                try:
                    received = transaction.received(row, row.next_turn)
                except Unreadable as error:  # it must not delay the others
                    transaction.damage.found(error, "the task has failed")
                    row.revoke(row.epoch, row.head().ending(TaskState.FAILED, UNREADABLE))
                else:
                    row.take(worker, until)
                    row.latest = None
                    taken.append((row.head(), received))
                transaction.touch(row)
    return taken


def store(settings: Settings) -> SqliteStore:
    """Make the store that the settings name. Raises ValueError."""
    url, options = split(settings.store)
    rest = url.partition(":")[2]
    path = rest.removeprefix("///")
    if not path or path.startswith((":", "//")) or (rest.startswith("//") and path == rest):
        raise ValueError(
            f"store: {url!r} names no file; write sqlite:///tasks.db for one in the "
            "working directory, or sqlite:////var/lib/tasks.db"
        )
    return SqliteStore(
        path,
        **options,
        retention=settings.retention or 0.0,
        max_task_bytes=settings.max_task_bytes,
        encryption=Encryption(settings.encryption_keys),
    )
