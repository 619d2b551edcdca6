"""The protocol of a store. It holds logs, receipts, claims and webhooks, and is the only truth.

A log has one head row. Every append updates it in the transaction that writes the entries. The
append of a worker is checked against the epoch in the row, that of a caller against the state. All
times are the store's own, so replicas need not agree on the time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from dragoman.model import clock
from dragoman.model.caller import Scope
from dragoman.model.conversation import ContextValue as ContextValue
from dragoman.model.conversation import MessagePlace as MessagePlace
from dragoman.model.events import CancelRequested, Entry, Received
from dragoman.model.types import (
    Message,
    Part,
    Role,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

if TYPE_CHECKING:
    from dragoman.stores.admin import Make
    from dragoman.stores.process_rows import ProcessRow
    from dragoman.stores.reservations import Reservation

GIVEN_UP = 1e-9
"""The lease of a claim whose process is known to have ended."""
LARGE = 1024 * 1024
"""The size in bytes at which a read of entries ends."""
WRITTEN = 10.0
"""After a successful write, the store counts as writable for this many seconds."""
PROBE = 64 * 1024
"""How many bytes are written to test whether the store is writable again."""

PAGE_BYTES = 8 * 1024 * 1024
"""The size in bytes of the logs at which a page of a listing ends."""

Owner: TypeAlias = tuple[str, str]
"""A tenant and an owner. Owners take turns."""
NOBODY: frozenset[Owner] = frozenset()
MANY = sys.maxsize


def owner_of(scope: Scope) -> Owner:
    """Return the owner of a scope. It is the same for all agents."""
    return scope.tenant, scope.owner


class Stale(Exception):
    """The claim has ended: another epoch has begun."""


class Conflict(Exception):
    """The key of the receipt was used for a different request."""


class UnknownEntry(Exception):
    """A log has an entry that only a newer version of this program understands."""


class Unreadable(Exception):
    """A stored part of a task is not readable."""

    def __init__(self, kind: str, task: str, why: object) -> None:
        self.kind, self.task, self.why = kind, task, str(why) or type(why).__name__
        super().__init__(f"task {task}: its {kind} cannot be read: {self.why}")


class Head(Struct, frozen=True, kw_only=True, gc=False):
    """The head row of a log, as it was when it was read."""

    id: str
    context: str
    scope: Scope
    state: TaskState
    skill: str
    last: int
    """The number of the last entry."""
    version: int
    """Increases with every change of the head, also if nothing is logged."""
    born: bool
    """False while the agent may still answer without a task."""
    replied: bool
    """True if the agent has answered without a task."""
    epoch: int
    holder: str
    """The worker that has claimed the log, or empty."""
    turn: int
    """The message in work, or the last one that was."""
    unread: bool
    """Whether a message waits for a turn."""
    settled: int
    """The last message that a terminal or interrupted status has answered."""
    attempt: int
    canceling: bool
    hooked: bool = False
    """Whether the log has a webhook."""
    woken: bool = False
    """Whether the task must run although no message waits: its time has come, or it is being
    canceled."""
    began: int = 0
    """The message that started the suspended handler; 0 if none is suspended."""
    private: int = 0
    """The number of private entries in the log."""
    waits: int = 0
    """What a suspended handler waits for, see `Pause`; 0 if none is suspended."""
    deadline: float = 0.0
    """By when it must have ended, by the store's clock; 0 if none is suspended."""
    reading: bool = False
    """Whether another worker must read the message in work again if its worker stops: the handler
    has neither ended nor been suspended. Only if the log has private entries."""
    lease: float = 0.0
    """When the claim expires, by the store's clock. A renewal does not change the version, so only
    `Store.expired` knows the current value."""

    @property
    def over(self) -> bool:
        """Whether the log is complete."""
        return self.replied or self.state.terminal

    def answers(self, number: int) -> bool:
        """Whether the message with this number has been answered."""
        return self.over or self.settled >= number

    def ending(self, state: TaskState, text: str = "") -> TaskStatusUpdateEvent:
        """Return the event that ends the task when something other than its handler ends it."""
        message = None
        if text:
            message = Message(
                message_id=clock.uuid7(),
                context_id=self.context,
                task_id=self.id,
                role=Role.AGENT,
                parts=(Part(text=text),),
            )
        status = TaskStatus(state=state, message=message, timestamp=clock.now())
        return TaskStatusUpdateEvent(task_id=self.id, context_id=self.context, status=status)


WOKEN = -1.0
"""Replaces the time at which a task must run, when that time has come."""
NOTIFIED = -2.0
"""The same for a notification that arrived while the handler ran. If the handler then waits for
one, it continues at once."""
TIME, MESSAGE, NOTIFICATION, WRITER = 1, 2, 3, 4
"""What a suspended handler waits for: a time; a message, or a time limit; a notification, or a time
limit; or, after a handover, a write from outside."""
UNTIMED = (0, MESSAGE)
"""A claim reads a message only if the handler waits for one of these."""
STEP = "step"
"""The kind of a private entry that shows progress."""


class Pause(Struct, frozen=True):
    """How a handler is suspended."""

    waits: int
    """TIME, MESSAGE, NOTIFICATION or WRITER."""
    began: int
    """The message that started the handler."""
    seconds: float = 0.0
    """It continues after this many seconds at the latest; 0 if only a message wakes it."""
    timeout: float = 0.0
    """How many seconds it has in total since its first pause; for a WRITER, since this pause."""


CANCEL_RECEIPT = 1
"""A receipt names a message of its task; the receipt of a cancel names the first one."""


class Receipt(Struct, frozen=True):
    """A send or cancel that may be repeated. The same key and digest is the same request."""

    key: str
    digest: bytes


class Webhook(Struct, frozen=True):
    """A webhook configuration, and the version of the client that registered it."""

    config: TaskPushNotificationConfig
    version: str = "1.0"


class WebhookCursor(Struct, frozen=True, kw_only=True):
    """How far one webhook has come in one log, as it was when it was read."""

    scope: Scope
    task: str
    webhook: Webhook
    cursor: int
    """The last delivered entry."""
    attempts: int = 0
    """How often the next entry has failed."""
    due: float = 0.0
    """The earliest time of the next attempt (Unix time)."""
    parked: bool = False
    """Whether delivery has failed for good, until it is redriven."""
    reason: str = ""
    """The last error."""
    ticket: int = 0
    """Increases with every lease, so that the result of an older lease is ignored."""


class Draft(Struct, frozen=True, kw_only=True, gc=False):
    """A message to accept, with everything that its transaction writes."""

    task: str
    received: Received
    new: bool
    born: bool = True
    receipt: Receipt | None = None
    webhook: Webhook | None = None
    full: str = ""
    """Why nothing new may start. A repeated send is answered anyway."""


class Accepted(Struct, frozen=True, gc=False):
    """The result of accepting a message."""

    head: Head
    number: int
    received: Received
    fresh: bool
    """False if a receipt shows that the message was accepted before."""


class Claim(Struct, frozen=True, kw_only=True, gc=False):
    """The right to work on one message of one log, until the epoch ends."""

    head: Head
    task: Task
    received: Received

    @property
    def turn(self) -> int:
        """The number of the message."""
        return self.head.turn

    @property
    def epoch(self) -> int:
        """How often the log has been claimed."""
        return self.head.epoch

    @property
    def attempt(self) -> int:
        """How often this message has been worked on, including this time."""
        return self.head.attempt


class Record(Struct, frozen=True, gc=False):
    """A task, folded from its log, and its head at that time."""

    task: Task
    head: Head


class Query(Struct, frozen=True, kw_only=True):
    """Filters for the tasks of a scope. The latest status comes first."""

    context: str = ""
    state: TaskState | None = None
    since: str = ""
    size: int = 50
    cursor: tuple[str, str] | None = None
    """The status time and id of the last task on the page before."""
    artifacts: bool = True
    """Whether artifacts are requested. Otherwise a store may leave them out."""


class Page(Struct, frozen=True, gc=False):
    """One page of a listing."""

    tasks: Sequence[Task]
    cursor: tuple[str, str] | None
    total: int


class Renewal(Struct, frozen=True):
    """What a worker learns about its claims: the lost ones, and those to cancel."""

    lost: Collection[str]
    canceling: Collection[str]


class Census(Struct, frozen=True, kw_only=True):
    """Numbers about one agent, for all its owners together."""

    tasks: Mapping[TaskState, int] = {}
    """How many tasks that have begun are in each state. A state without tasks may be missing."""
    ready: int = 0
    """How many logs have an unread message and no worker: the length of the queue."""
    oldest: float = 0.0
    """How many seconds ago the unread message of the next task in the queue was received (its
    `Received.at`), or that of the oldest task in the queue, whichever is longer; 0 if nothing
    waits."""
    behind: int = 0
    """How many webhooks have undelivered events, without the parked ones."""
    parked: int = 0
    """How many parked webhooks have undelivered events."""
    aside: int = 0
    """How many tasks are set aside, because their heads are not readable."""
    sleeping: int = 0
    """How many tasks have a handler that continues later."""


class Store(Protocol):
    """The methods of every store. Each call is one transaction."""

    id: str
    """The id of the store, once it is open. All processes that share the store see the same id."""
    url: str
    """Its URL, as in the setting `store`."""
    name: str
    """Its name for people: a file or an address, without secrets."""
    bell: str
    """The URL of the bell that replicas use if the setting `bell` names none; `memory:` if there
    are no replicas, or if replicas only poll."""
    shared: bool
    """Whether other processes can work on its tasks while this process has it open."""
    unreadable: Mapping[str, int]
    """How often this process found something that was not readable, by kind."""

    @property
    def admin(self) -> Make | None:
        """Open the admin interface, which `dragoman db` uses; None if there is none. The store need
        not be open."""

    async def open(self) -> None:
        """Open the store. Constructors do no I/O."""

    async def close(self) -> None:
        """Release all resources."""

    # -- for callers: every call is within a scope

    def accept(self, scope: Scope, draft: Draft) -> asyncio.Future[Accepted]:
        """Start to append a message. A claim that starts later sees it. Raises TaskNotFound,
        UnsupportedOperation (the task has ended), LimitExceeded or Conflict."""

    async def head(self, scope: Scope, task: str) -> Head | None:
        """Return the head, also of a log whose task has not begun."""

    async def load(self, scope: Scope, task: str) -> Record | None:
        """Return the task, once it has begun."""

    async def read(self, scope: Scope, task: str, after: int, limit: int) -> Sequence[Entry] | None:
        """Return the entries after a number, in order; None if there is no such log. If there are
        fewer than `limit` and they are smaller than LARGE, there are no more."""

    async def list(self, scope: Scope, query: Query) -> Page:
        """Return a page of tasks that have begun. It ends after PAGE_BYTES, but has at least one
        task."""

    async def messages(
        self, scope: Scope, context: str, before: MessagePlace, limit: int, task: str = ""
    ) -> Sequence[MessagePlace]:
        """Return the latest messages of a context that were accepted before the given one, latest
        first; with `task`, only those of this task. Includes messages that got a direct reply."""

    async def tally(self, scope: Scope) -> Mapping[TaskState, int]:
        """Count the tasks that have begun, by state."""

    async def find(self, agent: str, task: str) -> Head | None:
        """Return the head of a task of this agent, of any owner. This is for requests that show
        a secret of the task."""

    async def owner(self, scope: Scope, task: str) -> str | None:
        """Return the owner of a task of the same agent and tenant; None if there is no such
        task."""

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
        """Log a cancel request. A task without a worker is canceled at once. A task with a worker,
        or with something to `undo`, is canceled after `grace`. If the receipt exists already,
        nothing changes. Raises TaskNotFound, TaskNotCancelable or Conflict."""

    async def put_webhook(self, scope: Scope, webhook: Webhook) -> None:
        """Create or replace a webhook. Raises TaskNotFound."""

    async def webhooks(self, scope: Scope, task: str) -> Sequence[Webhook]:
        """Return all webhooks of a task, ordered by id. Raises TaskNotFound."""

    async def delete_webhook(self, scope: Scope, task: str, webhook: str) -> None:
        """Delete a webhook, if it exists. Raises TaskNotFound."""

    # -- for workers: a claim is the permission

    def claim(
        self,
        agents: Collection[str],
        worker: str,
        lease: float,
        limit: int,
        passing: Collection[Owner] = NOBODY,
        spare: int = MANY,
    ) -> asyncio.Future[Sequence[Claim]]:
        """Start to claim up to `limit` logs of these agents with an unread message. Owners take
        turns. Owners in `passing` get only what no other owner waits for, and at most `spare` logs.
        If there are fewer than `limit`, no more logs wait."""

    async def private(self, scope: Scope, task: str) -> Sequence[Entry]:
        """Return the private entries of a log, in order. Raises UnknownEntry if a newer version
        wrote one."""

    def append(
        self,
        claim: Claim,
        entries: Sequence[Entry],
        *,
        release: bool = False,
        pause: Pause | None = None,
    ) -> asyncio.Future[bool]:
        """Start to append. The appends of one claim are written in the order of the calls, and
        their entries get numbers here. The result is whether more messages wait, or Stale. While
        messages wait, `completed` becomes `working`. A terminal status ends the epoch. With
        `release` the turn is over: its message counts as read, and the claim ends. With `pause`
        too, but the handler continues later."""

    async def context_value(self, claim: Claim) -> ContextValue | None:
        """Return the private value of the context of a claim's task, within the task's scope.
        Raises UnknownEntry if it is encrypted and the key is missing."""

    async def save_context(self, claim: Claim, value: bytes, version: int, key: str) -> int:
        """Replace this value if it still has this version (0 if there is none), or was saved under
        this key. Returns its new version. The value is kept until the last log of the context is
        deleted. Raises Stale or ContextChanged."""

    async def renew(self, claims: Collection[Claim], lease: float) -> Renewal:
        """Extend the leases."""

    async def held(self, worker: str) -> Sequence[Head]:
        """Return all claims of this worker."""

    # -- for every replica that serves

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """Return the logs of these agents whose lease, grace period of a cancel, or deadline has
        expired."""

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
        """End the epoch of this head if it is still the current one and, with `expired`, its time
        is still over. Writes a terminal event, or lets another worker try again after `delay`
        seconds. If the turn had not `begun`, this does not count as an attempt. The private entry
        `note` is written before the event."""

    async def wake(self, agents: Collection[str], limit: int) -> Mapping[str, int]:
        """Make up to `limit` tasks of these agents ready whose time has come. Returns how many per
        agent."""

    async def wake_now(self, tasks: Collection[str]) -> Mapping[str, int]:
        """Make those of these tasks ready that wait for a notification, or whose turn was
        postponed. Returns how many per agent."""

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """Return those of these logs whose head has another version than the given one, or is
        gone."""

    async def census(self, agents: Collection[str]) -> Mapping[str, Census]:
        """Return the numbers of each of these agents, for metrics. It is called every few seconds
        at most, so it may count, but it must block neither the event loop nor writers."""

    async def probe(self) -> None:
        """Find out whether the store is writable: by the latest write or, if that failed or is more
        than WRITTEN seconds old, by a small write that leaves nothing behind. Raises
        Unavailable."""

    async def prune(self) -> int:
        """Delete tasks that are older than `retention` and have nothing to deliver, and at times
        reservations that have expired. Returns how many. The caller repeats it while it finds
        some."""

    # -- independent of tasks

    async def reserve(self, space: str, key: str, value: bytes, keep: float | None) -> bytes:
        """Return the value that is reserved under this space and key. If there is none, or it has
        expired, it is the given one from now on, for `keep` seconds by the store's clock; None is
        for ever. The caller has checked the arguments (`check_reservation`). Raises Unavailable,
        also if the value is encrypted and the key is missing."""

    async def reserved(self, space: str, key: str) -> bytes | None:
        """Return the value that is reserved under this space and key; None if there is none, or if
        it has expired. Raises UnreadableReservation and Unavailable."""

    async def release(self, space: str, key: str) -> bool:
        """Delete the value that is reserved under this space and key. Returns whether there was
        one. Raises Unavailable."""

    async def reservations(
        self, space: str, prefix: str, after: str, limit: int
    ) -> Sequence[Reservation]:
        """Return up to `limit` reservations of a space whose keys begin with `prefix` and come
        after the key `after`, in the order of their keys, by code point. Raises
        UnreadableReservation and Unavailable."""

    async def report(self, row: ProcessRow) -> None:
        """Keep a row about a process under its key for an hour by the store's clock, unencrypted.
        `StoreAdmin.fleet` returns it. Raises Unavailable."""

    # -- for the delivery of webhooks

    async def dispatch(
        self,
        agents: Collection[str],
        limit: int,
        lease: float,
        passing: Collection[Owner] = NOBODY,
    ) -> Sequence[WebhookCursor]:
        """Lease webhooks that are due, except those of the owners in `passing`. If more are due
        than `limit`, owners take turns for at least half of them."""

    async def dispatched(
        self,
        line: WebhookCursor,
        cursor: int,
        *,
        wait: float = 0.0,
        failed: str = "",
        parked: bool = False,
    ) -> bool:
        """Record how far a leased webhook has come, the error, and that it must not be leased
        before `wait` seconds have passed, or, if `parked`, before it is redriven. Returns False if
        the lease was lost: the webhook was deleted, replaced or leased by another process."""

    async def undelivered(
        self, limit: int, *, parked: bool | None = None
    ) -> Sequence[WebhookCursor]:
        """Return webhooks with undelivered events, of all owners, for operators."""

    async def redrive(self, task: str = "", webhook: str = "") -> int:
        """Resume parked webhooks at once: all, those of a task, or one. Returns how many there
        were."""
