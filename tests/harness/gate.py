"""A gate at which handlers wait until a test opens it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Gate:
    """Holds handlers, in the loop or in a thread, and records that one arrived."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.open = asyncio.Event()
        self.thread = threading.Event()
        with suppress(RuntimeError):  # a test without threads may create it outside a loop
            self.loop = asyncio.get_running_loop()

    async def wait(self) -> None:
        """Wait until the gate is opened."""
        self.came.set()
        await self.open.wait()

    async def wait_stubbornly(self) -> None:
        """Like `wait`, but ignore cancellation."""
        while not self.open.is_set():
            with suppress(asyncio.CancelledError):
                await self.wait()

    def block(self) -> None:
        """Like `wait`, in a thread."""
        self.loop.call_soon_threadsafe(self.came.set)
        assert self.thread.wait(30)

    def release(self) -> None:
        """Open the gate."""
        self.open.set()
        self.thread.set()
