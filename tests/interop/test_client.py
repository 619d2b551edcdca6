"""Our client against the reference SDK's own server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette

from dragoman import TaskState
from dragoman.client import Client, Unreachable
from dragoman.client.engine import Request, Response, Sockets
from dragoman.errors import TaskNotFound, UnsupportedOperation
from tests.client.test_client import Cut
from tests.serving import serving

BINDINGS = ["JSONRPC", "HTTP+JSON"]


class Desk(AgentExecutor):
    """Does what the text says, in the SDK's own idiom."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do it."""
        task = context.current_task
        if task is None:
            assert context.message is not None
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        verb, _, rest = context.get_user_input().partition(" ")
        if verb == "ask":
            await updater.requires_input(updater.new_agent_message([new_text_part("Which?")]))
            return
        if verb == "wait":
            await asyncio.sleep(30)
        if verb == "count":
            for number in range(int(rest)):
                await updater.add_artifact(
                    [new_text_part(f"{number},")], artifact_id="a", append=number > 0
                )
                await asyncio.sleep(0.005)
        else:
            await updater.add_artifact([new_text_part(context.get_user_input())], name="echo")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """End it."""
        assert context.current_task is not None
        task = context.current_task
        await TaskUpdater(event_queue, task.id, task.context_id).cancel()


def desk(port: int) -> Starlette:
    """The application of the reference SDK, with both of its HTTP bindings."""
    card = AgentCard(
        name="Desk",
        description="Does what the text says.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(
                url=f"http://127.0.0.1:{port}{path}", protocol_binding=name, protocol_version="1.0"
            )
            for name, path in (("JSONRPC", "/rpc"), ("HTTP+JSON", "/rest"))
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="desk", name="desk", description="Works.", tags=["x"])],
    )
    handler = DefaultRequestHandler(
        agent_executor=Desk(), task_store=InMemoryTaskStore(), agent_card=card
    )
    return Starlette(
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/rpc"),
            *create_rest_routes(handler, path_prefix="/rest"),
        ]
    )


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """The reference server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with serving(desk(port), port=port) as url:
        yield url


@pytest.fixture(params=BINDINGS)
async def client(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Client]:
    """Our client of it, over each binding."""
    async with Client.connect(url, bindings=[request.param]) as client:
        yield client


async def test_discovery(url: str) -> None:
    async with Client.connect(url) as client:
        assert client.card.name == "Desk"
        assert client.interface.protocol_binding == "JSONRPC"  # the agent's first
        assert not client.resumes


async def test_send_and_several_turns(client: Client) -> None:
    result = await client.send("hello")
    assert (result.state, result.text) == (TaskState.COMPLETED, "hello")
    asked = await client.send("ask")
    assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Which?")
    assert asked.task is not None
    done = await client.task(asked.task.id).reply("this one")
    assert (done.state, done.text) == (TaskState.COMPLETED, "this one")


async def test_stream(client: Client) -> None:
    async with client.stream("count 10") as stream:
        events = [event async for event in stream]
    assert len(events) >= 12
    assert stream.result.state is TaskState.COMPLETED
    assert stream.result.text == "".join(f"{number}," for number in range(10))


async def test_tasks(client: Client) -> None:
    first = await client.send("one")
    begun = await client.send("wait", wait=False)
    assert first.task is not None
    assert begun.task is not None
    assert (await client.task(first.task.id).get()).id == first.task.id
    found = {task.id async for task in client.list()}
    assert {first.task.id, begun.task.id} <= found
    assert (await client.task(begun.task.id).cancel()).status.state is TaskState.CANCELED
    with pytest.raises(TaskNotFound):
        await client.task("unknown").get()
    with pytest.raises(UnsupportedOperation):
        async with client.task(first.task.id).subscribe() as stream:
            _ = [event async for event in stream]


class Once(Sockets):
    """Breaks the first stream off after so many bytes."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place: int | None = place

    async def send(self, request: Request) -> Response:
        """Cut what streams first."""
        response = await super().send(request)
        streams = response.headers.get("content-type", "").startswith("text/event-stream")
        if not streams or self._place is None:
            return response
        place, self._place = self._place, None
        return Cut(response, place)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("place", [700, 1100, 1900, 2600])
async def test_a_stream_that_is_cut_comes_to_the_right_end(
    url: str, binding: str, place: int
) -> None:
    connected: Any = Client.connect(url, bindings=[binding], engine=Once(place))
    async with connected as client, asyncio.timeout(20), client.stream("count 20") as stream:
        try:
            _ = [event async for event in stream]
        except Unreachable:
            pytest.fail("it gave up")
        assert stream.result.state is TaskState.COMPLETED
        assert stream.result.text == "".join(f"{number}," for number in range(20))
