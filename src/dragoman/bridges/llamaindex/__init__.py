"""Serves a workflow of LlamaIndex, also `FunctionAgent` and `AgentWorkflow`, which are workflows.

What the workflow's steps have done so far is in the task's log before the next of them begins: a
turn that is run again continues with the steps that had not ended.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias, Unpack

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from workflows import Context, Workflow
from workflows.context.state_store import UnserializableKeyWarning
from workflows.events import (
    Event,
    InputRequiredEvent,
    StartEvent,
    StepStateChanged,
    StopEvent,
    UnhandledEvent,
    WorkflowIdleEvent,
)
from workflows.utils import get_steps_from_instance

from dragoman import Agent, Part, UserError
from dragoman.bridges import bridge, third_party_internals
from dragoman.bridges.bridge import BridgeOptions, Outcome, Question, Run
from dragoman.bridges.llamaindex.messages import (
    AskingEvent,
    answer_class,
    block_of,
    count,
    fields_of,
    joined,
    note_of,
    output_of,
    parts_of,
    question_of,
    response,
    start_event,
)
from dragoman.bridges.llamaindex.steps import BARRIER, Barrier, RunningWorkflow, with_barrier
from dragoman.bridges.saved_state import LIMIT, change, changed, without_gone

__all__ = ["serve"]


logger = logging.getLogger("dragoman")
Start: TypeAlias = str | Callable[[Sequence[Part]], StartEvent]
CORE = "llama_index.core"
COSTLY = frozenset(("run_agent_step", "call_tool"))
"""The steps of an agent that call a model or a tool; its other steps only pass something on."""
TAIL = 1000
"""How much of the end of an answer is kept, so that nothing is said twice."""
ROOM = LIMIT - 16 * 1024
"""The most bytes of a workflow's state; the rest is for the questions."""


def serve(
    workflow: Workflow,
    *,
    start: Start = "",
    memory: Callable[[str], Any] | None = None,
    **options: Unpack[BridgeOptions],
) -> Agent:
    """Serve a workflow.

    `start` is the field of the start event that takes the text of a message, or a function that
    makes the start event of the parts of a message. `memory` makes the memory of a conversation, of
    its name, for an agent that is to keep its conversations in a store of yours."""
    third_party_internals.check_version(LlamaIndex.package)
    return bridge.serve(LlamaIndex(workflow, start, memory), **options)


class Place(Struct, frozen=True, kw_only=True):
    """How far a workflow has come."""

    state: bytes
    """Its context and the messages of its memory, as JSON."""
    said: str = ""
    """The end of what it has streamed."""
    used: dict[str, int] = {}
    questions: tuple[Question, ...] = ()
    asked: dict[str, AskingEvent] = {}
    """The events that have asked, by the ids of the questions."""
    ended: bool = False
    result: Any = None


class LlamaIndex:
    """See `bridge.Framework`."""

    package = "llama-index-workflows"
    logs_steps = True

    def __init__(
        self, workflow: Workflow, start: Start = "", memory: Callable[[str], Any] | None = None
    ) -> None:
        self._start = start
        self._memory = memory
        self._agent = workflow.start_event_class.__module__.startswith(f"{CORE}.agent.")
        if memory is not None and not self._agent:
            raise ValueError("memory is for agents; this workflow is not one")
        about = workflow
        if self._agent and isinstance(agents := getattr(workflow, "agents", None), dict):
            about = agents[getattr(workflow, "root_agent", "")]
        named = isinstance(name := getattr(about, "name", None), str) and self._agent
        fields = getattr(type(about), "model_fields", {}) if named else {}
        self.name = str(name) if named and name != fields["name"].default else ""
        described = str(getattr(about, "description", "")) if named else ""
        self.description = described if named and described != fields["description"].default else ""
        self.output = output_of(workflow, about)
        steps = get_steps_from_instance(workflow)
        self._held = frozenset(steps) & COSTLY if self._agent else frozenset(steps)
        self._workflow = with_barrier(workflow, self._held)

    async def run(self, run: Run) -> Outcome:
        """Run the workflow until it ends or asks."""
        place = run.load(self._loaded) or Place(state=b"")
        live: list[RunningWorkflow] = []
        try:
            while True:
                before = run.pack(place.state)
                found = await run.turn.step("workflow", self._step, run, live, place, returns=Place)
                place = replace(found, state=run.unpack(changed(before, found.state)))
                if place.ended or place.questions:
                    break
        finally:
            for each in live:
                await each.stop()
        if place.questions:
            return Outcome(state=msgspec.msgpack.encode(place), questions=place.questions)
        state = msgspec.msgpack.encode(Place(state=place.state)) if place.state else b""
        return Outcome(state=state, result=place.result, usage=dict(place.used))

    def _loaded(self, data: bytes) -> Place:
        """Where the run before has ended; raises an error if that cannot be read."""
        place = msgspec.msgpack.decode(data, type=Place)
        self._context(place)
        return place

    def _context(self, place: Place) -> tuple[Context | None, list[Any]]:
        """The context to continue with, and the messages of the agent's memory."""
        if not place.state:
            return None, []
        saved = json.loads(without_gone(place.state, note_of))
        messages = saved["messages"]
        if messages:
            kind = import_module(f"{CORE}.llms").ChatMessage
            messages = [kind.model_validate(message) for message in messages]
        return Context.from_dict(self._workflow, saved["context"]), messages

    async def _step(self, run: Run, live: list[RunningWorkflow], place: Place) -> Place:
        """Go on. The log gets what is new in the state."""
        found = await self._advance(run, live, place)
        return replace(found, state=change(run.pack(place.state), run.pack(found.state)))

    async def _advance(self, run: Run, live: list[RunningWorkflow], place: Place) -> Place:
        """Go on, until something is to be logged: the next steps begin, it asks or it ends."""
        if not live:
            live.append(await self._begin(run, place))
        (now,) = live
        now.barrier.open()
        async for event in now.events():
            if event is None:  # steps are at the barrier
                if state := await self._state(now):
                    return Place(state=state, said=now.said, used=dict(now.used))
                now.barrier.open()  # it cannot be logged: a crash repeats more
            elif isinstance(event, WorkflowIdleEvent):
                if now.moved:  # otherwise, the answers that were sent have not come yet
                    return await self._pause(now)
            elif isinstance(event, InputRequiredEvent):
                now.asked.append(event)
            elif isinstance(event, UnhandledEvent) and not now.moved:
                raise ValueError(f"the workflow takes no {event.event_type} now")
            else:
                await self._report(run, now, event)
        return await self._end(run, now)

    async def _begin(self, run: Run, place: Place) -> RunningWorkflow:
        """Start the workflow, or continue it."""
        ctx, messages = self._context(place)
        goes_on = ctx is not None and ctx.is_running
        saved = json.loads(place.state)["context"] if goes_on else {}
        barrier = Barrier(third_party_internals.begun(saved, self._held))
        token = BARRIER.set(barrier)
        try:
            if goes_on:
                handler = self._workflow.run(ctx=ctx)
            else:
                event = self._message(run.parts)
                handler = self._workflow.run(ctx=ctx, start_event=event)
        finally:
            BARRIER.reset(token)
        now = RunningWorkflow(handler, barrier, place.said, place.used)
        if self._memory is not None:
            await handler.ctx.store.set("memory", self._memory(run.session))
        elif messages:
            memories = import_module(f"{CORE}.memory")
            memory = memories.ChatMemoryBuffer.from_defaults(messages, llm=self._model())
            await handler.ctx.store.set("memory", memory)
        if goes_on and place.asked:
            if any(each["has_requirements"] for each in third_party_internals.waiters(saved)):
                await now.settle()  # until then, an answer would go to all who wait
            for answer in run.answers:
                await handler.send_event(response(place.asked[answer.id], answer))
            now.moved = False
        return now

    def _message(self, parts: Sequence[Part]) -> StartEvent:
        """The client's message as the workflow takes it."""
        if callable(self._start):
            return self._start(parts)
        kind = self._workflow.start_event_class
        if self._agent:
            llms = import_module(f"{CORE}.llms")
            message = llms.ChatMessage(role="user", blocks=[block_of(llms, part) for part in parts])
            return kind(user_msg=message)
        return start_event(kind, parts, self._start)

    def _model(self) -> Any:
        """The model of an agent, or of the first of several."""
        agents = getattr(self._workflow, "agents", None)
        agent = agents[getattr(self._workflow, "root_agent", "")] if agents else self._workflow
        return getattr(agent, "llm", None)

    async def _state(self, now: RunningWorkflow, ended: bool = False) -> bytes:
        """What the workflow needs to continue; if it has ended, what its next run begins with.
        Empty if it cannot be serialized, or is too large."""
        try:
            with warnings.catch_warnings():
                # the framework never writes down a memory: its messages are written down here
                warnings.simplefilter("ignore", UnserializableKeyWarning)
                context = now.handler.ctx.to_dict()
            if ended:
                context = third_party_internals.at_rest(context)
            messages: list[Any] = []
            if self._agent and self._memory is None:
                memory = await now.handler.ctx.store.get("memory", default=None)
                messages = [] if memory is None else await memory.aget_all()
            found = [message.model_dump(mode="json") for message in messages]
            data = joined(context, found)
        except (TypeError, ValueError) as error:
            kind = type(error).__name__  # its text may have values of the conversation
            logger.warning("the state of a workflow cannot be written as JSON (%s)", kind)
            return b""
        starts = [n for n, message in enumerate(messages) if message.role == "user"]
        while ended and len(data) > ROOM and starts:  # forget the oldest messages
            starts = starts[max(1, len(starts) // 2) :]
            data = joined(context, found[starts[0] :] if starts else [])
        return data if len(data) <= ROOM else b""

    async def _report(self, run: Run, now: RunningWorkflow, event: Event) -> None:
        """Report what the workflow streams. What other events have, is known by its names."""
        found = fields_of(event)
        if isinstance(text := found.get("delta"), str):
            if self._speaks(found):
                now.said = (now.said + text)[-TAIL:]
                await run.write(text)
        elif isinstance(name := found.get("tool_name"), str):
            if "tool_output" in found:
                await run.detail(f"{name} returned {found['tool_output']}")
            else:
                await run.tool(name)
        elif type(event).__module__.startswith(f"{CORE}.agent."):
            if type(event).__name__ == "AgentOutput":
                count(now.used, found.get("raw"))
        elif not isinstance(event, StopEvent | StepStateChanged | UnhandledEvent):
            await run.detail(json.dumps(found, default=str))

    def _speaks(self, found: Mapping[str, Any]) -> bool:
        """Whether a delta is text of the answer. Some agents stream their thoughts, too."""
        if not self._agent:
            return True
        agents = getattr(self._workflow, "agents", None) or {}
        agent = agents.get(found.get("current_agent_name"), self._workflow)
        workflow = import_module(f"{CORE}.agent.workflow")
        return not isinstance(agent, workflow.ReActAgent | workflow.CodeActAgent)

    async def _pause(self, now: RunningWorkflow) -> Place:
        """The workflow waits for an answer."""
        unable = UserError(
            "The workflow cannot wait for an answer: its state is too large, or has values that "
            "cannot be written as JSON"
        )
        state = await self._state(now)
        if not state:
            raise unable
        waiters = third_party_internals.waiters(json.loads(state)["context"])
        questions, asked = [], {}
        for number, event in enumerate(now.asked or [None] * len(waiters)):
            found = {} if event is None else fields_of(event)
            kind = answer_class(self._workflow, waiters, number)
            question = question_of(str(number), found, kind)
            questions.append(question)
            found = json.loads(json.dumps(found, default=str))
            asked[question.id] = AskingEvent(kind, found, question.approval)
        if not questions:
            raise ValueError("the workflow waits, and nothing says for what")
        place = Place(
            state=state,
            said=now.said,
            used=dict(now.used),
            questions=tuple(questions),
            asked=asked,
        )
        if len(msgspec.msgpack.encode(place)) > LIMIT:
            raise unable
        return place

    async def _end(self, run: Run, now: RunningWorkflow) -> Place:
        """The workflow has ended; raises the error if it has failed."""
        result = await now.handler
        text, files, structured = parts_of(result)
        if text.strip() and not now.said.strip().endswith(text.strip()[-TAIL:]):
            await run.write(text)
        for file in files:
            await run.file(file)
        state = await self._state(now, ended=True)
        return Place(state=state, used=dict(now.used), ended=True, result=structured)
