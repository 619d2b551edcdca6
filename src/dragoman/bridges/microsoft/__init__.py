"""Serves an agent of Microsoft's Agent Framework. If only the model and the tools have effects,
each of their calls is a step of the task: a turn that is run again makes none of them twice.
Otherwise, such as with middleware, a run of the agent is one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import msgspec
from agent_framework import (
    Agent,
    AgentSession,
    BaseAgent,
    ChatMiddlewareLayer,
    Content,
    FunctionalWorkflow,
    FunctionalWorkflowAgent,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
    Workflow,
    WorkflowAgent,
)
from msgspec import Struct
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

import dragoman
from dragoman.bridges import bridge
from dragoman.bridges.bridge import BridgeOptions, Outcome, Run
from dragoman.bridges.microsoft.messages import (
    Report,
    to_contents,
    to_messages,
    to_question,
    usage_of,
)
from dragoman.bridges.microsoft.steps import LoggedModel, LoggedTools
from dragoman.bridges.microsoft.workflows import MicrosoftWorkflow
from dragoman.bridges.saved_state import GONE, LIMIT, without_gone

__all__ = ["serve"]


def serve(
    agent: BaseAgent | Callable[[], Workflow], **options: Unpack[BridgeOptions]
) -> dragoman.Agent:
    """Serve an agent, or a function that makes a workflow. A history provider that is not in memory
    keeps the conversations of an agent itself."""
    if isinstance(agent, BaseAgent) and not isinstance(agent, _STATEFUL):
        return bridge.serve(Microsoft(agent), **options)
    first = None if isinstance(agent, _STATEFUL) or not callable(agent) else agent()
    if not isinstance(first, Workflow) or not callable(agent):
        raise ValueError(
            "a workflow keeps the state of its run: give serve() a function that makes a Workflow"
        )
    return bridge.serve(MicrosoftWorkflow(agent, first), **options)


_STATEFUL = (Workflow, WorkflowAgent, FunctionalWorkflow, FunctionalWorkflowAgent)


class ConversationState(Struct):
    """What is kept of a conversation."""

    session: dict[str, Any]
    asked: list[dict[str, Any]] = []
    usage: dict[str, int] = {}
    """What the turn has used until it asked."""


class Microsoft:
    """See `bridge.Framework`."""

    package = "agent-framework-core"

    def __init__(self, agent: BaseAgent) -> None:
        self._agent = agent
        self.name = agent.name or ""
        self.description = agent.description or ""
        self.logs_steps = _repeatable(agent)
        options = getattr(agent, "default_options", {})
        self._format = options.get("response_format")
        is_model = isinstance(self._format, type) and issubclass(self._format, BaseModel)
        self.output = self._format if is_model else None

    async def run(self, run: Run) -> Outcome:
        """Run the agent until it ends or asks."""
        kept, session, asked = run.load(_decoded) or (None, None, [])
        session = session or self._agent.create_session(session_id=run.session)
        if run.answers:
            messages = to_messages(run.answers, asked)
        else:
            messages = [Message("user", to_contents(run.parts))]
        report = Report(run, structured=self._format is not None)
        options = {}
        if self.logs_steps:
            sources = [each.source_id for each in self._agent.context_providers]
            options["middleware"] = [LoggedModel(run, report), LoggedTools(run, sources)]
        stream = self._agent.run(messages, stream=True, session=session, **options)
        async for update in stream:
            if not self.logs_steps:
                await report.take(update)
        response = await stream.get_final_response()
        usage = Counter(kept.usage if kept is not None and run.answers else {})
        usage.update(usage_of(response))
        requests = response.user_input_requests
        state = self._state(run, session, requests, usage)
        if requests:
            return Outcome(state=state, questions=tuple(map(to_question, requests)))
        result = await self._result(run, response)
        return Outcome(state=state, result=result, usage=dict(usage))

    async def _result(self, run: Run, response: Any) -> Any:
        """The structured result, if there is one. JSON that does not fit is written as text."""
        if self._format is None:
            return None
        try:
            return to_jsonable_python(response.value, serialize_unknown=True)
        except ValueError:  # the model has answered in words
            texts = [message.text for message in response.messages if message.role == "assistant"]
            if texts and Report.is_json(texts[-1]):
                await run.write(texts[-1])
            return None

    def _state(
        self, run: Run, session: AgentSession, asked: Sequence[Content], usage: Any
    ) -> bytes:
        """What the next run needs."""
        kept = ConversationState(session.to_dict())
        if asked:
            kept.asked, kept.usage = [each.to_dict() for each in asked], dict(usage)
        history = _history(kept.session["state"])

        def encode(messages: list[dict[str, Any]]) -> bytes:
            history["messages"] = messages
            return msgspec.json.encode(kept)

        messages = history.get("messages", [])
        if (asked and self.logs_steps) or not messages:
            return msgspec.json.encode(kept)  # if it asks, what was logged tells it again
        if len(run.pack(encode(messages))) > LIMIT:
            messages = [_without_data(message) for message in messages]
        return run.fitting(messages, encode, _starts)


def _repeatable(agent: BaseAgent) -> bool:
    """Whether the agent does the same when it is run again with the same responses of the model and
    the tools: nothing else in it has an effect, or changes what the model has said."""
    if type(agent) is not Agent or agent.middleware or agent.compaction_strategy:
        return False
    if any(not isinstance(each, InMemoryHistoryProvider) for each in agent.context_providers):
        return False
    client = agent.client
    return (
        isinstance(client, ChatMiddlewareLayer)
        and isinstance(client, FunctionInvocationLayer)
        and not (client.chat_middleware or client.function_middleware)
        and not getattr(client, "compaction_strategy", None)
    )


def _decoded(data: bytes) -> tuple[ConversationState, AgentSession, list[Content]]:
    kept = msgspec.json.decode(without_gone(data, _without_file), type=ConversationState)
    asked = [Content.from_dict(each) for each in kept.asked]
    return kept, AgentSession.from_dict(kept.session), asked


def _history(state: dict[str, Any]) -> dict[str, Any]:
    """The part of a session's state that has the messages."""
    parts = [
        part
        for part in state.values()
        if isinstance(part, dict) and isinstance(part.get("messages"), list)
    ]
    return max(parts, key=lambda part: len(part["messages"]), default={})


def _starts(message: dict[str, Any]) -> bool:
    """Whether a message of the user begins here, so that no result is without its call."""
    kinds = {content.get("type") for content in message.get("contents", ())}
    return message.get("role") == "user" and "function_approval_response" not in kinds


def _without_data(message: dict[str, Any]) -> dict[str, Any]:
    """A message with a note instead of each file in it."""

    def note(content: Any) -> Any:
        if isinstance(content, list):
            return [note(each) for each in content]
        if not isinstance(content, dict):
            return content
        return _without_file(content) or {key: note(value) for key, value in content.items()}

    return {**message, "contents": note(message.get("contents", []))}


def _without_file(content: dict[str, Any]) -> dict[str, Any] | None:
    """A note instead of a file; None if the content is no file."""
    return {"type": "text", "text": GONE} if content.get("type") == "data" else None
