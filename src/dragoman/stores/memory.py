"""Logs in this process. It promises nothing beyond the process, and is bounded in count and age."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from dragoman import clock
from dragoman.caller import Scope
from dragoman.errors import (
    LimitExceeded,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.events import CancelRequested, Entry
from dragoman.lifecycle import IllegalEvent
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
    Stale,
    Webhook,
)
from dragoman.stores.log import Log, Shelf
from dragoman.types import TaskState, TaskStatusUpdateEvent

UNREAD = 1000
"""The most messages that may wait for their turn in one task."""


class MemoryStore:
    """The store without a disk."""

    def __init__(self, *, max_tasks: int = 50_000, task_age: float = 24 * 3600.0) -> None:
        self.max_tasks = max_tasks
        self.task_age = task_age
        self._logs: dict[str, Log] = {}
        self._shelves: dict[Scope, Shelf] = {}
        self._queues: dict[str, deque[Log]] = {}
        self._next = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: dict[str, Log] = {}
        self._ended: dict[str, float] = {}  # in order of their end
        self._waiting: dict[str, Log] = {}  # in order of their question
        self._receipts: dict[tuple[Scope, str], tuple[bytes, str, int]] = {}

    async def open(self) -> None:
        """Only the loop to know: asking for it each time is a system call before Python 3.12."""
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """What is here stays until the process ends."""
        self._loop = None

    # -- for callers

    async def accept(self, scope: Scope, draft: Draft) -> Accepted:
        """See `Store.accept`."""
        receipt = draft.receipt
        if receipt is not None and (known := self._receipts.get((scope, receipt.key))):
            digest, task, number = known
            if digest != receipt.digest:
                raise Conflict(receipt.key)
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
            if len(log.inbox) >= UNREAD:
                raise LimitExceeded(f"{UNREAD} messages wait for their turn in this task")
        number = log.write(Entry(0, draft.received))
        log.inbox += (number,)
        log.skill = draft.received.skill
        if draft.webhook is not None:
            log.keep(draft.webhook)
        if receipt is not None:
            self._receipts[scope, receipt.key] = (receipt.digest, log.id, number)
            log.receipts = (*log.receipts, receipt.key)
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

    async def read(self, scope: Scope, task: str, after: int, limit: int) -> Sequence[Entry] | None:
        """See `Store.read`."""
        log = self._find(scope, task)
        return None if log is None else log.entries[after : after + limit]

    async def list(self, scope: Scope, query: Query) -> Page:
        """See `Store.list`."""
        shelf = self._shelves.get(scope)
        if shelf is None:
            return Page((), None, 0)
        logs = list(islice(shelf.matching(query, query.cursor), query.size + 1))
        cursor = None
        if len(logs) > query.size:
            logs.pop()
            cursor = (logs[-1].changed, logs[-1].id)
        return Page([log.task() for log in logs], cursor, shelf.total(query))

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
        self._born(scope, webhook.config.task_id).keep(webhook)

    async def webhooks(self, scope: Scope, task: str) -> Sequence[Webhook]:
        """See `Store.webhooks`."""
        found = self._born(scope, task).webhooks or {}
        return [found[key] for key in sorted(found)]

    async def delete_webhook(self, scope: Scope, task: str, webhook: str) -> None:
        """See `Store.delete_webhook`."""
        (self._born(scope, task).webhooks or {}).pop(webhook, None)

    # -- for workers

    def claim(
        self, agents: Collection[str], worker: str, lease: float, limit: int
    ) -> asyncio.Future[Sequence[Claim]]:
        """See `Store.claim`. Here they are taken when the call returns."""
        future: asyncio.Future[Sequence[Claim]] = self._future()
        claims: list[Claim] = []
        queues = [queue for agent in agents if (queue := self._queues.get(agent))]
        while queues and len(claims) < limit:
            # one of each in turn, so that a busy agent does not starve the others
            queue = queues[self._next % len(queues)]
            self._next += 1
            log = queue.popleft()
            if not queue:
                queues.remove(queue)
            log.queued = False
            if log.holder or not log.inbox or self._logs.get(log.id) is not log:
                continue
            claims.append(log.claim(worker, time.monotonic() + lease))
            self._held[log.id] = log
        future.set_result(claims)
        return future

    def append(
        self, claim: Claim, entries: Sequence[Entry], *, release: bool = False
    ) -> asyncio.Future[bool]:
        """See `Store.append`. Here it has landed when the call returns."""
        future: asyncio.Future[bool] = self._future()
        log = self._logs.get(claim.head.id)
        if log is None or log.epoch != claim.epoch:
            future.set_exception(Stale(claim.head.id))
            return future
        more = len(log.inbox) > 1
        for entry in entries:
            event = entry.event
            if (
                more
                and type(event) is TaskStatusUpdateEvent
                and event.status.state is TaskState.COMPLETED
            ):
                status = replace(event.status, state=TaskState.WORKING)
                entry = Entry(0, replace(event, status=status), claim.turn)
            try:
                log.write(entry)
            except IllegalEvent as error:
                future.set_exception(error)
                break
        if entries:
            self._settle(log)
        if release and log.holder:
            self._release(log, read=True)
        if not future.done():
            future.set_result(more and not log.state.terminal)
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
        return len(old)

    # -- inside

    def _future(self) -> asyncio.Future[Any]:
        return (self._loop or asyncio.get_running_loop()).create_future()

    def _find(self, scope: Scope, task: str) -> Log | None:
        log = self._logs.get(task)
        return log if log is not None and log.scope == scope else None

    def _born(self, scope: Scope, task: str) -> Log:
        log = self._find(scope, task)
        if log is None or not log.born:
            raise TaskNotFound
        return log

    def _write(self, log: Log, entry: Entry) -> None:
        log.write(entry)
        self._settle(log)

    def _settle(self, log: Log) -> None:
        """Bring all views of the head in step with what was written."""
        if not log.born and not log.replied:
            log.born = True
            self._shelve(log)
        elif log.shelf is not None:
            log.shelf.move(log)
        if log.state.terminal or log.replied:
            self._end(log)

    def _end(self, log: Log) -> None:
        log.inbox = ()
        self._release(log, read=False)
        self._waiting.pop(log.id, None)
        self._ended[log.id] = time.monotonic()

    def _release(self, log: Log, *, read: bool) -> None:
        log.holder = ""
        log.epoch += 1
        log.version += 1
        self._held.pop(log.id, None)
        if read and log.inbox:
            log.inbox = log.inbox[1:]
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

    def _shelve(self, log: Log) -> None:
        shelf = self._shelves.get(log.scope)
        if shelf is None:
            shelf = self._shelves[log.scope] = Shelf(self._logs)
        shelf.add(log)

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
        for key in log.receipts:  # bounded like the tasks; a longer memory needs a disk
            del self._receipts[log.scope, key]
        self._ended.pop(log.id, None)
        self._waiting.pop(log.id, None)
        self._held.pop(log.id, None)
        if log.shelf is not None:
            log.shelf.remove(log)
            if not log.shelf.live:
                del self._shelves[log.scope]
