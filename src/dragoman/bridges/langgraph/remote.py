"""Remote agents as tools of LangChain and as nodes of LangGraph."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Literal, Unpack
from uuid import uuid4

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
"""The name of the tool call, and what is configurable."""
RUNS = 1000
"""How many runs of nodes are remembered, to count their calls."""


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
    _counts: OrderedDict[Any, Counter[str]] = PrivateAttr(default_factory=OrderedDict)
    """How often each of the latest runs of nodes has made a call without an id."""

    def __init__(self, tool: RemoteTool, **given: Any) -> None:
        super().__init__(**given)
        self._remote = tool

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """See `BaseTool.ainvoke`."""
        config = ensure_config(config)
        called = isinstance(input, Mapping) and "args" in input
        id = (input.get("id") if called else "") or self._counted(config, input)
        _call.set((id, config.get("configurable", {})))
        return await super().ainvoke(input, config, **kwargs)

    def _counted(self, config: RunnableConfig, input: Any) -> str:
        """A name for a call without an id: the same when the node is run again."""
        run = getattr(config.get("callbacks"), "parent_run_id", None)
        if run is None:  # nothing runs this again
            return uuid4().hex
        counts = self._counts.setdefault(run, Counter())
        if len(self._counts) > RUNS:
            self._counts.popitem(last=False)
        content = json.dumps([self.name, input], sort_keys=True, default=str)
        name = hashlib.sha256(content.encode()).hexdigest()
        counts[name] += 1
        return f"{name}:{counts[name]}"

    def _run(self, **arguments: Any) -> Any:
        raise NotImplementedError("remote agents are called from graphs that run with `ainvoke`")

    async def _arun(self, **arguments: Any) -> Any:
        id, where = _call.get((uuid4().hex, {}))
        key = _key(where, id)
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
    except (RuntimeError, KeyError):  # outside of a graph
        return None


def _key(where: Mapping[str, Any], call: str = "") -> str:
    """The same when LangGraph runs the node again. Outside of a graph, ids of calls may be those of
    another conversation: there, each call is a new one."""
    names = (str(where.get("thread_id", "")), str(where.get("checkpoint_ns", "")))
    return remote.key(*names, call, *(() if any(names) else (uuid4().hex,)))


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
