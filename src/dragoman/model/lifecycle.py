"""The fold of a log into a task, and the legal transitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from dragoman.model.events import Event, Received
from dragoman.model.types import (
    Artifact,
    Metadata,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)


class IllegalEvent(ValueError):
    """The event is not legal after the events in the log."""


def advance(state: TaskState | None, event: Event) -> TaskState:
    """The state after the event; `None` is a log without a message."""
    if state is None:
        if type(event) is Received:
            return TaskState.SUBMITTED
        raise IllegalEvent("a log must start with a message")
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
    """The task after all of the events, in linear time."""
    rest = iter(events)
    if task is None:
        first = next(rest, None)
        if not isinstance(first, Received):
            raise IllegalEvent("a log must start with a message")
        task = birth(first)
    made = Fold(task)
    for event in rest:
        advance(made.status.state, event)
        if type(event) is TaskArtifactUpdateEvent and event.append:
            key = event.artifact.artifact_id
            if key not in made.artifacts:
                raise IllegalEvent(f"append to an artifact that does not exist: {key}")
        made.take(event)
    return made.task()


class Holder(Protocol):
    """Holds an artifact in a fold."""

    def append(self, chunk: Artifact) -> None:
        """Append a chunk."""

    def whole(self) -> Artifact | None:
        """The artifact so far; None if its content was dropped."""


class Fold:
    """The rules of the fold: a task that applies one event after the other, each at a constant
    cost.

    It does not check whether an event is legal: an append to an artifact that does not exist starts
    it. `hold` makes the holder of each artifact, by default the artifact itself.
    """

    __slots__ = ("_hold", "_own", "_task", "artifacts", "history", "metadata", "status")

    def __init__(self, task: Task, hold: Callable[[Artifact], Holder] | None = None) -> None:
        self._task = task
        self._hold = hold
        self.status = task.status
        self.history = list(task.history)
        self.artifacts: dict[str, Artifact | Holder] = {}
        for artifact in task.artifacts:
            self.artifacts[artifact.artifact_id] = hold(artifact) if hold else artifact
        self.metadata = task.metadata
        self._own = False
        """The metadata is not shared, so it may be changed."""

    def take(self, event: Event) -> None:
        """Apply an event."""
        if type(event) is TaskArtifactUpdateEvent:
            chunk = event.artifact
            existing = self.artifacts.get(chunk.artifact_id) if event.append else None
            if existing is None:
                hold = self._hold
                self.artifacts[chunk.artifact_id] = hold(chunk) if hold else chunk
            else:
                if type(existing) is Artifact:
                    existing = self.artifacts[chunk.artifact_id] = Growing(existing)
                existing.append(chunk)  # type: ignore[union-attr]
        elif type(event) is TaskStatusUpdateEvent:
            self._supersede()
            self.status = event.status
            if event.metadata:
                self.metadata = merged(self.metadata, event.metadata, own=self._own)
                self._own = True
        elif type(event) is Received:
            if self._supersede():
                self.status = replace(self.status, message=None)
            self.history.append(event.message)

    def _supersede(self) -> bool:
        """Move the status message to the history."""
        said = self.status.message
        if said is not None:
            self.history.append(said)
        return said is not None

    def task(self) -> Task:
        """The task so far."""
        self._own = False
        wholes = [a if isinstance(a, Artifact) else a.whole() for a in self.artifacts.values()]
        return replace(
            self._task,
            status=self.status,
            history=tuple(self.history),
            artifacts=tuple([artifact for artifact in wholes if artifact is not None]),
            metadata=self.metadata,
        )


class Growing:
    """An artifact that grows by chunks, each at a constant cost.

    The last part so far and the first part of a chunk are joined if both are plain text of one
    media type. The parts of one event stay separate.
    """

    __slots__ = ("_kind", "_own", "artifact", "joined", "metadata", "parts", "texts")

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        """The artifact when it was last complete."""
        self.parts: list[Part] | None = None
        """Its parts, if chunks have arrived since then."""
        self.texts: list[str] = []
        """The pieces of the last part's text, if they are not joined yet."""
        self._kind = ""
        """The media type of that text."""
        self.joined = 0
        """How often pieces were joined."""
        self.metadata = artifact.metadata
        self._own = False
        """The metadata is not shared, so it may be changed."""

    def append(self, chunk: Artifact) -> None:
        """See `Holder.append`."""
        parts = chunk.parts
        if self.texts and len(parts) == 1:  # nearly all chunks
            part = parts[0]
            if plain_text(part) and part.media_type == self._kind:
                self.texts.append(part.text or "")
                parts = ()
        if parts:
            self._extend(parts)
        if chunk.metadata:
            self.merge(chunk.metadata)

    def _extend(self, more: Sequence[Part]) -> None:
        if self.parts is None:
            self.parts = list(self.artifact.parts)
        last, first = (self.parts or more)[-1], more[0]
        one = plain_text(last) and plain_text(first) and last.media_type == first.media_type
        if one and self.parts:
            if not self.texts:
                self.texts.append(last.text or "")
                self._kind = last.media_type
            self.texts.append(first.text or "")
            more = more[1:]
        if more:
            self._join(self.parts)
            self.parts.extend(more)

    def merge(self, metadata: Metadata) -> None:
        """Merge more metadata."""
        if self.parts is None:
            self.parts = list(self.artifact.parts)
        self.metadata = merged(self.metadata, metadata, own=self._own)
        self._own = True

    def whole(self) -> Artifact:
        """See `Holder.whole`."""
        if self.parts is not None:
            self._join(self.parts)
            self.artifact = replace(self.artifact, parts=tuple(self.parts), metadata=self.metadata)
            self.parts = None
            self._own = False
        return self.artifact

    def _join(self, parts: list[Part]) -> None:
        if self.texts:
            parts[-1] = replace(parts[-1], text="".join(self.texts))
            self.texts = []
            self.joined += 1


def plain_text(part: Part) -> bool:
    """Whether the part is only text, so that more text may be appended."""
    return part.text is not None and not part.filename and not part.metadata


def merged(existing: Metadata | None, more: Metadata, *, own: bool) -> Metadata:
    """Merge both; later values win. `existing` itself is changed if it is `own`."""
    if existing is None or not own:
        return {**(existing or {}), **more}
    existing.update(more)
    return existing


def birth(received: Received) -> Task:
    """The task that its first message makes."""
    message = received.message
    return Task(
        id=message.task_id,
        context_id=message.context_id,
        status=TaskStatus(state=TaskState.SUBMITTED, timestamp=received.at),
        history=(message,),
    )
