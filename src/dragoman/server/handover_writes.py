"""Tasks that were handed over: the holder of the handover writes to them until their end.

Such a task has no worker. Each write is checked against the epoch of the task and begins the next
one, so of two writes at the same time one is done after the other, and a cancel or a deadline ends
them all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from dragoman.bells.bell import Bell
from dragoman.dialects import v1_0
from dragoman.model import clock
from dragoman.model.errors import HandoverEnded, InvalidParams, TaskNotFound, Unavailable
from dragoman.model.events import Entry, Private
from dragoman.model.lifecycle import IllegalEvent
from dragoman.model.task_secret import HANDED_OVER, WRITTEN
from dragoman.model.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.server.replay import message_at
from dragoman.server.task_secrets import opened
from dragoman.stores.store import WRITER, Claim, Head, Pause, Stale, Store

TRIES, PAUSE = 10, 0.01
"""How often a write is tried that others were quicker than, and with which pauses in seconds."""
PATIENCE = 1.0
"""Seconds that a write waits for the end of the handler."""

Written = TaskStatusUpdateEvent | TaskArtifactUpdateEvent


async def current(store: Store, agent: str, task: str, secret: str) -> Task:
    """The task that this secret was given for; TaskNotFound."""
    head, *_ = await opened(store, agent, task, secret, HANDED_OVER)
    record = await store.load(head.scope, head.id)
    if record is None:
        raise TaskNotFound
    return record.task


async def write(
    store: Store,
    bell: Bell,
    agent: str,
    task: str,
    secret: str,
    events: Sequence[Written],
    key: str = "",
) -> Task:
    """Append events to a task that was handed over, and return the task. A write with the `key` of
    an earlier one has been done. TaskNotFound, HandoverEnded, InvalidParams, LimitExceeded;
    Unavailable if the handler has not ended yet."""
    with bell.listeners.listen(task) as changed:
        for attempt in range(TRIES):
            # not all at the same time again
            await asyncio.sleep(attempt * random.uniform(0.0, PAUSE))
            # the head is read before the entries: whatever is written after it ends its epoch
            head, private, turn = await opened(store, agent, task, secret, HANDED_OVER)
            if key and _repeated(private, key):
                break
            record = await store.load(head.scope, head.id)
            if record is None:
                raise TaskNotFound
            _check(events, record.task)
            if _is_running(head, turn):
                if attempt:
                    raise Unavailable("The handler has not ended yet", headers={"retry-after": "1"})
                await changed.wait(PATIENCE)
            elif await _appended(store, bell, head, record.task, events, key):
                break
        else:
            raise Unavailable("The task changes too often", headers={"retry-after": "1"})
    return await current(store, agent, task, secret)


async def _appended(
    store: Store, bell: Bell, head: Head, task: Task, events: Sequence[Written], key: str
) -> bool:
    """Append the events under the epoch of this head; False if another one has begun."""
    last = events[-1]
    ends = isinstance(last, TaskStatusUpdateEvent) and last.status.state.settled
    entries = [Entry(0, event, head.turn, v1_0.response(event)) for event in events]
    if key:
        noted = Private(kind=WRITTEN, name=key, at=clock.now())
        entries.insert(0, Entry(0, noted, head.turn, b""))
    claim = Claim(head=head, task=task, received=await message_at(store, head, head.turn))
    pause = None if ends else Pause(waits=WRITER, began=head.began)
    try:
        more = await store.append(claim, entries, release=True, pause=pause)
    except Stale:
        return False
    except IllegalEvent as error:
        raise InvalidParams.at("events", str(error)) from None
    _ring(bell, head, more=more)
    return True


def _ring(bell: Bell, head: Head, *, more: bool) -> None:
    bell.ring(head.id)
    if head.hooked:
        bell.ring(f"push:{head.scope.agent}")
    if more:
        bell.ring(f"work:{head.scope.agent}")


def _repeated(private: Sequence[Entry], key: str) -> bool:
    return any(
        isinstance(entry.event, Private) and entry.event.kind == WRITTEN and entry.event.name == key
        for entry in private
    )


def _is_running(head: Head, turn: int) -> bool:
    """Whether the handler that handed the task over in this turn is still running, or will run
    again after a crash. Raises HandoverEnded if the handover has ended."""
    if head.over:
        raise HandoverEnded(f"The task has ended ({head.state.name.lower()})")
    if head.canceling:
        raise HandoverEnded("The task is being canceled")
    if turn < (head.began or head.turn):  # a later turn has a handover of its own, or none
        raise HandoverEnded
    if head.holder:
        return True
    if head.waits == WRITER:
        return False
    if not (head.began or head.reading):
        raise HandoverEnded
    return True


def _check(events: Sequence[Written], task: Task) -> None:
    """Refuse events that cannot follow what the task has."""
    known = {artifact.artifact_id for artifact in task.artifacts}
    for number, event in enumerate(events):
        where = f"events[{number}]"
        if isinstance(event, TaskArtifactUpdateEvent):
            id = event.artifact.artifact_id
            if event.append and id not in known:
                raise InvalidParams.at(f"{where}.artifactUpdate", f"there is no artifact {id!r}")
            known.add(id)
        elif event.status.state.settled and number + 1 < len(events):
            raise InvalidParams.at(f"events[{number + 1}]", "the event before it ends the handover")
