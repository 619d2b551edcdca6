"""A cache of recently committed logs: most reads want what was just written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from dragoman.model.caller import Scope
from dragoman.model.events import Entry
from dragoman.stores.log_slice import Tail
from dragoman.stores.store import LARGE, Head

ROOM = 16 * 1024 * 1024
"""The bytes of entries that are remembered in all; of one log, at most LARGE."""
LOGS = 10_000
ENTRY, ELEMENT = 512, 64
"""About how many bytes of memory an entry takes beside its text, and an element of JSON in it."""
_encode = msgspec.json.Encoder().encode

Commit = tuple[str, Head | None, Sequence[Entry], int]
"""What a transaction made of a log: its head, or None if it is gone, its new entries and their
bytes."""


def memory(entries: Sequence[Entry], size: int) -> int:
    """About how many bytes of memory entries take that are so many bytes of JSON."""
    found = size + ENTRY * len(entries)
    if size > 2 * ENTRY * len(entries):  # there may be many elements in them
        for entry in entries:
            body = _encode(entry.event) if entry.wire is None else entry.wire
            found += ELEMENT * (body.count(b"[") + body.count(b"{") + body.count(b","))
    return found


class CachedLog(Tail):
    """The head of a log, and its entries from the `first` on."""

    def __init__(self, head: Head, first: int) -> None:
        super().__init__()
        self.head = head
        self.first = first
        self.size = 0
        self.told = time.monotonic()
        """When it was last heard of."""

    @property
    def after(self) -> int:
        """The number of the next entry."""
        return self.first + len(self.entries)

    def young(self, age: float) -> bool:
        """It was heard of within so many seconds."""
        return time.monotonic() - self.told < age

    @property
    def current(self) -> bool:
        """Its entries go as far as its head."""
        return self.after == self.head.last + 1


class LogCache:
    """The logs that moved last. It is told of every commit, in order, before anybody else is."""

    def __init__(self) -> None:
        self._logs: dict[str, CachedLog] = {}
        self._size = 0

    def find(self, scope: Scope, task: str) -> CachedLog | None:
        """A log of this scope, if it is remembered."""
        live = self._logs.get(task)
        return live if live is not None and live.head.scope == scope else None

    def clear(self) -> None:
        """Remember nothing."""
        self._logs.clear()
        self._size = 0

    def publish(self, commits: Iterable[Commit]) -> None:
        """Take note of what was committed."""
        for task, head, fresh, size in commits:
            live = self._logs.pop(task, None)
            if head is None:
                self._size -= live.size if live else 0
                continue
            if live is not None and fresh and live.after != fresh[0].number:
                self._size -= live.size  # others have written in between
                live = None
            if live is None:
                live = CachedLog(head, fresh[0].number if fresh else head.last + 1)
            live.head, live.told = head, time.monotonic()
            self._logs[task] = live  # the latest is the last to go
            if fresh:
                self._extend(live, fresh, memory(fresh, size))
        while self._logs and (self._size > ROOM or len(self._logs) > LOGS):
            self._size -= self._logs.pop(next(iter(self._logs))).size

    def _extend(self, live: CachedLog, fresh: Sequence[Entry], size: int) -> None:
        self._size += size
        live.size += size
        live.entries.extend(fresh)
        if live.size > LARGE:  # too long to be remembered whole: begin anew behind it
            self._size -= live.size
            self._logs[live.head.id] = CachedLog(live.head, live.head.last + 1)
