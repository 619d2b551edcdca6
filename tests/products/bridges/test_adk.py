"""What ADK has besides agents, and what is logged of an agent's work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman import TaskArtifactUpdateEvent, TaskState
from dragoman.client import Client
from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs ADK")
C, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Desk]]:
    """Serves an object of `desks/adk_kinds.py`."""
    desks = []

    def serve(served: str) -> Desk:
        desk = Desk(Framework("adk", "adk_kinds", served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"ADK cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


async def test_a_workflow_asks(serve: Callable[[str], Desk]) -> None:
    desk = serve("trip")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("hello")
        assert (asked.state, asked.text) == (ASKS, "Which city?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("Rome", task=asked.task.id)
        assert result.state is C
        assert result.task is not None
        data = [part.data for artifact in result.task.artifacts for part in artifact.parts]
    assert data == [{"trip": "Rome"}]


async def test_a_sequence_goes_on_where_it_asked(serve: Callable[[str], Desk]) -> None:
    desk = serve("relay")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("hello")
        assert (asked.state, asked.text) == (ASKS, "Which?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("red", task=asked.task.id)
        assert result.state is C
        assert result.task is not None
        texts = {artifact.name: artifact.text.strip() for artifact in result.task.artifacts}
    assert texts == {"one": "first red", "two": "second"}
    assert desk.done == ["model"] * 3


async def test_what_a_tool_did_is_done_again_without_it(serve: Callable[[str], Desk]) -> None:
    desk = serve("photographer")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("hello")
        assert (asked.state, asked.text) == (ASKS, "Keep it?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("yes", task=asked.task.id)
        assert result.state is C
        # the picture itself is too large for one entry of the log
        assert result.text.strip() == "700000 bytes, 2 bytes, 1 taken"
        assert result.task is not None
        (file,) = (artifact for artifact in result.task.artifacts if artifact.name == "small.png")
        assert [part.raw for part in file.parts] == [b"\xff\x00"]
    assert desk.done.count("camera") == 1
    assert desk.done.count("model") == 4


async def test_a_callback_changes_what_is_streamed(serve: Callable[[str], Desk]) -> None:
    desk = serve("loud")
    chunks = []
    async with (
        asyncio.timeout(60),
        Client.connect(desk.url) as client,
        client.stream("hello") as stream,
    ):
        async for event in stream:
            if isinstance(event, TaskArtifactUpdateEvent):
                chunks.append(event.text)
    assert chunks == ["SECRET ", "WORDS "]


@pytest.mark.parametrize(("served", "name"), [("app", "an_app"), ("runner", "Runner")])
async def test_an_app_and_a_runner(serve: Callable[[str], Desk], served: str, name: str) -> None:
    desk = serve(served)
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert client.card.name == name
        for _ in range(2):
            result = await client.send("hello", context="c")
            assert (result.state, result.text.strip()) == (C, "quiet words")
