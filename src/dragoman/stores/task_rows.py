"""The rows of the table of tasks that operators see: what a head row says, without the fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman.model.caller import unqualified
from dragoman.model.types import Part, TaskState, TaskStatusUpdateEvent
from dragoman.stores import codec
from dragoman.stores.store import MESSAGE, NOTIFICATION, TIME, WRITER
from dragoman.stores.task_head import TaskHead
from dragoman.stores.unreadable_rows import DECODING

COUNTED = 10_000
"""How many tasks of one state are counted at most."""
TEXT = 200
"""The most characters of a status text in a row."""
RECENT = 64
"""How many of the last entries are searched for the text of a status."""
LONGEST_STATUS = 64 * 1024
"""A status with more bytes is not read for its text."""
FEW = 1000
"""The maximum number of scopes that are searched one after the other. For more, an index of all
tasks is faster."""

WAITS: Mapping[int, str] = {
    0: "",
    TIME: "time",
    MESSAGE: "message",
    NOTIFICATION: "notification",
    WRITER: "writer",
}


class Choice(Struct, frozen=True, kw_only=True):
    """Filters for tasks of all owners. None matches everything; an empty string matches an empty
    name."""

    agent: str | None = None
    tenant: str | None = None
    owner: str | None = None
    """The owner as in the store: realm and identity, see `TaskRow.owner`."""
    context: str = ""
    states: tuple[TaskState, ...] = ()
    """Empty means all."""
    skill: str | None = None
    id: str = ""
    """The beginning of the id."""
    since: str = ""
    """The status is not older than this time."""
    until: str = ""
    """The status is older than this time."""
    limit: int = 50
    cursor: tuple[str, str] | None = None
    """The `TaskPage.cursor` of the page before."""


class TaskRow(Struct, frozen=True, kw_only=True):
    """What the store knows of a task without reading its log. Times with a unit are Unix times in
    seconds, and 0 means none."""

    id: str
    agent: str
    tenant: str
    owner: str
    """The owner as in the store; `realm` and `identity` are its parts."""
    context: str
    skill: str
    state: TaskState
    replied: bool
    """Whether the agent answered without a task."""
    born: bool
    """False while the agent may still answer without a task."""
    created: str
    """When the first message was accepted; empty if that is not known."""
    changed: str
    """The time of the status."""
    text: str
    """The beginning of the last text that a status had."""
    last: int
    """The number of the last entry."""
    version: int
    """It increases with every change."""
    size: int
    """The size of the log in bytes."""
    private: int
    """How many of the entries are private."""
    epoch: int
    turn: int
    """The number of the message in work, or of the last one that was."""
    attempt: int
    """How often the message in work has been worked on, including this time."""
    holder: str
    """The worker that runs it, or empty."""
    lease: float
    """When the lease of the holder expires."""
    unread: int
    """How many messages wait for a turn."""
    waits: str
    """What a suspended handler waits for: `time`, `message`, `notification` (of another task),
    `writer` (after a handover); or empty."""
    due: float
    """When it runs again; less than 0 if that time has come."""
    deadline: float
    """When a suspended handler must have ended."""
    canceling: bool
    hooked: bool
    """Whether it has or had webhooks."""
    ended: float
    """When the log ended."""

    @property
    def realm(self) -> str:
        """The realm of the owner."""
        return unqualified(self.owner)[0]

    @property
    def identity(self) -> str:
        """The identity of the owner; empty for anonymous callers."""
        return unqualified(self.owner)[1]

    @property
    def over(self) -> bool:
        """Whether the log is complete."""
        return self.replied or self.state.terminal


class TaskPage(Struct, frozen=True):
    """A page of the table of tasks."""

    rows: Sequence[TaskRow]
    cursor: tuple[str, str] | None
    """For the next page; None if this is the last one."""


class Counts(Struct, frozen=True):
    """How many tasks of a choice are in each state."""

    states: Mapping[TaskState, int]
    """A state without tasks is missing."""
    complete: bool
    """False if there are more tasks than were counted."""


def task_row(
    head: TaskHead, *, created: str, text: str, lease: float, size: int, ended: float | None
) -> TaskRow:
    """Make the row of a head."""
    return TaskRow(
        id=head.id,
        agent=head.scope.agent,
        tenant=head.scope.tenant,
        owner=head.scope.owner,
        context=head.context,
        skill=head.skill,
        state=head.state,
        replied=head.replied,
        born=head.born,
        created=created,
        changed=head.changed,
        text=text,
        last=head.last,
        version=head.version,
        size=size,
        private=head.private,
        epoch=head.epoch,
        turn=head.turn,
        attempt=head.attempt,
        holder=head.holder,
        lease=lease if head.holder else 0.0,
        unread=max(len(head.inbox) - bool(head.holder), 0),
        waits="" if head.ended else WAITS.get(head.waits, ""),
        due=head.due,
        deadline=head.deadline,
        canceling=head.cancel_at > 0 and not head.ended,
        hooked=head.hooked,
        ended=ended or 0.0,
    )


def page(rows: Sequence[TaskRow], choice: Choice, more: bool) -> TaskPage:
    """Make a page. With `more`, tasks follow."""
    last = rows[-1] if rows else None
    return TaskPage(rows, (last.changed, last.id) if last is not None and more else None)


def status_text(bodies: Iterable[bytes]) -> str:
    """Return the beginning of the first text in the stored bodies of statuses."""
    for body in bodies:
        try:
            event = codec.entry(0, 0, codec.STATUS, body).event
        except DECODING:
            continue  # `dragoman db check` reports it
        if isinstance(event, TaskStatusUpdateEvent) and (text := said(event)):
            return text
    return ""


def said(event: TaskStatusUpdateEvent) -> str:
    """Return the beginning of the text of a status."""
    message = event.status.message
    return beginning(message.parts) if message is not None else ""


def beginning(parts: Iterable[Part]) -> str:
    """Return the beginning of the text of these parts."""
    return " ".join(part.text for part in parts if part.text)[:TEXT]


def matches(head: Any, choice: Choice) -> bool:
    """Whether a head has what the choice asks for; its cursor does not matter."""
    scope = head.scope
    return (
        head.born
        and choice.agent in (None, scope.agent)
        and choice.tenant in (None, scope.tenant)
        and choice.owner in (None, scope.owner)
        and choice.context in ("", head.context)
        and (not choice.states or head.state in choice.states)
        and choice.skill in (None, head.skill)
        and head.id.startswith(choice.id)
        and head.changed >= choice.since
        and (not choice.until or head.changed < choice.until)
    )
