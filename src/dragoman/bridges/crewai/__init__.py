"""Serves an agent or a crew of CrewAI. Each call of a model or a tool is a step of the task: a turn
that is run again makes none of them twice.

CrewAI cannot stop in the middle of a run and go on later: after a question it is run again, and the
calls that it has made before get the results that they had.
"""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from typing import Any, TypeAlias, Unpack

import msgspec
from crewai import Agent as CrewAgent
from crewai import Crew
from crewai.core.providers.human_input import set_provider
from crewai.events.stream_context import add_stream_sink
from crewai.events.types.llm_events import LLMStreamChunkEvent
from crewai.events.types.task_events import TaskCompletedEvent
from crewai.events.types.tool_usage_events import ToolUsageFinishedEvent, ToolUsageStartedEvent
from msgspec import UNSET, Struct
from msgspec.structs import replace
from pydantic import BaseModel

from dragoman import Agent, Part, UserError
from dragoman.bridges import bridge
from dragoman.bridges.bridge import Answer, BridgeOptions, Outcome, Question, Run
from dragoman.bridges.crewai.calls import Asked, Calls, Stopped
from dragoman.bridges.crewai.copies import Feedback, Work, copied
from dragoman.bridges.state import LIMIT

Served: TypeAlias = CrewAgent | Crew
_CALLS: ContextVar[Calls] = ContextVar("calls")


def serve(
    agent: Served,
    *,
    approve: Iterable[str] = (),
    output: type[BaseModel] | None = None,
    **options: Unpack[BridgeOptions],
) -> Agent:
    """Serve an agent or a crew. The client approves each call of the tools that `approve` names.
    `output` is the type of an agent's structured results; those of a crew are in its tasks."""
    return bridge.serve(CrewAI(agent, approve, output), **options)


def ask(question: str) -> str:
    """Ask the client, from a tool. The tool begins again when the answer has come."""
    calls = _CALLS.get(None)
    if calls is None:
        raise RuntimeError("nobody can be asked: the agent is not served by dragoman")
    said, _ = calls.ask(question, None)
    return said


class State(Struct):
    """What goes on: from one run to the next of the same turn, and to the next task."""

    number: int = 0
    """The number of the run in its turn."""
    messages: list[dict[str, str]] = []
    """What was said in earlier tasks."""
    calls: dict[str, Any] = {}
    """The results of this turn's calls."""
    answers: dict[str, tuple[str, bool]] = {}


class Ended(Struct):
    """The thread of a crew has ended."""

    result: Any = None
    question: Question | None = None
    error: BaseException | None = None


class CrewAI:
    """See `bridge.Framework`."""

    package = "crewai"
    logs_steps = True

    def __init__(
        self, agent: Served, approve: Iterable[str] = (), output: type[BaseModel] | None = None
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
        number = saved.number + 1 if run.answers else 0

        async def once() -> Outcome:
            outcome = await self._run(run, saved, number)
            return replace(outcome, state=run.pack(outcome.state))

        found: Outcome = await run.turn.step(f"run:{number}", once, returns=Outcome)
        return replace(found, state=run.unpack(found.state))

    async def _run(self, run: Run, saved: State, number: int) -> Outcome:
        """One run, whose calls are steps."""
        known = saved if run.answers else State()
        answers = known.answers | {each.id: _said(each) for each in run.answers}
        calls = Calls(run, known.calls, answers)
        work = Work(calls, self._approve)
        text, files = _message(run.parts)
        said = {"role": "user", "content": text}
        given = self._inputs(run, text, files)
        thread = (self._work, work, calls, [*saved.messages, said], given, files)
        # a thread of its own: it waits for its steps, which may need the threads of a pool
        threading.Thread(target=contextvars.copy_context().run, args=thread, daemon=True).start()
        report = Report(run)
        try:
            while not isinstance(event := await calls.told(), Ended):
                await report.event(event)
        finally:
            calls.stop()
        if event.error is not None:
            raise event.error
        if event.question is not None:
            state = State(number, saved.messages, calls.known, answers)
            packed = msgspec.json.encode(state)
            if len(run.pack(packed)) > LIMIT:
                raise UserError("The crew cannot wait for an answer: it has done too much")
            return Outcome(state=packed, questions=(event.question,))
        raw, structured = _result(event.result)
        await report.end("" if structured is not None else raw)
        messages = [*saved.messages, said, {"role": "assistant", "content": raw}]
        kept = messages if isinstance(self._agent, CrewAgent) else []
        kept_state = run.fitting(kept, _encoded, lambda message: message["role"] == "user")
        return Outcome(state=kept_state, result=structured, usage=work.used)

    def _inputs(self, run: Run, text: str, files: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a crew: data by their names, and the text for the only one that is left."""
        if not isinstance(self._agent, Crew):
            return {}
        names = set(self._agent.fetch_inputs())
        found = [part.data for part in run.parts if part.data is not UNSET]
        given = {k: v for data in found if isinstance(data, dict) for k, v in data.items()}
        left = sorted(names - set(given))
        if len(left) == 1 and text:
            given[left.pop()] = text
        if left:
            raise UserError(f"The message must have data with the fields {', '.join(left)}")
        return given

    def _work(
        self,
        work: Work,
        calls: Calls,
        messages: list[dict[str, str]],
        given: dict[str, Any],
        files: dict[str, Any],
    ) -> None:
        """Run a copy of the agent, in a thread."""
        with suppress(Stopped):
            try:
                _CALLS.set(calls)
                set_provider(Feedback(calls))
                agent = copied(self._agent, work)
                answers = _answers(agent)
                add_stream_sink(lambda _, event: work.seen(event, answers))
                if isinstance(agent, Crew):
                    found: Any = agent.kickoff(inputs=given, input_files=files or None)
                else:
                    last_one = {**messages[-1], "files": files}
                    asked: Any = [*messages[:-1], last_one if files else messages[-1]]
                    found = agent.kickoff(asked, response_format=self.output)
                calls.tell(Ended(found))
            except Asked as asked:
                calls.tell(Ended(question=asked.question))
            except BaseException as error:  # noqa: BLE001 - raised where the thread was begun
                calls.tell(Ended(error=error))


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


def _answers(agent: Served) -> Callable[[Any], bool]:
    """Whether text that is streamed is of the answer: in a crew, that of its last task, unless
    somebody looks at it before."""
    if not isinstance(agent, Crew):
        return lambda event: True
    last = agent.tasks[-1]
    return lambda event: not last.human_input and event.task_id == str(last.id)


def _decoded(data: bytes) -> State:
    return msgspec.json.decode(data, type=State)


def _encoded(messages: list[dict[str, str]]) -> bytes:
    return msgspec.json.encode(State(messages=messages))


def _said(answer: Answer) -> tuple[str, bool]:
    text = answer.text if answer.data is None else json.dumps(answer.data, ensure_ascii=False)
    return text, answer.approved


def _message(parts: Sequence[Part]) -> tuple[str, dict[str, Any]]:
    """The client's message: a text, and files by their names."""
    lines, files = [], {}
    for number, part in enumerate(parts, 1):
        if part.text is not None:
            lines.append(part.text)
        elif part.data is not UNSET:
            lines.append(json.dumps(part.data, ensure_ascii=False))
        else:
            files[part.filename or f"file {number}"] = _file(part)
    return "\n".join(lines), files


def _file(part: Part) -> Any:
    """A file of the message as CrewAI takes it."""
    try:
        files: Any = import_module("crewai_files")
    except ImportError:
        raise UserError("This agent takes no files: crewai-files is not installed") from None
    if part.raw is None:
        return files.File(source=files.FileUrl(url=part.url))

    class Typed(files.FileBytes):
        """A file whose type the client has said; CrewAI would guess it."""

        @property
        def content_type(self) -> str:
            return part.media_type or str(super().content_type)

    return files.File(source=Typed(data=part.raw, filename=part.filename or None))


def _result(output: Any) -> tuple[str, Any]:
    """The text of a result, and what of it is structured."""
    if isinstance(model := output.pydantic, BaseModel):
        return str(output.raw), model.model_dump(mode="json")
    return str(output.raw), getattr(output, "json_dict", None)
