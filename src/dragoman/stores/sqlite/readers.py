"""Reads from a SQLite file: small reads in the event loop, large ones in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dragoman.model.errors import Unavailable
from dragoman.stores.sqlite.driver import Driver, unavailable
from dragoman.stores.sqlite.queries import Queries

T = TypeVar("T")

THREADS = 2


class Readers:
    """A connection for the event loop, and one for each thread."""

    view: Queries
    """The queries of the event loop."""

    def __init__(self, connect: Callable[[], Queries], driver: Driver) -> None:
        self._connect = connect
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, "dragoman-reader")
        self._views = threading.local()
        self._closed = False

    def open(self) -> None:
        """Connect the event loop."""
        self.view = self._connect()

    def close(self) -> None:
        """End the threads. The owner closes the connections."""
        self._closed = True
        self._threads.shutdown()

    def thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run something in a thread."""
        return self._loop.run_in_executor(self._threads, work)

    def now(self, look: Callable[[Queries], T]) -> T:
        """Read in the event loop: a few pages, probably in memory, cost less than a change of
        threads."""
        try:
            return look(self.view)
        except self._driver.error as error:
            raise unavailable(error) from error

    async def run(self, look: Callable[[Queries], T]) -> T:
        """Read in a thread."""

        def read() -> T:
            view = getattr(self._views, "view", None)
            if view is None:
                view = self._views.view = self._connect()
            return look(view)

        if self._closed:
            raise Unavailable("The store is closed")
        try:
            return await self.thread(read)
        except self._driver.error as error:
            raise unavailable(error) from error
