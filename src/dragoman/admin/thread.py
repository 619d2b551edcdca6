"""An admin interface in a thread of its own, for servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self, TypeVar

from dragoman.model.errors import Unavailable
from dragoman.stores.admin import StoreAdmin

T = TypeVar("T")


class AdminThread:
    """Makes the calls of an admin interface in a thread, one after the other, so that they do not
    block the event loop. It is used in an `async with`.

    `make` returns a new admin interface: `app.admin`, or `lambda: open_store(url)`. The store is
    opened with the first call, and again after it was not available.
    """

    def __init__(self, make: Callable[[], StoreAdmin]) -> None:
        self._make = make
        self._pool = ThreadPoolExecutor(1, "dragoman-admin")
        self._open: StoreAdmin | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(self, ask: Callable[[StoreAdmin], T]) -> T:
        """Return what the function returns that is called with the admin interface in the thread.
        It must not return an iterator of the interface, but what the iterator yields. Raises
        Unavailable, and what the function raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, ask)

    def _call(self, ask: Callable[[StoreAdmin], T]) -> T:
        if self._open is None:
            self._open = self._make().__enter__()
        try:
            return ask(self._open)
        except Unavailable as error:
            self._shut(error)
            raise

    def _shut(self, error: BaseException | None = None) -> None:
        open_, self._open = self._open, None
        if open_ is not None:
            with suppress(Unavailable):
                open_.__exit__(type(error) if error else None, error, None)

    async def close(self) -> None:
        """Close the admin interface and end the thread."""
        await asyncio.get_running_loop().run_in_executor(self._pool, self._shut)
        self._pool.shutdown(wait=False)
