"""Tasks as they were after an entry: the fold of the beginning of a log."""

from __future__ import annotations

from collections import OrderedDict

from dragoman import Task
from dragoman.console.http import NotFound
from dragoman.console.store_reader import StoreReader

STRIDE = 5000
"""One fold is kept for this many entries: a slider moves quickly in a long log."""
KEPT = 64
"""How many folds are kept."""


class History:
    """Folds the beginnings of logs, and keeps some of them."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._kept: OrderedDict[tuple[str, int], Task] = OrderedDict()

    async def at(self, id: str, number: int) -> Task:
        """The task after this entry. Raises NotFound."""
        if number < 1:
            raise NotFound("there is no such entry")
        place, found = self._nearest(id, number)
        while found is None or place < number:
            step = min(number, place // STRIDE * STRIDE + STRIDE)
            found = await self._reader.fold(id, (place, found), step)
            place = step
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
        if len(self._kept) > KEPT:
            loose = next((key for key in self._kept if key[1] % STRIDE), next(iter(self._kept)))
            del self._kept[loose]
