"""The fold of a log into a task, and the transitions that are legal."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.events import Event, Received
from dragoman.types import (
    Artifact,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)


class IllegalEvent(ValueError):
    """The event cannot follow what the log already says."""


def advance(state: TaskState | None, event: Event) -> TaskState:
    """The state after the event; `None` is a log without a message yet."""
    if state is None:
        if type(event) is Received:
            return TaskState.SUBMITTED
        raise IllegalEvent("a log begins with a message")
    if state.terminal:
        raise IllegalEvent(f"the task has already ended ({state.name.lower()})")
    if type(event) is TaskStatusUpdateEvent:
        new = event.status.state
        if new is TaskState.SUBMITTED and state is not TaskState.SUBMITTED:
            raise IllegalEvent(f"a task cannot go back from {state.name.lower()} to submitted")
        return new
    return state


def apply(task: Task | None, event: Event) -> Task:
    """The task after one more event."""
    return fold(task, (event,))


def fold(task: Task | None, events: Iterable[Event]) -> Task:
    """The task after all of the events, at a cost linear in their number."""
    rest = iter(events)
    if task is None:
        first = next(rest, None)
        if not isinstance(first, Received):
            raise IllegalEvent("a log begins with a message")
        task = birth(first)
    status, metadata = task.status, task.metadata
    history = list(task.history)
    artifacts: dict[str, Artifact] = {a.artifact_id: a for a in task.artifacts}
    grown: dict[str, list[Part]] = {}

    for event in rest:
        advance(status.state, event)
        if type(event) is TaskArtifactUpdateEvent:
            piece = event.artifact
            key = piece.artifact_id
            if not event.append:
                artifacts[key] = piece
                grown.pop(key, None)
            elif key in artifacts:
                if key not in grown:
                    grown[key] = list(artifacts[key].parts)
                grown[key].extend(piece.parts)
                if piece.metadata:
                    known = artifacts[key].metadata or {}
                    artifacts[key] = replace(artifacts[key], metadata={**known, **piece.metadata})
            else:
                raise IllegalEvent(f"append to an artifact that does not exist: {key}")
        elif type(event) is TaskStatusUpdateEvent:
            if status.message is not None:
                history.append(status.message)
            status = event.status
            if event.metadata:
                metadata = {**(metadata or {}), **event.metadata}
        elif type(event) is Received:
            if status.message is not None:
                history.append(status.message)
                status = replace(status, message=None)
            history.append(event.message)

    for key, parts in grown.items():
        artifacts[key] = replace(artifacts[key], parts=tuple(parts))
    return replace(
        task,
        status=status,
        history=tuple(history),
        artifacts=tuple(artifacts.values()),
        metadata=metadata,
    )


def birth(received: Received) -> Task:
    """The task as its first message makes it."""
    message = received.message
    return Task(
        id=message.task_id,
        context_id=message.context_id,
        status=TaskStatus(state=TaskState.SUBMITTED, timestamp=received.at),
        history=(message,),
    )
