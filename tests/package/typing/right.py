"""What a user may write: type checkers find nothing wrong."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, assert_type
from uuid import UUID

from msgspec import Meta

import dragoman
from dragoman import (
    Agent,
    App,
    AppOptions,
    Caller,
    ContextChanged,
    ConversationMessage,
    Handover,
    Message,
    Part,
    RemoteTask,
    Task,
    Turn,
    UserError,
)
from dragoman.client import Client, HandedOverTask, RemoteSkill, Result, Stream, TaskHandle
from dragoman.client.sync import Client as SyncClient
from dragoman.registry import Entry, Hit, Hits, Reference, Registry, RegistryApp
from dragoman.security import Anonymous
from dragoman.stores.memory import MemoryStore

agent = Agent("Flight Booking Agent", description="Books flights.", version="1.0.0")


@agent.skill(tags=["travel"], examples=["Book me a flight"])
async def book_flight(turn: Turn) -> AsyncIterator[object]:
    """Book a flight."""
    assert_type(turn.text, str)
    assert_type(turn.files, list[Part])
    assert_type(turn.history, tuple[Message, ...])
    assert_type(turn.task, Task)
    assert_type(turn.delegated, tuple[RemoteTask, ...])
    assert_type(await turn.context_tasks(limit=7), list[Task])
    for said in await turn.conversation(limit=7, characters=100):
        assert_type(said, ConversationMessage)
        assert_type(said.text, str)
    if not turn.text:
        raise UserError("No seats on that day")
    yield turn.working("Looking for seats")
    yield turn.artifact("FL-0427", name="confirmation")


@dataclass
class Booking:
    """A booking."""

    city: str
    nights: int


@agent.skill
async def book_hotel(
    city: str, nights: Annotated[int, Meta(ge=1, description="How many nights")] = 2
) -> Booking:
    """Book a room."""
    return Booking(city, nights)


@agent.skill(ask=True, input_modes=["image/*"])
def develop(turn: Turn, photo: Part, mask: bytes | None = None) -> int:
    """Develop a photo."""
    return len(photo.raw or b"")


assert_type(asyncio.run(book_hotel("Rome", nights=3)), Booking)


@agent.skill
async def remember(turn: Turn) -> str:
    """Remember what was said."""
    assert_type(await turn.context_saved(), Any)
    try:
        await turn.save_context({"text": turn.text})
        await turn.save(b"bytes")
    except ContextChanged as error:
        return str(error)
    return "remembered"


@agent.handler
def echo(turn: Turn) -> str:
    """Say it again."""
    return turn.text


async def quote(item: str) -> Booking:
    """Ask a supplier."""
    return Booking(item, 1)


def count(text: str) -> int:
    """Count the characters."""
    return len(text)


@agent.skill(durable=True, timeout=3600.0, version="2", one_at_a_time="context")
async def order(turn: Turn, item: str) -> AsyncIterator[object]:
    """Order something."""
    assert_type(await turn.step("quote", quote, item, retries=3, timeout=5.0), Booking)
    assert_type(await turn.step("count", count, item, once=True), int)
    assert_type(await turn.ask_for("Shall I buy?"), Message)
    assert_type(await turn.receive(timeout=60), Message | None)
    await turn.sleep(days=1, hours=2)
    assert_type(turn.now(), datetime)
    assert_type(turn.uuid(), UUID)
    assert_type(turn.random(), float)
    assert_type(turn.version, str)
    async with turn.connect("https://agent.example") as client:
        assert_type(await turn.wait(client.task("t")), Task)
    await turn.save({"item": item})
    assert_type(turn.saved, Any)
    assert_type(await turn.hand_over(timeout=60), Handover)
    yield turn.artifact("done")


async def finish(handover: str | Handover) -> None:
    """Finish a task that was handed over."""
    async with dragoman.resume(handover) as task:
        assert_type(task, HandedOverTask)
        assert_type(task.ended, bool)
        await task.write("chunk", name="report", last=True)
        await task.complete("Done")


app = App(agent)
app = App(agent, store="memory:", bell="memory:", max_body=3, lease=30, log_level="info")
app = App(agent, agent, store=MemoryStore(), auth=Anonymous(), bindings=["JSONRPC"], push=True)
app = App(agent, auth=[{"scheme": "anonymous"}], grpc_port=None, serve_only=False)
options: AppOptions = {"max_body": 3, "versions": ("1.0",)}
app = App(agent, **options)


async def call() -> None:
    """Call an agent."""
    async with Client.connect("https://agent.example", timeout=5.0) as client:
        assert_type(client, Client)
        assert_type(await client.send("hello", skill="echo"), Result)
        assert_type(client.stream("hello"), Stream)
        assert_type(client.task("t"), TaskHandle)
        assert_type(await client.call_skill("book_hotel", city="Rome", returns=Booking), Booking)
        assert_type(await client.call_skill("book_hotel", {"city": "Rome"}, returns=Result), Result)
        assert_type(await client.call_skill("count", returns=list[int]), list[int])
        assert_type(await client.call_skill("greet", options={"task": "t"}), Any)
        assert_type(client.skills["book_hotel"], RemoteSkill)
        async for task in client.list():
            assert_type(task, Task)


async def find() -> None:
    """Ask a registry."""
    async with Registry("https://agents.example") as registry:
        hits = await registry.search("book a flight", tags=["travel"], limit=5)
        assert_type(hits, Hits)
        for hit in hits:
            assert_type(hit, Hit)
        assert_type(await registry.get("desk"), Entry)
        assert_type(await registry.query(tags=["travel"]).find(), list[Entry])
        assert_type(registry["desk"], Reference)
        async with Client.connect(registry["desk"]) as client:
            assert_type(client, Client)


async def share(app: App) -> None:
    """What applications beside agents use."""
    assert_type(await app.secret("cookies"), bytes)
    assert_type(await app.reserve("space", "key", b"value", keep=None), bytes)
    async with Client.connect(app=app.for_caller(Caller(identity="ann"))) as client:
        await client.send("hello")


mounted = App(agent, mounts={"/registry": RegistryApp("sqlite:///agents.db", accept=["version"])})


def call_and_wait() -> None:
    """Call an agent from synchronous code."""
    with SyncClient.connect("https://agent.example") as client:
        assert_type(client.call_skill("book_hotel", city="Rome", returns=Booking), Booking)
        assert_type(client.call_skill("greet", name="Ann"), Any)
        assert_type(client.skills["book_hotel"].ask, bool)


if __name__ == "__main__":
    agent.serve(port=8080, store=MemoryStore())
    dragoman.serve(agent, app, store="sqlite:///tasks.db", auth=Anonymous(), max_running=4)
