"""The admin interface of a store in memory, for other threads of its process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.model.errors import Unavailable
from dragoman.model.events import Entry, Private, Received
from dragoman.model.lifecycle import fold
from dragoman.model.types import Task, TaskState, TaskStatusUpdateEvent
from dragoman.stores.admin import Missing, SavedValue, WebhookRow, paged, webhook_row
from dragoman.stores.memory.log import Log, encode
from dragoman.stores.process_rows import Fleet, read_rows
from dragoman.stores.reservations import PAGE, Reservation, check_reservation, check_space
from dragoman.stores.task_rows import (
    COUNTED,
    RECENT,
    Choice,
    Counts,
    TaskPage,
    TaskRow,
    matches,
    said,
    task_row,
)

if TYPE_CHECKING:
    from dragoman.stores.memory import MemoryStore

T = TypeVar("T")


class MemoryAdmin:
    """Reads the logs of a store of this process. Changes are made on the loop of the store."""

    def __init__(self, store: MemoryStore, *, write: bool = False) -> None:
        self._store = store
        self._write = write
        self.name = store.name

    def __enter__(self) -> MemoryAdmin:
        if not self._store.used:
            raise Missing("the tasks of a store in memory can be read only in its process")
        return self

    def __exit__(self, *_: object) -> None: ...

    # -- reading: other threads may see a log grow, so everything is copied before it is looked at

    def _log(self, task: str) -> Log:
        log = self._store.log(task)
        if log is None:
            raise Missing(f"there is no task {task} in this store")
        return log

    def sums(self) -> tuple[int, int]:
        """See `StoreAdmin.sums`."""
        logs = self._store.logs()
        return len(logs), sum(len(log.entries) for log in logs)

    def tasks(self, choice: Choice) -> TaskPage:
        """See `StoreAdmin.tasks`."""
        found = sorted(
            ((log.changed, log.id, log) for log in self._store.logs() if matches(log, choice)),
            key=lambda place: place[:2],
            reverse=True,
        )
        if choice.cursor is not None:
            found = [place for place in found if place[:2] < choice.cursor]
        rows = [_row(log) for _, _, log in found[: choice.limit]]
        last = found[choice.limit - 1][:2] if len(found) > choice.limit else None
        return TaskPage(rows, last)

    def counts(self, choice: Choice, most: int = COUNTED) -> Counts:
        """See `StoreAdmin.counts`. There is no limit, because nothing is read for it."""
        sums: dict[TaskState, int] = {}
        for log in self._store.logs():
            if matches(log, choice):
                sums[log.state] = sums.get(log.state, 0) + 1
        return Counts(sums, True)

    def row(self, task: str) -> TaskRow:
        """See `StoreAdmin.row`."""
        return _row(self._log(task))

    def load(self, task: str) -> tuple[TaskRow, Task]:
        """See `StoreAdmin.load`."""
        row = self.row(task)
        entries = self._log(task).entries[: row.last]
        events = (entry.event for entry in entries if type(entry.event) is not Private)
        return row, fold(None, events)  # type: ignore[arg-type]

    def read(self, task: str, after: int = 0) -> Iterator[Entry]:
        """See `StoreAdmin.read`."""
        yield from self._log(task).entries[after:]

    def follow(self, task: str, after: int, pause: float) -> Iterator[Entry]:
        """See `StoreAdmin.follow`."""
        while True:
            log = self._log(task)
            ended = log.ended  # before the look: what is written later is seen the next time
            for entry in log.entries[after:]:
                after = entry.number
                yield entry
            if ended and after >= log.last:
                return
            time.sleep(pause)

    def undelivered(self, limit: int, *, parked: bool = False) -> list[WebhookRow]:
        """See `StoreAdmin.undelivered`."""
        found = [row for log in self._store.logs() for row in _webhooks(log) if row.behind]
        if parked:
            found = [row for row in found if row.parked]
        return list(islice(sorted(found, key=lambda row: (not row.parked, row.due)), limit))

    def webhooks(self, task: str) -> Sequence[WebhookRow]:
        """See `StoreAdmin.webhooks`."""
        return _webhooks(self._log(task))

    def fleet(self, after: str = "") -> Fleet:
        """See `StoreAdmin.fleet`."""
        found, now = self._store.reports(), time.time()
        return Fleet(now, read_rows(row for row in found if row[0] > after and row[2] > now))

    def context_value(self, task: str) -> SavedValue | None:
        """See `StoreAdmin.context_value`."""
        log = self._log(task)
        found = self._store.value(log.scope, log.context)
        return SavedValue(found[0].version, found[1], len(found[0].value)) if found else None

    def reservations(self, space: str, prefix: str = "") -> Iterator[Reservation]:
        """See `StoreAdmin.reservations`."""
        check_space(space)
        return paged(lambda after: self._store.listed(space, prefix, after, PAGE))

    # -- writing

    def reserve(self, space: str, key: str, value: bytes, *, keep: float | None) -> bytes:
        """See `StoreAdmin.reserve`."""
        check_reservation(space, key, value, keep)
        check_space(space)
        return self._change(lambda: self._store.reserve_now(space, key, value, keep))

    def release(self, space: str, key: str) -> bool:
        """See `StoreAdmin.release`."""
        check_space(space)
        return self._change(lambda: self._store.release_now(space, key))

    def redrive(self, task: str = "", webhook: str = "") -> int:
        """See `StoreAdmin.redrive`."""
        if task and self._write:
            self._log(task)
        return self._change(lambda: self._store.redrive_now(task, webhook))

    def prepare(self) -> None:
        """Do nothing: memory needs no indexes."""

    def unprepare(self) -> None:
        """Do nothing."""

    def _change(self, change: Callable[[], T]) -> T:
        """Make a change where the store makes its own."""
        if not self._write:
            raise Unavailable("this admin interface was opened for reading only")
        loop = self._store.loop
        if loop is None or loop.is_closed() or not loop.is_running() or _running() is loop:
            return change()
        done: Future[T] = Future()

        def make() -> None:
            try:
                done.set_result(change())
            except BaseException as error:  # noqa: BLE001 - the calling thread raises it
                done.set_exception(error)

        loop.call_soon_threadsafe(make)
        return done.result()


def _running() -> Any:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _row(log: Log) -> TaskRow:
    entries = log.entries[:]
    first = entries[0].event
    text = ""
    for entry in reversed(entries[-RECENT:]):
        event = entry.event
        if type(event) is TaskStatusUpdateEvent and (text := said(event)):
            break
    return task_row(
        log,
        created=first.at if isinstance(first, Received) else "",
        text=text,
        lease=max(log.lease - time.monotonic() + time.time(), 0.0),
        size=sum(len(entry.wire or encode(entry.event)) for entry in entries),
        ended=None,
    )


def _webhooks(log: Log) -> list[WebhookRow]:
    lines = dict(log.lines)
    return [webhook_row(lines[key], log.last) for key in sorted(lines)]
