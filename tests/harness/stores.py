"""The store backends that the contract suite runs on, and helpers to write store tests."""

from __future__ import annotations

import asyncio
import atexit
import os
import pkgutil
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from dragoman.model import clock
from dragoman.model.caller import Caller, Scope
from dragoman.model.events import CancelRequested, Entry, Event, Received, Reply
from dragoman.model.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.postgres.schema import SECURED
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import (
    Accepted,
    Claim,
    Draft,
    Head,
    Receipt,
    Store,
    Webhook,
    WebhookCursor,
)
from tests.harness.scale import SOAK
from tests.harness.services import Postgres


def sqlite(folder: Path, **options: Any) -> Store:
    """Create a store in a new file."""
    options.pop("max_tasks", None)
    return SqliteStore(folder / f"{clock.uuid7()}.db", **options)


_shared: list[Postgres] = []
_schemas: list[str] = []
_numbers = count()


def database() -> str:
    """Return the URL of new tables in a PostgreSQL server that all tests of this process share."""
    if not _shared:
        server = Postgres(fsync=False)
        server.start()
        atexit.register(server.close)
        _shared.append(server)
    if not _schemas:  # many at once: psql takes longer to start than to create them
        fresh = [f"s{next(_numbers)}" for _ in range(50)]
        _shared[0].sql("; ".join(f"CREATE SCHEMA {name}" for name in fresh))
        _schemas.extend(fresh)
    return f"{_shared[0].dsn()}?search_path={_schemas.pop()}"


OFTEN = 20
"""So often are tables used; then dead rows have made them slower."""
EMPTY = "; ".join(f"DELETE FROM {table}" for table in SECURED) + "; ALTER SEQUENCE task_key RESTART"


class ReusedTables(PostgresStore):
    """A store in tables that earlier tests may have used: it empties them when it is first opened,
    in a quarter of the time that it takes to create them."""

    uses = 0
    opened = closed = False

    async def open(self) -> None:
        """See `Store.open`."""
        await super().open()
        if self.uses and not self.opened:
            async with self._pool.connection() as db:
                await db.execute(EMPTY)
        self.opened = True

    async def close(self) -> None:
        """See `Store.close`."""
        await super().close()
        self.closed = True


_used: list[ReusedTables] = []
_reusable: list[tuple[str, int]] = []


def postgres(folder: Path, **options: Any) -> Store:
    """Create a store in empty tables."""
    options.pop("max_tasks", None)
    url, uses = _reusable.pop() if _reusable else (database(), 0)
    store = ReusedTables(url, **options)
    store.uses = uses
    _used.append(store)
    return store


def recycle() -> None:
    """After a test: its tables can be used again, where the store has been closed."""
    for store in _used:
        if store.opened and store.closed and store.uses < OFTEN and not SOAK:
            _reusable.append((store.url, store.uses + 1))
    _used.clear()


BACKENDS: dict[str, Callable[..., Store]] = {
    "memory": lambda folder, **options: MemoryStore(**options),
    "sqlite": sqlite,
    "postgres": postgres,
}
if other := os.environ.get("DRAGOMAN_TEST_STORE"):  # see docs/backends.md
    BACKENDS["other"] = pkgutil.resolve_name(other)

Make = Callable[..., Awaitable[Store]]

SCOPE = Scope("agent", "tenant", "owner")
STRANGERS = [
    Scope("other", "tenant", "owner"),
    Scope("agent", "other", "owner"),
    Scope("agent", "tenant", "other"),
    Scope("agent", "", ""),
]
AT = "2026-01-31T12:00:00.000Z"
SOON = 0.02
LONG = 600.0
W, I, C = TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.COMPLETED  # noqa: E741


def stamp(number: int) -> str:
    """Return a point in time of the test."""
    return f"2026-01-31T12:{number // 60 % 60:02d}:{number % 60:02d}.000Z"


def received(
    task: str, name: str = "m1", at: str = AT, context: str = "c", **more: Any
) -> Received:
    """Create a message of the user."""
    message = Message(
        message_id=name, task_id=task, context_id=context, role=Role.USER, parts=(Part(text=name),)
    )
    return Received(message=message, caller=Caller(), at=at, **more)


async def accept(
    store: Store,
    task: str = "t",
    name: str = "m1",
    *,
    scope: Scope = SCOPE,
    new: bool = True,
    born: bool = True,
    at: str = AT,
    context: str = "c",
    skill: str = "",
    receipt: Receipt | None = None,
    webhook: Webhook | None = None,
) -> Accepted:
    """Send a message."""
    draft = Draft(
        task=task,
        received=received(task, name, at, context, skill=skill),
        new=new,
        born=born,
        receipt=receipt,
        webhook=webhook,
    )
    return await store.accept(scope, draft)


def status(task: str, state: TaskState, at: str | None = AT) -> TaskStatusUpdateEvent:
    """Create a status of the task."""
    return TaskStatusUpdateEvent(
        task_id=task, context_id="c", status=TaskStatus(state=state, timestamp=at)
    )


def artifact(task: str, text: str, *, append: bool = False) -> TaskArtifactUpdateEvent:
    """Create a chunk of the task's artifact."""
    return TaskArtifactUpdateEvent(
        task_id=task,
        context_id="c",
        artifact=Artifact(artifact_id="a", parts=(Part(text=text),)),
        append=append,
    )


def reply(task: str) -> Reply:
    """Create a direct reply."""
    return Reply(Message(message_id="r", role=Role.AGENT, parts=(Part(text="r"),), context_id="c"))


def said(claim: Claim, *events: Event) -> list[Entry]:
    """Create the batch that a worker appends."""
    return [Entry(0, event, claim.turn) for event in events]


async def claim(store: Store, worker: str = "w", lease: float = LONG) -> Claim:
    """Claim the only log that can be claimed next."""
    (found,) = await store.claim(["agent"], worker, lease, 1)
    return found


async def say(store: Store, held: Claim, *states: TaskState, release: bool = False) -> Head:
    """Append statuses, and return the head."""
    events = [status(held.head.id, state) for state in states]
    return await write(store, held, *events, release=release)


async def write(store: Store, held: Claim, *events: Event, release: bool = False) -> Head:
    """Append events, and return the head."""
    await store.append(held, said(held, *events), release=release)
    found = await store.head(held.head.scope, held.head.id)
    assert found is not None
    return found


async def cancel(
    store: Store,
    task: str = "t",
    grace: float = LONG,
    scope: Scope = SCOPE,
    receipt: Receipt | None = None,
) -> Head:
    """Request the cancellation of a task."""
    asked = CancelRequested(caller=Caller(), at=AT)
    return await store.cancel(scope, task, asked, status(task, TaskState.CANCELED), grace, receipt)


async def head(store: Store, task: str = "t") -> Head:
    """Return the head of a log, which must exist."""
    found = await store.head(SCOPE, task)
    assert found is not None
    return found


async def task(store: Store, name: str = "t") -> Task:
    """Return a task, which must exist."""
    record = await store.load(SCOPE, name)
    assert record is not None
    return record.task


async def log(store: Store, name: str = "t") -> Sequence[Entry]:
    """Return all entries of a log."""
    found = await store.read(SCOPE, name, 0, 10_000)
    assert found is not None
    return found


async def events(store: Store, name: str = "t") -> list[Event]:
    """Return the events of a log."""
    return [entry.event for entry in await log(store, name)]  # type: ignore[misc]


async def ended(store: Store, name: str, state: TaskState = C, at: str = AT) -> None:
    """Create a task that has ended."""
    await accept(store, name, at=at)
    held = await claim(store)
    await store.append(held, said(held, status(name, state, at)), release=True)


async def waiting(store: Store, name: str) -> None:
    """Create a task that waits for input."""
    await accept(store, name)
    await say(store, await claim(store), I, release=True)


async def pause() -> None:
    """Wait until leases of `SOON` seconds have expired."""
    await asyncio.sleep(SOON * 2)


def hook(name: str = "h", task: str = "t", url: str = "https://x.example/", **more: Any) -> Webhook:
    """Create a webhook of the task."""
    return Webhook(TaskPushNotificationConfig(id=name, task_id=task, url=url, **more))


async def take(store: Store, limit: int = 9, lease: float = LONG) -> list[WebhookCursor]:
    """Claim the deliveries that are due."""
    return list(await store.dispatch(["agent"], limit, lease))


async def one(store: Store, lease: float = LONG) -> WebhookCursor:
    """Claim the only delivery that is due."""
    (found,) = await take(store, lease=lease)
    return found


async def followed(store: Store, task: str = "t", *, scope: Scope = SCOPE) -> None:
    """Create a task with one webhook and a status to deliver."""
    await accept(store, task, webhook=hook(task=task), scope=scope)
    (held,) = await store.claim([scope.agent], "w", LONG, 1)
    await say(store, held, W)


async def park(store: Store, line: WebhookCursor, reason: str = "answered 410") -> None:
    """Park a delivery."""
    assert await store.dispatched(line, line.cursor, failed=reason, parked=True)
