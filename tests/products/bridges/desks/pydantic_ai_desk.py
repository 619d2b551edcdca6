"""The desk as an agent of Pydantic AI, with a model that follows a script."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, BinaryImage, CallDeferred
from pydantic_ai.messages import (
    FilePart,
    ModelMessage,
    ModelResponse,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import CompletedStreamedResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from script import note, times, unreadable

from dragoman.bridges import pydantic_ai


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


def latest(messages: list[ModelMessage]) -> Any:
    for message in reversed(messages):
        for part in reversed(message.parts):
            if isinstance(part, UserPromptPart | ToolReturnPart):
                return part
    raise AssertionError("nobody has said anything")


async def script(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    part = latest(messages)
    note("model")
    if isinstance(part, ToolReturnPart):
        for word in ("The tool says: ", str(part.content)):
            yield word
        return
    contents = [part.content] if isinstance(part.content, str) else list(part.content)
    text = " ".join(each for each in contents if isinstance(each, str))
    files = [each for each in contents if isinstance(each, BinaryContent)]
    users = sum(isinstance(each, UserPromptPart) for m in messages for each in m.parts)
    calls = {
        "weather": ("weather", '{"city": "Rome"}'),
        "question": ("ask", '{"question": "Which color?"}'),
        "delete": ("delete", '{"path": "/tmp/x"}'),
        "slow": ("slow", "{}"),
        "fail": ("fail", "{}"),
    }
    if info.output_tools and text == "structured":
        arguments = '{"city": "Rome", "degrees": 21}'
        yield {0: DeltaToolCall(info.output_tools[0].name, arguments, tool_call_id="out")}
    elif text in calls:
        name, arguments = calls[text]
        yield {0: DeltaToolCall(name, arguments, tool_call_id=f"{name}-{users}")}
    elif text == "half" and times("half") == 0:
        yield "You said "
        note("half")
        await asyncio.sleep(60)
    elif text == "files":
        prompts = [p.content for m in messages for p in m.parts if isinstance(p, UserPromptPart)]
        found = [each for content in prompts for each in content]
        yield f"{sum(isinstance(each, BinaryContent) for each in found)} files"
    elif files:
        yield f"{len(files[0].data)} bytes of {files[0].media_type}"
    else:
        for word in ("You said ", text, f" as message {users}"):
            yield word


class Painter(WrapperModel):
    """Follows the script, and paints a picture if that is what the user wants."""

    @asynccontextmanager
    async def request_stream(
        self, messages: list[ModelMessage], settings: Any, parameters: Any, context: Any = None
    ) -> AsyncIterator[Any]:
        part = latest(messages)
        if isinstance(part, UserPromptPart) and part.content in ("picture", ["picture"]):
            picture = FilePart(BinaryContent(b"pixels", media_type="image/png"))
            response = ModelResponse(parts=[picture])
            yield CompletedStreamedResponse(response, model_request_parameters=parameters)
            return
        async with super().request_stream(messages, settings, parameters, context) as stream:
            yield stream


desk = Agent(
    Painter(FunctionModel(stream_function=script, profile={"supports_image_output": True})),
    name="Desk",
    description="Does what it is told.",
    instructions="A secret prompt that no card shows.",
    output_type=[str, Weather, BinaryImage],
)


@desk.tool_plain
def weather(city: str) -> str:
    """Look at the sky."""
    note("weather")
    return f"sunny in {city}"


@desk.tool_plain(requires_approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    note("delete")
    return f"deleted {path}"


@desk.tool_plain
def ask(question: str) -> str:
    """Ask the user."""
    raise CallDeferred


@desk.tool_plain
async def slow() -> str:
    """Take a minute."""
    note("slow begins")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("slow is stopped")
        raise
    return "done"


@desk.tool_plain
def fail() -> str:
    """Fail."""
    raise ValueError("secret inside")


by_words = pydantic_ai.serve(desk, approvals="text")
unreadable = unreadable("pydantic-ai-slim")


async def booking(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    part = latest(messages)
    if isinstance(part, ToolReturnPart):
        yield str(part.content)
    else:
        name = "pay" if "pay" in part.content else "book"
        yield {0: DeltaToolCall(name, '{"city": "Rome"}', tool_call_id=f"{name}-1")}


remote = pydantic_ai.toolset(os.environ.get("REMOTE", ""))
host = Agent(FunctionModel(stream_function=booking), name="Host", toolsets=[remote])
