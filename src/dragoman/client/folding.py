"""A task put together from the events of a stream."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
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
    kept, their parts are only counted and summed up."""

    def __init__(self, *, keep: bool = True) -> None:
        self.message: Message | None = None
        self.id = ""
        """The task's id, once it is known."""
        self._keep = keep
        self._task: Task | None = None
        """Without what the following hold."""
        self._history: list[Message] = []
        self._artifacts: dict[str, Artifact] = {}
        self._parts: dict[str, list[Part]] = {}
        self._counts: dict[str, int] = {}
        self._sums: dict[str, int] = {}
        self._weighed: dict[str, tuple[int, int]] = {}
        """How many parts of each artifact were weighed, and what it weighs with them."""
        self._recalled = (0, 0)
        """The same of the messages of the history."""
        self._built: Task | None = None

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
                self.id = event.task_id
            self._chunk(event.artifact, event.append)
        elif isinstance(event, TaskStatusUpdateEvent):
            task = self._task or Task(
                id=event.task_id, context_id=event.context_id, status=event.status
            )
            if self._task is not None and task.status.message is not None:
                self._history.append(task.status.message)
            metadata = {**(task.metadata or {}), **(event.metadata or {})} or None
            self._task = replace(task, status=event.status, metadata=metadata)
            self.id = task.id
        elif isinstance(event, Task):
            self._task = replace(event, artifacts=(), history=())
            self.id = event.id
            self._history = list(event.history)
            self._artifacts, self._parts, self._counts, self._sums = {}, {}, {}, {}
            self._weighed, self._recalled = {}, (0, 0)
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
        self._weighed.pop(key, None)
        if self._keep:
            self._artifacts[key] = piece
            self._parts[key] = list(piece.parts)
        else:
            self._sums[key] = _sum(piece.parts)

    def weigh(self) -> int:
        """About how many bytes of memory are kept. Parts that were weighed before are not weighed
        again."""
        count, size = self._recalled
        size += sum(map(_message, islice(self._history, count, None)))
        self._recalled = len(self._history), size
        if self._task is not None:
            said, metadata = self._task.status.message, self._task.metadata
            size += _message(said) if said is not None else 0
            size += _data(metadata) if metadata else 0
        for key in self._counts:
            size += self._artifact(key)
        return size

    def _artifact(self, key: str) -> int:
        done, size = self._weighed.get(key, (0, 0))
        parts = self._parts.get(key, ())
        if not size:
            size = ITEM + _text(key)
            if self._keep:
                made = self._artifacts[key]
                size += _text(made.name) + _text(made.description)
                size += _data(made.metadata) if made.metadata else 0
        elif len(parts) == done:
            return size
        size += _parts(islice(parts, done, None))
        self._weighed[key] = len(parts), size
        return size

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


_size = sys.getsizeof


def _text(text: str) -> int:
    return _size(text) if text else 0


def _data(value: Any) -> int:
    """About what a JSON value takes in memory. A small one takes many times its length."""
    text = msgspec.json.encode(value)
    return len(text) + 64 * (1 + text.count(b",") + text.count(b"[") + text.count(b"{"))


def _parts(parts: Iterable[Part]) -> int:
    size = 0
    for part in parts:
        text = part.text
        if text is None or part.metadata is not None or part.filename or part.media_type:
            size += _part(part)
        else:  # nearly all are such
            size += ITEM + _size(text)
    return size


def _part(part: Part) -> int:
    size = ITEM + _text(part.filename) + _text(part.media_type)
    size += _data(part.metadata) if part.metadata else 0
    if part.data is not msgspec.UNSET:
        return size + _data(part.data)
    return size + _size(part.text or part.raw or part.url)


def _message(message: Message) -> int:
    size = ITEM + _text(message.message_id) + _parts(message.parts)
    return size + (_data(message.metadata) if message.metadata else 0)
