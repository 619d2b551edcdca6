"""Workflows of Microsoft's Agent Framework, and what is logged of an agent's work."""

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

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs the framework")
C, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Desk]]:
    """Serves an object of `desks/microsoft_kinds.py`."""
    desks = []

    def serve(served: str) -> Desk:
        desk = Desk(Framework("microsoft", "microsoft_kinds", served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"the framework cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


async def test_a_workflow_asks_and_remembers(serve: Callable[[str], Desk]) -> None:
    desk = serve("trips")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert client.card.name == "Guided"
        for number, context in ((1, "a"), (2, "a"), (1, "b")):
            asked = await client.send("hello", context=context)
            assert (asked.state, asked.text) == (ASKS, "Which city?")
            desk.kill()
            desk.start()
            assert asked.task is not None
            result = await client.send("Rome", task=asked.task.id)
            assert result.state is C
            assert result.task is not None
            data = [part.data for artifact in result.task.artifacts for part in artifact.parts]
            assert data == [{"city": "Rome", "trips": number}]
    assert desk.done == ["trip to Rome"] * 3


@pytest.mark.parametrize("approved", [True, False])
async def test_an_agent_in_a_workflow_needs_an_approval(
    serve: Callable[[str], Desk], approved: bool
) -> None:
    desk = serve("pair")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("hello")
        assert asked.state is TaskState.AUTH_REQUIRED
        assert asked.task is not None
        assert asked.grant is not None
        handle = client.task(asked.task.id)
        answer = handle.approve if approved else handle.decline
        result = await answer(asked.grant)
        assert result.state is C
        assert result.task is not None
        texts = {artifact.name: artifact.text for artifact in result.task.artifacts}
    assert ("deleted /tmp/x" in texts["one"]) is approved
    assert texts["two"] == "second"
    assert desk.done.count("delete") == approved


async def test_what_a_tool_did_is_done_again_without_it(serve: Callable[[str], Desk]) -> None:
    desk = serve("photographer")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("hello")
        assert (asked.state, asked.text) == (ASKS, "Keep it?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("yes", task=asked.task.id)
        # the picture is too large for one entry of the log
        assert (result.state, result.text) == (C, "True 1 taken")
    assert desk.done.count("camera") == 1
    assert desk.done.count("model") == 4


async def test_middleware_changes_what_is_streamed(serve: Callable[[str], Desk]) -> None:
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
    assert chunks == ["SECRET ", "WORDS"]


def test_a_workflow_that_all_would_share_is_refused(serve: Callable[[str], Desk]) -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        serve("shared")
