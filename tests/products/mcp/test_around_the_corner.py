"""An agent as tools of MCP, and that MCP server as an agent again: nothing is lost in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

from dragoman import Agent, App, Part, TaskState, Turn
from dragoman.client import Client
from dragoman.mcp import agent, mounts
from tests.harness.server import serving
from tests.products.mcp.desk import NEW, OLD, calling, older

SEATS = {
    "type": "object",
    "properties": {"seats": {"type": "integer", "minimum": 1}},
    "required": ["seats"],
}
ROOMS = {
    "type": "object",
    "properties": {"rooms": {"type": "array", "items": {"type": "object"}}},
}


PATIENCE = 0.5
TASKS = "io.modelcontextprotocol/tasks"


class Travel:
    """An agent that reports, asks, and brings data and files."""

    def __init__(self) -> None:
        self.canceled = asyncio.Event()
        self.runs = self.begun = 0
        self.go_on = asyncio.Event()
        self.agent = Agent("Travel", description="Books.")
        self.agent.skill(durable=True)(self.book)
        self.agent.skill(self.rooms)
        self.agent.skill(self.price)
        self.agent.skill(self.wait)
        self.agent.skill(self.long)
        self.agent.handler(self.price)

    async def book(
        self, turn: Turn, day: Annotated[str, Meta(description="Which day")]
    ) -> AsyncIterator[Any]:
        """Books seats."""
        yield turn.working(f"Looking at {day}")
        said = await turn.ask_for([Part(text="How many seats?"), Part(data=SEATS)])
        self.runs += 1
        yield turn.working("Booking")
        yield turn.artifact({"said": turn_data(said), "day": day}, name="booking")
        picture = Part(raw=b"\x89PNG", media_type="image/png", filename="a.png")
        yield turn.artifact([Part(text="ticket"), picture], name="ticket")

    async def rooms(self, turn: Turn) -> Any:
        """Asks for something nested."""
        if turn.data is None:
            return turn.ask([Part(text="Which rooms?"), Part(data=ROOMS)])
        return turn.artifact(turn.data)

    async def price(self, turn: Turn) -> int:
        """Fails."""
        return turn.fail("sold out")  # type: ignore[return-value]

    async def long(self, turn: Turn) -> AsyncIterator[Any]:
        """Takes longer than an MCP client waits."""
        self.begun += 1
        yield turn.working("far away")
        await self.go_on.wait()
        yield turn.artifact("at last")

    async def wait(self, turn: Turn) -> None:
        """Waits to be canceled."""
        try:
            await asyncio.sleep(3600)
        finally:
            self.canceled.set()


def turn_data(message: Any) -> Any:
    """The data of an answer, or its words."""
    return next((part.data for part in message.parts if part.text is None), message.text)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that goes on is looked at again soon."""
    monkeypatch.setattr("dragoman.mcp.client.tool_call.FIRST_PAUSE", 0.1)


@pytest.fixture(params=[OLD, NEW])
async def travel(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Travel, Client]]:
    inner = Travel()
    app = App(inner.agent, mounts=mounts(inner.agent, patience=PATIENCE), store="memory:")
    served = app if request.param == NEW else older(app, request.param)
    async with serving(served) as url, calling(agent(f"{url}/mcp", name="travel")) as client:
        yield inner, client


async def test_questions_and_progress_survive_both_translations(
    travel: tuple[Travel, Client],
) -> None:
    inner, client = travel
    said, task = [], ""
    async with client.stream({"day": "Monday"}, skill="book") as stream:
        async for event in stream:
            status = getattr(event, "status", None)
            if status is not None and status.message is not None:
                said.append((status.state, status.message.text))
                task = event.task_id if hasattr(event, "task_id") else event.id
    assert (TaskState.WORKING, "Looking at Monday") in said
    state, words = said[-1]
    assert state is TaskState.INPUT_REQUIRED
    assert words.startswith("How many seats?")
    asked = await client.task(task).get()
    schema = asked.status.message.parts[1].data
    assert schema["properties"]["seats"]["minimum"] == 1
    told = await client.task(task).reply({"seats": 2})
    assert told.state is TaskState.COMPLETED
    booking, ticket = told.task.artifacts
    assert booking.name == "booking"
    assert booking.parts[0].data == {"said": {"seats": 2}, "day": "Monday"}
    assert ticket.parts[0].text == "ticket"
    assert (ticket.parts[1].raw, ticket.parts[1].filename) == (b"\x89PNG", "a.png")
    assert inner.runs == 1


async def test_the_schema_of_a_skill_survives(travel: tuple[Travel, Client]) -> None:
    _, client = travel
    schema = client.skills["book"].input
    assert schema is not None
    assert schema["properties"]["day"]["description"] == "Which day"
    assert schema["required"] == ["day"]


async def test_a_nested_answer_survives(travel: tuple[Travel, Client]) -> None:
    _, client = travel
    asked = await client.send({"message": "book"}, skill="rooms")
    assert asked.state is TaskState.INPUT_REQUIRED
    told = await client.task(asked.task.id).reply({"rooms": [{"beds": 2}]})
    assert told.parts[0].data == {"rooms": [{"beds": 2}]}


async def test_a_failure_survives(travel: tuple[Travel, Client]) -> None:
    _, client = travel
    failed = await client.send({"message": "how much"}, skill="price")
    assert (failed.state, failed.text) == (TaskState.FAILED, "The task has failed: sold out")


async def test_a_cancel_survives(travel: tuple[Travel, Client]) -> None:
    inner, client = travel
    began = await client.send({"message": "x"}, skill="wait", wait=False)
    await asyncio.sleep(0.2)
    await client.task(began.task.id).cancel()
    async with asyncio.timeout(10):
        await inner.canceled.wait()


async def test_a_call_that_becomes_a_task_is_followed_to_its_end(
    travel: tuple[Travel, Client],
) -> None:
    inner, client = travel
    assert "get_task" not in client.skills
    began = await client.send({"message": "x"}, skill="long", wait=False)
    assert await logged(client, began.task.id, "far away")
    await asyncio.sleep(2 * PATIENCE)  # the MCP server answers that the task goes on
    inner.go_on.set()
    told = await client.task(began.task.id).wait()
    assert told.artifacts[0].parts[0].text == "at last"


async def test_the_cancel_of_a_call_that_became_a_task(travel: tuple[Travel, Client]) -> None:
    inner, client = travel
    began = await client.send({"message": "x"}, skill="wait", wait=False)
    await asyncio.sleep(2 * PATIENCE)
    await client.task(began.task.id).cancel()
    async with asyncio.timeout(10):
        await inner.canceled.wait()


async def logged(client: Client, task: str, words: str) -> bool:
    """Whether a task says these words, in time."""
    async with asyncio.timeout(10):
        while words not in str((await client.task(task).get()).status.text):
            await asyncio.sleep(0.05)
    return True


# ---- a server whose tools run only as tasks (SEP-2663) -----------------------------------------


@pytest.fixture
async def tasks() -> AsyncIterator[tuple[Travel, Client]]:
    inner = Travel()
    app = App(inner.agent, mounts=mounts(inner.agent), store="memory:")
    async with (
        serving(only_tasks(app)) as url,
        calling(agent(f"{url}/mcp", name="travel")) as client,
    ):
        yield inner, client


def only_tasks(app: Any) -> Any:
    """The application, which refuses calls of clients without the extension for tasks."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        message = json.loads(body)
        declared = str(message.get("params", {}).get("_meta", {}))
        if message.get("method") == "tools/call" and TASKS not in declared:
            needed = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            error = {"code": -32021, "message": "Declare the extension", "data": needed}
            answer = {"jsonrpc": "2.0", "id": message["id"], "error": error}
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
            return
        events = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return events.pop() if events else await receive()

        await app(scope, replay, send)

    return serve


async def test_a_tool_that_runs_only_as_a_task(tasks: tuple[Travel, Client]) -> None:
    inner, client = tasks
    asked = await client.send({"day": "Monday"}, skill="book")
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.parts[1].data["properties"]["seats"]["minimum"] == 1
    told = await client.task(asked.task.id).reply({"seats": 2})
    assert told.task.artifacts[0].parts[0].data == {"said": {"seats": 2}, "day": "Monday"}
    assert inner.runs == 1
    failed = await client.send({"message": "how much"}, skill="price")
    assert failed.state is TaskState.FAILED
    assert "sold out" in failed.text


async def test_progress_and_cancel_of_a_task_of_the_server(tasks: tuple[Travel, Client]) -> None:
    inner, client = tasks
    began = await client.send({"message": "x"}, skill="long", wait=False)
    assert await logged(client, began.task.id, "far away")
    inner.go_on.set()
    assert (await client.task(began.task.id).wait()).artifacts[0].parts[0].text == "at last"
    began = await client.send({"message": "x"}, skill="wait", wait=False)
    await asyncio.sleep(0.3)
    await client.task(began.task.id).cancel()
    async with asyncio.timeout(10):
        await inner.canceled.wait()


@pytest.mark.parametrize("extension", [False, True])
async def test_a_task_of_the_server_is_followed_after_a_restart(
    extension: bool, tmp_path: Path
) -> None:
    inner = Travel()
    app = App(inner.agent, mounts=mounts(inner.agent, patience=PATIENCE), store="memory:")
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with serving(only_tasks(app) if extension else app) as url:

        def travel() -> Any:
            made = agent(f"{url}/mcp", name="travel")
            return calling(made, store=store, drain_timeout=0.1, cancel_grace=0.1)

        async with travel() as client:
            began = await client.send({"message": "x"}, skill="long", wait=False)
            assert await logged(client, began.task.id, "far away")
            await asyncio.sleep(3 * PATIENCE)
        async with travel() as client:
            inner.go_on.set()
            told = await client.task(began.task.id).wait()
            assert told.status.state is TaskState.COMPLETED, told.status.text
            assert told.artifacts[0].parts[0].text == "at last"
    assert inner.begun == 1
