"""Serves a flow of CrewAI. A run of the flow up to its end or its question is one step of the task.

The bridge passes the question of `@human_feedback` to the client; with the answer, the flow
continues after the method that asked. CrewAI cannot continue in the middle of a method: if a method
asks with `Flow.ask`, the flow repeats everything since the last feedback, now with the answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from crewai.core.providers.human_input import set_provider
from crewai.events.stream_context import add_stream_sink
from crewai.events.types.flow_events import MethodExecutionStartedEvent
from crewai.events.types.tool_usage_events import ToolUsageFinishedEvent, ToolUsageStartedEvent
from crewai.events.utils.console_formatter import set_suppress_console_output
from crewai.flow import Flow, HumanFeedbackPending, HumanFeedbackResult, PendingFeedbackContext
from crewai.flow.flow_definition import FlowDefinition
from msgspec import UNSET, Struct
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from dragoman import UserError
from dragoman.bridges.bridge import Outcome, Question, Run
from dragoman.bridges.crewai.agent_copies import Feedback
from dragoman.bridges.crewai.flow_providers import FlowStore, ask_clients, store_of
from dragoman.bridges.crewai.logged_calls import Calls
from dragoman.bridges.crewai.messages import data_of, message_of, result_of, said
from dragoman.bridges.saved_state import LIMIT

logger = logging.getLogger("dragoman")
FlowKind: TypeAlias = type[Flow[Any]] | FlowDefinition
TEXTS = ("message", "query", "question", "input", "text", "topic")
"""Fields of a flow's state that take the text of a message, if there are several fields."""
FEEDBACK = "feedback"
"""The id of the question of a method with `@human_feedback`."""


class ConversationState(Struct):
    """What a flow needs to continue."""

    state: dict[str, Any] | None = None
    """The state that its next run begins with; None if a store of the user's has it."""
    pending: dict[str, Any] | None = None
    """Which method has asked for feedback."""
    answers: dict[str, tuple[str, bool]] = {}
    """What the client has said since then."""
    usage: dict[str, int] = {}
    """What the runs of this turn have used."""


class CrewAIFlow:
    """See `bridge.Framework`. Each run has a flow of its own: a flow keeps its state."""

    package = "crewai"
    logs_steps = False
    output = None

    def __init__(self, flow: FlowKind, inputs: Sequence[str] = ()) -> None:
        if not isinstance(flow, FlowDefinition) and not (
            isinstance(flow, type) and issubclass(flow, Flow)
        ):
            raise ValueError("a flow keeps the state of its run: give serve() its class")
        self._flow = flow
        about = flow if isinstance(flow, FlowDefinition) else flow.flow_definition()
        if about.conversational is not None and about.conversational.enabled:
            raise ValueError(
                "conversational flows are not served: CrewAI runs a turn of theirs in one call, "
                "which can neither be stopped nor go on after a question"
            )
        if not any(method.is_start for method in about.methods.values()):
            raise ValueError(
                "the flow has no method that starts it (CrewAI does not see those of a parent)"
            )
        self._methods = about.methods
        self.name = about.name
        self.description = about.description or ""
        made = self._made()
        self._state = made.state
        fields = type(made.state).model_fields if isinstance(made.state, BaseModel) else {}
        self._inputs = tuple(inputs) or tuple(name for name in fields if name != "id")
        self._text_field = _text_field(self._inputs, chosen=bool(inputs))
        self._own = store_of(made, about)
        ask_clients()

    def _made(self, **options: Any) -> Flow[Any]:
        if isinstance(self._flow, FlowDefinition):
            return Flow.from_declaration(contents=self._flow, **options)
        return self._flow(**options)

    def _restored(self, store: FlowStore) -> Flow[Any]:
        """The flow that waits for feedback."""
        options: dict[str, Any] = {"persistence": store, "stream": False}
        if isinstance(self._flow, FlowDefinition):
            return Flow.from_pending("", definition=self._flow, **options)
        return self._flow.from_pending("", **options)

    async def run(self, run: Run) -> Outcome:
        """Run the flow until it ends or asks."""
        kept = run.load(self._loaded) or ConversationState()
        if not run.answers:  # a task before this one may have ended while it waited
            kept = ConversationState(kept.state)
        answers = kept.answers | {each.id: said(each) for each in run.answers}
        calls = Calls(run, {}, answers)
        given, files = self._given(run)
        store = FlowStore(self._own, kept.state, kept.pending, self._methods)
        flows: list[Flow[Any]] = []

        async def go_on() -> Any:
            if kept.pending is not None:
                flows.append(self._restored(store))
                return await flows[0].resume_async(answers[FEEDBACK][0])
            flows.append(self._made(persistence=store, stream=False))
            return await flows[0].kickoff_async(inputs=given, input_files=files or None)

        def work() -> Any:
            set_provider(Feedback(calls))
            set_suppress_console_output(True)
            add_stream_sink(lambda _, event: _collect(calls, event))
            return asyncio.run(calls.stoppable(go_on()))

        ended = await calls.run(work, lambda event: _report(run, event))
        (flow,) = flows
        usage = _added(kept.usage, flow)
        if ended.question is not None:
            kept = ConversationState(kept.state, kept.pending, answers, usage)
            return Outcome(state=_encoded(run, kept), questions=(ended.question,))
        if isinstance(pending := ended.result, HumanFeedbackPending):
            kept = ConversationState(store.state, store.pending, usage=usage)
            return Outcome(state=_encoded(run, kept), questions=(_question(pending.context),))
        text, result = _result(ended.result)
        await run.write(text)
        return Outcome(state=self._ended(run, flow), result=result, usage=usage)

    def _loaded(self, data: bytes) -> ConversationState:
        """Where the last run ended; raises an error if the flow cannot continue there."""
        kept = msgspec.json.decode(data, type=ConversationState)
        if kept.state is not None and isinstance(self._state, BaseModel):
            type(self._state).model_validate(kept.state)
        if kept.pending is not None:
            name = PendingFeedbackContext.from_dict(kept.pending).method_name
            if self._methods[name].human_feedback is None:
                raise ValueError(f"the method {name} of the flow asks for no feedback now")
        return kept

    def _given(self, run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
        """The inputs of the flow, and the files of the message by their names."""
        text, files = message_of([part for part in run.parts if part.data is UNSET])
        given, allowed = data_of(run.parts), self._inputs
        if not allowed:
            given.pop("id", None)  # by an id, a client would get the state of somebody else
        unfit = UserError(f"The message must have data with the fields {', '.join(allowed)}")
        if allowed and not set(given) <= set(allowed):
            raise unfit
        if text and self._text_field not in given:
            if not self._text_field:
                raise unfit
            given[self._text_field] = text
        if isinstance(state := self._state, BaseModel):
            try:
                type(state).model_validate({**state.model_dump(), **given})
            except ValidationError:
                raise unfit from None
        return {**given, "id": run.session}, files

    def _ended(self, run: Run, flow: Flow[Any]) -> bytes:
        """What the next task of the conversation begins with."""
        if self._own is not None:
            return b""
        try:
            data = msgspec.json.encode(ConversationState(to_jsonable_python(flow.state)))
        except (PydanticSerializationError, ValueError) as error:
            kind = type(error).__name__  # its text may have values of the conversation
            logger.warning("the state of a flow cannot be written as JSON (%s)", kind)
            return b""
        return data if len(run.pack(data)) <= LIMIT else b""  # the next message begins anew


def _text_field(fields: Sequence[str], *, chosen: bool) -> str:
    """The field that takes the text of a message; empty if that is not clear."""
    if chosen or len(fields) == 1:
        return fields[0]
    return next((each for each in TEXTS if each in fields or not fields), "")


def _collect(calls: Calls, event: Any) -> None:
    kinds = ToolUsageStartedEvent | ToolUsageFinishedEvent | MethodExecutionStartedEvent
    if isinstance(event, kinds):
        calls.report(event)


async def _report(run: Run, event: Any) -> None:
    """Tell the client what a flow does."""
    if isinstance(event, ToolUsageStartedEvent):
        await run.tool(event.tool_name)
    elif isinstance(event, ToolUsageFinishedEvent):
        await run.detail(f"{event.tool_name} returned {event.output}")
    else:
        await run.detail(f"Running {event.method_name}")


def _question(context: PendingFeedbackContext) -> Question:
    """What a method asks its human: whether its output is right."""
    shown = context.method_output
    if not isinstance(shown, str):
        plain = to_jsonable_python(shown, serialize_unknown=True)
        shown = json.dumps(plain, ensure_ascii=False)
    outcomes = f" ({', '.join(context.emit)})" if context.emit else ""
    return Question(FEEDBACK, f"{shown}\n\n{context.message}{outcomes}")


def _encoded(run: Run, kept: ConversationState) -> bytes:
    """The state of a flow that waits."""
    data = msgspec.json.encode(kept)
    if (size := len(run.pack(data))) > LIMIT:
        raise UserError(f"The flow's state has {size} bytes; {LIMIT} are allowed")
    return data


def _result(output: Any) -> tuple[str, Any]:
    """The text of what a flow returns, and what of it is structured."""
    if isinstance(output, HumanFeedbackResult):
        output = output.output
    if output is None or isinstance(output, str):
        return output or "", None
    if hasattr(output, "raw") and hasattr(output, "pydantic"):  # of an agent or a crew
        text, structured = result_of(output)
        return ("" if structured is not None else text), structured
    return "", to_jsonable_python(output, serialize_unknown=True)


def _added(used: dict[str, int], flow: Flow[Any]) -> dict[str, int]:
    """What the runs of a turn have used together."""
    found = flow.usage_metrics
    now = {
        "requests": found.successful_requests,
        "input_tokens": found.prompt_tokens,
        "output_tokens": found.completion_tokens,
    }
    return dict(Counter(used) + Counter(now))
