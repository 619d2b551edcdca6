"""The admin interface of PostgreSQL, also while servers use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
from msgspec.structs import replace

from dragoman.model.errors import A2AError, Unavailable
from dragoman.model.events import Entry
from dragoman.model.lifecycle import fold
from dragoman.model.types import Task, TaskState
from dragoman.security.encryption import Encryption
from dragoman.stores.admin import (
    BATCH,
    HEAVY,
    Differs,
    Fate,
    Missing,
    Pruned,
    Renamed,
    SavedValue,
    ValueFate,
    WebhookRow,
    paged,
    restored,
    webhook_row,
)
from dragoman.stores.codec import STATES, entry, snapshot
from dragoman.stores.encrypted_values import opened
from dragoman.stores.export_format import ExportedContext, ExportedReservation, ExportedTask
from dragoman.stores.integrity import Progress
from dragoman.stores.postgres import (
    change_owner,
    deliveries,
    integrity,
    listing,
    prune,
    reservations,
    schema,
    transfer,
)
from dragoman.stores.postgres.context_values import OF_TASK
from dragoman.stores.postgres.deliveries import LINE, shown
from dragoman.stores.postgres.pool import CONNECT, gone, place, reason
from dragoman.stores.postgres.schema import SECURED, VERSION, Unusable
from dragoman.stores.postgres.transaction import COLUMNS, NAMES, NOW, PostgresHead
from dragoman.stores.process_rows import FLEET, Fleet, read_rows
from dragoman.stores.reservations import (
    PAGE,
    Reservation,
    check_reservation,
    check_space,
    decode_reservation,
    decode_value,
    encode_value,
)
from dragoman.stores.sql_head import SqlHead
from dragoman.stores.sql_store import RECEIPTS
from dragoman.stores.store import Unreadable
from dragoman.stores.task_rows import COUNTED, Choice, Counts, TaskPage, TaskRow
from dragoman.stores.unreadable_rows import DECODING

T = TypeVar("T")

_FIND = f"SELECT {COLUMNS} FROM task WHERE id = $1"
_READ = (
    "SELECT number, turn, kind, body FROM entry WHERE task = $1 AND number > $2 "
    "ORDER BY number LIMIT $3"
)
_WAITING = f"SELECT task.last, {LINE} FROM line JOIN task ON task.key = line.task"
_OLD = f"""
SELECT {prune.BEHIND} IS NOT NULL, task.ended > {NOW} - $1 AND {prune.SENT} IS NOT NULL,
  {COLUMNS} FROM task WHERE task.ended < $2 AND task.ended >= $3
  AND (task.ended, task.key) > ($3, $4) ORDER BY task.ended, task.key LIMIT $5
"""


class PostgresAdmin:
    """The admin interface of an existing database, used in a `with`."""

    path: Path | None = None

    def __init__(
        self,
        url: str,
        *,
        write: bool = False,
        create: bool = False,
        encryption: Encryption | None = None,
        prepared: bool = True,
    ) -> None:
        self._encryption = encryption or Encryption(())
        self.url = url
        self._prepared = prepared
        self.name = place(self.url)
        self.version = VERSION
        self.write = write
        self.create = create
        self._runner = asyncio.Runner()
        self._db: Any = None

    def __enter__(self) -> PostgresAdmin:
        try:
            self._connect()
            self._do(self._prepare())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _connect(self) -> None:
        self._db = self._do(
            asyncpg.connect(
                self.url,
                timeout=CONNECT,
                statement_cache_size=100 if self._prepared else 0,
                server_settings={"application_name": "dragoman db", "jit": "off"},
            )
        )

    def _close(self) -> None:
        db, self._db = self._db, None
        try:
            if db is not None:
                self._runner.run(db.close(timeout=CONNECT))
        except Exception as error:
            if not gone(error):
                raise
        finally:
            self._runner.close()

    async def _prepare(self) -> None:
        found = await schema.version(self._db)
        if found < VERSION and not (self.create and not found):
            which = (
                f"its schema is {found}, not {VERSION}" if found else "it has no dragoman tables"
            )
            raise Unusable(f"{self.name}: {which}; run `dragoman db migrate`")
        await schema.usable(self._db, migrating=self.create)
        if not self.write:
            await self._db.execute("SET default_transaction_read_only = on")

    def _do(self, doing: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine. Errors of the database become Unavailable."""
        try:
            return self._runner.run(doing)
        except A2AError as error:
            words = error.message.removeprefix("store: ")
            if words.startswith(self.name):
                raise
            raise Unavailable(f"{self.name}: {words}") from None
        except asyncpg.InsufficientPrivilegeError as error:
            raise Unavailable(
                f"{self.name}: this role lacks the permission ({error}); use the role that "
                "owns the tables, or grant the rights in docs/operations.md"
            ) from None
        except Exception as error:
            if not (gone(error) or isinstance(error, asyncpg.PostgresError | ValueError)):
                raise
            raise Unavailable(f"{self.name}: {reason(error)}") from None

    def _fetch(self, sql: str, *values: Any) -> list[Any]:
        return self._do(self._db.fetch(sql, *values))

    # -- reading

    def size(self) -> tuple[int, int]:
        """See `StoreAdmin.size`. The size includes indexes."""
        ((size,),) = self._fetch(
            "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest($1::text[]) AS u(name)",
            list(SECURED),
        )
        return int(size), 0

    def sums(self) -> tuple[int, int]:
        """See `StoreAdmin.sums`."""
        ((tasks, entries),) = self._fetch(
            "SELECT (SELECT count(*) FROM task), (SELECT count(*) FROM entry)"
        )
        return tasks, entries

    def find(self, task: str) -> PostgresHead:
        """Return the row of a task. Raises Missing."""
        found = self._fetch(_FIND, task) if "\0" not in task else []
        if not found:
            raise Missing(f"there is no task {task} in {self.name}")
        return PostgresHead.restored(found[0])

    def row(self, task: str) -> TaskRow:
        """See `StoreAdmin.row`."""
        return self._do(self._row(task))

    async def _row(self, task: str) -> TaskRow:
        found = []
        if "\0" not in task:
            found = await self._db.fetch(f"{listing.ROWS} WHERE task.id = $1", task)
        if not found:
            raise Missing(f"there is no task {task} in {self.name}")
        return listing.row(found[0])

    def load(self, task: str) -> tuple[TaskRow, Task]:
        """See `StoreAdmin.load`."""
        return self._do(self._load(task))

    async def _load(self, task: str) -> tuple[TaskRow, Task]:
        async with self._db.transaction(isolation="repeatable_read", readonly=True):
            shown = await self._row(task)
            row = PostgresHead.restored(await self._db.fetchrow(_FIND, task))
            kept = await self._db.fetchrow(
                "SELECT number, body FROM snapshot WHERE task = $1", row.key
            )
            number, start = 0, None
            if kept is not None:
                with suppress(*DECODING):  # the log has the same content
                    start = snapshot(kept[1], row.id, kept[0], row.last)
                    number = kept[0]
            rest = await self._db.fetch(_READ, row.key, number, None)
        events = list(_entries(row, rest))
        try:
            return shown, fold(start, (item.event for item in events))  # type: ignore[misc]
        except DECODING as error:
            raise Unreadable("log", row.id, error) from None

    def read(self, task: str, after: int = 0) -> Iterator[Entry]:
        """See `StoreAdmin.read`."""
        row = self.find(task)
        while found := self._fetch(_READ, row.key, after, BATCH):
            yield from opened(_entries(row, found), task, self._encryption)
            after = found[-1][0]

    def tasks(self, choice: Choice) -> TaskPage:
        """See `StoreAdmin.tasks`."""
        return self._do(listing.page(self._db, choice))

    def counts(self, choice: Choice, most: int = COUNTED) -> Counts:
        """See `StoreAdmin.counts`."""
        return self._do(listing.counts(self._db, choice, most))

    def follow(self, task: str, after: int, pause: float) -> Iterator[Entry]:
        """See `StoreAdmin.follow`."""
        seen = -1
        while True:
            row = self.find(task)
            if row.version != seen:
                for item in self.read(task, after):
                    after = item.number
                    yield item
                if row.ended and after >= row.last:
                    return
                seen = row.version
            time.sleep(pause)

    def undelivered(self, limit: int, *, parked: bool = False) -> list[WebhookRow]:
        """See `StoreAdmin.undelivered`."""
        found = self._lines(f"{_WAITING} WHERE line.parked LIMIT $1", limit)
        if not parked and len(found) < limit:
            found += self._lines(
                f"{_WAITING} WHERE line.behind AND NOT line.parked ORDER BY line.due LIMIT $1",
                limit - len(found),
            )
        return found

    def webhooks(self, task: str) -> Sequence[WebhookRow]:
        """See `StoreAdmin.webhooks`."""
        key = self.find(task).key
        return self._lines(f"{_WAITING} WHERE line.task = $1 ORDER BY line.id", key)

    def _lines(self, sql: str, value: int) -> list[WebhookRow]:
        return [webhook_row(shown(columns[1:]), columns[0]) for columns in self._fetch(sql, value)]

    def check(self, progress: Progress) -> Iterator[str]:
        """See `StoreAdmin.check`."""
        ((total,),) = self._fetch("SELECT count(*) FROM task")
        key = done = 0
        while (found := self._do(integrity.logs(self._db, key))) is not None:
            key, seen, problems = found
            yield from problems
            done += seen
            progress("tasks", done, max(done, total))
        yield from self._do(integrity.hanging(self._db))
        place = transfer.FIRST
        while (checked := self._do(integrity.values(self._db, place))) is not None:
            place, problems = checked
            yield from problems
        name = ("", "")
        while (named := self._do(integrity.reserved(self._db, name))) is not None:
            name, problems = named
            yield from problems

    def export(
        self, broken: Callable[[str], None], *, agent: str = "", since: str = ""
    ) -> Iterator[ExportedTask]:
        """See `StoreAdmin.export`."""
        key = 0
        while True:
            found = self._do(transfer.page(self._db, key, broken, agent=agent, since=since))
            if found is None:
                return
            key, tasks = found
            yield from tasks

    def export_contexts(
        self, broken: Callable[[str], None], *, agent: str = "", since: str = ""
    ) -> Iterator[ExportedContext]:
        """See `StoreAdmin.export_contexts`."""
        place = transfer.FIRST
        while found := self._do(transfer.contexts(self._db, place, agent=agent, since=since)):
            for row in found:
                place = tuple(row)[:4]
                if (value := transfer.exported(row, broken)) is not None:
                    yield value

    def export_reservations(self, broken: Callable[[str], None]) -> Iterator[ExportedReservation]:
        """See `StoreAdmin.export_reservations`."""
        place = ("", "")
        while True:
            found, now = self._do(transfer.reservations(self._db, place))
            if not found:
                return
            for row in found:
                place = (row[0], row[1])
                if (one := restored(tuple(row), now, broken)) is not None:
                    yield one

    def fleet(self, after: str = "") -> Fleet:
        """See `StoreAdmin.fleet`."""
        ((now,),) = self._fetch(f"SELECT {NOW}")
        found = self._fetch(
            "SELECT key, body, expires FROM reservation WHERE space = $1 AND key > $2 "
            "AND expires > $3 ORDER BY key",
            *(FLEET, after, now),
        )
        return Fleet(now, read_rows((key, bytes(body), until) for key, body, until in found))

    def reservations(self, space: str, prefix: str = "") -> Iterator[Reservation]:
        """See `StoreAdmin.reservations`."""
        check_space(space)

        def page(after: str) -> list[Reservation]:
            found = self._do(reservations.listed(self._db, space, prefix, after, PAGE))
            return [decode_reservation(space, row, self._encryption) for row in found]

        return paged(page)

    def context_value(self, task: str) -> SavedValue | None:
        """See `StoreAdmin.context_value`."""
        found = self._fetch(
            "SELECT value.version, value.saver, length(value.body) FROM task "
            f"JOIN context_value AS value ON {OF_TASK} WHERE task.key = $1",
            self.find(task).key,
        )
        return SavedValue(*found[0]) if found else None

    # -- writing

    def reserve(self, space: str, key: str, value: bytes, *, keep: float | None) -> bytes:
        """See `StoreAdmin.reserve`."""
        check_reservation(space, key, value, keep)
        check_space(space)
        body = encode_value(value, space, key, self._encryption)
        found = self._do(reservations.reserve(self._db, space, key, body, keep))
        return value if found is body else decode_value(found, space, key, self._encryption)

    def release(self, space: str, key: str) -> bool:
        """See `StoreAdmin.release`."""
        check_space(space)
        return self._do(reservations.release(self._db, space, key))

    def prepare(self) -> None:
        """See `StoreAdmin.prepare`. Servers continue to write meanwhile."""
        self._do(listing.prepare(self._db))

    def unprepare(self) -> None:
        """See `StoreAdmin.unprepare`."""
        self._do(listing.unprepare(self._db))

    def redrive(self, task: str = "", webhook: str = "") -> int:
        """See `StoreAdmin.redrive`."""
        if task:
            self.find(task)
        return self._do(deliveries.redrive(self._db, task, webhook))

    def prune(
        self,
        before: float,
        states: Collection[TaskState] = (),
        *,
        owner: str | None = None,
        force: bool = False,
        dry: bool = False,
    ) -> Iterator[Pruned]:
        """See `PostgresAdmin.prune`. Counts that are in many parts are added up, too."""
        done, place = Pruned(), (0.0, 0)
        while True:
            began = time.monotonic()
            step = self._step(done, before, place, states, owner=owner, force=force, dry=dry)
            done, next_ = self._do(step)
            yield done
            if next_ is None:
                break
            place = next_
            if not dry:  # leave the servers as much time as this took
                time.sleep(min(time.monotonic() - began, 0.5))
        at: prune.CountKey | None = None if dry else prune.START
        while at is not None:
            at = self._do(prune.merge(self._db, at))
        expired = 1 if not dry else 0
        while expired:
            expired = self._do(reservations.prune(self._db))
            done = replace(done, reservations=done.reservations + expired)
        yield done

    async def _step(
        self,
        done: Pruned,
        before: float,
        place: tuple[float, int],
        states: Collection[TaskState],
        *,
        owner: str | None,
        force: bool,
        dry: bool,
    ) -> tuple[Pruned, tuple[float, int] | None]:
        """Delete a batch of ended tasks after a position. Returns the totals so far, and the
        position of the last task."""
        keys: list[int] = []
        heavy, last = 0, None
        async with self._db.transaction():
            locked = "" if dry else " FOR UPDATE OF task SKIP LOCKED"
            found = await self._db.fetch(f"{_OLD}{locked}", RECEIPTS, before, *place, BATCH)
            for behind, recent, *columns in found:
                row = dict(zip(NAMES, columns, strict=True))  # readable or not
                last = (row["ended"], row["key"])
                if owner is not None and row["owner"] != owner:
                    continue
                if states and (row["replied"] or STATES.get(row["state"]) not in states):
                    continue
                if behind and not force:
                    done = replace(done, pending=done.pending + 1)
                    continue
                if recent and not force:
                    done = replace(done, recent=done.recent + 1)
                    continue
                keys.append(row["key"])
                done = replace(done, tasks=done.tasks + 1, size=done.size + row["size"])
                heavy += row["size"]
                if heavy >= HEAVY:
                    break
            if keys and not dry:
                answer = await self._db.fetch(prune.THESE, keys, keys[0] % prune.SHARDS)
                await prune.forget_values(self._db, answer)
        return done, last

    def rename_owner(
        self,
        old: str,
        new: str,
        *,
        agent: str | None = None,
        tenant: str | None = None,
        dry: bool = False,
    ) -> Renamed:
        """See `PostgresAdmin.rename_owner`."""
        return self._do(
            change_owner.rename(
                self._db, old, new, agent=agent, tenant=tenant, dry=dry, encryption=self._encryption
            )
        )

    def put(self, tasks: Sequence[ExportedTask], *, replace: bool) -> list[Fate | Differs]:
        """See `StoreAdmin.put`. If a task comes twice, the second one is written after the
        first."""
        found: list[Fate | Differs] = []
        batch: dict[str, ExportedTask] = {}
        for task in tasks:
            if task.id in batch:
                found += self._do(self._put(list(batch.values()), replace))
                batch.clear()
            batch[task.id] = task
        return found + self._do(self._put(list(batch.values()), replace))

    async def _put(self, tasks: Sequence[ExportedTask], replace: bool) -> list[Fate | Differs]:
        async with self._db.transaction():
            return await transfer.Tray(self._db, replace=replace).put(tasks)

    def put_contexts(
        self, values: Sequence[ExportedContext], *, replace: bool
    ) -> list[ValueFate | Differs]:
        """See `StoreAdmin.put_contexts`."""
        return self._do(self._put_contexts(values, replace))

    async def _put_contexts(
        self, values: Sequence[ExportedContext], replace: bool
    ) -> list[ValueFate | Differs]:
        found: list[ValueFate | Differs] = []
        async with self._db.transaction():
            for value in values:
                try:
                    found.append(await transfer.put_context(self._db, value, replace=replace))
                except Differs as error:
                    found.append(error)
        return found

    def put_reservations(
        self, given: Sequence[ExportedReservation], *, replace: bool
    ) -> list[ValueFate | Differs]:
        """See `StoreAdmin.put_reservations`."""
        return self._do(self._put_reservations(given, replace))

    async def _put_reservations(
        self, given: Sequence[ExportedReservation], replace: bool
    ) -> list[ValueFate | Differs]:
        found: list[ValueFate | Differs] = []
        async with self._db.transaction():
            for one in given:
                try:
                    found.append(await transfer.put_reservation(self._db, one, replace=replace))
                except Differs as error:
                    found.append(error)
        return found

    def backup(self, target: Path, *, force: bool, progress: Callable[[int, int], None]) -> int:
        """Refuse: PostgreSQL has its own tools for backups."""
        raise Unusable(
            f"{self.name}: backup copies a file; use pg_dump or pg_basebackup for PostgreSQL"
        )

    def migrate(self, *, row_security: bool | None = None) -> tuple[int, int]:
        """See `StoreAdmin.migrate`."""
        try:
            self._connect()
            before = self._do(schema.migrate(self._db))
            if row_security is not None:
                self._do(schema.secure(self._db, row_security))
            return before, VERSION
        finally:
            self._close()


def _entries(row: SqlHead, found: Sequence[Any]) -> Iterator[Entry]:
    """Decode the entries of these columns. Raises Unreadable."""
    for columns in found:
        try:
            yield entry(*columns)
        except DECODING as error:
            raise Unreadable("log", row.id, f"entry {columns[0]}: {error}") from None
