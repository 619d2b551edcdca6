"""The head row of a log, and the rules for its changes, which are the same in all stores.

A store finds the row, applies one of these rules, and writes the row and its new entries in one
transaction. A rule refuses before it changes anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.model import clock
from dragoman.model.caller import Scope
from dragoman.model.errors import LimitExceeded, TaskNotCancelable, UnsupportedOperation
from dragoman.model.events import CancelRequested, Entry, Event, Private, Received, Reply
from dragoman.model.lifecycle import IllegalEvent, advance
from dragoman.model.types import Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from dragoman.stores.store import (
    MESSAGE,
    NOTIFICATION,
    NOTIFIED,
    STEP,
    UNTIMED,
    WOKEN,
    WRITER,
    Claim,
    Draft,
    Head,
    Pause,
    Stale,
)

UNREAD = 1000
"""The maximum number of messages that may wait in one task."""


def age(received: Received) -> float:
    """How many seconds ago a message was received, by this machine's clock."""
    return max(time.time() - clock.seconds(received.at), 0.0)


class TaskHead:
    """One head row, and the entries that were written since it was read."""

    # slots: reading an attribute that only the class has is many times slower
    __slots__ = (
        *("scope", "id", "context", "skill", "born", "replied", "changed", "entries", "state"),
        *("last", "version", "epoch", "turn", "settled", "attempt", "holder", "lease"),
        *("cancel_at", "canceled", "inbox", "hooked", "due", "deadline", "waits", "began"),
        *("private", "replays", "finished", "_head"),
    )
    scope: Scope
    id: str
    context: str
    skill: str
    changed: str
    born: bool
    replied: bool
    entries: list[Entry]
    state: TaskState
    canceled: TaskStatusUpdateEvent | None
    """The event to write for a turn that was canceled and did not end in time."""
    inbox: tuple[int, ...]
    """The messages whose turn has not ended; the first may be in work."""
    hooked: bool
    """Whether the log has a webhook."""
    due: float
    """When it must run again (Unix time), or WOKEN or NOTIFIED; 0 if there is no time."""
    deadline: float
    """When a suspended handler must have ended (Unix time)."""
    waits: int
    """What a suspended handler waits for, see `Pause`; 0 if none is suspended."""
    began: int
    """The message that started the suspended handler."""
    private: int
    """The number of private entries."""
    replays: tuple[Entry, ...]
    """Private entries whose values are to be stored beside the log, see `Private.beside`."""
    finished: bool
    """A turn with private entries has ended: what is beside the log is to be deleted."""
    _head: Head | None

    def __init__(self, scope: Scope, draft: Draft) -> None:
        self._clear()
        self.scope = scope
        self.id = draft.task
        self.context = draft.received.message.context_id
        self.skill = draft.received.skill
        self.born = draft.born
        self.changed = draft.received.at

    def _clear(self) -> None:
        """Set everything that has a default."""
        self.replied = self.hooked = self.finished = False
        self.last = self.version = self.epoch = self.turn = self.settled = self.attempt = 0
        self.waits = self.began = self.private = 0
        self.lease = self.cancel_at = self.due = self.deadline = 0.0
        self.holder = ""
        self.state = TaskState.SUBMITTED
        self.canceled = self._head = None
        self.inbox = ()
        self.entries = []
        self.replays = ()

    @property
    def ended(self) -> bool:
        """Whether the log is complete."""
        return self.replied or self.state.terminal

    @property
    def ready(self) -> bool:
        """Whether the task needs a worker and has none."""
        if self.holder:
            return False
        if self.due:
            # a message whose turn was revoked is not new: it waits for its time
            fresh = bool(self.inbox) and not self.reading
            return self.due < 0 or (self.waits == MESSAGE and fresh)
        return bool(self.inbox) and self.waits != WRITER

    @property
    def next_turn(self) -> int:
        """The message that a claim works on: the first unread one or, for a handler that waits for
        something else, the last one that it has read."""
        return self.inbox[0] if self.inbox and self.waits in UNTIMED else self.turn

    @property
    def reading(self) -> int:
        """1 if the turn in work reads the first message of the inbox; 0 for a handler that wakes
        up."""
        return 1 if self.inbox and self.inbox[0] == self.turn else 0

    def write(self, entry: Entry) -> int:
        """Append one entry with the next number."""
        event: Event = entry.event  # type: ignore[assignment]
        if self.last:
            self.state = state = advance(self.state, event)
            kind = type(event)
            if kind is TaskStatusUpdateEvent:
                self.born = True
                self.changed = event.status.timestamp or self.changed  # type: ignore[union-attr]
                if state.interrupted and entry.turn > self.settled:
                    self.settled = entry.turn
            elif kind is Reply:
                self.replied = True
            elif kind is Private:
                self.private += 1
                if event.beside:  # type: ignore[union-attr]
                    self.replays += (entry,)
                if event.kind == STEP:  # type: ignore[union-attr]
                    self.attempt = min(self.attempt, 1)  # the entry shows progress
            elif kind is not Received:
                self.born = True
        self.entries.append(entry)
        entry.number = self.last = number = self.last + 1
        self.version += 1
        return number

    def receive(self, received: Received) -> int:
        """Accept a message."""
        if self.state.terminal:
            raise UnsupportedOperation(
                f"Task has ended ({self.state.name.lower()}) and accepts no more messages"
            )
        if len(self.inbox) >= UNREAD:
            raise LimitExceeded(f"{UNREAD} messages are already waiting in this task")
        number = self.write(Entry(0, received))
        self.inbox += (number,)
        self.skill = received.skill
        if self.state.interrupted and not self.holder:
            # the old question is answered, so it is not shown any more
            status = TaskStatus(state=TaskState.WORKING, timestamp=clock.now())
            working = TaskStatusUpdateEvent(task_id=self.id, context_id=self.context, status=status)
            # an earlier message may still wait; then its turn is next
            self.write(Entry(0, working, self.inbox[0]))
        return number

    def take(self, worker: str, lease: float) -> int:
        """Start the turn of the first unread message."""
        self.epoch += 1
        self.version += 1
        self.attempt += 1
        self.holder, self.lease = worker, lease
        if self.inbox and self.waits in UNTIMED:  # the number that `next_turn` has
            self.turn = self.inbox[0]
        return self.turn

    def claim(self, task: Task, received: Received) -> Claim:
        """Return the current claim."""
        return Claim(head=self.head(), task=task, received=received)

    def append(
        self,
        claim: Claim,
        entries: Sequence[Entry],
        release: bool,
        pause: Pause | None = None,
        wall: float = 0.0,
    ) -> bool:
        """Write the worker's events, up to the first that is not allowed (IllegalEvent). With
        `pause`, suspend the handler. Returns True if more messages wait."""
        if self.epoch != claim.epoch:
            raise Stale(self.id)
        inbox = self.inbox
        # not through `reading`, because this runs for every event
        more = len(inbox) > 1 or (len(inbox) == 1 and inbox[0] != self.turn)
        illegal: IllegalEvent | None = None
        for entry in entries:
            event = entry.event
            if (
                more
                and type(event) is TaskStatusUpdateEvent
                and event.status.state is TaskState.COMPLETED
            ):
                # Replace it in the list, so that the writer knows what was written. While the claim
                # lasts, the number of waiting messages never decreases.
                status = replace(event.status, state=TaskState.WORKING)
                entry.event, entry.wire = replace(event, status=status), None
            try:
                self.write(entry)
            except IllegalEvent as error:
                illegal = error
                break
        if self.replied or self.state.terminal:
            self._end()
        elif pause is not None:
            self._suspend(pause, wall)
        elif release:
            self._release(read=True)
        if illegal is not None:
            raise illegal
        return more and not self.state.terminal

    def cancel(
        self,
        request: CancelRequested,
        canceled: TaskStatusUpdateEvent,
        until: float,
        *,
        undo: bool = False,
    ) -> None:
        """Log a cancel request. Without a worker also log the end, unless the handler has something
        to `undo`, which a worker must run. A second request changes nothing."""
        if self.state.terminal:
            raise TaskNotCancelable(f"Task has already ended ({self.state.name.lower()})")
        if self.cancel_at:
            return
        self.write(Entry(0, request))
        self.cancel_at = until
        self.canceled = canceled
        if self.holder:
            return
        if self.turn and undo:
            self.due = WOKEN
        else:
            self.write(Entry(0, canceled))
            self._end()

    def revoke(
        self,
        epoch: int,
        event: TaskStatusUpdateEvent | None,
        now: float | None = None,
        *,
        begun: bool = True,
        wall: float = 0.0,
        delay: float = 0.0,
        note: Entry | None = None,
    ) -> bool:
        """End the epoch if it is still this one; with a time, only if it is over at that time. With
        `delay` the task does not run again before that many seconds have passed. `note` is written
        first."""
        if self.epoch != epoch or self.state.terminal:
            return False
        if now is not None and not self.expired(now, wall):
            return False
        self.epoch += 1
        if not begun:
            self.attempt = max(self.attempt - 1, 0)
        if note is not None:
            self.write(note)
        if event is not None:
            self.write(Entry(0, event))
            self._end()
        elif self.holder:
            self._release(read=False)
            if self.ended:
                return True
            if delay and self.due != NOTIFIED:
                self.due = wall + delay
            elif self.due > 0:
                self.due = 0.0  # a message was the reason that it ran
        return True

    def expired(self, now: float, wall: float) -> bool:
        """Whether the claim, the time for a cancel, or the time of a suspended handler is over."""
        if 0 < self.cancel_at < now:
            return True
        return self.lease < now if self.holder else 0 < self.deadline < wall

    def wake(self, wall: float) -> bool:
        """Make it ready if its time has come."""
        if not 0 < self.due <= wall or self.holder:
            return False
        self.due = WOKEN
        self.version += 1
        return True

    def wake_now(self) -> bool:
        """Make it ready if it waits for a notification, or if its turn was postponed."""
        if self.ended or self.due == NOTIFIED:
            return False
        if self.holder:
            self.due = NOTIFIED  # at the end of the claim it is known whether the handler waits
        elif self.due > 0 and self.waits in (0, NOTIFICATION):
            self.due = WOKEN
        else:
            return False
        self.version += 1
        return not self.holder

    def _suspend(self, pause: Pause, wall: float) -> None:
        """End the claim until the event that the handler waits for."""
        notified = self.due == NOTIFIED and pause.waits == NOTIFICATION
        if self.reading:
            self.inbox = self.inbox[1:]
        self.holder, self.lease, self.attempt = "", 0.0, 0
        self.epoch += 1
        self.version += 1
        self.waits, self.began = pause.waits, pause.began
        self.due = wall + pause.seconds if pause.seconds else 0.0
        if pause.timeout:
            until = wall + pause.timeout
            if not self.deadline or (pause.waits == WRITER and until < self.deadline):
                self.deadline = until
        if notified or self.canceled is not None:
            self.due = WOKEN

    def _end(self) -> None:
        self.inbox = ()
        if self.began or self.due:
            self._rest()
        self.finished = self.private > 0
        self._release(read=False)

    def _rest(self) -> None:
        """Reset the columns of a suspended handler."""
        self.due = self.deadline = 0.0
        self.waits = self.began = 0

    def _release(self, *, read: bool) -> None:
        self.holder = ""
        self.lease = 0.0
        self.epoch += 1
        self.version += 1
        if read:
            self.inbox = self.inbox[self.reading :]
            self.attempt = 0
            if self.began or self.due:
                self._rest()
            self.finished = self.private > 0
        if self.canceled is not None and not self.state.terminal:
            status = replace(self.canceled.status, timestamp=clock.now())
            self.write(Entry(0, replace(self.canceled, status=status)))
            self._end()

    def head(self) -> Head:
        """Return the row as a value."""
        head = self._head
        if head is not None and head.version == self.version:
            return head
        inbox = self.inbox
        self._head = head = Head(
            id=self.id,
            context=self.context,
            scope=self.scope,
            state=self.state,
            skill=self.skill,
            last=self.last,
            version=self.version,
            born=self.born,
            replied=self.replied,
            epoch=self.epoch,
            holder=self.holder,
            turn=self.turn,
            unread=bool(inbox) and not (self.holder and len(inbox) == 1 and inbox[0] == self.turn),
            settled=self.settled,
            attempt=self.attempt,
            canceling=self.cancel_at > 0,
            hooked=self.hooked,
            lease=self.lease,
        )
        if self.private or self.began or self.due:
            self._head = head = replace(
                head,
                woken=self.due < 0,
                began=self.began,
                private=self.private,
                waits=self.waits,
                deadline=self.deadline,
                reading=bool(self.reading),
            )
        return head
