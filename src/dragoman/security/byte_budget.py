"""Limits the bytes of requests and responses that are in memory at the same time."""

from __future__ import annotations

from dragoman.model.errors import LimitExceeded, Unavailable

SMALL = 64 * 1024
"""Smaller bodies are not counted: counting would cost more than they do."""


class ByteBudget:
    """The bytes in memory in this process; one address may use half of them.

    An address that uses nothing may always start, so that a response larger than its share can be
    sent.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.share = total // 2
        self.used = 0
        self._of: dict[str, int] = {}

    def take(self, address: str, size: int) -> None:
        """Count these bytes until they are given back. Raises LimitExceeded if the address uses too
        many, or Unavailable if the process does."""
        held = self._of.get(address, 0)
        if held and held + size > self.share:
            raise LimitExceeded(
                f"Requests and responses of your address use more than {self.share} bytes; "
                "wait until some of them end",
                headers={"connection": "close"},
            )
        if self.used and self.used + size > self.total:
            raise Unavailable(
                f"Requests and responses in progress use more than {self.total} bytes",
                headers={"retry-after": "1", "connection": "close"},
            )
        self.used += size
        self._of[address] = held + size

    def give(self, address: str, size: int) -> None:
        """Give the bytes back."""
        self.used -= size
        left = self._of[address] - size
        if left:
            self._of[address] = left
        else:
            del self._of[address]
