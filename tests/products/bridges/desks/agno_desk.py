"""The desk as an agent of Agno, with a model that follows a script."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

os.environ["AGNO_TELEMETRY"] = "false"

from agno.agent import Agent
from agno.db.json import JsonDb
from agno.media import Image
from agno.metrics import MessageMetrics
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.run import RunContext
from agno.run.agent import RunInput
from agno.tools import tool
from pydantic import BaseModel
from script import note, times, unreadable

from dragoman.bridges import agno

CALLS = {
    "weather": ("weather", {"city": "Rome"}),
    "question": ("color", {}),
    "delete": ("delete", {"path": "/tmp/x"}),
    "slow": ("slow", {}),
}


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


def deltas(messages: list[Message]) -> list[ModelResponse]:
    """What the model says, in pieces."""
    last = messages[-1]
    users = sum(message.role == "user" for message in messages)
    text = str(last.content)
    if last.role == "tool":
        return [ModelResponse(content="The tool says: "), ModelResponse(content=text)]
    if text == "files":
        return [ModelResponse(content=f"{sum(map(bool, (m.images for m in messages)))} files")]
    if last.images:
        image = last.images[0]
        return [ModelResponse(content=f"{len(image.content or b'')} bytes of {image.mime_type}")]
    if text in CALLS:
        name, arguments = CALLS[text]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"{name}-{users}", "type": "function", "function": function}
        return [ModelResponse(tool_calls=[call])]
    if text == "structured":
        return [ModelResponse(content='{"city": "Rome", "degrees": 21}')]
    if text == "picture":
        return [ModelResponse(images=[Image(content=b"pixels", mime_type="image/png")])]
    if text == "fail":
        raise ValueError("secret inside")
    return [ModelResponse(content=word) for word in ("You said ", text, f" as message {users}")]


class Script(Model):
    """A model that streams what the script says."""

    async def ainvoke_stream(
        self, messages: list[Message], **options: Any
    ) -> AsyncIterator[ModelResponse]:
        """See `Model.ainvoke_stream`."""
        note("model")
        for delta in deltas(messages):
            yield delta
            if delta.content == "half":
                note("half")
                if times("half") == 1:
                    await asyncio.sleep(60)
        yield ModelResponse(response_usage=MessageMetrics(input_tokens=7, output_tokens=5))

    async def ainvoke(self, messages: list[Message], **options: Any) -> ModelResponse:
        """See `Model.ainvoke`."""
        note("model")
        return deltas(messages)[0]

    def invoke(self, *others: Any, **options: Any) -> ModelResponse:
        """See `Model.invoke`."""
        raise NotImplementedError

    def invoke_stream(self, *others: Any, **options: Any) -> Any:
        """See `Model.invoke_stream`."""
        raise NotImplementedError

    def _parse_provider_response(self, response: Any, **options: Any) -> ModelResponse:
        raise NotImplementedError

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        raise NotImplementedError


@tool
def weather(city: str) -> str:
    """Look at the sky."""
    note("weather")
    return f"sunny in {city}"


@tool(requires_user_input=True, user_input_fields=["answer"])
def color(answer: str) -> str:
    """Ask the user for a color.

    Args:
        answer: Which color?
    """
    return answer


@tool(requires_confirmation=True)
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


def form(run_input: RunInput, run_context: RunContext) -> None:
    """Ask for a structured answer to one of the messages."""
    if run_input.input_content == "structured":
        run_context.output_schema = Weather


desk = Agent(
    name="Desk",
    description="Does what it is told.",
    instructions="A secret prompt that no card shows.",
    model=Script("script"),
    tools=[weather, color, delete, slow],
    pre_hooks=[form],
    telemetry=False,
)


class Sessions(JsonDb):
    """Conversations in files."""

    def get_session(self, session_id: str, *others: Any, **options: Any) -> Any:
        """See `JsonDb.get_session`."""
        note(f"session {session_id}")
        return super().get_session(session_id, *others, **options)


folder = Path(os.environ["EFFECTS"]).with_name("sessions")
by_words = agno.serve(desk, approvals="text")
own = agno.serve(
    desk.deep_copy(update={"db": Sessions(db_path=str(folder)), "add_history_to_context": True})
)
typed = Agent(name="Desk", model=Script("script"), output_schema=Weather, telemetry=False)
unreadable = unreadable("agno")
