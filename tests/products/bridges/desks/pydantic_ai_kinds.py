"""Agents of Pydantic AI of several kinds, which are served beside the desk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent, CallDeferred
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from script import note


async def script(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Call two tools at the same time, ask, and say what the tools said."""
    note("model")
    parts = [part for m in messages for part in m.parts if isinstance(part, ToolReturnPart)]
    if not parts:
        for number, letter in enumerate("ab"):
            arguments = f'{{"letter": "{letter}"}}'
            yield {number: DeltaToolCall("long", arguments, tool_call_id=f"call-{letter}")}
        yield {2: DeltaToolCall("ask", "{}", tool_call_id="ask")}
        return
    for part in parts:
        if part.tool_name == "long":
            yield f"{part.content[0]}{''.join(sorted(set(part.content)))}{len(part.content)} "


long = Agent(FunctionModel(stream_function=script), name="Long")
ended = asyncio.Event()


@long.tool_plain(name="long")
async def long_text(letter: str) -> str:
    """The second call ends first."""
    if letter == "a":
        await ended.wait()
    else:
        ended.set()
    note(letter)
    return letter * 250_000


@long.tool_plain
def ask() -> str:
    """Ask the user."""
    raise CallDeferred
