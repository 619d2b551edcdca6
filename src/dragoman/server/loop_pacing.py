"""Paces large pieces of work in the event loop: one at a time, with a pause after each."""

from __future__ import annotations

import asyncio
import time
from collections import deque

SHARE = 8
"""After a large piece of work, the event loop has this many times its duration for other work."""


class Pace:
    """Lets one large piece of work into the event loop at a time, and other work in between."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._busy = False

    async def next(self, share: int = SHARE) -> None:
        """Wait until the caller may do its work, which is everything before its next await. After
        it, the loop has `share` times its duration for other work."""
        if self._busy:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._begin(share)  # canceled when it was next: pass it on
                raise
        self._begin(share)

    def _begin(self, share: int) -> None:
        self._busy = True
        loop = asyncio.get_running_loop()
        # Runs after the work of this step.
        loop.call_soon(self._done, loop, time.perf_counter(), share)

    def _done(self, loop: asyncio.AbstractEventLoop, began: float, share: int) -> None:
        loop.call_later(share * (time.perf_counter() - began), self._free)

    def _free(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._busy = False
