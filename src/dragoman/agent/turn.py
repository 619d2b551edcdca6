"""The turn: the input of a handler, and the methods that make its events."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload
from uuid import UUID, uuid4

import msgspec
from msgspec import UNSET, Raw, Struct, to_builtins
from msgspec.structs import replace

from dragoman.agent.durable import Journal, uuid_of
from dragoman.agent.output import Output, parts_of
from dragoman.agent.remote_wait import RemoteWait
from dragoman.agent.run_protocol import Over, Running
from dragoman.agent.saved_values import decode_saved, encode_saved
from dragoman.agent.step_results import LARGEST, check_time
from dragoman.agent.step_scope import current_step
from dragoman.model import approvals, clock
from dragoman.model.approvals import Approval
from dragoman.model.caller import Caller
from dragoman.model.conversation import (
    ContextChanged,
    ContextValue,
    ConversationMessage,
    MessagePlace,
    latest,
)
from dragoman.model.events import Event, Received, Reply
from dragoman.model.handover import Handover
from dragoman.model.lifecycle import Fold
from dragoman.model.lineage import Ancestor, lineage
from dragoman.model.remote_task import BegunTask, RemoteTask, SeenTask, SentTask, plain_address
from dragoman.model.task_secret import digest, new_secret
from dragoman.model.types import (
    AgentCard,
    Artifact,
    Message,
    Metadata,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
    WireStruct,
)
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.agent.durable_sends import DurableSends
    from dragoman.client import (
        AgentReference,
        Client,
        Options,
        Result,
        Stream,
        TaskHandle,
        Transport,
    )

T = TypeVar("T")
W = TypeVar("W", bound=WireStruct)
_decode = msgspec.json.Decoder(StreamResponse).decode
_EVENTS = (TaskArtifactUpdateEvent, TaskStatusUpdateEvent, Reply)

CONVERSATION_TRIES = 5
"""How often a durable handler reads its conversation again if the store does not respond."""
EARLY = 0.01
"""Seconds that a timer may fire too early."""


class _Read(Struct):
    """What a durable handler logs when it reads the value of its context."""

    version: int
    value: Raw


class Turn(Output):
    """One message, its task and caller, and the methods that make events.

    The methods that make events (`working`, `artifact`, `write`, `ask`, …) only make them: a
    generator yields them, a coroutine passes them to `await turn.emit(…)`.
    """

    canceled = False
    """True once the client has canceled the task. For code that cannot be interrupted."""
    _connected = 0
    _sends: DurableSends | None = None
    """What a durable handler remembers of its sends."""
    _heard: Received | None = None
    """The latest answer or message that a durable handler has got."""
    _version = ""
    _saved: bytes | None = None
    _context_version = 0
    """The version of the context's value that the turn has read or saved last; 0 if none."""
    _delegated: tuple[RemoteTask, ...] = ()
    _fold: Fold | None = None
    _current: Task | None = None
    _used = False
    """Whether the approval in the message was used in this run."""

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
        self._task = task
        self._wires: list[bytes] = []
        """What this run has said, as it is logged."""
        self.message: Message = received.message
        self.attempt = attempt
        """1 for the first run of this turn; higher when it runs again after a crash."""
        self.state = state
        """The value that the agent's lifespan yielded."""
        self._received = received
        self._number = number
        self._run = run
        self._streams: dict[tuple[str, str], str] = {}

    # -- input

    @property
    def task(self) -> Task:
        """The task so far: with this message, and with what the turn has said until now. Of the
        turn's own artifacts it has the first megabyte."""
        if self._wires:
            fold = self._fold = self._fold or Fold(self._task)
            for wire in self._wires:
                event = _decode(wire)
                said = event.status_update or event.artifact_update
                if said is not None:
                    fold.take(said)
            self._wires.clear()
            self._current = fold.task()
        return self._current or self._task

    @property
    def text(self) -> str:
        """The text of the message, one line for each text part."""
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
        """The file parts of the message, with their content (`raw`) or a `url`."""
        return [part for part in self.message.parts if part.raw is not None or part.url is not None]

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages of the task, the current one last."""
        return self._task.history

    @property
    def context_id(self) -> str:
        """The id of the conversation that the task belongs to."""
        return self._task.context_id

    @property
    def caller(self) -> Caller:
        """The caller who sent the message."""
        return self._received.caller

    @property
    def skill(self) -> str:
        """The id of the requested skill; empty for the default handler."""
        return self._received.skill

    @property
    def accepted_output_modes(self) -> tuple[str, ...]:
        """The media types that the client accepts; empty if it named none."""
        return self._received.modes

    @property
    def metadata(self) -> Metadata:
        """The metadata of the request. The message has its own metadata."""
        return self._received.metadata or {}

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that are active for this message."""
        return self.caller.extensions

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this turn; inside of a step, for every attempt at that
        step. Pass it on to make side effects idempotent."""
        return current_step() or self._key

    async def conversation(
        self, limit: int = 20, *, characters: int = 8_000
    ) -> list[ConversationMessage]:
        """Return what was said in this context before this message, oldest first: the last `limit`
        turns of this caller, each with the user's message, the artifacts and the answer or
        question. Of the artifacts of a turn, at most `characters` characters are returned. In a
        durable handler it is a step, and turns that its size does not allow are left out."""
        if limit < 1 or characters < 0:
            raise ValueError("conversation: limit must be at least 1, characters at least 0")
        if self._journal is None:
            return await self._conversation(limit, characters)
        returns = list[ConversationMessage]
        name = "dragoman.conversation"
        return await self.step(
            name, self._conversation, limit, characters, returns=returns, retries=CONVERSATION_TRIES
        )

    async def _conversation(self, limit: int, characters: int) -> list[ConversationMessage]:
        if self._run is None:
            return []
        before = MessagePlace(self._task.id, self._number, self._received.at)
        found = await self._run.conversation(before, limit, characters)
        return found if self._journal is None else latest(found, LARGEST)

    async def context_tasks(self, limit: int = 100) -> list[Task]:
        """Return the other tasks of this context, newest first: at most `limit`."""
        return await self._run.related((), limit) if self._run else []

    async def referenced_tasks(self) -> list[Task]:
        """Return the tasks that the message refers to and the caller may see."""
        ids = self.message.reference_task_ids
        return await self._run.related(ids) if self._run and ids else []

    # -- other agents

    def connect(
        self,
        target: str | AgentCard | AgentReference = "",
        *,
        app: Any = None,
        transport: Transport | None = None,
        **options: Unpack[Options],
    ) -> Client:
        """Make a client for another agent, as `Client.connect` does, that works on behalf of this
        turn: it passes on the trace and the tasks it serves, keeps the turn's deadline, and cancels
        its tasks when the turn is canceled. If the turn runs again after a crash and sends the same
        messages, it gets the same tasks; in a durable handler each send is a step. The agent's
        `connections` give it credentials."""
        from dragoman.client import Client, Delegation
        from dragoman.client.discovery import address

        run = self._run
        name, origin = (run.name, run.origin) if run else ("", "")
        self._connected += 1  # two clients with the same text are two sends
        until = run.deadline if run else math.inf

        def canceled() -> bool:
            late = time.monotonic() > until - EARLY
            return late or (run is not None and run.reason == "cancel")

        where = address(target) if isinstance(target, str) and target else ""
        given = dict(run.connection(where)) if run and where else {}
        usual, usual_transport = given.pop("app", None), given.pop("transport", None)
        app, transport = app or usual, transport or usual_transport
        options = {**given, **options}  # type: ignore[typeddict-item]
        options.setdefault(
            "delegation",
            Delegation(
                (*lineage(self.metadata), Ancestor(name, self._task.id, origin)),
                key=f"{self.idempotency_key}:{self._connected}",
                until=until,
                deadline=clock.stamp(run.must_end) if run else "",
                trace=self._received.trace,
                canceled=canceled,
                began=self._delegate if self._sends is None else None,
                seen=self._note_seen,
                steps=self._sends,
            ),
        )
        return Client.connect(target, app=app, transport=transport, **options)

    @property
    def delegated(self) -> tuple[RemoteTask, ...]:
        """The tasks that this task began at other agents through `connect`, in all of its turns."""
        return self._delegated

    def _delegate(self, url: str, task: str, agent: str) -> None:
        remote = RemoteTask(plain_address(url), task)
        if remote not in self._delegated:
            self._delegated = (*self._delegated, remote)
            if self._run is not None:
                self._run.delegate(SentTask(remote.address, remote.id, agent=agent))

    def _note_seen(self, url: str, task: str, state: TaskState) -> None:
        """Log for operators in which state a task of another agent is."""
        if self._run is not None:
            self._run.see(SeenTask(plain_address(url), task, state))

    def _note_send(self, name: str, begun: BegunTask) -> None:
        """Log which task a send has begun, so that the send need not be repeated."""
        begun = replace(begun, address=plain_address(begun.address))
        remote = RemoteTask(begun.address, begun.id)
        if remote not in self._delegated:
            self._delegated = (*self._delegated, remote)
        if self._run is not None:
            self._run.delegate(begun, name)

    async def relay(self, stream: Stream, *, by: str) -> Result:
        """Copy what another agent streams into this task, until that agent ends or asks: its
        artifacts become artifacts of this task, its progress becomes progress of `by`. The result
        contains its question or failure; the handler decides what to do with it. In a durable
        handler it is a step."""
        return await stream._once("relay", partial(self._relay, stream, by))

    async def _relay(self, stream: Stream, by: str) -> Result:
        async with stream:
            async for event in stream:
                for relayed in self._relayed(event, by):
                    await self.emit(relayed)
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
            yield from self._progress_of(event.status.message, by)

    def _progress_of(self, message: Message, by: str) -> Iterator[Event]:
        said = f"{by}: {message.text}"
        if (scope := self._scope) is None:
            yield self.working(said)
        elif relayed := scope.relayed(message):
            # Derived from the other agent's id: a second attempt may get other messages.
            id = f"{self._key}:{scope.digest}:{relayed}"
            yield self.working(Message(message_id=id, role=Role.AGENT, parts=parts_of(said)))

    def _foreign(self, artifact: Artifact, by: str, append: bool, last: bool) -> Event:
        key = f"{by}:{artifact.artifact_id}"
        started = ("relayed", key) in self._streams
        # Other agents may append to an artifact that does not exist.
        append = append and (started or any(a.artifact_id == key for a in self._task.artifacts))
        self._streams["relayed", key] = key
        self._sound = None
        name = artifact.name or ("" if append else by)
        return TaskArtifactUpdateEvent(
            task_id=self._task.id,
            context_id=self._task.context_id,
            artifact=replace(artifact, artifact_id=key, name=name),
            append=append,
            last_chunk=last,
        )

    # -- steps, sleeps, questions and saved values

    @overload
    async def step(
        self,
        name: str,
        call: Callable[..., Awaitable[T]],
        *args: Any,
        returns: Any = None,
        retries: int = 0,
        timeout: float | None = None,
        once: bool = False,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        call: Callable[..., T],
        *args: Any,
        returns: Any = None,
        retries: int = 0,
        timeout: float | None = None,
        once: bool = False,
        **kwargs: Any,
    ) -> T: ...
    async def step(
        self,
        name: str,
        call: Callable[..., Any],
        *args: Any,
        returns: Any = None,
        retries: int = 0,
        timeout: float | None = None,
        once: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the result of a call that is made once: it is logged, and taken from the log when
        the handler runs again. A call that raises is made again `retries` times, with pauses; then
        StepFailed is raised, also on replay. With `once`, a crash during the call raises
        StepUncertain instead of a second call. A blocking function runs in a thread. The result is
        JSON of the annotated type, or of `returns`."""
        journal = self._durable("step")
        return await journal.step(
            *(name, call, args, kwargs),
            returns=returns,
            retries=retries,
            timeout=timeout,
            once=once,
        )

    async def sleep(self, seconds: float = 0.0, *, hours: float = 0.0, days: float = 0.0) -> None:
        """Wait. While a durable handler sleeps for long, it holds no worker and no memory; the
        task stays `working`. A cancel ends the sleep, a message does not."""
        journal = self._durable("sleep")
        await journal.sleep(check_time("sleep", seconds + 3600.0 * hours + 86400.0 * days))

    async def ask_for(self, question: Any) -> Message:
        """Ask the client, and return its answer, which may come after days and to another
        replica. The question is text, data, parts, or an event of `ask` or `require_auth`."""
        journal = self._durable("ask_for")
        # made on replay as well: the ids of later messages count it
        event = question if isinstance(question, _EVENTS) else self.ask(question)
        self._heard = await journal.ask(lambda: self.emit(event))
        return self._heard.message

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message of the client; None after `timeout` seconds without one."""
        journal = self._durable("receive")
        if timeout is not None:
            check_time("receive: timeout", timeout)
        found = await journal.receive(timeout)
        self._heard = found or self._heard
        return found.message if found else None

    async def wait(self, remote: TaskHandle) -> Task:
        """Wait until another agent's task ends or asks for input, and return it. While a durable
        handler waits for long, it holds no worker: the other agent notifies it by a webhook, if it
        can and this server has the setting `url`; else the handler looks again after pauses of 2
        seconds to 5 minutes."""
        if self._journal is None:
            return await remote.wait()
        address = self._run.address if self._run else ""
        url = f"{address}/notifications/{self._task.id}" if address else ""
        awaited = RemoteWait(remote, url)
        return await awaited.result(await self._journal.wait(awaited))

    def now(self) -> datetime:
        """Return the time. In a durable handler it is the same on replay."""
        return self._journal.now() if self._journal else datetime.now(UTC)

    def uuid(self) -> UUID:
        """Return a UUID. In a durable handler it is the same on replay."""
        return uuid_of(self._journal.digest("uuid")) if self._journal else uuid4()

    def random(self) -> float:
        """Return a number from 0 to 1 (not included). In a durable handler it is the same on
        replay."""
        if self._journal is None:
            return random.random()
        return int.from_bytes(self._journal.digest("random")[:6], "big") / (1 << 48)

    @property
    def version(self) -> str:
        """The `version` of the skill with which this turn began."""
        return self._version

    @property
    def saved(self) -> Any:
        """The value that `save` has kept for this task; None if there is none."""
        return None if self._saved is None else decode_saved(self._saved)

    async def save(self, value: Any) -> None:
        """Keep a JSON value or bytes for the later turns of this task. Clients never see it. It is
        durable when this returns."""
        data = encode_saved(value, "save")
        await self._running().save(data)
        self._saved = data

    async def context_saved(self) -> Any:
        """Return the value that `save_context` has kept for this context, of this caller; None if
        there is none. In a durable handler it is a step. Raises PermissionError if the task is only
        shared with the caller: the value belongs to the owner."""
        if self._run is None:
            return None
        if self._journal is None:
            found = await self._run.context_value()
        else:
            data = await self._journal.keep("dragoman.context_saved", self._context_entry)
            read = msgspec.json.decode(data, type=_Read)
            found = ContextValue(bytes(read.value), read.version)
        self._context_version = found.version if found else 0
        return decode_saved(found.value) if found else None

    async def _context_entry(self) -> bytes:
        found = await self._running().context_value() or ContextValue(b"null", 0)
        return msgspec.json.encode(_Read(found.version, Raw(found.value)))

    async def save_context(self, value: Any) -> None:
        """Keep a JSON value or bytes for this context: all later turns of this caller in it, in
        any task, read it with `context_saved`. Clients never see it. It is durable when this
        returns. Raises ContextChanged if another turn has changed it since this one read it, or if
        there is one and this turn has not read it. In a durable handler it is a step."""
        data = encode_saved(value, "save_context")
        save = partial(self._save_context, data, self._context_version)
        if self._journal is None:
            entry = await save()
        else:
            entry = await self._journal.keep("dragoman.save_context", save)
        if (version := msgspec.json.decode(entry, type=int | None)) is None:
            raise ContextChanged
        self._context_version = version

    async def _save_context(self, data: bytes, version: int) -> bytes:
        """The new version; `null` if it was changed, so that it is the same on replay."""
        try:
            return msgspec.json.encode(await self._running().save_context(data, version))
        except ContextChanged:
            return b"null"

    def _running(self) -> Running:
        if self._run is None:
            raise RuntimeError("this turn is not running: there is nowhere to save")
        return self._run

    async def hand_over(self, timeout: float = 86400.0) -> Handover:
        """Let a person or another program finish the task. Pass the handover on, and end the
        handler: the task stays `working`, and the holder of the handover writes to it with
        `dragoman.resume(handover)`, or over HTTP, until its end. After `timeout` seconds it fails;
        a cancel ends it as always. The server needs the setting `url`."""
        if self._run is None:
            raise RuntimeError("this turn is not running; its task cannot be handed over")
        if not math.isfinite(timeout) or timeout <= 0:
            raise ValueError("hand_over: timeout must be greater than 0")
        if not (address := self._run.address):
            raise RuntimeError(
                "hand_over: set `url` (dragoman serve --url https://…), so that others know where "
                "to write"
            )
        secret = new_secret()
        await self._run.hand_over(digest(secret), timeout)
        return Handover(f"{address}/handovers/{self._task.id}", secret)

    def _durable(self, method: str) -> Journal:
        if self._journal is None:
            raise RuntimeError(
                f"turn.{method} needs a durable handler: register it with "
                "@agent.skill(durable=True)"
            )
        return self._journal

    # -- output

    async def emit(self, event: Any) -> None:
        """Log an event now. Accepts everything that a generator may yield."""
        if self._run is None:
            raise RuntimeError("this turn is not running; events cannot be emitted")
        for item in self._events(event):
            await self._run.emit(item)

    @property
    def approval(self) -> Approval | None:
        """The client's reply to an approval request; None if there is none. Call `granted` to check
        whether it allows an operation."""
        last = self._heard or self._received
        return approvals.approval_in(last.metadata) or approvals.approval_in(last.message.metadata)

    async def granted(self, operation: Any) -> bool:
        """Whether this message approves exactly this operation of this task. It returns True only
        once: it records durably that the approval is used before it returns. In a durable handler
        it is a step, and the answer of `ask_for` counts."""
        if self._journal is None:
            return await self._granted(operation)
        return bool(await self.step("dragoman.granted", self._granted, operation))

    async def _granted(self, operation: Any) -> bool:
        approval, run = self.approval, self._run
        if approval is None or run is None:
            return False
        grant = approvals.request_in(self._task.metadata)
        why = approvals.refusal(grant, approval, self._task.id, operation, self._key)
        if not why and self._used:
            why = "it was used before"
        if why or grant is None:
            logger.warning("an approval was refused: %s", why, extra={"task": self._task.id})
            run.audit("grant", why, grant=approval.id)
            return False
        self._used = True
        used = to_builtins(replace(grant, used=self._key))
        event = self._status(TaskState.WORKING, None, {approvals.GRANT: used})
        settled = await run.settle(event)
        run.audit("grant", "used" if settled else "interrupted", grant=grant.id)
        return settled

    def _end(self, name: str) -> None:
        """The run is over. (Turn and run refer to each other; without that, they need no garbage
        collection.)"""
        self._run = Over(name)
