"""What ADK has besides agents, and agents whose calls are logged or not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.apps import App
from google.adk.events import RequestInput
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import LongRunningFunctionTool, ToolContext
from google.adk.workflow import START, Workflow
from google.genai import types
from script import note


class Scripted(BaseLlm):
    """A model that says what a function makes of the results of tools so far."""

    model: str = "scripted"
    script: Callable[[list[types.FunctionResponse]], Any]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        """See `BaseLlm.generate_content_async`."""
        note("model")
        parts = [part for content in llm_request.contents for part in content.parts]
        said = self.script([part.function_response for part in parts if part.function_response])
        if not isinstance(said, str):
            name, arguments = said
            part = types.Part(function_call=types.FunctionCall(name=name, args=arguments))
        else:
            part = types.Part(text=said)
            for word in said.split(" "):
                content = types.Content(role="model", parts=[types.Part(text=f"{word} ")])
                yield LlmResponse(content=content, partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def ask(question: str) -> None:
    """Ask the user."""


async def camera(tool_context: ToolContext) -> dict[str, Any]:
    """Take a picture, and keep another one as an artifact."""
    note("camera")
    small = types.Part(inline_data=types.Blob(data=b"\xff\x00", mime_type="image/png"))
    await tool_context.save_artifact("small.png", small)
    tool_context.state["pictures"] = 1
    large = types.Part(inline_data=types.Blob(data=b"\xff" * 700_000, mime_type="image/png"))
    return {"picture": large}


async def album(tool_context: ToolContext) -> str:
    """Look at the pictures."""
    part = await tool_context.load_artifact("small.png")
    return f"{len(part.inline_data.data)} bytes, {tool_context.state['pictures']} taken"


def photograph(results: list[types.FunctionResponse]) -> Any:
    names = [result.name for result in results]
    for name, arguments in (("camera", {}), ("ask", {"question": "Keep it?"}), ("album", {})):
        if name not in names:
            return name, arguments
    size = len(results[0].parts[0].inline_data.data) if results[0].parts else 0
    return f"{size} bytes, {results[-1].response['result']}"


photographer = LlmAgent(
    name="Photographer",
    model=Scripted(script=photograph),
    tools=[camera, LongRunningFunctionTool(ask), album],
)


def first(results: list[types.FunctionResponse]) -> Any:
    return f"first {results[0].response['result']}" if results else ("ask", {"question": "Which?"})


relay = SequentialAgent(
    name="Relay",
    sub_agents=[
        LlmAgent(name="one", model=Scripted(script=first), tools=[LongRunningFunctionTool(ask)]),
        LlmAgent(name="two", model=Scripted(script=lambda _: "second")),
    ],
)


async def wonder(node_input: Any) -> Any:
    yield RequestInput(message="Which city?")


def travel(node_input: Any) -> Any:
    return {"trip": node_input}


trip = Workflow(name="Trip", edges=[(START, wonder, travel)])


def shout(callback_context: Any, llm_response: LlmResponse) -> LlmResponse:
    for part in llm_response.content.parts:
        part.text = part.text.upper()
    return llm_response


plain = LlmAgent(name="Plain", model=Scripted(script=lambda _: "quiet words"))
loud = LlmAgent(
    name="Loud",
    model=Scripted(script=lambda _: "secret words"),
    after_model_callback=shout,
)
app = App(name="an_app", root_agent=plain)
runner = InMemoryRunner(agent=plain, app_name="a_runner")
