"""Graphs of several kinds, which are served beside the desk of LangGraph."""

from __future__ import annotations

import os
import signal
import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from script import note, times

from dragoman.bridges.bridge import Run, serve
from dragoman.bridges.langgraph import LangGraph


async def agent(state: MessagesState) -> Any:
    """A model: it wants to delete something, and repeats what the tool says."""
    last = state["messages"][-1]
    note("model")
    if isinstance(last, ToolMessage):
        return {"messages": [AIMessage(f"The tool says: {last.content}")]}
    call = {"name": "delete", "args": {"path": "/tmp/x"}, "id": f"call-{len(state['messages'])}"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


async def tools(state: MessagesState) -> Any:
    """The tool."""
    note("delete")
    call = state["messages"][-1].tool_calls[0]
    return {"messages": [ToolMessage("deleted", tool_call_id=call["id"])]}


def wants(state: MessagesState) -> str:
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


def looping(model: Any = agent) -> Any:
    """A model that calls a tool."""
    builder = StateGraph(MessagesState)
    builder.add_node("agent", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", wants)
    builder.add_edge("tools", "agent")
    return builder


def around(inner: Any) -> Any:
    """A graph that has another one as its second node."""

    async def begin(state: MessagesState) -> Any:
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("begin", begin)
    builder.add_node("inner", inner)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "inner")
    return builder.compile(name="Gated")


before = looping().compile(name="Gated", interrupt_before=["tools"])
after = looping().compile(name="Gated", interrupt_after=["agent"])
everywhere = looping().compile(name="Gated", interrupt_before="*")
nested = around(before)


async def calling(state: MessagesState) -> Any:
    """A node that calls a graph."""
    return await before.ainvoke(state)


inside = around(calling)


class LogLost(LangGraph):
    """The process ends after a superstep, before it is logged."""

    async def _step(self, run: Run, *given: Any) -> Any:
        found = await super()._step(run, *given)
        if times("lost") == 0:
            note("lost")
            os.kill(os.getpid(), signal.SIGKILL)
        return found


class FileSaver(SqliteSaver):
    """A checkpointer of the user's own, in a file."""

    async def aget_tuple(self, config: Any) -> Any:
        return self.get_tuple(config)

    async def aput(self, *given: Any) -> Any:
        return self.put(*given)

    async def aput_writes(self, *given: Any) -> None:
        self.put_writes(*given)


file = Path(os.environ["EFFECTS"]).with_name("checkpoints.db")
saver = FileSaver(sqlite3.connect(file, check_same_thread=False))
kept = looping().compile(name="Gated", interrupt_before=["tools"], checkpointer=saver)
lost_before_breakpoint = serve(LogLost(kept))


async def once(state: MessagesState) -> Any:
    """A graph that counts the messages, in one superstep."""
    note("once")
    return {"messages": [AIMessage(f"message {len(state['messages'])}")]}


single = StateGraph(MessagesState)
single.add_node("once", once)
single.add_edge(START, "once")
lost_at_the_end = serve(LogLost(single.compile(name="Once", checkpointer=saver)))


async def forever(state: MessagesState) -> Any:
    """A model that never stops calling tools."""
    note("model")
    call = {"name": "delete", "args": {}, "id": f"call-{len(state['messages'])}"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


endless = looping(forever).compile(name="Endless").with_config({"recursion_limit": 5})


async def talk(state: MessagesState) -> Any:
    """Say much that cannot be compressed."""
    return {"messages": [AIMessage(os.urandom(30_000).hex())]}


async def count(state: MessagesState) -> Any:
    """Say how many messages there are."""
    users = sum(isinstance(message, HumanMessage) for message in state["messages"])
    first = state["messages"][0].content
    return {"messages": [AIMessage(f"{users} messages from {first}")]}


async def nothing(state: MessagesState) -> Any:
    return {}


def talking(*steps: Any) -> Any:
    """A graph whose state grows in the middle of a turn; its last two nodes are parallel."""
    builder = StateGraph(MessagesState)
    names = [f"{step.__name__}-{n}" for n, step in enumerate(steps)]
    for name, step in zip(names, steps, strict=True):
        builder.add_node(name, step)
    builder.add_node("count", count)
    builder.add_node("left", nothing)
    builder.add_node("right", nothing)
    for begin, end in pairwise((START, *names, "count")):
        builder.add_edge(begin, end)
    builder.add_edge("count", "left")
    builder.add_edge("count", "right")
    return builder.compile(name="Talking")


growing = talking(talk, talk)
steady = talking(talk, *[nothing] * 20)
too_large = talking(*[talk] * 8)
subgraphs = around(looping().compile())
remembering = around(looping().compile(checkpointer=True))
gated = looping().compile(checkpointer=True, interrupt_before=["tools"])
remembering_gated = around(gated)
remembering_endless = around(looping(forever).compile(checkpointer=True)).with_config(
    {"recursion_limit": 5}
)


def choose(state: MessagesState) -> Any:
    """Ask with a structure."""
    asked = {"question": "Which city?", "options": ["Rome", "Oslo"]}
    return {"messages": [AIMessage(f"To {interrupt(asked)}")]}


chooser = StateGraph(MessagesState)
chooser.add_node("choose", choose)
chooser.add_edge(START, "choose")
choosing = chooser.compile(name="Choosing")
own_choosing = chooser.compile(name="Choosing", checkpointer=saver)
