"""Reads tasks from a database: folded logs, snapshots, counts and heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.model.types import TaskState
from dragoman.stores.codec import STATES
from dragoman.stores.sql_head import SqlHead
from dragoman.stores.store import Head, Record, Unreadable
from dragoman.stores.unreadable_rows import UnreadableRows

SMALL = 64 * 1024
"""A smaller log is folded from its beginning; a larger one has snapshots."""
FIRST = 8
"""How many tasks at the head of the queue the census reads for their waiting time, because some may
be unreadable."""


class Folded(Record, frozen=True, gc=False):
    """A task folded from its log, and how much was read."""

    key: int = 0
    snapshot: int = 0
    """The size of the snapshot that the fold began with."""
    tail: int = 0
    """The size of the entries after the snapshot."""
    broken: bool = False
    """Whether its snapshot is unusable."""

    @property
    def grown(self) -> bool:
        """Whether a new snapshot is due: the entries after the old one are as large as it is."""
        return self.broken or self.tail >= max(SMALL, self.snapshot)


def counts(found: Iterable[Any], damage: UnreadableRows) -> dict[TaskState, int]:
    """Return counts by state. A count of an unknown state is reported."""
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
    """Return the heads of these columns, and the keys of unreadable ones."""
    read: list[Head] = []
    broken: list[tuple[int, Unreadable]] = []
    for columns in found:
        try:
            read.append(rows.restored(columns).head())
        except Unreadable as error:
            broken.append((columns[0], error))
    return read, broken
