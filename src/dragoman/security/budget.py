"""How many bytes of requests and answers may be under way at the same time."""

from __future__ import annotations

from dragoman.model.errors import LimitExceeded, Unavailable

SMALL = 64 * 1024
"""What is smaller is not counted: it costs less than to keep count of it."""


class ByteBudget:
    """The bytes under way in this process; one address may have half of them.

    An address that has nothing under way may always begin, so that one answer larger than its
    share can be sent.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.share = total // 2
        self.used = 0
        self._of: dict[str, int] = {}

    def take(self, address: str, size: int) -> None:
        """Count these bytes until they are given back. LimitExceeded if the address has too many
        under way, Unavailable if the process has."""
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
        """They are gone."""
        self.used -= size
        left = self._of[address] - size
        if left:
            self._of[address] = left
        else:
            del self._of[address]
