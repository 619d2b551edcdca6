"""Our client against servers that others wrote: what it is used for every day."""

from __future__ import annotations

import pytest

from dragoman import TaskState
from dragoman.client import Client
from dragoman.model.errors import TaskNotFound
from dragoman.model.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from tests.interop.peers import EVERY, Peer


@pytest.fixture(params=EVERY, ids=str)
def peer(request: pytest.FixtureRequest) -> Peer:
    """Each of them, always."""
    found: Peer = request.param
    return found


async def test_discovery(peer: Peer, client: Client) -> None:
    assert client.card.name == "Desk"
    assert client.card.description == "Does what the text says."
    assert client.card.supported_interfaces[0].protocol_binding == "JSONRPC"
    assert client.interface.protocol_binding == peer.binding
    assert client.card.capabilities.streaming
    assert not client._connection.resumes


async def test_send(client: Client) -> None:
    result = await client.send("hello there")
    assert (result.state, result.text) == (TaskState.COMPLETED, "hello there")
    assert result.task is not None
    assert await client.task(result.task.id).get() == result.task


async def test_stream(client: Client) -> None:
    async with client.stream("count 10") as stream:
        first, *events = [event async for event in stream]
    assert isinstance(first, Task)
    chunks = [event for event in events if isinstance(event, TaskArtifactUpdateEvent)]
    assert [chunk.append for chunk in chunks] == [False] + [True] * 9
    assert isinstance(events[-1], TaskStatusUpdateEvent)
    assert stream.result.state is TaskState.COMPLETED
    assert stream.result.text == "0,1,2,3,4,5,6,7,8,9,"
    assert stream.task is not None
    told = await client.task(first.id).get()
    # these agents keep each chunk apart
    assert [artifact.text for artifact in told.artifacts] == [
        artifact.text for artifact in stream.task.artifacts
    ]


async def test_several_turns(peer: Peer, client: Client) -> None:
    asked = await client.send("ask")
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.task is not None
    assert asked.text == "Which?"  # wherever it is
    assert bool(asked.task.status.message) == peer.offers("asks in its status")
    if peer.offers("goes on with a task"):
        done = await client.task(asked.task.id).reply("this one")
        assert done.task is not None
        assert done.task.id == asked.task.id
    else:
        done = await client.send("this one", context=asked.task.context_id)
        assert done.task is not None
        assert done.task.context_id == asked.task.context_id
    assert (done.state, done.text) == (TaskState.COMPLETED, "this one")


async def test_cancel(peer: Peer, client: Client) -> None:
    async with peer.begun(client, "wait") as remote:
        begun = await remote.get()
        assert begun.status.state in (TaskState.SUBMITTED, TaskState.WORKING)
        answer = await remote.cancel()
        if peer.offers("cancels before it answers"):
            assert answer.status.state is TaskState.CANCELED
        assert (await remote.wait()).status.state is TaskState.CANCELED


async def test_a_task_that_is_not_there(client: Client) -> None:
    with pytest.raises(TaskNotFound):
        await client.task("unknown").get()
