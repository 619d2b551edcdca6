"""A task's log in memory, and the order in which a scope's tasks are listed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from dragoman.caller import Scope
from dragoman.events import Entry, Event, Received, Reply
from dragoman.lifecycle import advance, birth, fold
from dragoman.store import Claim, Draft, Head, Query, Webhook
from dragoman.types import Task, TaskState, TaskStatusUpdateEvent


class Log:
    """One task's entries and head row."""

    replied = False
    version = epoch = turn = settled = attempt = 0
    state = TaskState.SUBMITTED
    holder = ""
    lease = cancel_at = 0.0
    canceled: TaskStatusUpdateEvent | None = None
    queued = False
    receipts: tuple[str, ...] = ()
    shelf: Shelf | None = None
    shelved: tuple[str, TaskState] | None = None
    _head: Head | None = None
    _task: Task | None = None
    _folded = 0

    def __init__(self, scope: Scope, draft: Draft) -> None:
        self.scope = scope
        self.id = draft.task
        self.context = draft.received.message.context_id
        self.skill = draft.received.skill
        self.born = draft.born
        self.changed = draft.received.at
        self.entries: list[Entry] = []
        self.inbox: tuple[int, ...] = ()
        self.webhooks: dict[str, Webhook] | None = None

    def write(self, entry: Entry) -> int:
        """Append one entry under the next number."""
        event: Event = entry.event  # type: ignore[assignment]
        entries = self.entries
        if entries:
            self.state = state = advance(self.state, event)
            if type(event) is TaskStatusUpdateEvent:
                self.changed = event.status.timestamp or self.changed
                if state.interrupted and entry.turn > self.settled:
                    self.settled = entry.turn
            elif type(event) is Reply:
                self.replied = True
        entries.append(entry)
        entry.number = number = len(entries)
        self.version += 1
        return number

    def keep(self, webhook: Webhook) -> None:
        """Add or replace a webhook."""
        if self.webhooks is None:
            self.webhooks = {}
        self.webhooks[webhook.config.id] = webhook

    def claim(self, worker: str, lease: float) -> Claim:
        """Begin the turn of the first unread message."""
        self.epoch += 1
        self.version += 1
        self.attempt += 1
        self.holder, self.lease = worker, lease
        self.turn = self.inbox[0]
        return Claim(
            head=self.head(),
            task=self.task(),
            received=self.received(self.turn),
            turn=self.turn,
            epoch=self.epoch,
            attempt=self.attempt,
        )

    def received(self, number: int) -> Received:
        """The message of this number."""
        event = self.entries[number - 1].event
        assert isinstance(event, Received)
        return event

    def task(self) -> Task:
        """The fold of the log; what was folded before is not folded again."""
        entries = self.entries
        if self._task is None:
            self._task = birth(entries[0].event)  # type: ignore[arg-type]
            self._folded = 1
        if self._folded < len(entries):
            tail = (entry.event for entry in entries[self._folded :])
            self._task = fold(self._task, tail)  # type: ignore[arg-type]
            self._folded = len(entries)
        return self._task

    def head(self) -> Head:
        """The head row as a value."""
        head = self._head
        if head is not None and head.version == self.version:
            return head
        self._head = head = Head(
            id=self.id,
            context=self.context,
            scope=self.scope,
            state=self.state,
            skill=self.skill,
            last=len(self.entries),
            version=self.version,
            born=self.born,
            replied=self.replied,
            epoch=self.epoch,
            holder=self.holder,
            turn=self.turn,
            unread=bool(self.inbox) and (not self.holder or len(self.inbox) > 1),
            settled=self.settled,
            attempt=self.attempt,
            canceling=self.cancel_at > 0,
        )
        return head


class Shelf:
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
        log.shelf = self

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
