"""The part of a turn that calls other agents: clients, the tasks they begin, copied streams."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from dragoman.agent.output import Output, parts_of
from dragoman.agent.run_protocol import Running
from dragoman.agent.running_step import current_step
from dragoman.model import clock
from dragoman.model.events import Event, Received
from dragoman.model.lineage import Ancestor, lineage
from dragoman.model.remote_task import BegunTask, RemoteTask, SeenTask, SentTask, plain_address
from dragoman.model.types import (
    AgentCard,
    Artifact,
    Message,
    Metadata,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
)

if TYPE_CHECKING:
    from dragoman.agent.durable_sends import DurableSends
    from dragoman.client import AgentReference, Client, Options, Result, Stream, Transport

EARLY = 0.01
"""Seconds that a timer may fire too early."""


class CallingTurn(Output):
    """A turn as the clients see it that work on its behalf."""

    _received: Received
    _run: Running | None
    _connected = 0
    _sends: DurableSends | None = None
    """What a durable handler remembers of its sends."""
    _delegated: tuple[RemoteTask, ...] = ()

    @property
    def metadata(self) -> Metadata:
        """The metadata of the request. The message has its own metadata."""
        return self._received.metadata or {}

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this turn; inside of a step, for every attempt at that
        step. Pass it on to make side effects idempotent."""
        return current_step() or self._key

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

    async def emit(self, event: Any) -> None:
        """Log an event now. Accepts everything that a generator may yield."""
        if self._run is None:
            raise RuntimeError("this turn is not running; events cannot be emitted")
        for item in self._events(event):
            await self._run.emit(item)
