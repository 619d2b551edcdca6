"""A task put together from the events of a stream, and what one state of it has over another."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.types import (
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)

Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class Folding:
    """Takes events one by one, at the same cost each. Unlike a server's log it forgives: what an
    agent appends to nothing is taken for a beginning."""

    def __init__(self) -> None:
        self.message: Message | None = None
        self._task: Task | None = None
        self._artifacts: dict[str, Artifact] = {}
        self._parts: dict[str, list[Part]] = {}
        self._built: Task | None = None

    @property
    def id(self) -> str:
        """The task's id, once it is known."""
        return self._task.id if self._task else ""

    @property
    def status(self) -> TaskStatus | None:
        """The status so far."""
        return self._task.status if self._task else None

    @property
    def task(self) -> Task | None:
        """The task so far."""
        if self._built is None and self._task is not None:
            self._built = replace(
                self._task,
                artifacts=tuple(
                    replace(artifact, parts=tuple(self._parts[key]))
                    for key, artifact in self._artifacts.items()
                ),
            )
        return self._built

    def take(self, event: Event) -> None:
        """One more event."""
        self._built = None
        if isinstance(event, Message):
            self.message = event
        elif isinstance(event, Task):
            self._task = event
            self._artifacts = {item.artifact_id: item for item in event.artifacts}
            self._parts = {item.artifact_id: list(item.parts) for item in event.artifacts}
        elif isinstance(event, TaskStatusUpdateEvent):
            task = self._task or Task(
                id=event.task_id, context_id=event.context_id, status=event.status
            )
            history = task.history
            if self._task is not None and task.status.message is not None:
                history = (*history, task.status.message)
            metadata = {**(task.metadata or {}), **(event.metadata or {})} or None
            self._task = replace(task, status=event.status, history=history, metadata=metadata)
        else:
            self._chunk(event.artifact, event.append)

    def _chunk(self, piece: Artifact, append: bool) -> None:
        key = piece.artifact_id
        if append and key in self._artifacts:
            self._parts[key].extend(piece.parts)
        else:
            self._artifacts[key] = piece
            self._parts[key] = list(piece.parts)


def news(before: Task | None, after: Task) -> list[Event]:
    """The events that lead from one state of a task to a later one, as far as can be told."""
    if before is None:
        return [after]
    found: list[Event] = []
    known = {item.artifact_id: item for item in before.artifacts}
    for artifact in after.artifacts:
        old = known.get(artifact.artifact_id)
        if old is None:
            found.append(_update(after, artifact, append=False))
        elif artifact.parts[: len(old.parts)] == old.parts:
            if rest := artifact.parts[len(old.parts) :]:
                found.append(_update(after, replace(artifact, parts=rest), append=True))
        else:
            found.append(_update(after, artifact, append=False))
    if after.status != before.status:
        found.append(
            TaskStatusUpdateEvent(
                task_id=after.id, context_id=after.context_id, status=after.status
            )
        )
    return found


def _update(task: Task, artifact: Artifact, *, append: bool) -> TaskArtifactUpdateEvent:
    return TaskArtifactUpdateEvent(
        task_id=task.id, context_id=task.context_id, artifact=artifact, append=append
    )
