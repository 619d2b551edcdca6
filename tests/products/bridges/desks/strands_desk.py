"""The desk as an agent of Strands, with a model that follows a script."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from script import note, times, unreadable
from strands import Agent, ToolContext, tool
from strands.models import Model
from strands.session import FileSessionManager
from strands.vended_interventions.hitl import HumanInTheLoop

from dragoman.bridges import strands

CALLS = {
    "weather": ("weather", {"city": "Rome"}),
    "structured": ("Weather", {"city": "Rome", "degrees": 21}),
    "question": ("ask", {"question": "Which color?"}),
    "delete": ("delete", {"path": "/tmp/x"}),
    "slow": ("slow", {}),
    "picture": ("paint", {}),
}


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


class Script(Model):
    """A model that streams what the script says."""

    def update_config(self, **model_config: Any) -> None:
        """It has no configuration."""

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: list[Any], *_: Any, **__: Any) -> AsyncIterator[Any]:
        note("model")
        users = sum("toolResult" not in message["content"][0] for message in messages[::2])
        content = messages[-1]["content"]
        text = " ".join(block["text"] for block in content if "text" in block)
        yield {"messageStart": {"role": "assistant"}}
        if text in CALLS:
            name, arguments = CALLS[text]
            start = {"toolUse": {"name": name, "toolUseId": f"{name}-{users}"}}
            yield {"contentBlockStart": {"start": start}}
            delta = {"toolUse": {"input": json.dumps(arguments)}}
            yield {"contentBlockDelta": {"delta": delta}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            shown = sum("image" in block for message in messages for block in message["content"])
            said = [f"{shown} files"] if text == "files" else words(content, text, users)
            for word in said:
                yield {"contentBlockDelta": {"delta": {"text": word}}}
                if text == "half" and word == "You said " and not times("half"):
                    note("half")
                    await asyncio.sleep(60)
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if text in CALLS else "end_turn"}}
        usage = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def words(content: list[Any], text: str, users: int) -> list[str]:
    for block in content:
        if "toolResult" in block:
            said = block["toolResult"]["content"][-1].get("text", "")
            return ["The tool says: ", said]
        if "image" in block:
            image = block["image"]
            return [f"{len(image['source']['bytes'])} bytes of image/{image['format']}"]
    if text == "fail":
        raise ValueError("secret inside")
    return ["You said ", text, f" as message {users}"]


@tool
def weather(city: str) -> str:
    """Look at the sky."""
    note("weather")
    return f"sunny in {city}"


@tool(context=True)
def ask(question: str, tool_context: ToolContext) -> str:
    """Ask the user."""
    return str(tool_context.interrupt("question", reason=question))


@tool
def delete(path: str) -> str:
    """Delete a file."""
    note("delete")
    return f"deleted {path}"


@tool
async def slow() -> str:
    """Take a minute."""
    note("slow begins")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("slow is stopped")
        raise
    return "done"


@tool
def paint() -> Any:
    """Paint a picture."""
    image = {"format": "png", "source": {"bytes": b"pixels"}}
    return {"status": "success", "content": [{"image": image}, {"text": "painted"}]}


class Desk(Agent):
    """An agent that gives a structured result if it is asked for one."""

    def stream_async(self, prompt: Any = None, **options: Any) -> AsyncIterator[Any]:
        if prompt == [{"text": "structured"}]:
            options["structured_output_model"] = Weather
        return super().stream_async(prompt, **options)


def make(**options: Any) -> Agent:
    """An agent."""
    return Desk(
        Script(),
        name="Desk",
        description="Does what it is told.",
        system_prompt="A secret prompt that no card shows.",
        tools=[weather, ask, delete, slow, paint],
        interventions=[HumanInTheLoop(allowed_tools=["*", "!delete"])],
        **options,
    )


def kept(session: str) -> Agent:
    """An agent that keeps its conversation in a file."""
    note(f"session {session}")
    folder = Path(os.environ["EFFECTS"]).parent / "sessions"
    return make(session_manager=FileSessionManager(session, storage_dir=str(folder)))


desk = make()
by_words = strands.serve(desk, approvals="text")
own = strands.serve(kept, name="Desk")
typed = strands.serve(make(), output=Weather)
unreadable = unreadable("strands-agents")
