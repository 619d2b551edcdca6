"""The turn: what a handler is given to work on, and the words it answers with."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from dragoman.agent.unyielded import MOST, Made, hand_over, note
from dragoman.model import approvals, clock, content
from dragoman.model.approvals import Approval
from dragoman.model.caller import Caller
from dragoman.model.errors import InvalidAgentResponse
from dragoman.model.events import Event, Received, Reply
from dragoman.model.lineage import Ancestor, lineage
from dragoman.model.types import (
    AgentCard,
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
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.client import Client, Options, Result, Stream, Transport

W = TypeVar("W", bound=WireStruct)

EARLY = 0.01
"""How much too early a timer may ring."""


class Running(Protocol):
    """What a turn asks of the run that it belongs to."""

    name: str
    """The agent's."""
    deadline: float
    """When it must have ended, by the monotonic clock."""
    reason: str
    """Why it was asked to stop: cancel, deadline, drain; empty if it was not."""

    @property
    def origin(self) -> str:
        """Which agent that is, see `lineage`."""

    async def emit(self, event: Event) -> None:
        """Say it now."""

    async def settle(self, event: Event) -> bool:
        """Say it, and wait until it is durable; False if it cannot be said any more."""

    async def related(self, ids: Sequence[str]) -> list[Task]:
        """The tasks of these ids, or the others of the context."""

    def audit(self, event: str, result: str, **about: str) -> None:
        """Put down what an auditor wants to know."""


class Over:
    """What stands for a run that has ended: nothing can be said any more."""

    name = origin = ""
    deadline = 0.0
    reason = ""

    def __init__(self, handler: str) -> None:
        self.handler = handler
        self._told = False

    async def emit(self, event: Event) -> None:
        """Drop it, and say so once; others get their turn meanwhile."""
        if not self._told:
            self._told = True
            name = type(event).__name__
            logger.warning("handler %s: dropped %s, because its turn has ended", self.handler, name)
        await asyncio.sleep(0)

    async def related(self, ids: Sequence[str]) -> list[Task]:
        """None any more."""
        return []

    async def settle(self, event: Event) -> bool:
        """Not any more."""
        return False

    def audit(self, event: str, result: str, **about: str) -> None:
        """There is nothing to put down."""


class Turn:
    """One message, all that is known around it, and the events that answer it.

    The methods that make events (`working`, `artifact`, `write`, `ask`, …) only make them: a
    generator yields them, a coroutine hands them to `await turn.emit(…)`.
    """

    _sound: Event | None = None
    """The event made last, if it is known to be valid: it need not be looked at again."""
    canceled = False
    """True once the client wants the task to end; for code that cannot be interrupted."""
    _made_count = _handed_count = 0
    """How many events the handler has made, and how many of them it has handed over."""
    _made: Made | None = None
    """Those that it has not handed over yet, where they are noted."""
    _count = 0
    _connected = 0
    _used = False
    """The grant that the message approves was used in this run."""

    def __init__(
        self,
        task: Task,
        received: Received,
        *,
        number: int = 1,
        attempt: int = 1,
        state: Any = None,
        run: Running | None = None,
    ) -> None:
        self.task = task
        """The task so far, this message included."""
        self.message: Message = received.message
        self.attempt = attempt
        """1 for the first run of this turn, more when it is run again after a crash."""
        self.state = state
        """What the agent's lifespan yielded."""
        self._received = received
        self._number = number
        self._run = run
        self._streams: dict[tuple[str, str], str] = {}

    # -- what came in

    @property
    def text(self) -> str:
        """The text of the message, a line for each text part."""
        return self.message.text

    @property
    def data(self) -> Any:
        """The first structured part of the message, or None."""
        for part in self.message.parts:
            if part.data is not UNSET:
                return part.data
        return None

    @property
    def files(self) -> list[Part]:
        """The parts that are files, by content (`raw`) or by `url`."""
        return [part for part in self.message.parts if part.raw is not None or part.url is not None]

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages of the task so far, the present one last."""
        return self.task.history

    @property
    def context_id(self) -> str:
        """The conversation that the task belongs to."""
        return self.task.context_id

    @property
    def caller(self) -> Caller:
        """Who asks."""
        return self._received.caller

    @property
    def skill(self) -> str:
        """The id of the skill that is asked for; empty for the default handler."""
        return self._received.skill

    @property
    def accepted_output_modes(self) -> tuple[str, ...]:
        """What the client said it can take; empty if it did not say."""
        return self._received.modes

    @property
    def metadata(self) -> Metadata:
        """The metadata of the request; that of the message is on the message."""
        return self._received.metadata or {}

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that are active for this message."""
        return self.caller.extensions

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this turn: pass it on with side effects."""
        return f"{self.task.id}:{self._number}"

    async def context_tasks(self) -> list[Task]:
        """The other tasks of this conversation, the latest first."""
        return await self._run.related(()) if self._run else []

    async def referenced_tasks(self) -> list[Task]:
        """The tasks that the message refers to, as far as the caller may see them."""
        ids = self.message.reference_task_ids
        return await self._run.related(ids) if self._run and ids else []

    # -- other agents

    def connect(
        self,
        target: str | AgentCard = "",
        *,
        app: Any = None,
        transport: Transport | None = None,
        **options: Unpack[Options],
    ) -> Client:
        """A client of another agent, as `Client.connect` has it, that works for this turn: it
        carries the trace, says which tasks it serves, keeps to the turn's deadline, and cancels
        what it has begun when the turn is canceled. A turn that is run again after a crash and
        says the same finds what it has begun before."""
        from dragoman.client import Client, Delegation

        run = self._run
        name, origin = (run.name, run.origin) if run else ("", "")
        self._connected += 1  # two of them that say the same mean two things
        until = run.deadline if run else math.inf
        left = until - time.monotonic()

        def canceled() -> bool:
            late = time.monotonic() > until - EARLY
            return late or (run is not None and run.reason == "cancel")

        options.setdefault(
            "delegation",
            Delegation(
                (*lineage(self.metadata), Ancestor(name, self.task.id, origin)),
                key=f"{self.idempotency_key}:{self._connected}",
                until=until,
                deadline=clock.stamp(time.time() + left) if math.isfinite(left) else "",
                trace=self._received.trace,
                canceled=canceled,
            ),
        )
        return Client.connect(target, app=app, transport=transport, **options)

    async def relay(self, stream: Stream, *, by: str) -> Result:
        """Tell what another agent tells, as part of this task, until that one ends or asks: its
        artifacts become artifacts here, its progress is told as progress of `by`. What it asks, or
        how it failed, is in the result; what to make of that is for the handler to say."""
        async with stream:
            async for event in stream:
                for told in self._relayed(event, by):
                    await self.emit(told)
        return stream.result

    def _relayed(self, event: Any, by: str) -> Iterator[Event]:
        if isinstance(event, TaskArtifactUpdateEvent):
            yield self._foreign(event.artifact, by, event.append, event.last_chunk)
        elif isinstance(event, Task):
            for artifact in event.artifacts:
                yield self._foreign(artifact, by, append=False, last=False)
        elif isinstance(event, Message):
            yield self.artifact(list(event.parts), name=by)
        elif event.status.message is not None and event.status.state is TaskState.WORKING:
            yield self.working(f"{by}: {event.status.message.text}")

    def _foreign(self, artifact: Artifact, by: str, append: bool, last: bool) -> Event:
        key = f"{by}:{artifact.artifact_id}"
        known = ("relayed", key) in self._streams
        # others are not strict about what is appended to nothing
        append = append and (known or any(a.artifact_id == key for a in self.task.artifacts))
        self._streams["relayed", key] = key
        self._sound = None
        name = artifact.name or ("" if append else by)
        return TaskArtifactUpdateEvent(
            task_id=self.task.id,
            context_id=self.task.context_id,
            artifact=replace(artifact, artifact_id=key, name=name),
            append=append,
            last_chunk=last,
        )

    # -- what goes out

    async def emit(self, event: Any) -> None:
        """Say something now; takes whatever a generator may yield."""
        if self._run is None:
            raise RuntimeError("this turn is not running: there is nobody to emit to")
        for item in self._events(event):
            await self._run.emit(item)

    def working(self, content: Any = None, *, metadata: Metadata | None = None) -> Event:
        """The work goes on, with a word on how."""
        return self._new(self._status(TaskState.WORKING, content, metadata))

    def ask(self, content: Any, *, metadata: Metadata | None = None) -> Event:
        """Input is required; the client's next message starts the next turn."""
        return self._new(self._status(TaskState.INPUT_REQUIRED, content, metadata))

    def require_auth(
        self,
        content: Any = None,
        *,
        operation: Any = None,
        expires: float = 600.0,
        metadata: Metadata | None = None,
    ) -> Event:
        """The client must authenticate somewhere; the handler may go on and wait for it. With an
        `operation`, which is any JSON, the client must approve just that within so many seconds:
        its answer starts the next turn, which asks `granted` before it does it."""
        if operation is not None:
            try:
                grant = approvals.issue(self.task.id, operation, expires)
            except TypeError as error:
                raise InvalidAgentResponse(f"operation: {error}") from error
            metadata = {**(metadata or {}), approvals.GRANT: to_builtins(grant)}
        return self._new(self._status(TaskState.AUTH_REQUIRED, content, metadata))

    @property
    def approval(self) -> Approval | None:
        """What the message says of the approval that was asked for; None if nothing. Whether it
        allows anything is for `granted` to say."""
        return approvals.answered(self.metadata) or approvals.answered(self.message.metadata)

    async def granted(self, operation: Any) -> bool:
        """Whether this message approves just this operation of this task. That can be said once:
        the grant is used up, and that is durable, before True is returned."""
        approval, run = self.approval, self._run
        if approval is None or run is None:
            return False
        grant = approvals.asked(self.task.metadata)
        why = approvals.refusal(grant, approval, self.task.id, operation, self.idempotency_key)
        if not why and self._used:
            why = "it was used before"
        if why or grant is None:
            logger.warning("an approval was refused: %s", why, extra={"task": self.task.id})
            run.audit("grant", why, grant=approval.id)
            return False
        self._used = True
        used = to_builtins(replace(grant, used=self.idempotency_key))
        event = self._status(TaskState.WORKING, None, {approvals.GRANT: used})
        settled = await run.settle(event)
        run.audit("grant", "used" if settled else "interrupted", grant=grant.id)
        return settled

    def complete(self, content: Any = None, *, metadata: Metadata | None = None) -> Event:
        """The task is done. A handler that simply ends means the same."""
        return self._new(self._status(TaskState.COMPLETED, content, metadata))

    def reject(self, content: Any = None, *, metadata: Metadata | None = None) -> Event:
        """The agent will not do this."""
        return self._new(self._status(TaskState.REJECTED, content, metadata))

    def fail(self, content: Any = None, *, metadata: Metadata | None = None) -> Event:
        """The agent could not do this."""
        return self._new(self._status(TaskState.FAILED, content, metadata))

    def reply(self, content: Any, *, metadata: Metadata | None = None) -> Event:
        """A direct answer. Without a task if the handler was declared with `reply=True` and has
        said nothing before; else it is the message of the completed task."""
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
        """A whole result."""
        return self._new(self._artifact(content, name, description, id, metadata))

    def write(self, content: Any, *, name: str = "", id: str = "", last: bool = False) -> Event:
        """The next piece of a result that is streamed; each name is an artifact of its own."""
        return self._new(self._piece(content, name, id, last))

    def _leave(self, name: str) -> None:
        """The run is over. (Turn and run know each other; parted, they need no collector.)"""
        self._run = Over(name)

    # -- what a value means

    def _events(self, value: Any) -> Sequence[Event]:
        """What a yielded or emitted value says: events as they are, text as a piece of the
        streamed artifact, anything else as `_result` has it."""
        if isinstance(value, TaskArtifactUpdateEvent | TaskStatusUpdateEvent | Reply):
            self._handed_over(value)
            return (value,)
        if isinstance(value, str):
            return (self._piece(value),)
        return self._result(value)

    def _result(self, value: Any) -> Sequence[Event]:
        """What a returned value says. The table is in the documentation."""
        match value:
            case None:
                return ()
            case TaskArtifactUpdateEvent() | TaskStatusUpdateEvent() | Reply():
                self._handed_over(value)
                return (value,)
            case Message():
                return (self._reply(value, None),)
            case Artifact():
                return (self._whole(value),)
            case [Artifact(), *_] if all(isinstance(item, Artifact) for item in value):
                return tuple(self._whole(item) for item in value)
            case _:
                return (self._artifact(value),)

    def _handed_over(self, event: Event) -> None:
        """An event was yielded, emitted or returned."""
        self._handed_count += 1
        if self._made:
            hand_over(self._made, event, noted=self._made_count <= MOST)

    # -- making events

    def _new(self, event: Event) -> Event:
        """An event that the handler makes, by the method that calls this."""
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
            task_id=self.task.id,
            context_id=self.task.context_id,
            artifact=Artifact(
                artifact_id=id or self._next_id(),
                name=name,
                description=description,
                parts=_parts(content),
                metadata=metadata,
                extensions=self._extended(metadata),
            ),
            last_chunk=True,
        )
        plain = type(name) is str and type(description) is str and type(id) is str
        self._sound = event if plain and metadata is None else None
        return event

    def _piece(self, content: Any, name: str = "", id: str = "", last: bool = False) -> Event:
        parts = _parts(content)
        key = ("id", id) if id else ("name", name)
        known = self._streams.get(key)
        if known is None:
            known = self._streams[key] = id or self._next_id()
            artifact = Artifact(artifact_id=known, name=name, parts=parts)
            append = False
        else:
            artifact = Artifact(artifact_id=known, parts=parts)
            append = True
        event = TaskArtifactUpdateEvent(
            task_id=self.task.id,
            context_id=self.task.context_id,
            artifact=artifact,
            append=append,
            last_chunk=last,
        )
        plain = type(name) is str and type(id) is str and type(last) is bool
        self._sound = event if plain else None
        return event

    def _whole(self, artifact: Artifact) -> Event:
        return TaskArtifactUpdateEvent(
            task_id=self.task.id,
            context_id=self.task.context_id,
            artifact=_valid(artifact),
            last_chunk=True,
        )

    def _next_id(self) -> str:
        # A function of turn and ordinal: a second attempt replaces what the first one wrote.
        self._count += 1
        return f"{self._number}.{self._count}"

    def _reply(self, content: Any, metadata: Metadata | None) -> Event:
        return Reply(replace(self._message(content, metadata), task_id=""))

    def _status(self, state: TaskState, content: Any, metadata: Metadata | None) -> Event:
        message = None if content is None else self._message(content, None)
        event = TaskStatusUpdateEvent(
            task_id=self.task.id,
            context_id=self.task.context_id,
            status=TaskStatus(state=state, message=message, timestamp=clock.now()),
            metadata=metadata,
        )
        self._sound = event if metadata is None else None
        return event

    def _message(self, content: Any, metadata: Metadata | None) -> Message:
        if isinstance(content, Message):
            return self._own(content)
        return Message(
            message_id=clock.uuid7(),
            context_id=self.task.context_id,
            task_id=self.task.id,
            role=Role.AGENT,
            parts=_parts(content),
            metadata=metadata,
            extensions=self._extended(metadata),
        )

    def _extended(self, metadata: Metadata | None) -> tuple[str, ...]:
        """The active extensions whose data these are: an artifact or message lists them."""
        return tuple(uri for uri in self.extensions if uri in metadata) if metadata else ()

    def _own(self, message: Message) -> Message:
        """The author's message, with the ids that it must have here."""
        own = replace(
            message, context_id=self.task.context_id, task_id=self.task.id, role=Role.AGENT
        )
        return _valid(own)


def _valid(value: W) -> W:
    try:
        return content.valid(value)
    except TypeError as error:
        raise InvalidAgentResponse(str(error)) from error


def _parts(value: Any) -> tuple[Part, ...]:
    if type(value) is str:  # the hot path: a chunk of text
        return (Part(text=value),)
    try:
        return content.parts(value)
    except TypeError as error:
        raise InvalidAgentResponse(str(error)) from error
