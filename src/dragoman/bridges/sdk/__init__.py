"""Serves an executor that was written for a2a-sdk, 1.x or 0.3, as it is."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from a2a.auth.user import User
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import AgentCard

from dragoman import Agent, AgentExtension, AgentProvider, Task, TaskState, Turn, UserError
from dragoman.bridges.sdk.artifacts import Artifacts
from dragoman.bridges.sdk.event_queue import Queue
from dragoman.bridges.sdk.executor_state import saved_state
from dragoman.bridges.sdk.sdk_values import VALUES

__all__ = ["serve"]


logger = logging.getLogger("dragoman")


def serve(executor: Any, card: Any, *, retries: int = 0, key: str = "") -> Agent:
    """Serve an executor under its card. With `retries`, a turn runs again if its process dies."""
    if isinstance(executor, type):
        executor = executor()
    about = VALUES.card(card)
    provider = about.get("provider")
    offered = about.get("capabilities", {}).get("extensions", ())
    agent = Agent(
        about["name"],
        description=about.get("description") or about["name"],
        version=about.get("version") or "1.0.0",
        key=key,
        provider=msgspec.convert(provider, AgentProvider) if provider else None,
        documentation_url=about.get("documentationUrl") or None,
        icon_url=about.get("iconUrl") or None,
        input_modes=about.get("defaultInputModes") or ("text/plain",),
        output_modes=about.get("defaultOutputModes") or ("text/plain",),
        extensions=[msgspec.convert(each, AgentExtension) for each in offered],
        retries=retries,
    )
    handler = Executor(executor, retries)
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


class _Execution:
    """A call of `execute` that is under way."""

    def __init__(self, work: asyncio.Task[None], queue: Queue) -> None:
        self.work = work
        self.queue = queue
        self.canceling = False
        self.canceled = asyncio.Event()
        """Set when the executor has said its last word about the cancel."""


class Executor:
    """An executor as a handler: what it enqueues becomes events of the turn."""

    def __init__(self, executor: AgentExecutor, retries: int = 0) -> None:
        self._executor = executor
        self._retries = retries
        self._running: dict[Turn, _Execution] = {}
        self.__name__ = type(executor).__name__

    async def run(self, turn: Turn) -> None:
        """Let the executor execute the message."""
        artifacts = Artifacts(turn)
        if self._retries:
            for event in artifacts.restore():
                await turn.emit(event)
        before = saved_state(turn).before(turn.task, turn.message)
        queue = Queue(turn, artifacts, before.status)
        context = await _context(turn, before)
        work = asyncio.create_task(self._executor.execute(context, queue))
        execution = self._running[turn] = _Execution(work, queue)
        try:
            await asyncio.wait([work])
            if execution.canceling:
                await execution.canceled.wait()
            self._ended(execution)
        finally:
            del self._running[turn]
            if not work.done():  # this turn was stopped
                work.cancel()
                await asyncio.wait([work])
            queue.end()

    def _ended(self, execution: _Execution) -> None:
        """Raise what `execute` has raised, as far as it is for the client."""
        try:
            execution.work.result()
        except Exception as error:
            if execution.canceling:
                logger.warning("executor %s, canceled: %r", self.__name__, error)
                return
            if (words := VALUES.refusal(error)) is not None:
                raise UserError(words) from error
            raise

    async def cancel(self, turn: Turn) -> None:
        """Let the executor cancel the task, and then stop its execution, as the SDK does. The task
        is canceled even if the executor cannot cancel it."""
        execution = self._running.get(turn)
        if execution is not None:
            execution.canceling = True
            queue = execution.queue
        else:
            queue = Queue(turn, Artifacts(turn), turn.task.status)
        try:
            await self._executor.cancel(_cancellation(turn), queue)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client has canceled
            logger.warning(
                "executor %s: cancel raised %r; the task is canceled", self.__name__, error
            )
        finally:
            if execution is not None:
                execution.work.cancel()
                await asyncio.wait([execution.work])
                execution.canceled.set()


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


async def _context(turn: Turn, task: Task) -> RequestContext:
    """What an executor is to execute, with the task as it was before the message."""
    exists = len(turn.history) > 1 or turn.task.status.state is not TaskState.SUBMITTED
    return RequestContext(
        request=VALUES.request(turn),
        task_id=task.id,
        context_id=turn.context_id,
        task=VALUES.task(task, turn.message) if exists else None,
        related_tasks=[VALUES.task(task) for task in await turn.referenced_tasks()],
        call_context=_call(turn),
    )


def _cancellation(turn: Turn) -> RequestContext:
    """What an executor is to cancel. As in the SDK, it has no message."""
    return RequestContext(
        request=None,
        task_id=turn.task.id,
        context_id=turn.context_id,
        task=VALUES.task(turn.task),
        call_context=_call(turn),
    )


def _call(turn: Turn) -> ServerCallContext:
    caller = turn.caller
    about: dict[str, Any] = {
        "user": _Caller(caller.identity),
        "requested_extensions": set(turn.extensions),
        # a turn may run long after its request, in another process: headers are not kept
        "state": {"headers": {}},
    }
    if "tenant" in ServerCallContext.model_fields:
        about["tenant"] = caller.tenant
    return ServerCallContext(**about)


def is_card(value: object) -> bool:
    """Whether a value is a card of the SDK."""
    return isinstance(value, AgentCard)
