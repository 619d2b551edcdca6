"""A task as it was after any entry of its log."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from dragoman.model.events import Entry, Private
from dragoman.model.lifecycle import fold
from dragoman.model.types import Task


def task_at(entries: Iterable[Entry], number: int | None = None, start: Task | None = None) -> Task:
    """Return the task as it was after the entry with this number, or after the last one.

    `entries` begin with the first entry of the log, or with the one that follows the task `start`.
    """
    wanted = takewhile(lambda entry: number is None or entry.number <= number, entries)
    events = (entry.event for entry in wanted if not isinstance(entry.event, Private))
    return fold(start, events)  # type: ignore[arg-type]
