"""Threads for handlers that block. One that never returns is replaced."""

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
"""How many times the limit may be running when those that were given up are counted, too."""

Job = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class Threads:
    """At most so many calls at once. One whose caller gave up makes room for another, as long as
    there are not many of those."""

    def __init__(self, limit: int) -> None:
        self._room = asyncio.Semaphore(limit)
        self._all = asyncio.Semaphore(limit * ABANDONED)
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """What the call returns or raises, run with the caller's context variables."""
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
            if not waiting:  # a daemon: the interpreter must not wait for a handler that hangs
                threading.Thread(target=self._work, name="dragoman-handler", daemon=True).start()
            return await future

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE)
            except queue.Empty:
                with self._lock:
                    if self._idle:  # else a job was just promised to this thread
                        self._idle -= 1
                        return
                continue
            self._perform(*job)
            with suppress(RuntimeError):  # the loop is gone
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
            # A future cannot carry the first, and the second ends whoever awaits it without a
            # word; the third is the agent's own, since only the main thread is interrupted by a
            # person.
            error = RuntimeError(f"the handler raised {type(odd).__name__}")
            error.__cause__ = odd
        except BaseException as raised:  # noqa: BLE001 - it is raised where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is gone, and with it whoever waited
            loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
