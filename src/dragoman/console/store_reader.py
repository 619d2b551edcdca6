"""Reads a store as an operator, without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from msgspec import Struct

from dragoman import Task, TaskState
from dragoman.console.http import NotFound

T = TypeVar("T")


class Filters(Struct, frozen=True, kw_only=True):
    """Which tasks. None matches everything."""

    agent: str | None = None
    tenant: str | None = None
    owner: str | None = None
    context: str = ""
    states: tuple[TaskState, ...] = ()
    skill: str | None = None
    id: str = ""
    """The beginning of the id."""
    limit: int = 100
    cursor: tuple[str, str] | None = None


class Row(Struct, frozen=True, kw_only=True):
    """A row of the table of tasks."""

    id: str
    agent: str
    tenant: str
    owner: str
    realm: str
    identity: str
    context: str
    skill: str
    state: TaskState
    replied: bool
    born: bool
    created: str
    changed: str
    text: str
    last: int
    version: int
    size: int
    attempt: int
    holder: str
    lease: float
    unread: int
    waits: str
    due: float
    canceling: bool
    over: bool


class StoreReader:
    """An admin interface in a thread of its own, which is opened when it is first needed."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "console")
        self._admin: Any = None

    async def _call(self, work: Callable[[Any], T]) -> T:
        def run() -> T:
            if self._admin is None:
                self._admin = self._make(write=True).__enter__()
            return work(self._admin)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def page(self, filters: Filters) -> tuple[Sequence[Any], tuple[str, str] | None]:
        """A page of tasks, the latest status first, and the cursor of the next page."""
        from dragoman.stores.admin import Choice

        choice = Choice(
            agent=filters.agent,
            tenant=filters.tenant,
            owner=filters.owner,
            context=filters.context,
            state=filters.states[0] if len(filters.states) == 1 else None,
            limit=filters.limit,
        )
        rows = await self._call(lambda admin: [_row(each) for each in admin.tasks(choice)])
        return [row for row in rows if row.id.startswith(filters.id)], None

    async def counts(self, filters: Filters) -> tuple[dict[TaskState, int], bool]:
        """How many tasks are in each state, and whether all of them were counted."""
        rows, _ = await self.page(filters)
        found: dict[TaskState, int] = {}
        for row in rows:
            found[row.state] = found.get(row.state, 0) + 1
        return found, len(rows) < filters.limit

    async def row(self, task: str) -> Any:
        """The row of a task. Raises NotFound."""
        return (await self.load(task))[0]

    async def load(self, task: str) -> tuple[Any, Task]:
        """The row of a task, and the task. Raises NotFound."""

        def work(admin: Any) -> tuple[Row, Task]:
            try:
                head, found = admin.load(task)
            except LookupError:
                raise NotFound("there is no such task") from None
            return _row(head), found

        return await self._call(work)

    async def entries(self, task: str, after: int, limit: int) -> Sequence[Any]:
        """The entries after a number. Raises NotFound."""

        def work(admin: Any) -> Sequence[Any]:
            head, _ = admin.load(task)
            return list(islice(admin.read(head, after), limit))

        return await self._call(work)

    async def webhooks(self, task: str = "") -> Sequence[Any]:
        """The webhooks of a task, or all that have something to deliver."""
        return ()

    async def redrive(self, task: str = "", webhook: str = "") -> int:
        """Resume parked webhooks. Returns how many there were."""
        return await self._call(lambda admin: int(admin.redrive(task, webhook)))

    async def close(self) -> None:
        """Close the admin interface."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: admin.__exit__(None, None, None)
            )
        self._thread.shutdown()


def _row(head: Any) -> Row:
    realm, _, identity = head.scope.owner.rpartition("\x1f")
    return Row(
        id=head.id,
        agent=head.scope.agent,
        tenant=head.scope.tenant,
        owner=head.scope.owner,
        realm=realm,
        identity=identity,
        context=head.context,
        skill=head.skill,
        state=head.state,
        replied=head.replied,
        born=head.born,
        created="",
        changed=head.changed,
        text="",
        last=head.last,
        version=head.version,
        size=head.size,
        attempt=head.attempt,
        holder=head.holder,
        lease=0.0,
        unread=len(head.inbox),
        waits="",
        due=head.due,
        canceling=head.cancel_at > 0,
        over=head.replied or head.state.terminal,
    )
