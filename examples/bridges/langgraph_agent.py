"""A graph of LangGraph: `dragoman serve examples.bridges.langgraph_agent:graph`."""

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt


def plan(state: MessagesState) -> Any:
    """Ask the user, and answer. Here a model of yours would be called."""
    city = interrupt("Where do you want to go?")  # the task becomes input-required
    return {"messages": [AIMessage(f"A trip to {city}")]}


builder = StateGraph(MessagesState)
builder.add_node("plan", plan)
builder.add_edge(START, "plan")
graph = builder.compile(name="Planner")
