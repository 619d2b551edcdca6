"""Remote agents as tools of the OpenAI Agents SDK.

Each tool is an agent of the SDK whose model calls the remote agent. If the remote agent asks,
the model calls the tool `remote_question`, which needs an approval: so the SDK pauses the run, and
its state has the question and what is needed to continue."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Unpack

import msgspec
from agents import Agent as OpenAIAgent
from agents import (
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    RunState,
    Usage,
    default_tool_error_function,
)
from agents.items import ToolApprovalItem
from agents.tool_context import ToolContext
from msgspec import Struct
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic_core import to_json

from dragoman import Part
from dragoman.bridges import remote
from dragoman.bridges.bridge import current_run
from dragoman.bridges.openai_agents import messages
from dragoman.bridges.remote import Remote, RemoteAnswer, RemoteFailed, RemoteQuestion, RemoteTool
from dragoman.client import Options

QUESTION = "remote_question"
"""The name of an interruption in which a remote agent asks."""
QUESTIONS = 100
"""A remote agent may ask so often in one call."""


class Call(Struct, frozen=True):
    """A call of a remote agent."""

    key: str
    conversation: str
    arguments: str
    """As the model gave them: JSON."""


class Asked(Struct, frozen=True):
    """The arguments of `remote_question`."""

    question: str
    tool: str
    task: str
    approval: bool = False
    """The remote agent asks for a login or an approval."""

    @property
    def operation(self) -> dict[str, str]:
        """What is to be approved."""
        return {"tool": self.tool, "question": self.question, "task": self.task}


class Said(Struct, frozen=True):
    """What `remote_question` returns."""

    parts: tuple[Part, ...]


async def tools(*agents: Remote, **options: Unpack[Options]) -> list[FunctionTool]:
    """The skills of remote agents as tools: `Agent(…, tools=await tools(url))`.

    If a remote agent asks, the run is interrupted by an item with the name `remote_question`, whose
    arguments have the `question`; see `answer`. The `group_id` of the run's configuration names
    the conversation: calls of one conversation are one at the remote agent, too."""
    return [_tool(found) for found in await remote.tools(*agents, **options)]


def answer(state: RunState[Any], item: ToolApprovalItem, said: str | Sequence[Part]) -> None:
    """Answer the question of a remote agent, before the run continues with this state. You may save
    the state before or after that.

    `state.approve(item)` says yes to a remote agent that asks for an approval, and
    `state.reject(item)` ends the call with an error."""
    if item.name != QUESTION:
        raise ValueError(f"{item.name} is not a question of a remote agent: approve or reject it")
    parts = (Part(text=said),) if isinstance(said, str) else tuple(said)
    # a state keeps the words of a rejection, and they are what the tool returns
    state.reject(item, rejection_message=msgspec.json.encode(Said(parts)).decode())


def asked(item: ToolApprovalItem) -> Asked | None:
    """What a remote agent asks; None if another tool waits."""
    if item.name != QUESTION:
        return None
    return msgspec.json.decode(item.arguments or "", type=Asked)


def _tool(found: RemoteTool) -> FunctionTool:
    caller: OpenAIAgent[Any] = OpenAIAgent(found.name, model=Caller(found), tools=[_question])
    tool = caller.as_tool(
        found.name,
        found.description,
        custom_output_extractor=_output,
        failure_error_function=_failed,
        max_turns=QUESTIONS,
    )
    run = tool.on_invoke_tool

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        call = msgspec.json.encode(_call(context, arguments)).decode()
        inner = copy.copy(context)
        inner.run_config = _config(context.run_config)
        return await run(inner, json.dumps({"input": call}))

    tool.on_invoke_tool = invoke
    tool.params_json_schema = found.parameters
    tool.strict_json_schema = False
    return tool


def _call(context: ToolContext[Any], arguments: str) -> Call:
    """The call, under a key that is the same when the run is resumed or made again. Not every
    model makes ids of calls that no other conversation has: so the input is in the key."""
    run = current_run.get()
    group = (context.run_config and context.run_config.group_id) or ""
    given = to_json(context.turn_input, serialize_unknown=True).decode()
    key = remote.key(group, given, context.tool_call_id)
    return Call(key, run.session if run else group, arguments)


def _config(given: RunConfig | None) -> RunConfig:
    """What the run's configuration says of tracing. The rest is for models: another model, filters
    and guardrails of what it reads."""
    if given is None:
        return RunConfig()
    return RunConfig(
        workflow_name=given.workflow_name,
        group_id=given.group_id,
        tracing=given.tracing,
        tracing_disabled=given.tracing_disabled,
        trace_include_sensitive_data=given.trace_include_sensitive_data,
    )


class Caller(Model):
    """Calls a remote agent, and passes on its question."""

    def __init__(self, tool: RemoteTool) -> None:
        self._tool = tool

    async def get_response(
        self, system_instructions: Any, input: Any, *others: Any, **options: Any
    ) -> ModelResponse:
        """See `Model.get_response`. The input has the call, and then the questions and answers."""
        call = _begun(input)
        questions = [item for item in input if _kind(item) == "function_call"]
        number = len(questions)
        try:
            if questions:
                last = msgspec.json.decode(questions[-1]["arguments"], type=Asked)
                said = _said(self._tool, input[-1]["output"])
                key = f"{call.key}:{number}"
                found = await self._tool.answer(last.task, said, key=key)
            else:
                found = await self._tool.call(
                    _arguments(self._tool, call), key=call.key, conversation=call.conversation
                )
        except RemoteQuestion as pause:
            return _response(_pause(pause, f"{call.key}:{number + 1}"))
        return _response(_end(found))

    def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        """See `Model.stream_response`."""
        raise NotImplementedError("an agent that is a tool does not stream")


def _begun(input: Any) -> Call:
    content = input if isinstance(input, str) else input[0]["content"]
    return msgspec.json.decode(content, type=Call)


def _kind(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else None


def _arguments(tool: RemoteTool, call: Call) -> dict[str, Any]:
    try:
        found = json.loads(call.arguments or "{}")
    except ValueError as error:
        raise RemoteFailed(f"{tool.name}: the arguments are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RemoteFailed(f"{tool.name}: the arguments are not an object")
    return found


def _said(tool: RemoteTool, output: Any) -> tuple[Part, ...]:
    """An answer, as `answer` has given it."""
    try:
        return msgspec.json.decode(output, type=Said).parts
    except (msgspec.MsgspecError, TypeError) as error:
        raise RemoteFailed(f"{tool.name}: its question was not answered: {output}") from error


def _pause(pause: RemoteQuestion, id: str) -> ResponseFunctionToolCall:
    arguments = msgspec.json.encode(msgspec.convert(pause.value, Asked)).decode()
    kind = "function_call"
    return ResponseFunctionToolCall(type=kind, call_id=id, name=QUESTION, arguments=arguments)


def _end(found: RemoteAnswer) -> ResponseOutputMessage:
    text = msgspec.json.encode(found).decode()
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(
        id="answer", type="message", role="assistant", status="completed", content=[content]
    )


def _response(item: Any) -> ModelResponse:
    return ModelResponse(output=[item], usage=Usage(), response_id=None)


async def _approved(context: ToolContext[Any], arguments: str) -> str:
    """What an approval without words says."""
    if not msgspec.json.decode(arguments, type=Asked).approval:
        return "use `dragoman.bridges.openai_agents.answer`"
    return msgspec.json.encode(Said((Part(text="yes"),))).decode()


_question = FunctionTool(
    name=QUESTION,
    description="Ask what a remote agent asks.",
    params_json_schema={"type": "object", "properties": {}},
    on_invoke_tool=_approved,
    strict_json_schema=False,
    needs_approval=True,
)


async def _output(result: Any) -> Any:
    """The answer of a remote agent, as the result of a tool."""
    found = msgspec.json.decode(result.final_output, type=RemoteAnswer)
    text = (Part(text=found.content),) if found.content else ()
    return messages.output((*text, *found.files))


def _failed(context: Any, error: Exception) -> str:
    """What the model reads of an error. Only that of a remote agent is safe to show."""
    if isinstance(error, RemoteFailed):
        return f"Error: {error}"
    return default_tool_error_function(context, error)
