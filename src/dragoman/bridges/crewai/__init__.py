"""Serves an agent, a crew or a flow of CrewAI; for flows, see `flows`. Each call of a model or a
tool of an agent or a crew is a step of the task: a turn that is run again makes none of them twice.

CrewAI cannot pause a run and continue it later: after a question the bridge runs it again, and the
calls of the first run return their logged results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, Unpack

import msgspec
from crewai import Agent as CrewAgent
from crewai import Crew
from crewai.core.providers.human_input import set_provider
from crewai.events.stream_context import add_stream_sink
from crewai.events.types.llm_events import LLMStreamChunkEvent
from crewai.events.types.task_events import TaskCompletedEvent
from crewai.events.types.tool_usage_events import ToolUsageFinishedEvent, ToolUsageStartedEvent
from crewai.flow import Flow
from crewai.flow.flow_definition import FlowDefinition
from msgspec import Struct
from pydantic import BaseModel

from dragoman import Agent, UserError
from dragoman.bridges import bridge, third_party_internals
from dragoman.bridges.bridge import BridgeOptions, Outcome, Run
from dragoman.bridges.crewai.agent_copies import Feedback, Log, copied
from dragoman.bridges.crewai.flows import CrewAIFlow
from dragoman.bridges.crewai.logged_calls import CALLS, Calls
from dragoman.bridges.crewai.messages import data_of, message_of, result_of, said
from dragoman.bridges.saved_state import LIMIT

__all__ = ["ask", "serve"]


Kind: TypeAlias = CrewAgent | Crew
Served: TypeAlias = Kind | type[Flow[Any]] | FlowDefinition


def serve(
    agent: Served,
    *,
    approve: Iterable[str] = (),
    output: type[BaseModel] | None = None,
    inputs: Sequence[str] = (),
    **options: Unpack[BridgeOptions],
) -> Agent:
    """Serve an agent, a crew, or the class of a flow.

    The client approves each call of the tools that `approve` names. `output` is the type of an
    agent's structured results; those of a crew are in its tasks. `inputs` names the fields of a
    flow's state that a client may set, all by default; the first takes the text of a message."""
    third_party_internals.check_version("crewai")
    if isinstance(agent, CrewAgent | Crew):
        if inputs:
            raise ValueError("inputs are for flows; a crew's are in the texts of its tasks")
        return bridge.serve(CrewAI(agent, approve, output), **options)
    if tuple(approve) or output is not None:
        raise ValueError("approve and output are for agents and crews; a flow has its own")
    return bridge.serve(CrewAIFlow(agent, inputs), **options)


def ask(question: str) -> str:
    """Ask the client, from a tool. The tool begins again when the answer has come."""
    calls = CALLS.get(None)
    if calls is None:
        raise RuntimeError("nobody can be asked: the agent is not served by dragoman")
    said, _ = calls.ask(question, None)
    return said


class State(Struct):
    """What a run passes on: to the next run of the same turn, and to the next task."""

    messages: list[dict[str, str]] = []
    """What was said in earlier tasks."""
    calls: dict[str, Any] = {}
    """The results of this turn's calls."""
    answers: dict[str, tuple[str, bool]] = {}


class CrewAI:
    """See `bridge.Framework`."""

    package = "crewai"
    logs_steps = False  # a run is a step, with its calls inside

    def __init__(
        self, agent: Kind, approve: Iterable[str] = (), output: type[BaseModel] | None = None
    ) -> None:
        self._agent = agent
        self._approve = frozenset(approve)
        self.output = output
        if isinstance(agent, Crew):
            if output is not None:
                raise ValueError("output is for agents; the tasks of a crew say what they return")
            default = Crew.model_fields["name"].default
            self.name = "" if agent.name == default else agent.name or ""
        else:
            self.name = agent.role
        self.description = ""  # goal and backstory are the prompt

    async def run(self, run: Run) -> Outcome:
        """Run the agent until it ends or asks."""
        saved = run.load(_decoded) or State()
        known = saved if run.answers else State()
        answers = known.answers | {each.id: said(each) for each in run.answers}
        calls = Calls(run, known.calls, answers)
        log = Log(calls, self._approve)
        text, files = message_of(run.parts)
        message = {"role": "user", "content": text}
        given = self._inputs(run, text)
        messages = [*saved.messages, message]
        report = Report(run)
        ended = await calls.run(
            lambda: self._work(log, calls, messages, given, files), report.event
        )
        if ended.question is not None:
            state = State(saved.messages, calls.known, answers)
            packed = msgspec.json.encode(state)
            if len(run.pack(packed)) > LIMIT:
                raise UserError("The crew cannot wait for an answer: it has done too much")
            return Outcome(state=packed, questions=(ended.question,))
        raw, structured = result_of(ended.result)
        await report.end("" if structured is not None else raw)
        messages = [*messages, {"role": "assistant", "content": raw}]
        kept = messages if isinstance(self._agent, CrewAgent) else []
        kept_state = run.fitting(kept, _encoded, lambda message: message["role"] == "user")
        return Outcome(state=kept_state, result=structured, usage=log.used)

    def _inputs(self, run: Run, text: str) -> dict[str, Any]:
        """The inputs of a crew: data by their names, and the text for the only one that is left."""
        if not isinstance(self._agent, Crew):
            return {}
        names = set(self._agent.fetch_inputs())
        given = data_of(run.parts)
        left = sorted(names - set(given))
        if len(left) == 1 and text:
            given[left.pop()] = text
        if left:
            raise UserError(f"The message must have data with the fields {', '.join(left)}")
        return given

    def _work(
        self,
        log: Log,
        calls: Calls,
        messages: list[dict[str, str]],
        given: dict[str, Any],
        files: dict[str, Any],
    ) -> Any:
        """What a copy of the agent returns. It runs in a thread."""
        set_provider(Feedback(calls))
        agent = copied(self._agent, log)
        answers = _answers(agent)
        add_stream_sink(lambda _, event: log.seen(event, answers))
        if isinstance(agent, Crew):
            return agent.kickoff(inputs=given, input_files=files or None)
        last: Any = {**messages[-1], "files": files} if files else messages[-1]
        return agent.kickoff([*messages[:-1], last], response_format=self.output)


class Report:
    """Tells the client what an agent does."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._said = ""
        self._held = ""
        """What the model has written and is not said: it may be a thought."""

    async def event(self, event: Any) -> None:
        """Report an event of CrewAI."""
        if isinstance(event, LLMStreamChunkEvent):
            await self._chunk(event.chunk)
        elif isinstance(event, ToolUsageStartedEvent):
            self._held = ""
            await self._run.tool(event.tool_name)
        elif isinstance(event, ToolUsageFinishedEvent):
            await self._run.detail(f"{event.tool_name} returned {event.output}")
        elif isinstance(event, TaskCompletedEvent):
            await self._run.detail(str(event.output.raw))

    async def _chunk(self, text: str) -> None:
        """The next tokens: of a model that writes down its thoughts, only the final answer."""
        self._held += text
        begin = self._held.lstrip()
        if any(each.startswith(begin[: len(each)]) for each in ("Thought:", "Action:", "Final A")):
            _, marked, answer = self._held.partition("Final Answer:")
            if not marked or not answer.strip():
                return
            if self._said.endswith(answer.lstrip()) or not answer.lstrip():
                return
            text = answer.lstrip()
            self._held = "\n"  # what follows is answer, too
        elif len(self._held) > len(text) and self._held.strip() and not self._said:
            text = self._held.lstrip("\n")
        self._said += text
        await self._run.write(text)

    async def end(self, raw: str) -> None:
        """Say the answer, if it has not been streamed."""
        if raw.strip() and not self._said.strip().endswith(raw.strip()):
            await self._run.write(raw)


def _answers(agent: Kind) -> Callable[[Any], bool]:
    """Whether text that is streamed is of the answer: in a crew, that of its last task, unless
    somebody looks at it before."""
    if not isinstance(agent, Crew):
        return lambda event: True
    last = agent.tasks[-1]
    return lambda event: not last.human_input and event.task_id == str(last.id)


def _decoded(data: bytes) -> State:
    state = msgspec.json.decode(data, type=State)
    if not all({"role", "content"} <= set(message) for message in state.messages):
        raise ValueError("a message has no role or no content")
    return state


def _encoded(messages: list[dict[str, str]]) -> bytes:
    return msgspec.json.encode(State(messages=messages))
