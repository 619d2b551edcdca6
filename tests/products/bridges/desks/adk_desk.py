"""The desk as an agent of Google ADK, with a model that follows a script."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.sessions import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import types
from pydantic import BaseModel
from script import note, times, unreadable

from dragoman.bridges import adk

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "weather": ("weather", {"city": "Rome"}),
    "question": ("ask", {"question": "Which color?"}),
    "delete": ("delete", {"path": "/tmp/x"}),
    "slow": ("slow", {}),
    "fail": ("fail", {}),
    "structured": ("transfer_to_agent", {"agent_name": "Forecaster"}),
}
USED = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=5)


def response(*parts: types.Part, partial: bool = False) -> LlmResponse:
    """What the model says, or a part of it."""
    content = types.Content(role="model", parts=list(parts))
    return LlmResponse(content=content, partial=partial, usage_metadata=USED)


class Script(BaseLlm):
    """A model that streams what the script says."""

    model: str = "script"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        """See `BaseLlm.generate_content_async`."""
        note("model")
        if llm_request.config.response_schema is not None:
            yield response(types.Part(text='{"city": "Rome", "degrees": 21}'))
            return
        said = [
            content
            for content in llm_request.contents
            if content.role == "user" and not content.parts[0].function_response
        ]
        last = llm_request.contents[-1].parts
        text = " ".join(part.text for part in last if part.text)
        shown = sum(bool(part.inline_data) for each in said for part in each.parts)
        files = [part.inline_data for part in last if part.inline_data]
        if last[0].function_response:
            result = last[0].function_response.response
            words = ["The tool says: ", str(result.get("result", result))]
            for part in last[0].function_response.parts or ():
                blob = part.inline_data
                words.append(f" and {len(blob.data)} bytes of {blob.mime_type}")
        elif text == "files":
            words = [f"{shown} files"]
        elif files:
            words = [f"{len(files[0].data)} bytes of {files[0].mime_type}"]
        elif text in CALLS:
            name, arguments = CALLS[text]
            yield response(types.Part(function_call=types.FunctionCall(name=name, args=arguments)))
            return
        elif text == "picture":
            picture = types.Blob(data=b"pixels", mime_type="image/png")
            yield response(types.Part(inline_data=picture))
            return
        else:
            words = ["You said ", text, f" as message {len(said)}"]
        for word in words:
            yield response(types.Part(text=word), partial=True)
            if text == "half" and times("half") == 0:
                note("half")
                await asyncio.sleep(60)
        yield response(types.Part(text="".join(words)))


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


def weather(city: str) -> str:
    """Look at the sky."""
    note("weather")
    return f"sunny in {city}"


def delete(path: str) -> str:
    """Delete a file."""
    note("delete")
    return f"deleted {path}"


def ask(question: str) -> None:
    """Ask the user."""


async def slow() -> str:
    """Take a minute."""
    note("slow begins")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("slow is stopped")
        raise
    return "done"


def fail() -> str:
    """Fail."""
    raise ValueError("secret inside")


desk = LlmAgent(
    name="Desk",
    description="Does what it is told.",
    instruction="A secret prompt that no card shows.",
    model=Script(),
    tools=[
        weather,
        FunctionTool(delete, require_confirmation=True),
        LongRunningFunctionTool(ask),
        slow,
        fail,
    ],
    sub_agents=[LlmAgent(name="Forecaster", output_schema=Weather)],
)


class Sessions(SqliteSessionService):
    """A store of sessions in a file. It writes down what it is asked for."""

    async def get_session(self, *, session_id: str, **options: Any) -> Session | None:
        """See `BaseSessionService.get_session`."""
        note(f"session {session_id}")
        return await super().get_session(session_id=session_id, **options)


by_words = adk.serve(desk, approvals="text")
own = adk.serve(
    desk, session_service=Sessions(str(Path(os.environ["EFFECTS"]).parent / "sessions.db"))
)
typed = LlmAgent(name="Desk", model=Script(), output_schema=Weather)
unreadable = unreadable("google-adk")
