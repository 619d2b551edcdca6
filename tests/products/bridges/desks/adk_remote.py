"""Agents of Google ADK that call the remote agent at `$REMOTE` through tools."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.workflow import START, Workflow
from google.genai import types
from script import note

from dragoman.bridges import adk


class Scripted(BaseLlm):
    """A model that says what a function makes of the results of tools so far."""

    model: str = "scripted"
    script: Callable[[list[types.FunctionResponse]], Any]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        """See `BaseLlm.generate_content_async`."""
        note("model")
        parts = llm_request.contents[-1].parts
        said = self.script([part.function_response for part in parts if part.function_response])
        if isinstance(said, str):
            made = [types.Part(text=said)]
        else:
            calls = [types.FunctionCall(name=name, args=arguments) for name, arguments in said]
            made = [types.Part(function_call=call) for call in calls]
        yield LlmResponse(content=types.Content(role="model", parts=made))


def booking(*cities: str) -> Callable[[list[types.FunctionResponse]], Any]:
    """Book flights, at the same time."""

    def script(results: list[types.FunctionResponse]) -> Any:
        if not results:
            return [("book", {"city": city}) for city in cities]
        return "; ".join(result.response["result"] for result in results)

    return script


TOOLS = asyncio.run(adk.tools(os.environ["REMOTE"]))


def agent(name: str, *cities: str, **options: Any) -> LlmAgent:
    """An agent that books flights."""
    return LlmAgent(name=name, model=Scripted(script=booking(*cities)), tools=TOOLS, **options)


def watch(**_: Any) -> None:
    """A callback, with which calls are not logged."""


traveler = agent("Traveler", "Rome")
payer = LlmAgent(
    name="Payer",
    model=Scripted(script=lambda results: str(results) if results else [("pay", {"city": "Rome"})]),
    tools=TOOLS,
)
couple = agent("Couple", "Rome", "Oslo")
watched = agent("Watched", "Rome", before_tool_callback=watch)
clerk = agent("Clerk", "Rome")
office = LlmAgent(
    name="Office",
    model=Scripted(script=lambda _: [("transfer_to_agent", {"agent_name": "Clerk"})]),
    sub_agents=[clerk],
)
(book,) = (tool for tool in TOOLS if tool.name == "book")
trip = Workflow(name="Trip", edges=[(START, book)])
