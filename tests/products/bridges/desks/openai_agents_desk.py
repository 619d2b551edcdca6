"""The desk as an agent of the OpenAI Agents SDK, with a model that follows a script."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    Session,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_output_item import ImageGenerationCall
from pydantic import BaseModel
from script import note, times, unreadable

from dragoman.bridges import openai_agents

set_tracing_disabled(True)
USAGE = {
    "input_tokens": 7,
    "output_tokens": 5,
    "total_tokens": 12,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
CALLS = {
    "weather": ("weather", {"city": "Rome"}),
    "question": ("ask_client", {"question": "Which color?"}),
    "delete": ("delete", {"path": "/tmp/x"}),
    "slow": ("slow", {}),
    "fail": ("fail", {}),
    "structured": ("transfer_to_forecaster", {}),
}


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


def answer(instructions: str | None, items: list[Any]) -> tuple[list[str], list[Any]]:
    """The text that the model writes, in pieces, and what else it puts out."""
    last = items[-1]
    users = sum(item.get("role") == "user" for item in items)
    if instructions == "Forecast.":
        return ['{"city": "Rome", ', '"degrees": 21}'], []
    if last.get("type") == "function_call_output":
        return ["The tool says: ", str(last["output"])], []
    content = last["content"]
    text = " ".join(part["text"] for part in content if part["type"] == "input_text")
    images = [part["image_url"] for part in content if part["type"] == "input_image"]
    if text == "files":
        shown = [part["type"] for item in items for part in item["content"]]
        return [f"{shown.count('input_image')} files"], []
    if text in CALLS:
        name, arguments = CALLS[text]
        id, said = f"{name}-{users}", json.dumps(arguments)
        return [], [
            ResponseFunctionToolCall(type="function_call", call_id=id, name=name, arguments=said)
        ]
    if images:
        kind, _, data = images[0].removeprefix("data:").partition(";base64,")
        return [f"{len(base64.b64decode(data))} bytes of {kind}"], []
    if text == "picture":
        data = base64.b64encode(b"pixels").decode()
        kind = "image_generation_call"
        return [], [ImageGenerationCall(id="i", type=kind, status="completed", result=data)]
    return ["You said ", text, f" as message {users}"], []


class Script(Model):
    """A model that streams what the script says."""

    async def stream_response(
        self, system_instructions: str | None, input: Any, *others: Any, **options: Any
    ) -> AsyncIterator[Any]:
        """See `Model.stream_response`."""
        note("model")
        words, output = answer(system_instructions, input)
        for number, word in enumerate(words):
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta",
                item_id="m",
                output_index=0,
                content_index=0,
                delta=word,
                logprobs=[],
                sequence_number=number,
            )
            if number == 1 and words[1] == "half":
                note("half")
                if times("half") == 1:
                    await asyncio.sleep(60)
        if words or not output or output[0].type == "image_generation_call":
            text = ResponseOutputText(text="".join(words), type="output_text", annotations=[])
            message = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
            output = [*output, message]
        response = Response(
            id="r",
            created_at=0,
            model="script",
            object="response",
            output=output,
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
            usage=ResponseUsage.model_validate(USAGE),
        )
        yield ResponseCompletedEvent(
            type="response.completed", response=response, sequence_number=len(words)
        )

    async def get_response(self, *others: Any, **options: Any) -> ModelResponse:
        """See `Model.get_response`."""
        raise NotImplementedError("the desk streams")


@function_tool
def weather(city: str) -> str:
    """Look at the sky."""
    note("weather")
    return f"sunny in {city}"


@function_tool(needs_approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    note("delete")
    return f"deleted {path}"


@function_tool
async def slow() -> str:
    """Take a minute."""
    note("slow begins")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("slow is stopped")
        raise
    return "done"


@function_tool(failure_error_function=None)
def fail() -> str:
    """Fail."""
    raise ValueError("secret inside")


model = Script()
forecaster = Agent("Forecaster", instructions="Forecast.", model=model, output_type=Weather)
desk = Agent(
    "Desk",
    handoff_description="Does what it is told.",
    instructions="A secret prompt that no card shows.",
    model=model,
    tools=[weather, delete, openai_agents.ask_client, slow, fail],
    handoffs=[forecaster],
)


def session(name: str) -> Session:
    """A conversation in a file."""
    note(f"session {name}")
    return SQLiteSession(name, Path(os.environ["EFFECTS"]).with_name("sessions.db"))


by_words = openai_agents.serve(desk, approvals="text")
own = openai_agents.serve(desk, session=session)
typed = Agent("Desk", instructions="Forecast.", model=model, output_type=Weather)
unreadable = unreadable("openai-agents")
