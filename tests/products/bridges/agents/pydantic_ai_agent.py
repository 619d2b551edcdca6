"""The desk as an agent of Pydantic AI, with a model that follows a script."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, CallDeferred
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel


def note(what: str) -> None:
    """Write down that something was done, where the test can see it."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{what}\n")


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
    elif files:
        yield f"{len(files[0].data)} bytes of {files[0].media_type}"
    else:
        for word in ("You said ", text, f" as message {users}"):
            yield word


agent = Agent(
    FunctionModel(stream_function=script),
    name="Desk",
    description="Does what it is told.",
    instructions="A secret prompt that no card shows.",
    output_type=[str, Weather],
)


@agent.tool_plain
def weather(city: str) -> str:
    """Look at the sky."""
    note("weather")
    return f"sunny in {city}"


@agent.tool_plain(requires_approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    note("delete")
    return f"deleted {path}"


@agent.tool_plain
def ask(question: str) -> str:
    """Ask the user."""
    raise CallDeferred


@agent.tool_plain
async def slow() -> str:
    """Take a minute."""
    note("slow begins")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("slow is stopped")
        raise
    return "done"


@agent.tool_plain
def fail() -> str:
    """Fail."""
    raise ValueError("secret inside")
