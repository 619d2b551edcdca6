"""Logs in this process. It promises nothing beyond the process, and is bounded in count and age."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from dragoman import clock
from dragoman.caller import Scope
from dragoman.errors import (
    LimitExceeded,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.events import CancelRequested, Entry, Event, Received, Reply
from dragoman.lifecycle import advance, birth, fold
from dragoman.store import (
    Accepted,
    Claim,
    Conflict,
    Draft,
    Head,
    Page,
    Query,
    Record,
    Renewal,
    Slice,
    Stale,
    Webhook,
)
from dragoman.types import Task, TaskState, TaskStatusUpdateEvent

RECEIPT_AGE = 24 * 3600.0


class MemoryStore:
    """The store without a disk."""

    def __init__(self, *, max_tasks: int = 50_000, task_age: float = 24 * 3600.0) -> None:
        self.max_tasks = max_tasks
        self.task_age = task_age
        self._logs: dict[str, Log] = {}
        self._shelves: dict[tuple[Scope, str], Shelf] = {}
        self._queues: dict[str, deque[Log]] = {}
        self._held: dict[str, Log] = {}
        self._ended: dict[str, float] = {}  # in order of their end
        self._waiting: dict[str, Log] = {}  # in order of their question
        self._receipts: dict[tuple[Scope, str], tuple[bytes, str, int, float]] = {}

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close: what is here stays until the process ends."""

    # -- for callers

    async def accept(self, scope: Scope, draft: Draft) -> Accepted:
        """See `Store.accept`."""
        receipt = draft.receipt
        if receipt is not None and (known := self._receipts.get((scope, receipt.key))):
            digest, task, number, _ = known
            if digest != receipt.digest:
                raise Conflict(receipt.key)
            if task in self._logs:
                log = self._logs[task]
                return Accepted(log.head(), number, log.received(number), False)
        if draft.new:
            if len(self._logs) >= self.max_tasks:
                self._make_room()
            log = self._logs[draft.task] = Log(scope, draft)
            if log.born:
                self._shelve(log)
        else:
            found = self._find(scope, draft.task)
            if found is None or not found.born:
                raise TaskNotFound
            log = found
            if log.state.terminal:
                raise UnsupportedOperation(
                    f"Task has ended ({log.state.name.lower()}) and takes no more messages"
                )
        number = log.write(Entry(0, draft.received))
        log.inbox.append(number)
        log.skill = draft.received.skill
        if draft.webhook is not None:
            log.webhooks[draft.webhook.config.id] = draft.webhook
        if receipt is not None:
            self._receipts[scope, receipt.key] = (
                receipt.digest,
                log.id,
                number,
                time.monotonic(),
            )
        self._waiting.pop(log.id, None)
        self._offer(log)
        return Accepted(log.head(), number, draft.received, True)

    async def head(self, scope: Scope, task: str) -> Head | None:
        """See `Store.head`."""
        log = self._find(scope, task)
        return log.head() if log else None

    async def load(self, scope: Scope, task: str) -> Record | None:
        """See `Store.load`."""
        log = self._find(scope, task)
        return Record(log.task(), log.head()) if log and log.born else None

    async def read(self, scope: Scope, task: str, after: int, limit: int) -> Slice | None:
        """See `Store.read`."""
        log = self._find(scope, task)
        if log is None:
            return None
        return Slice(log.entries[after : after + limit], log.head())

    async def list(self, scope: Scope, query: Query) -> Page:
        """See `Store.list`."""
        shelf = self._shelves.get((scope, query.context))
        if shelf is None:
            return Page((), None, 0)
        tasks: list[Task] = []
        for log in self._matching(shelf, query, query.cursor):
            if len(tasks) == query.size:
                last = tasks[-1]
                return Page(tasks, (last.status.timestamp or "", last.id), shelf.total(self, query))
            tasks.append(log.task())
        return Page(tasks, None, shelf.total(self, query))

    async def cancel(
        self,
        scope: Scope,
        task: str,
        request: CancelRequested,
        canceled: TaskStatusUpdateEvent,
        grace: float,
    ) -> Head:
        """See `Store.cancel`."""
        log = self._find(scope, task)
        if log is None or not log.born:
            raise TaskNotFound
        if log.state.terminal:
            raise TaskNotCancelable(f"Task has already ended ({log.state.name.lower()})")
        if not log.cancel_at:
            log.write(Entry(0, request))
            log.cancel_at = time.monotonic() + grace
            log.canceled = canceled
            if not log.holder:
                self._write(log, Entry(0, canceled))
        return log.head()

    async def put_webhook(self, scope: Scope, webhook: Webhook) -> None:
        """See `Store.put_webhook`."""
        self._born(scope, webhook.config.task_id).webhooks[webhook.config.id] = webhook

    async def webhooks(self, scope: Scope, task: str) -> Sequence[Webhook]:
        """See `Store.webhooks`."""
        found = self._born(scope, task).webhooks
        return [found[key] for key in sorted(found)]

    async def delete_webhook(self, scope: Scope, task: str, webhook: str) -> None:
        """See `Store.delete_webhook`."""
        self._born(scope, task).webhooks.pop(webhook, None)

    # -- for workers

    async def claim(
        self, agents: Collection[str], worker: str, lease: float, limit: int
    ) -> Sequence[Claim]:
        """See `Store.claim`."""
        claims: list[Claim] = []
        for agent in agents:
            queue = self._queues.get(agent)
            while queue and len(claims) < limit:
                log = queue.popleft()
                log.queued = False
                if log.holder or not log.inbox or self._logs.get(log.id) is not log:
                    continue
                claims.append(log.claim(worker, time.monotonic() + lease))
                self._held[log.id] = log
        return claims

    def append(
        self, claim: Claim, entries: Sequence[Entry], *, release: bool = False
    ) -> asyncio.Future[Head]:
        """See `Store.append`. Here it has landed when the call returns."""
        future: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        log = self._logs.get(claim.head.id)
        if log is None or log.epoch != claim.epoch:
            future.set_exception(Stale(claim.head.id))
            return future
        for entry in entries:
            event = entry.event
            if (
                type(event) is TaskStatusUpdateEvent
                and event.status.state is TaskState.COMPLETED
                and len(log.inbox) > 1
            ):
                status = replace(event.status, state=TaskState.WORKING)
                entry = Entry(0, replace(event, status=status), claim.turn)
            self._write(log, entry)
        if release and log.holder:
            self._release(log, read=True)
        future.set_result(log.head())
        return future

    async def renew(self, claims: Collection[Claim], lease: float) -> Renewal:
        """See `Store.renew`."""
        until = time.monotonic() + lease
        lost, canceling = [], []
        for claim in claims:
            log = self._logs.get(claim.head.id)
            if log is None or log.epoch != claim.epoch:
                lost.append(claim.head.id)
                continue
            log.lease = until
            if log.cancel_at:
                canceling.append(log.id)
        return Renewal(lost, canceling)

    # -- for every replica

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """See `Store.expired`."""
        now = time.monotonic()
        found = (
            log.head()
            for log in list(self._held.values())
            if log.scope.agent in agents and (log.lease < now or 0 < log.cancel_at < now)
        )
        return [head for head, _ in zip(found, range(limit), strict=False)]

    async def revoke(self, head: Head, event: TaskStatusUpdateEvent | None) -> Head | None:
        """See `Store.revoke`."""
        log = self._logs.get(head.id)
        if log is None or log.epoch != head.epoch or log.state.terminal:
            return None
        log.epoch += 1
        if event is not None:
            self._write(log, Entry(0, event))
        elif log.holder:
            self._release(log, read=False)
        return log.head()

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """See `Store.moved`."""
        logs = self._logs
        return [
            task
            for task, version in places.items()
            if (log := logs.get(task)) is None or log.version != version
        ]

    async def prune(self) -> int:
        """See `Store.prune`."""
        now = time.monotonic()
        old = []
        for task, ended in self._ended.items():
            if ended + self.task_age > now:
                break
            old.append(task)
        for task in old:
            self._forget(self._logs[task])
        for key, (_, task, _, at) in list(self._receipts.items()):
            if task not in self._logs and at + RECEIPT_AGE < now:
                del self._receipts[key]
        return len(old)

    # -- inside

    def _find(self, scope: Scope, task: str) -> Log | None:
        log = self._logs.get(task)
        return log if log is not None and log.scope == scope else None

    def _born(self, scope: Scope, task: str) -> Log:
        log = self._find(scope, task)
        if log is None or not log.born:
            raise TaskNotFound
        return log

    def _write(self, log: Log, entry: Entry) -> None:
        """Append one entry, and keep all views of the head in step."""
        kind = type(entry.event)
        if not log.born and kind is not Reply:
            log.born = True
            self._shelve(log)
        if kind is TaskStatusUpdateEvent:
            before = log.state, log.changed
            log.write(entry)
            for shelf in self._shelves_of(log):
                shelf.move(log, *before, self)
            if log.state.terminal:
                self._end(log)
        else:
            log.write(entry)
            if log.replied:
                self._end(log)

    def _end(self, log: Log) -> None:
        log.epoch += 1
        log.inbox.clear()
        self._release(log, read=False)
        self._waiting.pop(log.id, None)
        self._ended[log.id] = time.monotonic()

    def _release(self, log: Log, *, read: bool) -> None:
        log.holder = ""
        log.version += 1
        self._held.pop(log.id, None)
        if read and log.inbox:
            log.inbox.popleft()
            log.attempt = 0
        if log.canceled is not None and not log.state.terminal:
            status = replace(log.canceled.status, timestamp=clock.now())
            self._write(log, Entry(0, replace(log.canceled, status=status)))
        elif log.inbox:
            self._offer(log)
        elif log.state.interrupted:
            self._waiting[log.id] = log

    def _offer(self, log: Log) -> None:
        if not log.holder and not log.queued:
            log.queued = True
            self._queues.setdefault(log.scope.agent, deque()).append(log)

    def _shelves_of(self, log: Log) -> tuple[Shelf, Shelf]:
        return self._shelves[log.scope, ""], self._shelves[log.scope, log.context]

    def _shelve(self, log: Log) -> None:
        for context in ("", log.context):
            shelf = self._shelves.setdefault((log.scope, context), Shelf())
            shelf.add(log)

    def _matching(
        self, shelf: Shelf, query: Query, cursor: tuple[str, str] | None
    ) -> Iterator[Log]:
        """The live logs of a shelf that fit, the latest first."""
        order = shelf.order
        end = bisect_left(order, cursor) if cursor else len(order)
        for index in range(end - 1, -1, -1):
            changed, task = order[index]
            if changed < query.since:
                return
            log = self._logs.get(task)
            if log is None or log.changed != changed:
                continue
            if query.state is None or log.state is query.state:
                yield log

    def _make_room(self) -> None:
        """Forget the oldest ended task, else the one that has waited longest for its client."""
        for task in self._ended:
            self._forget(self._logs[task])
            return
        for log in self._waiting.values():
            self._forget(log)
            return
        raise LimitExceeded(f"The store is full: {self.max_tasks} tasks are under way")

    def _forget(self, log: Log) -> None:
        del self._logs[log.id]
        self._ended.pop(log.id, None)
        self._waiting.pop(log.id, None)
        self._held.pop(log.id, None)
        if not log.born:
            return
        for context in ("", log.context):
            shelf = self._shelves[log.scope, context]
            shelf.remove(log, self)
            if not shelf.live:
                del self._shelves[log.scope, context]


class Log:
    """One task's entries and head row."""

    __slots__ = (
        "_folded",
        "_task",
        "attempt",
        "born",
        "cancel_at",
        "canceled",
        "changed",
        "context",
        "entries",
        "epoch",
        "holder",
        "id",
        "inbox",
        "lease",
        "queued",
        "replied",
        "scope",
        "settled",
        "skill",
        "state",
        "turn",
        "version",
        "webhooks",
    )

    def __init__(self, scope: Scope, draft: Draft) -> None:
        self.scope = scope
        self.id = draft.task
        self.context = draft.received.message.context_id
        self.skill = draft.received.skill
        self.born = draft.born
        self.changed = draft.received.at
        self.state = TaskState.SUBMITTED
        self.replied = False
        self.entries: list[Entry] = []
        self.inbox: deque[int] = deque()
        self.webhooks: dict[str, Webhook] = {}
        self.version = self.epoch = self.turn = self.settled = self.attempt = 0
        self.holder = ""
        self.lease = self.cancel_at = 0.0
        self.canceled: TaskStatusUpdateEvent | None = None
        self.queued = False
        self._task: Task | None = None
        self._folded = 0

    def write(self, entry: Entry) -> int:
        """Append one entry under the next number."""
        event: Event = entry.event  # type: ignore[assignment]
        if self.entries:
            state = advance(self.state, event)
            assert state is not None
            self.state = state
        entry.number = len(self.entries) + 1
        self.entries.append(entry)
        self.version += 1
        if type(event) is TaskStatusUpdateEvent:
            self.changed = event.status.timestamp or self.changed
            if self.state.interrupted and entry.turn > self.settled:
                self.settled = entry.turn
        elif type(event) is Reply:
            self.replied = True
        return entry.number

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
        return Head(
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


class Shelf:
    """The tasks of one scope or context in the order of their status times.

    A task that moves leaves its old place behind; such places are swept out when they are more
    than the live ones, so that a move costs a constant.
    """

    __slots__ = ("live", "order", "states")

    def __init__(self) -> None:
        self.order: list[tuple[str, str]] = []
        self.live = 0
        self.states: Counter[TaskState] = Counter()

    def add(self, log: Log) -> None:
        """A task was born."""
        self.live += 1
        self.states[log.state] += 1
        insort(self.order, (log.changed, log.id))

    def move(self, log: Log, state: TaskState, changed: str, store: MemoryStore) -> None:
        """A task has a new status; `state` and `changed` are those of the old one."""
        if state is not log.state:
            self.states[state] -= 1
            self.states[log.state] += 1
        if changed != log.changed:
            insort(self.order, (log.changed, log.id))
            self._sweep(store)

    def remove(self, log: Log, store: MemoryStore) -> None:
        """A task was forgotten."""
        self.live -= 1
        self.states[log.state] -= 1
        self._sweep(store)

    def total(self, store: MemoryStore, query: Query) -> int:
        """How many tasks fit: counted on the go, but for a query by time."""
        if query.since:
            return sum(1 for _ in store._matching(self, query, None))
        return self.live if query.state is None else self.states[query.state]

    def _sweep(self, store: MemoryStore) -> None:
        if len(self.order) > 2 * self.live + 64:
            logs = store._logs
            self.order = [
                (changed, task)
                for changed, task in self.order
                if (log := logs.get(task)) is not None and log.changed == changed
            ]
