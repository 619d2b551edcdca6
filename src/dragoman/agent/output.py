"""The events that a turn makes: from what a handler yields, emits or returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.agent.durable import Journal
from dragoman.agent.running_step import StepScope
from dragoman.agent.unyielded_events import MOST, Made, hand_over, note
from dragoman.model import approvals, clock, to_parts
from dragoman.model.errors import InvalidAgentResponse
from dragoman.model.events import Event, Received, Reply
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
    WireStruct,
)

W = TypeVar("W", bound=WireStruct)


class Output:
    """The half of a turn that makes events."""

    _task: Task
    _received: Received
    _number: int
    _streams: dict[tuple[str, str], str]
    _journal: Journal | None = None
    """What a durable handler has done so far."""
    _sound: Event | None = None
    """The last event, if it is known to be valid, so that it is not checked again."""
    _made_count = _handed_count = 0
    """How many events the handler has made, and how many of them it has yielded or emitted."""
    _made: Made | None = None
    """The events that were made and not yet yielded or emitted, if they are recorded."""
    _count = _messages = 0

    @property
    def _key(self) -> str:
        return f"{self._task.id}:{self._number}"

    def working(self, content: Any = None, *, metadata: Metadata | None = None) -> Event:
        """Report progress: the task is working."""
        return self._new(self._status(TaskState.WORKING, content, metadata))

    def ask(self, content: Any, *, metadata: Metadata | None = None) -> Event:
        """Ask the client for input. Its next message starts the next turn."""
        return self._new(self._status(TaskState.INPUT_REQUIRED, content, metadata))

    def require_auth(
        self,
        content: Any = None,
        *,
        operation: Any = None,
        expires: float = 600.0,
        metadata: Metadata | None = None,
    ) -> Event:
        """Ask the client to authenticate; the handler may continue and wait for it. With an
        `operation`, any JSON value, ask the client to approve that operation within `expires`
        seconds: its reply starts the next turn, which calls `granted` before it performs the
        operation."""
        if operation is not None:
            try:
                grant = approvals.issue(self._task.id, operation, expires)
            except TypeError as error:
                raise InvalidAgentResponse(f"operation: {error}") from error
            metadata = {**(metadata or {}), approvals.GRANT: to_builtins(grant)}
        return self._new(self._status(TaskState.AUTH_REQUIRED, content, metadata))

    def complete(self, content: Any = None, *, metadata: Metadata | None = None) -> Event:
        """Complete the task. A handler that ends without this completes it, too."""
        return self._new(self._status(TaskState.COMPLETED, content, metadata))

    def reject(self, content: Any = None, *, metadata: Metadata | None = None) -> Event:
        """Reject the task: the agent will not do this."""
        return self._new(self._status(TaskState.REJECTED, content, metadata))

    def fail(self, content: Any = None, *, metadata: Metadata | None = None) -> Event:
        """Fail the task: the agent could not do this."""
        return self._new(self._status(TaskState.FAILED, content, metadata))

    def reply(self, content: Any, *, metadata: Metadata | None = None) -> Event:
        """Reply directly. If the handler was registered with `reply=True` and has sent nothing
        before, there is no task; otherwise this is the message of the completed task."""
        return self._new(self._reply(content, metadata))

    def artifact(
        self,
        content: Any,
        *,
        name: str = "",
        description: str = "",
        id: str = "",
        metadata: Metadata | None = None,
    ) -> Event:
        """A complete artifact."""
        return self._new(self._artifact(content, name, description, id, metadata))

    def write(self, content: Any, *, name: str = "", id: str = "", last: bool = False) -> Event:
        """The next chunk of a streamed artifact. Each name is a separate artifact."""
        return self._new(self._piece(content, name, id, last))

    # -- conversion of values

    def _events(self, value: Any) -> Sequence[Event]:
        """Convert a yielded or emitted value to events: events stay as they are, text becomes a
        chunk of the streamed artifact, other values go to `_result`."""
        if isinstance(value, TaskArtifactUpdateEvent | TaskStatusUpdateEvent | Reply):
            self._record_handed_over(value)
            return (value,)
        if isinstance(value, str):
            return (self._piece(value),)
        return self._result(value)

    def _result(self, value: Any) -> Sequence[Event]:
        """Convert a returned value to events. The table is in the documentation."""
        match value:
            case None:
                return ()
            case TaskArtifactUpdateEvent() | TaskStatusUpdateEvent() | Reply():
                self._record_handed_over(value)
                return (value,)
            case Message():
                return (self._reply(value, None),)
            case Artifact():
                return (self._whole(value),)
            case [Artifact(), *_] if all(isinstance(item, Artifact) for item in value):
                return tuple(self._whole(item) for item in value)
            case _:
                return (self._artifact(value),)

    def _record_handed_over(self, event: Event) -> None:
        """Record that an event was yielded, emitted or returned."""
        self._handed_count += 1
        if self._made:
            hand_over(self._made, event, noted=self._made_count <= MOST)

    def _forget_events(self) -> None:
        """Record that all events that were made so far are handed over."""
        self._handed_count = self._made_count
        if self._made:
            self._made.clear()

    # -- making events

    def _new(self, event: Event) -> Event:
        """Record an event that the handler makes through a method of the turn."""
        self._made_count += 1
        if self._made is not None and self._made_count <= MOST:
            note(self._made, event, depth=2)
        return event

    def _artifact(
        self,
        content: Any,
        name: str = "",
        description: str = "",
        id: str = "",
        metadata: Metadata | None = None,
    ) -> Event:
        event = TaskArtifactUpdateEvent(
            task_id=self._task.id,
            context_id=self._task.context_id,
            artifact=Artifact(
                artifact_id=id or self._next_id(),
                name=name,
                description=description,
                parts=parts_of(content),
                metadata=metadata,
                extensions=self._extended(metadata),
            ),
            last_chunk=True,
        )
        plain = type(name) is str and type(description) is str and type(id) is str
        self._sound = event if plain and metadata is None else None
        return event

    def _piece(self, content: Any, name: str = "", id: str = "", last: bool = False) -> Event:
        parts = parts_of(content)
        key = ("id", id) if id else ("name", name)
        artifact_id = self._streams.get(key)
        if artifact_id is None:
            artifact_id = self._streams[key] = id or self._next_id()
            if (scope := self._scope) is not None:
                scope.opened[key] = artifact_id
            artifact = Artifact(artifact_id=artifact_id, name=name, parts=parts)
            append = False
        else:
            artifact = Artifact(artifact_id=artifact_id, parts=parts)
            append = True
        event = TaskArtifactUpdateEvent(
            task_id=self._task.id,
            context_id=self._task.context_id,
            artifact=artifact,
            append=append,
            last_chunk=last,
        )
        plain = type(name) is str and type(id) is str and type(last) is bool
        self._sound = event if plain else None
        return event

    def _whole(self, artifact: Artifact) -> Event:
        return TaskArtifactUpdateEvent(
            task_id=self._task.id,
            context_id=self._task.context_id,
            artifact=_valid(artifact),
            last_chunk=True,
        )

    @property
    def _scope(self) -> StepScope | None:
        """The step of a durable handler that is running."""
        return None if self._journal is None else self._journal.scope

    def _next_id(self) -> str:
        # Derived from turn and ordinal, so that a second attempt replaces what the first one wrote.
        if (scope := self._scope) is not None:
            scope.artifacts += 1
            return f"{self._number}.{scope.digest}.{scope.artifacts}"
        self._count += 1
        return f"{self._number}.{self._count}"

    def _reply(self, content: Any, metadata: Metadata | None) -> Event:
        return Reply(replace(self._message(content, metadata), task_id=""))

    def _status(self, state: TaskState, content: Any, metadata: Metadata | None) -> Event:
        message = None if content is None else self._message(content, None)
        event = TaskStatusUpdateEvent(
            task_id=self._task.id,
            context_id=self._task.context_id,
            status=TaskStatus(state=state, message=message, timestamp=clock.now()),
            metadata=metadata,
        )
        self._sound = event if metadata is None else None
        return event

    def _message(self, content: Any, metadata: Metadata | None) -> Message:
        if isinstance(content, Message):
            return self._own(content)
        id = clock.uuid7()
        if self._journal is not None:
            # derived from turn and ordinal, so that a second attempt is recognized
            if (scope := self._journal.scope) is not None:
                scope.messages += 1
                id = f"{self._key}:{scope.digest}:{scope.messages}"
            else:
                self._messages += 1
                id = f"{self._key}:{self._messages}"
        return Message(
            message_id=id,
            context_id=self._task.context_id,
            task_id=self._task.id,
            role=Role.AGENT,
            parts=parts_of(content),
            metadata=metadata,
            extensions=self._extended(metadata),
        )

    def _extended(self, metadata: Metadata | None) -> tuple[str, ...]:
        """The active extensions that own this metadata: an artifact or message lists them."""
        active = self._received.caller.extensions
        return tuple(uri for uri in active if uri in metadata) if metadata else ()

    def _own(self, message: Message) -> Message:
        """Add the required ids to the author's message."""
        own = replace(
            message, context_id=self._task.context_id, task_id=self._task.id, role=Role.AGENT
        )
        return _valid(own)


def _valid(value: W) -> W:
    try:
        return to_parts.valid(value)
    except TypeError as error:
        raise InvalidAgentResponse(str(error)) from error


def parts_of(value: Any) -> tuple[Part, ...]:
    """Convert content to parts; InvalidAgentResponse."""
    if type(value) is str:  # the hot path: a chunk of text
        return (Part(text=value),)
    try:
        return to_parts.parts(value)
    except TypeError as error:
        raise InvalidAgentResponse(str(error)) from error
