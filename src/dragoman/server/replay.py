"""Finds in the log where a handler was: its message, its private entries, what it said since."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.agent.durable import FORM
from dragoman.model.events import Entry, Private, Received
from dragoman.model.remote_task import SENT, BegunTask, RemoteTask
from dragoman.model.task_secret import HANDED_OVER, WRITTEN
from dragoman.model.types import Artifact, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.server import delegated_tasks
from dragoman.server.reader import BATCH, History
from dragoman.stores.store import Claim, Head, Store

SAVED = "saved"
"""The kind of the private entry that keeps a task's value."""
GATE_SAVED = "gate_saved"
"""The same, of the gate of a skill."""
POSTPONED = "postponed"
"""The kind of the private entry that says why this turn could not continue: changed code."""


class Resumed(Struct, frozen=True):
    """Where a handler was when its run ended."""

    began: int
    """The number of the message that began it."""
    first: Received
    """That message."""
    entries: tuple[Private, ...] = ()
    """What the handler has written for itself."""
    task: Task | None = None
    """The task as it is in the log; that of the claim may be as it began."""
    saved: bytes | None = None
    gate_saved: bytes | None = None
    """What the gate has saved before this turn."""
    postponed: str = ""
    """Why it was given back the last time, if its code had changed."""
    delegated: tuple[RemoteTask, ...] = ()
    """The tasks of other agents that the task began."""
    begun: dict[str, BegunTask] = {}
    """Those that this handler began, by the names of its sends."""
    form: int = FORM
    """See `Private.form`."""
    incoming: Received | None = None
    """The message that it has not read yet."""
    grown: tuple[Artifact, ...] = ()
    """Artifacts that grew after the last of these entries, as they were at that entry."""
    repeated: frozenset[str] = frozenset()
    """The ids of status messages that came after it."""


async def resumed(store: Store, claim: Claim, *, durable: bool = True) -> Resumed:
    """Where the handler of a claim was; UnknownEntry."""
    head = claim.head
    began = head.began or head.turn
    first = claim.received if began == head.turn else await message_at(store, head, began)
    if not head.private and (head.last <= began or not durable):
        return Resumed(began, first, form=FORM)
    private = await store.private(head.scope, head.id) if head.private else ()
    saved, gate_saved, postponed = None, None, ""
    own: list[Entry] = []
    begun: dict[str, BegunTask] = {}
    unnamed = False
    read = {began}
    for entry in private:
        event = entry.event
        assert isinstance(event, Private)
        if event.kind == SAVED:
            saved = bytes(event.value)
        elif event.kind == GATE_SAVED:
            if entry.turn < began:
                gate_saved = bytes(event.value)
        elif event.kind == POSTPONED:
            postponed = event.name if entry.turn >= began else ""
        elif event.kind == SENT:
            if entry.turn >= began and event.name:
                begun[event.name] = delegated_tasks.begun(event.value)
            unnamed |= entry.turn >= began and not event.name  # by an older version
        elif entry.turn >= began and event.kind not in (HANDED_OVER, WRITTEN):
            own.append(entry)
            if event.kind in ("answered", "heard") and (number := bytes(event.value)) != b"null":
                read.add(int(number))
    record = await store.load(head.scope, head.id)
    last = own[-1].number if own else began
    grown, repeated = await _since(store, claim, last) if head.last > last else ((), frozenset())
    return Resumed(
        began,
        first,
        entries=tuple(entry.event for entry in own),  # type: ignore[misc]
        task=record.task if record else None,
        saved=saved,
        gate_saved=gate_saved,
        postponed=postponed,
        delegated=delegated_tasks.delegated(private),
        begun=begun,
        form=0 if unnamed and not begun else FORM,
        incoming=None if head.turn in read else claim.received,
        grown=grown,
        repeated=repeated,
    )


async def message_at(store: Store, head: Head, number: int) -> Received:
    """The message of this number."""
    found = await store.read(head.scope, head.id, number - 1, 1)
    event = found[0].event if found else None
    assert isinstance(event, Received)
    return event


async def _since(
    store: Store, claim: Claim, last: int
) -> tuple[tuple[Artifact, ...], frozenset[str]]:
    """What an attempt that ended early said after its last private entry."""
    head = claim.head
    touched: dict[str, None] = {}
    said: set[str] = set()
    after = last
    while entries := await store.read(head.scope, head.id, after, BATCH):
        _note(entries, touched, said)
        after = entries[-1].number
    if not touched:
        return (), frozenset(said)
    before = await History(store, head.scope, head.id).at(last)
    known = {artifact.artifact_id: artifact for artifact in before.artifacts} if before else {}
    return tuple(known[key] for key in touched if key in known), frozenset(said)


def _note(entries: Sequence[Entry], touched: dict[str, None], said: set[str]) -> None:
    for entry in entries:
        event = entry.event
        if isinstance(event, TaskArtifactUpdateEvent):
            touched[event.artifact.artifact_id] = None
        elif isinstance(event, TaskStatusUpdateEvent) and event.status.message is not None:
            said.add(event.status.message.message_id)
