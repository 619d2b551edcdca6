"""An agent of the OpenAI Agents SDK whose model calls a remote agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    Runner,
    RunState,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from play import play

from dragoman.bridges.openai_agents import answer, tools

set_tracing_disabled(True)


class Script(Model):
    """A model that makes these calls, and then ends."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self._calls = calls

    async def get_response(
        self, system_instructions: Any, input: Any, *others: Any, **options: Any
    ) -> ModelResponse:
        """See `Model.get_response`."""
        output: list[Any] = [
            ResponseFunctionToolCall(
                type="function_call", call_id=f"call-{n}", name=name, arguments=json.dumps(given)
            )
            for n, (name, given) in enumerate(self._calls)
        ]
        if input[-1].get("type") == "function_call_output":
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            output = [
                ResponseOutputMessage(
                    id="m", type="message", role="assistant", status="completed", content=[text]
                )
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        """See `Model.stream_response`."""
        raise NotImplementedError("the scenes do not stream")


@function_tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


async def agent(url: str, *calls: tuple[str, dict[str, Any]]) -> Agent[None]:
    """An agent whose model makes these calls, and then ends."""
    return Agent("Caller", model=Script(*calls), tools=[*await tools(url), pay])


def seen(result: Any) -> dict[str, Any]:
    """What the model got to see."""
    items = [item for item in result.to_input_list() if item.get("type") == "function_call_output"]
    outputs = [item["output"] for item in items]
    texts = [output for output in outputs if isinstance(output, str)]
    errors = [text for text in texts if text.startswith("Error:")]
    images = [part for output in outputs if isinstance(output, list) for part in output]
    return {
        "answers": [value(text) for text in texts if text not in errors],
        "error": "".join(errors),
        "files": [
            ["pixels", "image/png"]
            for part in images
            if part.get("image_url") == "data:image/png;base64,cGl4ZWxz"
        ],
    }


def value(text: str) -> Any:
    """A structured answer, or words."""
    try:
        return json.loads(text)
    except ValueError:
        return text


async def once(url: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """These calls, and what comes of them."""
    return seen(await Runner.run(await agent(url, *calls), "go"))


async def price(url: str, folder: Path) -> dict[str, Any]:
    """Two calls at the same time."""
    return await once(url, ("price", {"nights": 2}), ("price", {"nights": 3}))


async def book(url: str, folder: Path) -> dict[str, Any]:
    """Two questions, each answered to a new agent. The state is saved before and after that."""
    result = await Runner.run(await agent(url, ("book", {"city": "Rome"})), "go")
    questions = []
    for words in ("window", "vegan"):
        saved = json.dumps(result.to_state().to_json())
        state = await RunState.from_json(await agent(url), json.loads(saved))
        (item,) = state.get_interruptions()
        questions.append(json.loads(item.arguments or "")["question"])
        answer(state, item, words)
        saved = json.dumps(state.to_json())
        found = await agent(url)
        result = await Runner.run(found, await RunState.from_json(found, json.loads(saved)))
    return {**seen(result), "questions": questions}


async def wait(url: str, folder: Path) -> dict[str, Any]:
    """The remote server dies meanwhile."""
    return await once(url, ("wait", {"city": "Rome"}))


async def again(url: str, folder: Path) -> dict[str, Any]:
    """A call waits for an approval; then the same saved state goes on twice, as after a crash."""
    times = 0

    async def made() -> Agent[None]:
        found = await agent(url, ("price", {"nights": 2}), ("pay", {}))
        (tool, *_) = (tool for tool in found.tools if isinstance(tool, FunctionTool))
        call = tool.on_invoke_tool
        tool.needs_approval = True

        async def counted(context: Any, arguments: str) -> Any:
            nonlocal times
            times += 1
            return await call(context, arguments)

        tool.on_invoke_tool = counted
        return found

    result = await Runner.run(await made(), "go")
    saved = json.dumps(result.to_state().to_json())
    for _ in range(2):
        found = await made()
        state = await RunState.from_json(found, json.loads(saved))
        for item in state.get_interruptions():
            state.approve(item)
        result = await Runner.run(found, state)
    answers = [found for found in seen(result)["answers"] if found != "paid"]
    return {"answers": answers, "times": times}


async def refuse(url: str, folder: Path) -> dict[str, Any]:
    """An agent that rejects the task."""
    return await once(url, ("refuse", {"city": "Rome"}))


async def sell(url: str, folder: Path) -> dict[str, Any]:
    """An agent that wants money."""
    return await once(url, ("sell", {"city": "Rome"}))


async def picture(url: str, folder: Path) -> dict[str, Any]:
    """A file."""
    return await once(url, ("picture", {"city": "Rome"}))


if __name__ == "__main__":
    scenes = (price, book, wait, again, refuse, sell, picture)
    play({scene.__name__: scene for scene in scenes})
