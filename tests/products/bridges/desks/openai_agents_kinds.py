"""Agents of the OpenAI Agents SDK whose model calls the tools that the message names, as JSON. One
of them has the remote agent at `REMOTE` as tools."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, RunConfig
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from openai_agents_desk import Script, delete
from script import note

from dragoman.bridges import openai_agents


class Caller(Script):
    """A model that calls tools, and then says what they have returned."""

    async def stream_response(
        self, system_instructions: str | None, input: Any, *others: Any, **options: Any
    ) -> AsyncIterator[Any]:
        """Call what `[[tool, arguments], …]` names."""
        note("model")
        last = max(n for n, item in enumerate(input) if item.get("role") == "user")
        results = [item["output"] for item in input[last:] if "output" in item]
        output: list[Any] = []
        if results:
            text = ResponseOutputText(text=json.dumps(results), type="output_text", annotations=[])
            output = [
                ResponseOutputMessage(
                    id="m", type="message", role="assistant", status="completed", content=[text]
                )
            ]
        else:
            for number, (name, given) in enumerate(json.loads(input[last]["content"][0]["text"])):
                id, said = f"{name}:{number}", json.dumps(given)
                kind = "function_call"
                output.append(
                    ResponseFunctionToolCall(type=kind, call_id=id, name=name, arguments=said)
                )
        response = Response.construct(id="r", output=output, usage=None)
        yield ResponseCompletedEvent.construct(
            type="response.completed", response=response, sequence_number=0
        )


found = asyncio.run(openai_agents.tools(os.environ["REMOTE"]))
agent = Agent("Caller", model=Caller(), tools=[*found, delete, openai_agents.ask_client])
config = RunConfig(model=Caller(), group_id="all")
replaced = openai_agents.serve(agent, run_config=config, context=object())
