"""The admin interface of a store, which operators can also use while servers run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.model.events import Entry
from dragoman.model.types import Task, TaskState
from dragoman.stores.export_format import ExportedContext, ExportedReservation, ExportedTask
from dragoman.stores.integrity import Progress
from dragoman.stores.process_rows import FLEET, Fleet
from dragoman.stores.reservations import PAGE, Reservation, faults, named
from dragoman.stores.store import WebhookCursor
from dragoman.stores.task_rows import COUNTED, Choice, Counts, TaskPage, TaskRow

BATCH = 256
"""The maximum number of tasks that one transaction writes."""
HEAVY = 8 * 1024 * 1024
"""The size in bytes at which a transaction ends."""

Fate: TypeAlias = Literal["new", "same", "replaced"]
"""What an import did with a task."""
ValueFate: TypeAlias = Literal["new", "same", "replaced", "skipped"]
"""What an import did with the value of a context, or with a reservation. It skips values whose
context has no task, and reservations that have expired."""


class Missing(LookupError):
    """The task or webhook does not exist. The message names it."""


class Differs(ValueError):
    """The task cannot be imported, for example because the store has another task with its id."""


class WebhookRow(Struct, frozen=True, kw_only=True):
    """A webhook of a task and the state of its delivery, without secrets."""

    task: str
    id: str
    agent: str
    tenant: str
    owner: str
    """The owner of the task, as in the store."""
    url: str
    """The beginning of its URL, up to the host. The rest may contain a secret."""
    cursor: int
    """The last delivered entry."""
    last: int
    """The last entry of the log."""
    attempts: int
    """How often the next entry has failed."""
    due: float
    """The earliest time of the next attempt (Unix time)."""
    parked: bool
    """Whether delivery has failed for good, until it is redriven."""
    reason: str
    """The last error."""

    @property
    def behind(self) -> bool:
        """Whether it has undelivered entries."""
        return self.cursor < self.last


def webhook_row(line: WebhookCursor, last: int) -> WebhookRow:
    """Make the row of a webhook's cursor, and of the last entry of its log."""
    config = line.webhook.config
    return WebhookRow(
        task=line.task,
        id=config.id,
        agent=line.scope.agent,
        tenant=line.scope.tenant,
        owner=line.scope.owner,
        url=beginning(config.url),
        cursor=line.cursor,
        last=last,
        attempts=line.attempts,
        due=line.due,
        parked=line.parked,
        reason=line.reason,
    )


def beginning(url: str) -> str:
    """Return a URL up to its port; the rest may contain a secret."""
    try:
        parts = urlsplit(url)
        name, port = parts.hostname or "", parts.port
    except ValueError:
        return "?"
    name = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{name}{f':{port}' if port else ''}/…"


class Pruned(Struct, frozen=True):
    """What a pruning has deleted so far, and what it had to keep although it was old enough."""

    tasks: int = 0
    size: int = 0
    """The size of the deleted logs in bytes."""
    pending: int = 0
    """Kept because a webhook has not received everything."""
    recent: int = 0
    """Kept because a send may be repeated."""
    reservations: int = 0
    """Reservations that had expired. They are deleted in any case."""


class SavedValue(Struct, frozen=True):
    """What the store knows about the value of a context, without the value."""

    version: int
    saver: str
    """The turn that saved it: a task and the number of a message."""
    size: int
    """Its stored size in bytes."""


class Renamed(Struct, frozen=True):
    """What a change of owner has moved."""

    tasks: int = 0
    receipts: int = 0
    dropped: int = 0
    """Receipts that were dropped, because the new owner has a receipt for the same key or
    message."""
    named: int = 0
    """Tasks with an id that a client of 0.1 chose. Such a client finds them by the name of its
    owner."""
    values: int = 0
    """Values of contexts that were moved."""
    doubles: int = 0
    """Values of contexts that were not moved, because the new owner has a value for the same
    context."""


class StoreAdmin(Protocol):
    """Reads a store as an operator: the tasks of all owners. It is used in a `with`, and also while
    servers use the store. Raises Unavailable if the store cannot be used.

    Its calls block, so a server makes them in a thread (`AdminThread`). All calls of one admin
    interface are made in the thread that entered it.
    """

    @property
    def name(self) -> str:
        """The store's name for people; without secrets."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any, /) -> None: ...

    # -- reading

    def sums(self) -> tuple[int, int]:
        """Count the tasks and the entries."""
        ...

    def tasks(self, choice: Choice) -> TaskPage:
        """Return tasks that have begun, by the time of their status, latest first. It folds no
        task."""
        ...

    def counts(self, choice: Choice, most: int = COUNTED) -> Counts:
        """Count the tasks of a choice by state, in each state up to `most`. The limit and the
        cursor of the choice do not matter."""
        ...

    def row(self, task: str) -> TaskRow:
        """Return the row of a task, also of one that has not begun. Raises Missing."""
        ...

    def load(self, task: str) -> tuple[TaskRow, Task]:
        """Return the row of a task, and the task. Raises Missing."""
        ...

    def read(self, task: str, after: int = 0) -> Iterator[Entry]:
        """Yield the entries after this number, private ones too. The values of private entries are
        decrypted if their key was given, and stay sealed otherwise. Raises Missing."""
        ...

    def follow(self, task: str, after: int, pause: float) -> Iterator[Entry]:
        """Yield the entries after this number as they are written, until the log has ended. Raises
        Missing."""
        ...

    def undelivered(self, limit: int, *, parked: bool = False) -> Sequence[WebhookRow]:
        """Return webhooks with undelivered events, parked ones first."""
        ...

    def webhooks(self, task: str) -> Sequence[WebhookRow]:
        """Return all webhooks of a task. Raises Missing."""
        ...

    def fleet(self, after: str = "") -> Fleet:
        """Return the rows that processes have written about themselves in the last hour, after the
        row with this key. See `processes`."""
        ...

    def reservations(self, space: str, prefix: str = "") -> Iterator[Reservation]:
        """Yield the reservations of a space whose keys begin with `prefix`, in the order of their
        keys. See `App.reserve`. Raises UnreadableReservation if a value is encrypted and the key
        is missing."""
        ...

    def context_value(self, task: str) -> SavedValue | None:
        """Return what the store knows about the value of a task's context. Raises Missing."""
        ...

    # -- writing

    def redrive(self, task: str = "", webhook: str = "") -> int:
        """Resume the delivery of parked webhooks at once. Returns how many there were. Raises
        Missing."""
        ...

    def reserve(self, space: str, key: str, value: bytes, *, keep: float | None) -> bytes:
        """Do what `App.reserve` does."""
        ...

    def release(self, space: str, key: str) -> bool:
        """Do what `App.release` does."""
        ...

    def prepare(self) -> None:
        """Create the indexes that make `tasks` and `counts` fast in a store with very many tasks.
        They cost every send a little, so a store has them only after this call. It takes long in a
        large store, and writers of a SQLite file wait for it."""
        ...

    def unprepare(self) -> None:
        """Delete these indexes."""
        ...


class DatabaseAdmin(StoreAdmin, Protocol):
    """The admin interface of a store that outlives its processes, which `dragoman db` uses. `name`
    and `migrate` also work without `with`."""

    @property
    def path(self) -> Path | None:
        """The file, if the store is one."""
        ...

    @property
    def version(self) -> int:
        """The version of the tables."""
        ...

    # -- reading

    def size(self) -> tuple[int, int]:
        """The size of the tables in bytes, and of a log beside them that is not in the tables
        yet."""
        ...

    def check(self, progress: Progress) -> Iterator[str]:
        """Yield every problem, with its place. While servers write, it sees one state after the
        other, never half of a change."""
        ...

    def export(
        self, broken: Callable[[str], None], *, agent: str = "", since: str = ""
    ) -> Iterator[ExportedTask]:
        """Yield all tasks in the order of their creation. Each is read from one state of the store.
        Unreadable tasks are reported and skipped."""
        ...

    def export_contexts(
        self, broken: Callable[[str], None], *, agent: str = "", since: str = ""
    ) -> Iterator[ExportedContext]:
        """Yield the values of the contexts of these tasks. Unreadable values are reported and
        skipped."""
        ...

    def export_reservations(self, broken: Callable[[str], None]) -> Iterator[ExportedReservation]:
        """Yield the reservations that have not expired. Unreadable ones are reported and
        skipped."""
        ...

    # -- writing

    def prune(
        self,
        before: float,
        states: Collection[TaskState] = (),
        *,
        owner: str | None = None,
        force: bool = False,
        dry: bool = False,
    ) -> Iterator[Pruned]:
        """Delete tasks that ended before a time, in short transactions. Yields the totals after
        each. With `owner`, spelled as in the store, it deletes only tasks of this owner; with
        `force` also tasks that webhooks or repeated sends may need."""
        ...

    def rename_owner(
        self,
        old: str,
        new: str,
        *,
        agent: str | None = None,
        tenant: str | None = None,
        dry: bool = False,
    ) -> Renamed:
        """Give the tasks of one owner to another, with their receipts, counts and values of
        contexts, in one transaction. Owners are spelled as in the store. Without `agent` or
        `tenant`, this covers all of them. Raises UnknownEntry if a value is encrypted and the key
        is missing."""
        ...

    def put(self, tasks: Sequence[ExportedTask], *, replace: bool) -> Sequence[Fate | Differs]:
        """Write tasks in one transaction. Returns what happened to each."""
        ...

    def put_contexts(
        self, values: Sequence[ExportedContext], *, replace: bool
    ) -> Sequence[ValueFate | Differs]:
        """Write values of contexts in one transaction. Returns what happened to each."""
        ...

    def put_reservations(
        self, given: Sequence[ExportedReservation], *, replace: bool
    ) -> Sequence[ValueFate | Differs]:
        """Write reservations in one transaction. Returns what happened to each."""
        ...

    def backup(self, target: Path, *, force: bool, progress: Callable[[int, int], None]) -> int:
        """Copy the present state of the store. Returns the size of the copy. Raises
        FileExistsError."""
        ...

    def migrate(self, *, row_security: bool | None = None) -> tuple[int, int]:
        """Update the tables. Returns the old and the new version. Turns row security on or off, or
        leaves it unchanged."""
        ...


def is_database(admin: StoreAdmin) -> bool:
    """Whether `dragoman db` can work with it, because the store outlives its processes."""
    return hasattr(admin, "migrate")


def fate(
    given: ExportedReservation,
    there: tuple[bytes, float | None] | None,
    now: float,
    *,
    replace: bool,
) -> tuple[ValueFate, float | None]:
    """Decide what happens to a reservation, where the store has this form and time under its name.
    Returns also its new time: of equal ones, the later counts. Raises Differs."""
    if given.expires is not None and given.expires <= now:
        return "skipped", given.expires
    if there is None:
        return "new", given.expires
    body, until = there
    if body == given.body.encode():
        both = (until, given.expires)
        return "same", None if None in both else max(both)  # type: ignore[type-var]
    if not replace:
        raise Differs(f"{named(given.space, given.key)} exists and differs")
    return "replaced", given.expires


def restored(
    columns: Sequence[Any], now: float, broken: Callable[[str], None]
) -> ExportedReservation | None:
    """Return the reservation of these columns; None if it has expired, or is unreadable, which is
    reported."""
    space, key, body, expires = columns
    if space == FLEET:  # rows of processes, which mean nothing elsewhere
        return None
    for fault in faults(space, key, body, expires):
        broken(f"{named(space, key)} cannot be read: {fault}; see `dragoman db check`")
        return None
    if expires is not None and expires <= now:
        return None
    return ExportedReservation(space=space, key=key, body=body.decode(), expires=expires)


def paged(page: Callable[[str], Sequence[Reservation]]) -> Iterator[Reservation]:
    """Yield all reservations, where `page` returns up to PAGE of them after a key."""
    after = ""
    while found := page(after):
        yield from found
        if len(found) < PAGE:
            return
        after = found[-1].key


class Make(Protocol):
    """Opens the admin interface of a store."""

    def __call__(self, *, write: bool = False, create: bool = False) -> Any:
        """Return an admin interface: a StoreAdmin, of databases a DatabaseAdmin. With `write` it
        may write, with `create` it may create the store."""
        ...
