"""A bell that is heard in this process."""

from __future__ import annotations

from dragoman.bell import Ears


class MemoryBell:
    """Rings reach the local ears at once."""

    def __init__(self) -> None:
        self.ears = Ears()
        self.ring = self.ears.wake

    def carry(self, topic: str) -> None:
        """There is nobody else."""

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""
