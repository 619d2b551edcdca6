"""Threads for blocking handlers. A thread whose handler never returns is replaced."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

IDLE = 10.0
ABANDONED = 4
"""The most running threads, abandoned ones included, as a multiple of the limit."""

Job = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class Threads:
    """Runs at most a fixed number of calls at once. A call whose caller gave up frees its place,
    unless too many calls have been abandoned."""

    def __init__(self, limit: int) -> None:
        self._room = asyncio.Semaphore(limit)
        self._all = asyncio.Semaphore(limit * ABANDONED)
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Run the call with the caller's context variables, and return or raise its result."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        async with self._room:
            await self._all.acquire()
            future: asyncio.Future[Any] = loop.create_future()
            self._jobs.put((lambda: context.run(call, *args), future, loop))
            with self._lock:
                waiting = self._idle > 0
                if waiting:
                    self._idle -= 1
            if not waiting:  # a daemon thread: a hanging handler must not block exit
                threading.Thread(target=self._work, name="dragoman-handler", daemon=True).start()
            return await future

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE)
            except queue.Empty:
                with self._lock:
                    if self._idle:  # otherwise a job is already on its way to this thread
                        self._idle -= 1
                        return
                continue
            self._perform(*job)
            with suppress(RuntimeError):  # the loop is closed
                job[2].call_soon_threadsafe(self._all.release)
            with self._lock:
                self._idle += 1

    @staticmethod
    def _perform(
        call: Callable[[], Any], future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except (StopIteration, GeneratorExit, KeyboardInterrupt) as odd:
            # A future cannot carry StopIteration, and GeneratorExit would end the awaiting
            # coroutine without an error. KeyboardInterrupt comes from the handler, since only the
            # main thread gets a real one.
            error = RuntimeError(f"the handler raised {type(odd).__name__}")
            error.__cause__ = odd
        except BaseException as raised:  # noqa: BLE001 - the awaiting task raises it
            error = raised
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
