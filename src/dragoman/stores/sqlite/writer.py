"""The thread that writes. Changes that arrive during a commit share the next one."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from dragoman.model.caller import Scope
from dragoman.model.errors import Unavailable
from dragoman.stores.batched_write import Job
from dragoman.stores.cache import Commit
from dragoman.stores.sqlite.driver import Driver, unavailable
from dragoman.stores.sqlite.transaction import Transaction
from dragoman.stores.store import WRITTEN
from dragoman.telemetry.logs import logger

T = TypeVar("T")

GROUP = 512
"""The maximum number of changes in one commit."""


class Writer:
    """Takes changes from the event loop, and sets their results when they are on disk."""

    def __init__(
        self,
        transaction: Transaction,
        driver: Driver,
        loop: asyncio.AbstractEventLoop,
        publish: Callable[[Iterable[Commit]], None],
        forget: Callable[[], None],
    ) -> None:
        self._publish = publish
        self._forget = forget
        self._transaction = transaction
        self._driver = driver
        self._loop = loop
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dragoman-writer", daemon=True)
        self._ended = loop.create_future()
        self._closed = False
        self.wrote = -math.inf
        """When a write last succeeded (monotonic time)."""
        self.failed = False
        """Whether the latest write failed."""
        self._thread.start()

    def submit(
        self,
        work: Callable[[Transaction], T],
        /,
        *tasks: str,
        receipt: tuple[Scope, str] | None = None,
        fresh: bool = False,
        owner: Scope | None = None,
    ) -> asyncio.Future[T]:
        """Submit a change. Changes are made in the order of these calls. The writer
        does not need the names of what a change reads, because only this thread writes."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._closed:
            future.set_exception(Unavailable("The store is closed"))
        else:
            self._jobs.put(Job(work, future))
        return future

    async def probe(self) -> None:
        """Write something, unless a write has just succeeded. Raises Unavailable."""
        if self.failed or time.monotonic() - self.wrote >= WRITTEN:
            await self.submit(Transaction.probe)
            self.wrote, self.failed = time.monotonic(), False

    async def close(self) -> None:
        """Finish all submitted changes."""
        self._closed = True
        self._jobs.put(None)
        await self._ended

    # -- in the thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._group([job], self._more)
        self._call_in_loop(self._ended.set_result, None)

    def _more(self) -> Job | None:
        """Return the other waiting changes. The end mark stays for later."""
        if self._jobs.empty():  # only this thread takes from the queue
            return None
        job = self._jobs.get()
        if job is None:
            self._jobs.put(None)
        return job

    def _group(self, jobs: list[Job], more: Callable[[], Job | None]) -> None:
        commits: list[Commit] = []
        try:
            commits = self._commit(jobs, more)
        except Exception as error:  # noqa: BLE001 - it is raised where the work was asked for
            if len(jobs) > 1:  # a change that cannot be written must not affect the others
                half = len(jobs) // 2
                self._group(jobs[:half], _no_more)
                self._group(jobs[half:], _no_more)
                return
            broken = isinstance(error, self._driver.error)
            self.failed = self.failed or broken
            jobs[0].error = unavailable(error) if broken else error
            logger.error("a write failed: %s", error)
        if commits:  # otherwise there was nothing to write
            self.wrote, self.failed = time.monotonic(), False
        self._call_in_loop(self._deliver, jobs, commits)

    def _commit(self, jobs: list[Job], more: Callable[[], Job | None]) -> list[Commit]:
        transaction = self._transaction
        if transaction.begin():
            self._call_in_loop(self._forget)
        try:
            for job in jobs:  # The list grows: changes that arrive meanwhile are made with these.
                job.attempt(transaction)
                if len(jobs) < GROUP and job is jobs[-1] and (another := more()):
                    jobs.append(another)
            return transaction.commit()
        except BaseException:
            transaction.rollback()
            raise

    def _call_in_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits for the result
            return

    # -- in the loop

    def _deliver(self, jobs: Sequence[Job], commits: Sequence[Commit]) -> None:
        self._publish(commits)
        for job in jobs:
            job.deliver()


def _no_more() -> None:
    return None
