"""A task put together from the events of a stream."""

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
    """Takes events one by one, at the same cost each, by the rules of `Fold`. Unlike a server's
    log it forgives: what an agent appends to nothing is taken for a beginning. If the content of
    artifacts is not to be kept, only how far each was told is known."""

    def __init__(self, *, keep: bool = True) -> None:
        self.message: Message | None = None
        self.id = ""
        """The task's id, once it is known."""
        self.progress: set[str] = set()
        """The ids of the messages that were told with a state that was not the end."""
        self._hold: type[Kept] | type[Counted] = Kept if keep else Counted
        self._fold: Fold | None = None
        self._recalled = (0, 0)
        """How many messages of the history were weighed, and what they weigh."""
        self._built: Task | None = None

    @property
    def status(self) -> TaskStatus | None:
        """The status so far."""
        return self._fold.status if self._fold else None

    @property
    def task(self) -> Task | None:
        """The task so far."""
        if self._built is None and self._fold is not None:
            self._built = self._fold.task()
        return self._built

    @property
    def empty(self) -> bool:
        """Whether there is a task, and nothing that could be its result."""
        fold = self._fold
        return fold is not None and not fold.artifacts and fold.status.message is None

    def take(self, event: Event) -> None:
        """One more event."""
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

    def weigh(self) -> int:
        """About how many bytes of memory are kept. What was weighed before is not weighed again."""
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
        """Take the task as it is now; the events that lead there, as far as can be told. No text
        is told twice, whatever parts it is cut into."""
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


class Kept(Growing):
    """An artifact that is kept, and how much memory it takes."""

    __slots__ = ("_about", "_pieces", "_pieces_size", "_weighed", "_weighed_size")

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self._about = 0
        """What is said of it weighs so much; 0 if that was not weighed yet."""
        self._weighed = self._weighed_size = 0
        """So many parts, which can grow no more, weigh so much."""
        self._pieces = (0, 0)
        """After so many joins, so many pieces of the text that grows were weighed."""
        self._pieces_size = 0

    def merge(self, metadata: Metadata) -> None:
        """See `Growing.merge`."""
        super().merge(metadata)
        self._about = 0

    def mark(self) -> Mark:
        """How far it was told."""
        return Mark(self.whole().parts)

    def weigh(self) -> int:
        """About how many bytes it takes."""
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
    """An artifact whose content is not kept."""

    __slots__ = ("_mark",)

    def __init__(self, artifact: Artifact) -> None:
        self._mark = Mark(artifact.parts)

    def append(self, chunk: Artifact) -> None:
        """See `Holder.append`."""
        self._mark.add(chunk.parts)

    def whole(self) -> None:
        """See `Holder.whole`."""

    def mark(self) -> Mark:
        """How far it was told."""
        return self._mark

    def weigh(self) -> int:
        """About how many bytes it takes."""
        return 3 * ITEM


class Mark:
    """How far the content of an artifact was told. It is a place in a row of stretches: text of one
    media type, however it is cut into parts, is one stretch, any other part another."""

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
        """These were told, too."""
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
        """What of these parts comes after this place; None if they begin otherwise."""
        at = Mark()
        rest: Sequence[Part] = ()
        for index, part in enumerate(parts):
            more = plain_text(part) and at._kind == part.media_type  # of the same stretch
            if at._stretches == self._stretches and not more:
                rest = parts[index:]
                break
            if at._stretches + (not more) == self._stretches and plain_text(part):
                text = part.text or ""
                left = self._length - (at._length if more else 0)
                if len(text) > left:
                    at.add([replace(part, text=text[:left])])
                    rest = (replace(part, text=text[left:]), *parts[index + 1 :])
                    break
            at.add([part])
        if at._place() != self._place():
            return None
        if all(plain_text(part) and not part.text for part in rest):
            return ()
        return tuple(rest)


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
