"""Makes each call of a model or a tool of ADK a step of the task."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import msgspec
from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.apps import App
from google.adk.events import EventActions, RequestInput
from google.adk.models import LlmResponse
from google.adk.planners import BuiltInPlanner
from google.adk.tools import BaseTool, FunctionTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic_core import to_jsonable_python

from dragoman.bridges.adk.messages import say, send_file, to_json
from dragoman.bridges.adk.remote import RemoteAgentTool
from dragoman.bridges.bridge import Run
from dragoman.bridges.saved_state import LIMIT
from dragoman.bridges.steps import long_step

SMALL = LIMIT // 3
"""The most bytes of the files that are kept with a state, or with the step of a tool."""


def repeatable(app: App) -> bool:
    """Whether the agent does the same when it is run again with the same responses of models and
    tools: nothing else in it has an effect, or changes what a model has said."""
    kinds = (LlmAgent, SequentialAgent, LoopAgent, ParallelAgent)
    if app.plugins or app.events_compaction_config:
        return False
    for agent in family(app.root_agent):
        if type(agent) not in kinds or any(
            getattr(agent, name) for name in type(agent).model_fields if name.endswith("_callback")
        ):
            return False
        if is_llm(agent) and (
            agent.code_executor
            or not isinstance(agent.planner, BuiltInPlanner | None)
            or any(isinstance(tool, BaseNode) for tool in agent.tools)
        ):
            return False
    return True


class Log:
    """Makes each call of a model or a tool a step of the task."""

    def __init__(self, run: Run, structured: set[str], label: Callable[[str], str]) -> None:
        self._run = run
        self._structured = structured
        self._label = label

    def agent(self, agent: Any) -> Any:
        """A copy of an agent and of those below it, whose calls are steps."""
        update: dict[str, Any] = {"sub_agents": [self.agent(each) for each in agent.sub_agents]}
        if is_llm(agent):
            update["model"] = self._model(agent)
            update["tools"] = [self._tool(each, agent.name) for each in agent.tools]
        return agent.clone(update)

    def _model(self, agent: Any) -> Any:
        model, quiet = agent.canonical_model, agent.name in self._structured

        async def generate(llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
            async def ask() -> list[Any]:
                found, streamed = [], False
                # what streams is reported from inside of the step
                async with aclosing(model.generate_content_async(llm_request, stream)) as responses:
                    async for response in responses:
                        name = self._label(agent.name)
                        await say(self._run, response, name, quiet=quiet, streamed=streamed)
                        streamed = bool(response.partial)
                        if not response.partial:
                            found.append(_dumped(response))
                return found

            for value in await long_step(self._run.turn, f"model:{agent.name}", ask):
                yield LlmResponse.model_validate(value)

        return _with(model, generate_content_async=generate)

    def _tool(self, tool: Any, agent: str) -> Any:
        if isinstance(tool, BaseToolset):

            async def get_tools(context: Any = None) -> list[BaseTool]:
                return [self._tool(each, agent) for each in await tool.get_tools(context)]

            return _with(tool, get_tools=get_tools)
        found = tool if isinstance(tool, BaseTool) else FunctionTool(tool)
        # the question of a remote agent is the result of a step; the pause itself is none
        method = "send" if isinstance(found, RemoteAgentTool) else "run_async"
        make = getattr(found, method)

        async def run_async(*, args: dict[str, Any], tool_context: Any) -> Any:
            called = False

            async def call() -> Any:
                nonlocal called
                called = True
                value = await make(args=args, tool_context=tool_context)
                return await self._called(found.name, value, tool_context)

            name = f"tool:{agent}:{found.name}:{tool_context.function_call_id}"
            logged = await long_step(self._run.turn, name, call)
            if not called:
                await _restore(logged, tool_context)
            return _read(logged["value"])

        return _with(found, **{method: run_async})

    async def _called(self, name: str, value: Any, context: Any) -> Any:
        """What a call has done, as JSON."""
        files = {}
        for filename, number in context.actions.artifact_delta.items():
            part = await context.load_artifact(filename, number)
            await send_file(self._run, part, filename)
            if part is not None:
                files[filename] = part.model_dump(mode="json", exclude_none=True)
        written = _written(value)
        if not isinstance(value, RequestInput):
            await self._run.detail(f"{name} returned {to_json(written)}")
        return {
            "value": written,
            "actions": context.actions.model_dump(mode="json", exclude_defaults=True),
            "files": small(files),
        }


def _with(original: Any, **methods: Any) -> Any:
    """A copy of an object, with other methods."""
    found = copy.copy(original)
    vars(found).update(methods)
    return found


def is_llm(agent: Any) -> bool:
    """Whether this is an agent with a model of its own."""
    return isinstance(agent, LlmAgent)


def family(agent: Any) -> list[Any]:
    """An agent or a workflow, and all agents in it."""
    graph = getattr(agent, "graph", None)
    below = [*getattr(agent, "sub_agents", ()), *(graph.nodes if graph is not None else ())]
    return [agent, *(each for child in below for each in family(child))]


def small(files: dict[str, Any]) -> dict[str, Any]:
    """As many of the files as may be kept."""
    left, found = SMALL, {}
    for name, file in files.items():
        if (size := len(msgspec.json.encode(file))) <= left:
            found[name], left = file, left - size
    return found


def _dumped(response: LlmResponse) -> Any:
    """A response as JSON. Each call in it has an id, the same when the turn is run again."""
    for part in (response.content and response.content.parts) or ():
        if part.function_call is not None and not part.function_call.id:
            part.function_call.id = f"adk-{uuid4()}"
    return response.model_dump(mode="json", exclude_none=True)


def _written(value: Any) -> Any:
    """A tool's result as JSON; files in it can be read again, and so can a question."""
    if isinstance(value, RequestInput):
        return {"$question": value.model_dump(mode="json")}
    if isinstance(value, types.Part):
        return {"$part": value.model_dump(mode="json", exclude_none=True)}
    if isinstance(value, dict):
        return {str(key): _written(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_written(each) for each in value]
    return to_jsonable_python(value, serialize_unknown=True)


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        if "$part" in value:
            return types.Part.model_validate(value["$part"])
        if "$question" in value:
            return RequestInput.model_validate(value["$question"])
        return {key: _read(each) for key, each in value.items()}
    return [_read(each) for each in value] if isinstance(value, list) else value


async def _restore(logged: dict[str, Any], context: Any) -> None:
    """Do again what a call has done to the session."""
    for filename, part in logged["files"].items():
        await context.save_artifact(filename, types.Part.model_validate(part))
    actions = EventActions.model_validate(logged["actions"])
    for key, value in actions.state_delta.items():
        context.state[key] = value
    for name in actions.model_fields_set - {"state_delta"}:
        setattr(context.actions, name, getattr(actions, name))
