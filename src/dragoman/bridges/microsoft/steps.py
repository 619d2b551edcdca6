"""Makes each call of a model or a tool of Microsoft's Agent Framework a step of the task."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from agent_framework import (
    AgentSession,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    ResponseStream,
)
from agent_framework.exceptions import UserInputRequiredException
from pydantic_core import to_jsonable_python

from dragoman.bridges.bridge import Run
from dragoman.bridges.microsoft.messages import Report, to_text
from dragoman.bridges.steps import long_step


class LoggedModel(ChatMiddleware):
    """Makes each call of the model a step."""

    def __init__(self, run: Run, report: Report) -> None:
        self._run = run
        self._report = report

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """See `ChatMiddleware.process`. What streams is reported from inside of the step."""

        async def ask() -> list[Any]:
            await call_next()
            found = []
            async for update in context.result:
                await self._report.take(update)
                found.append(update.to_dict())
            await context.result.get_final_response()
            return found

        values = await long_step(self._run.turn, "model", ask)
        kind = (context.options or {}).get("response_format")
        context.result = ResponseStream(
            _again([ChatResponseUpdate.from_dict(value) for value in values]),
            finalizer=lambda some: ChatResponse.from_updates(some, output_format_type=kind),
        )


async def _again(updates: Sequence[ChatResponseUpdate]) -> AsyncIterator[ChatResponseUpdate]:
    for update in updates:
        yield update


class LoggedTools(FunctionMiddleware):
    """Makes each call of a tool a step."""

    def __init__(self, run: Run, sources: Sequence[str]) -> None:
        self._run = run
        self._sources = {*sources, "in_memory"}

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        """See `FunctionMiddleware.process`."""
        called, name = False, context.function.name

        async def call() -> Any:
            nonlocal called
            called, before = True, self._state(context.session)
            try:
                await call_next()
            except UserInputRequiredException as pause:
                return {"asks": [content.to_dict() for content in pause.contents]}
            after = self._state(context.session)
            changed = {key: value for key, value in after.items() if before.get(key) != value}
            await self._run.detail(f"{name} returned {to_text(context.result)}")
            return {"result": _written(context.result), "state": changed}

        id = context.metadata.get("call_id", "")
        logged = await long_step(self._run.turn, f"tool:{name}:{id}", call)
        if "asks" in logged:
            raise UserInputRequiredException([Content.from_dict(each) for each in logged["asks"]])
        if not called:
            context.result = _read(logged["result"])
            self._restore(context.session, logged["state"])

    def _state(self, session: AgentSession | None) -> dict[str, Any]:
        """The state of a session, as JSON, without the messages."""
        if session is None:
            return {}
        probe = AgentSession(session_id=session.session_id)
        probe.state = {key: each for key, each in session.state.items() if key not in self._sources}
        found: dict[str, Any] = json.loads(json.dumps(probe.to_dict()["state"]))
        return found

    def _restore(self, session: AgentSession | None, changed: dict[str, Any]) -> None:
        """Do again what a call has done to the session."""
        if session is not None and changed:
            data = {"session_id": session.session_id, "state": changed}
            session.state.update(AgentSession.from_dict(data).state)


def _written(result: Any) -> Any:
    """A tool's result as JSON; contents in it can be read again."""
    if isinstance(result, Content):
        return {"content": result.to_dict()}
    if isinstance(result, list) and all(isinstance(each, Content) for each in result):
        return {"contents": [each.to_dict() for each in result]}
    return {"value": to_jsonable_python(result, serialize_unknown=True)}


def _read(logged: dict[str, Any]) -> Any:
    if "content" in logged:
        return Content.from_dict(logged["content"])
    if "contents" in logged:
        return [Content.from_dict(each) for each in logged["contents"]]
    return logged["value"]
