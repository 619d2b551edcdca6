"""Remote agents as tools of a model: each skill is a function with a name, a description and a JSON
Schema. `functions` is for every framework; bridges make the tools of their frameworks of it."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, Unpack, cast

from msgspec import Struct

from dragoman import (
    A2AError,
    AgentCard,
    Part,
    TaskState,
    TaskStatusUpdateEvent,
)
from dragoman.bridges.bridge import current_run
from dragoman.client import (
    PAUSE_EXTENSIONS,
    AnswerRefused,
    Client,
    Options,
    RemoteSkill,
    Result,
)
from dragoman.prompt_safety import clean, clean_schema

__all__ = [
    "RemoteAnswer",
    "RemoteFailed",
    "RemoteQuestion",
    "RemoteTool",
    "conversation_tool",
    "functions",
    "tools",
]


Remote: TypeAlias = str | AgentCard | Client
"""An agent: its URL, its card, or a client."""
Report: TypeAlias = Callable[[str], Awaitable[None]]

RESUME = "urn:dragoman:resume:v1"
"""An agent with this extension recognises a message that is sent again."""
FAILURES = (A2AError, OSError, AnswerRefused)
"""What calls of an agent raise."""
CANNOT = (-32004, -32601)
"""The codes of agents that cannot list their tasks."""
DESCRIPTION, ANSWER = 1000, 100_000
"""The most characters of a description, and of an answer, that a model gets to read."""
LONGEST_NAME = 64
WORDS: dict[str, Any] = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "What to say to the agent."}},
    "required": ["message"],
    "additionalProperties": False,
}
"""The parameters of a skill whose agent says nothing about them."""


class RemoteAnswer(Struct, frozen=True, kw_only=True):
    """What a remote agent has answered."""

    text: str = ""
    """For the model: without invisible characters, and cut."""
    data: Any = None
    """The structured result, if there is one: its strings are without invisible characters."""
    files: tuple[Part, ...] = ()
    task: str = ""
    """The id of the remote task; empty if there is none."""

    @property
    def content(self) -> str:
        """What a model reads."""
        return self.text if self.data is None else _as_json(self.data)


class RemoteFailed(Exception):
    """A remote agent has failed, has rejected the call, could not be reached, or asks for a payment
    that nobody pays."""


class RemoteQuestion(Exception):
    """A remote agent asks before it continues: answer with `RemoteTool.answer`."""

    def __init__(
        self, tool: str, text: str, task: str, *, approval: bool, message: str = ""
    ) -> None:
        super().__init__(text)
        self.tool = tool
        self.text = text
        self.task = task
        """The id of the remote task that waits."""
        self.approval = approval
        """It asks for an approval, or for a login: the answer is True or False, or words."""
        self.message = message
        """The id of the message that asks."""

    @property
    def value(self) -> dict[str, Any]:
        """The question as JSON, for the pause of a framework."""
        return {
            "question": self.text,
            "tool": self.tool,
            "task": self.task,
            "approval": self.approval,
            "message": self.message,
        }


class RemoteTool:
    """A skill of a remote agent, as a tool that a model can call."""

    def __init__(self, name: str, agent: _Agent, skill: RemoteSkill) -> None:
        self.name = name
        said = skill.description or skill.name or skill.id
        whose = f" (skill of the agent {agent.card.name})" if skill.id else ""
        self.description = clean(f"{said}{whose}", DESCRIPTION)
        """Safe to show to a model: of a limited length, and without invisible characters."""
        self.parameters = _parameters(skill)
        """The JSON Schema of the arguments."""
        self._agent = agent
        self._skill = skill

    async def call(
        self,
        arguments: Mapping[str, Any],
        *,
        key: str,
        conversation: str = "",
        report: Report | None = None,
    ) -> RemoteAnswer:
        """Call the skill. Raises RemoteFailed, or RemoteQuestion if the agent asks.

        A call that is made again under the same `key` gets the same task. Calls of one
        `conversation` are one conversation at the agent, too. `report` is given its progress; that
        of an agent of ours is reported by the task, too."""
        try:
            said = self._parts(arguments)
        except A2AError as error:
            raise RemoteFailed(str(error)) from error
        return await self._send(said, key=key, context=self._context(conversation), report=report)

    async def answer(
        self, task: str, said: Any, *, key: str, report: Report | None = None
    ) -> RemoteAnswer:
        """Answer a question, and continue as `call` does. True or False approves or declines the
        operation that the agent asks about; text approves nothing."""
        if isinstance(said, bool):
            return await self._decide(task, said, key)
        return await self._send(said, key=key, task=task, report=report)

    def _parts(self, arguments: Mapping[str, Any]) -> Any:
        if self._skill.input is None and not self._skill.files:
            return str(arguments.get("message", ""))
        given = {
            name: Part(url=value) if name in self._skill.files else value
            for name, value in arguments.items()
        }
        self._skill.check(given)
        return self._skill.parts(given)

    def _context(self, conversation: str) -> str:
        if not conversation:
            return ""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self._agent.card.name}:{conversation}"))

    async def _send(
        self, said: Any, *, key: str, task: str = "", context: str = "", report: Report | None
    ) -> RemoteAnswer:
        run = current_run.get()
        if report is None and run is not None:
            report = run.report
        try:
            async with self._agent.client() as client:
                known = "" if self._agent.remembers else await _known(client, key, task, context)
                if known:
                    await client.task(known).wait()
                    return self._answered(await client.task(known).answer_pause())
                streaming = client.card.capabilities.streaming
                if report is None or not streaming:
                    found = await client.send(
                        said, task=task, context=context, key=key, skill=self._skill.id
                    )
                    return self._answered(found)
                stream = client.stream(
                    said, task=task, context=context, key=key, skill=self._skill.id
                )
                async with stream:
                    async for event in stream:
                        if isinstance(event, TaskStatusUpdateEvent) and _progress(event):
                            await report(clean(event.text, DESCRIPTION))
                return self._answered(stream.result)
        except FAILURES as error:
            raise RemoteFailed(f"{self.name}: {clean(str(error), DESCRIPTION)}") from error

    async def _decide(self, task: str, approved: bool, key: str) -> RemoteAnswer:
        try:
            async with self._agent.client() as client:
                handle = client.task(task)
                found = await handle.get()
                if any(message.message_id == key for message in found.history):
                    return self._answered(Result(task=await handle.wait()))
                grant = Result(task=found).grant
                if grant is None:  # a login
                    words = "Approved" if approved else "Declined"
                    return await self._send(words, key=key, task=task, report=None)
                decide = handle.approve if approved else handle.decline
                return self._answered(await decide(grant, key=key))
        except FAILURES as error:
            raise RemoteFailed(f"{self.name}: {clean(str(error), DESCRIPTION)}") from error

    def _answered(self, result: Result) -> RemoteAnswer:
        task = result.task.id if result.task else ""
        text = clean(result.text, ANSWER)
        if result.ok:
            data = result.data
            if self._skill.wrapped and isinstance(data, dict):
                data = data.get("result")
            data = None if data is None else _safe_data(data)
            if data is not None and len(_as_json(data)) > ANSWER:
                text, data = clean(_as_json(data), ANSWER), None
            return RemoteAnswer(text=text, data=data, files=tuple(result.files), task=task)
        state = result.state
        if (why := unpaid(result)) is not None:
            raise RemoteFailed(f"{self.name}: {why}")
        if state is not None and state.interrupted:
            approval = state is TaskState.AUTH_REQUIRED
            asking = result.task.status.message if result.task else None
            message = asking.message_id if asking else ""
            raise RemoteQuestion(self.name, text, task, approval=approval, message=message)
        name = state.name.lower().replace("_", "-") if state else "unknown"
        raise RemoteFailed(f"{self.name}: the task is {name}: {text}".rstrip(": "))


class _Agent:
    """A remote agent, and how it is reached."""

    def __init__(self, card: AgentCard, options: Mapping[str, Any], client: Client | None) -> None:
        self.card = card
        self.remembers = any(e.uri == RESUME for e in card.capabilities.extensions or ())
        """It recognises a message that is sent again."""
        self._options = with_pauses(options)
        self._client = client

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client for one call. In the turn of an agent of ours it works on the turn's behalf."""
        run = current_run.get()
        if self._client is not None:
            yield self._client
        elif run is not None:
            async with run.turn.connect(self.card, **self._options) as client:
                yield client
        else:
            async with Client.connect(self.card, **self._options) as client:
                yield client


def with_pauses(options: Mapping[str, Any]) -> Options:
    """These options of a client, which is then told what an agent asks for besides words."""
    extensions = tuple(dict.fromkeys((*options.get("extensions", ()), *PAUSE_EXTENSIONS)))
    return cast(Options, {**options, "extensions": extensions})


def unpaid(result: Result) -> str | None:
    """What a task waits for that neither a model nor a user can answer in words; None if it is a
    question."""
    pause = result.pause
    if pause is None or pause.in_words:
        return None
    return f"{pause.text}, and there is no wallet that pays it"


async def tools(*agents: Remote, **options: Unpack[Options]) -> list[RemoteTool]:
    """The skills of these agents as tools. `options` are those of `Client.connect`."""
    found: dict[str, RemoteTool] = {}
    for agent in agents:
        remote, skills = await _connected(agent, options)
        for skill in skills.values():
            name = _name(skill.id)
            if name in found or len(agents) > 1:
                name = _name(f"{remote.card.name}_{skill.id}")
            free, number = name, 2
            while free in found:
                free, number = f"{name[: LONGEST_NAME - 4]}_{number}", number + 1
            found[free] = RemoteTool(free, remote, skill)
    return list(found.values())


async def conversation_tool(agent: Remote, **options: Unpack[Options]) -> RemoteTool:
    """An agent as one tool that takes words, for nodes and sub-agents: the agent itself decides
    which of its skills is meant."""
    remote, _ = await _connected(agent, options)
    card = remote.card
    skill = RemoteSkill(id="", name=card.name, description=card.description)
    return RemoteTool(_name(card.name), remote, skill)


async def functions(*agents: Remote, **options: Unpack[Options]) -> list[dict[str, Any]]:
    """The skills of these agents as chat-completion tools have them: `type`, and `function` with
    name, description and parameters. Beside them are two functions that return a `RemoteAnswer`:

    - `call(arguments, id, conversation)`, with the id of the call, which is unique in the
      conversation;
    - `answer(question, said, id, conversation)`, with the `value` of the `RemoteQuestion` that the
      call has raised, and with its id."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
            "call": _called(tool),
            "answer": _answered(tool),
        }
        for tool in await tools(*agents, **options)
    ]


def key(*names: str) -> str:
    """A key of a call, made of ids that stay the same when a framework makes the call again. In an
    agent of ours the task is one of them."""
    run = current_run.get()
    task = run.turn.task.id if run else ""
    return hashlib.sha256(json.dumps([task, *names]).encode()).hexdigest()[:32]


def _called(tool: RemoteTool) -> Callable[..., Awaitable[RemoteAnswer]]:
    async def call(arguments: str | Mapping[str, Any], id: str, conversation: str) -> RemoteAnswer:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        return await tool.call(given, key=key(conversation, id), conversation=conversation)

    call.__name__, call.__doc__ = tool.name, tool.description
    return call


def _answered(tool: RemoteTool) -> Callable[..., Awaitable[RemoteAnswer]]:
    async def answer(
        question: Mapping[str, Any], said: Any, id: str, conversation: str
    ) -> RemoteAnswer:
        named = key(conversation, id, question["message"])  # one call may ask several times
        return await tool.answer(question["task"], said, key=named)

    answer.__name__ = tool.name
    return answer


async def _connected(agent: Remote, options: Options) -> tuple[_Agent, Mapping[str, RemoteSkill]]:
    """An agent whose card was read, and its skills."""
    if isinstance(agent, Client):
        await agent.open()
        return _Agent(agent.card, options, agent), agent.skills
    async with Client.connect(agent, **options) as client:
        return _Agent(client.card, options, None), client.skills


async def _known(client: Client, key: str, task: str, context: str) -> str:
    """The task that has the message of this key already; empty if there is none, or if the agent
    cannot say it."""
    try:
        if task:
            found = await client.task(task).get()
            return task if any(m.message_id == key for m in found.history) else ""
        if context:
            async for found in client.list(context=context, history=100):
                if any(message.message_id == key for message in found.history):
                    return found.id
    except A2AError as error:
        if error.rpc not in CANNOT:
            raise
    return ""


def _as_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def _progress(event: TaskStatusUpdateEvent) -> bool:
    return event.status.state is TaskState.WORKING and bool(event.text)


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:LONGEST_NAME] or "agent"


def _parameters(skill: RemoteSkill) -> dict[str, Any]:
    if skill.input is None and not skill.files:
        return WORDS
    schema = dict(skill.input or {"type": "object", "properties": {}})
    fields = dict(schema.get("properties", {}))
    required = list(schema.get("required", ()))
    for name, file in skill.files.items():
        fields[name] = {"type": "string", "format": "uri", "description": "The URL of a file."}
        if file.required:
            required.append(name)
    described: dict[str, Any] = clean_schema({**schema, "properties": fields}, DESCRIPTION)
    return {**described, "required": required}


def _safe_data(data: Any) -> Any:
    """Data that is safe to show to a model."""
    if isinstance(data, str):
        return clean(data, ANSWER)
    if isinstance(data, Mapping):
        return {clean(key, DESCRIPTION): _safe_data(item) for key, item in data.items()}
    if isinstance(data, Sequence):
        return [_safe_data(item) for item in data]
    return data
