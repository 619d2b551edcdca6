"""An agent of Pydantic AI whose model calls a remote agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from play import play
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, ModelMessagesTypeAdapter
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from dragoman.bridges.pydantic_ai import answered, toolset


def agent(url: str, *calls: tuple[str, dict[str, Any]]) -> Agent[None, Any]:
    """An agent whose model makes these calls, and then ends."""

    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse([TextPart("done")])
        parts = [
            ToolCallPart(name, arguments, tool_call_id=f"call-{n}")
            for n, (name, arguments) in enumerate(calls)
        ]
        return ModelResponse(parts)

    output: Any = [str, DeferredToolRequests]
    return Agent(FunctionModel(script), toolsets=[toolset(url)], output_type=output)


def seen(messages: list[ModelMessage]) -> dict[str, Any]:
    """What the model got to see."""
    parts = [part for message in messages for part in message.parts]
    returned = [part for part in parts if isinstance(part, ToolReturnPart)]
    shown = [each for part in parts if isinstance(part, UserPromptPart) for each in part.content]
    return {
        "answers": [part.content for part in returned if part.outcome == "success"],
        "error": "".join(str(part.content) for part in returned if part.outcome != "success"),
        "files": [
            [each.data.decode(), each.media_type]
            for each in shown
            if isinstance(each, BinaryContent)
        ],
    }


async def price(url: str, folder: Path) -> dict[str, Any]:
    """Two calls at the same time."""
    calls = (("price", {"nights": 2}), ("price", {"nights": 3}))
    return seen((await agent(url, *calls).run("go")).all_messages())


async def book(url: str, folder: Path) -> dict[str, Any]:
    """Two questions, each answered to a new agent."""
    result = await agent(url, ("book", {"city": "Rome"})).run("go", conversation_id="c")
    questions = []
    for words in ("window", "vegan"):
        requests = result.output
        (call,) = requests.approvals
        questions.append(requests.metadata[call.tool_call_id]["question"])
        saved = ModelMessagesTypeAdapter.dump_json(result.all_messages())
        result = await agent(url).run(
            message_history=ModelMessagesTypeAdapter.validate_json(saved),
            deferred_tool_results=answered(requests, {call.tool_call_id: words}),
            conversation_id="c",
        )
    return {**seen(result.all_messages()), "questions": questions}


async def wait(url: str, folder: Path) -> dict[str, Any]:
    """The remote server dies meanwhile."""
    return seen((await agent(url, ("wait", {"city": "Rome"})).run("go")).all_messages())


async def again(url: str, folder: Path) -> dict[str, Any]:
    """The same run twice, as after a crash."""
    for _ in range(2):
        found = agent(url, ("price", {"nights": 2}))
        result = await found.run("go", conversation_id="c")
    return {**seen(result.all_messages()), "times": 2}


async def refuse(url: str, folder: Path) -> dict[str, Any]:
    """An agent that rejects the task."""
    return seen((await agent(url, ("refuse", {"city": "Rome"})).run("go")).all_messages())


async def sell(url: str, folder: Path) -> dict[str, Any]:
    """An agent that wants money."""
    return seen((await agent(url, ("sell", {"city": "Rome"})).run("go")).all_messages())


async def picture(url: str, folder: Path) -> dict[str, Any]:
    """A file."""
    return seen((await agent(url, ("picture", {"city": "Rome"})).run("go")).all_messages())


if __name__ == "__main__":
    scenes = (price, book, wait, again, refuse, sell, picture)
    play({scene.__name__: scene for scene in scenes})
