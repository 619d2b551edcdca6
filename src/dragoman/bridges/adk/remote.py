"""Remote agents as tools and as sub-agents of ADK."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack

from google.adk.agents import BaseAgent, InvocationContext
from google.adk.events import Event, EventActions, RequestInput
from google.adk.tools import BaseTool, ToolContext
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import PrivateAttr

from dragoman import (
    A2AError,
    AgentCard,
    Part,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from dragoman.bridges import remote
from dragoman.bridges.adk.messages import INPUT, to_json, to_parts
from dragoman.bridges.bridge import current_run
from dragoman.bridges.remote import (
    ANSWER,
    DESCRIPTION,
    FAILURES,
    Remote,
    RemoteAnswer,
    RemoteFailed,
    RemoteQuestion,
    RemoteTool,
    unpaid,
    with_pauses,
)
from dragoman.client import Client, Options, Result
from dragoman.prompt_safety import clean

ASKS = "dragoman_asks"
"""The key in the metadata of an event: the remote agent asks, and its task waits."""


async def tools(*agents: Remote, **options: Unpack[Options]) -> list[BaseTool]:
    """The skills of remote agents as tools: `LlmAgent(…, tools=await tools(url))`.

    If an agent asks, the run pauses with a call of `adk_request_input`, whose argument `message` is
    the question. A function response with its id, such as `{"result": "window"}`, is the answer;
    `{"result": True}` approves what an agent wants to have approved, and False declines it."""
    return [RemoteAgentTool(tool) for tool in await remote.tools(*agents, **options)]


def remote_agent(
    agent: Remote, name: str, description: str = "", **options: Unpack[Options]
) -> BaseAgent:
    """A remote agent as an agent of ADK. It gets the user's message. If it asks, that is what it
    says, and the next message that it gets is the answer."""
    if not description and isinstance(agent, AgentCard):
        description = clean(agent.description, DESCRIPTION)
    return RemoteAgent(agent, options, name=name, description=description)


class RemoteAgentTool(BaseTool):
    """See `tools`."""

    def __init__(self, tool: RemoteTool) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self._remote = tool

    def _get_declaration(self) -> types.FunctionDeclaration:
        """See `BaseTool`: this method is what a tool has to define."""
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema=self._remote.parameters,
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """See `BaseTool.run_async`. After a question, ADK calls it again."""
        found = await self.send(args=args, tool_context=tool_context)
        if not isinstance(found, RequestInput):
            return found
        branch = tool_context.branch
        if tool_context.node is None:  # the answer belongs to this call of a model
            call = f"{self.name}@{tool_context.function_call_id}"
            branch = f"{branch}.{call}" if branch else call
        try:
            return await tool_context.run_node(
                Asking(name="remote_question", question=found),
                run_id=f"question-{remote.key(found.interrupt_id)}",
                override_branch=branch,
                raise_on_wait=True,
            )
        except RuntimeError as error:  # the runner of other roots has no place for a question
            raise RemoteFailed(
                f"{self.name} asks {found.message!r}, and ADK cannot pass that on: the root agent "
                "must be an LlmAgent or a Workflow"
            ) from error

    async def send(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Call the agent, or send it the answer to its question. Returns the result of the tool, or
        the agent's next question."""
        session, call = tool_context.session, _call(tool_context)
        key = remote.key(session.id, call)
        asked, said = _asked(session.events, call)
        number = asked["number"] if asked else 0
        if asked and said is None:
            return _request(call, asked)
        try:
            if asked:
                answer = await self._remote.answer(asked["task"], said, key=f"{key}:{number}")
            else:
                answer = await self._remote.call(args, key=key, conversation=session.id)
        except RemoteQuestion as question:
            return _request(call, {**question.value, "number": number + 1})
        return _returned(answer)


class Asking(BaseNode):
    """Asks the user."""

    question: RequestInput
    rerun_on_resume: bool = True

    async def _run_impl(self, *, ctx: Any, node_input: Any) -> AsyncGenerator[Any, None]:
        """See `BaseNode`: this method is what a node has to define."""
        yield self.question


class RemoteAgent(BaseAgent):
    """See `remote_agent`."""

    _agent: Remote = PrivateAttr()
    _options: Options = PrivateAttr()

    def __init__(self, agent: Remote, options: Options, **fields: Any) -> None:
        super().__init__(**fields)
        self._agent = agent
        self._options = with_pauses(options)

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """See `BaseAgent`: this method is what an agent has to define."""
        name = f"dragoman_task_{self.name}"
        waiting = ctx.session.state.get(name) or ""
        said = _said(ctx.user_content)
        context = "" if waiting else str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}:{ctx.session.id}"))
        result = None
        try:
            async with self._client() as client:
                stream = client.stream(said, task=waiting, context=context, key=self._key(ctx))
                async with stream:
                    async for event in stream:
                        if (part := _streamed(event)) is not None:
                            yield self._event(ctx, [part], partial=True)
                result = stream.result
        except FAILURES as error:
            if isinstance(error, A2AError) and waiting:
                yield self._event(ctx, [], {name: ""})  # the task cannot continue
            raise RemoteFailed(f"{self.name}: {clean(str(error), DESCRIPTION)}") from error
        asks = result.state is not None and result.state.interrupted
        if (why := unpaid(result)) is not None:
            yield self._event(ctx, [], {name: ""})
            raise RemoteFailed(f"{self.name}: {why}")
        task = result.task.id if asks and result.task else ""
        change = {name: task} if task != waiting else {}
        if not result.ok and not asks:
            yield self._event(ctx, [], change)
            raise RemoteFailed(_failure(self.name, result))
        event = self._event(ctx, _parts(result), change)
        if asks:
            event.custom_metadata = {ASKS: task}
        yield event

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """A client for one call. In the turn of an agent of ours it works on the turn's behalf."""
        run = current_run.get()
        if isinstance(self._agent, Client):
            yield await self._agent.open()
        elif run is not None:
            async with run.turn.connect(self._agent, **self._options) as client:
                yield client
        else:
            async with Client.connect(self._agent, **self._options) as client:
                yield client

    def _key(self, ctx: InvocationContext) -> str:
        """The key of this message: a loop may send several in one invocation."""
        sent = sum(
            event.author == self.name and event.invocation_id == ctx.invocation_id
            for event in ctx.session.events
        )
        return remote.key(ctx.session.id, ctx.invocation_id, self.name, str(sent))

    def _event(
        self,
        ctx: InvocationContext,
        parts: list[types.Part],
        state: dict[str, Any] | None = None,
        *,
        partial: bool | None = None,
    ) -> Event:
        return Event(
            author=self.name,
            invocation_id=ctx.invocation_id,
            branch=ctx.branch,
            content=types.Content(role="model", parts=parts) if parts else None,
            partial=partial,
            actions=EventActions(state_delta=state or {}),
        )


def _call(context: ToolContext) -> str:
    """A name of a call that stays the same when it is made again. A tool that is a node of a
    workflow gets another id each time, but has its place."""
    if context.node is None:
        return str(context.function_call_id)
    return f"{context.get_invocation_context().invocation_id}:{context.node_path}"


def _request(call: str, asked: dict[str, Any]) -> RequestInput:
    payload = {**asked, "call": call}
    return RequestInput(
        interrupt_id=f"{call}:{asked['number']}", message=asked["question"], payload=payload
    )


def _asked(events: Sequence[Event], call: str) -> tuple[dict[str, Any], Any]:
    """The latest question about a call, and what was said to it; None if nothing was."""
    asked: dict[str, Any] = {}
    said: Any = None
    for event in events:
        if event.author != "user":
            for made in event.get_function_calls():
                about = (made.args or {}).get("payload") if made.name == INPUT else None
                if isinstance(about, dict) and about.get("call") == call:
                    asked, said = about, None
            continue
        for response in event.get_function_responses():
            if asked and response.id == f"{call}:{asked['number']}":
                said = _words(response.response or {}, approval=asked.get("approval", False))
                if response.parts:
                    said = [_part(said), *_files(response.parts)]
    return asked, said


def _words(response: dict[str, Any], *, approval: bool) -> Any:
    """What a function response says: text or data, or whether something is approved."""
    values = list(response.values())
    said = values[0] if len(values) == 1 else response
    return to_json(said) if isinstance(said, bool) and not approval else said


def _part(said: Any) -> Part:
    return Part(text=said) if isinstance(said, str) else Part(data=said)


def _files(parts: Sequence[types.FunctionResponsePart]) -> list[Part]:
    """The files in a function response."""
    found = []
    for part in parts:
        if (blob := part.inline_data) is not None and blob.data is not None:
            kind, name = blob.mime_type or "", blob.display_name or ""
            found.append(Part(raw=blob.data, media_type=kind, filename=name))
        elif (file := part.file_data) is not None and file.file_uri:
            found.append(Part(url=file.file_uri, media_type=file.mime_type or ""))
    return found


def _returned(answer: RemoteAnswer) -> Any:
    value = answer.text if answer.data is None else answer.data
    if not answer.files:
        return value if isinstance(value, dict) else {"result": value}
    files = to_parts(answer.files)
    return {"result": value, "files": files} if value else {"files": files}


def _said(content: types.Content | None) -> list[Part]:
    """The user's message as the remote agent gets it."""
    found = []
    for part in (content and content.parts) or ():
        if part.text and not part.thought:
            found.append(Part(text=part.text))
        elif part.inline_data is not None and part.inline_data.data is not None:
            blob = part.inline_data
            kind, name = blob.mime_type or "", blob.display_name or ""
            found.append(Part(raw=blob.data, media_type=kind, filename=name))
        elif part.file_data is not None and part.file_data.file_uri:
            file = part.file_data
            found.append(Part(url=file.file_uri, media_type=file.mime_type or ""))
    return found


def _streamed(event: Any) -> types.Part | None:
    """The text of an event. What an agent only reports is a thought, as ADK calls it."""
    if isinstance(event, TaskArtifactUpdateEvent) and event.text:
        return types.Part(text=clean(event.text, ANSWER))
    if isinstance(event, TaskStatusUpdateEvent) and event.text:
        working = event.status.state is TaskState.WORKING
        return types.Part(text=clean(event.text, DESCRIPTION), thought=True) if working else None
    return None


def _parts(result: Result) -> list[types.Part]:
    """What the agent said, as a whole."""
    text = clean(result.text, ANSWER)
    rest = [part for part in result.parts if part.text is None]
    return [*([types.Part(text=text)] if text else []), *to_parts(rest)]


def _failure(name: str, result: Result) -> str:
    state = result.state.name.lower().replace("_", "-") if result.state else "unknown"
    return f"{name}: the task is {state}: {clean(result.text, ANSWER)}".rstrip(": ")
