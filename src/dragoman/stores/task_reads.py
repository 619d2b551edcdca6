"""Reading tasks from a database: folded logs, snapshots, counts and heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.model.types import TaskState
from dragoman.stores.codec import STATES
from dragoman.stores.sql_head import SqlHead
from dragoman.stores.store import Head, Record, Unreadable
from dragoman.stores.unreadable_rows import UnreadableRows

SMALL = 64 * 1024
"""A log of fewer bytes is folded from its beginning; a larger one gets snapshots."""
FIRST = 8
"""The census asks this many tasks at the head of the queue how long they wait: some may be
unreadable."""


class Folded(Record, frozen=True, gc=False):
    """A task folded from its log, and what that took."""

    key: int = 0
    snapshot: int = 0
    """The bytes of the snapshot that it began with."""
    tail: int = 0
    """The bytes that were folded onto it."""
    broken: bool = False
    """Its snapshot cannot be used."""

    @property
    def grown(self) -> bool:
        """The tail has grown as large as the snapshot: time for another."""
        return self.broken or self.tail >= max(SMALL, self.snapshot)


def counts(found: Iterable[Any], damage: UnreadableRows) -> dict[TaskState, int]:
    """Counts by state. One of an unknown state is reported as damage."""
    known = {}
    for state, number in found:
        if state in STATES:
            known[STATES[state]] = int(number)
        else:
            damage.found(Unreadable("count", "", f"unknown state {state}"))
    return known


def heads(
    rows: type[SqlHead], found: Iterable[Sequence[Any]]
) -> tuple[list[Head], list[tuple[int, Unreadable]]]:
    """The heads of these columns; and the keys of those that cannot be read."""
    read: list[Head] = []
    broken: list[tuple[int, Unreadable]] = []
    for columns in found:
        try:
            read.append(rows.restored(columns).head())
        except Unreadable as error:
            broken.append((columns[0], error))
    return read, broken
