"""The run of one turn, from its claim to its end.

It belongs to a worker and knows only the part of it that `RunningWorker` declares. What it writes
is in `run_writes`, what it reads for its turn in `run_reads`.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from dragoman.agent import durable
from dragoman.agent.durable import CodeChanged, Journal, Suspended
from dragoman.agent.durable_sends import DurableSends
from dragoman.agent.handler import large
from dragoman.agent.run_protocol import Over
from dragoman.agent.turn import Turn
from dragoman.agent.unyielded_events import (
    FIRST_TURNS,
    EventNotYielded,
    forgotten_count,
    forgotten_events,
)
from dragoman.agent.user_error import UserError
from dragoman.model import clock
from dragoman.model.conversation import MessagePlace
from dragoman.model.errors import InvalidAgentResponse, Unavailable
from dragoman.model.events import Entry, Event, Private, Received, Reply
from dragoman.model.lineage import origin
from dragoman.model.remote_task import RemoteTask, SeenTask
from dragoman.model.task_secret import HANDED_OVER
from dragoman.model.types import (
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from dragoman.server import context_order, delegated_tasks
from dragoman.server.failed_turns import failed
from dragoman.server.replay import POSTPONED, SAVED, resumed
from dragoman.server.run_reads import RunReads
from dragoman.server.run_writes import WORKING, RunWrites
from dragoman.server.worker_protocol import RunningWorker
from dragoman.stores.store import (
    MESSAGE,
    NOTIFICATION,
    TIME,
    WRITER,
    Claim,
    Pause,
    UnknownEntry,
)
from dragoman.telemetry.logs import CORRELATION, TASK, audit, logger

WHY = 2000
"""The maximum length of the reason why a turn cannot continue."""
ENDINGS = ("", *(state.name.lower() for state in TaskState))
WAITS = {durable.TIME: TIME, durable.MESSAGE: MESSAGE, durable.NOTIFICATION: NOTIFICATION}


def interrupted(error: BaseException) -> bool:
    """Whether a person may have pressed Ctrl-C: Python raises KeyboardInterrupt in the running code
    only if nothing handles the signal, as servers do."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


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


class Run(RunWrites, RunReads):
    """Processes one claim: runs the handler and appends its events.

    Events that a handler makes without a pause are appended together, as soon as it pauses.
    """

    task: asyncio.Task[None]
    error = ""
    """The kind of error that ended the handler."""
    _postponed = ""
    """Why the turn could not continue the last time."""
    held_until = math.inf
    """When the claim may expire, by the clock of this process."""

    _stopper: asyncio.Task[None] | None = None
    detached = False
    """A handler that is not durable runs behind its gate."""
    _gate_saved: bytes | None = None
    """What its gate has saved in earlier turns."""
    _seen: Mapping[str, TaskState] = {}
    """The states of tasks of other agents, as they are in the log."""
    _stopped: BaseException | None = None
    """What ended the handler at its deadline."""
    handed_over = 0.0
    """The time limit of a handover in seconds; 0 if the task was not handed over."""

    def __init__(self, worker: RunningWorker, claim: Claim) -> None:
        head = claim.head
        self.worker = worker
        self.claim = claim
        self.agent = worker.agents[head.scope.agent]
        self.name = self.agent.name
        self.handler = self.agent.handler_of(claim.received.skill)
        self.state: TaskState = head.state
        self.born = head.born
        self.deadline = time.monotonic() + self.limit
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
    def limit(self) -> float:
        """How many seconds the handler has until it ends or is suspended."""
        seconds: float = self.worker.settings.turn_timeout
        return min(seconds, self.handler.timeout) if self.handler.durable else seconds

    @property
    def must_end(self) -> float:
        """See `Running.must_end`."""
        now, handler = time.time(), self.handler
        if handler.durable:
            return self.claim.head.deadline or now + handler.timeout
        return now + self.deadline - time.monotonic()

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

    # -- what a durable handler writes for itself

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
            self.record(delegated_tasks.sent(remote, name))

    def see(self, found: SeenTask) -> None:
        """See `Running.see`. Nobody waits for it."""
        if not (self.ended or self.lost) and self._seen.get(found.id) is not found.state:
            self._seen = {**self._seen, found.id: found.state}
            self._pending.append(delegated_tasks.seen(found))

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """Run a blocking call."""
        return await self.worker.threads.run(call)

    async def _resume(self) -> None:
        """Go on where the handler was."""
        claim = self.claim
        durable = self.handler.durable
        found = await self._read(lambda: resumed(self.worker.store, claim, durable=durable))
        if found.began != claim.turn:
            began = self.deadline - self.limit
            self.handler = self.agent.handler_of(found.first.skill)
            self.deadline = began + self.limit
            self._begin_turn(found.first, found.began)
        turn, handler = self.turn, self.handler
        self._postponed = found.postponed
        if found.entries and not handler.durable:
            raise CodeChanged(
                f"a durable handler began this turn, and {self._skill_of(found.first)} is none"
            )
        turn._saved, turn._delegated = found.saved, found.delegated
        self._gate_saved = found.gate_saved
        if found.task is not None:
            turn._task = found.task
            self._artifacts.update(artifact.artifact_id for artifact in found.task.artifacts)
        canceling = claim.head.canceling or self.reason == "cancel"
        if canceling:
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
            canceling=canceling and (handler.cancel is None or handler.gate is not None),
            repeated=found.repeated,
            known=_message_ids(found.task),
            streams=turn._streams,
            form=found.form,
        )
        if self.journal.form:
            turn._sends = DurableSends(self.journal, found.begun, turn._note_send)
        turn._version = self.journal.declare(handler.version)
        if canceling and handler.cancel is not None and handler.gate is None:
            self.journal.leave()

    @staticmethod
    def _skill_of(received: Received) -> str:
        return f"the handler of the skill {received.skill!r}" if received.skill else "the handler"

    def _suspend(self, suspended: Suspended | None) -> None:
        """Have the claim released until the handler continues, if it is suspended."""
        if suspended is None or self.reason not in ("", "drain"):
            return
        self._pause_for(WAITS[suspended.waits], suspended.seconds, self.handler.timeout)
        if not suspended.asks:
            self._work()

    def _leave(self) -> None:
        """If the handler has handed the task over and the task has not ended, have the claim
        released to the holder of the handover."""
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

    @staticmethod
    def _is_event(value: Any) -> bool:
        return isinstance(value, TaskArtifactUpdateEvent | TaskStatusUpdateEvent | Reply)

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
                await self._perform()
                if self.journal is not None:
                    self.journal.end()
                elif self.turn._made_count > self.turn._handed_count:
                    self._unyielded()
            except asyncio.CancelledError as error:
                if self.reason == "deadline":
                    self._stopped = error
                elif not self.reason and not self.lost:
                    self._failed(error)
            except InvalidAgentResponse as error:
                self._invalid(error)
            except UserError as error:
                self._user_error(error)
            except BaseException as error:  # an agent must not end the server
                if interrupted(error):
                    raise
                await self._raised(_ungrouped(error))
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

    async def _perform(self) -> None:
        """Run the gate, if there is one, else the handler or its `cancel`."""
        handler, threads = self.handler, self.worker.threads
        if handler.gate is not None:
            from dragoman.server.gated_work import enter  # most agents have no gate

            await enter(self, handler.gate, self._gate_saved)
        elif self.reason == "cancel" and (self.journal is None or handler.cancel):
            await handler.stop(self.turn, self, threads)
        else:
            await handler.perform(self.turn, self, threads)

    async def work(self) -> None:
        """Run the handler behind its gate. What it raises becomes the status that ends the task."""
        try:
            await self.handler.perform(self.turn, self, self.worker.threads)
            if self.journal is None and self.turn._made_count > self.turn._handed_count:
                self._unyielded()
        except InvalidAgentResponse as error:
            self._invalid(error)
        except UserError as error:
            self._user_error(error)
        except Exception as error:  # noqa: BLE001 - it is logged, and the task fails
            self._failed(error)
        if self.withheld is None and not self.paused:
            self._append(self.turn._status(TaskState.COMPLETED, None, None), ours=True)

    def note_stop(self, error: BaseException) -> None:
        """Log for operators what ended the handler at its deadline."""
        self._note_failure("deadline", self.words("deadline"), error)

    def let_go_of_status(self) -> None:
        """Append what was held back: the output, if the gate has published it, and the status."""
        event, self.withheld = self.withheld, None
        if event is None or self.ended:
            return
        for one in self.held if self.published else ():
            self._append(one.artifact or one.status, ours=True)  # type: ignore[arg-type]
        self._append(event, ours=True)

    async def _must_wait(self) -> bool:
        """Whether another turn of the context is first; then the claim is given back."""
        if self.reason == "cancel":
            return False
        head, store = self.claim.head, self.worker.store
        place = MessagePlace(head.id, self.claim.turn, self.claim.received.at)
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

    async def _raised(self, error: BaseException) -> None:
        """The handler ended with an exception that is not shown to the client, or that is not an
        error."""
        if isinstance(error, NotHeld):
            self.worker.let_go(self)
        elif isinstance(error, CodeChanged | UnknownEntry):
            await self._postpone(error)
        elif not isinstance(error, Suspended):
            self._failed(error)

    async def _postpone(self, error: CodeChanged | UnknownEntry) -> None:
        """Have the turn tried again later, and log the reason if it is a new one."""
        self._pending.clear()
        why = str(error)[:WHY]
        if isinstance(error, CodeChanged) and why != self._postponed:
            entry = Private(kind=POSTPONED, name=why, at=clock.now())
            self._pending.append(Entry(0, entry, self.claim.turn, b""))
            self._flush()
        await self._landing()
        if not self.lost:
            self.lost = True
            self.worker.postpone(self, error)

    def _end(self) -> None:
        """Complete the task, unless the handler has set a final status."""
        if self.ended:
            return
        if self.reason == "cancel":
            event = self.turn._status(TaskState.CANCELED, None, None)
        elif self.reason == "deadline":
            self._note_failure("deadline", self.words("deadline"), self._stopped)
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
        await delegated_tasks.cancel(self.agent, self._id, self.turn.delegated, grace)

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
        if reason == "cancel" and self._is_replaying():
            if self.journal is not None:
                self.journal.cancel()
            return
        if reason == "cancel" and self.handler.cancel is not None:
            self._stopper = asyncio.create_task(self._author_cancel())
        else:
            self.task.cancel()

    def _is_replaying(self) -> bool:
        """Whether a durable handler is on its way to where it was. If it were canceled now, it
        could not undo what it did after this place."""
        journal, head = self.journal, self.claim.head
        if self.detached:
            return False
        if journal is None:
            return self.handler.durable and bool(head.private or head.began)
        return not journal.live and self.handler.cancel is None

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
            return f"The agent did not finish within {self.limit:g} seconds"
        if reason == "store":
            return "The result could not be stored"
        return "The server was shut down before the agent finished"

    def _invalid(self, error: InvalidAgentResponse) -> None:
        logger.error("handler %s: invalid agent response: %s", self.handler.name, error)
        self.error = error.reason
        self._report(error)
        if not self.ended and not self.lost:
            reason = error.message.encode("utf-8", "replace").decode()
            self._note_failure("invalid", reason, error)
            self._append(self.turn.fail(f"{InvalidAgentResponse.text}: {reason}"), ours=True)

    def _user_error(self, error: UserError) -> None:
        """Fail the task with the author's text. The cause is only logged."""
        self.error = name = type(error).__name__
        cause = error.__cause__ or error.__context__
        words = "handler %s raised %s: %s"
        logger.info(words, self.handler.name, name, error.shown, exc_info=cause)
        self._report(error)
        if not self.ended and not self.lost:
            self._note_failure("user_error", f"the handler raised {name}", cause or error)
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
            self._note_failure("error", f"the handler raised {name}", error, correlation)
            words = f"The agent failed ({name}); correlation id {correlation}"
            self._append(self.turn.fail(words), ours=True)

    def _note_failure(
        self,
        reason: str,
        text: str,
        error: BaseException | None = None,
        correlation: str = "",
    ) -> None:
        """Log for operators how the turn went wrong."""
        self._pending.append(
            failed(self.claim.head, reason, text, error=error, correlation=correlation)
        )

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
