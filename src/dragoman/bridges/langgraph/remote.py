"""Remote agents as tools of LangChain and as nodes of LangGraph."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Literal, Unpack

import msgspec
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tools import BaseTool, ToolException
from langgraph.config import get_stream_writer
from langgraph.types import interrupt
from pydantic import PrivateAttr

from dragoman import Part
from dragoman.bridges import remote
from dragoman.bridges.bridge import current_run
from dragoman.bridges.langgraph.messages import parts_of
from dragoman.bridges.remote import Remote, RemoteAnswer, RemoteFailed, RemoteQuestion, RemoteTool
from dragoman.client import Options

_call: ContextVar[tuple[str, Mapping[str, Any]]] = ContextVar("_call")
"""The id of the tool call, and what is configurable."""
_calls: ContextVar[dict[str, int]] = ContextVar("_calls")
"""How often this run of a node has made calls without an id."""


async def tools(*agents: Remote, **options: Unpack[Options]) -> list[BaseTool]:
    """The skills of remote agents as tools, for `ToolNode` and `create_agent`.

    If an agent asks, the graph is interrupted with the question; `Command(resume="…")` has the
    answer. A node that LangGraph runs again calls no remote agent again."""
    return [
        _Tool(tool, name=tool.name, description=tool.description, args_schema=tool.parameters)
        for tool in await remote.tools(*agents, **options)
    ]


async def node(
    agent: Remote, **options: Unpack[Options]
) -> Callable[[Any, RunnableConfig], Awaitable[dict[str, Any]]]:
    """A remote agent as a node of a graph with messages: it gets the last message, and its answer
    is the next one."""
    tool = await remote.conversation_tool(agent, **options)

    async def call(state: Any, config: RunnableConfig) -> dict[str, Any]:
        message = state["messages"][-1]
        where = config.get("configurable", {})
        found = await _answered(tool, {"message": str(message.text)}, _key(where), where)
        content: Any = _content(found)
        return {"messages": [AIMessage(content, name=tool.name)]}

    call.__name__ = tool.name
    return call


class _Tool(BaseTool):
    """See `tools`."""

    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: Any = True
    _remote: RemoteTool = PrivateAttr()

    def __init__(self, tool: RemoteTool, **given: Any) -> None:
        super().__init__(**given)
        self._remote = tool

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """See `BaseTool.ainvoke`."""
        id = (input.get("id") or "") if isinstance(input, Mapping) and "args" in input else ""
        _call.set((id, ensure_config(config).get("configurable", {})))
        return await super().ainvoke(input, config, **kwargs)

    def _run(self, **arguments: Any) -> Any:
        raise NotImplementedError("remote agents are called from graphs that run with `ainvoke`")

    async def _arun(self, **arguments: Any) -> Any:
        id, where = _call.get(("", {}))
        key = _key(where, id or _ordinal(self.name, arguments))
        try:
            found = await _answered(self._remote, arguments, key, where)
        except RemoteFailed as error:
            raise ToolException(str(error)) from error
        # the artifact is JSON, since checkpointers keep it
        return _content(found), msgspec.to_builtins(found)


async def _answered(
    tool: RemoteTool, arguments: Mapping[str, Any], key: str, where: Mapping[str, Any]
) -> RemoteAnswer:
    """Call, and interrupt the graph for each question."""
    writer = None if current_run.get() else _writer()

    async def report(text: str) -> None:
        if writer is not None:
            writer({"tool": tool.name, "progress": text})

    reports = report if writer else None
    number = 0
    try:
        conversation = str(where.get("thread_id", ""))
        return await tool.call(arguments, key=key, conversation=conversation, report=reports)
    except RemoteQuestion as asked:
        question = asked
    while True:
        if "thread_id" not in where:
            raise RemoteFailed(
                f"{tool.name} asks: {question.text}; a graph needs a checkpointer to be asked"
            )
        said = interrupt(question.value)
        if isinstance(said, list):  # content blocks
            said = parts_of(said)
        number += 1
        try:
            return await tool.answer(question.task, said, key=f"{key}:{number}", report=reports)
        except RemoteQuestion as asked:
            question = asked


def _writer() -> Any:
    try:
        return get_stream_writer()
    except RuntimeError:  # outside of a graph
        return None


def _key(where: Mapping[str, Any], call: str = "") -> str:
    """The same when LangGraph runs the node again."""
    return remote.key(str(where.get("thread_id", "")), str(where.get("checkpoint_ns", "")), call)


def _ordinal(name: str, arguments: Mapping[str, Any]) -> str:
    """A name for a call without an id: the same when the node is run again."""
    content = json.dumps([name, arguments], sort_keys=True, default=str)
    digest = hashlib.sha256(content.encode()).hexdigest()
    counts = _calls.get({})
    _calls.set({**counts, digest: counts.get(digest, 0) + 1})
    return f"{digest}:{counts.get(digest, 0)}"


def _content(found: RemoteAnswer) -> Any:
    """What a model reads: text, and files as content blocks."""
    if not found.files:
        return found.content
    text = [{"type": "text", "text": found.content}] if found.content else []
    return [*text, *map(_block, found.files)]


def _block(part: Part) -> dict[str, Any]:
    kind = part.media_type or "application/octet-stream"
    what = kind.partition("/")[0]
    about = {"type": what if what in ("image", "audio", "video") else "file", "mime_type": kind}
    if part.raw is not None:
        return {**about, "base64": base64.b64encode(part.raw).decode()}
    return {**about, "url": part.url}
