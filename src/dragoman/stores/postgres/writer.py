"""The writer on PostgreSQL. Changes that arrive during a write share the next one."""

from __future__ import annotations

import asyncio
import math
import random
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
from dragoman.stores.store import PROBE, WRITTEN
from dragoman.telemetry.logs import logger

T = TypeVar("T")
GROUP = 256
"""The maximum number of changes in one statement."""
TRIES = 100
"""How often others may change a row between our read and our write."""
REFUSED = 5
"""How often a statement may conflict with those of others before it fails."""
SUSPECTED = 10.0
"""For this many seconds, callers who sent values that cannot be stored share no statement with
others, because finding the cause takes several statements."""
SUSPECTS = 1000
UNSTORABLE = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)
"""The database's errors for values that it cannot store."""


class Change(Job):
    """A change of rows, and the rows and receipts that it reads."""

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
        """The caller, if there is one."""
        self.tasks = tasks
        self.receipt = receipt
        self.new = new
        """Whether it may need a key for a new task."""
        self.fresh = False
        """Whether it has seen its rows as they are in the database, not as they were in the
        cache."""
        self.refused = 0
        """How often others were faster."""

    @property
    def stale(self) -> bool:
        """Whether the cached rows refused it. (If an event was not allowed, the events before it
        were written, so that the row itself shows whether that was right.)"""
        return not (self.error is None or self.fresh or isinstance(self.error, IllegalEvent))


class Writer:
    """Takes changes, and sets their results when they are in the database."""

    def __init__(
        self,
        transaction: Transaction,
        pool: Pool,
        publish: Callable[[Sequence[Commit]], None],
        forget: Callable[[], None],
    ) -> None:
        self._publish = publish
        self._forget = forget
        self._transaction = transaction
        self._pool = pool
        self._jobs: list[Change] = []
        self._doing: list[Change] = []
        self._suspects: dict[Scope, float] = {}
        self._rung = asyncio.Event()
        self._closed = False
        self.wrote = -math.inf
        """When a write last succeeded (monotonic time)."""
        self.failed = False
        """Whether the latest write failed."""
        self._hold = pool.hold()
        self._task = asyncio.create_task(self._run())

    def submit(
        self,
        work: Callable[[Transaction], T | Callable[[], T]],
        /,
        *tasks: str,
        receipt: tuple[Scope, str] | None = None,
        new: bool = False,
        fresh: bool = False,
        owner: Scope | None = None,
    ) -> asyncio.Future[T]:
        """Submit a change of these rows. It may run more than once until it counts. Changes of one
        row count in the order of these calls. The result is what the change returns or, if that is
        a function, what it returns after the write. With `fresh`, the cache is not used."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(Unavailable("The store is closed"))
        else:
            job = Change(work, future, tasks, receipt, new, owner)
            job.fresh = fresh
            self._jobs.append(job)
            self._rung.set()
        return future

    async def probe(self) -> None:
        """Write something, unless a write has just succeeded. Raises Unavailable."""
        if not self.failed and time.monotonic() - self.wrote < WRITTEN:
            return
        try:
            async with self._pool.connection() as db, db.transaction():
                await db.execute("UPDATE about SET id = id")
                if self.failed:  # a small change may find space where a message finds none
                    key = -random.randrange(1, 1 << 62)
                    noise = random.randbytes(PROBE)  # uniform bytes would be compressed
                    await db.execute("INSERT INTO snapshot VALUES ($1, 0, $2)", key, noise)
                    await db.execute("DELETE FROM snapshot WHERE task = $1", key)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            self.failed = True
            raise Unavailable(f"The store is not available: {error}") from error
        self.wrote, self.failed = time.monotonic(), False

    async def close(self, within: float) -> None:
        """Finish the submitted changes, if there is enough time."""
        self._closed = True
        self._rung.set()
        await asyncio.wait([self._task], timeout=within)
        self._task.cancel()
        await asyncio.wait([self._task])
        for job in (*self._doing, *self._jobs):
            job.fail(self._pool.unavailable())
        await self._hold.end()

    async def _run(self) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            while self._jobs:
                # a claim of what was just accepted will follow, and needs no write of its own then
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
            elif len(waiting) > 1:  # a change that cannot be written must not affect the others
                await self._apart(waiting)
            elif waiting:
                job = waiting[0]
                job.fresh = True
                job.refused += 1
                if refused(error) and job.refused < REFUSED:
                    # another process was faster: the next attempt finds its result
                    await self._group(waiting)
                    return
                logger.error("a write failed: %s", error)
                job.fail(self._fault(job, error))

    async def _apart(self, jobs: list[Change]) -> None:
        """Write in few statements those that can be written; one of them cannot."""
        half = len(jobs) // 2
        await self._group(jobs[:half])
        await self._group(jobs[half:])

    async def _separated(self, jobs: list[Change]) -> None:
        """Write the changes of other callers before those of callers who recently sent values that
        cannot be stored."""
        now = time.monotonic()
        self._suspects = {owner: until for owner, until in self._suspects.items() if until > now}
        suspected = [job for job in jobs if job.owner in self._suspects]
        others = [job for job in jobs if job.owner not in self._suspects]
        for group in (others, suspected):
            if group:
                await self._group(group)

    def _fault(self, job: Change, error: Exception) -> Exception:
        """Return the error of a change that fails alone."""
        if isinstance(error, A2AError):
            return error
        if isinstance(error, asyncpg.PostgresError) and not isinstance(error, UNSTORABLE):
            return self._pool.unavailable(error)
        if job.owner is not None and len(self._suspects) < SUSPECTS:
            self._suspects[job.owner] = time.monotonic() + SUSPECTED
        if isinstance(error, UNSTORABLE):
            return InvalidParams(
                "The request cannot be stored: a text is too long, or contains a NUL character"
            )
        return error

    async def _all(self, db: Any, jobs: Sequence[Change]) -> None:
        """Run changes until each of them counts."""
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
        """Run changes on the cached rows. Returns the rows that others have changed meanwhile."""
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
        transaction.now = await self._pool.now(db)
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
        """The connection broke: it is not known whether the changes were written."""
        logger.error("the database is not available: %s", error or type(error).__name__)
        for job in jobs:
            job.fail(self._pool.unavailable(error))
