"""Reservations in memory."""

from __future__ import annotations

import math
import time
from heapq import heappop, heappush

from dragoman.stores.reservations import Reservation


class Reservations:
    """The reserved values."""

    def __init__(self) -> None:
        self.reserved: dict[tuple[str, str], tuple[bytes, float]] = {}
        """The values by space and key, and when they expire."""
        self._expiring: list[tuple[float, str, str]] = []

    def reserve(self, space: str, key: str, value: bytes, keep: float | None) -> bytes:
        """See `Store.reserve`."""
        now, known = time.monotonic(), self.reserved_value(space, key)
        if known is not None:
            return known
        expires = math.inf if keep is None else now + keep
        self.reserved[space, key] = value, expires
        if keep is not None:
            heappush(self._expiring, (expires, space, key))
        return value

    def reserved_value(self, space: str, key: str) -> bytes | None:
        """See `Store.reserved`."""
        value, expires = self.reserved.get((space, key), (None, 0.0))
        return value if expires > time.monotonic() else None

    def release(self, space: str, key: str) -> bool:
        """See `Store.release`."""
        there = self.reserved_value(space, key) is not None
        self.reserved.pop((space, key), None)
        return there

    def listed(self, space: str, prefix: str, after: str, limit: int) -> list[Reservation]:
        """See `Store.reservations`."""
        now, offset = time.monotonic(), time.time() - time.monotonic()
        found = [
            Reservation(key, value, None if expires == math.inf else expires + offset)
            for (place, key), (value, expires) in list(self.reserved.items())
            if place == space and key.startswith(prefix) and key > after and expires > now
        ]
        return sorted(found, key=lambda one: one.key)[:limit]

    def prune(self) -> int:
        """Delete the expired values. Returns how many."""
        now, count = time.monotonic(), 0
        while self._expiring and self._expiring[0][0] <= now:
            expires, *name = heappop(self._expiring)
            known = self.reserved.get((name[0], name[1]))
            if known is not None and known[1] == expires:
                del self.reserved[name[0], name[1]]
                count += 1
        return count
