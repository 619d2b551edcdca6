"""The desk as a graph of LangGraph, with a model that follows a script."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from script import note, times, unreadable

from dragoman.bridges import langgraph


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
        if last.content == "files":
            blocks = [b for m in messages for b in m.content if isinstance(m.content, list)]
            return [f"{sum(block['type'] == 'image' for block in blocks)} files"]
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
        note("model")
        last = messages[-1].content
        if last == "half" and times("half") == 0:
            yield ChatGenerationChunk(message=AIMessageChunk(content="You said "))
            note("half")
            await asyncio.sleep(60)
        for word in self._words(messages):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        if last == "picture":
            block = {"type": "image", "base64": "cGl4ZWxz", "mime_type": "image/png"}
            yield ChatGenerationChunk(message=AIMessageChunk(content=[block]))
        used = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=used))


@dataclass
class Weather:
    """A forecast."""

    city: str
    degrees: int


class State(MessagesState):
    """The conversation, and a forecast."""

    structured_response: Weather | None


model = Script()


def wanted(state: State) -> str:
    text = str(state["messages"][-1].content)
    return text if text in NODES else "answer"


async def answer(state: State) -> Any:
    return {"messages": [await model.ainvoke(state["messages"])], "structured_response": None}


async def weather(state: State) -> Any:
    call = {"name": "weather", "args": {"city": "Rome"}, "id": "1"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


async def sky(state: State) -> Any:
    note("weather")
    return {"messages": [ToolMessage("sunny in Rome", tool_call_id="1")]}


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
    return {"structured_response": Weather("Rome", 21)}


NODES = {
    "weather": weather,
    "question": question,
    "delete": delete,
    "slow": slow,
    "fail": fail,
    "structured": structured,
}
NEXT = {"structured": END, "weather": "sky"}
builder = StateGraph(State)
builder.add_node("answer", answer)
for name, node in NODES.items():
    builder.add_node(name, node)
    builder.add_edge(name, NEXT.get(name, "answer"))
builder.add_node("sky", sky)
builder.add_edge("sky", "answer")
builder.add_conditional_edges(START, wanted, [*NODES, "answer"])
builder.add_edge("answer", END)
desk = builder.compile(name="Desk")


class FileSaver(SqliteSaver):
    """A checkpointer of the user's own, in a file."""

    async def aget_tuple(self, config: Any) -> Any:
        note(f"session {config['configurable']['thread_id']}")
        return self.get_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[Any]:
        for found in self.list(config, **options):
            yield found

    async def aput(self, *given: Any) -> Any:
        return self.put(*given)

    async def aput_writes(self, *given: Any) -> None:
        self.put_writes(*given)


file = Path(os.environ["EFFECTS"]).with_name("checkpoints.db")
saver = FileSaver(sqlite3.connect(file, check_same_thread=False))
own = builder.compile(name="Desk", checkpointer=saver)
by_words = langgraph.serve(desk, approvals="text")
unreadable = unreadable("langgraph")


async def booking(state: MessagesState) -> Any:
    """A node that calls a remote agent."""
    wanted = "pay" if state["messages"][-1].content == "pay" else "book"
    (tool,) = [t for t in await langgraph.tools(os.environ["REMOTE"]) if t.name == wanted]
    return {"messages": [AIMessage(await tool.ainvoke({"city": "Rome"}))]}


trip = StateGraph(MessagesState)
trip.add_node("booking", booking)
trip.add_edge(START, "booking")
host = trip.compile(name="Host")
