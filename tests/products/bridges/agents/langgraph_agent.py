"""The desk as a graph of LangGraph, with a model that follows a script."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt


def note(what: str) -> None:
    """Write down that something was done, where the test can see it."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{what}\n")


class Script(BaseChatModel):
    """A model that streams what the script says."""

    @property
    def _llm_type(self) -> str:
        return "script"

    def _words(self, messages: list[BaseMessage]) -> list[str]:
        last = messages[-1]
        users = sum(isinstance(message, HumanMessage) for message in messages)
        if not isinstance(last, HumanMessage):
            return ["The tool says: ", str(last.content)]
        if isinstance(last.content, list):
            block = next(each for each in last.content if each["type"] != "text")
            size = len(block["base64"]) * 3 // 4 - block["base64"].count("=")
            return [f"{size} bytes of {block['mime_type']}"]
        return ["You said ", last.content, f" as message {users}"]

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        note("model")
        message = AIMessage("".join(self._words(messages)))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[Any]:
        note("model")
        for word in self._words(messages):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[Any]:
        for chunk in self._stream(messages):
            yield chunk


class State(MessagesState):
    """The conversation, and a forecast."""

    structured_response: Any


model = Script()


def wanted(state: State) -> str:
    text = str(state["messages"][-1].content)
    return text if text in NODES else "answer"


async def answer(state: State) -> Any:
    return {"messages": [await model.ainvoke(state["messages"])], "structured_response": None}


async def weather(state: State) -> Any:
    note("weather")
    return {"messages": [AIMessage("sunny in Rome", name="weather")]}


async def question(state: State) -> Any:
    return {"messages": [AIMessage(str(interrupt("Which color?")))]}


async def delete(state: State) -> Any:
    arguments = {"path": "/tmp/x"}
    asked = {"action_requests": [{"name": "delete", "args": arguments}], "review_configs": []}
    (decision,) = interrupt(asked)["decisions"]
    if decision["type"] != "approve":
        return {"messages": [AIMessage("not deleted")]}
    note("delete")
    return {"messages": [AIMessage("deleted /tmp/x")]}


async def slow(state: State) -> Any:
    note("slow begins")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("slow is stopped")
        raise
    return {}


async def fail(state: State) -> Any:
    raise ValueError("secret inside")


async def structured(state: State) -> Any:
    return {"structured_response": {"city": "Rome", "degrees": 21}}


NODES = {
    "weather": weather,
    "question": question,
    "delete": delete,
    "slow": slow,
    "fail": fail,
    "structured": structured,
}
builder = StateGraph(State)
builder.add_node("answer", answer)
for name, node in NODES.items():
    builder.add_node(name, node)
    builder.add_edge(name, END if name == "structured" else "answer")
builder.add_conditional_edges(START, wanted, [*NODES, "answer"])
builder.add_edge("answer", END)
graph = builder.compile(name="Desk")
