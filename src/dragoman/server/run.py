"""The run of one turn, from its claim to its end: checks and appends the handler's events.

It belongs to a worker and knows only the part of it that `Working` declares.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dragoman.agent import durable
from dragoman.agent.agent import Agent
from dragoman.agent.durable import CodeChanged, Journal, Suspended
from dragoman.agent.handler import large
from dragoman.agent.sends import Sends
from dragoman.agent.threads import Threads
from dragoman.agent.turn import Over, Turn
from dragoman.agent.unyielded import FIRST_TURNS, EventNotYielded, forgotten_count, forgotten_events
from dragoman.agent.user_error import UserError
from dragoman.bells.bell import Bell
from dragoman.dialects import v1_0
from dragoman.model import clock
from dragoman.model.caller import Scope
from dragoman.model.conversation import ContextValue, ConversationMessage, Place
from dragoman.model.errors import A2AError, InvalidAgentResponse, Unavailable
from dragoman.model.events import Entry, Event, Private, Received, Reply
from dragoman.model.lifecycle import IllegalEvent, advance
from dragoman.model.lineage import origin
from dragoman.model.remote_task import RemoteTask
from dragoman.model.task_secret import HANDED_OVER
from dragoman.model.types import (
    Artifact,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from dragoman.server import context_order, delegated
from dragoman.server.conversation import conversation
from dragoman.server.loop_pacing import Pace
from dragoman.server.resume import SAVED, message_at, resumed
from dragoman.server.settings import Settings
from dragoman.stores.store import (
    LARGE,
    MESSAGE,
    NOTIFICATION,
    TIME,
    WRITER,
    Claim,
    Pause,
    Query,
    Stale,
    Store,
    UnknownEntry,
)
from dragoman.telemetry.logs import CORRELATION, TASK, audit, logger

T = TypeVar("T")
BATCH = 128
RELATED = 100
"""The most tasks that a turn reads at once."""
ENDINGS = ("", *(state.name.lower() for state in TaskState))
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

WORKING = TaskState.WORKING
WAITS = {durable.TIME: TIME, durable.MESSAGE: MESSAGE, durable.NOTIFICATION: NOTIFICATION}

_readable = msgspec.json.Decoder(StreamResponse).decode


def interrupted(error: BaseException) -> bool:
    """Whether a person may have pressed Ctrl-C: Python raises KeyboardInterrupt in the running code
    only if nothing handles the signal, as servers do."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


class Working(Protocol):
    """The part of the worker that a run uses."""

    agents: Mapping[str, Agent]
    store: Store
    bell: Bell
    settings: Settings
    loop: asyncio.AbstractEventLoop
    states: dict[str, Any]
    threads: Threads
    pace: Pace
    timed: Callable[[float], None] | None
    raised: Callable[[BaseException], None] | None
    steps: Callable[[str, str], None] | None
    addresses: Mapping[str, str]

    async def hand_back(self, run: Run) -> None:
        """Let another worker try again, or fail the task."""

    def give_back(self, run: Run) -> None:
        """Give up the run because its events cannot be stored."""

    def let_go(self, run: Run) -> None:
        """Give up the run because its claim expired before the handler started."""

    def let_wait(self, run: Run, delay: float) -> None:
        """Give up the run because another turn is first; it is tried again after `delay`."""

    def postpone(self, run: Run, why: BaseException) -> None:
        """Give up the run because this process cannot do it; it is tried again later."""

    def abandon(self, run: Run) -> None:
        """Give up the run because it can write nothing any more."""

    def left(self, run: Run) -> None:
        """The run has ended."""


class NotHeld(BaseException):
    """The claim expired before the handler, or a step of it, started. Handlers must let it
    pass."""


def _ungrouped(error: BaseException) -> BaseException:
    """What ended a run out of a task group of the handler: its own error, or the group."""
    if isinstance(error, BaseExceptionGroup):
        found: BaseException | None = error.subgroup((NotHeld, CodeChanged, Suspended))
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        return found or error
    return error


def _message_ids(task: Task | None) -> frozenset[str]:
    """The ids of what the agent has said."""
    if task is None:
        return frozenset()
    messages = (*task.history, *([task.status.message] if task.status.message else ()))
    return frozenset(message.message_id for message in messages if message.role is Role.AGENT)


class Run:
    """Processes one claim: runs the handler and appends its events.

    Events that a handler makes without a pause are appended together, as soon as it pauses.
    """

    task: asyncio.Task[None]
    ended = False
    """The handler made a terminal event."""
    over = False
    """The terminal event was written and ended the task."""
    paused = False
    """The last status of this run is an interrupted one."""
    closing = False
    """The handler has ended."""
    lost = False
    """Nothing can be written any more."""
    reason = ""
    """Why the handler was asked to stop."""
    error = ""
    """The kind of error that ended the handler."""
    held_until = math.inf
    """When the claim may expire, by the clock of this process."""

    _scheduled = False
    _flight: asyncio.Future[bool] | None = None
    _flying = False
    """An append is in progress, or waits for a retry."""
    _waiters: tuple[asyncio.Future[None], ...] = ()
    _pause = 0.0
    _unstorable = False
    _stopper: asyncio.Task[None] | None = None
    _dropped: tuple[str, ...] = ()
    _events = 0
    _bytes = 0
    journal: Journal | None = None
    """What a durable handler has done so far."""
    pausing: Pause | None = None
    """How the handler is suspended when its claim is released."""
    handed_over = 0.0
    """How many seconds somebody else has to finish the task; 0 if it was not handed over."""
    _grown: tuple[Artifact, ...] = ()
    """Artifacts that an attempt before this one has added to since the handler's last finished
    operation, as they were then."""
    _held = 0
    """The bytes of pending events."""

    def __init__(self, worker: Working, claim: Claim) -> None:
        head = claim.head
        self.worker = worker
        self.claim = claim
        self.agent = worker.agents[head.scope.agent]
        self.name = self.agent.name
        self.handler = self.agent.handler_of(claim.received.skill)
        self.state: TaskState = head.state
        self.born = head.born
        self.deadline = time.monotonic() + worker.settings.turn_timeout
        self._begin_turn(claim.received, claim.turn)
        if self.handler.followed or worker.raised is not None:
            self.handler.followed = max(self.handler.followed - 1, 0)
            self.turn._made = {}
        self._id = head.id
        self._max_events = worker.settings.max_events
        self._max_output = worker.settings.max_output
        self._artifacts = {artifact.artifact_id for artifact in claim.task.artifacts}
        self._pending: list[Entry] = []

    def _begin_turn(self, received: Received, number: int) -> None:
        claim = self.claim
        self.turn = Turn(
            claim.task,
            received,
            number=number,
            attempt=claim.attempt,
            state=self.worker.states.get(claim.head.scope.agent),
            run=self,
        )

    @property
    def address(self) -> str:
        """See `Running.address`."""
        return self.worker.addresses.get(self.agent.key, "")

    @property
    def origin(self) -> str:
        """See `Running.origin`."""
        return origin(self.worker.store.id, self.agent.key)

    # -- the sink of the handler

    def begin(self) -> None:
        """Raise NotHeld if the lease has expired: a process that was suspended must start
        nothing."""
        if time.monotonic() > self.held_until:
            raise NotHeld

    def put(self, value: Any) -> bool:
        """Receive a yielded value; True asks for a pause."""
        kind = type(value)
        if kind is TaskArtifactUpdateEvent or kind is TaskStatusUpdateEvent:
            self.turn._record_handed_over(value)
            if self.state is not WORKING and kind is TaskArtifactUpdateEvent:
                self._start()
            self._append(value)
        else:
            for event in self.turn._events(value):
                if self.state is not WORKING and type(event) is TaskArtifactUpdateEvent:
                    self._start()
                self._append(event)
        # A handler that continues after its end must not block others.
        return self._should_wait()

    def finish(self, value: Any) -> None:
        """Receive the returned value."""
        if self.handler.reply and not self.born and value is not None:
            value = self.turn.reply(value) if not self._is_event(value) else value
        for event in self.turn._result(value):
            self._append(event)

    async def relieve(self) -> None:
        """Wait until everything is written; other handlers run in the meantime."""
        self._flush()
        await self._landing()
        await asyncio.sleep(0)

    async def slot(self) -> None:
        """Wait until a large value may be encoded: one handler with much output must not block
        others."""
        await self.worker.pace.next()

    async def emit(self, event: Event) -> None:
        """Receive an event from a coroutine."""
        if self.closing:
            return await Over(self.handler.name).emit(event)
        if large(event):
            await self.slot()
        if self.state is not WORKING and type(event) is TaskArtifactUpdateEvent:
            self._start()
        self._append(event)
        if self._should_wait():
            await self.relieve()
        return None

    async def settle(self, event: Event) -> bool:
        """Append an event and wait until it is durable; False if that is not possible."""
        if self.closing or self.ended or self.lost:
            return False
        self._append(event, ours=True)
        await self.relieve()
        return not self.lost

    # -- what a durable handler writes for itself

    def record(self, event: Private) -> None:
        """Append a private entry, in order with all events."""
        if self.ended or self.lost:
            self._drop(event)
            return
        if self._grown:
            self._rewrite()
        if event.kind in ("step", "failed") and (count := self.worker.steps) is not None:
            count(self.agent.key, event.kind)
        self._pending.append(Entry(0, event, self.claim.turn, b""))
        self._held += len(event.value)
        if not self._scheduled:
            self._scheduled = True
            self.worker.loop.call_soon(self._flush)

    async def settled(self) -> None:
        """Wait until everything is durable; raise if the run can write nothing any more."""
        await self.relieve()
        if self.lost:
            raise asyncio.CancelledError("the claim is lost")
        if self.ended:
            raise RuntimeError("the task has ended: no step can be logged any more")

    async def save(self, value: bytes) -> None:
        """Keep the task's private value, and wait until it is durable."""
        self.record(Private(kind=SAVED, value=Raw(value), at=clock.now()))
        await self.settled()

    async def hand_over(self, digest: str, timeout: float) -> None:
        """See `Running.hand_over`."""
        value = Raw(msgspec.json.encode(digest))
        self.record(Private(kind=HANDED_OVER, value=value, at=clock.now()))
        await self.settled()
        self.handed_over = timeout

    def connection(self, address: str) -> Mapping[str, Any]:
        """See `Running.connection`."""
        return self.agent.connection(address)

    def delegate(self, remote: RemoteTask, name: str = "") -> None:
        """See `Running.delegate`."""
        if not (self.ended or self.lost):
            self.record(delegated.sent(remote, name))

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """Run a blocking call."""
        return await self.worker.threads.run(call)

    async def received(self, number: int) -> Received:
        """Return the message of this number."""
        return await self._read(lambda: message_at(self.worker.store, self.claim.head, number))

    async def _read(self, read: Callable[[], Awaitable[T]], what: str = "read") -> T:
        """Read from the store. It may come back; until then the handler waits."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await read()
            except Unavailable as error:
                if self.lost:
                    raise
                logger.warning("%s failed; retrying in %g s: %s", what, pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _resume(self) -> None:
        """Go on where the handler was."""
        claim = self.claim
        durable = self.handler.durable
        found = await self._read(lambda: resumed(self.worker.store, claim, durable=durable))
        if found.began != claim.turn:
            self.handler = self.agent.handler_of(found.first.skill)
            self._begin_turn(found.first, found.began)
        turn, handler = self.turn, self.handler
        turn._saved, turn._delegated = found.saved, found.delegated
        if found.task is not None:
            turn._task = found.task
            self._artifacts.update(artifact.artifact_id for artifact in found.task.artifacts)
        if claim.head.canceling:
            self.reason, turn.canceled = "cancel", True
        if not handler.durable:
            return
        self._grown = found.grown
        self.journal = turn._journal = Journal(
            self,
            found.entries,
            turn._key,
            task=self.task,
            incoming=None if found.incoming is None else (claim.turn, found.incoming),
            # a run after a crash is woken, too, but not by what the handler waits for
            woken=claim.head.woken and claim.attempt <= 1,
            canceling=claim.head.canceling and handler.cancel is None,
            repeated=found.repeated,
            known=_message_ids(found.task),
            streams=turn._streams,
            form=found.form,
        )
        if self.journal.form:
            turn._sends = Sends(self.journal, found.begun, turn._note_send)
        turn._version = self.journal.declare(handler.version)
        if claim.head.canceling and handler.cancel is not None:
            self.journal.leave()

    def _rewrite(self) -> None:
        """Take back what an attempt before this one added to artifacts."""
        grown, self._grown = self._grown, ()
        for artifact in grown:
            event = TaskArtifactUpdateEvent(
                task_id=self._id, context_id=self.claim.head.context, artifact=artifact
            )
            self._append(event, ours=True)

    def _suspend(self, suspended: Suspended | None) -> None:
        """Have the claim released until the handler goes on, if it is suspended."""
        if suspended is None or self.reason not in ("", "drain"):
            return
        self._pause_for(WAITS[suspended.waits], suspended.seconds, self.handler.timeout)
        if not suspended.asks:
            self._work()

    def _leave(self) -> None:
        """Have the claim released to whom the task was handed over, if the handler has done so and
        the task goes on."""
        if self.handed_over and not (self.ended or self.paused or self.reason or self.lost):
            self._pause_for(WRITER, 0.0, self.handed_over)
            self._work()

    def _pause_for(self, waits: int, seconds: float, timeout: float) -> None:
        self.pausing = Pause(waits=waits, began=self.turn._number, seconds=seconds, timeout=timeout)

    def _work(self) -> None:
        """Say that the task is being worked on."""
        if self.state is not WORKING:
            self._append(self.turn._status(WORKING, None, None), ours=True)

    def audit(self, event: str, result: str, **about: str) -> None:
        """Write to the audit log, if there is one."""
        if self.worker.settings.audit:
            caller = self.turn.caller
            whose = {"who": caller.identity, "realm": caller.realm, "tenant": caller.tenant}
            about = {"task": self.claim.head.id, **about}
            audit(event, result=result, agent=self.agent.key, **whose, **about)

    def _should_wait(self) -> bool:
        """Whether to wait until pending events are written."""
        return len(self._pending) >= BATCH or self._held >= LARGE or self.ended or self.lost

    @staticmethod
    def _is_event(value: Any) -> bool:
        return isinstance(value, TaskArtifactUpdateEvent | TaskStatusUpdateEvent | Reply)

    def _start(self) -> None:
        """Append `working` before the first content of a turn, in the same write: no content may
        appear to come from a task that nobody works on. A state that the handler set itself
        stays."""
        waits = self.state is self.claim.head.state and not self.paused
        if waits and not (self.ended or self.lost):
            sound = self.turn._sound
            self._append(self.turn._status(WORKING, None, None), ours=True)
            self.turn._sound = sound

    def _append(self, event: Event, *, ours: bool = False) -> None:
        """Append an event of the handler, or one on its behalf."""
        if self.ended or self.lost:
            self._drop(event)
            return
        if self.journal is not None and not ours:
            if self.journal.skip(event):
                return
            if self._grown:
                self._rewrite()
        if type(event) is Reply and (self.born or not self.handler.reply):
            event = self.turn._status(TaskState.COMPLETED, event.message, None)
        elif type(event) is TaskStatusUpdateEvent and len(event.status.timestamp or "") != 24:
            # The list of tasks is ordered by these times.
            event = replace(event, status=replace(event.status, timestamp=clock.now()))
        try:
            wire = v1_0.response(event)
            if event is not self.turn._sound:
                _readable(wire)  # a value that cannot be read back must not get into a log
            if not ours:
                self._events += 1
                self._bytes += len(wire)
                if self._events > self._max_events or self._bytes > self._max_output:
                    raise IllegalEvent(
                        f"the turn wrote more than {self._max_events} events or "
                        f"{self._max_output} bytes"
                    )
            self._check(event)
        except (IllegalEvent, TypeError, ValueError, RecursionError) as error:
            raise InvalidAgentResponse(str(error)) from error
        self._pending.append(Entry(0, event, self.claim.turn, wire))
        self.turn._wires.append(wire)
        self._held += len(wire)
        if not self._scheduled:
            self._scheduled = True
            self.worker.loop.call_soon(self._flush)

    def _drop(self, event: Event) -> None:
        name = type(event).__name__
        if not self.lost and name not in self._dropped:  # warn once
            self._dropped = (*self._dropped, name)
            logger.warning(
                "handler %s: dropped %s, because the task has ended", self.handler.name, name
            )

    def _check(self, event: Event) -> None:
        """Update the local copy of the task, and refuse an event that is not legal."""
        if type(event) is TaskArtifactUpdateEvent:
            if event.task_id != self._id:
                raise IllegalEvent("the event belongs to another task")
            key = event.artifact.artifact_id
            if not event.append:
                self._artifacts.add(key)
            elif key not in self._artifacts:
                raise IllegalEvent(f"append to an artifact that does not exist: {key}")
            if self.state is TaskState.AUTH_REQUIRED:
                self.paused = False  # it continued, so its end completes the task
        elif type(event) is TaskStatusUpdateEvent:
            if event.task_id != self._id:
                raise IllegalEvent("the event belongs to another task")
            self.state = state = advance(self.state, event)
            self.ended = state.terminal
            self.paused = state.interrupted
        else:
            self.ended = True
            return
        self.born = True

    # -- appending

    def _flush(self, release: bool = False) -> None:
        """Start to append pending events; only one append is in progress at a time."""
        self._scheduled = False
        if self.lost or not (self._pending or release):
            return
        if self._flying:
            return  # it flushes again when it is written
        entries, self._pending = self._pending, []
        self._held = 0
        self._ship(entries, release)

    def _ship(self, entries: list[Entry], release: bool) -> None:
        self._flying = True
        # A local variable: one more attribute would end the key sharing of instances.
        began = 0.0 if self.worker.timed is None else time.perf_counter()
        store = self.worker.store
        if release and self.pausing is not None:
            self._flight = store.append(self.claim, entries, release=True, pause=self.pausing)
        else:
            self._flight = store.append(self.claim, entries, release=release)
        if self._flight.done():
            self._landed(self._flight, entries, release, began)
        else:
            self._flight.add_done_callback(
                partial(self._landed, entries=entries, release=release, began=began)
            )

    def _landed(
        self, flight: asyncio.Future[bool], entries: list[Entry], release: bool, began: float
    ) -> None:
        # The future's own state changes before this call.
        self._flying = False
        error = flight.exception()
        if error is None:
            self._pause = 0.0
            if (timed := self.worker.timed) is not None:
                timed(time.perf_counter() - began)
            self.over = self.ended and not self._pending and not flight.result()
            self.worker.bell.ring(self.claim.head.id)
            if self.claim.head.hooked:
                self.worker.bell.ring(f"push:{self.agent.key}")
            if self._pending and not self._scheduled:
                self._flush()
        elif self.lost or isinstance(error, Stale):
            self.worker.abandon(self)
        elif isinstance(error, Unavailable):
            # The store may come back; until then the handler waits.
            self._flying = True
            self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
            logger.warning("append failed; retrying in %g s: %s", self._pause, error)
            self.worker.loop.call_later(self._pause, self._reship, entries, release)
        else:
            self._cannot_store(error, release)
        if self._waiters:
            self.wake()

    def _reship(self, entries: list[Entry], release: bool) -> None:
        self._flying = False
        if not self.lost:
            self._ship(entries, release)
        self.wake()  # waiters check again

    def _cannot_store(self, error: BaseException, release: bool) -> None:
        """An event cannot be stored: fail the task and say why, if possible."""
        logger.error("handler %s: append failed: %s", self.handler.name, error, exc_info=error)
        if self._unstorable or not isinstance(error, A2AError | IllegalEvent):
            self.reason = "store"
            self.worker.give_back(self)
            return
        self._unstorable = True
        self._pending.clear()
        self.ended = False
        self.state = TaskState.WORKING
        words = f"The result could not be stored: {error}"
        self._append(self.turn._status(TaskState.FAILED, words, None), ours=True)
        self._flush(release)

    async def _landing(self) -> None:
        while self._flying and not self.lost:
            waiter = self.worker.loop.create_future()  # a separate one, because it may be canceled
            self._waiters = (*self._waiters, waiter)
            await waiter

    def wake(self) -> None:
        """Wake the waiters for an append."""
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _release(self) -> None:
        """The last append: pending events, and the end of the claim."""
        await self._landing()
        if self.over:
            return
        self._flush(release=True)
        await self._landing()
        if self._flight is not None and not self._flight.exception() and self._flight.result():
            self.worker.bell.ring(f"work:{self.agent.key}")

    # -- the run

    @property
    def outcome(self) -> str:
        """How it ended, in a word."""
        if self.lost:
            return "lost"
        if self.reason == "drain" and not self.ended:
            return "handed_back"
        return "replied" if self.ended and not self.state.terminal else ENDINGS[self.state.number]

    async def perform(self) -> None:
        """Run the handler to its end, whatever it raises."""
        TASK.set(self.claim.head.id)
        try:
            try:
                head = self.claim.head
                if self.handler.durable or head.private or head.began or head.canceling:
                    await self._resume()
                if self.handler.one_at_a_time and await self._must_wait():
                    return
                if self.reason == "cancel" and (self.journal is None or self.handler.cancel):
                    await self.handler.stop(self.turn, self, self.worker.threads)
                else:
                    await self.handler.perform(self.turn, self, self.worker.threads)
                if self.journal is not None:
                    self.journal.end()
                elif self.turn._made_count > self.turn._handed_count:
                    self._unyielded()
            except asyncio.CancelledError as error:
                if not self.reason and not self.lost:
                    self._failed(error)
            except InvalidAgentResponse as error:
                self._invalid(error)
            except UserError as error:
                self._user_error(error)
            except BaseException as error:  # an agent must not end the server
                if interrupted(error):
                    raise
                self._raised(_ungrouped(error))
            self.closing = True
            if self.journal is not None:
                self._suspend(self.journal.suspended)
            if self.pausing is None:
                self._leave()
            if self._stopper is not None and not self.lost:
                await asyncio.wait([self._stopper])
            if self.lost:
                return
            if self.reason == "drain" and not self.ended and self.pausing is None:
                self._flush()
                await self._landing()
                await self.worker.hand_back(self)
            else:
                if self.pausing is None:
                    if self.reason == "cancel" and self.turn.delegated:
                        await self._cancel_delegated()
                    self._end()
                await self._release()
                if self.handler.one_at_a_time:
                    await self._wake_next()
        finally:
            self.worker.left(self)

    async def _must_wait(self) -> bool:
        """Whether another turn of the context is first; then the claim is given back."""
        if self.claim.head.canceling:
            return False
        head, store = self.claim.head, self.worker.store
        place = Place(head.id, self.claim.turn, self.claim.received.at)
        delay = await self._read(lambda: context_order.delay(store, self.agent, head, place))
        if delay:
            self.worker.let_wait(self, delay)
        return bool(delay)

    async def _wake_next(self) -> None:
        """Have the next turn of the context run, if this one has ended."""
        if self.lost or (self.pausing is not None and self.state is WORKING):
            return
        head, worker = self.claim.head, self.worker
        try:
            await context_order.wake_next(worker.store, worker.bell, self.agent, head)
        except Unavailable as error:  # it is tried again after a time
            logger.warning("cannot wake the next turn of the context: %s", error)

    def _raised(self, error: BaseException) -> None:
        """The handler has ended with what is not for the client, or is no error."""
        if isinstance(error, NotHeld):
            self.worker.let_go(self)
        elif isinstance(error, CodeChanged | UnknownEntry):
            self._pending.clear()
            self.lost = True
            self.worker.postpone(self, error)
        elif not isinstance(error, Suspended):
            self._failed(error)

    def _end(self) -> None:
        """Complete the task, unless the handler has set a final status."""
        if self.ended:
            return
        if self.reason == "cancel":
            event = self.turn._status(TaskState.CANCELED, None, None)
        elif self.reason == "deadline":
            event = self.turn._status(TaskState.FAILED, self.words("deadline"), None)
        elif self.paused:
            return
        else:
            event = self.turn._status(TaskState.COMPLETED, None, None)
        self._append(event, ours=True)

    async def _cancel_delegated(self) -> None:
        """Cancel what the task began at other agents, unless the handler ended it otherwise."""
        if self.ended and self.state is not TaskState.CANCELED:
            return
        self._flush()
        grace = self.worker.settings.cancel_grace / 2
        await delegated.cancel(self.agent, self._id, self.turn.delegated, grace)

    @property
    def stopping(self) -> bool:
        """Whether the author's `cancel` is still running."""
        return self._stopper is not None and not self._stopper.done()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Its asyncio tasks that may still be running."""
        return [self.task] if self._stopper is None else [self.task, self._stopper]

    def stop(self, reason: str) -> None:
        """Ask the handler to end: first by its own `cancel`, then by canceling its coroutine."""
        if self.reason or self.closing:
            return
        if reason == "cancel" and self.claim.head.canceling:
            return  # it was claimed for that
        self.reason = reason
        self.turn.canceled = True
        if reason == "deadline":
            logger.warning("handler %s: %s", self.handler.name, self.words(reason))
        if reason == "cancel" and self.handler.cancel is not None:
            self._stopper = asyncio.create_task(self._author_cancel())
        else:
            self.task.cancel()

    async def _author_cancel(self) -> None:
        try:
            await self.handler.stop(self.turn, self, self.worker.threads)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if interrupted(error):
                raise
            logger.error("handler %s: cancel failed", self.handler.name, exc_info=error)
            self._report(error)
        finally:
            if not self.closing:
                self.task.cancel()

    def words(self, reason: str) -> str:
        """The message of a task that was ended from outside."""
        if reason == "deadline":
            seconds = self.worker.settings.turn_timeout
            return f"The agent did not finish within {seconds:g} seconds"
        if reason == "store":
            return "The result could not be stored"
        return "The server was shut down before the agent finished"

    def _invalid(self, error: InvalidAgentResponse) -> None:
        logger.error("handler %s: invalid agent response: %s", self.handler.name, error)
        self.error = error.reason
        self._report(error)
        if not self.ended and not self.lost:
            reason = error.message.encode("utf-8", "replace").decode()
            self._append(self.turn.fail(f"{InvalidAgentResponse.text}: {reason}"), ours=True)

    def _user_error(self, error: UserError) -> None:
        """Fail the task with the author's text. The cause is only logged."""
        self.error = name = type(error).__name__
        cause = error.__cause__ or error.__context__
        words = "handler %s raised %s: %s"
        logger.info(words, self.handler.name, name, error.shown, exc_info=cause)
        self._report(error)
        if not self.ended and not self.lost:
            self._append(self.turn.fail(error.shown), ours=True)

    def _failed(self, error: BaseException) -> None:
        correlation = clock.uuid7()
        CORRELATION.set(correlation)
        self.error = name = type(error).__name__
        # In the text, too, because not every formatter shows the id.
        words = "handler %s raised %s; correlation id %s"
        logger.error(words, self.handler.name, name, correlation, exc_info=error)
        self._report(error)
        if not self.ended and not self.lost:
            words = f"The agent failed ({name}); correlation id {correlation}"
            self._append(self.turn.fail(words), ours=True)

    def _unyielded(self) -> None:
        """Warn about events that the handler has made and not handed over."""
        if self.reason or self.lost:
            return  # it was stopped
        turn, handler = self.turn, self.handler
        handler.followed = FIRST_TURNS
        number = turn._made_count - turn._handed_count
        for what in (
            forgotten_events(turn._made) if turn._made else [forgotten_count(number, handler.run)]
        ):
            words = f"handler {handler.name}: {what}, and so dropped"
            logger.warning("%s: yield it, return it, or await turn.emit(…)", words)
            self._report(EventNotYielded(words))

    def _report(self, error: BaseException) -> None:
        """Pass the error to a test, if one asked for it."""
        if self.worker.raised is not None:
            self.worker.raised(error)

    async def related(self, ids: Sequence[str], limit: int = RELATED) -> list[Task]:
        """Tasks that the caller may see: those with these ids, or the others of the context."""
        store = self.worker.store
        # A caller with whom the task is shared does not see other tasks of its owner.
        scope = replace(self.claim.head.scope, owner=self.turn.caller.qualified)
        if not ids:
            return await self._others(scope, limit)
        records = [await store.load(scope, task) for task in list(dict.fromkeys(ids))[:RELATED]]
        return [record.task for record in records if record is not None]

    async def _others(self, scope: Scope, limit: int) -> list[Task]:
        """The other tasks of the context, newest first."""
        found: list[Task] = []
        cursor: tuple[str, str] | None = None
        while len(found) < limit:
            size = min(limit - len(found) + 1, RELATED)
            query = Query(context=self.claim.head.context, size=size, cursor=cursor)
            page = await self.worker.store.list(scope, query)
            found += [task for task in page.tasks if task.id != self.claim.head.id]
            cursor = page.cursor
            if cursor is None:
                break
        return found[:limit]

    async def conversation(
        self, before: Place, limit: int, characters: int
    ) -> list[ConversationMessage]:
        """See `Running.conversation`."""
        head = self.claim.head
        # A caller with whom the task is shared sees this task, and no other of its owner.
        shared = head.scope.owner != self.turn.caller.qualified
        return await conversation(
            *(self.worker.store, head.scope, head.context, before, limit, characters),
            task=head.id if shared else "",
        )

    async def context_value(self) -> ContextValue | None:
        """See `Running.context_value`."""
        self._own_context()
        return await self._read(lambda: self.worker.store.context_value(self.claim))

    async def save_context(self, value: bytes, version: int) -> int:
        """See `Running.save_context`."""
        self._own_context()
        if self.ended:
            raise RuntimeError("the task has ended: nothing can be saved any more")
        store, claim, key = self.worker.store, self.claim, self.turn._key
        try:
            # under the key of the turn: what an earlier attempt at it has saved is its own
            return await self._read(lambda: store.save_context(claim, value, version, key), "save")
        except Stale:
            self.worker.abandon(self)
            raise asyncio.CancelledError("the claim is lost") from None

    def _own_context(self) -> None:
        """Refuse a caller with whom the task is shared: the context is its owner's."""
        if self.claim.head.scope.owner != self.turn.caller.qualified:
            raise PermissionError(
                "the task is shared with this caller, and the value of its context belongs to the "
                "owner: a turn of this caller can neither read nor save it"
            )
