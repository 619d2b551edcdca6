"""The turn: the input of a handler, and the methods that make its events."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID, uuid4

import msgspec
from msgspec import UNSET, Raw, Struct, to_builtins
from msgspec.structs import replace

from dragoman.agent.calling_turn import CallingTurn
from dragoman.agent.durable import Journal, uuid_of
from dragoman.agent.remote_wait import RemoteWait
from dragoman.agent.run_protocol import Over, Running
from dragoman.agent.saved_values import decode_saved, encode_saved
from dragoman.agent.step_results import LARGEST, check_time
from dragoman.model import approvals
from dragoman.model.approvals import Approval
from dragoman.model.caller import Caller
from dragoman.model.conversation import (
    ContextChanged,
    ContextValue,
    ConversationMessage,
    MessagePlace,
    latest,
)
from dragoman.model.events import Received, Reply
from dragoman.model.handover import Handover
from dragoman.model.lifecycle import Fold
from dragoman.model.task_secret import digest, new_secret
from dragoman.model.types import (
    Message,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.client import TaskHandle

T = TypeVar("T")
_decode = msgspec.json.Decoder(StreamResponse).decode
_EVENTS = (TaskArtifactUpdateEvent, TaskStatusUpdateEvent, Reply)

CONVERSATION_TRIES = 5
"""How often a durable handler reads its conversation again if the store does not respond."""


class _Read(Struct):
    """What a durable handler logs when it reads the value of its context."""

    version: int
    value: Raw


class Turn(CallingTurn):
    """One message, its task and caller, and the methods that make events.

    The methods that make events (`working`, `artifact`, `write`, `ask`, …) only make them: a
    generator yields them, a coroutine passes them to `await turn.emit(…)`.
    """

    canceled = False
    """True once the client has canceled the task. For code that cannot be interrupted."""
    _heard: Received | None = None
    """The latest answer or message that a durable handler has got."""
    _version = ""
    _saved: bytes | None = None
    _context_version = 0
    """The version of the context's value that the turn has read or saved last; 0 if none."""
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
    def extensions(self) -> tuple[str, ...]:
        """The extensions that are active for this message."""
        return self.caller.extensions

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
            # Each turn of a conversation reads it: in the logs, it would be there again and again.
            name = "dragoman.context_saved"
            data = await self._journal.keep(name, self._context_entry, beside=True)
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

    # -- approvals

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
