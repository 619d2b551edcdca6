"""Serves an agent of the OpenAI Agents SDK. Each call of a model, a tool or a session is a step
inside of the run: a turn that is run again makes none of them twice."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn, Unpack

import msgspec
from agents import Agent as OpenAIAgent
from agents import (
    FunctionTool,
    InputGuardrailTripwireTriggered,
    OpenAIConversationsSession,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    Session,
    ToolOriginType,
    function_tool,
)
from agents.tool import get_function_tool_origin
from agents.tool_context import ToolContext
from msgspec import Struct
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from dragoman import Agent, Part, UserError
from dragoman.bridges import bridge, third_party_internals
from dragoman.bridges.bridge import Answer, BridgeOptions, Outcome, Question, Run
from dragoman.bridges.openai_agents import messages
from dragoman.bridges.openai_agents.remote import answer, asked, tools
from dragoman.bridges.openai_agents.steps import LoggedProvider, LoggedSession
from dragoman.bridges.saved_state import GONE, LIMIT, without_gone
from dragoman.bridges.steps import Steps

__all__ = ("OpenAIAgents", "answer", "ask_client", "serve", "tools")

_ANSWERS: ContextVar[dict[str, Any]] = ContextVar("openai_agents_answers")
"""What the client has said to calls of `ask_client`, by their ids."""


@function_tool(needs_approval=True)
async def ask_client(context: ToolContext[Any], question: str) -> Any:
    """Ask the user a question, and wait for the answer.

    Args:
        question: The question, in words.
    """
    return _ANSWERS.get({}).get(context.tool_call_id, "The user cannot be asked.")


def serve(
    agent: OpenAIAgent[Any],
    *,
    context: Any = None,
    session: Callable[[str], Session] | None = None,
    run_config: RunConfig | None = None,
    max_turns: int | None = 10,
    **options: Unpack[BridgeOptions],
) -> Agent:
    """Serve an agent. `context`, `run_config` and `max_turns` are given to each of its runs.
    `session` makes your own session of a conversation from its name; without it, the conversation
    is kept here. An agent whose tools include `ask_client` can ask the client."""
    third_party_internals.check_version(OpenAIAgents.package)
    return bridge.serve(OpenAIAgents(agent, context, session, run_config, max_turns), **options)


class ConversationState(Struct, frozen=True):
    """What an agent needs to continue."""

    agent: str
    """The name of the agent that continues, or that began the waiting run."""
    history: list[Any] = []
    """The items of the conversation; empty if a session of the user's has them."""
    pending: dict[str, Any] | None = None
    """The state of a run that waits for answers."""


class OpenAIAgents:
    """See `bridge.Framework`."""

    package = "openai-agents"
    logs_steps = False  # a run is a step, with the steps of models and tools inside

    def __init__(
        self,
        agent: OpenAIAgent[Any],
        context: Any,
        session: Callable[[str], Session] | None,
        run_config: RunConfig | None,
        max_turns: int | None,
    ) -> None:
        self._agent = agent
        self._context = context
        self._session = session
        self._config = run_config or RunConfig()
        self._max_turns = max_turns
        self.name = agent.name
        self.description = agent.handoff_description or ""
        kind = agent.output_type
        self.output = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None

    async def run(self, run: Run) -> Outcome:
        """Run the agent until it ends or asks."""
        kept = run.load(_decoded) or ConversationState(self._agent.name)
        steps = Steps(run)
        models = LoggedProvider(self._config.model_provider, steps)
        team = _Team(self._agent, models, steps)
        starting = team.named(kept.agent)
        if kept.pending is None:
            given: Any = [*kept.history, {"role": "user", "content": messages.content(run.parts)}]
        else:
            given = await self._resumed(run, starting, kept.pending)
        config = replace(
            self._config,
            model=models.wrapped(self._config.model),
            model_provider=models,
            group_id=self._config.group_id or run.session,
        )
        result = Runner.run_streamed(
            starting,
            given,
            context=self._context,
            max_turns=self._max_turns,
            hooks=_Report(run),
            run_config=config,
            session=self._conversation(run.session, steps),
        )
        said = await _stream(run, result)
        if result.interruptions:
            state = self._paused(run, starting, result)
            return Outcome(state=state, questions=tuple(map(_question, result.interruptions)))
        output = result.final_output
        if isinstance(output, str) and output != said:
            await run.write(output)  # it was not streamed, such as a tool's result
        structured = not isinstance(output, str) and output is not None
        used = result.context_wrapper.usage
        return Outcome(
            state=self._ended(run, result),
            result=to_jsonable_python(output, serialize_unknown=True) if structured else None,
            usage={
                name: getattr(used, name) for name in ("requests", "input_tokens", "output_tokens")
            },
        )

    def _conversation(self, name: str, steps: Steps) -> Any:
        """The user's own session of this conversation."""
        if self._session is None:
            return None
        session = self._session(name)
        remote = isinstance(session, OpenAIConversationsSession)  # the SDK looks at its class
        return session if remote else LoggedSession(session, steps)

    def _ended(self, run: Run, result: Any) -> bytes:
        """The state after a run: the latest items of the conversation."""
        agent = result.last_agent.name
        if self._session is not None:
            return _encoded(ConversationState(agent))

        def encode(items: list[Any]) -> bytes:
            return _encoded(ConversationState(agent, items))

        items = to_jsonable_python(result.to_input_list(), serialize_unknown=True)
        if len(run.pack(data := encode(items))) <= LIMIT:
            return data
        return run.fitting(_without_files(items), encode, _starts)

    def _paused(self, run: Run, starting: OpenAIAgent[Any], result: Any) -> bytes:
        """The state of a run that waits."""
        pending = result.to_state().to_json(context_serializer=lambda _: {})
        if self._context is not None:
            third_party_internals.drop_context(pending)  # each run is given the author's
        pending = to_jsonable_python(pending, serialize_unknown=True)
        data = _encoded(ConversationState(starting.name, pending=pending))
        if len(run.pack(data)) > LIMIT:
            data = _encoded(ConversationState(starting.name, pending=_without_files(pending)))
        if len(run.pack(data)) > LIMIT:
            raise UserError("The conversation is too long to wait for an answer; start a new one")
        return data

    async def _resumed(self, run: Run, agent: OpenAIAgent[Any], pending: dict[str, Any]) -> Any:
        """The state of the run that has waited, with the answers."""
        try:
            own: dict[str, Any] = {} if self._context is None else {"context_override": {}}
            state = await RunState.from_json(agent, pending, **own)
        except Exception as error:  # noqa: BLE001 - `load` says to the client what it means
            run.load(_failing(error))
        answers = {answer.id: answer for answer in run.answers}
        said = {}
        for item in state.get_interruptions():
            given = answers.get(item.call_id or "", Answer(""))
            question = asked(item)
            if item.name == ask_client.name:
                said[item.call_id] = messages.output(given.parts)
            if question is not None and not question.approval:
                answer(state, item, given.parts)
            elif given.approved or item.name == ask_client.name:
                state.approve(item)
            else:
                state.reject(item, rejection_message=given.text or None)
        _ANSWERS.set(said)
        return state


class _Team:
    """The agent, and those that it hands over to, as copies for one run."""

    def __init__(self, agent: OpenAIAgent[Any], models: LoggedProvider, steps: Steps) -> None:
        self._models = models
        self._steps = steps
        self._copies: dict[int, tuple[OpenAIAgent[Any], OpenAIAgent[Any]]] = {}
        """The agents and their copies, by the ids of the agents."""
        self._first = self._copy(agent)

    def named(self, name: str) -> OpenAIAgent[Any]:
        """The agent of this name; the first one if there is none."""
        found = (made for _, made in self._copies.values() if made.name == name)
        return next(found, self._first)

    def _copy(self, agent: OpenAIAgent[Any]) -> OpenAIAgent[Any]:
        if (known := self._copies.get(id(agent))) is not None:
            return known[1]
        made = agent.clone(tools=[self._tool(tool) for tool in agent.tools], handoffs=[])
        self._copies[id(agent)] = (agent, made)
        made.model = self._models.wrapped(agent.model)  # not given to clone, which looks at it
        made.handoffs = [self._handoff(handoff) for handoff in agent.handoffs]
        return made

    def _tool(self, tool: Any) -> Any:
        """A tool whose calls are steps. Two kinds stay as they are: an agent that is a tool may
        ask in the middle of a call; and an approval that depends on arguments needs the SDK's own
        call, which checks them first."""
        if not isinstance(tool, FunctionTool) or callable(tool.needs_approval):
            return tool
        origin = get_function_tool_origin(tool)
        if origin is not None and origin.type is ToolOriginType.AGENT_AS_TOOL:
            return tool
        invoke, steps = tool.on_invoke_tool, self._steps

        async def call(context: ToolContext[Any], arguments: str) -> Any:
            name = f"tool:{tool.name}:{context.tool_call_id}"
            return await steps.call(name, lambda: invoke(context, arguments), _readable)

        made = copy.copy(tool)
        made.on_invoke_tool = call
        return made

    def _handoff(self, handoff: Any) -> Any:
        if isinstance(handoff, OpenAIAgent):
            return self._copy(handoff)
        made = copy.copy(handoff)
        third_party_internals.copy_target(handoff, made, self._copy)
        invoke = handoff.on_invoke_handoff

        async def call(context: Any, arguments: str) -> Any:
            return self._copy(await invoke(context, arguments))

        made.on_invoke_handoff = call
        return made


class _Report(RunHooks[Any]):
    """Reports the calls of tools."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """See `RunHooks.on_tool_start`."""
        if tool.name != ask_client.name:
            await self._run.tool(tool.name)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        """See `RunHooks.on_tool_end`."""
        await self._run.detail(f"{tool.name} returned {result}")


async def _stream(run: Run, result: Any) -> str:
    """Report what a run streams, until it ends; the last text of the model."""
    said = last = ""
    try:
        async for event in result.stream_events():
            if event.type != "raw_response_event":
                continue
            if event.data.type == "response.output_text.delta":
                said += event.data.delta
                if result.current_agent.output_type in (None, str):
                    await run.write(event.data.delta)
            elif event.data.type == "response.completed":
                said, last = "", said
                for item in event.data.response.output:
                    await _report(run, item)
    except (InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered) as stop:
        raise UserError("A guardrail of the agent has stopped it") from stop
    finally:
        if not result.is_complete:
            result.cancel()
    return last


async def _report(run: Run, item: Any) -> None:
    """Report what the model's provider has done."""
    if item.type == "image_generation_call" and item.result:
        kind = getattr(item, "output_format", None) or "png"
        await run.file(Part(raw=base64.b64decode(item.result), media_type=f"image/{kind}"))
    elif item.type in HOSTED:
        await run.tool(item.type.removesuffix("_call"))


HOSTED = ("web_search_call", "file_search_call", "code_interpreter_call", "mcp_call")


def _question(item: Any) -> Question:
    """What a call that needs an approval asks."""
    try:
        arguments = json.loads(item.arguments or "{}")
    except ValueError:
        arguments = item.arguments
    id, name = item.call_id or "", item.qualified_name or item.name or "?"
    if (remote := asked(item)) is not None:
        return Question(id, remote.question, approval=remote.approval, operation=remote.operation)
    if item.name == ask_client.name and isinstance(arguments, dict):
        return Question(id, str(arguments.get("question", "")))
    text = f"May I call {name} with {json.dumps(arguments, ensure_ascii=False)}?"
    operation = {"tool": name, "arguments": arguments}
    return Question(id, text, approval=True, operation=operation)


def _readable(value: Any) -> Any:
    """A tool's result as JSON from which the model reads the same."""
    if isinstance(value, list | tuple):
        return [_readable(each) for each in value]
    if isinstance(value, BaseModel) and type(value).__name__.startswith("ToolOutput"):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, dict):
        return to_jsonable_python(value, serialize_unknown=True)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _starts(item: Any) -> bool:
    """Whether a message of the user begins here, so that no tool result is without its call."""
    return isinstance(item, dict) and item.get("role") == "user"


def _without_files(value: Any) -> Any:
    """The same items, with a note in place of each file that is in them."""
    if isinstance(value, list):
        return [_without_files(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    inline = any(str(value.get(key)).startswith("data:") for key in ("image_url", "file_data"))
    if kind == "input_audio" or (kind in ("input_image", "input_file") and inline):
        return {"type": "input_text", "text": GONE}
    if kind == "image_generation_call":
        return {**value, "result": None}
    return {key: _without_files(each) for key, each in value.items()}


def _encoded(kept: ConversationState) -> bytes:
    return msgspec.json.encode(kept)


def _decoded(state: bytes) -> ConversationState:
    kept = msgspec.json.decode(without_gone(state, _note), type=ConversationState)
    if not all(isinstance(item, dict) and {"role", "type"} & set(item) for item in kept.history):
        raise ValueError("an item has no type")  # the SDK gives the model what it does not know
    return kept


def _note(item: dict[str, Any]) -> dict[str, Any] | None:
    """A note instead of a file that is gone."""
    kinds = ("input_image", "input_file", "input_audio")
    return {"type": "input_text", "text": GONE} if item.get("type") in kinds else None


def _failing(error: Exception) -> Callable[[bytes], NoReturn]:
    """A decoder for a state that has turned out to be unreadable."""

    def decode(_: bytes) -> NoReturn:
        raise error

    return decode
