"""Models of Pydantic AI behind `PydanticModel`, in an environment that has it. Prints, as JSON,
what came of each scene."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
from pydantic_ai.messages import ModelMessage as Theirs
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from dragoman.orchestrator import ModelFailed, ModelMessage, PydanticModel, Tool, ToolCall

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [Tool("book", "Books a hotel.", SCHEMA), Tool("look", "Looks.", SCHEMA)]
ASKED = [
    ModelMessage(role="system", text="You book."),
    ModelMessage(role="user", text="Rome, please"),
]
LATER = [
    *ASKED,
    ModelMessage(role="assistant", text="I book.", calls=(ToolCall("c1", "book", "{broken"),)),
    ModelMessage(role="tool", text="not JSON", call="c1"),
]


async def asked(
    model: Any, messages: Sequence[ModelMessage], tools: Sequence[Tool], *, stream: bool
) -> dict[str, Any]:
    """What came of a request."""
    pieces: list[str] = []

    async def write(text: str) -> None:
        pieces.append(text)

    ours = PydanticModel(model)
    try:
        found = await ours.answer(messages, tools, write=write if stream else None)
    except ModelFailed as failed:
        return {"failed": str(failed), "pieces": pieces}
    return {"answer": msgspec.to_builtins(found), "pieces": pieces, "name": ours.name}


def script(messages: list[Theirs], info: AgentInfo) -> ModelResponse:
    """Say what came in, and call a tool twice."""
    seen = {
        "messages": ModelMessagesTypeAdapter.dump_python(messages, mode="json"),
        "tools": [[t.name, t.description, t.parameters_json_schema] for t in info.function_tools],
    }
    calls = [ToolCallPart("book", {"city": "Rom\u0113"}, "a"), ToolCallPart("look", "{bad", "b")]
    return ModelResponse([TextPart(json.dumps(seen)), *calls])


async def streamed(
    messages: list[Theirs], info: AgentInfo
) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    """The same in pieces."""
    yield "I "
    yield "book."
    yield {0: DeltaToolCall("book", None, tool_call_id="a")}
    yield {0: DeltaToolCall(None, '{"city":')}
    yield {0: DeltaToolCall(None, '"Rome"}')}


def raises(messages: list[Theirs], info: AgentInfo) -> ModelResponse:
    """Fail as a provider does, with a secret in the text."""
    raise RuntimeError("refused the key sk-secret")


def short(messages: list[Theirs], info: AgentInfo) -> ModelResponse:
    """Reach the limit."""
    return ModelResponse([TextPart("I bo")], finish_reason="length")


def empty(messages: list[Theirs], info: AgentInfo) -> ModelResponse:
    """Say nothing."""
    return ModelResponse([TextPart(" ")])


async def throwing() -> str:
    """A `write` that fails keeps its own error."""

    async def write(text: str) -> None:
        raise ValueError("the client is gone")

    try:
        await PydanticModel(FunctionModel(stream_function=streamed)).answer(ASKED, [], write=write)
    except ValueError as error:
        return str(error)
    return ""


async def main() -> dict[str, Any]:
    """All scenes."""
    function: Callable[[Any], Any] = FunctionModel
    return {
        "test model": await asked(TestModel(), ASKED, TOOLS, stream=False),
        "test text": await asked(TestModel(custom_output_text="hello you"), ASKED, [], stream=True),
        "plain": await asked(function(script), LATER, TOOLS, stream=False),
        "streamed": await asked(FunctionModel(stream_function=streamed), ASKED, TOOLS, stream=True),
        "raises": await asked(function(raises), ASKED, [], stream=False),
        "short": await asked(function(short), ASKED, [], stream=False),
        "empty": await asked(function(empty), ASKED, [], stream=False),
        "throwing": await throwing(),
    }


if __name__ == "__main__":
    logging.disable()
    sys.stdout.write(json.dumps(asyncio.run(main())))
