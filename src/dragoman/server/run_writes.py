"""Appends the events of a run to the log: checks them, and writes events together that are made
together."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, TypeGuard, cast

import msgspec
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.agent.durable import Journal
from dragoman.agent.gate import Conclusion
from dragoman.agent.handler import Handler
from dragoman.agent.turn import Turn
from dragoman.dialects import v1_0
from dragoman.model import clock
from dragoman.model.errors import A2AError, InvalidAgentResponse, Unavailable
from dragoman.model.events import Entry, Event, Private, Reply
from dragoman.model.lifecycle import IllegalEvent, advance
from dragoman.model.types import (
    Artifact,
    StreamResponse,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from dragoman.server.worker_protocol import RunningWorker
from dragoman.stores.store import LARGE, Claim, Pause, Stale
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.server.run import Run

BATCH = 128
KEPT = 1024 * 1024
"""The bytes of a turn's output after which `turn.task` has no more artifacts of this turn: a long
stream must not fill the memory."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
WORKING = TaskState.WORKING

_readable = msgspec.json.Decoder(StreamResponse).decode


class HeldEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event of a handler that its gate holds back."""

    artifact: TaskArtifactUpdateEvent | None = None
    status: TaskStatusUpdateEvent | None = None


class RunWrites:
    """The half of a run that writes."""

    worker: RunningWorker
    claim: Claim
    agent: Agent
    handler: Handler
    turn: Turn
    state: TaskState
    born: bool
    _id: str
    _max_events: int
    _max_output: int
    _artifacts: set[str]
    _pending: list[Entry]
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

    _scheduled = False
    _flight: asyncio.Future[bool] | None = None
    _flying = False
    """An append is in progress, or waits for a retry."""
    _waiters: tuple[asyncio.Future[None], ...] = ()
    _pause = 0.0
    _unstorable = False
    _dropped: tuple[str, ...] = ()
    _events = 0
    _bytes = 0
    journal: Journal | None = None
    """What a durable handler has done so far."""
    pausing: Pause | None = None
    """How the handler is suspended when its claim is released."""
    _grown: tuple[Artifact, ...] = ()
    """Artifacts that an attempt before this one has added to since the handler's last finished
    operation, as they were then."""
    _held = 0
    """The bytes of pending events."""
    withholds = False
    """A gate waits for the end of the handler: the status that ends the task is not appended."""
    withheld: TaskStatusUpdateEvent | None = None
    """That status."""
    holds = False
    """The gate holds back the output of the handler, too."""
    held: list[HeldEvent]
    """That output."""
    published = False
    """The gate wants it to be logged."""
    conclusion: Conclusion | None = None
    """What a gate adds to the status that ends the task."""

    async def relieve(self) -> None:
        """Wait until everything is written; other handlers run in the meantime."""
        self._flush()
        await self._landing()
        await asyncio.sleep(0)

    async def settle(self, event: Event) -> bool:
        """Append an event and wait until it is durable; False if that is not possible."""
        if self.closing or self.ended or self.lost:
            return False
        self._append(event, ours=True)
        await self.relieve()
        return not self.lost

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

    def _rewrite(self) -> None:
        """Take back what an attempt before this one added to artifacts."""
        grown, self._grown = self._grown, ()
        for artifact in grown:
            event = TaskArtifactUpdateEvent(
                task_id=self._id, context_id=self.claim.head.context, artifact=artifact
            )
            self._append(event, ours=True)

    def _should_wait(self) -> bool:
        """Whether to wait until pending events are written."""
        return len(self._pending) >= BATCH or self._held >= LARGE or self.ended or self.lost

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
        if self.handler.durable and self._keeps_back(event, ours):
            return
        if type(event) is Reply and (self.born or not self.handler.reply):
            event = self.turn._status(TaskState.COMPLETED, event.message, None)
        elif type(event) is TaskStatusUpdateEvent and len(event.status.timestamp or "") != 24:
            # The list of tasks is ordered by these times.
            event = replace(event, status=replace(event.status, timestamp=clock.now()))
        if self.conclusion is not None and _is_end(event):
            event = self.conclusion.added_to(event)
        try:
            wire = v1_0.response(event)
            if event is not self.turn._sound:
                _readable(wire)  # a value that cannot be read back must not get into a log
            if not ours:  # (a method of its own would be one more call for each event)
                self._events += 1
                self._bytes += len(wire)
                if self._events > self._max_events or self._bytes > self._max_output:
                    raise self._too_much()
            self._check(event)
        except (IllegalEvent, TypeError, ValueError, RecursionError) as error:
            raise InvalidAgentResponse(str(error)) from error
        self._pending.append(Entry(0, event, self.claim.turn, wire))
        if self._bytes <= KEPT or type(event) is TaskStatusUpdateEvent:
            self.turn._wires.append(wire)
        self._held += len(wire)
        if not self._scheduled:
            self._scheduled = True
            self.worker.loop.call_soon(self._flush)

    def _keeps_back(self, event: Event, ours: bool) -> bool:
        """Whether an event must not be appended now: a gate waits for the end of the handler, or
        the handler runs again and the log has the event."""
        if self.withholds and self._withhold(event):
            return True
        if self.journal is not None and not ours:
            if self.journal.skip(event):
                return True
            if self._grown:
                self._rewrite()
        return False

    def _withhold(self, event: Event) -> bool:
        """Whether an event of the handler must not be appended now: the status that ends the task,
        and what comes after it."""
        if self.withheld is not None:
            self._drop(event)
            return True
        if type(event) is Reply:
            event = self.turn._status(TaskState.COMPLETED, event.message, None)
        if _is_end(event):
            self.withheld = event
            return True
        if self.holds:
            self._hold(event)
        return self.holds

    def _hold(self, event: Event) -> None:
        """Keep an event of the handler that is logged later, if at all."""
        status = event.status if type(event) is TaskStatusUpdateEvent else None
        if status is not None and status.state.interrupted:
            raise InvalidAgentResponse(
                "the output of the handler is held back, so it cannot ask its client"
            )
        if status is not None and status.message is None:
            return
        try:
            wire = v1_0.response(event)
            _readable(wire)
            if type(event) is TaskArtifactUpdateEvent:
                self._check_artifact(event)
            self._events += 1
            self._bytes += len(wire)
            if self._events > self._max_events or self._bytes > self._max_output:
                raise self._too_much()
        except (IllegalEvent, TypeError, ValueError, RecursionError) as error:
            raise InvalidAgentResponse(str(error)) from error
        artifact = event if type(event) is TaskArtifactUpdateEvent else None
        said = event if type(event) is TaskStatusUpdateEvent else None
        self.held.append(HeldEvent(artifact, said))

    def _too_much(self) -> IllegalEvent:
        return IllegalEvent(
            f"the turn wrote more than {self._max_events} events or {self._max_output} bytes"
        )

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
            self._check_artifact(event)
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

    def _check_artifact(self, event: TaskArtifactUpdateEvent) -> None:
        """Refuse an artifact of another task, and more of one that does not exist."""
        if event.task_id != self._id:
            raise IllegalEvent("the event belongs to another task")
        key = event.artifact.artifact_id
        if not event.append:
            self._artifacts.add(key)
        elif key not in self._artifacts:
            raise IllegalEvent(f"append to an artifact that does not exist: {key}")

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
            self.worker.abandon(cast("Run", self))
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
            self.worker.give_back(cast("Run", self))
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
        if self._flying:
            await self._landing()
        if self.over:
            return
        self._flush(release=True)
        if self._flying:
            await self._landing()
        if self._flight is not None and not self._flight.exception() and self._flight.result():
            self.worker.bell.ring(f"work:{self.agent.key}")


def _is_end(event: Event) -> TypeGuard[TaskStatusUpdateEvent]:
    return type(event) is TaskStatusUpdateEvent and event.status.state.terminal
