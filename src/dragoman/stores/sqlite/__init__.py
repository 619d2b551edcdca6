"""Logs in one SQLite file. One writer commits many changes at once; readers run beside it.

Only one server uses the file at a time. So at its start it can continue the work of a killed server
without waiting for leases. Leases use the machine's monotonic clock, so setting the clock ends none
of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from dragoman.model.caller import Scope
from dragoman.model.errors import TaskNotFound, Unavailable
from dragoman.model.events import Entry, Received
from dragoman.model.lifecycle import birth
from dragoman.model.types import Task, TaskState
from dragoman.security.encryption import Encryption, Undecryptable
from dragoman.server.settings import MAX_TASK_BYTES, Settings
from dragoman.stores import log_changes
from dragoman.stores.cache import LogCache
from dragoman.stores.codec import keep
from dragoman.stores.encrypted_values import decrypt_private, decrypted, encrypt_private
from dragoman.stores.sql_store import RECEIPTS, SWEEP, UNREADABLE, SqlStore
from dragoman.stores.sqlite import claims, context_values, deliveries, reservations
from dragoman.stores.sqlite.driver import STANDARD, Driver, prepare, unavailable
from dragoman.stores.sqlite.lock import Lock
from dragoman.stores.sqlite.queries import Queries
from dragoman.stores.sqlite.readers import Readers
from dragoman.stores.sqlite.rows import SqliteHead
from dragoman.stores.sqlite.schema import Unusable, identity, migrate, version
from dragoman.stores.sqlite.transaction import Transaction
from dragoman.stores.sqlite.writer import Writer
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
    Unreadable,
    Webhook,
    WebhookCursor,
)
from dragoman.stores.task_reads import Folded
from dragoman.stores.url_options import split
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.stores.sqlite.admin import SqliteAdmin

T = TypeVar("T")

PRUNED = 256
KNOWN = 10_000
"""The maximum number of tasks whose keys are cached for reading."""


class SqliteStore(SqlStore):
    """The store in a file."""

    bell = "memory:"
    shared = False
    _writer: Writer

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
        super().__init__(retention=retention, max_task_bytes=max_task_bytes, encryption=encryption)
        self.path = Path(path)
        self.url = f"sqlite:///{path}"
        self.name = str(path)
        self.synchronous = synchronous
        self.driver = driver
        self._open: list[Any] = []
        self._folding: set[asyncio.Future[None]] = set()

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
        self._lock = Lock(self.path)
        self._readers = Readers(self._view, self.driver)
        try:
            transaction = await self._readers.thread(self._prepare)
            self._readers.open()
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
        claims.release(db)
        return Transaction(db, max_task_bytes=self.max_task_bytes, damage=self._damage)

    async def close(self) -> None:
        """Finish the running writes and close the file."""
        await self._writer.close()
        self._release()

    def _release(self) -> None:
        self._readers.close()
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
        folded = self._readers.now(lambda view: view.small(task, scope))
        if isinstance(folded, SqliteHead):
            folded = await self._readers.run(lambda view: view.load(task, scope))
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
        return self._readers.now(lambda view: view.read(task, known[0], after, limit))

    async def list(self, scope: Scope, query: Query) -> Page:
        """See `Store.list`."""
        return await self._readers.run(lambda view: view.page(scope, query))

    async def messages(
        self, scope: Scope, context: str, before: MessagePlace, limit: int, task: str = ""
    ) -> Sequence[MessagePlace]:
        """See `Store.messages`."""
        return self._readers.now(lambda view: view.messages(scope, context, before, limit, task))

    async def tally(self, scope: Scope) -> Mapping[TaskState, int]:
        """See `Store.tally`."""
        return self._readers.now(lambda view: view.tally(scope))

    async def find(self, agent: str, task: str) -> Head | None:
        """See `Store.find`."""
        row = self._readers.now(lambda view: view.row(task))
        return row.head() if row and row.scope.agent == agent else None

    async def owner(self, scope: Scope, task: str) -> str | None:
        """See `Store.owner`."""
        return self._readers.now(lambda view: view.owner(scope, task))

    async def webhooks(self, scope: Scope, task: str) -> Sequence[Webhook]:
        """See `Store.webhooks`."""
        row = self._row(scope, task)
        if row is None or not row.born:
            raise TaskNotFound
        found = self._readers.now(lambda view: view.webhooks(row))
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
        taking = self._writer.submit(
            partial(
                claims.take,
                agents=self._in_turn(agents),
                worker=worker,
                lease=lease,
                limit=limit,
                passing=passing,
                spare=spare,
            )
        )
        whole: asyncio.Future[Sequence[Claim]] = self._loop.create_future()

        def taken(future: asyncio.Future[Sequence[tuple[Head, Received]]]) -> None:
            if error := future.exception():
                whole.set_exception(error)
                return
            found = [
                Claim(head=head, task=birth(received), received=received)
                for head, received in future.result()
            ]
            if all(claim.turn == 1 for claim in found):
                whole.set_result(found)
            else:  # the entries before the message have to be read
                folding = asyncio.ensure_future(self._folded(found, whole))
                self._folding.add(folding)
                folding.add_done_callback(self._folding.discard)

        taking.add_done_callback(taken)
        return whole

    async def _folded(self, found: Sequence[Claim], whole: asyncio.Future[Sequence[Claim]]) -> None:
        """Complete claims by their tasks. An unreadable one does not delay the others."""
        read = []
        for claim in found:
            try:
                read.append(replace(claim, task=await self._folded_task(claim)))
            except Exception as error:  # noqa: BLE001 - it concerns this task alone
                if not isinstance(error, Unreadable):  # it has been logged
                    logger.error("a task cannot be read: %s", error, extra={"task": claim.head.id})
                away = isinstance(error, Unavailable)
                event = None if away else claim.head.ending(TaskState.FAILED, UNREADABLE)
                try:
                    await self.revoke(claim.head, event, begun=False)
                except Unavailable as worse:  # its lease expires
                    logger.error("cannot release a claim: %s", worse)
        whole.set_result(read)

    async def _folded_task(self, claim: Claim) -> Task:
        live = self._recent.find(claim.head.scope, claim.head.id)
        if live is not None and live.first == 1:
            return live.task()
        if claim.turn == 1:
            return claim.task
        folded = await self._readers.run(partial(Queries.load, task=claim.head.id))
        assert folded is not None  # a claimed task is not deleted
        self._keep(folded)
        return folded.task

    async def private(self, scope: Scope, task: str) -> Sequence[Entry]:
        """See `Store.private`."""
        found = await self._readers.run(lambda view: view.private(task, scope))
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
        return await self._readers.run(lambda view: context_values.read(view.db, task, encryption))

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
        return await self._readers.run(lambda view: view.held(worker))

    # -- for every replica

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """See `Store.expired`."""
        found, broken = await self._readers.run(lambda view: view.expired(agents, limit))
        for task, error in broken:
            await self._set_aside(task, error)
        return found

    async def _set_aside(self, task: str | int, error: Unreadable) -> None:
        await self._writer.submit(lambda transaction: transaction.set_aside(task, error))

    async def wake(self, agents: Collection[str], limit: int) -> Mapping[str, int]:
        """See `Store.wake`."""
        tasks = await self._readers.run(lambda view: view.due_tasks(agents, limit))
        return await self._writer.submit(partial(log_changes.wake, tasks=tasks)) if tasks else {}

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """See `Store.moved`."""
        return await self._readers.run(lambda view: view.moved(places))

    async def census(self, agents: Collection[str]) -> Mapping[str, Census]:
        """See `Store.census`."""
        return await self._readers.run(lambda view: view.census(agents))

    async def probe(self) -> None:
        """See `Store.probe`."""
        await self._writer.probe()

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

    async def _delete_reservations(self) -> int:
        return await self._writer.submit(lambda transaction: reservations.prune(transaction.db))

    async def _reserve_body(self, space: str, key: str, body: bytes, keep: float | None) -> bytes:
        return await self._writer.submit(
            lambda transaction: reservations.reserve(transaction.db, space, key, body, keep)
        )

    async def _reserved_body(self, space: str, key: str) -> bytes | None:
        return await self._writer.submit(
            lambda transaction: reservations.reserved(transaction.db, space, key)
        )

    async def release(self, space: str, key: str) -> bool:
        """See `Store.release`."""
        return await self._writer.submit(
            lambda transaction: reservations.release(transaction.db, space, key)
        )

    async def _listed(
        self, space: str, prefix: str, after: str, limit: int
    ) -> Sequence[tuple[str, bytes, float | None]]:
        return await self._writer.submit(
            lambda transaction: reservations.listed(transaction.db, space, prefix, after, limit)
        )

    # -- for the delivery of webhooks

    async def dispatch(
        self,
        agents: Collection[str],
        limit: int,
        lease: float,
        passing: Collection[Owner] = NOBODY,
    ) -> Sequence[WebhookCursor]:
        """See `Store.dispatch`."""
        if not await self._readers.run(lambda view: view.due(agents)):
            return ()  # called often, and usually nothing is due
        taken: list[WebhookCursor] = []
        first = (limit + 1) // 2
        if not passing:
            work = partial(deliveries.take, agents=agents, limit=first, lease=lease)
            taken = await self._writer.submit(work)
        if passing or (len(taken) == first < limit):
            rest = limit - len(taken)
            found = await deliveries.due_lanes(
                self._readers, self._delivery_order, agents, rest, passing
            )
            work = partial(deliveries.take_of, lanes=found, limit=rest, lease=lease)
            taken += await self._writer.submit(work) if found else ()
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
        work = partial(
            deliveries.record, line=line, cursor=cursor, wait=wait, failed=failed, parked=parked
        )
        if parked or not (wait or failed):
            self._floor = 0.0  # now its task may be deleted
        return await self._writer.submit(work)

    async def undelivered(
        self, limit: int, *, parked: bool | None = None
    ) -> Sequence[WebhookCursor]:
        """See `Store.undelivered`."""
        return await self._readers.run(lambda view: view.undelivered(limit, parked))

    async def redrive(self, task: str = "", webhook: str = "") -> int:
        """See `Store.redrive`."""
        return await self._writer.submit(partial(deliveries.redrive, task=task, webhook=webhook))

    # -- inside

    def _forget(self) -> None:
        """Another process has written, so the cache may be wrong."""
        self._recent.clear()
        self._keys.clear()

    def _view(self) -> Queries:
        db = self.driver.connect(self.path)
        self._open.append(db)
        prepare(db, synchronous=self.synchronous, query_only=True)
        return Queries(db, self._damage)

    def _row(self, scope: Scope, task: str) -> SqliteHead | None:
        return self._readers.now(lambda view: view.row(task, scope))

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
