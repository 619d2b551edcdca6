"""The entries of a task's log.

The agent's events are logged in their wire form (`TaskStatusUpdateEvent`,
`TaskArtifactUpdateEvent`), so that a stream is the log with an envelope around it.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.model.caller import Caller
from dragoman.model.types import (
    Message,
    Metadata,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
    Timestamp,
)

RESUME = "urn:dragoman:resume:v1"
"""Our extension: each streamed event has its number, and a stream can resume after any number."""


class Received(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="received", gc=False):
    """A message was accepted, with everything that its turn needs."""

    message: Message
    caller: Caller
    at: Timestamp
    skill: str = ""
    modes: tuple[str, ...] = ()
    metadata: Metadata | None = None
    trace: str = ""
    private: str = ""
    """Where the store keeps what only gates may read of the message's metadata; empty if there is
    nothing like that."""


class Reply(Struct, frozen=True, tag="reply"):
    """The agent replied directly, without a task."""

    message: Message


class CancelRequested(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="cancel"):
    """A client asked to cancel the task."""

    caller: Caller
    at: Timestamp
    metadata: Metadata | None = None


class Private(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="private"):
    """What a handler needs again when it runs again: the result of a step, a sleep, a saved value.
    It is in the log for the agent alone: clients never see it."""

    kind: str
    name: str = ""
    count: int = 0
    """Which one of this name."""
    said: int = 0
    """How many events the handler had made before."""
    value: Raw = Raw(b"null")
    """JSON; with `sealed`, its encrypted text as a JSON string."""
    sealed: bool = False
    ordered: bool = False
    """The handler's own task wrote it, so a replay writes it in the same order."""
    at: str = ""
    form: int = 0
    """1 if sends are steps, and if `said` counts only what was said outside of steps; 0 in turns
    that an older version began."""
    streams: tuple[tuple[str, str, str], ...] = ()
    """The artifacts that the step began to stream: by what the handler knows each, and its id."""
    beside: bool = False
    """Only a replay needs the value: it is stored beside the log, and deleted when the turn ends.
    From then on, `value` is null."""


Event: TypeAlias = (
    Received | TaskStatusUpdateEvent | TaskArtifactUpdateEvent | Reply | CancelRequested | Private
)


class Entry(Struct, gc=False):
    """An event and its number in the log; or, with a task, the log folded up to that number."""

    number: int
    event: Event | Task
    turn: int = 0
    """The message that the writer was processing; 0 if no turn wrote it."""
    wire: bytes | None = None
    """The event as 1.0 streams it, encoded once for all readers."""
    forms: dict[str, bytes] | None = None
    """The same in other encodings, made on demand."""


def placed(entry: Entry, *, reset: bool = False) -> Event | Task:
    """The event with its number in the metadata, for readers that activated our extension."""
    event = entry.event
    if not isinstance(event, Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent):
        return event
    place: dict[str, object] = {"place": entry.number}
    if reset:
        place["reset"] = True
    return replace(event, metadata={**(event.metadata or {}), RESUME: place})
