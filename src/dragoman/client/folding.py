"""A task put together from the events of a stream."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.types import (
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class Folding:
    """Takes events one by one, at the same cost each. Unlike a server's log it forgives: what an
    agent appends to nothing is taken for a beginning. If the content of artifacts is not to be
    kept, their parts are only counted and summed up."""

    def __init__(self, *, keep: bool = True) -> None:
        self.message: Message | None = None
        self._keep = keep
        self._task: Task | None = None
        """Without what the following hold."""
        self._history: list[Message] = []
        self._artifacts: dict[str, Artifact] = {}
        self._parts: dict[str, list[Part]] = {}
        self._counts: dict[str, int] = {}
        self._sums: dict[str, int] = {}
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
                history=tuple(self._history),
                artifacts=tuple(
                    replace(artifact, parts=tuple(self._parts[key]))
                    for key, artifact in self._artifacts.items()
                ),
            )
        return self._built

    def take(self, event: Event) -> None:
        """One more event."""
        self._built = None
        if isinstance(event, TaskArtifactUpdateEvent):
            if self._task is None:
                self._task = Task(
                    id=event.task_id,
                    context_id=event.context_id,
                    status=TaskStatus(state=TaskState.WORKING),
                )
            self._chunk(event.artifact, event.append)
        elif isinstance(event, TaskStatusUpdateEvent):
            task = self._task or Task(
                id=event.task_id, context_id=event.context_id, status=event.status
            )
            if self._task is not None and task.status.message is not None:
                self._history.append(task.status.message)
            metadata = {**(task.metadata or {}), **(event.metadata or {})} or None
            self._task = replace(task, status=event.status, metadata=metadata)
        elif isinstance(event, Task):
            self._task = replace(event, artifacts=(), history=())
            self._history = list(event.history)
            self._artifacts, self._parts, self._counts, self._sums = {}, {}, {}, {}
            for artifact in event.artifacts:
                self._chunk(artifact, append=False)
        else:
            self.message = event

    def _chunk(self, piece: Artifact, append: bool) -> None:
        key = piece.artifact_id
        if append and key in self._counts:
            self._counts[key] += len(piece.parts)
            if self._keep:
                self._parts[key].extend(piece.parts)
            else:
                self._sums[key] = _sum(piece.parts, self._sums[key])
            return
        self._counts[key] = len(piece.parts)
        if self._keep:
            self._artifacts[key] = piece
            self._parts[key] = list(piece.parts)
        else:
            self._sums[key] = _sum(piece.parts)

    def catch_up(self, task: Task) -> list[Event]:
        """Take the task as it is now; the events that lead there, as far as can be told."""
        found: list[Event] = []
        if self._task is None:
            found.append(task)
        else:
            for artifact in task.artifacts:
                found += self._gained(task, artifact)
            if task.status != self._task.status:
                found.append(
                    TaskStatusUpdateEvent(
                        task_id=task.id, context_id=task.context_id, status=task.status
                    )
                )
        self.take(task)
        return found

    def _gained(self, task: Task, artifact: Artifact) -> list[Event]:
        key = artifact.artifact_id
        known = self._counts.get(key)
        before = artifact.parts[:known]
        whole = known is None or (
            list(before) != self._parts[key] if self._keep else _sum(before) != self._sums[key]
        )
        rest = artifact if whole else replace(artifact, parts=artifact.parts[known:])
        if not rest.parts:
            return []
        return [
            TaskArtifactUpdateEvent(
                task_id=task.id, context_id=task.context_id, artifact=rest, append=not whole
            )
        ]


def _sum(parts: Sequence[Part], before: int = 0) -> int:
    """What tells content that is not kept from other content."""
    for part in parts:
        before = zlib.crc32(msgspec.json.encode(part), before)
    return before
