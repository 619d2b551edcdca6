"""Builds a task from the events of a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.model.lifecycle import Fold, Growing, plain_text
from dragoman.model.types import (
    Artifact,
    Message,
    Metadata,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent

ITEM = 160
"""Bytes of memory for a part, a message or an artifact, without its content."""


class Folding:
    """Applies events one by one, at a constant cost, by the rules of `Fold`. It is more tolerant
    than the server's log: a chunk appended to a missing artifact starts that artifact. If artifacts
    are not kept, it records only how much of each has arrived."""

    def __init__(self, *, keep: bool = True) -> None:
        self.message: Message | None = None
        self.id = ""
        """The task's id, once it is known."""
        self.progress: set[str] = set()
        """The ids of the messages that came with a state that was not final."""
        self._hold: type[Kept] | type[Counted] = Kept if keep else Counted
        self._fold: Fold | None = None
        self._recalled = (0, 0)
        """How many messages of the history were measured, and their size."""
        self._built: Task | None = None

    @property
    def status(self) -> TaskStatus | None:
        """The current status."""
        return self._fold.status if self._fold else None

    @property
    def task(self) -> Task | None:
        """The task so far."""
        if self._built is None and self._fold is not None:
            self._built = self._fold.task()
        return self._built

    @property
    def empty(self) -> bool:
        """Whether the task has no content that could be its result."""
        fold = self._fold
        return fold is not None and not fold.artifacts and fold.status.message is None

    def take(self, event: Event) -> None:
        """Apply an event."""
        self._built = None
        fold = self._fold
        if isinstance(event, TaskArtifactUpdateEvent):
            if fold is None:
                fold = self._begin(event, TaskStatus(state=TaskState.WORKING))
            fold.take(event)
        elif isinstance(event, TaskStatusUpdateEvent):
            self._note(event.status)
            if fold is None:
                fold = self._begin(event, TaskStatus(state=event.status.state))
            fold.take(event)
        elif isinstance(event, Task):
            self._note(event.status)
            self._fold = Fold(event, self._hold)
            self._recalled = (0, 0)
            self.id = event.id
        else:
            self.message = event

    def _begin(
        self, event: TaskArtifactUpdateEvent | TaskStatusUpdateEvent, status: TaskStatus
    ) -> Fold:
        self.id = event.task_id
        self._fold = Fold(Task(id=self.id, context_id=event.context_id, status=status), self._hold)
        return self._fold

    def _note(self, status: TaskStatus) -> None:
        if status.message is not None and not status.state.terminal:
            self.progress.add(status.message.message_id)

    def restore(self, task: Task | None, message: Message | None, progress: Iterable[str]) -> None:
        """Begin with what was folded before."""
        for found in (task, message):
            if found is not None:
                self.take(found)
        self.progress.update(progress)

    def weigh(self) -> int:
        """Estimate the bytes of memory in use. What was measured before is not measured again."""
        if self._fold is None:
            return 0
        count, size = self._recalled
        history = self._fold.history
        size += sum(map(_message, islice(history, count, None)))
        self._recalled = len(history), size
        said, metadata = self._fold.status.message, self._fold.metadata
        size += _message(said) if said is not None else 0
        size += _data(metadata) if metadata else 0
        for key, held in self._fold.artifacts.items():
            assert isinstance(held, Kept | Counted)
            size += _text(key) + held.weigh()
        return size

    def catch_up(self, task: Task) -> list[Event]:
        """Apply a snapshot of the task and return the events that lead to it, as far as they can be
        derived. No text is returned twice, even if its parts are split differently."""
        found: list[Event] = []
        if self._fold is None:
            found.append(task)
        else:
            for artifact in task.artifacts:
                found += self._gained(task, artifact)
            if task.status != self._fold.status:
                found.append(
                    TaskStatusUpdateEvent(
                        task_id=task.id, context_id=task.context_id, status=task.status
                    )
                )
        self.take(task)
        return found

    def _gained(self, task: Task, artifact: Artifact) -> list[Event]:
        held = self._fold.artifacts.get(artifact.artifact_id) if self._fold else None
        assert held is None or isinstance(held, Kept | Counted)
        rest = held.mark().rest(artifact.parts) if held else None
        if rest is not None and not rest:
            return []
        gained = artifact if rest is None else replace(artifact, parts=rest)
        return [
            TaskArtifactUpdateEvent(
                task_id=task.id,
                context_id=task.context_id,
                artifact=gained,
                append=rest is not None,
            )
        ]


def progress_since(task: Task, message: str) -> list[Message]:
    """What the agent has said since the message of this id, as far as the history shows it, without
    what is the result."""
    ids = [said.message_id for said in task.history]
    since = task.history[ids.index(message) + 1 :] if message in ids else ()
    found = [said for said in since if said.role is Role.AGENT]
    ended = task.status.state.terminal and task.status.message is None
    if found and ended and not task.artifacts:
        found.pop()  # see `Result.text`
    return found


class Kept(Growing):
    """An artifact with its content and its size in memory."""

    __slots__ = ("_about", "_pieces", "_pieces_size", "_weighed", "_weighed_size")

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self._about = 0
        """The size of its name, description and metadata; 0 if not measured yet."""
        self._weighed = self._weighed_size = 0
        """The number of parts that cannot grow any more and were measured, and their size."""
        self._pieces = (0, 0)
        """The number of joins, and the size of the pieces of growing text that were measured."""
        self._pieces_size = 0

    def merge(self, metadata: Metadata) -> None:
        """See `Growing.merge`."""
        super().merge(metadata)
        self._about = 0

    def mark(self) -> Mark:
        """How much of it has arrived."""
        return Mark(self.whole().parts)

    def weigh(self) -> int:
        """Estimate its bytes of memory."""
        if not self._about:
            self._about = _text(self.artifact.name) + _text(self.artifact.description) + ITEM
            self._about += _data(self.metadata) if self.metadata else 0
        parts: Sequence[Part] = self.artifact.parts if self.parts is None else self.parts
        last = max(len(parts) - 1, 0)
        self._weighed_size += _parts(parts[self._weighed : last])
        self._weighed = last
        size = self._about + self._weighed_size
        if not self.texts:
            return size + _parts(parts[last:])
        joined, count = self._pieces
        if joined != self.joined:
            count = self._pieces_size = 0
        self._pieces_size += sum(map(_size, self.texts[count:]))
        self._pieces = self.joined, len(self.texts)
        return size + ITEM + self._pieces_size


class Counted:
    """An artifact without its content."""

    __slots__ = ("_mark",)

    def __init__(self, artifact: Artifact) -> None:
        self._mark = Mark(artifact.parts)

    def append(self, chunk: Artifact) -> None:
        """See `Holder.append`."""
        self._mark.add(chunk.parts)

    def whole(self) -> None:
        """See `Holder.whole`."""

    def mark(self) -> Mark:
        """How much of it has arrived."""
        return self._mark

    def weigh(self) -> int:
        """Estimate its bytes of memory."""
        return 3 * ITEM


class Mark:
    """How much of an artifact's content has arrived, as a position in a sequence of stretches. Text
    of one media type is one stretch, even if it is split into several parts. Any other part is a
    stretch by itself."""

    __slots__ = ("_kind", "_length", "_stretches", "_sum")

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self._sum = blake2b(digest_size=16)
        self._stretches = 0
        self._length = 0
        """The characters of the last stretch."""
        self._kind: str | None = None
        """The media type of the last stretch; None if it is not text."""
        self.add(parts)

    def add(self, parts: Iterable[Part]) -> None:
        """Advance by these parts."""
        for part in parts:
            if not plain_text(part):
                self._begin(None)
                self._sum.update(msgspec.json.encode(part))
                continue
            if not (text := part.text or ""):
                continue
            if self._kind != part.media_type:
                self._begin(part.media_type)
            self._length += len(text)
            self._sum.update(text.encode("utf-8", "surrogatepass"))

    def _begin(self, kind: str | None) -> None:
        self._sum.update(f"{self._length} {kind} ".encode("utf-8", "surrogatepass"))
        self._stretches += 1
        self._length = 0
        self._kind = kind

    def _place(self) -> tuple[int, int, bytes]:
        return self._stretches, self._length, self._sum.digest()

    def rest(self, parts: Sequence[Part]) -> tuple[Part, ...] | None:
        """Return what follows this position in these parts; None if their beginning differs."""
        position = Mark()
        rest: Sequence[Part] = ()
        for index, part in enumerate(parts):
            more = plain_text(part) and position._kind == part.media_type  # in the same stretch
            if position._stretches == self._stretches and not more:
                rest = parts[index:]
                break
            if position._stretches + (not more) == self._stretches and plain_text(part):
                text = part.text or ""
                left = self._length - (position._length if more else 0)
                if len(text) > left:
                    position.add([replace(part, text=text[:left])])
                    rest = (replace(part, text=text[left:]), *parts[index + 1 :])
                    break
            position.add([part])
        if position._place() != self._place():
            return None
        if all(plain_text(part) and not part.text for part in rest):
            return ()
        return tuple(rest)


# ---- size in memory -------------------------------------------------------------------------


_size = sys.getsizeof


def _text(text: str) -> int:
    return _size(text) if text else 0


def _data(value: Any) -> int:
    """Estimate the bytes of memory of a JSON value. A small one takes many times its length."""
    text = msgspec.json.encode(value)
    return len(text) + 64 * (1 + text.count(b",") + text.count(b"[") + text.count(b"{"))


def _parts(parts: Iterable[Part]) -> int:
    size = 0
    for part in parts:
        text = part.text
        if text is None or part.metadata is not None or part.filename or part.media_type:
            size += _part(part)
        else:  # nearly all values
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
