"""Runs a handler without a server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.agent.turn import Turn
from dragoman.agent.unyielded_events import EventNotYielded
from dragoman.agent.user_error import UserError
from dragoman.bells.memory import MemoryBell
from dragoman.model import clock, to_parts
from dragoman.model.caller import Call, Caller
from dragoman.model.events import Entry, Event, Private, Received, Reply
from dragoman.model.lifecycle import apply
from dragoman.model.types import Message, Part, Role, SendMessageRequest, Task, TaskState
from dragoman.server.reader import Shutdown
from dragoman.server.service import Service
from dragoman.server.settings import Settings
from dragoman.server.worker import Worker
from dragoman.stores.memory import MemoryStore
from dragoman.stores.store import TIME


class HandlerRun(Struct, frozen=True):
    """What a handler did with its messages."""

    events: Sequence[Event]
    """Its events, in order."""
    task: Task | None
    """The task; None after a direct reply."""
    message: Message | None
    """The direct reply, if there was one."""
    error: BaseException | None = None
    """The exception of the handler, if it raised one. The task contains only its type."""

    @property
    def state(self) -> TaskState | None:
        """The state of the task."""
        return self.task.status.state if self.task else None

    @property
    def text(self) -> str:
        """All text: of the artifacts, else of the reply or the status message."""
        if self.task is None:
            return self.message.text if self.message else ""
        found = [p.text for a in self.task.artifacts for p in a.parts if p.text is not None]
        if not found and self.task.status.message:
            return self.task.status.message.text
        return "".join(found)


def message(value: Any, *, skill: str = "", metadata: Mapping[str, Any] | None = None) -> Message:
    """Make a user's message from text, data or parts. A message is returned unchanged."""
    merged = dict(metadata or {})
    if skill:
        merged["skill"] = skill
    if isinstance(value, Message):
        merged = {**(value.metadata or {}), **merged}
        return replace(value, metadata=merged or None)
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str | bytes | Part) for item in items):
        items = [value]
    return Message(
        message_id=clock.uuid7(),
        role=Role.USER,
        parts=tuple(part for item in items for part in to_parts.parts(item)),
        metadata=merged or None,
    )


def turn(value: Any = "", *, caller: Caller | None = None, skill: str = "") -> Turn:
    """Make a turn for a handler from text, data, parts or a message."""
    asked = message(value, skill=skill)
    received = Received(
        message=replace(asked, context_id=asked.context_id or clock.uuid7(), task_id=clock.uuid7()),
        caller=caller or Caller(),
        at=clock.now(),
        skill=skill,
    )
    return Turn(apply(None, received), received)


async def run_handler(
    agent: Agent,
    *values: Any,
    skill: str = "",
    caller: Caller | None = None,
    state: Any = None,
    strict: bool = False,
    **settings: Any,
) -> HandlerRun:
    """Send an agent one message after the other (text, data, parts or a message), as turns of one
    task, and return what it did. `state` replaces the value of its lifespan. An exception in the
    handler becomes the `error` of the result; with `strict` it is raised here. Raises
    EventNotYielded if the handler made an event and did not hand it over."""
    agent.check()
    chosen = Settings(**settings)
    store, bell = MemoryStore(), MemoryBell()
    service = Service(agent, store, bell, chosen, Shutdown())
    worker = Worker({agent.key: agent}, store, bell, chosen)
    worker.states[agent.key] = state
    errors: list[BaseException] = []
    worker.raised = errors.append
    call = Call(caller or Caller())
    task = ""
    scope = service.scopes.of_call("", call)
    for value in values or ("",):
        asked = message(value, skill=skill)
        asked = replace(asked, task_id=task)
        accepted = await service._accept(SendMessageRequest(message=asked), scope, call)
        task = accepted.head.id
        while claims := await store.claim([agent.key], worker.id, chosen.lease, 1):
            await worker.begin(claims[0]).task
            await _pass_time(store, task)
        if (error := fault(errors, strict)) is not None:
            raise error
    entries = await store.read(scope, task, 0, 2 * chosen.max_events + 100)
    error = errors[0] if errors else None
    return _handler_run(entries or (), await store.load(scope, task), error)


async def _pass_time(store: MemoryStore, task: str) -> None:
    """Let the time pass for which a durable handler sleeps."""
    log = store.row(task)
    if log is not None and log.waits == TIME:
        log.due = time.time()
        store.touch(log)
        await store.wake([log.scope.agent], 1)


def fault(errors: Sequence[BaseException], strict: bool) -> BaseException | None:
    """The first error that must fail a test: a forgotten `yield`; if `strict`, any other error,
    too, except a `UserError`, which is a valid result."""
    return next(
        (
            error
            for error in errors
            if isinstance(error, EventNotYielded) or (strict and not isinstance(error, UserError))
        ),
        None,
    )


def _handler_run(entries: Sequence[Entry], record: Any, error: BaseException | None) -> HandlerRun:
    hidden = Received | Private | Task
    events = [e.event for e in entries if not isinstance(e.event, hidden)]
    reply = next((event.message for event in events if isinstance(event, Reply)), None)
    return HandlerRun(events, record.task if record and reply is None else None, reply, error)
