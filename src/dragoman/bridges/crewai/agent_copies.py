"""Copies of agents and crews of CrewAI, one for each run: what they call is logged."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import threading
from collections.abc import Callable
from typing import Any

from crewai import Agent, Crew
from crewai.events.types.llm_events import LLMCallCompletedEvent, LLMStreamChunkEvent
from crewai.events.types.task_events import TaskCompletedEvent
from crewai.events.types.tool_usage_events import ToolUsageFinishedEvent, ToolUsageStartedEvent
from crewai.llms.base_llm import BaseLLM
from crewai.tools.base_tool import BaseTool, Tool
from crewai.utilities.agent_utils import extract_tool_call_info
from pydantic import BaseModel

from dragoman.bridges import third_party_internals
from dragoman.bridges.bridge import YES
from dragoman.bridges.crewai.logged_calls import Calls

INPUT = ("input_tokens", "prompt_tokens", "prompt_token_count")
OUTPUT = ("output_tokens", "completion_tokens", "candidates_token_count")


class Log:
    """Makes each call of a model or a tool a step of the task. The copies of one run share it."""

    def __init__(self, calls: Calls, approve: frozenset[str]) -> None:
        self.calls = calls
        self.approve = approve
        self.used: dict[str, int] = {}
        self._here = threading.local()

    def seen(self, event: Any, answers: Callable[[Any], bool]) -> None:
        """CrewAI has emitted an event. `answers` says whether text is of the answer."""
        if isinstance(event, LLMCallCompletedEvent):
            self._here.usage = event.usage
        elif isinstance(event, LLMStreamChunkEvent):
            if not event.tool_call and answers(event):
                self.calls.report(event)
        elif isinstance(event, ToolUsageStartedEvent | ToolUsageFinishedEvent | TaskCompletedEvent):
            self.calls.report(event)

    def model(self, llm: BaseLLM, arguments: dict[str, Any]) -> Any:
        """What a model returns."""
        task, agent = arguments.get("from_task"), arguments.get("from_agent")
        kind: Any = arguments.get("response_model")

        def dump(value: Any) -> Any:
            usage = _tokens(getattr(self._here, "usage", None))
            self._count(usage)
            return {"value": _dumped(value), "usage": usage}

        def load(found: Any) -> Any:
            self._count(found["usage"])
            value = found["value"]
            return kind.model_validate(value["model"]) if _is_model(value) else value

        def call() -> Any:
            self._here.usage = None
            value = llm.call(**arguments)
            return value if isinstance(value, BaseModel | str) else _dumped(value)

        who = [getattr(agent, "role", ""), getattr(task, "description", "")]
        return self.calls.make("model", who, call, dump, load)

    def tool(self, name: str, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a tool returns."""
        given = [name, args, kwargs]
        if name in self.approve:
            operation = {"tool": name, "arguments": kwargs}
            text = f"May I call {name} with {json.dumps(kwargs, ensure_ascii=False, default=str)}?"
            said, approved = self.calls.ask(text, given, operation)
            if not approved:
                return f"The user has not approved this call. {said}".strip()

        def make() -> Any:
            value = call(*args, **kwargs)
            return self._awaited(value) if inspect.isawaitable(value) else value

        def dump(value: Any) -> Any:
            return {"value": value}

        def load(found: Any) -> Any:
            if "error" in found:
                raise RuntimeError(found["error"][1])
            return found["value"]

        return self.calls.make("tool", given, make, dump, load, fails=True)

    def _awaited(self, value: Any) -> Any:
        """The result of an asynchronous tool, which runs in the server's loop, where a cancel
        stops it."""

        async def wait() -> Any:
            return await value

        return self.calls.wait(wait())

    def _count(self, usage: dict[str, int]) -> None:
        for key, number in (("requests", 1), *usage.items()):
            self.used[key] = self.used.get(key, 0) + number


class Feedback:
    """See `HumanInputProvider`: what a task asks its human, the client is asked."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def setup_messages(self, context: Any) -> bool:
        """The messages are the usual ones."""
        return False

    def post_setup_messages(self, context: Any) -> None:
        """The messages are the usual ones."""

    def handle_feedback(self, formatted_answer: Any, context: Any) -> Any:
        """Ask until the client agrees."""
        answer = formatted_answer
        while context.ask_for_human_input:
            shown = answer.output
            shown = shown if isinstance(shown, str) else shown.model_dump_json()
            said, _ = self._calls.ask(f"{shown}\n\nIs this right? If not, what is to change?", None)
            if said.strip().strip(".!").lower() in YES:
                context.ask_for_human_input = False
            else:
                answer = third_party_internals.improve(context, said)
        return answer

    async def handle_feedback_async(self, formatted_answer: Any, context: Any) -> Any:
        """Ask until the client agrees."""
        return await asyncio.to_thread(self.handle_feedback, formatted_answer, context)


def copied(served: Agent | Crew, log: Log) -> Agent | Crew:
    """A copy whose calls are logged."""
    made = served.copy()
    agents = [made] if isinstance(made, Agent) else [*made.agents]
    if isinstance(made, Crew):
        for task in made.tasks:
            task.tools = [_tool(tool, log) for tool in task.tools or ()]
            if task.agent is not None and not any(task.agent is agent for agent in agents):
                agents.append(task.agent)
        if made.manager_agent is not None:
            agents.append(made.manager_agent)
        for name in ("manager_llm", "planning_llm"):
            if isinstance(llm := getattr(made, name), BaseLLM):
                setattr(made, name, _model(llm, log))
    for agent in agents:
        if isinstance(agent.llm, BaseLLM):
            agent.llm = _model(agent.llm, log)
        agent.tools = [_tool(tool, log) for tool in agent.tools or ()]
    return made


def _model(llm: BaseLLM, log: Log) -> BaseLLM:
    """A model whose calls are logged."""
    names = list(inspect.signature(BaseLLM.call).parameters)[1:]

    def call(*args: Any, **kwargs: Any) -> Any:
        return log.model(streaming, dict(zip(names, args, strict=False)) | kwargs)

    async def acall(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(call, *args, **kwargs)

    streaming = copy.copy(llm)
    if "stream" not in llm.model_fields_set:
        streaming.stream = True
    made = copy.copy(streaming)
    vars(made).update(call=call, acall=acall)
    return made


def _tool(tool: BaseTool, log: Log) -> BaseTool:
    """A tool whose calls are logged."""
    name = "func" if isinstance(tool, Tool) else "_run"
    original = getattr(tool, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return log.tool(tool.name, original, args, kwargs)

    made = copy.copy(tool)
    vars(made)[name] = call
    return made


def _dumped(value: Any) -> Any:
    """What a model has returned, as JSON."""
    if isinstance(value, BaseModel):
        return {"model": value.model_dump(mode="json")}
    if not isinstance(value, list):
        return value
    found = []
    for each in value:
        if (about := extract_tool_call_info(each)) is None:
            return value
        id, name, arguments = about
        function = {"name": name, "arguments": arguments}
        found.append({"id": id, "type": "function", "function": function})
    return found


def _is_model(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"model"}


def _tokens(usage: Any) -> dict[str, int]:
    """The tokens that a call has used, as far as its provider says."""
    usage = usage if isinstance(usage, dict) else {}
    found = {}
    for key, names in (("input_tokens", INPUT), ("output_tokens", OUTPUT)):
        numbers = [usage[name] for name in names if isinstance(usage.get(name), int)]
        if numbers:
            found[key] = numbers[0]
    return found
