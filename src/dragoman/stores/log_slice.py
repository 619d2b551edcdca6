"""The entries of a log after a position, and the task that they fold into."""

from __future__ import annotations

from dragoman.model.events import Entry
from dragoman.model.lifecycle import birth, fold
from dragoman.model.types import Task


class Tail:
    """Entries in memory. The fold is computed once."""

    _task: Task | None = None
    _folded = 0

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def task(self) -> Task:
        """The fold of the log. It exists only if the entries begin with the first one."""
        entries = self.entries
        if self._task is None:
            self._task = birth(entries[0].event)  # type: ignore[arg-type]
            self._folded = 1
        if self._folded < len(entries):
            tail = (entry.event for entry in entries[self._folded :])
            self._task = fold(self._task, tail)  # type: ignore[arg-type]
            self._folded = len(entries)
        return self._task
