"""Agents of Strands whose model calls the tools that the message names, as JSON."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from script import note, times
from strands import Agent, ToolContext, tool
from strands.session import FileSessionManager
from strands.vended_interventions.hitl import HumanInTheLoop
from strands_desk import Script, ask, delete

from dragoman.bridges import strands


class Caller(Script):
    """A model that calls tools, and then says what they have returned."""

    async def stream(self, messages: list[Any], *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Call what `[[tool, arguments], …]` names."""
        note("model")
        content = messages[-1]["content"]
        text = " ".join(block["text"] for block in content if "text" in block)
        calls = json.loads(text) if text.startswith("[") else []
        results = [block["toolResult"]["content"] for block in content if "toolResult" in block]
        yield {"messageStart": {"role": "assistant"}}
        for number, (name, arguments) in enumerate(calls):
            start = {"name": name, "toolUseId": f"{name}-{len(messages)}-{number}"}
            yield {"contentBlockStart": {"start": {"toolUse": start}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        if not calls:
            said = f"{text}{json.dumps(results)} in message {len(messages)}"
            yield {"contentBlockDelta": {"delta": {"text": said}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}


@tool(context=True)
def mark(value: str, tool_context: ToolContext) -> str:
    """Remember a value."""
    note(f"mark {value}")
    tool_context.agent.state.set("mark", value)
    return "marked"


@tool(context=True)
def marked(tool_context: ToolContext) -> str:
    """Say which value was remembered."""
    return f"mark is {tool_context.agent.state.get('mark')}"


@tool
async def hang() -> str:
    """Hang, but only once."""
    first = not times("hang")
    note("hang")
    await asyncio.sleep(60 if first else 0.5)
    return "done"


def make(**options: Any) -> Agent:
    """An agent with two others as tools: one has to be allowed to delete, one remembers."""
    gate = [HumanInTheLoop(allowed_tools=["ask"])]
    other = Agent(Caller(), name="other", description="Helps.", tools=[delete], interventions=gate)
    memo = Agent(Caller(), name="memo", description="Remembers.", tools=[ask])
    tools = [mark, marked, hang, ask, other, memo.as_tool(preserve_context=True)]
    return Agent(Caller(), name="Caller", tools=tools, **options)


def kept(session: str) -> Agent:
    """An agent that keeps its conversation in a file."""
    folder = Path(os.environ["EFFECTS"]).parent / "sessions"
    return make(session_manager=FileSessionManager(session, storage_dir=str(folder)))


agent = make()
own = strands.serve(kept, name="Own")
