"""The desk as an agent of Microsoft's Agent Framework, with a model that follows a script."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponseUpdate,
    Content,
    FileHistoryProvider,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    tool,
)
from pydantic import BaseModel
from script import note, times, unreadable

from dragoman.bridges import microsoft

CALLS = {
    "weather": ("weather", '{"city": "Rome"}'),
    "question": ("ask", '{"question": "Which color?"}'),
    "delete": ("delete", '{"path": "/tmp/x"}'),
    "slow": ("slow", "{}"),
}


def said(content: Content) -> ChatResponseUpdate:
    """A part of what the model says."""
    return ChatResponseUpdate(role="assistant", contents=[content])


def size(file: Content) -> str:
    """The size of a file that has no line ends."""
    number = len(file.uri.partition(",")[2]) * 3 // 4 - file.uri.count("=")
    return f"{number} bytes of {file.media_type}"


class Script(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A model that streams what the script says."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Any, **_: Any
    ) -> Any:
        kind = options.get("response_format")
        return self._build_response_stream(self._said(messages), response_format=kind)

    async def _said(self, messages: Sequence[Message]) -> AsyncIterator[ChatResponseUpdate]:
        note("model")
        last, users = messages[-1], sum(message.role == "user" for message in messages)
        text = last.text
        found = [*last.contents, *(last.contents[0].items or ())]
        files = [size(content) for content in found if content.type == "data"]
        shown = sum(content.type == "data" for each in messages for content in each.contents)
        if text == "fail":
            raise ValueError("secret inside")
        if last.role == "tool":
            words = ["The tool says: ", str(last.contents[0].result), *files]
        elif text == "files":
            words = [f"{shown} files"]
        elif files:
            words = files
        elif text in CALLS:
            name, arguments = CALLS[text]
            yield said(Content.from_function_call(f"{name}-{users}", name, arguments=arguments))
            return
        elif text == "structured":
            words = ['{"city": "Rome", ', '"degrees": 21}']
        elif text == "picture":
            yield said(Content.from_data(b"pixels", "image/png"))
            return
        elif text.startswith("{"):
            words = ["You said ", text]
        else:
            words = ["You said ", text, f" as message {users}"]
        for word in words:
            yield said(Content.from_text(word))
            if text == "half" and times("half") == 0:
                note("half")
                await asyncio.sleep(60)
        yield said(Content.from_usage({"input_token_count": 7, "output_token_count": 5}))


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


@tool
def weather(city: str) -> str:
    """Look at the sky."""
    note("weather")
    return f"sunny in {city}"


@tool(approval_mode="always_require")
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


QUESTION = {"type": "object", "properties": {"question": {"type": "string"}}}


def make(**options: Any) -> Agent:
    """The agent."""
    ask = FunctionTool(name="ask", description="Ask.", func=None, input_model=QUESTION)
    return Agent(
        Script(),
        "A secret prompt that no card shows.",
        name="Desk",
        description="Does what it is told.",
        tools=[weather, delete, slow, ask],
        default_options={"response_format": Weather},
        **options,
    )


class History(FileHistoryProvider):
    """A store of conversations in files. It writes down what it is asked for."""

    async def get_messages(self, session_id: str | None, **options: Any) -> list[Message]:
        """See `HistoryProvider.get_messages`."""
        note(f"session {session_id}")
        return await super().get_messages(session_id, **options)


desk = make()
by_words = microsoft.serve(desk, approvals="text")
own = microsoft.serve(
    make(context_providers=[History(Path(os.environ["EFFECTS"]).parent / "history")])
)
unreadable = unreadable("agent-framework-core")
