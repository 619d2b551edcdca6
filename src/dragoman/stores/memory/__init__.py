"""Logs in the memory of this process. They end with the process, and are limited in number and
age."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.model.caller import Scope
from dragoman.model.conversation import ContextValue
from dragoman.model.errors import A2AError, LimitExceeded, TaskNotFound
from dragoman.model.events import CancelRequested, Entry, Private, Received
from dragoman.model.lifecycle import IllegalEvent
from dragoman.model.types import TaskState, TaskStatusUpdateEvent
from dragoman.server.settings import Settings
from dragoman.stores import log_changes
from dragoman.stores.claim_order import Ranks
from dragoman.stores.codec import stripped
from dragoman.stores.context_values import next_version
from dragoman.stores.memory.deliveries import Deliveries
from dragoman.stores.memory.log import Conversations, Log, TaskIndex
from dragoman.stores.memory.queue import Queue
from dragoman.stores.memory.reservations import Reservations
from dragoman.stores.process_rows import FLEET, LIVES, ProcessRow, row_body
from dragoman.stores.reservations import Reservation
from dragoman.stores.store import (
    MANY,
    NOBODY,
    PAGE_BYTES,
    Accepted,
    Census,
    Claim,
    Conflict,
    Draft,
    Head,
    MessagePlace,
    Owner,
    Page,
    Pause,
    Query,
    Receipt,
    Record,
    Renewal,
    Stale,
    Webhook,
    WebhookCursor,
)
from dragoman.stores.task_head import age
from dragoman.stores.unreadable_rows import KINDS
from dragoman.stores.url_options import split

if TYPE_CHECKING:
    from dragoman.stores.memory.admin import MemoryAdmin

RETENTION = 24 * 3600.0
"""How long a task is kept after its end by default."""


class MemoryStore:
    """The store in memory."""

    url = bell = "memory:"
    name = "memory, until this process ends"
    shared = False

    def __init__(self, *, max_tasks: int = 50_000, retention: float = RETENTION) -> None:
        self.id = uuid.uuid4().hex
        self.unreadable: Mapping[str, int] = dict.fromkeys(KINDS, 0)
        self.max_tasks = max_tasks
        self.retention = retention
        self._logs: dict[str, Log] = {}
        self._conversations = Conversations(self._logs)
        self._values: dict[tuple[Scope, str], tuple[ContextValue, str]] = {}
        """The value of each context that has one, and its saver."""
        self._indexes: dict[Scope, TaskIndex] = {}
        self._queues: dict[str, Queue] = {}
        self._ranks = Ranks()
        self._next = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.used = False
        """Whether it was ever open."""
        self._held: dict[str, Log] = {}
        self._ended: dict[str, float] = {}  # in the order of their end
        self._waiting: dict[str, Log] = {}  # in the order of their question
        self._deliveries = Deliveries(self._logs)
        self._due: list[tuple[float, str]] = []  # when suspended handlers continue
        self._timed: dict[str, Log] = {}  # without a worker, but with a deadline or a cancel
        self._receipts: dict[tuple[Scope, str], tuple[bytes, str, int]] = {}
        self._reservations = Reservations()

    async def open(self) -> None:
        """The running loop. Until Python 3.12 each lookup of the loop is a system call."""
        self._loop = asyncio.get_running_loop()
        self.used = True

    async def close(self) -> None:
        """Do nothing: the logs stay until the process ends."""
        self._loop = None

    # -- for operators, also in other threads

    def admin(self, *, write: bool = False, create: bool = False) -> MemoryAdmin:
        """See `Store.admin`."""
        from dragoman.stores.memory.admin import MemoryAdmin

        return MemoryAdmin(self, write=write)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that changes it, while it is open."""
        return self._loop

    def log(self, task: str) -> Log | None:
        """The log of this id."""
        return self._logs.get(task)

    def logs(self) -> Sequence[Log]:
        """All logs, as they are now."""
        return list(self._logs.values())

    def value(self, scope: Scope, context: str) -> tuple[ContextValue, str] | None:
        """The value of a context, and its saver."""
        return self._values.get((scope, context))

    # -- for callers

    def accept(self, scope: Scope, draft: Draft) -> asyncio.Future[Accepted]:
        """See `Store.accept`. The message is stored when the call returns."""
        future: asyncio.Future[Accepted] = self._future()
        try:
            log, number, new = log_changes.accept(self, scope, draft, draft.webhook)
            received = draft.received if new else log.received(number)
            if new:
                self._conversations.add(log, number, received.at)
            future.set_result(Accepted(log.head(), number, received, new))
        except (A2AError, Conflict) as error:
            future.set_exception(error)
        return future

    async def head(self, scope: Scope, task: str) -> Head | None:
        """See `Store.head`."""
        log = self._find(scope, task)
        return log.head() if log else None

    async def load(self, scope: Scope, task: str) -> Record | None:
        """See `Store.load`."""
        log = self._find(scope, task)
        return Record(log.task(), log.head()) if log and log.born else None

    async def read(self, scope: Scope, task: str, after: int, limit: int) -> Sequence[Entry] | None:
        """See `Store.read`."""
        log = self._find(scope, task)
        return None if log is None else log.entries[after : after + limit]

    async def list(self, scope: Scope, query: Query) -> Page:
        """See `Store.list`."""
        index = self._indexes.get(scope)
        if index is None:
            return Page((), None, 0)
        logs: list[Log] = []
        cursor, size = None, 0
        for log in index.matching(query, query.cursor):
            if len(logs) == query.size or size >= PAGE_BYTES:
                cursor = (logs[-1].changed, logs[-1].id)
                break
            logs.append(log)
            size += log.size(query.artifacts)
        return Page([log.task() for log in logs], cursor, index.total(query))

    async def messages(
        self, scope: Scope, context: str, before: MessagePlace, limit: int, task: str = ""
    ) -> Sequence[MessagePlace]:
        """See `Store.messages`."""
        found = self._conversations.before(scope, context, before)
        return list(islice((place for place in found if task in ("", place.task)), limit))

    async def tally(self, scope: Scope) -> Mapping[TaskState, int]:
        """See `Store.tally`."""
        index = self._indexes.get(scope)
        return index.tally() if index is not None else {}

    async def find(self, agent: str, task: str) -> Head | None:
        """See `Store.find`."""
        log = self._logs.get(task)
        return log.head() if log is not None and log.scope.agent == agent else None

    async def owner(self, scope: Scope, task: str) -> str | None:
        """See `Store.owner`."""
        log = self._logs.get(task)
        known = log is not None and log.born and replace(log.scope, owner=scope.owner) == scope
        return log.scope.owner if log is not None and known else None

    async def cancel(
        self,
        scope: Scope,
        task: str,
        request: CancelRequested,
        canceled: TaskStatusUpdateEvent,
        grace: float,
        receipt: Receipt | None = None,
        *,
        undo: bool = False,
    ) -> Head:
        """See `Store.cancel`."""
        return log_changes.cancel(self, scope, task, request, canceled, grace, receipt, undo)

    async def put_webhook(self, scope: Scope, webhook: Webhook) -> None:
        """See `Store.put_webhook`."""
        log_changes.put_webhook(self, scope, webhook)

    async def webhooks(self, scope: Scope, task: str) -> Sequence[Webhook]:
        """See `Store.webhooks`."""
        found = self.mine(scope, task).lines
        return [found[key].webhook for key in sorted(found)]

    async def delete_webhook(self, scope: Scope, task: str, webhook: str) -> None:
        """See `Store.delete_webhook`."""
        self.mine(scope, task).lines.pop(webhook, None)

    # -- for workers

    def claim(
        self,
        agents: Collection[str],
        worker: str,
        lease: float,
        limit: int,
        passing: Collection[Owner] = NOBODY,
        spare: int = MANY,
    ) -> asyncio.Future[Sequence[Claim]]:
        """See `Store.claim`. The logs are claimed when the call returns."""
        future: asyncio.Future[Sequence[Claim]] = self._future()
        claims: list[Claim] = []
        for passed in (passing, NOBODY) if passing else (NOBODY,):
            if passing and not passed:
                limit = min(limit, len(claims) + spare)
            queues = [queue for agent in agents if (queue := self._queues.get(agent))]
            while queues and len(claims) < limit:
                # one log of each agent in turn, so that a busy agent does not starve the others
                queue = queues[self._next % len(queues)]
                self._next += 1
                log = queue.pop(passed)
                if log is None or not queue:
                    queues.remove(queue)
                if log is None:
                    continue
                log.queued = False
                if not log.ready or self._logs.get(log.id) is not log:
                    continue
                number = log.take(worker, time.monotonic() + lease)
                claims.append(log.claim(log.task(), log.received(number)))
                self._held[log.id] = log
        future.set_result(claims)
        return future

    async def private(self, scope: Scope, task: str) -> Sequence[Entry]:
        """See `Store.private`."""
        log = self._find(scope, task)
        return [entry for entry in log.entries if type(entry.event) is Private] if log else []

    def append(
        self,
        claim: Claim,
        entries: Sequence[Entry],
        *,
        release: bool = False,
        pause: Pause | None = None,
    ) -> asyncio.Future[bool]:
        """See `Store.append`. The entries are stored when the call returns."""
        future: asyncio.Future[bool] = self._future()
        try:
            future.set_result(log_changes.append(self, claim, entries, release, pause))
        except (Stale, IllegalEvent) as error:
            future.set_exception(error)
        return future

    async def context_value(self, claim: Claim) -> ContextValue | None:
        """See `Store.context_value`."""
        found = self._values.get((claim.head.scope, claim.head.context))
        return found[0] if found else None

    async def save_context(self, claim: Claim, value: bytes, version: int, key: str) -> int:
        """See `Store.save_context`."""
        log = self._logs.get(claim.head.id)
        if log is None or log.epoch != claim.epoch:
            raise Stale(claim.head.id)
        whose = (log.scope, log.context)
        known = self._values.get(whose)
        new = next_version((known[0].version, known[1]) if known else None, version, key)
        self._values[whose] = ContextValue(value, new), key
        return new

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

    async def held(self, worker: str) -> Sequence[Head]:
        """See `Store.held`."""
        return [log.head() for log in self._held.values() if log.holder == worker]

    # -- for every replica

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """See `Store.expired`."""
        now = time.monotonic()
        wall = time.time()
        found = (
            replace(log.head(), lease=log.lease)
            for log in (*self._held.values(), *self._timed.values())
            if log.scope.agent in agents and log.expired(now, wall)
        )
        return [head for head, _ in zip(found, range(limit), strict=False)]

    async def revoke(
        self,
        head: Head,
        event: TaskStatusUpdateEvent | None,
        *,
        expired: bool = False,
        begun: bool = True,
        delay: float = 0.0,
        note: Entry | None = None,
    ) -> Head | None:
        """See `Store.revoke`."""
        return log_changes.revoke(
            self, head, event, expired=expired, begun=begun, delay=delay, note=note
        )

    async def wake(self, agents: Collection[str], limit: int) -> Mapping[str, int]:
        """See `Store.wake`."""
        now = time.time()
        tasks: list[str] = []
        others: list[str] = []
        while self._due and self._due[0][0] <= now and len(tasks) < limit:
            due, task = heappop(self._due)
            log = self._logs.get(task)
            if log is not None and log.due == due:
                (tasks if log.scope.agent in agents else others).append(task)
        for task in others:
            heappush(self._due, (self._logs[task].due, task))
        return log_changes.wake(self, tasks)

    async def wake_now(self, tasks: Collection[str]) -> Mapping[str, int]:
        """See `Store.wake_now`."""
        return log_changes.wake_now(self, tasks)

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """See `Store.moved`."""
        logs = self._logs
        return [
            task
            for task, version in places.items()
            if (log := logs.get(task)) is None or log.version != version
        ]

    async def census(self, agents: Collection[str]) -> Mapping[str, Census]:
        """See `Store.census`."""
        return {agent: self._count(agent) for agent in agents}

    def _count(self, agent: str) -> Census:
        tasks: Counter[TaskState] = Counter()
        for scope, index in self._indexes.items():
            if scope.agent == agent:
                tasks.update(index.tally())
        queue = [log for log in self._queues.get(agent, ()) if self._waits(log)]
        first = min((log.received(log.next_turn) for log in queue), key=_at, default=None)
        lines = [
            line.parked
            for log in self._logs.values()
            if log.lines and log.scope.agent == agent
            for line in log.lines.values()
            if line.cursor < log.last
        ]
        return Census(
            tasks=tasks,
            ready=len(queue),
            oldest=age(first) if first else 0.0,
            behind=lines.count(False),
            parked=lines.count(True),
            sleeping=sum(log.due > 0 and log.scope.agent == agent for log in self._logs.values()),
        )

    async def probe(self) -> None:
        """See `Store.probe`. Memory can always be written."""

    async def prune(self) -> int:
        """See `Store.prune`."""
        count = self._reservations.prune()
        if not self.retention:
            return count
        now = time.monotonic()
        old = []
        for task, ended in self._ended.items():
            if ended + self.retention > now:
                break
            if not self._logs[task].pending:
                old.append(task)
        for task in old:
            self._forget(self._logs[task])
        return count + len(old)

    # -- independent of tasks

    async def reserve(self, space: str, key: str, value: bytes, keep: float | None) -> bytes:
        """See `Store.reserve`."""
        return self.reserve_now(space, key, value, keep)

    def reserve_now(self, space: str, key: str, value: bytes, keep: float | None) -> bytes:
        """Do the same, for the admin interface."""
        return self._reservations.reserve(space, key, value, keep)

    async def reserved(self, space: str, key: str) -> bytes | None:
        """See `Store.reserved`."""
        return self._reservations.reserved_value(space, key)

    async def release(self, space: str, key: str) -> bool:
        """See `Store.release`."""
        return self.release_now(space, key)

    def release_now(self, space: str, key: str) -> bool:
        """Do the same, for the admin interface."""
        return self._reservations.release(space, key)

    async def reservations(
        self, space: str, prefix: str, after: str, limit: int
    ) -> Sequence[Reservation]:
        """See `Store.reservations`."""
        return self.listed(space, prefix, after, limit)

    def listed(self, space: str, prefix: str, after: str, limit: int) -> Sequence[Reservation]:
        """Do the same, for the admin interface."""
        return self._reservations.listed(space, prefix, after, limit)

    async def report(self, row: ProcessRow) -> None:
        """See `Store.report`."""
        self._reservations.reserve(FLEET, row.key, row_body(row), LIVES)

    def reports(self) -> Sequence[tuple[str, bytes, float]]:
        """The rows of processes: their keys, stored forms and times, by the Unix time."""
        offset, reserved = time.time() - time.monotonic(), self._reservations.reserved.copy()
        return sorted(
            (key, body, until + offset)
            for (space, key), (body, until) in reserved.items()
            if space == FLEET
        )

    # -- for the delivery of webhooks

    async def dispatch(
        self,
        agents: Collection[str],
        limit: int,
        lease: float,
        passing: Collection[Owner] = NOBODY,
    ) -> Sequence[WebhookCursor]:
        """See `Store.dispatch`."""
        return self._deliveries.take(agents, limit, lease, passing)

    async def dispatched(
        self,
        line: WebhookCursor,
        cursor: int,
        *,
        wait: float = 0.0,
        failed: str = "",
        parked: bool = False,
    ) -> bool:
        """See `Store.dispatched`."""
        return self._deliveries.record(line, cursor, wait=wait, failed=failed, parked=parked)

    async def undelivered(
        self, limit: int, *, parked: bool | None = None
    ) -> Sequence[WebhookCursor]:
        """See `Store.undelivered`."""
        return self._deliveries.waiting(limit, parked)

    async def redrive(self, task: str = "", webhook: str = "") -> int:
        """See `Store.redrive`."""
        return self.redrive_now(task, webhook)

    def redrive_now(self, task: str, webhook: str) -> int:
        """The same at once."""
        return self._deliveries.redrive(task, webhook)

    # -- inside

    def _future(self) -> asyncio.Future[Any]:
        return (self._loop or asyncio.get_running_loop()).create_future()

    def _find(self, scope: Scope, task: str) -> Log | None:
        log = self._logs.get(task)
        return log if log is not None and log.scope == scope else None

    # -- the transaction of `log_changes`: each change is done when its call returns

    @property
    def now(self) -> float:
        """The time of the leases: the machine's monotonic clock."""
        return time.monotonic()

    @property
    def wall(self) -> float:
        """The Unix time."""
        return time.time()

    def row(self, task: str) -> Log | None:
        """Return the log of this id."""
        return self._logs.get(task)

    claimed = row

    def mine(self, scope: Scope, task: str) -> Log:
        """Return a log of this scope that has begun. Raises TaskNotFound."""
        log = self._find(scope, task)
        if log is None or not log.born:
            raise TaskNotFound
        return log

    def add(self, scope: Scope, draft: Draft) -> Log:
        """Create a log. Raises LimitExceeded."""
        if len(self._logs) >= self.max_tasks:
            self._make_room()
        log = self._logs[draft.task] = Log(scope, draft)
        return log

    def room(self, row: Log, fresh: Sequence[Entry] = ()) -> None:
        """Do nothing: logs in memory are limited in number, not in size."""

    def receipt(self, scope: Scope, key: str) -> tuple[bytes, str, int] | None:
        """Return the digest, the task and the message number of an earlier request with this
        key."""
        return self._receipts.get((scope, key))

    def add_receipt(self, row: Log, receipt: Receipt, number: int) -> None:
        """Store the receipt of a request."""
        self._receipts[row.scope, receipt.key] = (receipt.digest, row.id, number)
        row.receipts = (*row.receipts, receipt.key)

    def touch(self, row: Log) -> None:
        """Update all views of a log."""
        if row.index is not None:
            row.index.move(row)
        elif row.born:
            self._add_to_index(row)
        if row.lines:
            self._deliveries.push(row)
        if row.due > 0:
            heappush(self._due, (row.due, row.id))
        if (row.deadline or row.cancel_at) and not row.holder and not row.ended:
            self._timed[row.id] = row
        elif self._timed:
            self._timed.pop(row.id, None)
        if row.holder:
            return
        if row.finished:
            for entry in row.replays:
                entry.event = stripped(entry.event)  # type: ignore[arg-type]
            row.finished = False
            row.replays = ()
        self._held.pop(row.id, None)
        if row.replied or row.state.terminal:
            self._waiting.pop(row.id, None)
            self._ended.setdefault(row.id, time.monotonic())
        elif row.ready if row.due or row.waits else row.inbox:
            self._waiting.pop(row.id, None)
            self._offer(row)
        elif row.state.interrupted:
            self._waiting[row.id] = row

    def add_webhook(self, row: Log, webhook: Webhook, cursor: int) -> None:
        """Add or replace a webhook."""
        self._deliveries.add(row, webhook, cursor)
        row.hooked = True
        row.version += 1

    def _waits(self, log: Log) -> bool:
        return log.ready and self._logs.get(log.id) is log

    def _offer(self, log: Log) -> None:
        if not log.holder and not log.queued:
            log.queued = True
            queue = self._queues.get(log.scope.agent)
            if queue is None:
                queue = self._queues[log.scope.agent] = Queue(self._ranks)
            queue.add(log)

    def _add_to_index(self, log: Log) -> None:
        index = self._indexes.get(log.scope)
        if index is None:
            index = self._indexes[log.scope] = TaskIndex(self._logs)
        index.add(log)

    def _make_room(self) -> None:
        """Delete the oldest ended task, or else the task that has waited longest for its client."""
        for task in self._ended:
            self._forget(self._logs[task])
            return
        for log in self._waiting.values():
            self._forget(log)
            return
        raise LimitExceeded(f"The store is full: {self.max_tasks} tasks are unfinished")

    def _forget(self, log: Log) -> None:
        del self._logs[log.id]
        if not self._conversations.remove(log) and self._values:
            self._values.pop((log.scope, log.context), None)
        for key in log.receipts:  # limited like the tasks; a longer memory needs a disk
            del self._receipts[log.scope, key]
        self._ended.pop(log.id, None)
        self._waiting.pop(log.id, None)
        self._deliveries.remove(log)
        self._held.pop(log.id, None)
        self._timed.pop(log.id, None)
        if log.index is not None:
            log.index.remove(log)
            if not log.index.live:
                del self._indexes[log.scope]


def _at(received: Received) -> str:
    return received.at


def store(settings: Settings) -> MemoryStore:
    """Make the store that the settings name. Raises ValueError."""
    kept = RETENTION if settings.retention is None else settings.retention
    return MemoryStore(**split(settings.store)[1], retention=kept)
