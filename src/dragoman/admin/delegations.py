"""Which tasks a task has begun at other agents, and which ones it serves itself."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.model.events import Entry, Private, Received
from dragoman.model.lineage import Ancestor, lineage
from dragoman.model.remote_task import SEEN, SENT, SeenTask, SentTask
from dragoman.model.types import TaskState

_sent = msgspec.json.Decoder(SentTask).decode
_seen = msgspec.json.Decoder(SeenTask).decode


class Delegated(Struct, frozen=True, kw_only=True):
    """A task that a task has begun at another agent, as it is in its log."""

    number: int
    """The entry that names it."""
    turn: int
    at: str
    agent: str
    """The name on the agent's card; empty if it is not known."""
    address: str
    task: str
    state: TaskState | None = None
    """The state in which it was last seen; None if the log does not say it."""
    seen: str = ""
    """When that was."""


def delegations(entries: Iterable[Entry], known: Iterable[Delegated] = ()) -> tuple[Delegated, ...]:
    """Return the tasks that a log names, each once, in the order in which they were begun. `known`
    is what the entries before these have named."""
    found = {(each.address, each.task): each for each in known}
    for entry in entries:
        event = entry.event
        if not isinstance(event, Private) or event.sealed:
            continue
        if event.kind == SENT:
            sent = _sent(event.value)
            key = (sent.address, sent.id)
            if key not in found:
                found[key] = Delegated(
                    number=entry.number,
                    turn=entry.turn,
                    at=event.at,
                    agent=sent.agent,
                    address=sent.address,
                    task=sent.id,
                )
        elif event.kind == SEEN:
            seen = _seen(event.value)
            if (begun := found.get((seen.address, seen.id))) is not None:
                found[begun.address, begun.task] = replace(begun, state=seen.state, seen=event.at)
    return tuple(found.values())


def ancestors(entries: Iterable[Entry]) -> tuple[Ancestor, ...]:
    """Return the tasks that a task serves, the first one first: what its first message says."""
    for entry in entries:
        if isinstance(entry.event, Received):
            return lineage(entry.event.metadata or {})
    return ()
