"""An agent, served as an MCP server, that is served as an agent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dragoman import App, TaskState, TaskStatusUpdateEvent
from dragoman.client import Client
from dragoman.mcp import HTTPServer, agent, mounts
from tests.harness.server import served
from tests.products.mcp import served_agents as desk

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = {"message": "Hello"}


@pytest.fixture(scope="module")
async def again() -> AsyncIterator[Client]:
    """A client of the agent that is made of the MCP server of an agent."""
    app = App(desk.desk, mounts=mounts(desk.desk), drain_timeout=0.2)
    async with (
        served(app) as server,
        App(agent(HTTPServer(url=f"{server.url}/mcp")), store="memory:") as outer,
        Client.connect("http://agent.example", app=outer) as client,
    ):
        yield client


async def test_skills_and_data(again: Client) -> None:
    assert {*desk.desk.skills} <= {*again.skills}
    assert await again.call_skill("book", city="Rome") == {"reference": "FL-Rome", "seats": 1}


async def test_progress(again: Client) -> None:
    async with again.stream(HELLO, skill="progress") as stream:
        said = [
            e.text for e in [*[x async for x in stream]] if isinstance(e, TaskStatusUpdateEvent)
        ]
    assert [word for word in said if word in ("searching", "comparing")] == [
        "searching",
        "comparing",
    ]
    assert stream.text == "Found"


async def test_questions(again: Client) -> None:
    asked = await again.send(HELLO, skill="chat")
    assert asked.task is not None
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.text.startswith("Which date?")
    assert (await again.task(asked.task.id).reply("On Monday")).text == "Booked On Monday"
    asked = await again.send({"city": "Rome"}, skill="reserve")
    assert asked.task is not None
    assert asked.data["properties"] == {"nights": {"type": "integer"}}
    made = await again.task(asked.task.id).reply({"nights": 3})
    assert made.data == {"reference": "HO-Rome", "seats": 3}


async def test_files(again: Client) -> None:
    result = await again.send(HELLO, skill="files")
    assert [(part.media_type, part.filename) for part in result.files] == [
        ("image/png", "seat.png"),
        ("application/pdf", "ticket.pdf"),
        ("application/pdf", "terms.pdf"),
    ]
    assert result.files[0].raw == desk.PNG


async def test_failure_and_cancel(again: Client) -> None:
    failed = await again.send(HELLO, skill="fail")
    assert failed.state is TaskState.FAILED
    assert "No seats are left" in failed.text
    desk.began, desk.released = asyncio.Event(), asyncio.Event()
    begun = await again.send(HELLO, skill="wait", wait=False)
    assert begun.task is not None
    async with asyncio.timeout(10):
        await desk.began.wait()
        await again.task(begun.task.id).cancel()
        await desk.released.wait()
