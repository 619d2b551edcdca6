"""Copies of an agent of smolagents: one for each run, so that callers share no memory. Their calls
are logged."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator
from typing import Any

from msgspec import Struct
from rich.console import Console
from smolagents import (
    AgentLogger,
    AgentMemory,
    ChatMessage,
    ChatMessageStreamDelta,
    FinalAnswerTool,
    LocalPythonExecutor,
    LogLevel,
    Model,
    Monitor,
    MultiStepAgent,
    Tool,
    ToolCallingAgent,
    UserInputTool,
    agglomerate_stream_deltas,
)
from smolagents.models import ChatMessageToolCallStreamDelta

from dragoman.bridges.smolagents.json_values import (
    dumped,
    dumped_message,
    file_of,
    loaded,
    loaded_message,
)
from dragoman.bridges.smolagents.logged_calls import Calls


class Detail(Struct, frozen=True):
    """A tool is called; or, with a text, what it has returned."""

    tool: str
    text: str = ""


class Used(Struct, frozen=True):
    """What a call of a model has used."""

    requests: int
    input_tokens: int
    output_tokens: int


def prepare(agent: MultiStepAgent) -> None:
    """Have an agent print nothing, if it has the default logger. ValueError if it cannot be
    copied."""
    executor = getattr(agent, "python_executor", None)
    own = executor is not None and not isinstance(executor, LocalPythonExecutor)
    if own and agent.executor_type == "local":
        raise ValueError(
            "an agent with executor=... serves one conversation only; say executor_type=..., so "
            "that each run has an executor of its own"
        )
    if type(agent.logger) is AgentLogger:
        agent.monitor.logger = AgentLogger(level=LogLevel.OFF)  # it counts for all copies
    for other in agent.managed_agents.values():
        prepare(other)


class AgentCopy:
    """A copy of an agent, and of the agents that it manages. It shares what belongs to no
    conversation: prompts, callbacks, and the model and the tools behind the log."""

    def __init__(self, agent: MultiStepAgent, calls: Calls, approve: Collection[str]) -> None:
        self.agent = made = copy.copy(agent)
        self._original = agent
        self._managed = [
            AgentCopy(other, calls, approve) for other in agent.managed_agents.values()
        ]
        made.managed_agents = {each.agent.name: each.agent for each in self._managed}
        streams = hasattr(agent.model, "generate_stream")
        made.model = (
            StreamingModel(agent.model, calls) if streams else LoggedModel(agent.model, calls)
        )
        if isinstance(agent, ToolCallingAgent):
            made.stream_outputs = streams
        made.logger = copy.copy(agent.logger)
        if type(agent.logger) is AgentLogger:
            made.logger.console = Console(quiet=True)
        made.monitor = Monitor(made.model, made.logger)
        made.state = dict(agent.state)
        made.interrupt_switch = False
        executor = getattr(agent, "python_executor", None)
        if isinstance(executor, LocalPythonExecutor):
            made.python_executor = copy.copy(executor)
            made.python_executor.state = {"__name__": "__main__"}
            made.python_executor.custom_tools = {}
        elif executor is not None:
            made.python_executor = agent.create_python_executor()
        if executor is None or isinstance(executor, LocalPythonExecutor):
            # others run the source of the tools elsewhere
            tools = agent.tools.items()
            made.tools = {name: logged(tool, calls, approve) for name, tool in tools}
        made.memory = AgentMemory(made.system_prompt)
        made.memory.steps = list(agent.memory.steps)

    def interrupt(self) -> None:
        """End the run after its current step."""
        self.agent.interrupt()
        for other in self._managed:
            other.interrupt()

    def cleanup(self) -> None:
        """Release what the run has used."""
        self._original.monitor.reset()  # it would grow for ever
        if hasattr(self.agent, "cleanup"):
            self.agent.cleanup()
        for other in self._managed:
            other.cleanup()


class LoggedModel:
    """A model whose responses are steps of the task."""

    def __init__(self, model: Model, calls: Calls) -> None:
        self._model = model
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, messages: list[Any], *args: Any, **options: Any) -> ChatMessage:
        """See `Model.generate`."""
        found = self._calls.make(
            "model",
            _content(messages),
            lambda: self._model.generate(messages, *args, **options),
            dumped_message,
            loaded_message,
        )
        self._used(found)
        return found

    __call__ = generate

    def _used(self, message: ChatMessage) -> None:
        usage = message.token_usage
        tokens = (0, 0) if usage is None else (usage.input_tokens, usage.output_tokens)
        self._calls.report(Used(1, *tokens))


class StreamingModel(LoggedModel):
    """One that streams."""

    def generate_stream(
        self, messages: list[Any], *args: Any, **options: Any
    ) -> Iterator[ChatMessageStreamDelta]:
        """See the models that have `generate_stream`."""
        call = self._calls.begin("model", _content(messages))
        if call.known is not None:
            message = loaded_message(call.known)
            yield _delta(message)
        else:
            deltas = []
            with call:
                for delta in self._model.generate_stream(messages, *args, **options):
                    deltas.append(delta)
                    yield delta
                message = agglomerate_stream_deltas(deltas)
                call.result = dumped_message(message)
        self._used(message)


def _content(messages: list[Any]) -> list[Any]:
    return [each.dict() if isinstance(each, ChatMessage) else each for each in messages]


def _delta(message: ChatMessage) -> ChatMessageStreamDelta:
    """A whole message, as if it had been streamed."""
    tools = [
        ChatMessageToolCallStreamDelta(number, call.id, call.type, call.function)
        for number, call in enumerate(message.tool_calls or ())
    ]
    return ChatMessageStreamDelta(message.content, tools or None, message.token_usage)


def logged(tool: Tool, calls: Calls, approve: Collection[str]) -> Tool:
    """A tool whose calls are steps of the task. The one that asks the user asks the client."""
    if isinstance(tool, FinalAnswerTool):
        return tool

    def call(self: Tool, *args: Any, sanitize_inputs_outputs: bool = False, **kwargs: Any) -> Any:
        if isinstance(tool, UserInputTool):
            text, _ = calls.ask(str(kwargs.get("question", *args)), tool.name)
            return text
        content = [tool.name, args, kwargs]
        if tool.name in approve and not _approved(calls, tool, args, kwargs):
            return "The user does not allow this call."

        def make() -> Any:
            calls.report(Detail(tool.name))
            value = tool(*args, sanitize_inputs_outputs=sanitize_inputs_outputs, **kwargs)
            calls.report(Detail(tool.name, f"{tool.name} returned {value}"))
            return value

        def report(value: Any) -> None:
            if (part := file_of(value)) is not None:
                calls.report(part)

        kind = f"tool:{tool.name}"
        return calls.make(kind, content, make, dumped, loaded, fails=True, report=report)

    kind = type(tool)
    made = copy.copy(tool)
    made.__class__ = type(kind.__name__, (kind,), {"__call__": call})  # `tool()` looks there only
    return made


def _approved(calls: Calls, tool: Tool, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the client has approved this call."""
    given = args[0] if len(args) == 1 and isinstance(args[0], dict) else None
    arguments = given or {**dict(zip(tool.inputs, args, strict=False)), **kwargs}
    shown = json.loads(json.dumps(arguments, default=str))
    text = f"May I call {tool.name} with {json.dumps(shown)}?"
    _, approved = calls.ask(text, arguments, {"tool": tool.name, "arguments": shown})
    return approved
