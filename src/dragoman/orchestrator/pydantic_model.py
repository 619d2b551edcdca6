"""A model of Pydantic AI as a model of ours."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dragoman.orchestrator.model import (
    CUT_OFF,
    EMPTY,
    HELD_BACK,
    ModelAnswer,
    ModelFailed,
    ModelMessage,
    Tool,
    ToolCall,
    Usage,
    Write,
)

if TYPE_CHECKING:
    from pydantic_ai.models import Model as TheirModel

logger = logging.getLogger("dragoman")


class PydanticModel:
    """A model of Pydantic AI, or the name of one (`provider:model`). Its own settings say how long
    it may take and how often it tries again."""

    def __init__(self, model: TheirModel | str) -> None:
        try:
            import pydantic_ai  # noqa: F401
        except ImportError:
            raise ModuleNotFoundError(
                "PydanticModel needs Pydantic AI, which is not installed; run `pip install "
                "pydantic-ai-slim`",
                name="pydantic_ai",
            ) from None
        self._model = model

    def __repr__(self) -> str:
        return f"PydanticModel({self.name!r})"

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model if isinstance(self._model, str) else str(self._model.model_name)

    async def answer(
        self, messages: Sequence[ModelMessage], tools: Sequence[Tool], *, write: Write | None = None
    ) -> ModelAnswer:
        """See `Model.answer`."""
        from pydantic_ai.messages import ModelResponse

        response: Any = None
        async with aclosing(self._pieces(messages, tools, stream=write is not None)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelResponse):
                    response = piece
                elif write is not None and piece:
                    await write(piece)
        return _answer(response)

    async def _pieces(
        self, messages: Sequence[ModelMessage], tools: Sequence[Tool], *, stream: bool
    ) -> AsyncGenerator[Any, None]:
        """Yield the text as it comes, if wanted, and then the whole response. What the caller does
        with it raises nothing in here, so every exception is the model's."""
        from pydantic_ai.direct import model_request, model_request_stream

        sent: dict[str, Any] = {"model_request_parameters": _parameters(tools)}
        try:
            if not stream:
                yield await model_request(self._model, _messages(messages), **sent)
                return
            async with model_request_stream(self._model, _messages(messages), **sent) as events:
                async for event in events:
                    yield _text(event)
                yield events.get()
        except Exception as error:
            logger.exception("model %s: the request failed", self.name)
            raise ModelFailed("The model failed.") from error


def _parameters(tools: Sequence[Tool]) -> Any:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=tool.parameters,
            )
            for tool in tools
        ],
        allow_text_output=True,
    )


def _messages(messages: Sequence[ModelMessage]) -> list[Any]:
    """Theirs have one message for all that stands between two answers of the model."""
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    names = {call.id: call.name for message in messages for call in message.calls}
    found: list[Any] = []
    asked: list[Any] = []
    for message in messages:
        if message.role == "assistant":
            said: list[Any] = [TextPart(message.text)] if message.text else []
            said += [
                ToolCallPart(call.name, call.arguments, tool_call_id=call.id)
                for call in message.calls
            ]
            found += [ModelRequest(asked)] if asked else []
            found.append(ModelResponse(said))
            asked = []
        elif message.role == "tool":
            name = names.get(message.call, "")
            asked.append(ToolReturnPart(name, message.text, tool_call_id=message.call))
        else:
            part = SystemPromptPart if message.role == "system" else UserPromptPart
            asked.append(part(message.text))
    return [*found, ModelRequest(asked)] if asked else found


def _text(event: Any) -> str:
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return str(event.part.content)
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return str(event.delta.content_delta)
    return ""


def _answer(response: Any) -> ModelAnswer:
    from pydantic_ai.messages import TextPart, ToolCallPart

    if response.finish_reason == "length":
        raise ModelFailed(CUT_OFF)
    if response.finish_reason == "content_filter":
        raise ModelFailed(HELD_BACK)
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    calls = tuple(
        ToolCall(part.tool_call_id, part.tool_name, _arguments(part.args))
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )
    if not calls and not text.strip():
        raise ModelFailed(EMPTY)
    usage = response.usage
    return ModelAnswer(text=text, calls=calls, usage=Usage(usage.input_tokens, usage.output_tokens))


def _arguments(given: Any) -> str:
    if given is None:
        return ""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
