"""A task put together from the events of a stream."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

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

ITEM = 160
"""What a part, a message or an artifact takes in memory, beside its content."""


class Folding:
    """Takes events one by one, at the same cost each. Unlike a server's log it forgives: what an
    agent appends to nothing is taken for a beginning. If the content of artifacts is not to be
    kept, their parts are only counted and summed up. `size` is about what is kept, in bytes."""

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
        self._sizes: dict[str, int] = {}
        """What is kept of each artifact."""
        self._about: dict[str, int] = {}
        """What is kept of each key of the metadata."""
        self._beside = 0
        """What is kept beside artifacts and the status: history and metadata."""
        self._said = 0
        """What is kept of the status."""
        self._made = 0
        """The sum of `_sizes`."""
        self._built: Task | None = None

    @property
    def size(self) -> int:
        """How many bytes of memory are kept, about."""
        return self._beside + self._said + self._made

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
                self._beside += self._said
            self._said = _status(event.status)
            metadata = {**(task.metadata or {}), **(event.metadata or {})} or None
            self._note(event.metadata)
            self._task = replace(task, status=event.status, metadata=metadata)
        elif isinstance(event, Task):
            self._task = replace(event, artifacts=(), history=())
            self._history = list(event.history)
            self._artifacts, self._parts, self._counts, self._sums = {}, {}, {}, {}
            self._sizes, self._made = {}, 0
            self._said = _status(event.status)
            self._beside = sum(map(_message, event.history))
            self._about = {}
            self._note(event.metadata)
            for artifact in event.artifacts:
                self._chunk(artifact, append=False)
        else:
            self.message = event

    def _note(self, metadata: dict[str, Any] | None) -> None:
        for key, value in (metadata or {}).items():
            size = _text(key) + _data(value)
            self._beside += size - self._about.get(key, 0)
            self._about[key] = size

    def _chunk(self, piece: Artifact, append: bool) -> None:
        key = piece.artifact_id
        goes_on = append and key in self._counts
        grown = _parts(piece.parts) if self._keep else 0
        if not goes_on:  # a new one takes the place of the old one
            grown += ITEM + _text(key)
            if self._keep:
                grown += _text(piece.name) + _text(piece.description)
                grown += _data(piece.metadata) if piece.metadata else 0
            grown -= self._sizes.get(key, 0)
        self._sizes[key] = self._sizes.get(key, 0) + grown
        self._made += grown
        if goes_on:
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


# ---- how much it is ------------------------------------------------------------------------


def _text(text: str | bytes | None) -> int:
    return sys.getsizeof(text) if text else 0


def _data(value: Any) -> int:
    """About what a JSON value takes in memory. A small one takes many times its length."""
    text = msgspec.json.encode(value)
    return len(text) + 64 * (1 + text.count(b",") + text.count(b"[") + text.count(b"{"))


def _parts(parts: Iterable[Part]) -> int:
    size = 0
    for part in parts:
        size += ITEM + _text(part.text) + _text(part.raw) + _text(part.url)
        size += _text(part.filename) + _text(part.media_type)
        if part.data is not msgspec.UNSET:
            size += _data(part.data)
        if part.metadata:
            size += _data(part.metadata)
    return size


def _message(message: Message) -> int:
    size = ITEM + _text(message.message_id) + _parts(message.parts)
    return size + (_data(message.metadata) if message.metadata else 0)


def _status(status: TaskStatus) -> int:
    return _message(status.message) if status.message is not None else 0
