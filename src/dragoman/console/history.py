"""Tasks as they were after an entry: the fold of the beginning of a log."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from dragoman import Task
from dragoman.console.http import NotFound
from dragoman.console.store_reader import StoreReader
from dragoman.model.lifecycle import fold

BATCH = 1000
STRIDE = 5000
"""A fold is kept after so many entries."""
KEPT = 64
"""How many folds are kept."""


class History:
    """Folds the beginnings of logs, and keeps some of them, so that a slider moves quickly."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._kept: OrderedDict[tuple[str, int], Task] = OrderedDict()

    async def at(self, id: str, number: int) -> Task:
        """The task after this entry. Raises NotFound."""
        place, found = self._nearest(id, number)
        while place < number:
            entries = await self._reader.entries(id, place, min(BATCH, number - place))
            if not entries:
                break
            found = fold(found, [each.event for each in entries if folds(each.event)])
            place = entries[-1].number
            if place % STRIDE < BATCH:
                self._keep(id, place, found)
        if found is None:
            raise NotFound("there is no such entry")
        self._keep(id, place, found)
        return found

    def _nearest(self, id: str, number: int) -> tuple[int, Task | None]:
        best: tuple[int, Task | None] = (0, None)
        for (task, place), found in self._kept.items():
            if task == id and best[0] < place <= number:
                best = place, found
        return best

    def _keep(self, id: str, place: int, found: Task) -> None:
        self._kept[id, place] = found
        self._kept.move_to_end((id, place))
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)


def folds(event: Any) -> bool:
    """Whether the event changes the task."""
    return type(event).__name__ in ("Received", "TaskStatusUpdateEvent", "TaskArtifactUpdateEvent")
