"""One message to one agent of the team, and what comes back: its output, its question, its result.

A call is made again after a crash. An agent that recognises repeated messages gets the same one
again, under the same key. With any other agent, its tasks are searched for the message first.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from dragoman import (
    A2AError,
    Artifact,
    Caller,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
    Turn,
)
from dragoman.client import AnswerRefused, Client, Result, SkillNotCompleted, Stream
from dragoman.orchestrator.agent_team import Member, Team
from dragoman.orchestrator.plan import (
    FILES,
    Asks,
    Done,
    Event,
    Failed,
    InvalidPlan,
    Known,
    Outcome,
    PlanStep,
    Question,
    Ref,
    Sending,
    Uncertain,
    reference,
    resolved,
)
from dragoman.prompt_safety import clean

logger = logging.getLogger("dragoman")

Scan: TypeAlias = Callable[[Part, Caller], str | Awaitable[str | None] | None]
"""Looks at a file, as `App(scan=…)` has it: returns why it is refused, or None."""
Show: TypeAlias = Callable[[Any], Awaitable[None]]
"""Takes an event of the agent that the client may see."""

LINEAGE = "urn:dragoman:lineage:v1"
"""The key of the metadata of a message: the tasks that it serves."""
SOURCE = "urn:dragoman:source:v1"
"""The key of the metadata of an artifact: which agent made it, and in which step."""
REPLY = "reply"
"""The id of the artifact with a direct reply."""
LARGE = 64 * 1024
"""The most bytes of a result that are copied into the plan."""
QUESTION = 4000
ERROR = 1000
MOST_QUESTIONS = 5
"""How many questions a step may ask."""
FAILURES = (A2AError, AnswerRefused, OSError, TimeoutError, InvalidPlan, SkillNotCompleted)
CANNOT = (-32004, -32601)
"""The codes of agents that cannot list their tasks."""
PAGES = 100
"""How many tasks of a conversation are searched for a message."""


class Call:
    """A message of a step to its agent."""

    def __init__(
        self,
        turn: Turn,
        team: Team,
        step: PlanStep,
        *,
        said: Sequence[Part] | bool | None = None,
        others: Mapping[str, PlanStep],
        repeatable: bool = False,
        scan: Scan | None = None,
        questions: int = MOST_QUESTIONS,
    ) -> None:
        self._turn, self._team, self._step = turn, team, step
        self._said = said
        """The client's answer to the agent's question; whether it approves."""
        self._others = others
        self._repeatable = repeatable
        self._scan = scan
        self._questions = questions
        """How many questions the agent may ask."""
        self._shown: set[str] = set()

    @property
    def key(self) -> str:
        """The id of the message: the same whenever the call is made again."""
        step = self._step
        names = (self._turn.task.id, step.name, step.messages)
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]

    async def run(self, note: Callable[[Event], Awaitable[None]], show: Show) -> Event:
        """Make the call, and return how it ended. `note` is given the id of the agent's task."""
        step = self._step
        try:
            member = await self._team.member(self._turn.caller, step.address)
            if member is None:
                why = f"{step.agent} is not there any more, or may not be used"
                return Failed(step.name, why, goes_on=True)
            async with self._team.client(member, self._turn, step.skill) as client:
                if why := self._team.objection(self._turn.caller, member, client):
                    return Failed(step.name, f"{step.agent} {why}", goes_on=True)
                return await self._talk(client, member, note, show)
        except FAILURES as error:
            why = clean(str(error) or type(error).__name__, ERROR)
            return Failed(step.name, why, goes_on=True)

    async def _talk(
        self,
        client: Client,
        member: Member,
        note: Callable[[Event], Awaitable[None]],
        show: Show,
    ) -> Event:
        step = self._step
        if step.delivered and not isinstance(self._said, bool):
            return await self._follow(client, member, step.task, note, show)
        if not member.remembers:
            if step.sending:  # by an earlier run
                known = await self._sent(client, member)
                if known:
                    return await self._follow(client, member, known, note, show)
                if known is None and not self._repeatable:
                    return Uncertain(step.name)
            else:
                await note(Sending(step.name))
        if isinstance(self._said, bool):
            if member.remembers:
                await note(Known(step.name, step.task))
            return await self._decide(client, member, self._said, show)
        stream = client.stream(
            await self._parts(client, member),
            task=step.task,
            context="" if step.task else member.context(self._turn),
            skill="" if step.task else step.skill,
            key=self.key,
            metadata=self._lineage(member),
        )
        return await self._read(stream, client, member, note, show, sends=True)

    # -- what is sent

    def _lineage(self, member: Member) -> dict[str, Any]:
        """What `Turn.connect` sends along, for a client of the author: loops must end there,
        too."""
        if not isinstance(member.target, Client):
            return {}
        found = self._turn.metadata.get(LINEAGE)
        path = found.get("path") if isinstance(found, Mapping) else None
        before = path if isinstance(path, list | tuple) else ()
        own = {"agent": "orchestrator", "task": self._turn.task.id}
        return {LINEAGE: {"path": [*before, own]}}

    async def _parts(self, client: Client, member: Member) -> Sequence[Part | Any]:
        step = self._step
        if self._said is not None:
            assert not isinstance(self._said, bool)
            return self._said
        if (ref := reference(step.input)) is not None and ref.path in ("", FILES):
            return await self._referred(ref)
        value = resolved(step.input, await self._outcomes())
        skill = member.skills.get(step.skill)
        if isinstance(value, str) or value is None:
            return [Part(text=value or "")]
        if skill is not None:
            skill.check(value if isinstance(value, Mapping) else {"": value})
            return skill.parts(value)
        return [Part(data=value)]

    async def _referred(self, ref: Ref) -> Sequence[Part]:
        """A whole result, with its files."""
        other = self._others[ref.step]
        outcome = other.outcome or Outcome()
        if not outcome.files and not outcome.large and ref.path != FILES:
            data = [Part(data=outcome.data)] if outcome.data is not None else []
            return data or [Part(text=outcome.text)]
        result = await self._fetched(other)
        parts = result.files if ref.path == FILES else list(result.parts)
        return [await self._checked(part) for part in parts]

    async def _outcomes(self) -> dict[str, Outcome]:
        """The results of the steps before; large ones are fetched from their agents."""
        found = {}
        for name in self._step.needs:
            other = self._others[name]
            outcome = other.outcome or Outcome()
            if outcome.large:
                result = await self._fetched(other)
                outcome = Outcome(text=result.text, data=result.data)
            found[name] = outcome
        return found

    async def _fetched(self, step: PlanStep) -> Result:
        """The result of a step, from its agent."""
        member = await self._team.member(self._turn.caller, step.address)
        if member is None or not step.task:
            raise InvalidPlan(f"the result of {step.name!r} is not available any more")
        async with self._team.client(member, self._turn, step.skill) as client:
            return Result(task=await client.task(step.task).get())

    async def _sent(self, client: Client, member: Member) -> str | None:
        """The agent's task that has the message; empty if none has it; None if that is unknown."""
        step, key = self._step, self.key
        try:
            if step.task:
                task = await client.task(step.task).get()
                return task.id if any(m.message_id == key for m in task.history) else ""
            seen = 0
            async for task in client.list(context=member.context(self._turn), history=100):
                if any(message.message_id == key for message in task.history):
                    return task.id
                seen += 1
                if seen == PAGES:
                    return None
        except A2AError as error:
            if error.rpc not in CANNOT:
                raise
            return None
        # An agent that shows no history, or names conversations itself, has nothing to find.
        return "" if seen == 0 and await self._keeps_contexts(client) else None

    async def _keeps_contexts(self, client: Client) -> bool:
        """Whether a task that we began here before is in the list: then the list can be
        believed."""
        mine = {remote.id for remote in self._turn.delegated}
        if not mine:
            return False
        async for task in client.list(page=50):
            return task.id in mine
        return False

    # -- what comes back

    async def _decide(self, client: Client, member: Member, approved: bool, show: Show) -> Event:
        """Approve or decline what the agent asks about."""
        handle = client.task(self._step.task)
        found = await handle.get()
        grant = Result(task=found).grant
        if any(message.message_id == self.key for message in found.history):
            result = Result(task=await handle.wait())
        elif grant is None:
            result = await handle.reply("Approved" if approved else "Declined", key=self.key)
        else:
            decide = handle.approve if approved else handle.decline
            result = await decide(grant, key=self.key)
        return await self._all(result, client, member, show)

    async def _follow(
        self,
        client: Client,
        member: Member,
        task: str,
        note: Callable[[Event], Awaitable[None]],
        show: Show,
    ) -> Event:
        """Follow a task that has the message already."""
        found = await client.task(task).get()
        if found.status.state.settled:
            return await self._all(Result(task=found), client, member, show)
        return await self._read(client.task(task).subscribe(), client, member, note, show)

    async def _all(self, result: Result, client: Client, member: Member, show: Show) -> Event:
        """How the call ended, after all of its output was passed on. If the task waits for a
        payment, the wallet pays it first."""
        if _unpaid(result) and result.task is not None:
            result = await client.task(result.task.id).answer_pause()
        for artifact in result.artifacts:
            await self._artifact(artifact, member, show, append=False, last=True)
        return self._ended(result, member)

    async def _read(
        self,
        stream: Stream,
        client: Client,
        member: Member,
        note: Callable[[Event], Awaitable[None]],
        show: Show,
        sends: bool = False,
    ) -> Event:
        named = self._step.delivered
        async with stream:
            async for event in stream:
                if stream.task is not None and not named:
                    named = True
                    await note(Known(self._step.name, stream.task.id, stream.task.context_id))
                await self._show(event, stream, member, show)
                if _interrupted(event) and not (sends and _unpaid(stream.result)):
                    break  # otherwise the stream has it paid, or ends
            result = stream.result
        if _unpaid(result):
            return await self._all(result, client, member, show)
        return self._ended(result, member)

    async def _show(self, event: Any, stream: Stream, member: Member, show: Show) -> None:
        """Pass the agent's output on, with its source."""
        if isinstance(event, Task):
            for artifact in event.artifacts:
                await self._artifact(artifact, member, show, append=False, last=False)
        elif isinstance(event, TaskArtifactUpdateEvent):
            artifact, append = event.artifact, event.append
            if append and artifact.artifact_id not in self._shown:
                whole = stream.task.artifacts if stream.task else ()
                same = (one for one in whole if one.artifact_id == artifact.artifact_id)
                artifact, append = next(same, artifact), False
            await self._artifact(artifact, member, show, append=append, last=event.last_chunk)
        elif isinstance(event, Message):
            reply = Artifact(artifact_id=REPLY, parts=event.parts)
            await self._artifact(reply, member, show, append=False, last=True)
        elif isinstance(event, TaskStatusUpdateEvent):
            text = event.status.message.text if event.status.message else ""
            if event.status.state is TaskState.WORKING and text:
                line = " ".join(clean(text, ERROR).split())
                await show(self._turn.working(f"{member.name}: {line}"))

    async def _artifact(
        self, artifact: Artifact, member: Member, show: Show, *, append: bool, last: bool
    ) -> None:
        self._shown.add(artifact.artifact_id)
        parts = tuple([await self._checked(part) for part in artifact.parts])
        source = {"agent": member.card.name, "host": member.host, "step": self._step.name}
        await show(
            TaskArtifactUpdateEvent(
                task_id=self._turn.task.id,
                context_id=self._turn.context_id,
                artifact=Artifact(
                    artifact_id=f"{self._step.name}.{artifact.artifact_id}",
                    name=artifact.name or ("" if append else self._step.name),
                    description=artifact.description,
                    parts=parts,
                    metadata={**(artifact.metadata or {}), SOURCE: source},
                ),
                append=append,
                last_chunk=last,
            )
        )

    async def _checked(self, part: Part) -> Part:
        """The part, or a note if its file was refused."""
        if self._scan is None or (part.raw is None and part.url is None):
            return part
        try:
            why = self._scan(part, self._turn.caller)
            why = await why if inspect.isawaitable(why) else why
        except Exception:
            logger.exception("step %s: the scan of a file failed", self._step.name)
            why = "the scan failed"
        if not why:
            return part
        name = clean(part.filename or "without a name", 100)
        logger.warning("step %s: a file was refused: %s", self._step.name, why)
        return Part(text=f"[the file {name} was refused]")

    def _ended(self, result: Result, member: Member) -> Event:
        step, state = self._step, result.state
        if result.ok:
            return Done(step.name, self._outcome(result, member))
        if state is not None and state.interrupted:
            return self._asks(result)
        name = state.name.lower().replace("_", "-") if state else "without a state"
        text = clean(result.text, ERROR)
        return Failed(step.name, f"the task is {name}: {text}" if text else f"the task is {name}")

    def _outcome(self, result: Result, member: Member) -> Outcome:
        data, text = result.data, result.text
        skill = member.skills.get(self._step.skill)
        if skill is not None and skill.wrapped and isinstance(data, dict):
            data = data.get("result")
        size = len(msgspec.json.encode((text, data)))  # as it is logged
        if size <= LARGE:
            return Outcome(text=text, data=data, files=len(result.files))
        return Outcome(text=clean(text, 2000), files=len(result.files), large=True)

    def _asks(self, result: Result) -> Event:
        step = self._step
        assert result.task is not None
        said, pause = result.task.status.message, result.pause
        if pause is not None and not pause.in_words:
            why = f"{pause.text}, and there is no wallet that pays it"
            return Failed(step.name, why, goes_on=True)
        if step.asked >= self._questions:
            why = f"the agent has asked more than {self._questions} questions"
            return Failed(step.name, why, goes_on=True)
        text = clean(result.text, QUESTION)
        if result.state is TaskState.AUTH_REQUIRED:
            grant = result.grant
            if grant is None:
                return Asks(step.name, Question("login", text))
            return Asks(step.name, Question("approval", text, operation=grant.operation))
        return Asks(step.name, Question("question", text, schema=_schema(said)))


def _schema(said: Message | None) -> dict[str, Any] | None:
    """The JSON Schema of what an agent asks for, if it gave one."""
    for part in said.parts if said else ():
        data = part.data
        if data is not UNSET and isinstance(data, dict) and data.get("type") == "object":
            return data if len(msgspec.json.encode(data)) < QUESTION * 4 else None
    return None


def _unpaid(result: Result) -> bool:
    """Whether a task waits for something that words do not answer."""
    return result.pause is not None and not result.pause.in_words


def _interrupted(event: Any) -> bool:
    """Whether an event says that the agent waits for an answer."""
    status = getattr(event, "status", None)
    return status is not None and status.state.interrupted
