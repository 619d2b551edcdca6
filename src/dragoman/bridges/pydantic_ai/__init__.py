"""Serves an agent of Pydantic AI. Each call of a model or a tool is a step of the task: a turn that
is run again makes none of them twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import ismethod
from typing import Any, Unpack

from msgspec import UNSET
from pydantic import BaseModel, TypeAdapter
from pydantic_ai import (
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    DocumentUrl,
    ImageUrl,
    ModelMessagesTypeAdapter,
    ToolDenied,
    ToolReturn,
)
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry
from pydantic_ai.messages import (
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestParameters,
    StreamedResponse,
    infer_model,
)
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_core import to_jsonable_python

from dragoman import Agent, Part
from dragoman.bridges import bridge
from dragoman.bridges.bridge import Answer, BridgeOptions, Outcome, Question, Run
from dragoman.bridges.pydantic_ai import remote
from dragoman.bridges.pydantic_ai.remote import answered, toolset
from dragoman.bridges.saved_state import GONE, is_gone
from dragoman.bridges.steps import long_step

__all__ = ("PydanticAI", "answered", "serve", "toolset")

REMOTE = "remote:"
"""Begins the id of a question of a remote agent."""


def serve(
    agent: AbstractAgent[Any, Any], deps: Any = None, **options: Unpack[BridgeOptions]
) -> Agent:
    """Serve an agent. `deps` are given to each of its runs."""
    return bridge.serve(PydanticAI(agent, deps), **options)


class PydanticAI:
    """See `bridge.Framework`."""

    package = "pydantic-ai-slim"
    logs_steps = True

    def __init__(self, agent: AbstractAgent[Any, Any], deps: Any = None) -> None:
        self._agent = agent
        self._deps = deps
        self.name = agent.name or ""
        self.description = str(agent.description or "")
        kinds = agent.output_type
        self._kinds = (
            list(kinds) if isinstance(kinds, Sequence) and not isinstance(kinds, str) else [kinds]
        )
        models = [
            kind for kind in self._kinds if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        self.output = models[0] if len(models) == 1 else None

    async def run(self, run: Run) -> Outcome:
        """Run the agent until it ends or asks."""
        agent = self._agent
        history = run.load(_history)
        prompt = None if run.answers else _prompt(run.parts)
        model = agent.model
        if model is None:
            raise ValueError("the agent has no model")
        logged = LoggedModel(infer_model(model), run)
        toolsets = [LoggedToolset(each, run) for each in agent.toolsets]
        kinds = [*(kind for kind in self._kinds if kind is not DeferredToolRequests)]
        with agent.override(model=logged, toolsets=toolsets, tools=[]):
            result = await agent.run(
                prompt,
                output_type=[*kinds, DeferredToolRequests],
                message_history=history,
                deferred_tool_results=_results(run.answers) if run.answers else None,
                deps=self._deps,
                conversation_id=run.session,
                event_stream_handler=_ignore,
            )
        messages = result.all_messages()
        state = run.fitting(messages, ModelMessagesTypeAdapter.dump_json, _starts)
        output = result.output
        # a method before version 2
        used = to_jsonable_python(result.usage() if ismethod(result.usage) else result.usage)
        usage = _numbers(used)
        if isinstance(output, DeferredToolRequests):
            return Outcome(state=state, questions=tuple(_questions(output)), usage=usage)
        # a file was reported when the model gave it
        said = isinstance(output, str | BinaryContent)
        structured = None if said else to_jsonable_python(output)
        return Outcome(state=state, result=structured, usage=usage)


def _history(state: bytes) -> list[ModelMessage]:
    """The messages of the conversation, with a note instead of each file that is gone."""
    messages = ModelMessagesTypeAdapter.validate_json(state)
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
                part.content = [
                    GONE if isinstance(each, BinaryContent) and is_gone(each.data) else each
                    for each in part.content
                ]
    return messages


async def _ignore(ctx: Any, events: Any) -> None:
    """Have the agent stream: the model reports what it streams."""
    async for _ in events:
        continue


def _numbers(usage: Any) -> dict[str, Any]:
    found = usage if isinstance(usage, dict) else {}
    return {key: value for key, value in found.items() if isinstance(value, int) and value}


def _starts(message: ModelMessage) -> bool:
    """Whether a message of the user begins here, so that no tool result is without its call."""
    return isinstance(message, ModelRequest) and any(
        isinstance(part, UserPromptPart) for part in message.parts
    )


def _prompt(parts: Sequence[Part]) -> list[Any]:
    """The client's message as the model gets it."""
    found: list[Any] = []
    for part in parts:
        if part.text is not None:
            found.append(part.text)
        elif part.raw is not None:
            kind = part.media_type or "application/octet-stream"
            found.append(BinaryContent(data=part.raw, media_type=kind))
        elif part.url is not None:
            image = (part.media_type or "").startswith("image/")
            found.append(ImageUrl(part.url) if image else DocumentUrl(part.url))
        elif part.data is not UNSET:
            found.append(to_json_text(part.data))
    return found


def to_json_text(data: Any) -> str:
    """Structured data as the text that a model reads."""
    return json.dumps(data, ensure_ascii=False)


def _questions(requests: DeferredToolRequests) -> list[Question]:
    found = []
    for call in requests.approvals:
        about = requests.metadata.get(call.tool_call_id) or {}
        if "question" in about and "task" in about:  # a remote agent asks, see `remote`
            id = f"{REMOTE}{json.dumps({**about, 'id': call.tool_call_id})}"
            found.append(bridge.remote_question(id, about))
            continue
        operation = {"tool": call.tool_name, "arguments": call.args_as_dict()}
        text = f"May I call {call.tool_name} with {to_json_text(operation['arguments'])}?"
        id = f"approval:{call.tool_call_id}"
        found.append(Question(id, text, approval=True, operation=operation))
    for call in requests.calls:
        about = requests.metadata.get(call.tool_call_id) or {}
        arguments = call.args_as_dict()
        if isinstance(about.get("question"), str):  # the rest is for the application
            found.append(Question(call.tool_call_id, about["question"]))
            continue
        text = f"{call.tool_name}: {to_json_text(arguments)}"
        found.append(bridge.question_about(call.tool_call_id, arguments, ("question",), text))
    return found


def _results(answers: Sequence[Answer]) -> DeferredToolResults:
    results = DeferredToolResults()
    for answer in answers:
        # an id is asked about once: as an approval or as a call
        if answer.id.startswith(REMOTE):
            about = json.loads(answer.id.removeprefix(REMOTE))
            said = list(answer.parts) if answer.files else answer.said
            remote.answer(results, about.pop("id"), about, said)
        elif answer.id.startswith("approval:"):
            id = answer.id.removeprefix("approval:")
            denied = ToolDenied(answer.text) if answer.text else ToolDenied()
            results.approvals[id] = True if answer.approved else denied
        else:
            files = _prompt(answer.files)
            results.calls[answer.id] = (
                ToolReturn(answer.said, content=files) if files else answer.said
            )
    return results


class LoggedModel(WrapperModel):
    """A model whose responses are steps of the task."""

    def __init__(self, wrapped: Model, run: Run) -> None:
        super().__init__(wrapped)
        self._run = run

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """See `Model.request`."""

        async def ask() -> Any:
            found = await super(LoggedModel, self).request(
                messages, model_settings, model_request_parameters
            )
            return _dumped(found)

        return _loaded(await long_step(self._run.turn, "model", ask))

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """See `Model.request_stream`. What streams is reported from inside of the step."""

        async def ask() -> Any:
            async with super(LoggedModel, self).request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as streamed:
                shown = False
                async for event in streamed:
                    shown = True
                    await self._report(event)
            response = streamed.get()
            if not shown:  # a model that does not stream
                for number, part in enumerate(response.parts):
                    await self._report(PartStartEvent(index=number, part=part))
            return _dumped(response)

        response = _loaded(await long_step(self._run.turn, "model", ask))
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters)

    async def _report(self, event: Any) -> None:
        if isinstance(event, PartStartEvent):
            if isinstance(event.part, TextPart):
                await self._run.write(event.part.content)
            elif isinstance(event.part, FilePart):
                content = event.part.content
                file = Part(raw=content.data, media_type=content.media_type)
                await self._run.file(file)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            await self._run.write(event.delta.content_delta)


def _dumped(response: ModelResponse) -> Any:
    return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]


def _loaded(value: Any) -> ModelResponse:
    (found,) = ModelMessagesTypeAdapter.validate_python([value])
    assert isinstance(found, ModelResponse)
    return found


_RETURNS = TypeAdapter(ToolReturn[Any])
"""What a tool returns, with its files and with what it tells the model beside its value."""
_AS_JSON: Any = {"mode": "json", "fallback": str}


@dataclass
class LoggedToolset(WrapperToolset[Any]):
    """A toolset whose calls are steps of the task."""

    wrapped: AbstractToolset[Any]
    run: Run = field(repr=False)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """See `AbstractToolset.call_tool`."""

        async def call() -> Any:
            await self.run.tool(name)
            try:
                value = await self.wrapped.call_tool(name, tool_args, ctx, tool)
            except ModelRetry as again:
                return {"retry": again.message}
            except ApprovalRequired as pause:
                return {"approval": pause.metadata}
            except CallDeferred as pause:
                return {"deferred": pause.metadata}
            plain = not isinstance(value, ToolReturn)
            returned = ToolReturn(value) if plain else value
            return {"value": _RETURNS.dump_python(returned, **_AS_JSON), "plain": plain}

        found = await long_step(self.run.turn, f"tool:{name}:{ctx.tool_call_id}", call)
        if "retry" in found:
            raise ModelRetry(found["retry"])
        if "approval" in found:
            raise ApprovalRequired(found["approval"])
        if "deferred" in found:
            raise CallDeferred(found["deferred"])
        value = _RETURNS.validate_python(found["value"])
        await self.run.detail(f"{name} returned {to_json_text(found['value']['return_value'])}")
        return value.return_value if found["plain"] else value
