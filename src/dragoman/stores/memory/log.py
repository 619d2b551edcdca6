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
from dragoman.stores.store import MessagePlace, Query, WebhookCursor
from dragoman.stores.task_head import TaskHead

encode = msgspec.json.Encoder().encode


class Log(TaskHead, Tail):
    """The head of one task, and all of its entries."""

    queued = False
    messages = 0
    """How many messages it has received."""
    receipts: tuple[str, ...] = ()
    index: TaskIndex | None = None
    shelved: tuple[str, TaskState] | None = None
    lines: dict[str, WebhookCursor] = {}  # noqa: RUF012 - most have none, and share it
    rests = 0.0
    """When its webhooks will be read again, if nothing happens before."""

    _measured = _size = _artifacts = 0

    def size(self, artifacts: bool) -> int:
        """Return the size of its entries in bytes, with or without artifacts. Each entry is
        measured once."""
        for entry in self.entries[self._measured :]:
            size = len(encode(entry.event) if entry.wire is None else entry.wire)
            if isinstance(entry.event, TaskArtifactUpdateEvent):
                self._artifacts += size
            else:
                self._size += size
        self._measured = len(self.entries)
        return self._size + self._artifacts if artifacts else self._size

    def received(self, number: int) -> Received:
        """Return the message with this number."""
        event = self.entries[number - 1].event
        assert isinstance(event, Received)
        return event

    @property
    def pending(self) -> bool:
        """Whether a webhook has undelivered events."""
        return any(True for _ in self.behind)

    @property
    def behind(self) -> Iterator[WebhookCursor]:
        """Return the cursors with undelivered events, without the parked ones."""
        return (line for line in self.lines.values() if line.cursor < self.last and not line.parked)


class Conversations:
    """The messages of each context, in the order of their acceptance.

    Messages of a deleted task stay until they are half of the messages of their context.
    """

    def __init__(self, logs: Mapping[str, Log]) -> None:
        self._logs = logs
        self._places: dict[tuple[Scope, str], list[MessagePlace]] = {}
        self._gone: Counter[tuple[Scope, str]] = Counter()

    def add(self, log: Log, number: int, at: str) -> None:
        """Add an accepted message."""
        places = self._places.setdefault((log.scope, log.context), [])
        log.messages += 1
        if not places or places[-1].at <= at:
            places.append(MessagePlace(log.id, number, at))
        else:  # the clock was set back
            insort_right(places, MessagePlace(log.id, number, at), key=_at)

    def before(self, scope: Scope, context: str, place: MessagePlace) -> Iterator[MessagePlace]:
        """Yield the messages before this one, latest first."""
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
        """Note that a task was deleted. Returns whether its context has other tasks."""
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


def _at(place: MessagePlace) -> str:
    return place.at


class TaskIndex:
    """The tasks of one scope that have begun, by the time of their status.

    Tasks change much more often than they are listed. So a change is only noted, and the next
    listing moves the changed tasks. The old position of a moved task stays as a gap; gaps are
    removed when there are more of them than tasks.
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
        """Add a task that has begun."""
        self.live += 1
        self._changed[log.id] = log
        log.index = self

    def move(self, log: Log) -> None:
        """Note that the status of a task may have changed."""
        self._changed[log.id] = log

    def remove(self, log: Log) -> None:
        """Remove a deleted task."""
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
        """Return the matching tasks, latest first."""
        self._settle()
        found = self._within(query.context, cursor) if query.context else self._all(cursor)
        for log in found:
            if log.changed < query.since:
                return
            if query.state is None or log.state is query.state:
                yield log

    def total(self, query: Query) -> int:
        """Return the number of matching tasks. Only a filter by time or context needs counting."""
        if query.since or query.context:
            return sum(1 for _ in self.matching(query, None))
        self._settle()
        return self.live if query.state is None else self._states[query.state.number]

    def tally(self) -> dict[TaskState, int]:
        """Return the number of tasks in each state."""
        self._settle()
        return {state: self._states[state.number] for state in TaskState}

    def _all(self, cursor: tuple[str, str] | None) -> Iterator[Log]:
        order = self._order
        end = bisect_left(order, cursor) if cursor else len(order)
        before = None
        for index in range(end - 1, -1, -1):
            place = order[index]
            log = self._logs.get(place[1])
            # a task that has returned to an earlier time is in one place twice
            if log is not None and log.changed == place[0] and place != before:
                yield log
            before = place

    def _within(self, context: str, cursor: tuple[str, str] | None) -> Iterator[Log]:
        logs = self._contexts.get(context, {}).values()
        places = sorted(((log.changed, log.id) for log in logs), reverse=True)
        return (self._logs[place[1]] for place in places if cursor is None or place < cursor)

    def _settle(self) -> None:
        """Move the tasks that have changed since the last listing."""
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
        self._order.sort()  # the list is nearly sorted, which is fast with this algorithm
