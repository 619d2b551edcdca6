"""Serves an agent of smolagents. Each call of its model or of a tool is a step of the task: a turn
that is run again makes none of them twice. So the agent can ask: with the answer, it is run again.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import io
import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, Unpack

from msgspec import UNSET, Struct
from PIL import Image, UnidentifiedImageError
from smolagents import (
    ActionStep,
    AgentAudio,
    AgentImage,
    ChatMessageStreamDelta,
    FinalAnswerStep,
    MultiStepAgent,
)
from smolagents.models import ChatMessageToolCallStreamDelta

from dragoman import Agent, Part
from dragoman.bridges import bridge
from dragoman.bridges.bridge import BridgeOptions, Outcome, Question, Run
from dragoman.bridges.smolagents.agent_copies import AgentCopy, Detail, Used, prepare
from dragoman.bridges.smolagents.json_values import (
    State,
    decoded,
    dumped_steps,
    encoded,
    file_of,
    loaded_steps,
)
from dragoman.bridges.smolagents.logged_calls import Calls, QuestionAsked, Stopped
from dragoman.bridges.text_answers import words_of

__all__ = ["serve"]


Make: TypeAlias = Callable[[], MultiStepAgent]
"""A function that makes an agent."""
ANSWER = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
"""How the arguments of `final_answer` begin, if the answer is text."""
CHARACTERS = re.compile(
    r"""(?: [^"\\] | \\["\\/bfnrt] | \\u(?!d[89ab])[0-9a-f]{4} | \\u[0-9a-f]{4}\\u[0-9a-f]{4} )*""",
    re.IGNORECASE | re.VERBOSE,
)
"""What can be read of a JSON string that is not complete."""


def serve(
    agent: MultiStepAgent | Make, approve: Iterable[str] = (), **options: Unpack[BridgeOptions]
) -> Agent:
    """Serve an agent, or the agents that a function makes, one for each run. The client must
    approve each call of a tool whose name is in `approve`."""
    return bridge.serve(Smolagents(agent, approve), **options)


class Ended(Struct, frozen=True):
    """How the agent's thread has ended."""

    question: Question | None = None
    error: BaseException | None = None


class Smolagents:
    """See `bridge.Framework`."""

    package = "smolagents"
    logs_steps = False  # a run is a step, with its calls inside
    output = None

    def __init__(self, agent: MultiStepAgent | Make, approve: Iterable[str] = ()) -> None:
        self._agent = agent
        self._approve = frozenset(approve)
        self.name = self.description = ""
        if isinstance(agent, MultiStepAgent):
            prepare(agent)
            self.name, self.description = agent.name or "", agent.description or ""

    async def run(self, run: Run) -> Outcome:
        """Run the agent until it ends or asks."""
        saved = run.load(decoded) or State()
        known = saved if run.answers else State()
        answers = known.answers | {each.id: (words_of(each), each.approved) for each in run.answers}
        calls = Calls(run, known.calls, answers)
        copied = await asyncio.to_thread(self._copy, calls)
        memory = copied.agent.memory
        before = len(memory.steps)
        memory.steps += loaded_steps(saved.steps)
        report = Report(run, copied.agent)
        work = (_work, copied, *_task(run.parts, copied.agent.state), calls)
        # a thread of its own: it waits for its steps, which may need the threads of a pool
        threading.Thread(target=contextvars.copy_context().run, args=work, daemon=True).start()
        try:
            while not isinstance(event := await calls.next_event(), Ended):
                await report.event(event)
        finally:
            copied.interrupt()
            await calls.stop()
        if event.error is not None:
            raise event.error
        if event.question is not None:
            state = State(steps=saved.steps, calls=calls.known, answers=answers)
            return Outcome(state=encoded(run, state), questions=(event.question,))
        result = await report.end()
        state = State(steps=dumped_steps(memory.steps[before:]))
        return Outcome(state=encoded(run, state), result=result, usage=report.usage)

    def _copy(self, calls: Calls) -> AgentCopy:
        made = isinstance(self._agent, MultiStepAgent)
        agent = self._agent if made else self._agent()
        if not made:
            prepare(agent)
        return AgentCopy(agent, calls, self._approve)


def _work(copied: AgentCopy, task: str, images: list[Any], calls: Calls) -> None:
    """Run the agent, in a thread."""
    with suppress(Stopped):
        try:
            for event in copied.agent.run(task, stream=True, reset=False, images=images or None):
                calls.report(event)
            calls.report(Ended())
        except QuestionAsked as asked:
            calls.report(Ended(question=asked.question))
        except BaseException as error:  # noqa: BLE001 - it is raised where the thread was begun
            calls.report(Ended(error=error))
        finally:
            copied.cleanup()


class Report:
    """Tells the client what an agent does."""

    def __init__(self, run: Run, agent: MultiStepAgent) -> None:
        self.usage: dict[str, int] = {}
        self._run = run
        self._agent = agent
        self._output: Any = None
        self._said = ""
        self._files: set[bytes] = set()
        self._begin()

    def _begin(self) -> None:
        """A message of the model begins."""
        self._called = ""
        self._arguments = ""
        self._inside = False
        self._held = ""

    async def event(self, event: Any) -> None:
        """Report an event of the agent."""
        if isinstance(event, ChatMessageStreamDelta):
            for call in event.tool_calls or ():
                await self._delta(call)
        elif isinstance(event, ActionStep):
            self._begin()
        elif isinstance(event, FinalAnswerStep):
            self._output = event.output
        elif isinstance(event, Used):
            for key in ("requests", "input_tokens", "output_tokens"):
                self.usage[key] = self.usage.get(key, 0) + getattr(event, key)
        elif isinstance(event, Part):
            await self._file(event)
        elif isinstance(event, Detail):
            if event.text:
                await self._run.detail(event.text)
            else:
                await self._run.tool(event.tool)

    async def _file(self, part: Part | None) -> None:
        """A file of a tool, or of the answer. Often both are the same."""
        assert part is not None
        assert part.raw is not None
        digest = hashlib.sha256(part.raw).digest()
        if digest not in self._files:
            self._files.add(digest)
            await self._run.file(part)

    async def _delta(self, call: ChatMessageToolCallStreamDelta) -> None:
        """Write what the model writes, if it is the answer."""
        if call.function is None or call.index or self._agent.final_answer_checks:
            return
        self._called = call.function.name or self._called
        if self._called != "final_answer":
            return
        self._arguments += call.function.arguments or ""
        if not self._inside:
            if (begin := ANSWER.match(self._arguments)) is None:
                return
            self._inside = True
            self._arguments = self._arguments[begin.end() :]
        characters = CHARACTERS.match(self._arguments)
        assert characters is not None
        self._arguments = self._arguments[characters.end() :]
        self._held += json.loads(f'"{characters[0]}"', strict=False)
        if any(name.startswith(self._held) for name in self._agent.state):
            return  # it may be the name of a variable
        self._said += self._held
        await self._run.write(self._held)
        self._held = ""

    async def end(self) -> Any:
        """Report the answer; the result is what of it is structured."""
        output = self._output
        if isinstance(output, AgentImage | AgentAudio):
            await self._file(await asyncio.to_thread(file_of, output))
        elif isinstance(output, dict | list | tuple) or hasattr(output, "model_dump"):
            found = output.model_dump(mode="json") if hasattr(output, "model_dump") else output
            return json.loads(json.dumps(found, default=str))
        elif output is not None:
            text = str(output)
            if text.startswith(self._said):
                await self._run.write(text[len(self._said) :])
            else:
                await self._run.write(f"\n\n{text}")  # what was streamed was not the answer
        return None


def _task(parts: Sequence[Part], state: dict[str, Any]) -> tuple[str, list[Any]]:
    """The client's message: a text, and images for the model. Files become variables, which the
    agent can give to its tools."""
    lines, images = [], []
    for number, part in enumerate(parts, 1):
        if part.text is not None:
            lines.append(part.text)
        elif part.raw is not None:
            kind = part.media_type or "application/octet-stream"
            name = re.sub(r"\W", "_", part.filename) or f"file_{number}"
            name = f"_{name}" if name[0].isdigit() else name
            value: Any = part.raw
            if kind.startswith("image/"):
                with suppress(UnidentifiedImageError, OSError):
                    value = Image.open(io.BytesIO(part.raw))
                    value.load()
                    images.append(value)
            state[name] = value
            lines.append(f"(The variable {name} is a file: {len(part.raw)} bytes of {kind}.)")
        elif part.url is not None:
            lines.append(part.url)
        elif part.data is not UNSET:
            lines.append(json.dumps(part.data, ensure_ascii=False))
    return "\n".join(lines), images
