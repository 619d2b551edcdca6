"""The ready logs of one agent, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from heapq import heappop, heappush

from dragoman.model.caller import Scope
from dragoman.stores.claim_order import Ranks
from dragoman.stores.memory.log import Log
from dragoman.stores.store import Owner, owner_of

RankedLog = tuple[int, int, Log]
"""A log's rank, and how many logs were added before it."""


class Queue:
    """Logs in the order of their ranks. Logs that were claimed or deleted elsewhere stay until they
    are next."""

    __slots__ = ("_came", "_heap", "_only", "_owners", "_ranks")

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._came = 0
        self._only: Log | None = None
        """The only log, if there is one. Most logs are claimed as soon as they arrive."""
        self._owners: dict[Scope, deque[RankedLog]] = {}
        self._heap: list[tuple[int, int, Scope]] = []
        """The first position of each owner."""

    def __bool__(self) -> bool:
        return self._only is not None or bool(self._heap)

    def __iter__(self) -> Iterator[Log]:
        """Yield all logs, in no order."""
        self._settle()
        return (place[2] for places in self._owners.values() for place in places)

    def add(self, log: Log) -> None:
        """Add a log that has become ready."""
        if self._only is None and not self._heap:
            self._only = log
            return
        self._settle()
        self._add(log)

    def _settle(self) -> None:
        """Move the only log to the others."""
        if (log := self._only) is not None:
            self._only = None
            self._add(log)

    def _add(self, log: Log) -> None:
        scope, heap = log.scope, self._heap
        self._came += 1
        if not heap:
            self._owners[scope] = deque(((0, self._came, log),))
            heap.append((0, self._came, scope))
            return
        places = self._owners.get(scope)
        rank = self._ranks.give(scope, heap[0][0], places[-1][0] if places else None)
        if places is None:
            self._owners[scope] = deque(((rank, self._came, log),))
            heappush(heap, (rank, self._came, scope))
        else:
            places.append((rank, self._came, log))

    def pop(self, passing: Collection[Owner]) -> Log | None:
        """Remove and return the next log, without those of skipped owners."""
        if (log := self._only) is not None:
            if passing and owner_of(log.scope) in passing:
                return None
            self._only = None
            return log
        heap = self._heap
        if not passing:
            return self._pop() if heap else None
        passed = []
        while heap and owner_of(heap[0][2]) in passing:
            passed.append(heappop(heap))
        found = self._pop() if heap else None
        for place in passed:
            heappush(heap, place)
        return found

    def _pop(self) -> Log:
        scope = heappop(self._heap)[2]
        places = self._owners[scope]
        log = places.popleft()[2]
        if places:
            heappush(self._heap, (*places[0][:2], scope))
        else:
            del self._owners[scope]
        return log
