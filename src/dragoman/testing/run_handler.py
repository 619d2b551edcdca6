"""Try a handler without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.agent.turn import Turn
from dragoman.agent.unyielded import EventNotYielded
from dragoman.agent.user_error import UserError
from dragoman.bells.memory import MemoryBell
from dragoman.model import clock, content
from dragoman.model.caller import Call, Caller
from dragoman.model.events import Entry, Event, Received, Reply
from dragoman.model.lifecycle import apply
from dragoman.model.types import Message, Part, Role, SendMessageRequest, Task, TaskState
from dragoman.server.reader import Shutdown
from dragoman.server.service import Service
from dragoman.server.settings import Settings
from dragoman.server.worker import Worker
from dragoman.stores.memory import MemoryStore


class HandlerRun(Struct, frozen=True):
    """What a handler did with a message."""

    events: Sequence[Event]
    """What it said, in order."""
    task: Task | None
    """The task that came of it; None after a direct reply."""
    message: Message | None
    """The direct reply, if it was one."""
    error: BaseException | None = None
    """What the handler raised, if it did; the task only says its type."""

    @property
    def state(self) -> TaskState | None:
        """How the task stands."""
        return self.task.status.state if self.task else None

    @property
    def text(self) -> str:
        """All that was said in text: the artifacts', else the reply's or the status message's."""
        if self.task is None:
            return self.message.text if self.message else ""
        found = [p.text for a in self.task.artifacts for p in a.parts if p.text is not None]
        if not found and self.task.status.message:
            return self.task.status.message.text
        return "".join(found)


def message(value: Any, *, skill: str = "", metadata: Mapping[str, Any] | None = None) -> Message:
    """A user's message from a text, data, parts, or a message as it is."""
    known = dict(metadata or {})
    if skill:
        known["skill"] = skill
    if isinstance(value, Message):
        known = {**(value.metadata or {}), **known}
        return replace(value, metadata=known or None)
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str | bytes | Part) for item in items):
        items = [value]
    return Message(
        message_id=clock.uuid7(),
        role=Role.USER,
        parts=tuple(part for item in items for part in content.parts(item)),
        metadata=known or None,
    )


def turn(value: Any = "", *, caller: Caller | None = None, skill: str = "") -> Turn:
    """A turn as a handler gets it, from a text, data, parts or a message."""
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
    """Give an agent one message after the other (a text, data, parts or a message), as turns of
    one task, and tell what it did. `state` stands for what its lifespan yields. What the handler
    raises is the `error` of the rehearsal; with `strict` it is raised here. EventNotYielded if it
    made an event and did not hand it over."""
    agent.check()
    chosen = Settings(**{"watchdog": 0.0, **settings})
    store, bell = MemoryStore(), MemoryBell()
    service = Service(agent, store, bell, chosen, Shutdown())
    worker = Worker({agent.key: agent}, store, bell, chosen)
    worker.states[agent.key] = state
    errors: list[BaseException] = []
    worker.raised = errors.append
    call = Call(caller or Caller())
    task = ""
    scope = service._scope("", call)
    for value in values or ("",):
        asked = message(value, skill=skill)
        asked = replace(asked, task_id=task)
        accepted = await service._accept(SendMessageRequest(message=asked), scope, call)
        task = accepted.head.id
        for claim in await store.claim([agent.key], worker.id, chosen.lease, 1):
            await worker.begin(claim).task
        if (error := fault(errors, strict)) is not None:
            raise error
    entries = await store.read(scope, task, 0, 2 * chosen.max_events + 100)
    error = errors[0] if errors else None
    return _told(entries or (), await store.load(scope, task), error)


def fault(errors: Sequence[BaseException], strict: bool) -> BaseException | None:
    """The first of these that must fail a test: a forgotten `yield`; if it is strict, any other
    error, too, but for a `UserError`, which is an answer."""
    return next(
        (
            error
            for error in errors
            if isinstance(error, EventNotYielded) or (strict and not isinstance(error, UserError))
        ),
        None,
    )


def _told(entries: Sequence[Entry], record: Any, error: BaseException | None) -> HandlerRun:
    events = [e.event for e in entries if not isinstance(e.event, Received | Task)]
    reply = next((event.message for event in events if isinstance(event, Reply)), None)
    return HandlerRun(events, record.task if record and reply is None else None, reply, error)
