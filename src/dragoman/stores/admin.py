"""The admin interface of a store: what operators do, also while servers use it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias

from msgspec import Struct

from dragoman.model.events import Entry
from dragoman.model.types import Task, TaskState
from dragoman.stores.export_format import ExportedContext, ExportedTask
from dragoman.stores.integrity import Progress
from dragoman.stores.sql_head import SqlHead
from dragoman.stores.store import WebhookCursor

BATCH = 256
"""The most tasks that are written in one transaction."""
HEAVY = 8 * 1024 * 1024
"""The bytes after which a transaction is large enough."""

Fate: TypeAlias = Literal["new", "same", "replaced"]
"""What came of a task that was to be imported."""
ValueFate: TypeAlias = Literal["new", "same", "replaced", "skipped"]
"""What came of the value of a context; it is skipped where its context has no task."""


class Missing(LookupError):
    """There is no such thing in the store; it says which."""


class Differs(ValueError):
    """The task cannot be taken as it is, such as one that is there already and is another."""


class Choice(Struct, frozen=True, kw_only=True):
    """Which tasks, of whomever. None is any, and empty is the one without a name."""

    agent: str | None = None
    tenant: str | None = None
    owner: str | None = None
    context: str = ""
    state: TaskState | None = None
    since: str = ""
    limit: int = 50


class Undelivered(Struct, frozen=True):
    """How far a webhook has come, and the last entry of its log."""

    cursor: WebhookCursor
    last: int


class Pruned(Struct, frozen=True):
    """What was forgotten so far, and what was old enough but had to stay."""

    tasks: int = 0
    size: int = 0
    """The bytes of their logs."""
    pending: int = 0
    """Kept for a webhook that has not had everything."""
    recent: int = 0
    """Kept for a send that may come again."""


class SavedValue(Struct, frozen=True):
    """What is known of the value of a context, but for the value."""

    version: int
    saver: str
    """The turn that saved it: a task, and the number of a message."""
    size: int
    """Its bytes, as it is stored."""


class Renamed(Struct, frozen=True):
    """What came of giving the tasks of one owner to another."""

    tasks: int = 0
    receipts: int = 0
    dropped: int = 0
    """Receipts of sends for whose key or message the new owner has one already, which counts."""
    named: int = 0
    """Tasks whose ids were chosen by a client of 0.1, which finds them by its owner's name."""
    values: int = 0
    """Values of contexts."""
    doubles: int = 0
    """Values of contexts for which the new owner has one already, which counts."""


class StoreAdmin(Protocol):
    """A connection to a store that is there. Used in a `with`, but for `name` and `migrate`.
    Unavailable if the store cannot be used."""

    @property
    def name(self) -> str:
        """What people are told; without secrets."""
        ...

    @property
    def path(self) -> Path | None:
        """The file, where it is one."""
        ...

    @property
    def version(self) -> int:
        """The version of the tables."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any, /) -> None: ...

    # -- looking

    def size(self) -> tuple[int, int]:
        """The bytes of the tables, and those of a log beside them that are not yet there."""
        ...

    def sums(self) -> tuple[int, int]:
        """How many tasks there are, and how many entries."""
        ...

    def load(self, task: str) -> tuple[SqlHead, Task]:
        """The head of a log, and the task; Missing."""
        ...

    def read(self, row: SqlHead, after: int = 0) -> Iterator[Entry]:
        """The entries after a place."""
        ...

    def tasks(self, choice: Choice) -> Sequence[SqlHead]:
        """Born tasks, the latest status first."""
        ...

    def follow(self, task: str, after: int, pause: float) -> Iterator[Entry]:
        """The entries after a place as they come, until the log has ended; Missing."""
        ...

    def undelivered(self, limit: int, *, parked: bool = False) -> Sequence[Undelivered]:
        """Lines with something to deliver, those that were given up first."""
        ...

    def webhooks(self, row: SqlHead) -> Sequence[Undelivered]:
        """All lines of a task."""
        ...

    def check(self, progress: Progress) -> Iterator[str]:
        """Every problem, by name. Beside running servers it sees one state after the other, never
        half of a change."""
        ...

    def export(
        self, broken: Callable[[str], None], *, agent: str = "", since: str = ""
    ) -> Iterator[ExportedTask]:
        """All tasks in the order in which they came, each from one state of the store. Those that
        cannot be read are told, and left out."""
        ...

    def export_contexts(
        self, broken: Callable[[str], None], *, agent: str = "", since: str = ""
    ) -> Iterator[ExportedContext]:
        """The values of the contexts of these tasks. Those that cannot be read are told, and left
        out."""
        ...

    def context_value(self, row: SqlHead) -> SavedValue | None:
        """What is known of the value of a task's context."""
        ...

    # -- changing

    def redrive(self, task: str = "", webhook: str = "") -> int:
        """Let parked lines go on at once; how many. Missing."""
        ...

    def prune(
        self,
        before: float,
        states: Collection[TaskState] = (),
        *,
        owner: str | None = None,
        force: bool = False,
        dry: bool = False,
    ) -> Iterator[Pruned]:
        """Forget tasks that ended before a time, in transactions that are short; what has come
        of it, after each. With an `owner`, as the store has it, only those of that one; with
        `force` also those that webhooks or repeated sends may need."""
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
        """Give the tasks of an owner to another, with their receipts, counts and values of
        contexts, in one transaction. Owners are as the store has them; of all agents and tenants if
        none is named. UnknownEntry if a value is encrypted and the key is missing."""
        ...

    def put(self, tasks: Sequence[ExportedTask], *, replace: bool) -> Sequence[Fate | Differs]:
        """Write tasks in one transaction; what came of each."""
        ...

    def put_contexts(
        self, values: Sequence[ExportedContext], *, replace: bool
    ) -> Sequence[ValueFate | Differs]:
        """Write values of contexts in one transaction; what came of each."""
        ...

    def backup(self, target: Path, *, force: bool, progress: Callable[[int, int], None]) -> int:
        """Copy the store as it is at this moment; the size of the copy. FileExistsError."""
        ...

    def migrate(self, *, row_security: bool | None = None) -> tuple[int, int]:
        """Bring the tables up to date; from which version, and to which. Row security is turned
        on or off, or left as it is."""
        ...


class Make(Protocol):
    """What opens a store."""

    def __call__(self, *, write: bool = False, create: bool = False) -> StoreAdmin:
        """An admin who only looks; or may write; or may make the store."""
        ...
