"""What is asked for while one write is under way shares the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from dragoman.caller import Scope
from dragoman.errors import A2AError, Unavailable
from dragoman.lifecycle import IllegalEvent
from dragoman.stores.job import Job
from dragoman.stores.postgres.ledger import Ledger
from dragoman.stores.postgres.link import Link, gone, refused
from dragoman.stores.postgres.queue import probe
from dragoman.stores.recent import Commit
from dragoman.telemetry import logger

T = TypeVar("T")
GROUP = 256
"""The most pieces of work that share a statement."""
TRIES = 100
"""How often a row may be changed by others before we have read it and written to it."""
REFUSED = 5
"""How often a statement may meet with those of others before it is given up."""


class Change(Job):
    """Work on rows, and the rows and receipts that it looks at."""

    __slots__ = ("fresh", "new", "receipt", "refused", "tasks")

    def __init__(
        self,
        work: Callable[[Ledger], Any],
        future: asyncio.Future[Any],
        tasks: Collection[str],
        receipt: tuple[Scope, str] | None,
        new: bool,
    ) -> None:
        super().__init__(work, future)
        self.tasks = tasks
        self.receipt = receipt
        self.new = new
        """It may need a key for a task."""
        self.fresh = False
        """It has seen its rows as they are, not as they were remembered."""
        self.refused = 0
        """How often others were quicker."""

    @property
    def stale(self) -> bool:
        """It was refused by what was remembered. (What is illegal was written up to there, so
        that the row itself says whether that was true.)"""
        return not (self.error is None or self.fresh or isinstance(self.error, IllegalEvent))


class Writer:
    """Takes work and answers when it is in the database."""

    def __init__(
        self,
        ledger: Ledger,
        link: Link,
        publish: Callable[[Sequence[Commit]], None],
        forget: Callable[[], None],
    ) -> None:
        self._publish = publish
        self._forget = forget
        self._ledger = ledger
        self._link = link
        self._jobs: list[Change] = []
        self._doing: list[Change] = []
        self._rung = asyncio.Event()
        self._closed = False
        self._hold = link.hold()
        self._task = asyncio.create_task(self._run())

    def submit(
        self,
        work: Callable[[Ledger], T | Callable[[], T]],
        *tasks: str,
        receipt: tuple[Scope, str] | None = None,
        new: bool = False,
        fresh: bool = False,
    ) -> asyncio.Future[T]:
        """Begin a piece of work on these rows; it may be done more than once until it counts, and
        works on one row count in the order of these calls. What it results in, or what that
        returns when it is written, is the result. A `fresh` one does without what is remembered."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(Unavailable("The store is closed"))
        else:
            job = Change(work, future, tasks, receipt, new)
            job.fresh = fresh
            self._jobs.append(job)
            self._rung.set()
        return future

    async def close(self, within: float) -> None:
        """Finish what was asked for, if that can be done in time."""
        self._closed = True
        self._rung.set()
        await asyncio.wait([self._task], timeout=within)
        self._task.cancel()
        await asyncio.wait([self._task])
        for job in (*self._doing, *self._jobs):
            job.fail(self._link.unavailable())
        await self._hold.end()

    async def _run(self) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            while self._jobs:
                # a claim of what was just accepted is about to come, and spares a write of its own
                await asyncio.sleep(0)
                self._doing, self._jobs = self._jobs[:GROUP], self._jobs[GROUP:]
                await self._group(self._doing)
            if self._closed and not self._jobs:
                return

    async def _group(self, jobs: list[Change]) -> None:
        try:
            async with self._hold as db:
                await self._all(db, jobs)
        except Exception as error:  # noqa: BLE001 - it is raised where the work was asked for
            self._ledger.forget()
            self._forget()
            waiting = [job for job in jobs if not job.future.done()]
            if gone(error):
                await self._uncertain(waiting, error)
            elif len(waiting) > 1:  # one that cannot be written must not take the others with it
                for job in waiting:
                    await self._group([job])
            elif waiting:
                job = waiting[0]
                job.fresh = True
                job.refused += 1
                if refused(error) and job.refused < REFUSED:
                    # somebody else was quicker: now it finds what that one wrote
                    await self._group(waiting)
                    return
                logger.error("nothing was written: %s", error)
                known = isinstance(error, A2AError)
                job.fail(error if known else self._link.unavailable(error))

    async def _all(self, db: Any, jobs: Sequence[Change]) -> None:
        """Do them until each of them counts."""
        for _ in range(TRIES):
            lost = await self._once(db, jobs)
            again = []
            for job in jobs:
                if job.stale or not lost.isdisjoint(job.tasks):
                    job.fresh = True
                    again.append(job)
                else:
                    job.deliver()
            if not again:
                return
            jobs = again
        raise Unavailable("Too many write to this task at once", headers={"retry-after": "1"})

    async def _once(self, db: Any, jobs: Sequence[Change]) -> set[str]:
        """Do them on what is known; the rows that others have changed meanwhile."""
        ledger = self._ledger
        wanted: set[str] = set()
        receipts = []
        for job in jobs:
            if job.receipt is not None:
                receipts.append(job.receipt)
                job.fresh = job.fresh or not job.tasks
            wanted.update(job.tasks if job.fresh else ledger.missing(job.tasks))
        if wanted or receipts:
            await ledger.fetch(db, wanted, receipts)
        await ledger.keys(db, sum(job.new for job in jobs))
        ledger.now = await self._link.now(db)
        for job in jobs:
            if all(task in wanted for task in job.tasks):
                job.fresh = True
            job.attempt(ledger)
        if ledger.idle:
            return set()
        if waiting := ledger.waiting():
            ledger.offer(await probe(db, waiting))
        sql, values, rows = ledger.statement()
        found = await db.fetch(sql, *values)
        lost, commits = ledger.settle(rows, {key for (key,) in found})
        self._publish(commits)
        return lost

    async def _uncertain(self, jobs: Sequence[Change], error: BaseException) -> None:
        """The connection broke: nobody knows whether it was written."""
        logger.error("the database is gone: %s", error or type(error).__name__)
        for job in jobs:
            job.fail(self._link.unavailable(error))
