"""A task as it travels from one store to another: a line of JSON, whatever kept it.

Entries and webhooks are the bytes that were stored; a secret that is sealed stays sealed. What
a store can make anew (counts, snapshots, places in a queue) is not in it, nor is anything that
counts by one machine's clock: a claim arrives as one whose lease has run out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from dragoman.caller import Scope
from dragoman.events import CancelRequested, Event, Received, Reply
from dragoman.lifecycle import IllegalEvent, fold
from dragoman.store import Webhook
from dragoman.types import (
    StreamResponse,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

FORMAT = 1
"""Told by every line, so that files can be joined."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Kind: TypeAlias = Literal["received", "status", "artifact", "reply", "cancel"]

_TYPES: dict[str, type] = {
    "received": Received,
    "status": TaskStatusUpdateEvent,
    "artifact": TaskArtifactUpdateEvent,
    "reply": Reply,
    "cancel": CancelRequested,
}


class Broken(ValueError):
    """No store can have written this; it says why."""


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the log; its number is its place in the list."""

    turn: Count
    kind: Kind
    body: Raw


class Stub(Struct, frozen=True, forbid_unknown_fields=True):
    """A receipt, and the message that it is for."""

    key: str
    digest: bytes
    number: Count


class Hook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook, and how far it has come."""

    webhook: Raw
    cursor: Count
    attempts: Count
    due: float
    parked: bool
    reason: str


class Dump(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task: the head of its log, the log, and what hangs on it."""

    format: int
    id: Annotated[str, Meta(min_length=1)]
    context: str
    scope: Scope
    skill: str
    state: TaskState
    changed: str
    version: Count
    born: bool
    replied: bool
    epoch: Count
    holder: str
    turn: Count
    settled: Count
    attempt: Count
    inbox: tuple[Count, ...]
    canceling: bool
    canceled: Raw | None
    ended: float | None
    """When it ended (Unix time)."""
    entries: tuple[Item, ...]
    receipts: tuple[Stub, ...]
    webhooks: tuple[Hook, ...]

    @property
    def ready(self) -> bool:
        """A message waits, and nobody works on the log."""
        return bool(self.inbox) and not self.holder

    def events(self) -> list[Event]:
        """The events of the log; Broken."""
        return [_event(number, item) for number, item in enumerate(self.entries, start=1)]


class _Mark(Struct):
    format: int


encode = msgspec.json.Encoder().encode
_dump = msgspec.json.Decoder(Dump).decode
_mark = msgspec.json.Decoder(_Mark).decode
_received = msgspec.json.Decoder(Received).decode
_cancel = msgspec.json.Decoder(CancelRequested).decode
_streamed = msgspec.json.Decoder(StreamResponse).decode
_canceled = msgspec.json.Decoder(TaskStatusUpdateEvent).decode
_webhook = msgspec.json.Decoder(Webhook).decode


def webhook(hook: Hook) -> Webhook:
    """The webhook, with its secrets as they are stored."""
    return _webhook(hook.webhook)


def decode(line: bytes) -> Dump:
    """The task of a line; Broken if it is none, or does not agree with itself."""
    try:
        format = _mark(line).format
        if format != FORMAT:
            raise Broken(f"it is of format {format}; this dragoman knows {FORMAT}")
        dump = _dump(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Broken(str(error)) from None
    try:
        _check(dump)
    except Broken as error:
        raise Broken(f"task {dump.id}: {error}") from None
    return dump


def _check(dump: Dump) -> None:
    """The head says what the log says."""
    events = dump.events()
    try:
        task = fold(None, events)
    except IllegalEvent as error:
        raise Broken(f"its log cannot be: {error}") from None
    last = len(events)
    messages = {n for n, event in enumerate(events, start=1) if isinstance(event, Received)}
    ended = dump.replied or dump.state.terminal
    refusals = (
        (task.id != dump.id or task.context_id != dump.context, "its log is that of another task"),
        (task.status.state is not dump.state, f"its log ends {task.status.state.name.lower()}"),
        (dump.replied != any(isinstance(e, Reply) for e in events), "replied"),
        (not messages.issuperset(dump.inbox), "inbox"),
        (bool(dump.holder) and not dump.inbox, "holder"),
        (ended and bool(dump.inbox), "inbox"),
        (ended != (dump.ended is not None), "ended"),
        (dump.turn > last, "turn"),
        (dump.settled > last, "settled"),
        (any(stub.number not in messages for stub in dump.receipts), "receipts"),
        (_repeated([stub.key for stub in dump.receipts]), "receipts"),
    )
    for wrong, what in refusals:
        if wrong:
            raise Broken(what if " " in what else f"{what} does not agree with its log")
    try:
        if dump.canceled is not None:
            _canceled(dump.canceled)
        hooks = [webhook(hook).config.id for hook in dump.webhooks]
    except msgspec.DecodeError as error:
        raise Broken(str(error)) from None
    if _repeated(hooks) or any(hook.cursor > last for hook in dump.webhooks):
        raise Broken("webhooks do not agree with its log")


def _repeated(names: Sequence[str]) -> bool:
    return len(set(names)) < len(names)


def _event(number: int, item: Item) -> Event:
    event: Event | None
    try:
        if item.kind == "received":
            event = _received(item.body)
        elif item.kind == "cancel":
            event = _cancel(item.body)
        else:
            found = _streamed(item.body)
            event = found.artifact_update or found.status_update
            if event is None and found.message is not None:
                event = Reply(found.message)
    except msgspec.DecodeError as error:
        raise Broken(f"entry {number}: {error}") from None
    if event is None or type(event) is not _TYPES[item.kind]:
        raise Broken(f"entry {number}: it is not of kind {item.kind}")
    return event
