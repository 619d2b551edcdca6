"""What a user may write: type checkers find nothing wrong."""

from collections.abc import AsyncIterator
from typing import assert_type

import dragoman
from dragoman import (
    Agent,
    App,
    AppOptions,
    ConversationMessage,
    Message,
    Part,
    RemoteTask,
    Task,
    Turn,
    UserError,
)
from dragoman.client import Client, Result, Stream, TaskHandle
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


@agent.handler
def echo(turn: Turn) -> str:
    """Say it again."""
    return turn.text


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
        async for task in client.list():
            assert_type(task, Task)


if __name__ == "__main__":
    agent.serve(port=8080, store=MemoryStore())
    dragoman.serve(agent, app, store="sqlite:///tasks.db", auth=Anonymous(), max_running=4)
