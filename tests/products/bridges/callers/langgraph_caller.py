"""A graph of LangGraph whose model calls a remote agent."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from play import play

from dragoman.bridges.langgraph import node, tools

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Saver(SqliteSaver):
    """A checkpointer in a file."""

    async def aget_tuple(self, config: Any) -> Any:
        return self.get_tuple(config)

    async def aput(self, *given: Any) -> Any:
        return self.put(*given)

    async def aput_writes(self, *given: Any) -> None:
        self.put_writes(*given)


def compiled(folder: Path, work: Any) -> Any:
    """A graph of one node, with a checkpointer that is new each time."""
    builder = StateGraph(MessagesState)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    saver = Saver(sqlite3.connect(folder / "checkpoints.db", check_same_thread=False))
    return builder.compile(checkpointer=saver)


def called(*calls: tuple[str, dict[str, Any]]) -> Any:
    """The input: a message of a model that makes these calls."""
    wanted = [
        {"name": name, "args": arguments, "id": f"call-{n}", "type": "tool_call"}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"messages": [AIMessage("", tool_calls=wanted)]}


def seen(state: Any) -> dict[str, Any]:
    """What the model gets to see."""
    found = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    good = [message for message in found if message.status != "error"]
    blocks = [b for message in good if isinstance(message.content, list) for b in message.content]
    return {
        "answers": [
            message.content if message.artifact["data"] is None else message.artifact["data"]
            for message in good
        ],
        "error": "".join(str(message.content) for message in found if message.status == "error"),
        "files": [["pixels", b["mime_type"]] for b in blocks if b.get("base64") == "cGl4ZWxz"],
    }


async def once(url: str, folder: Path, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """These calls, and what comes of them."""
    graph = compiled(folder, ToolNode(await tools(url)))
    return seen(await graph.ainvoke(called(*calls), CONFIG))


async def price(url: str, folder: Path) -> dict[str, Any]:
    """Two calls at the same time."""
    return await once(url, folder, ("price", {"nights": 2}), ("price", {"nights": 3}))


async def book(url: str, folder: Path) -> dict[str, Any]:
    """Two questions, each answered to a new graph."""
    given: Any = called(("book", {"city": "Rome"}))
    questions = []
    for words in ("window", "vegan", ""):
        state = await compiled(folder, ToolNode(await tools(url))).ainvoke(given, CONFIG)
        if words:
            (asked,) = state["__interrupt__"]
            questions.append(asked.value["question"])
            given = Command(resume=words)
    return {**seen(state), "questions": questions}


async def wait(url: str, folder: Path) -> dict[str, Any]:
    """The remote server dies meanwhile."""
    return await once(url, folder, ("wait", {"city": "Rome"}))


async def again(url: str, folder: Path) -> dict[str, Any]:
    """A node that fails after the call, and is run again on resume; the call has no id."""
    (tool, *_) = await tools(url)
    times = 0

    async def work(state: MessagesState) -> Any:
        nonlocal times
        times += 1
        answer = await tool.ainvoke({"nights": 2})
        if times < 3:
            raise ConnectionError("later")
        return {"messages": [ToolMessage(answer, tool_call_id="x")]}

    for given in (called(), None, None):
        graph = compiled(folder, work)
        try:
            state = await graph.ainvoke(given, CONFIG)
        except ConnectionError:
            continue
    answers = [{"total": 20}] if '{"total": 20}' in str(state["messages"][-1].content) else []
    return {"answers": answers, "times": times}


async def twice(url: str, folder: Path) -> dict[str, Any]:
    """A node that makes one call three times, twice of them at the same time, and is run again."""
    (tool, *_) = await tools(url)
    times = 0

    async def work(state: MessagesState) -> Any:
        nonlocal times
        times += 1
        given = {"nights": 2}
        await tool.ainvoke(given)
        await asyncio.gather(tool.ainvoke(given), tool.ainvoke(given))
        if times < 2:
            raise ConnectionError("later")
        return {}

    with suppress(ConnectionError):
        await compiled(folder, work).ainvoke(called(), CONFIG)
    await compiled(folder, work).ainvoke(None, CONFIG)
    return {"answers": [], "times": times}


async def outside(url: str, folder: Path) -> dict[str, Any]:
    """Calls outside of a graph, without and with an id that another conversation has, too."""
    (tool, *_) = await tools(url)
    for nights in (2, 2):
        await tool.ainvoke({"nights": nights})
    for nights in (3, 4):
        call = {"name": tool.name, "args": {"nights": nights}, "id": "1", "type": "tool_call"}
        await tool.ainvoke(call)
    return {"answers": []}


async def progress(url: str, folder: Path) -> dict[str, Any]:
    """What the graph streams meanwhile."""
    graph = compiled(folder, ToolNode(await tools(url)))
    given = called(("price", {"nights": 2}))
    return {"answers": [part async for part in graph.astream(given, CONFIG, stream_mode="custom")]}


async def refuse(url: str, folder: Path) -> dict[str, Any]:
    """An agent that rejects the task."""
    return await once(url, folder, ("refuse", {"city": "Rome"}))


async def sell(url: str, folder: Path) -> dict[str, Any]:
    """An agent that wants money."""
    return await once(url, folder, ("sell", {"city": "Rome"}))


async def picture(url: str, folder: Path) -> dict[str, Any]:
    """A file."""
    return await once(url, folder, ("picture", {"city": "Rome"}))


async def word(url: str, folder: Path) -> dict[str, Any]:
    """The agent as a node."""
    graph = compiled(folder, await node(url))
    state = await graph.ainvoke({"messages": [("user", "hello")]}, CONFIG)
    return {"answers": [state["messages"][-1].content]}


if __name__ == "__main__":
    scenes = (price, book, wait, again, twice, outside, progress, refuse, sell, picture, word)
    play({scene.__name__: scene for scene in scenes})
