"""Reads a store as an operator, without blocking the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from dragoman import Task
from dragoman.admin import (
    AdminThread,
    Choice,
    Counts,
    Entry,
    Fleet,
    Found,
    Missing,
    StoreAdmin,
    TaskPage,
    TaskRow,
    WebhookRow,
    search,
    task_at,
)
from dragoman.console.http import ConsoleError, NotFound

T = TypeVar("T")

HOOKS = 500
"""How many webhooks are listed at most."""


class StoreReader:
    """The admin interface of a store, in a thread. With `prepare`, the first call creates the
    indexes that a large store needs to be listed quickly."""

    def __init__(self, make: Callable[[], StoreAdmin], *, prepare: bool = False) -> None:
        self._thread = AdminThread(make)
        self._prepare = prepare
        self._closed = False

    async def _call(self, ask: Callable[[StoreAdmin], T]) -> T:
        if self._closed:
            raise ConsoleError("the console is closing", 503)
        prepare, self._prepare = self._prepare, False

        def work(admin: StoreAdmin) -> T:
            if prepare:
                admin.prepare()
            return ask(admin)

        try:
            return await self._thread.call(work)
        except Missing:
            raise NotFound("there is no such task") from None

    async def page(self, choice: Choice) -> TaskPage:
        """A page of tasks, the latest status first."""
        return await self._call(lambda admin: admin.tasks(choice))

    async def counts(self, choice: Choice) -> Counts:
        """How many tasks of a choice are in each state."""
        return await self._call(lambda admin: admin.counts(choice))

    async def search(self, choice: Choice, text: str) -> Found:
        """Find a text in the tasks of a choice, the latest first."""
        return await self._call(lambda admin: search(admin, choice, text))

    async def row(self, task: str) -> TaskRow:
        """The row of a task. Raises NotFound."""
        return await self._call(lambda admin: admin.row(task))

    async def load(self, task: str) -> tuple[TaskRow, Task]:
        """The row of a task, and the task. Raises NotFound."""
        return await self._call(lambda admin: admin.load(task))

    async def entries(self, task: str, after: int, limit: int) -> Sequence[Entry]:
        """The entries after a number. Raises NotFound."""
        return await self._call(lambda admin: list(islice(admin.read(task, after), limit)))

    async def fold(self, task: str, start: tuple[int, Task | None], number: int) -> Task:
        """The task after an entry, from its fold after an earlier one."""
        place, found = start
        return await self._call(
            lambda admin: task_at(
                islice(admin.read(task, place), max(0, number - place)), number, found
            )
        )

    async def fleet(self) -> Fleet:
        """What processes have written about themselves in the last hour."""
        return await self._call(lambda admin: admin.fleet())

    async def webhooks(self, task: str = "") -> Sequence[WebhookRow]:
        """The webhooks of a task, or all that have something to deliver, parked ones first."""
        if task:
            return await self._call(lambda admin: admin.webhooks(task))
        return await self._call(lambda admin: admin.undelivered(HOOKS))

    async def redrive(self, task: str = "", webhook: str = "") -> int:
        """Deliver parked webhooks again. Returns how many there were."""
        return await self._call(lambda admin: admin.redrive(task, webhook))

    async def close(self) -> None:
        """Close the store."""
        self._closed = True
        await self._thread.close()
