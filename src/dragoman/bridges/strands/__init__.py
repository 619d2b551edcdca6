"""Serves an agent of Strands. Each call of its model or of a tool is a step of the task: a turn
that is run again makes none of them twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias, Unpack
from weakref import WeakKeyDictionary

from msgspec import UNSET
from pydantic import BaseModel
from strands import Agent as StrandsAgent
from strands import Snapshot
from strands.agent import AgentResult
from strands.interrupt import Interrupt
from strands.middleware import (
    ExecuteToolContext,
    ExecuteToolStage,
    InvokeModelContext,
    InvokeModelStage,
    ModelStopReason,
    ToolResultEvent,
    TypedEvent,
)
from strands.types.session import decode_bytes_values, encode_bytes_values

from dragoman import Agent, UserError
from dragoman.bridges import bridge, third_party_internals
from dragoman.bridges.bridge import Answer, BridgeOptions, Outcome, Question, Run, question_about
from dragoman.bridges.steps import Steps
from dragoman.bridges.strands.agent_copies import check, copied, quiet, remembering
from dragoman.bridges.strands.messages import content, decoded, encoded, file
from dragoman.bridges.text_answers import value_of

__all__ = ["serve"]


Make: TypeAlias = Callable[[str], StrandsAgent]
"""A function that makes the agent of one conversation, given the conversation's name."""
Events: TypeAlias = AsyncGenerator[TypedEvent, None]


APPROVAL = "approval:"
"""Begins the id of a question that is an approval."""
WORDS = ("question", "message", "prompt", "reason")
"""The keys of an interrupt's reason that have the words of a question."""


def serve(
    agent: StrandsAgent | Make,
    *,
    output: type[BaseModel] | None = None,
    **options: Unpack[BridgeOptions],
) -> Agent:
    """Serve an agent, or the agents that a function makes: one for each conversation, with a
    session manager of its own if it is to keep the conversation. `output` is the type of its
    structured results."""
    third_party_internals.check_version(Strands.package)
    return bridge.serve(Strands(agent, output), **options)


class Strands:
    """See `bridge.Framework`."""

    package = "strands-agents"
    logs_steps = False  # a run is a step, with its calls inside: after it, no hook is called again

    def __init__(self, agent: StrandsAgent | Make, output: type[BaseModel] | None = None) -> None:
        self._agent = agent
        self.output = output
        self._steps: WeakKeyDictionary[StrandsAgent, Calls] = WeakKeyDictionary()
        self.name = self.description = ""
        if not isinstance(agent, StrandsAgent):
            return
        check(agent)
        self.name = "" if agent.name == "Strands Agents" else agent.name
        self.description = agent.description or ""
        self._first = agent.take_snapshot(preset="session")
        self._log(agent)

    async def run(self, run: Run) -> Outcome:
        """Run the agent until it ends or asks."""
        saved = run.load(decoded)
        number = saved.app_data["run"] + 1 if saved is not None and run.answers else 0
        prompt: Any = _responses(run.answers) if run.answers else content(run.parts)
        if isinstance(self._agent, StrandsAgent):
            agent, kept = copied(self._agent, saved or self._first), False
        else:
            agent = await asyncio.to_thread(self._agent, run.session)
            quiet(agent)
            self._log(agent)
            kept = third_party_internals.has(agent, "session_manager")
            if kept:
                prompt = await _continued(run, agent, number, prompt)
            elif saved is not None:
                agent.load_snapshot(saved)
        for name, other in remembering(agent).items():
            if saved is not None and (found := saved.app_data["agents"].get(name)):
                other.load_snapshot(Snapshot.from_dict(found))
        used = saved.app_data["usage"] if saved is not None and run.answers else {}
        steps = self._steps[agent] = Calls(run)
        report = Report(run)
        if prompt == [] and kept:
            await report.end(agent.messages[-1])
            return Outcome(state=encoded(run, agent, number, used, kept), usage=used)
        result = await self._stream(agent, prompt, steps, report)
        used = _added(used, result, steps.requests)
        state = encoded(run, agent, number, used, kept)
        if result.stop_reason == "interrupt":
            questions = tuple(report.question(each, result) for each in result.interrupts or ())
            return Outcome(state=state, questions=questions)
        await report.end(result.message)
        found = result.structured_output
        structured = None if found is None else found.model_dump(mode="json")
        return Outcome(state=state, result=structured, usage=used)

    async def _stream(
        self, agent: StrandsAgent, prompt: Any, steps: Calls, report: Report
    ) -> AgentResult:
        """Run an agent to its end, or to its questions."""
        wanted = {} if self.output is None else {"structured_output_model": self.output}
        result: AgentResult | None = None
        try:
            while result is None or result.stop_reason == "checkpoint":
                if result is not None:
                    prompt = {"checkpointResume": {"checkpoint": result.checkpoint.to_dict()}}
                async with aclosing(agent.stream_async(prompt, **wanted)) as events:
                    async for event in events:
                        if steps.broken is not None:
                            raise steps.broken
                        result = event.get("result", result)
                        await report.event(event)
        finally:
            agent.cancel()  # a tool that runs in a thread is not stopped by the end of the task
        return result

    def _log(self, agent: StrandsAgent) -> None:
        """Make steps of the calls of an agent, and of its copies, while they belong to a run."""

        def steps(context: InvokeModelContext | ExecuteToolContext) -> Calls | None:
            found = self._steps.get(context.agent)
            # a tool may be called from another thread, outside of the loop
            return found if found and found.loop is asyncio.get_running_loop() else None

        def model(context: InvokeModelContext, call: Any) -> Events:
            found = steps(context)
            return found.model(context, call) if found else call(context)

        def tool(context: ExecuteToolContext, call: Any) -> Events:
            found = steps(context)
            return found.tool(context, call) if found else call(context)

        agent.add_middleware(InvokeModelStage, model)
        agent.add_middleware(ExecuteToolStage, tool)


class Calls:
    """The calls of one run: each is a step of the task."""

    def __init__(self, run: Run) -> None:
        self.loop = asyncio.get_running_loop()
        self.requests = 0
        """How many times the model was called."""
        self.broken: BaseException | None = None
        """Why no step can be made; the agent takes it for an error of a tool."""
        self._run = run
        self._steps = Steps(run)

    def model(self, context: InvokeModelContext, call: Any) -> Events:
        """Call the model."""
        self.requests += 1
        if context.model.stateful:  # what its service remembers is in no log
            return call(context)

        def dump(events: Sequence[TypedEvent]) -> Any:
            stop = next(each for each in reversed(events) if isinstance(each, ModelStopReason))
            return [stop.stop_reason, stop.message, stop.usage, stop.metrics]

        def load(found: Any) -> Iterator[TypedEvent]:
            text = "".join(block.get("text", "") for block in found[1]["content"])
            yield TypedEvent({"data": text, "delta": {"text": text}})
            yield ModelStopReason(*found)

        name = f"model:{len(context.messages)}"
        return self._logged(name, lambda: call(context), dump, load)

    def tool(self, context: ExecuteToolContext, call: Any) -> Events:
        """Call a tool. Its step has also what it has changed of the agent's state."""
        if context.tool is None or context.tool.tool_type == "structured_output":
            return call(context)
        name, id, state = (
            context.tool_use["name"],
            context.tool_use["toolUseId"],
            context.agent.state,
        )
        before = state.get()

        async def perform() -> Events:
            await self._run.tool(name)
            async with aclosing(call(context)) as events:
                async for event in events:
                    yield event

        def dump(events: Sequence[TypedEvent]) -> Any:
            results = [each.tool_result for each in events if isinstance(each, ToolResultEvent)]
            after = state.get()
            changed = {key: after[key] for key in after if after[key] != before.get(key, UNSET)}
            gone = [key for key in before if key not in after]
            return [results[-1], changed, gone] if results else None  # without a result it asks

        def load(found: Any) -> Iterator[TypedEvent]:
            result, changed, gone = found
            for key, value in changed.items():
                state.set(key, value)
            for key in gone:
                state.delete(key)
            yield ToolResultEvent(result)

        return self._logged(f"tool:{name}:{id}", perform, dump, load)

    async def _logged(
        self,
        name: str,
        call: Callable[[], Events],
        dump: Callable[[Sequence[TypedEvent]], Any],
        load: Callable[[Any], Iterator[TypedEvent]],
    ) -> Events:
        """The events of a call, as they come or from the log."""
        failed: list[Exception] = []

        async def make(give: Callable[[TypedEvent], None]) -> list[TypedEvent]:
            seen = []
            try:
                async with aclosing(call()) as running:
                    async for event in running:
                        seen.append(event)
                        give(event)
            except Exception as error:
                failed.append(error)
                raise
            return seen

        def as_json(seen: Sequence[TypedEvent]) -> Any:
            value = encode_bytes_values(dump(seen))
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                return UNSET
            return UNSET if value is None else value

        events = self._steps.stream(name, make, as_json, decode_bytes_values, load)
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            if error not in failed:
                self.broken = error
            raise


class Report:
    """Tells the client what an agent does."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._said = ""
        self._names: dict[str, str] = {}
        """The names of tools, by the ids of their calls."""
        self._asked: dict[str, Any] = {}
        """The calls that interrupts belong to, by the ids of the interrupts."""

    async def event(self, event: dict[str, Any]) -> None:
        """Report an event of the stream."""
        self._asked.update(_interrupted(event))
        if isinstance(text := event.get("data"), str):
            self._said += text
            await self._run.write(text)
        for block in event.get("message", {}).get("content", ()):
            if "toolUse" in block:
                self._names[block["toolUse"]["toolUseId"]] = block["toolUse"]["name"]
            elif "toolResult" in block:
                await self._result(block["toolResult"])

    async def _result(self, result: dict[str, Any]) -> None:
        name = self._names.get(result["toolUseId"], "the tool")
        for block in result["content"]:
            if (part := file(block)) is not None:
                await self._run.file(part)
            else:
                found = block.get("text") or json.dumps(block.get("json"), default=str)
                await self._run.detail(f"{name} returned {found}")

    async def end(self, message: dict[str, Any]) -> None:
        """Report the last message: a hook may have said it, so that nothing was streamed."""
        text = "".join(block.get("text", "") for block in message["content"])
        if not self._said.endswith(text):
            await self._run.write(text)

    def question(self, interrupt: Interrupt, result: AgentResult) -> Question:
        """What an interrupt asks."""
        reason = interrupt.reason
        said = reason if isinstance(reason, str) else ""
        told = json.loads(json.dumps(reason, default=str)) if isinstance(reason, dict) else {}
        shown = interrupt.name if reason is None else json.dumps(reason, default=str)
        asked = question_about(interrupt.id, told, WORDS, said or shown)
        if any(isinstance(told.get(key), str) for key in WORDS):
            said = asked.text
        asks = third_party_internals.raised_inside(interrupt.id)
        if asks or (isinstance(reason, dict) and "question" in reason):
            return asked
        ids = [id for id in self._asked if interrupt.id.endswith(id)]  # with or without a prefix
        calls = [self._asked[min(ids, key=len)]] if ids else _calls(result.message)
        wanted = [{"tool": call["name"], "arguments": call["input"]} for call in calls]
        for each in wanted:
            if each["tool"] not in said:
                said = f"{said} May I call {each['tool']} with {json.dumps(each['arguments'])}?"
        operation = wanted[0] if len(wanted) == 1 else {"tools": wanted}
        id = f"{APPROVAL}{interrupt.id}"
        return Question(id, said.strip() or interrupt.name, approval=True, operation=operation)


def _interrupted(event: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The interrupts of an event, also those of an agent that is a tool, and the calls."""
    if (found := event.get("tool_interrupt_event")) is not None:
        for interrupt in found["interrupts"]:
            yield interrupt.id, found["tool_use"]
    inner = event.get("tool_stream_event", {}).get("data")
    if isinstance(inner, dict):
        yield from _interrupted(inner)


def _calls(message: dict[str, Any]) -> list[Any]:
    return [block["toolUse"] for block in message["content"] if "toolUse" in block]


def _responses(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """The answers, as the agent takes them."""
    found = []
    for answer in answers:
        id = answer.id.removeprefix(APPROVAL)
        if id != answer.id:
            response: Any = "y" if answer.approved else "n"
        else:
            response = value_of(answer)
        found.append({"interruptResponse": {"interruptId": id, "response": response}})
    return found


async def _continued(run: Run, agent: StrandsAgent, number: int, prompt: Any) -> Any:
    """The prompt for an agent whose session may be ahead of the log after a crash: None if it
    continues with its messages, an empty list if it had ended."""
    last = json.dumps(encode_bytes_values(agent.messages[-1:]), default=str)
    place = f"{len(agent.messages)}:{hashlib.sha256(last.encode()).hexdigest()}"

    async def begin() -> str:
        return place

    begun = await run.turn.step(f"begin:{number}", begin) != place
    snapshot = agent.take_snapshot(include=["interrupt_state"])
    state = snapshot.data["interrupt_state"]
    if begun or not run.answers:
        # a question that nobody answers: its task was canceled, or the tool asks again
        if state["activated"]:
            state |= {"interrupts": {}, "context": {}, "activated": False}
            state.pop("pending_tool_execution", None)
            agent.load_snapshot(snapshot)
    elif not {each.id.removeprefix(APPROVAL) for each in run.answers} <= set(state["interrupts"]):
        raise UserError(
            "The agent has gone on with another task of this conversation since it asked, and does "
            "not wait for this answer any more; send your first message again"
        )
    if not begun:
        return prompt
    message = agent.messages[-1]
    ended = message["role"] == "assistant" and not _calls(message)
    return [] if ended else None


def _added(used: dict[str, int], result: AgentResult, requests: int) -> dict[str, int]:
    """What the runs of a turn have used together."""
    usage = result.metrics.accumulated_usage
    now = {
        "requests": requests,
        "input_tokens": usage["inputTokens"],
        "output_tokens": usage["outputTokens"],
    }
    return {key: used.get(key, 0) + value for key, value in now.items()}
