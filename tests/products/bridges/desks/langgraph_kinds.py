"""Graphs of several kinds, which are served beside the desk of LangGraph."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from script import note


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


def looping() -> Any:
    """A model that calls a tool."""
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
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
