"""Serves an executor that was written for a2a-sdk, 1.x or 0.3, as it is."""

from __future__ import annotations

import asyncio
from typing import Any

from a2a.auth.user import User
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.types import AgentCard
from msgspec.structs import replace

from dragoman import (
    Agent,
    Artifact,
    Message,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
    Turn,
)
from dragoman.bridges.sdk.values import VALUES


def serve(executor: Any, card: Any, *, retries: int = 0, key: str = "") -> Agent:
    """Serve an executor under its card. With `retries`, a turn runs again if its process dies."""
    if isinstance(executor, type):
        executor = executor()
    about = VALUES.card(card)
    agent = Agent(
        about["name"],
        description=about.get("description") or about["name"],
        version=about.get("version") or "1.0.0",
        key=key,
        retries=retries,
        input_modes=about.get("defaultInputModes") or ("text/plain",),
        output_modes=about.get("defaultOutputModes") or ("text/plain",),
    )
    handler = Executor(executor)
    for skill in about.get("skills", ()):
        agent.skill(
            id=skill["id"],
            name=skill.get("name", ""),
            description=skill.get("description", ""),
            tags=skill.get("tags", ()),
            examples=skill.get("examples", ()),
            input_modes=skill.get("inputModes", ()),
            output_modes=skill.get("outputModes", ()),
            reply=True,
        )(handler)
    agent.handler(reply=True)(handler)
    return agent


class Executor:
    """An executor as a handler: what it enqueues becomes events of the turn."""

    def __init__(self, executor: AgentExecutor) -> None:
        self._executor = executor
        self._running: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}
        """What executes, by task, and whether it need not be waited for any more."""
        self.__name__ = type(executor).__name__

    async def run(self, turn: Turn) -> None:
        """Have the executor execute the message."""
        context = await _context(turn)
        work = asyncio.create_task(self._executor.execute(context, Queue(turn)))
        canceled = asyncio.Event()
        self._running[turn.task.id] = work, canceled
        try:
            await asyncio.wait([work])
            if work.cancelled():
                await canceled.wait()  # until the executor has said its last word
            else:
                work.result()
        finally:
            del self._running[turn.task.id]
            work.cancel()  # if this turn was stopped

    async def cancel(self, turn: Turn) -> None:
        """Stop what is executing, as the SDK does, and have the executor cancel the task."""
        work, canceled = self._running.get(turn.task.id, (None, None))
        if work is not None:
            work.cancel()
            await asyncio.wait([work])
        try:
            await self._executor.cancel(await _context(turn), Queue(turn))
        finally:
            if canceled is not None:
                canceled.set()


class _Caller(User):
    """The caller, as the SDK knows users."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    @property
    def is_authenticated(self) -> bool:
        """Whether the caller has shown who it is."""
        return bool(self._identity)

    @property
    def user_name(self) -> str:
        """Who it is."""
        return self._identity


async def _context(turn: Turn) -> RequestContext:
    caller = turn.caller
    about: dict[str, Any] = {
        "user": _Caller(caller.identity),
        "requested_extensions": set(turn.extensions),
    }
    if "tenant" in ServerCallContext.model_fields:
        about["tenant"] = caller.tenant
    elder = len(turn.history) > 1 or turn.task.status.state is not TaskState.SUBMITTED
    return RequestContext(
        request=VALUES.request(turn),
        task_id=turn.task.id,
        context_id=turn.context_id,
        task=VALUES.task(turn.task) if elder else None,
        related_tasks=[VALUES.task(task) for task in await turn.referenced_tasks()],
        call_context=ServerCallContext(**about),
    )


class Queue(EventQueue):
    """Takes what an executor enqueues, and gives it to the turn."""

    def __init__(self, turn: Turn) -> None:
        if "enqueue_event" not in getattr(EventQueue, "__abstractmethods__", ()):
            super().__init__()
        self._turn = turn
        self._known = {artifact.artifact_id: artifact for artifact in turn.task.artifacts}
        """The artifacts that the task had before this turn."""
        self._renamed: dict[str, str] = {}
        self._number = turn.idempotency_key.rpartition(":")[2]

    async def enqueue_event(self, event: Any) -> None:
        """Take an event."""
        found = VALUES.event(event)
        if isinstance(found, Message):
            await self._turn.emit(self._turn.reply(found))
        elif isinstance(found, Task):
            for each in self._differences(found):
                await self._turn.emit(each)
        else:
            await self._turn.emit(self._own(found))

    def _own(
        self, event: TaskStatusUpdateEvent | TaskArtifactUpdateEvent
    ) -> TaskStatusUpdateEvent | TaskArtifactUpdateEvent:
        """The event as one of this task."""
        ids = {"task_id": self._turn.task.id, "context_id": self._turn.context_id}
        if isinstance(event, TaskStatusUpdateEvent):
            return replace(event, **ids)
        id, first = self._id(event.artifact.artifact_id)
        # the first chunk of an attempt replaces what the attempt before it wrote
        append = event.append and not first
        return replace(
            event, artifact=replace(event.artifact, artifact_id=id), append=append, **ids
        )

    def _id(self, id: str) -> tuple[str, bool]:
        """The id of an artifact by the order of its appearance, since executors make random ones;
        and whether it appears for the first time."""
        if id in self._known:
            return id, False
        first = id not in self._renamed
        if first:
            self._renamed[id] = f"{self._number}.{len(self._renamed) + 1}"
        return self._renamed[id], first

    def _differences(self, task: Task) -> list[Any]:
        """What a task says that is not known yet."""
        turn, found = self._turn, []
        state = task.status.state
        for artifact in task.artifacts:
            if not self._same(artifact):
                found.append(self._own(_whole(artifact)))
        if state is TaskState.SUBMITTED:
            # a task exists for clients once it has a status
            return found if found or turn.task.status.state.interrupted else [turn.working()]
        now = turn.task.status
        if state is not now.state or task.status.message != now.message:
            status = TaskStatusUpdateEvent(
                task_id=turn.task.id, context_id=turn.context_id, status=task.status
            )
            found.append(status)
        return found

    def _same(self, artifact: Artifact) -> bool:
        name = self._renamed.get(artifact.artifact_id, artifact.artifact_id)
        known = {each.artifact_id: each for each in self._turn.task.artifacts}.get(name)
        return known is not None and known.parts == artifact.parts


def _whole(artifact: Artifact) -> TaskArtifactUpdateEvent:
    return TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact, last_chunk=True)


def is_card(value: object) -> bool:
    """Whether a value is a card of the SDK."""
    return isinstance(value, AgentCard)
