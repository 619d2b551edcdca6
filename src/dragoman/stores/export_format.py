"""The export format: one line of JSON for each task, the same for every store. Values of
contexts and reservations have lines of their own.

Entries, webhooks and values are exported as they are stored; an encrypted secret stays encrypted.
The export does not contain what a store can derive (counts, snapshots, ranks), and no times of one
machine's clock: an imported claim has an expired lease.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct, structs

from dragoman.model.caller import Scope, long, owner_key
from dragoman.model.events import CancelRequested, Event, Private, Received, Reply
from dragoman.model.lifecycle import IllegalEvent, fold
from dragoman.model.types import (
    StreamResponse,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from dragoman.stores import reservations
from dragoman.stores.codec import (
    ARTIFACT,
    CANCEL,
    PRIVATE,
    RECEIVED,
    REPLY,
    STATUS,
    accepted_at,
    digested,
)
from dragoman.stores.context_values import faults
from dragoman.stores.sql_head import SqlHead
from dragoman.stores.store import GIVEN_UP, MESSAGE, WRITER, Webhook

FORMAT = 2
"""The format of a line. Every line has it, so that files can be joined. Format 1 had no private
entries."""

VEIL = "sha256:"
"""The prefix of a receipt's key of which only the digest is known."""
VEILED = re.compile(f"{VEIL}[0-9a-f]{{64}}")
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Kind: TypeAlias = Literal["received", "status", "artifact", "reply", "cancel", "private"]

_TYPES: dict[str, type] = {
    "received": Received,
    "status": TaskStatusUpdateEvent,
    "artifact": TaskArtifactUpdateEvent,
    "reply": Reply,
    "cancel": CancelRequested,
    "private": Private,
}

KINDS: dict[int, Kind] = {
    RECEIVED: "received",
    STATUS: "status",
    ARTIFACT: "artifact",
    REPLY: "reply",
    CANCEL: "cancel",
    PRIVATE: "private",
}
NUMBERS = {kind: number for number, kind in KINDS.items()}


class BadExport(ValueError):
    """No store can have written this. The message gives the reason."""


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the log. Its number is its position in the list."""

    turn: Count
    kind: Kind
    body: Raw


class Stub(Struct, frozen=True, forbid_unknown_fields=True):
    """A receipt, and the message that it belongs to."""

    key: str
    """Its name, or the digest of its name, from a store that has only the digest."""
    digest: bytes
    number: Count


class ExportedWebhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook, and how far it has come."""

    webhook: Raw
    cursor: Count
    attempts: Count
    due: float
    parked: bool
    reason: str


class ReplayValue(Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored beside the log for an entry, see `Private.beside`."""

    number: Count
    value: Raw


class ExportedTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task: the head of its log, the log, and everything that belongs to it."""

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
    canceled: TaskStatusUpdateEvent | None
    ended: float | None
    """When it ended (Unix time)."""
    entries: tuple[Item, ...]
    receipts: tuple[Stub, ...]
    webhooks: tuple[ExportedWebhook, ...]
    due: float = 0.0
    """When it runs again (Unix time), or WOKEN."""
    deadline: float = 0.0
    waits: Count = 0
    began: Count = 0
    replay_values: tuple[ReplayValue, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether the task needs a worker and has none."""
        if self.holder:
            return False
        if self.due:
            fresh = bool(self.inbox) and self.inbox[0] != self.turn
            return self.due < 0 or (self.waits == MESSAGE and fresh)
        return bool(self.inbox) and self.waits != WRITER

    def events(self) -> list[Event]:
        """Decode the events of the log. Raises BadExport."""
        return [_event(number, item) for number, item in enumerate(self.entries, start=1)]


class ExportedContext(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The private value of a context."""

    format: int = FORMAT
    kind: Literal["context"] = "context"
    """Tells values from tasks, which have no such field."""
    context: str
    scope: Scope
    version: Annotated[int, Meta(ge=1, le=1 << 53)]
    saver: str
    """The key of the turn that saved it."""
    body: str
    """Its stored form: JSON, or encrypted."""


class ExportedReservation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reservation."""

    format: int = FORMAT
    kind: Literal["reservation"] = "reservation"
    space: str
    key: str
    body: str
    """Its stored form: base64, or encrypted."""
    expires: float | None
    """Until when it is kept (Unix time); None is for ever."""


Exported: TypeAlias = ExportedTask | ExportedContext | ExportedReservation


class _Mark(Struct):
    format: int
    kind: str = ""


encode = msgspec.json.Encoder().encode
_task = msgspec.json.Decoder(ExportedTask).decode
_context = msgspec.json.Decoder(ExportedContext).decode
_reservation = msgspec.json.Decoder(ExportedReservation).decode
_mark = msgspec.json.Decoder(_Mark).decode
_received = msgspec.json.Decoder(Received).decode
_private = msgspec.json.Decoder(Private).decode
_cancel = msgspec.json.Decoder(CancelRequested).decode
_streamed = msgspec.json.Decoder(StreamResponse).decode
_webhook = msgspec.json.Decoder(Webhook).decode


def webhook(one: ExportedWebhook) -> Webhook:
    """Decode the webhook; its secrets keep their stored form."""
    return _webhook(one.webhook)


def veil(digest: bytes) -> str:
    """Return the key of a receipt of which only the digest is known."""
    return VEIL + digest.hex()


def veiled(key: str) -> str:
    """Return the key of a receipt in the form that every store can produce."""
    return key if key.startswith(VEIL) else veil(digested(key))


def unveiled(key: str) -> bytes:
    """Return the digest in a key."""
    return bytes.fromhex(veiled(key).removeprefix(VEIL))


def same(one: ExportedTask, other: ExportedTask) -> bool:
    """Whether both are the same task. The number of writes to its head does not matter."""
    try:
        return encode(_canonical(one)) == encode(_canonical(other))
    except msgspec.DecodeError:  # an unreadable webhook differs from every other one
        return False


def _canonical(given: ExportedTask) -> ExportedTask:
    stubs = (structs.replace(stub, key=veiled(stub.key)) for stub in given.receipts)
    webhooks = sorted(given.webhooks, key=lambda one: webhook(one).config.id)
    return structs.replace(
        given,
        version=0,
        receipts=tuple(sorted(stubs, key=lambda stub: stub.key)),
        webhooks=tuple(webhooks),
    )


def exported_task(
    row: SqlHead,
    entries: Sequence[Item],
    receipts: Sequence[Stub],
    webhooks: Sequence[ExportedWebhook],
    values: Sequence[tuple[int, bytes]],
) -> ExportedTask:
    """Return the task of a row, and everything that belongs to it. Raises BadExport if its log has
    a gap."""
    if len(entries) != row.last:
        raise BadExport(f"its log has {len(entries)} of {row.last} entries")
    return ExportedTask(
        format=FORMAT,
        id=row.id,
        context=row.context,
        scope=row.scope,
        skill=row.skill,
        state=row.state,
        changed=row.changed,
        version=row.version,
        born=row.born,
        replied=row.replied,
        epoch=row.epoch,
        holder=row.holder,
        turn=row.turn,
        settled=row.settled,
        attempt=row.attempt,
        inbox=row.inbox,
        canceling=row.cancel_at > 0,
        canceled=row.canceled,
        ended=row.ended_at,
        entries=tuple(entries),
        receipts=tuple(receipts),
        webhooks=tuple(webhooks),
        due=row.due,
        deadline=row.deadline,
        waits=row.waits,
        began=row.began,
        replay_values=tuple(ReplayValue(number, Raw(value)) for number, value in values),
    )


def columns(given: ExportedTask) -> dict[str, Any]:
    """Return what a database stores in the head's row, by column."""
    # a time that is past on every machine's clock, and is not 0, which means none
    past = GIVEN_UP
    private = sum(item.kind == "private" for item in given.entries)
    plan = f"{given.waits},{given.began},{private}" if private or given.began or given.due else None
    return {
        "id": given.id,
        "agent": given.scope.agent,
        "context": given.context,
        "skill": given.skill,
        "state": given.state.number,
        "changed": given.changed,
        "last": len(given.entries),
        "version": given.version,
        "born": given.born,
        "replied": given.replied,
        "epoch": given.epoch,
        "holder": given.holder,
        "lease": past if given.holder else 0.0,
        "turn": given.turn,
        "settled": given.settled,
        "attempt": given.attempt,
        "inbox": ",".join(map(str, given.inbox)),
        "cancel_at": past if given.canceling else 0.0,
        "canceled": None if given.canceled is None else encode(given.canceled),
        "hooked": bool(given.webhooks),
        "size": sum(len(bytes(item.body)) for item in given.entries),
        "ended": given.ended,
        "due": given.due or None,
        "deadline": given.deadline or None,
        "plan": plan,
    }


def messages(given: ExportedTask) -> Iterator[tuple[int, str]]:
    """Return the numbers of the messages, and when they were accepted."""
    for number, item in enumerate(given.entries, start=1):
        if item.kind == "received" and (at := accepted_at(bytes(item.body))):
            yield number, at


def decode(line: bytes) -> Exported:
    """Decode a line: a task, the value of a context, or a reservation. Raises BadExport if it is
    none of them, or contradicts itself."""
    try:
        mark = _mark(line)
        if not 1 <= mark.format <= FORMAT:
            raise BadExport(
                f"its format is {mark.format}; this version of dragoman supports 1 to {FORMAT}"
            )
        if mark.kind == "reservation":
            return _checked_reservation(_reservation(line))
        if mark.kind:
            return _checked(_context(line))
        given = structs.replace(_task(line), format=FORMAT)
        if long(given.scope.owner):  # a version that stored such names wrote it
            scope = structs.replace(given.scope, owner=owner_key(given.scope.owner))
            given = structs.replace(given, scope=scope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadExport(str(error)) from None
    try:
        _check(given)
    except BadExport as error:
        raise BadExport(f"task {given.id}: {error}") from None
    return given


def _checked(given: ExportedContext) -> ExportedContext:
    """The same for a value of a context. Raises BadExport."""
    for problem in faults(given.version, given.saver, given.body.encode()):
        raise BadExport(f"the value of context {given.context}: {problem}")
    return given


def _checked_reservation(given: ExportedReservation) -> ExportedReservation:
    """The same for a reservation. Raises BadExport."""
    for problem in reservations.faults(given.space, given.key, given.body.encode(), given.expires):
        raise BadExport(f"{reservations.named(given.space, given.key)}: {problem}")
    return given


def _check(given: ExportedTask) -> None:
    """Check that the head agrees with the log."""
    events = given.events()
    try:
        task = fold(None, events)
    except IllegalEvent as error:
        raise BadExport(f"its log is not valid: {error}") from None
    last = len(events)
    messages = {n for n, event in enumerate(events, start=1) if isinstance(event, Received)}
    ended = given.replied or given.state.terminal
    refusals = (
        (
            task.id != given.id or task.context_id != given.context,
            "its log belongs to another task",
        ),
        (
            task.status.state is not given.state,
            f"its log ends with {task.status.state.name.lower()}",
        ),
        (given.replied != any(isinstance(e, Reply) for e in events), "replied"),
        (not messages.issuperset(given.inbox), "inbox"),
        (bool(given.holder) and not (given.inbox or given.began or given.due), "holder"),
        (ended and bool(given.inbox), "inbox"),
        (ended != (given.ended is not None), "ended"),
        (given.turn > last, "turn"),
        (given.settled > last, "settled"),
        (given.began not in (0, *messages), "began"),
        (given.waits > WRITER, "waits"),
        (any(stub.number not in messages for stub in given.receipts), "receipts"),
        (_repeated([veiled(stub.key) for stub in given.receipts]), "receipts"),
        (not all(VEILED.fullmatch(veiled(stub.key)) for stub in given.receipts), "receipts"),
    )
    for wrong, what in refusals:
        if wrong:
            raise BadExport(what if " " in what else f"{what} does not agree with its log")
    beside = {n for n, event in enumerate(events, 1) if isinstance(event, Private) and event.beside}
    values = [value.number for value in given.replay_values]
    if not beside.issuperset(values) or _repeated(values) or (ended and values):
        raise BadExport("replay_values do not agree with its log")
    try:
        webhooks = [webhook(one).config.id for one in given.webhooks]
    except msgspec.DecodeError as error:
        raise BadExport(str(error)) from None
    if _repeated(webhooks) or any(one.cursor > last for one in given.webhooks):
        raise BadExport("webhooks do not agree with its log")


def _repeated(names: Sequence[str | int]) -> bool:
    return len(set(names)) < len(names)


def _event(number: int, item: Item) -> Event:
    event: Event | None
    try:
        if item.kind == "received":
            event = _received(item.body)
        elif item.kind == "cancel":
            event = _cancel(item.body)
        elif item.kind == "private":
            event = _private(item.body)
        else:
            found = _streamed(item.body)
            event = found.artifact_update or found.status_update
            if event is None and found.message is not None:
                event = Reply(found.message)
    except msgspec.DecodeError as error:
        raise BadExport(f"entry {number}: {error}") from None
    if event is None or type(event) is not _TYPES[item.kind]:
        raise BadExport(f"entry {number}: its kind is not {item.kind}")
    return event
