"""The common part of all bridges: it serves an agent of a framework as a dragoman agent.

A bridge implements `Framework`: it runs the framework's agent until that ends or asks. Everything
else is done here: what the framework asks becomes input-required or auth-required, its memory
belongs to the conversation, its pauses are in the task's log, so that the answer may come to
another replica after a crash.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from dragoman import Agent, ContextChanged, Message, Part, Turn, UserError
from dragoman.bridges.saved_state import Files, Saved, change, changed, merged_packed, version

__all__ = ["Answer", "BridgeOptions", "Framework", "Outcome", "Question", "Run", "serve"]


T = TypeVar("T")
Progress: TypeAlias = Literal["none", "tools", "all"]
Approvals: TypeAlias = Literal["grant", "text"]

YES = frozenset(
    ("yes", "y", "ok", "okay", "sure", "approve", "approved", "accept", "allow", "go ahead")
)
EARLIER = 100
"""The number of earlier tasks of the conversation whose files its state may name."""
USAGE = "urn:dragoman:usage:v1"
"""The key of the metadata of the final status: what the run has cost."""


class BridgeOptions(TypedDict, total=False):
    """Options of every bridge."""

    name: str
    """The agent's name; by default, the framework's."""
    description: str
    version: str
    key: str
    """The agent's key in the store; by default, made of its name."""
    tags: Sequence[str]
    examples: Sequence[str]
    progress: Progress
    """What is reported while the agent works: nothing, the tools that it calls (the default), or
    also their results."""
    approvals: Approvals
    """How a client approves a tool call: by a grant for exactly this call (the default), or, for
    clients that cannot do that, by a `yes` in words."""
    timeout: float
    """How many seconds a conversation turn may take in all, with its questions; 30 days by
    default."""


class Question(Struct, frozen=True):
    """What a framework waits for."""

    id: str
    text: str
    approval: bool = False
    operation: Any = None
    """What is to be approved: any JSON value."""
    data: Any = None
    """What the framework says beside the text, such as options: any JSON value. The client gets it
    as data."""


def question_about(id: str, about: Mapping[str, Any], keys: Sequence[str], text: str) -> Question:
    """The question of a framework that says something structured: the text is that of the first of
    these keys that has one, else `text`; what is left is data."""
    for key in keys:
        if isinstance(about.get(key), str) and about[key].strip():
            left = {name: value for name, value in about.items() if name != key}
            return Question(id, about[key].strip(), data=left or None)
    return Question(id, text)


def remote_question(id: str, about: Mapping[str, Any]) -> Question:
    """What a remote agent asks, see `remote.RemoteQuestion.value`."""
    text = str(about["question"])
    if not about["approval"]:
        return Question(id, text)
    return Question(id, text, approval=True, operation={"tool": about["tool"], "question": text})


class Answer(Struct, frozen=True):
    """What the client said to a question."""

    id: str
    text: str = ""
    data: Any = None
    approved: bool = False
    parts: tuple[Part, ...] = ()
    """All that the client said."""
    decides: bool = False
    """The question was one of approval."""

    @property
    def files(self) -> tuple[Part, ...]:
        """The files of the answer."""
        return tuple(part for part in self.parts if part.raw is not None or part.url is not None)

    @property
    def said(self) -> Any:
        """The answer as a framework takes it, without its files: whether it is approved, data, or
        words."""
        if self.decides:
            return self.approved
        return self.text if self.data is None else self.data


class Outcome(Struct, frozen=True, kw_only=True):
    """How a run of a framework ended: with questions, or for good."""

    state: bytes = b""
    """What the framework needs to continue: after the answers, or in the next task of the
    conversation."""
    questions: tuple[Question, ...] = ()
    result: Any = None
    """A structured result, as JSON."""
    usage: dict[str, Any] = {}
    """What this run has cost. With questions, it is added to that of the next run."""


class Framework(Protocol):
    """What a bridge implements."""

    package: str
    """The name of the framework's distribution, whose version a saved state names."""
    name: str
    description: str
    output: Any
    """The type of structured results, whose schema is on the card; None if they are text."""
    logs_steps: bool
    """It logs its own steps, such as calls of a model. Otherwise, a run up to its end or its
    questions is one step."""

    async def run(self, run: Run) -> Outcome:
        """Run the agent until it ends or asks."""


class Run:
    """What the framework's agent is to work on, and how it reports."""

    def __init__(
        self,
        turn: Turn,
        agent: str,
        package: str,
        progress: Progress,
        files: Files | None = None,
        saved: Saved | None = None,
        answers: Sequence[Answer] = (),
    ) -> None:
        self.turn = turn
        self.answers = tuple(answers)
        """The answers to the questions of the run before; empty if this one is the first."""
        self._agent = agent
        self._package = package
        self._progress = progress
        self._saved = saved
        self._files = files or Files()

    @property
    def text(self) -> str:
        """The text of the client's message."""
        return self.turn.text

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts of the client's message: text, data, files."""
        return self.turn.message.parts

    @property
    def session(self) -> str:
        """A name for this conversation that no other one has: of this agent, tenant, caller and
        context."""
        caller = self.turn.caller
        names = (self._agent, caller.tenant, caller.qualified, self.turn.context_id)
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """Decode the saved state; None if there is none. Fails the task with a clear message if
        that is not possible."""
        saved = self._saved
        if saved is None or not saved.state:
            return None
        try:
            if saved.framework != self._package:
                raise ValueError(f"the agent uses {self._package} now")
            return decode(self.unpack(saved.state))
        except Exception as error:
            now = version(self._package)
            raise UserError(
                f"The state of this conversation was saved by {saved.framework} {saved.version}, "
                f"and {self._package} {now} cannot read it; start a new conversation"
            ) from error

    def pack(self, state: bytes) -> bytes:
        """Compress a state, and take the files of the messages out. (That of the outcome is packed
        without it.)"""
        return self._files.pack(state)

    def unpack(self, data: bytes) -> bytes:
        """The state that was packed."""
        return self._files.unpack(data)

    def fitting(
        self, items: Sequence[T], encode: Callable[[list[T]], bytes], starts: Callable[[T], bool]
    ) -> bytes:
        """The latest of these items that may be kept, encoded. The first one of them `starts` a
        turn of the conversation."""
        return self._files.fitting(items, encode, starts)

    async def write(self, text: str, name: str = "") -> None:
        """The next tokens of the answer."""
        if text:
            await self.turn.emit(self.turn.write(text, name=name))

    async def tool(self, name: str) -> None:
        """A tool is called."""
        await self.report(f"Calling {name}")

    async def report(self, text: str) -> None:
        """Something that is done meanwhile."""
        if self._progress != "none":
            await self.turn.emit(self.turn.working(text))

    async def detail(self, text: str) -> None:
        """Something that is reported only with `progress="all"`."""
        if self._progress == "all":
            await self.turn.emit(self.turn.working(text[:2000]))

    async def file(self, part: Part, name: str = "") -> None:
        """A file that the agent made."""
        await self.turn.emit(self.turn.artifact(part, name=name))


current_run: ContextVar[Run | None] = ContextVar("current_run", default=None)
"""The run in which a tool of a framework is called."""


def data_of(message: Message) -> Any:
    """The first data part of a message; None if there is none."""
    return next((part.data for part in message.parts if part.data is not UNSET), None)


def serve(framework: Framework, **options: Unpack[BridgeOptions]) -> Agent:
    """Make an agent of a framework's agent."""
    name = options.get("name") or framework.name or "Agent"
    description = options.get("description") or framework.description or name
    agent = Agent(
        name,
        description=description,
        version=options.get("version", "1.0.0"),
        key=options.get("key") or _slug(name),
        input_modes=("text/plain", "application/json", "*/*"),  # the model decides what it can read
        output_modes=("text/plain", "application/json"),
    )
    approvals, progress = options.get("approvals", "grant"), options.get("progress", "tools")
    if approvals not in ("grant", "text") or progress not in ("none", "tools", "all"):
        raise ValueError("approvals must be grant or text; progress must be none, tools or all")

    async def converse(turn: Turn) -> Any:
        outcome = await _converse(framework, agent.key, turn, progress, approvals)
        result = outcome.result
        if result is not None:
            if described and not isinstance(result, dict):
                result = {"result": result}  # as the card says it
            await turn.emit(turn.artifact(result, name="result"))
        if outcome.usage:
            await turn.emit(turn.complete(metadata={USAGE: outcome.usage}))

    converse.__name__ = _slug(name).replace("-", "_")
    converse.__doc__ = description
    described = framework.output is not None
    if described:
        converse.__annotations__["return"] = framework.output  # the card has its schema
    agent.skill(
        tags=tuple(options.get("tags", ())) or (framework.package,),
        examples=options.get("examples", ()),
        durable=True,
        one_at_a_time="context",
        timeout=options.get("timeout", 30 * 86400.0),
    )(converse)
    return agent


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "agent"


async def _converse(
    framework: Framework, agent: str, turn: Turn, progress: Progress, approvals: Approvals
) -> Outcome:
    package = framework.package
    kept = await turn.context_saved()
    saved = msgspec.convert(kept, Saved) if isinstance(kept, dict) else None
    files = Files(turn.history)
    if saved is not None and files.missing(saved.state):
        for task in await turn.context_tasks(EARLIER):
            files.add(task.history)
    run = Run(turn, agent, package, progress, files, saved)
    used: dict[str, Any] = {}
    while True:
        before = b"" if saved is None else saved.state

        async def once(run: Run = run, before: bytes = before) -> Outcome:
            current_run.set(run)
            outcome = await framework.run(run)
            return replace(outcome, state=change(before, files.pack(outcome.state)))

        outcome = await (
            once() if framework.logs_steps else turn.step("run", once, returns=Outcome)
        )
        outcome = replace(outcome, state=changed(before, outcome.state))
        saved = Saved(package, version(package), outcome.state)
        used = _added(used, outcome.usage)
        if not outcome.questions:
            break
        answers = [
            await _answer(turn, question, approvals, files) for question in outcome.questions
        ]
        run = Run(turn, agent, package, progress, files, saved, answers)
    await _save(turn, kept, saved)
    return replace(outcome, usage=used)


async def _save(turn: Turn, kept: Any, saved: Saved) -> None:
    """Keep the state for the next task. Another task may have done so while this one has waited
    for an answer: then the state has what both have added."""
    base = _state(kept, saved)
    while True:
        try:
            return await turn.save_context(msgspec.to_builtins(saved))
        except ContextChanged:
            theirs = _state(await turn.context_saved(), saved)
        state = merged_packed(base, saved.state, theirs)
        saved, base = replace(saved, state=state), theirs


def _state(kept: Any, saved: Saved) -> bytes:
    """The state of the conversation, if the same framework has saved it."""
    found = msgspec.convert(kept, Saved) if isinstance(kept, dict) else None
    return found.state if found is not None and found.framework == saved.framework else b""


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of the numbers of both; of anything else, the later one."""
    return {**one, **other} | {
        key: one[key] + value
        for key, value in other.items()
        if isinstance(value, int | float) and isinstance(one.get(key), int | float)
    }


async def _answer(turn: Turn, question: Question, approvals: Approvals, files: Files) -> Answer:
    """Ask the client one question."""
    if not question.approval:
        beside = () if question.data is None else (Part(data=question.data),)
        said = await turn.ask_for([Part(text=question.text), *beside])
        files.add((said,))
        return Answer(question.id, said.text, data_of(said), parts=said.parts)
    if approvals == "text":
        said = await turn.ask_for(question.text)
        return Answer(question.id, said.text, approved=_agrees(said.text), decides=True)
    while True:
        asked = turn.require_auth(question.text, operation=question.operation)
        said = await turn.ask_for(asked)
        if await turn.granted(question.operation):
            return Answer(question.id, said.text, approved=True, decides=True)
        if turn.approval is not None and not turn.approval.approved:
            return Answer(question.id, said.text, decides=True)
        # words approve nothing: ask again


def _agrees(text: str) -> bool:
    return text.strip().strip(".!").lower() in YES
