"""One log in memory, and the index that lists the tasks of a scope."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort_right
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from dragoman.model.caller import Scope
from dragoman.model.events import Received
from dragoman.model.types import TaskArtifactUpdateEvent, TaskState
from dragoman.stores.log_slice import Tail
from dragoman.stores.store import Place, Query, WebhookCursor
from dragoman.stores.task_head import TaskHead

encode = msgspec.json.Encoder().encode


class Log(TaskHead, Tail):
    """One task's row, and all of its entries."""

    queued = False
    messages = 0
    """How many messages it has got."""
    receipts: tuple[str, ...] = ()
    index: TaskIndex | None = None
    shelved: tuple[str, TaskState] | None = None
    lines: dict[str, WebhookCursor] = {}  # noqa: RUF012 - most have none, and share it
    rests = 0.0
    """When its lines will be looked at again, if nothing happens before."""

    _measured = _size = _artifacts = 0

    def size(self, artifacts: bool) -> int:
        """The bytes of its entries, with those of artifacts or without; none is measured twice."""
        for entry in self.entries[self._measured :]:
            size = len(encode(entry.event) if entry.wire is None else entry.wire)
            if isinstance(entry.event, TaskArtifactUpdateEvent):
                self._artifacts += size
            else:
                self._size += size
        self._measured = len(self.entries)
        return self._size + self._artifacts if artifacts else self._size

    def received(self, number: int) -> Received:
        """The message of this number."""
        event = self.entries[number - 1].event
        assert isinstance(event, Received)
        return event

    @property
    def pending(self) -> bool:
        """A webhook has something to deliver."""
        return any(True for _ in self.behind)

    @property
    def behind(self) -> Iterator[WebhookCursor]:
        """The lines with something to deliver, but for those that are parked."""
        return (line for line in self.lines.values() if line.cursor < self.last and not line.parked)


class Conversations:
    """The messages of each context, in the order in which they were accepted.

    Those of a task that is forgotten stay until they are half of their context's.
    """

    def __init__(self, logs: Mapping[str, Log]) -> None:
        self._logs = logs
        self._places: dict[tuple[Scope, str], list[Place]] = {}
        self._gone: Counter[tuple[Scope, str]] = Counter()

    def add(self, log: Log, number: int, at: str) -> None:
        """A message was accepted."""
        places = self._places.setdefault((log.scope, log.context), [])
        log.messages += 1
        if not places or places[-1].at <= at:
            places.append(Place(log.id, number, at))
        else:  # the clock was set back
            insort_right(places, Place(log.id, number, at), key=_at)

    def before(self, scope: Scope, context: str, place: Place) -> Iterator[Place]:
        """The messages before this one, the latest first."""
        places = self._places.get((scope, context), [])
        index = bisect_right(places, place.at, key=_at)
        first = bisect_left(places, place.at, key=_at)
        for known in range(first, index):
            if (places[known].task, places[known].number) == (place.task, place.number):
                index = known
        for known in range(index - 1, -1, -1):
            if places[known].task in self._logs:
                yield places[known]

    def remove(self, log: Log) -> bool:
        """A task was forgotten; whether its context has others."""
        key = (log.scope, log.context)
        self._gone[key] += log.messages
        if 2 * self._gone[key] <= len(self._places[key]):
            return True
        del self._gone[key]
        left = [place for place in self._places[key] if place.task in self._logs]
        if left:
            self._places[key] = left
        else:
            del self._places[key]
        return bool(left)


def _at(place: Place) -> str:
    return place.at


class TaskIndex:
    """The born tasks of one scope, in the order of their status times.

    Tasks change far more often than they are listed, so a change is only noted; the next listing
    puts what changed in its place. A task that moves leaves its old place behind; such places are
    swept out when they are more than the live ones.
    """

    __slots__ = ("_changed", "_contexts", "_logs", "_order", "_states", "live")

    def __init__(self, logs: Mapping[str, Log]) -> None:
        self.live = 0
        self._logs = logs
        self._changed: dict[str, Log] = {}
        self._order: list[tuple[str, str]] = []
        self._contexts: dict[str, dict[str, Log]] = {}
        self._states = [0] * (len(TaskState) + 1)

    def add(self, log: Log) -> None:
        """A task was born."""
        self.live += 1
        self._changed[log.id] = log
        log.index = self

    def move(self, log: Log) -> None:
        """A task may have another status than when it was last put here."""
        self._changed[log.id] = log

    def remove(self, log: Log) -> None:
        """A task was forgotten."""
        self.live -= 1
        self._changed.pop(log.id, None)
        if log.shelved is None:
            return
        self._states[log.shelved[1].number] -= 1
        context = self._contexts[log.context]
        del context[log.id]
        if not context:
            del self._contexts[log.context]

    def matching(self, query: Query, cursor: tuple[str, str] | None) -> Iterator[Log]:
        """The tasks that fit, the latest first."""
        self._settle()
        found = self._within(query.context, cursor) if query.context else self._all(cursor)
        for log in found:
            if log.changed < query.since:
                return
            if query.state is None or log.state is query.state:
                yield log

    def total(self, query: Query) -> int:
        """How many tasks fit: known, unless time or context make it a count."""
        if query.since or query.context:
            return sum(1 for _ in self.matching(query, None))
        self._settle()
        return self.live if query.state is None else self._states[query.state.number]

    def tally(self) -> dict[TaskState, int]:
        """How many there are in each state."""
        self._settle()
        return {state: self._states[state.number] for state in TaskState}

    def _all(self, cursor: tuple[str, str] | None) -> Iterator[Log]:
        order = self._order
        end = bisect_left(order, cursor) if cursor else len(order)
        before = None
        for index in range(end - 1, -1, -1):
            place = order[index]
            log = self._logs.get(place[1])
            # a task whose time came back stands twice at one place
            if log is not None and log.changed == place[0] and place != before:
                yield log
            before = place

    def _within(self, context: str, cursor: tuple[str, str] | None) -> Iterator[Log]:
        logs = self._contexts.get(context, {}).values()
        places = sorted(((log.changed, log.id) for log in logs), reverse=True)
        return (self._logs[place[1]] for place in places if cursor is None or place < cursor)

    def _settle(self) -> None:
        """Put what changed since the last listing in its place."""
        if not self._changed:
            return
        for log in self._changed.values():
            if log.shelved is None:
                self._contexts.setdefault(log.context, {})[log.id] = log
            else:
                self._states[log.shelved[1].number] -= 1
            self._states[log.state.number] += 1
            if log.shelved is None or log.shelved[0] != log.changed:
                self._order.append((log.changed, log.id))
            log.shelved = (log.changed, log.state)
        self._changed.clear()
        if len(self._order) > 2 * self.live + 64:
            logs = self._logs
            self._order = [
                (changed, task)
                for changed, task in self._order
                if (known := logs.get(task)) is not None and known.changed == changed
            ]
        self._order.sort()  # nearly sorted already, which is what this sort is good at
