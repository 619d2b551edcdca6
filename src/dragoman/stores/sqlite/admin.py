"""The admin interface of a SQLite file, also while a server uses it.

It does not take the server's lock. Reading never waits, and writing is short. The server notices
writes of others before it uses its cache.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from msgspec.structs import replace

from dragoman.model.errors import Unavailable
from dragoman.model.events import Entry
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
    webhook_row,
)
from dragoman.stores.codec import STATES
from dragoman.stores.encrypted_values import opened
from dragoman.stores.export_format import ExportedContext, ExportedReservation, ExportedTask
from dragoman.stores.integrity import Progress
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
from dragoman.stores.sql_store import RECEIPTS
from dragoman.stores.sqlite import change_owner, listing, reservations, schema, transfer
from dragoman.stores.sqlite.context_values import OF_TASK, any_there
from dragoman.stores.sqlite.deliveries import LINE, shown
from dragoman.stores.sqlite.driver import BUSY, fetch, prepare, unavailable
from dragoman.stores.sqlite.integrity import audit
from dragoman.stores.sqlite.lock import Lock
from dragoman.stores.sqlite.queries import Queries
from dragoman.stores.sqlite.rows import OLD, Old, SqliteHead
from dragoman.stores.sqlite.schema import APPLICATION, VERSION, Unusable
from dragoman.stores.sqlite.transaction import Transaction
from dragoman.stores.task_rows import COUNTED, Choice, Counts, TaskPage, TaskRow

PAGES = 1024
"""How many pages a backup copies at once."""


class SqliteAdmin:
    """The admin interface of an existing file, used in a `with`."""

    db: sqlite3.Connection

    def __init__(
        self,
        path: Path,
        *,
        write: bool = False,
        create: bool = False,
        encryption: Encryption | None = None,
    ) -> None:
        self.path = path
        self._encryption = encryption or Encryption(())
        self.name = str(path)
        self.version = VERSION
        self.write = write
        self.create = create

    def __enter__(self) -> SqliteAdmin:
        if not self.create and not self.path.is_file():
            raise Missing(f"the file {self.path} does not exist")
        with _named(self.name):
            self.db = connect(self.path, "rwc" if self.create else "rw")
            try:
                self._prepare()
            except BaseException:
                self.db.close()
                raise
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.db.close()
        if isinstance(error, sqlite3.Error):
            with _named(self.name):
                raise error

    def _prepare(self) -> None:
        try:
            # before anything changes, because the file may belong to another program
            found = schema.version(self.db)
            if not found and self.create:
                schema.migrate(prepare(self.db, synchronous="full"))
                Lock(self.path).mark()
            elif not found:
                raise Unusable("it is empty; `dragoman serve` creates a store in it")
            elif found < VERSION:
                raise Unusable(f"its schema is {found}, not {VERSION}; run `dragoman db migrate`")
        except Unusable as error:
            raise Unusable(f"{self.path}: {error.message}") from None
        if not self.write:
            self.db.execute("PRAGMA query_only = 1")

    # -- reading

    def find(self, task: str) -> SqliteHead:
        """Return the row of a task. Raises Missing."""
        row = Queries(self.db).row(task)
        if row is None:
            raise Missing(f"there is no task {task} in {self.path}")
        return row

    def row(self, task: str) -> TaskRow:
        """See `StoreAdmin.row`."""
        return listing.row(self.db, self.find(task))

    def load(self, task: str) -> tuple[TaskRow, Task]:
        """See `StoreAdmin.load`."""
        row, folded = self.row(task), Queries(self.db).load(task)
        if folded is None:
            raise Missing(f"there is no task {task} in {self.path}")
        return row, folded.task

    def size(self) -> tuple[int, int]:
        """Return the size of the file and of its write-ahead log, in bytes."""
        log = self.path.with_name(self.path.name + "-wal")
        return self.path.stat().st_size, log.stat().st_size if log.exists() else 0

    def sums(self) -> tuple[int, int]:
        """See `StoreAdmin.sums`."""
        (tasks,) = self.db.execute("SELECT count(*) FROM task").fetchone()
        (entries,) = self.db.execute("SELECT count(*) FROM entry").fetchone()
        return tasks, entries

    def check(self, progress: Progress) -> Iterator[str]:
        """See `integrity.check`."""
        return audit(self.db, progress)

    def export(
        self, broken: Callable[[str], None], *, agent: str = "", since: str = ""
    ) -> Iterator[ExportedTask]:
        """See `transfer.tasks`."""
        return transfer.tasks(self.db, broken, agent=agent, since=since)

    def export_contexts(
        self, broken: Callable[[str], None], *, agent: str = "", since: str = ""
    ) -> Iterator[ExportedContext]:
        """See `transfer.contexts`."""
        return transfer.contexts(self.db, broken, agent=agent, since=since)

    def export_reservations(self, broken: Callable[[str], None]) -> Iterator[ExportedReservation]:
        """See `transfer.reservations`."""
        return transfer.reservations(self.db, broken)

    def fleet(self, after: str = "") -> Fleet:
        """See `StoreAdmin.fleet`."""
        now = time.time()
        found = fetch(
            self.db,
            "SELECT key, body, expires FROM reservation WHERE space = ? AND key > ? "
            "AND expires > ? ORDER BY key",
            (FLEET, after, now),
        )
        return Fleet(now, read_rows(found))

    def reservations(self, space: str, prefix: str = "") -> Iterator[Reservation]:
        """See `StoreAdmin.reservations`."""
        check_space(space)

        def page(after: str) -> list[Reservation]:
            found = reservations.listed(self.db, space, prefix, after, PAGE)
            return [decode_reservation(space, row, self._encryption) for row in found]

        return paged(page)

    def context_value(self, task: str) -> SavedValue | None:
        """See `StoreAdmin.context_value`."""
        found = fetch(
            self.db,
            f"SELECT version, saver, length(body) FROM context_value WHERE {OF_TASK}",
            (self.find(task).key,),
        )
        return SavedValue(*found[0]) if found else None

    def read(self, task: str, after: int = 0) -> Iterator[Entry]:
        """See `StoreAdmin.read`."""
        view, key = Queries(self.db), self.find(task).key
        while found := view.read(task, key, after, BATCH, private=True):
            yield from opened(found, task, self._encryption)
            after = found[-1].number

    def tasks(self, choice: Choice) -> TaskPage:
        """See `StoreAdmin.tasks`."""
        return listing.page(self.db, choice)

    def counts(self, choice: Choice, most: int = COUNTED) -> Counts:
        """See `StoreAdmin.counts`."""
        return listing.counts(self.db, choice, most)

    def follow(self, task: str, after: int, pause: float) -> Iterator[Entry]:
        """See `StoreAdmin.follow`."""
        seen = -1
        while True:
            (version,) = self.db.execute("PRAGMA data_version").fetchone()
            if version != seen:
                row = self.find(task)
                for entry in self.read(task, after):
                    after = entry.number
                    yield entry
                if row.ended and after >= row.last:
                    return
                seen = version
            time.sleep(pause)

    def undelivered(self, limit: int, *, parked: bool = False) -> list[WebhookRow]:
        """See `StoreAdmin.undelivered`."""
        found = self._lines(f"{_WAITING} WHERE line.parked = 1 LIMIT ?", limit)
        if not parked and len(found) < limit:
            found += self._lines(
                f"{_WAITING} WHERE line.behind = 1 AND line.parked = 0 ORDER BY line.due LIMIT ?",
                limit - len(found),
            )
        return found

    def webhooks(self, task: str) -> Sequence[WebhookRow]:
        """See `StoreAdmin.webhooks`."""
        return self._lines(f"{_WAITING} WHERE line.task = ? ORDER BY line.id", self.find(task).key)

    def _lines(self, sql: str, value: int) -> list[WebhookRow]:
        found = fetch(self.db, sql, (value,))
        return [webhook_row(shown(columns), last) for last, *columns in found]

    # -- writing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Run a transaction."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def put(self, tasks: Sequence[ExportedTask], *, replace: bool) -> list[Fate | Differs]:
        """See `StoreAdmin.put`."""
        found: list[Fate | Differs] = []
        with self.writing():
            for task in tasks:
                try:
                    found.append(transfer.put(self.db, task, replace=replace))
                except Differs as error:
                    found.append(error)
        return found

    def put_contexts(
        self, values: Sequence[ExportedContext], *, replace: bool
    ) -> list[ValueFate | Differs]:
        """See `StoreAdmin.put_contexts`."""
        found: list[ValueFate | Differs] = []
        with self.writing():
            for value in values:
                try:
                    found.append(transfer.put_context(self.db, value, replace=replace))
                except Differs as error:
                    found.append(error)
        return found

    def put_reservations(
        self, given: Sequence[ExportedReservation], *, replace: bool
    ) -> list[ValueFate | Differs]:
        """See `StoreAdmin.put_reservations`."""
        found: list[ValueFate | Differs] = []
        with self.writing():
            for one in given:
                try:
                    found.append(transfer.put_reservation(self.db, one, replace=replace))
                except Differs as error:
                    found.append(error)
        return found

    def reserve(self, space: str, key: str, value: bytes, *, keep: float | None) -> bytes:
        """See `StoreAdmin.reserve`."""
        check_reservation(space, key, value, keep)
        check_space(space)
        body = encode_value(value, space, key, self._encryption)
        with self.writing():
            found = reservations.reserve(self.db, space, key, body, keep)
        return value if found is body else decode_value(found, space, key, self._encryption)

    def release(self, space: str, key: str) -> bool:
        """See `StoreAdmin.release`."""
        check_space(space)
        with self.writing():
            return reservations.release(self.db, space, key)

    def prepare(self) -> None:
        """See `StoreAdmin.prepare`."""
        for name, what in listing.INDEXES.items():
            with self.writing():  # one at a time, so that writers wait less
                self.db.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {what}")

    def unprepare(self) -> None:
        """See `StoreAdmin.unprepare`."""
        with self.writing():
            for name in listing.INDEXES:
                self.db.execute(f"DROP INDEX IF EXISTS {name}")

    def redrive(self, task: str = "", webhook: str = "") -> int:
        """See `StoreAdmin.redrive`."""
        with self.writing():
            key = self.find(task).key if task else 0
            found = self.db.execute(
                "UPDATE line SET parked = 0, attempts = 0, due = 0 WHERE parked = 1 "
                "AND (? = 0 OR task = ?) AND (? = '' OR id = ?) RETURNING 1",
                (key, key, webhook, webhook),
            )
            return len(found.fetchall())

    def prune(
        self,
        before: float,
        states: Collection[TaskState] = (),
        *,
        owner: str | None = None,
        force: bool = False,
        dry: bool = False,
    ) -> Iterator[Pruned]:
        """See `StoreAdmin.prune`."""
        transaction = Transaction(self.db, max_task_bytes=0)
        scopes = self.db.execute("SELECT key FROM scope WHERE owner = ?", (owner,)).fetchall()
        theirs = {key for (key,) in scopes}
        done, place, more = Pruned(), (0.0, 0), True
        while more:
            began = time.monotonic()
            heavy, more = 0, False
            with nullcontext() if dry else _transaction(transaction):
                values = any_there(self.db)
                for behind, recent, ended, replied, size, row in self._old(before, place):
                    place, more = (ended, row.key), True
                    if owner is not None and row.scope not in theirs:
                        continue
                    if states and (replied or STATES.get(row.state) not in states):
                        continue
                    if behind and not force:
                        done = replace(done, pending=done.pending + 1)
                        continue
                    if recent and not force:
                        done = replace(done, recent=done.recent + 1)
                        continue
                    if not dry:
                        transaction.drop(row, values=values)
                    done = replace(done, tasks=done.tasks + 1, size=done.size + size)
                    heavy += size
                    if heavy >= HEAVY:
                        break
            yield done
            if more and not dry:  # leave the server as much time as this took
                time.sleep(min(time.monotonic() - began, 0.5))
        expired = 1 if not dry else 0
        while expired:
            with self.writing():
                expired = reservations.prune(self.db)
            done = replace(done, reservations=done.reservations + expired)
        yield done

    def _old(
        self, before: float, place: tuple[float, int]
    ) -> Iterator[tuple[bool, bool, float, bool, int, Old]]:
        """Return tasks by the time of their end, after a position: whether a webhook has
        undelivered events, whether a send may be repeated, when the task ended, whether it was a
        direct reply, its size, and the task."""
        values = (time.time() - RECEIPTS, before, *place, BATCH)
        for *facts, key, id, scope, state, born in fetch(self.db, _OLD, values):
            behind, recent, ended, replied, size = facts
            yield behind, recent, ended, replied, size, Old(key, id, scope, state, born)

    def rename_owner(
        self,
        old: str,
        new: str,
        *,
        agent: str | None = None,
        tenant: str | None = None,
        dry: bool = False,
    ) -> Renamed:
        """See `StoreAdmin.rename_owner`."""
        with nullcontext() if dry else self.writing():
            return change_owner.rename(
                self.db, old, new, agent=agent, tenant=tenant, dry=dry, encryption=self._encryption
            )

    def migrate(self, *, row_security: bool | None = None) -> tuple[int, int]:
        """See `migrate`."""
        if row_security is not None:
            raise Unusable("row security is PostgreSQL's; a file has the rights of the file")
        with _named(self.name):
            return migrate(self.path)

    def backup(self, target: Path, *, force: bool, progress: Callable[[int, int], None]) -> int:
        """See `StoreAdmin.backup`."""
        target = target.absolute()
        if target.exists() and (not force or target.samefile(self.path)):
            raise FileExistsError(target)
        part = target.with_name(target.name + ".part")
        part.unlink(missing_ok=True)
        # created before it is filled, so that its mode is that of the file from the beginning
        mode = self.path.stat().st_mode & 0o777
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        try:
            self._copy(part, progress)
            _move(part, target)
        except BaseException:
            for name in (part, *_beside(part)):
                name.unlink(missing_ok=True)
            raise
        return target.stat().st_size

    def _copy(self, part: Path, progress: Callable[[int, int], None]) -> None:
        copy = connect(part, "rw")
        try:
            # One transaction for all pages: otherwise every commit of the server would start the
            # copy again.
            self.db.execute("BEGIN")
            self.db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
            self.db.backup(
                copy,
                pages=PAGES,
                sleep=0,
                progress=lambda _, left, all_: progress(all_ - left, all_),
            )
            self.db.execute("COMMIT")
            schema.version(copy)
            copy.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            copy.close()
        with part.open("rb+") as file:
            os.fsync(file.fileno())


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Connect to the file. Only mode rwc creates it."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY, isolation_level=None
    )


def ours(path: Path) -> bool:
    """Whether the file is a store. Files of other programs are not opened if possible."""
    with suppress(sqlite3.Error, OSError):
        with path.open("rb") as file:
            head = file.read(72)
        found = int.from_bytes(head[68:], "big")
        log = path.with_name(path.name + "-wal")
        if found or not head.startswith(b"SQLite format 3") or not log.exists():
            return found == APPLICATION
        db = connect(path, "rw")  # a new file may have its tables only in the write-ahead log
        try:
            return bool(db.execute("PRAGMA application_id").fetchone() == (APPLICATION,))
        finally:
            db.close()
    return False


def find() -> Path:
    """Return the only store in the working directory, without backups. Raises ValueError."""
    found = originals([path for path in sorted(Path().glob("*.db")) if ours(path)])
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(str, found))
        raise ValueError(f"there are several stores here ({names}); say which with --store")
    raise ValueError("there is no store here; say where with --store sqlite:///file.db")


def originals(paths: Sequence[Path]) -> list[Path]:
    """Return these stores without copies of each other. A copy has the same id as its original, but
    no lock file, because no server has used it."""
    if len(paths) < 2:
        return list(paths)
    used = {_id(path) for path in paths if Lock(path).path.exists()}
    return [path for path in paths if Lock(path).path.exists() or _id(path) not in used]


def _id(path: Path) -> str:
    """Return the id of a store, or its path if it has no readable id."""
    with suppress(sqlite3.Error, Unusable):
        db = connect(path, "rw")
        try:
            return schema.identity(db)
        finally:
            db.close()
    return str(path)


def migrate(path: Path) -> tuple[int, int]:
    """Update the tables of a file. Returns the old and the new version. Raises Unusable while a
    server uses the file, because its tables must not change then."""
    if not path.is_file():
        raise Missing(f"the file {path} does not exist")
    db = connect(path, "rw")
    lock = Lock(path)
    try:
        before = schema.version(db)
        if before < VERSION:
            lock.take()
            schema.migrate(prepare(db, synchronous="full"))
        return before, VERSION
    except Unusable as error:
        raise Unusable(f"{path}: {error.message}") from None
    finally:
        db.close()
        lock.release()


def _move(part: Path, target: Path) -> None:
    """Move a copy to its target, also in place of a store that no server uses."""
    lock = Lock(target)
    if lock.path.exists():
        lock.take()
    try:
        for name in _beside(target):  # they belong to the replaced file and would damage the copy
            name.unlink(missing_ok=True)
        part.replace(target)
    finally:
        lock.release()
    if sys.platform != "win32":  # the new name must also survive a power failure
        folder = os.open(target.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def _beside(path: Path) -> tuple[Path, ...]:
    return tuple(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Raise errors of SQLite as Unavailable, with the name of the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise Unavailable(f"{name}: {unavailable(error).message}") from error


@contextmanager
def _transaction(transaction: Transaction) -> Iterator[None]:
    """One transaction of the admin interface."""
    transaction.begin()
    try:
        yield
        transaction.commit()
    except BaseException:
        transaction.rollback()
        raise


_OLD = (
    "SELECT EXISTS (SELECT 1 FROM line WHERE line.task = task.key AND behind = 1 AND parked = 0), "
    "task.ended > ? AND EXISTS (SELECT 1 FROM receipt WHERE receipt.task = task.key), "
    f"task.ended, task.replied, task.size, {OLD} FROM task WHERE task.ended < ? "
    "AND (task.ended, task.key) > (?, ?) ORDER BY task.ended, task.key LIMIT ?"
)
_WAITING = f"SELECT task.last, {LINE.removeprefix('SELECT ')}"
