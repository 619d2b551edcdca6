"""The fold of a log into a task, and the transitions that are legal."""

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
    """The event cannot follow what the log already says."""


def advance(state: TaskState | None, event: Event) -> TaskState:
    """The state after the event; `None` is a log without a message yet."""
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
    """The task after all of the events, at a cost linear in their number."""
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
    """What a fold keeps of an artifact."""

    def append(self, chunk: Artifact) -> None:
        """Take more of it."""

    def whole(self) -> Artifact | None:
        """The artifact so far; None if its content was dropped."""


class Fold:
    """The rules of the fold: a task that takes one event after the other, at the same cost each.

    Whether an event is legal is for others to say; an append to an artifact that does not exist
    begins it. `hold` makes what is kept of each artifact, if that is not the artifact itself.
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
        """The metadata are nobody else's, and may be changed."""

    def take(self, event: Event) -> None:
        """One more event."""
        if type(event) is TaskArtifactUpdateEvent:
            chunk = event.artifact
            known = self.artifacts.get(chunk.artifact_id) if event.append else None
            if known is None:
                hold = self._hold
                self.artifacts[chunk.artifact_id] = hold(chunk) if hold else chunk
            else:
                if type(known) is Artifact:
                    known = self.artifacts[chunk.artifact_id] = Growing(known)
                known.append(chunk)  # type: ignore[union-attr]
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
        """What the status said is history now."""
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
    """An artifact that takes chunks, at the same cost each.

    Text that was cut into chunks is one text: the last part so far and the first part of a chunk
    become one if both are plain text of one media type. The parts of one event stay apart.
    """

    __slots__ = ("_kind", "_own", "artifact", "joined", "metadata", "parts", "texts")

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        """As it was when it was last whole."""
        self.parts: list[Part] | None = None
        """Its parts, if chunks have come since then."""
        self.texts: list[str] = []
        """The pieces of the last part's text, if they are not joined yet."""
        self._kind = ""
        """The media type of that text."""
        self.joined = 0
        """How often pieces were joined."""
        self.metadata = artifact.metadata
        self._own = False
        """The metadata are nobody else's, and may be changed."""

    def append(self, chunk: Artifact) -> None:
        """See `Holder.append`."""
        parts = chunk.parts
        if self.texts and len(parts) == 1:  # nearly all are such
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
        """Take more metadata."""
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
    """Whether it is text and nothing else, so that more text may be added to it."""
    return part.text is not None and not part.filename and not part.metadata


def merged(known: Metadata | None, more: Metadata, *, own: bool) -> Metadata:
    """Both, the later value of a name; the former is changed if it is `own`."""
    if known is None or not own:
        return {**(known or {}), **more}
    known.update(more)
    return known


def birth(received: Received) -> Task:
    """The task as its first message makes it."""
    message = received.message
    return Task(
        id=message.task_id,
        context_id=message.context_id,
        status=TaskStatus(state=TaskState.SUBMITTED, timestamp=received.at),
        history=(message,),
    )
