"""A cache of recently committed logs, because most reads ask for what has just been written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from dragoman.model.caller import Scope
from dragoman.model.events import Entry
from dragoman.stores.log_slice import Tail
from dragoman.stores.store import LARGE, Head

ROOM = 16 * 1024 * 1024
"""The maximum size in bytes of all cached entries; of one log at most LARGE."""
LOGS = 10_000
ENTRY, ELEMENT = 512, 64
"""How much memory an entry takes beside its text, and an element of JSON in it, in bytes
(estimated)."""
_encode = msgspec.json.Encoder().encode

Commit = tuple[str, Head | None, Sequence[Entry], int]
"""The change of a log in a transaction: its head, or None if it was deleted, its new entries and
their size in bytes."""


def memory(entries: Sequence[Entry], size: int) -> int:
    """Estimate the memory that entries with this many bytes of JSON take."""
    found = size + ENTRY * len(entries)
    if size > 2 * ENTRY * len(entries):  # the entries may have many elements
        for entry in entries:
            body = _encode(entry.event) if entry.wire is None else entry.wire
            found += ELEMENT * (body.count(b"[") + body.count(b"{") + body.count(b","))
    return found


class CachedLog(Tail):
    """The head of a log, and its entries from number `first` on."""

    def __init__(self, head: Head, first: int) -> None:
        super().__init__()
        self.head = head
        self.first = first
        self.size = 0
        self.used = time.monotonic()
        """When it was last used."""

    @property
    def after(self) -> int:
        """The number of the next entry."""
        return self.first + len(self.entries)

    def young(self, age: float) -> bool:
        """Whether it was used within this many seconds."""
        return time.monotonic() - self.used < age

    @property
    def current(self) -> bool:
        """Whether its entries reach its head."""
        return self.after == self.head.last + 1


class LogCache:
    """The recently changed logs. It receives every commit, in order, before other readers do."""

    def __init__(self) -> None:
        self._logs: dict[str, CachedLog] = {}
        self._size = 0

    def find(self, scope: Scope, task: str) -> CachedLog | None:
        """Return the log of this scope, if it is cached."""
        log = self._logs.get(task)
        return log if log is not None and log.head.scope == scope else None

    def clear(self) -> None:
        """Forget everything."""
        self._logs.clear()
        self._size = 0

    def publish(self, commits: Iterable[Commit]) -> None:
        """Add a commit to the cache."""
        for task, head, fresh, size in commits:
            log = self._logs.pop(task, None)
            if head is None:
                self._size -= log.size if log else 0
                continue
            if log is not None and fresh and log.after != fresh[0].number:
                self._size -= log.size  # other processes have written in between
                log = None
            if log is None:
                log = CachedLog(head, fresh[0].number if fresh else head.last + 1)
            log.head, log.used = head, time.monotonic()
            self._logs[task] = log  # the most recent log is dropped last
            if fresh:
                self._extend(log, fresh, memory(fresh, size))
        while self._logs and (self._size > ROOM or len(self._logs) > LOGS):
            self._size -= self._logs.pop(next(iter(self._logs))).size

    def _extend(self, log: CachedLog, fresh: Sequence[Entry], size: int) -> None:
        self._size += size
        log.size += size
        log.entries.extend(fresh)
        if log.size > LARGE:  # too long to be cached as a whole: start again after this commit
            self._size -= log.size
            self._logs[log.head.id] = CachedLog(log.head, log.head.last + 1)
