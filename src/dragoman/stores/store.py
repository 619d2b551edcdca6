"""The store: logs, receipts, claims and webhooks, and the only truth.

A log has one head row. Every append updates it in the transaction that writes the entries; a
worker's append is checked against its epoch there, a caller's against the state. All times are
the store's own, so that replicas need not agree on the clock.
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
from dragoman.model.conversation import Place as Place
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

GIVEN_UP = 1e-9
"""The lease of a claim that nobody can hold any more: its process is known to have ended."""
LARGE = 1024 * 1024
"""The bytes after which a read of entries is long enough."""
WRITTEN = 10.0
"""For so many seconds, a write that succeeded shows that the store can be written."""
PROBE = 64 * 1024
"""The bytes that are written to find out whether the store can be written again."""

PAGE_BYTES = 8 * 1024 * 1024
"""The bytes of logs after which a page of a listing is long enough."""

Owner: TypeAlias = tuple[str, str]
"""A tenant and an owner: who takes turns with others."""
NOBODY: frozenset[Owner] = frozenset()
MANY = sys.maxsize


def owner_of(scope: Scope) -> Owner:
    """Whose turn a log of this scope is, whichever agent it asks."""
    return scope.tenant, scope.owner


class Stale(Exception):
    """The claim is no longer the writer's: another epoch has begun."""


class Conflict(Exception):
    """The receipt's key has been used for another body."""


class UnknownEntry(Exception):
    """A log has an entry that only a newer version of this program understands."""


class Unreadable(Exception):
    """Something of a task is in the store and cannot be read."""

    def __init__(self, kind: str, task: str, why: object) -> None:
        self.kind, self.task, self.why = kind, task, str(why) or type(why).__name__
        super().__init__(f"task {task}: its {kind} cannot be read: {self.why}")


class Head(Struct, frozen=True, kw_only=True, gc=False):
    """The head row of a log, as it was when read."""

    id: str
    context: str
    scope: Scope
    state: TaskState
    skill: str
    last: int
    """The number of the last entry."""
    version: int
    """Grows with every change of the head, also those that log nothing."""
    born: bool
    """False while the agent may still answer without a task."""
    replied: bool
    """True when it did: there is no task."""
    epoch: int
    holder: str
    """The worker that has claimed the log, or empty."""
    turn: int
    """The message in work, or the last one that was."""
    unread: bool
    """A message waits for a turn."""
    settled: int
    """The last message that a terminal or interrupted status has answered."""
    attempt: int
    canceling: bool
    hooked: bool = False
    """A webhook follows it."""
    woken: bool = False
    """It is to be run although no message waits: its time has come, or it is to be canceled."""
    began: int = 0
    """The message that began the handler that is suspended; 0 if there is none."""
    private: int = 0
    """How many private entries the log has."""
    waits: int = 0
    """What a suspended handler waits for, see `Pause`; 0 if none is suspended."""
    reading: bool = False
    """The message in work is to be read again if its worker has stopped: its handler has not ended
    and is not suspended. Only if the log has private entries."""
    lease: float = 0.0
    """When the claim runs out, by the store's clock. To renew it does not change the version, so
    only `Store.expired` is sure to tell the current one."""

    @property
    def over(self) -> bool:
        """Nothing more will be written."""
        return self.replied or self.state.terminal

    def answers(self, number: int) -> bool:
        """Whether the message of this number has its answer."""
        return self.over or self.settled >= number

    def ending(self, state: TaskState, text: str = "") -> TaskStatusUpdateEvent:
        """How the task ends when it is not its handler that ends it."""
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
"""Stands for the time at which a task is to run, when that has come."""
NOTIFIED = -2.0
"""The same for a notification that came while the handler ran: if it then waits for one, it goes on
at once."""
TIME, MESSAGE, NOTIFICATION, WRITER = 1, 2, 3, 4
"""What a suspended handler waits for: a time; a message (until a time); a notification (until a
time); or, when it was handed over, somebody outside who writes its end."""
UNTIMED = (0, MESSAGE)
"""Only what waits for one of these reads a message when it is claimed."""
STEP = "step"
"""The kind of a private entry that is progress."""


class Pause(Struct, frozen=True):
    """How a handler is suspended."""

    waits: int
    """TIME, MESSAGE, NOTIFICATION or WRITER."""
    began: int
    """The message that began it."""
    seconds: float = 0.0
    """After how many seconds it goes on at the latest; 0 if a message alone wakes it."""
    timeout: float = 0.0
    """How many seconds it has in all, from its first pause on; for a WRITER, from this one on."""


CANCEL_RECEIPT = 1
"""A receipt names a message of its task; that of a cancel names the first."""


class Receipt(Struct, frozen=True):
    """A send or cancel that may come again: the same key and digest is the same request."""

    key: str
    digest: bytes


class Webhook(Struct, frozen=True):
    """A push config, and the dialect of the client that registered it."""

    config: TaskPushNotificationConfig
    version: str = "1.0"


class WebhookCursor(Struct, frozen=True, kw_only=True):
    """One webhook's way through one log, as it was when read."""

    scope: Scope
    task: str
    webhook: Webhook
    cursor: int
    """The last entry that is behind it."""
    attempts: int = 0
    """How often the next one has failed."""
    due: float = 0.0
    """Not to be taken before this (Unix time)."""
    parked: bool = False
    """It was given up, until it is redriven."""
    reason: str = ""
    """What went wrong last."""
    ticket: int = 0
    """Grows when it is taken: a result with another one comes too late."""


class Draft(Struct, frozen=True, kw_only=True, gc=False):
    """A message to be accepted, with all that is written in its transaction."""

    task: str
    received: Received
    new: bool
    born: bool = True
    receipt: Receipt | None = None
    webhook: Webhook | None = None
    full: str = ""
    """Why nothing new may begin; a send that has come before is answered all the same."""


class Accepted(Struct, frozen=True, gc=False):
    """Where an accepted message went."""

    head: Head
    number: int
    received: Received
    fresh: bool
    """False if a receipt said that it had come before."""


class Claim(Struct, frozen=True, kw_only=True, gc=False):
    """The right to work on one message of one log, as long as the epoch lasts."""

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
        """How often the message has been worked on, this time included."""
        return self.head.attempt


class Record(Struct, frozen=True, gc=False):
    """A task folded from its log, and the head it was folded at."""

    task: Task
    head: Head


class Query(Struct, frozen=True, kw_only=True):
    """Which tasks of a scope, the latest status first."""

    context: str = ""
    state: TaskState | None = None
    since: str = ""
    size: int = 50
    cursor: tuple[str, str] | None = None
    """The status time and id of the last task of the page before."""
    artifacts: bool = True
    """Whether the artifacts are asked for; a store may leave them out otherwise."""


class Page(Struct, frozen=True, gc=False):
    """One page of a listing."""

    tasks: Sequence[Task]
    cursor: tuple[str, str] | None
    total: int


class Renewal(Struct, frozen=True):
    """What a worker learns about its claims: which are lost, which are to be canceled."""

    lost: Collection[str]
    canceling: Collection[str]


class Census(Struct, frozen=True, kw_only=True):
    """What there is of one agent, of all owners together."""

    tasks: Mapping[TaskState, int] = {}
    """How many born tasks are in each state; a state that none is in may be missing."""
    ready: int = 0
    """How many logs have an unread message and no worker: the queue."""
    oldest: float = 0.0
    """How many seconds ago the unread message of the next one in that queue was received (its
    `Received.at`), or that of the oldest task in it, if that is longer; 0 if nothing waits."""
    behind: int = 0
    """How many webhook lines have something to deliver, but for those that are parked."""
    parked: int = 0
    """How many have something to deliver and were given up."""
    aside: int = 0
    """How many tasks are set aside, since their head cannot be read."""
    sleeping: int = 0
    """How many tasks have a handler that goes on at a later time."""


class Store(Protocol):
    """What every backend does, in one transaction per call."""

    id: str
    """Tells it from all others, once it is open; the same for all who share it."""
    url: str
    """Where it is, as the setting `store` says it."""
    name: str
    """The same for people: a file or an address, without secrets."""
    bell: str
    """The URL of the bell that replicas use if the setting `bell` names none; `memory:` if there
    are no replicas, or if they can only poll."""
    shared: bool
    """Whether other processes can work on its tasks while this one has it open."""
    unreadable: Mapping[str, int]
    """How often something was found here that could not be read, by its kind."""

    @property
    def admin(self) -> Make | None:
        """Opens the admin interface, which `dragoman db` uses; None if it has none. The store need
        not be open."""

    async def open(self) -> None:
        """Make ready; constructors do no I/O."""

    async def close(self) -> None:
        """Let go of all resources."""

    # -- for callers: every call is within a scope

    def accept(self, scope: Scope, draft: Draft) -> asyncio.Future[Accepted]:
        """Begin to append a message; a claim that is begun after it finds it. TaskNotFound,
        UnsupportedOperation (ended), LimitExceeded, Conflict."""

    async def head(self, scope: Scope, task: str) -> Head | None:
        """The head, also of a log that is not born."""

    async def load(self, scope: Scope, task: str) -> Record | None:
        """The task, once it is born."""

    async def read(self, scope: Scope, task: str, after: int, limit: int) -> Sequence[Entry] | None:
        """Entries after a place, in order; None if there is no such log. Fewer than `limit` are
        all that there are, unless they are LARGE together."""

    async def list(self, scope: Scope, query: Query) -> Page:
        """A page of born tasks: fewer than were asked for, but at least one, where they are
        PAGE_BYTES together."""

    async def messages(
        self, scope: Scope, context: str, before: Place, limit: int, task: str = ""
    ) -> Sequence[Place]:
        """The latest messages of a context that were accepted before the given one, the latest
        first; those of one task, if it is named. Also those that were answered directly."""

    async def tally(self, scope: Scope) -> Mapping[TaskState, int]:
        """How many born tasks there are in each state."""

    async def find(self, agent: str, task: str) -> Head | None:
        """The head of a task of this agent, whoever owns it: for those who show a secret that the
        task's log knows."""

    async def owner(self, scope: Scope, task: str) -> str | None:
        """Whose task this is, of the same agent and tenant; None if there is no such task."""

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
        """Log the request. An unclaimed task is canceled at once; a claimed one, and one whose
        handler has something to `undo`, after `grace`. With a receipt that is known already
        nothing is done. TaskNotFound, TaskNotCancelable, Conflict."""

    async def put_webhook(self, scope: Scope, webhook: Webhook) -> None:
        """Create or replace; TaskNotFound."""

    async def webhooks(self, scope: Scope, task: str) -> Sequence[Webhook]:
        """All webhooks of a task, in order of id; TaskNotFound."""

    async def delete_webhook(self, scope: Scope, task: str, webhook: str) -> None:
        """Idempotent; TaskNotFound."""

    # -- for workers: a claim is the authority

    def claim(
        self,
        agents: Collection[str],
        worker: str,
        lease: float,
        limit: int,
        passing: Collection[Owner] = NOBODY,
        spare: int = MANY,
    ) -> asyncio.Future[Sequence[Claim]]:
        """Begin to take up to `limit` logs of these agents that have an unread message. Owners
        take turns; those that are passed over get only what nobody else waits for, and at most
        `spare` of that. Fewer than `limit` are otherwise all that wait."""

    async def private(self, scope: Scope, task: str) -> Sequence[Entry]:
        """The private entries of a log, in order; UnknownEntry if a newer version wrote one."""

    def append(
        self,
        claim: Claim,
        entries: Sequence[Entry],
        *,
        release: bool = False,
        pause: Pause | None = None,
    ) -> asyncio.Future[bool]:
        """Begin to append; appends of one claim land in the order of the calls. The entries get
        their numbers here. The future has whether more messages wait, or Stale. `completed`
        becomes `working` while they do. A terminal status ends the epoch. With `release` the
        turn is over: its message counts as read, the claim ends. With a `pause` the same, but
        its handler goes on later."""

    async def context_value(self, claim: Claim) -> ContextValue | None:
        """The private value of the context of a claim's task; it belongs to the task's scope.
        UnknownEntry if it is encrypted and the key is missing."""

    async def save_context(self, claim: Claim, value: bytes, version: int, key: str) -> int:
        """Replace that value, if it still has this version (0: there is none) or was saved under
        this key; its new version. It is kept until the last log of the context is forgotten. Stale,
        ContextChanged."""

    async def renew(self, claims: Collection[Claim], lease: float) -> Renewal:
        """Prolong the leases."""

    async def held(self, worker: str) -> Sequence[Head]:
        """All that this worker has claimed and not let go."""

    # -- for every serving replica

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """Logs of these agents whose lease, grace after a cancel, or deadline has run out."""

    async def revoke(
        self,
        head: Head,
        event: TaskStatusUpdateEvent | None,
        *,
        expired: bool = False,
        begun: bool = True,
        delay: float = 0.0,
    ) -> Head | None:
        """End the epoch of this head, if it is still the current one, and, with `expired`, if its
        time has still run out: with a terminal event, or without one to let another worker try
        again, after `delay` seconds. What was not `begun` has cost no attempt."""

    async def wake(self, agents: Collection[str], limit: int) -> Mapping[str, int]:
        """Make up to `limit` tasks of these agents ready whose time has come: how many of each
        agent that has some."""

    async def wake_now(self, tasks: Collection[str]) -> Mapping[str, int]:
        """Make those of these tasks ready that wait for a notification, or whose turn was
        postponed: how many of each agent that has some."""

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """Those of these logs whose head has another version than the given one, or is gone."""

    async def census(self, agents: Collection[str]) -> Mapping[str, Census]:
        """What there is of each of these agents, also of those that have nothing. It is for
        figures, asked for every few seconds at most: it may count, but must hold up neither the
        event loop nor those who write."""

    async def probe(self) -> None:
        """Find out whether the store can be written: by the latest write, or, if that failed or
        was more than WRITTEN seconds ago, by a small write that leaves nothing. Unavailable."""

    async def prune(self) -> int:
        """Forget what has outlived its age and has nothing to deliver; how many tasks that
        were. Called again at once while it finds some."""

    # -- for those who deliver

    async def dispatch(
        self,
        agents: Collection[str],
        limit: int,
        lease: float,
        passing: Collection[Owner] = NOBODY,
    ) -> Sequence[WebhookCursor]:
        """Take lines that are due, for the time of a lease; none of the owners that are passed
        over. When more are due than `limit`, owners take turns for at least half of them."""

    async def dispatched(
        self,
        line: WebhookCursor,
        cursor: int,
        *,
        wait: float = 0.0,
        failed: str = "",
        parked: bool = False,
    ) -> bool:
        """Record how far a taken line has come, what failed, and that it is not to be taken
        again before `wait` is over, or, parked, before it is redriven. False if it is not the
        taker's any more: it was deleted, replaced, or taken by another."""

    async def undelivered(
        self, limit: int, *, parked: bool | None = None
    ) -> Sequence[WebhookCursor]:
        """For the operator: lines with something to deliver, those of every owner."""

    async def redrive(self, task: str = "", webhook: str = "") -> int:
        """Let parked lines go on at once: all, those of a task, or one; how many that were."""
