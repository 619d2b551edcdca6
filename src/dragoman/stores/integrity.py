"""Checks one log and everything that is derived from it, in the same way for every store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from dragoman.dialects.versions import SUPPORTED
from dragoman.model.events import CancelRequested, Entry, Private, Received, Reply
from dragoman.model.lifecycle import IllegalEvent, fold
from dragoman.model.types import TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.security.encryption import PLAIN, WHOLE
from dragoman.stores.claim_order import HIGHEST
from dragoman.stores.codec import KINDS, STATES, Outdated, entry, secrets, snapshot, webhook_of
from dragoman.stores.export_format import VEIL, VEILED
from dragoman.stores.sql_head import SqlHead
from dragoman.stores.store import NOTIFIED, WOKEN, WRITER
from dragoman.stores.unreadable_rows import ASIDE, DECODING

BATCH = 256
"""How many tasks are checked in one state of the store."""
DIGEST = 32
"""The length of a digest in bytes."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Receives what is being checked, how much of it is done, and how much there is."""

HANGING = (
    (
        "SELECT task, id FROM line WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = line.task)",
        "webhook {1} has no task",
    ),
    (
        "SELECT task, number FROM snapshot "
        "WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = snapshot.task)",
        "the snapshot of key {0} has no task",
    ),
    (
        "SELECT task.id, snapshot.number FROM snapshot JOIN task ON task.key = snapshot.task "
        "WHERE snapshot.number NOT BETWEEN 1 AND task.last",
        "task {0}: its snapshot is for entry {1}, which is not in its log",
    ),
    (
        "SELECT task.id, line.id FROM line JOIN task ON task.key = line.task WHERE line.cursor < 0 "
        "OR line.cursor > task.last OR line.behind <> (line.cursor < task.last)",
        "task {0}: the cursor of webhook {1} does not agree with its log",
    ),
    (
        "SELECT task.id, line.id FROM line JOIN task ON task.key = line.task "
        "WHERE line.agent <> task.agent",
        "task {0}: webhook {1} is in the queue of another agent",
    ),
    (
        "SELECT task.id, receipt.number FROM receipt JOIN task ON task.key = receipt.task "
        "WHERE receipt.number NOT BETWEEN 1 AND task.last",
        "task {0}: a receipt is for entry {1}, which is not in its log",
    ),
    (
        "SELECT message.task, message.number FROM message "
        "WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = message.task)",
        "message {1} of a conversation has no task (its key is {0})",
    ),
    (
        "SELECT task, number FROM replay_value "
        "WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = replay_value.task)",
        "the value beside entry {1} has no task (its key is {0})",
    ),
    (
        "SELECT task.id, message.number FROM message JOIN task ON task.key = message.task "
        "WHERE message.number NOT BETWEEN 1 AND task.last",
        "task {0}: message {1} of its conversation is not in its log",
    ),
)
"""Statements that find rows whose task is missing or does not agree with them."""


class CursorRow(NamedTuple):
    """The stored columns of a webhook cursor."""

    id: str
    webhook: bytes
    attempts: int
    due: float
    reason: str
    ticket: int


class Stub(NamedTuple):
    """The stored columns of a receipt. The name is the caller's, or empty where only its digest is
    stored."""

    name: str
    digest: bytes
    number: int


class Beside(NamedTuple):
    """What is stored beside a log."""

    snapshot: tuple[int, bytes] | None = None
    lines: Sequence[CursorRow] = ()
    stubs: Sequence[Stub] = ()
    messages: Sequence[tuple[int, str]] = ()
    """The messages of its conversation: their numbers and times."""
    replays: Sequence[tuple[int, bytes]] = ()
    """The entries whose values are beside the log, and these values."""


def log(
    row: SqlHead, entries: Iterable[tuple[int, int, int, bytes]], beside: Beside
) -> Iterator[str]:
    """Yield the problems of one log, given as numbers, turns, kinds and bodies."""
    for problem in _log(row, entries, beside):
        yield f"task {row.id}: {problem}"


def _log(
    row: SqlHead, entries: Iterable[tuple[int, int, int, bytes]], beside: Beside
) -> Iterator[str]:
    for line in beside.lines:
        yield from (f"webhook {line.id}: {problem}" for problem in _line(row, line))
    if beside.lines and not row.hooked:
        yield "it has webhooks, but its head does not say so"
    size = 0
    found: list[Entry] = []
    for number, turn, kind, body in entries:
        size += len(body)
        if number != len(found) + 1:
            yield f"entry {len(found) + 1} is missing"
            return
        try:
            found.append(entry(number, turn, kind, body))
        except DECODING as error:
            yield f"entry {number} cannot be read: {error}"
            return
        if kind != KINDS[type(found[-1].event)]:
            yield f"entry {number}: its kind is not {kind}"
    if len(found) != row.last:
        yield f"its log has {len(found)} entries, but its head says {row.last}"
        return
    if size != row.size:
        yield f"its log has {size} bytes, but its head says {row.size}"
    try:
        task = fold(None, (item.event for item in found))  # type: ignore[misc]
    except IllegalEvent as error:
        yield f"its log is not valid: {error}"
        return
    yield from _entries(row, found)
    yield from _head(row, found)
    if task.status.state is not row.state:
        says = row.state.name.lower()
        yield f"its log ends with {task.status.state.name.lower()}, but its head says {says}"
    elif (row.offered is not None) != row.ready:
        yield "it is not in the queue" if row.ready else "it is in the queue, but no message waits"
    elif (row.ended_at is not None) != row.ended:
        yield "its head is not consistent on whether the task has ended"
    yield from _stubs(beside.stubs, found)
    yield from _messages(beside.messages, found)
    yield from _replays(row, found, beside.replays)
    if beside.snapshot is not None:
        yield from _snapshot(row, found, *beside.snapshot)


def _entries(row: SqlHead, found: Sequence[Entry]) -> Iterator[str]:
    """Check that each entry belongs to this task, and to a turn that exists."""
    messages = set()
    for item in found:
        event = item.event
        if isinstance(event, Received):
            messages.add(item.number)
            whose = (event.message.task_id, event.message.context_id)
        elif isinstance(event, TaskStatusUpdateEvent | TaskArtifactUpdateEvent):
            whose = (event.task_id, row.context)  # authors may choose these names
        else:
            whose = (row.id, row.context)
        if whose != (row.id, row.context):
            yield (
                f"entry {item.number} belongs to task {whose[0]} in context {whose[1]}, but "
                f"its head says {row.context}"
            )
        # `working` follows the answer to a question, before its turn begins
        begun = item.turn <= row.turn or item.number == item.turn + 1
        if item.turn and (item.turn not in messages or not begun):
            yield f"entry {item.number} belongs to turn {item.turn}, which does not exist"


def _head(row: SqlHead, found: Sequence[Entry]) -> Iterator[str]:
    """Check that the head agrees with the log."""
    skill = changed = ""
    settled = 0
    messages: list[int] = []
    kinds = {type(item.event) for item in found}
    for item in found:
        event = item.event
        if isinstance(event, Received):
            messages.append(item.number)
            skill = event.skill
            changed = changed or event.at
        elif isinstance(event, TaskStatusUpdateEvent):
            changed = event.status.timestamp or changed
            if event.status.state.interrupted:
                settled = max(settled, item.turn)
    unread = [number for number in messages if number >= row.turn]
    inboxes = ([],) if row.ended else (unread, [n for n in unread if n > row.turn])
    shown = kinds & {TaskStatusUpdateEvent, TaskArtifactUpdateEvent, CancelRequested}
    held = row.holder not in ("", ASIDE)
    canceling = CancelRequested in kinds
    wrong = (
        ("skill", row.skill != skill),
        ("changed", row.changed != changed),
        ("settled", row.settled != settled),
        ("replied", row.replied != (Reply in kinds)),
        ("born", bool(shown) and not row.born),
        ("turn", row.turn not in (0, *messages)),
        ("inbox", list(row.inbox) not in inboxes),
        ("version", row.version < row.last),
        ("epoch", row.epoch < bool(row.holder)),
        ("attempt", row.attempt < held),
        ("holder", held and list(row.inbox[:1]) != [row.turn] and not (row.began or row.due)),
        ("private", row.private != sum(type(item.event) is Private for item in found)),
        ("began", row.began not in (0, *messages) or bool(row.began) != bool(row.waits)),
        ("waits", not 0 <= row.waits <= WRITER),
        ("due", row.due not in (WOKEN, NOTIFIED) and not _time(row.due)),
        ("deadline", not _time(row.deadline)),
        ("lease", not _time(row.lease) or (row.lease > 0) != bool(row.holder)),
        ("cancel_at", not _time(row.cancel_at) or (row.cancel_at > 0) != canceling),
        ("canceled", not _cancels(row, canceling)),
        ("ready", row.offered is not None and not 0 <= row.offered <= HIGHEST),
        ("ended", row.ended_at is not None and not _time(row.ended_at)),
    )
    for name, problem in wrong:
        if problem:
            yield f"{name} in its head does not agree with its log"


def _time(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _cancels(row: SqlHead, canceling: bool) -> bool:
    """Check that the event for the end of a canceled turn ends this task."""
    if row.canceled is None:
        return not canceling
    event = row.canceled
    return canceling and event.task_id == row.id and event.status.state.terminal


def _snapshot(row: SqlHead, found: Sequence[Entry], number: int, data: bytes) -> Iterator[str]:
    """Check that a snapshot is the fold of the log up to its number. A snapshot of an older form is
    not used."""
    try:
        kept = snapshot(data, row.id, number, row.last)
    except Outdated:
        return
    except DECODING as error:
        yield f"its snapshot cannot be read: {error}"
        return
    if kept != fold(None, (item.event for item in found[:number])):  # type: ignore[misc]
        yield f"its snapshot does not agree with its log at entry {number}"


def _messages(messages: Sequence[tuple[int, str]], found: Sequence[Entry]) -> Iterator[str]:
    """Check that a message of a conversation is a message of the log."""
    for number, at in messages:
        event = found[number - 1].event if 0 < number <= len(found) else None
        if event is not None and not isinstance(event, Received):
            yield f"message {number} of its conversation is not a message of its log"
        elif event is not None and event.at != at:
            yield f"message {number} of its conversation has another time in its log"


def _replays(
    row: SqlHead, found: Sequence[Entry], replays: Sequence[tuple[int, bytes]]
) -> Iterator[str]:
    """Check that what a replay of the present turn needs is there, and nothing else."""
    own = {e.number for e in found if isinstance(e.event, Private) and e.event.beside}
    stored = {number for number, _ in replays}
    for number in sorted(stored - own):
        yield f"a value is beside its log for entry {number}, which has none"
    for number, body in replays:
        try:
            msgspec.json.decode(body)
        except DECODING:
            yield f"the value of entry {number}, which is beside its log, cannot be read"
    if row.ended and replays:
        yield "it has ended, but values are still beside its log"
    elif row.began or row.reading:
        needed = {e.number for e in found if e.number in own and e.turn >= (row.began or row.turn)}
        for number in sorted(needed - stored):
            yield f"the value of entry {number}, which is beside its log, is missing"


def _stubs(stubs: Sequence[Stub], found: Sequence[Entry]) -> Iterator[str]:
    """Check that a receipt belongs to a message."""
    for stub in stubs:
        if 0 < stub.number <= len(found) and not isinstance(found[stub.number - 1].event, Received):
            yield f"a receipt is for entry {stub.number}, which is not a message"
        if stub.name.startswith(VEIL) and not VEILED.fullmatch(stub.name):
            yield f"the name of the receipt for entry {stub.number} is not a digest"
        message = stub.name.startswith("message:")
        if len(stub.digest) != DIGEST or (
            message and not stub.name.endswith(f":{stub.digest.hex()}")
        ):
            yield f"the digest of the receipt for entry {stub.number} is not valid"


def _line(row: SqlHead, line: CursorRow) -> Iterator[str]:
    """Check that a webhook is readable and can be delivered."""
    try:
        webhook = webhook_of(line.webhook, line.id, row.id)
    except DECODING as error:
        yield f"it cannot be read: {error}"
        return
    if webhook.version not in SUPPORTED:
        yield f"its version is {webhook.version!r}, which is unknown"
    broken: list[str] = []

    def look(text: str, about: str) -> str:
        if text.startswith("sealed:") and not (text.startswith(PLAIN) or WHOLE.fullmatch(text)):
            broken.append(about)
        return text

    secrets(webhook, look)
    if broken:
        yield "its encrypted secret is damaged"
    for name, good in (
        ("attempts", line.attempts >= 0),
        ("due", _time(line.due)),
        ("reason", isinstance(line.reason, str)),
        ("ticket", line.ticket >= 0),
    ):
        if not good:
            yield f"its {name} is not valid: {getattr(line, name)!r}"


def counted(whose: Any, state: int, said: int, number: int) -> str:
    """Describe the problem of a count."""
    name = STATES[state].name.lower() if state in STATES else f"state {state}"
    return f"the count of {whose}: {said} tasks {name}, but there are {number}"
