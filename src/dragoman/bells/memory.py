"""A bell within this process."""

from __future__ import annotations

from dragoman.bells.bell import Listeners


class MemoryBell:
    """Wakes the local listeners at once."""

    shared = False

    def __init__(self) -> None:
        self.listeners = Listeners()
        self.ring = self.listeners.wake

    def carry(self, topic: str) -> None:
        """Do nothing: there are no other processes."""

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def bell(url: str) -> MemoryBell:
    """Make a bell; its URL has no options."""
    return MemoryBell()
