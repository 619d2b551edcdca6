"""The writer on PostgreSQL: changes that arrive during one write share the next one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import asyncpg

from dragoman.model.caller import Scope
from dragoman.model.errors import A2AError, InvalidParams, Unavailable
from dragoman.model.lifecycle import IllegalEvent
from dragoman.stores.batched_write import Job
from dragoman.stores.cache import Commit
from dragoman.stores.postgres.pool import Pool, gone, refused
from dragoman.stores.postgres.queue import probe
from dragoman.stores.postgres.transaction import Transaction
from dragoman.telemetry.logs import logger

T = TypeVar("T")
GROUP = 256
"""The most pieces of work that share a statement."""
TRIES = 100
"""How often a row may be changed by others before we have read it and written to it."""
REFUSED = 5
"""How often a statement may meet with those of others before it is given up."""
SUSPECTED = 10.0
"""For so many seconds, whoever sent what cannot be stored shares no statement with others: to find
out whose fault it is takes several."""
SUSPECTS = 1000
UNSTORABLE = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)
"""What the database says of values that it cannot keep."""


class Change(Job):
    """Work on rows, and the rows and receipts that it looks at."""

    __slots__ = ("fresh", "new", "owner", "receipt", "refused", "tasks")

    def __init__(
        self,
        work: Callable[[Transaction], Any],
        future: asyncio.Future[Any],
        tasks: Collection[str],
        receipt: tuple[Scope, str] | None,
        new: bool,
        owner: Scope | None,
    ) -> None:
        super().__init__(work, future)
        self.owner = owner
        """Who asked for it, if it is a caller."""
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
        transaction: Transaction,
        link: Pool,
        publish: Callable[[Sequence[Commit]], None],
        forget: Callable[[], None],
    ) -> None:
        self._publish = publish
        self._forget = forget
        self._transaction = transaction
        self._link = link
        self._jobs: list[Change] = []
        self._doing: list[Change] = []
        self._suspects: dict[Scope, float] = {}
        self._rung = asyncio.Event()
        self._closed = False
        self.wrote = -math.inf
        """When a write last succeeded (monotonic time)."""
        self.failed = False
        """The latest write failed."""
        self._hold = link.hold()
        self._task = asyncio.create_task(self._run())

    def submit(
        self,
        work: Callable[[Transaction], T | Callable[[], T]],
        *tasks: str,
        receipt: tuple[Scope, str] | None = None,
        new: bool = False,
        fresh: bool = False,
        owner: Scope | None = None,
    ) -> asyncio.Future[T]:
        """Begin a piece of work on these rows; it may be done more than once until it counts, and
        works on one row count in the order of these calls. What it results in, or what that
        returns when it is written, is the result. A `fresh` one does without what is remembered."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(Unavailable("The store is closed"))
        else:
            job = Change(work, future, tasks, receipt, new, owner)
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
                if self._suspects:
                    await self._separated(self._doing)
                else:
                    await self._group(self._doing)
            if self._closed and not self._jobs:
                return

    async def _group(self, jobs: list[Change]) -> None:
        try:
            async with self._hold as db:
                await self._all(db, jobs)
        except Exception as error:  # noqa: BLE001 - it is raised where the work was asked for
            self.failed = True
            self._transaction.forget()
            self._forget()
            waiting = [job for job in jobs if not job.future.done()]
            if gone(error):
                await self._uncertain(waiting, error)
            elif len(waiting) > 1:  # one that cannot be written must not take the others with it
                await self._apart(waiting)
            elif waiting:
                job = waiting[0]
                job.fresh = True
                job.refused += 1
                if refused(error) and job.refused < REFUSED:
                    # somebody else was quicker: now it finds what that one wrote
                    await self._group(waiting)
                    return
                logger.error("a write failed: %s", error)
                job.fail(self._fault(job, error))

    async def _apart(self, jobs: list[Change]) -> None:
        """Write those that can be written, in few statements: one of them cannot."""
        half = len(jobs) // 2
        await self._group(jobs[:half])
        await self._group(jobs[half:])

    async def _separated(self, jobs: list[Change]) -> None:
        """Write first what comes from others than those who lately sent what cannot be stored."""
        now = time.monotonic()
        self._suspects = {owner: until for owner, until in self._suspects.items() if until > now}
        suspected = [job for job in jobs if job.owner in self._suspects]
        others = [job for job in jobs if job.owner not in self._suspects]
        for group in (others, suspected):
            if group:
                await self._group(group)

    def _fault(self, job: Change, error: Exception) -> Exception:
        """What is told of a piece of work that fails alone."""
        if isinstance(error, A2AError):
            return error
        if isinstance(error, asyncpg.PostgresError) and not isinstance(error, UNSTORABLE):
            return self._link.unavailable(error)
        if job.owner is not None and len(self._suspects) < SUSPECTS:
            self._suspects[job.owner] = time.monotonic() + SUSPECTED
        if isinstance(error, UNSTORABLE):
            return InvalidParams(
                "The request cannot be stored: a text is too long, or contains a NUL character"
            )
        return error

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
        raise Unavailable("Too many concurrent writes to this task", headers={"retry-after": "1"})

    async def _once(self, db: Any, jobs: Sequence[Change]) -> set[str]:
        """Do them on what is known; the rows that others have changed meanwhile."""
        transaction = self._transaction
        wanted: set[str] = set()
        receipts = []
        for job in jobs:
            if job.receipt is not None:
                receipts.append(job.receipt)
                job.fresh = job.fresh or not job.tasks
            wanted.update(job.tasks if job.fresh else transaction.missing(job.tasks))
        if wanted or receipts:
            await transaction.fetch(db, wanted, receipts)
        await transaction.keys(db, sum(job.new for job in jobs))
        transaction.now = await self._link.now(db)
        for job in jobs:
            if all(task in wanted for task in job.tasks):
                job.fresh = True
            job.attempt(transaction)
        if transaction.idle:
            return set()
        if waiting := transaction.waiting():
            transaction.offer(await probe(db, waiting))
        sql, values, rows = transaction.statement()
        found = await db.fetch(sql, *values)
        self.wrote, self.failed = time.monotonic(), False
        lost, commits = transaction.settle(rows, {key for (key,) in found})
        self._publish(commits)
        return lost

    async def _uncertain(self, jobs: Sequence[Change], error: BaseException) -> None:
        """The connection broke: nobody knows whether it was written."""
        logger.error("the database is not available: %s", error or type(error).__name__)
        for job in jobs:
            job.fail(self._link.unavailable(error))
