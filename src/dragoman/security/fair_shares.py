"""Fair shares of limited slots among owners."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Shares:
    """A number of places. An owner gets at most half of the places that the others leave, so that
    one is always free for another owner. Of the waiting owners, the one with the fewest places is
    next."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._taken = 0
        self._running: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, owner: Hashable) -> AsyncIterator[None]:
        """A block that holds a place; it waits until one is free."""
        await self.acquire(owner)
        try:
            yield
        finally:
            self.release(owner)

    def full(self, owner: Hashable) -> bool:
        """Whether the owner would have to wait."""
        return owner in self._waiting or not self._may(owner)

    async def acquire(self, owner: Hashable) -> None:
        """Take a place, and wait until one is free; `release` gives it back."""
        if not self.full(owner):
            self._take(owner)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(owner, deque())
        queue.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(owner)
            else:
                queue.remove(granted)
                self._clear(owner)
            raise

    def release(self, owner: Hashable) -> None:
        """Give a place back."""
        self._taken -= 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._grant()

    def _may(self, owner: Hashable) -> bool:
        mine = self._running[owner]
        others = self._taken - mine
        return self._taken < self._total and mine < max(1, (self._total - others) // 2)

    def _take(self, owner: Hashable) -> None:
        self._taken += 1
        self._running[owner] += 1

    def _grant(self) -> None:
        while able := [owner for owner in self._waiting if self._may(owner)]:
            owner = min(able, key=self._running.__getitem__)
            granted = self._waiting[owner].popleft()
            self._clear(owner)
            if not granted.done():
                self._take(owner)
                granted.set_result(None)

    def _clear(self, owner: Hashable) -> None:
        if owner in self._waiting and not self._waiting[owner]:
            del self._waiting[owner]
