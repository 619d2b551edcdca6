"""Flows of CrewAI: what a human is asked, the client is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Part, TaskState
from dragoman.client import Client, Result
from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs CrewAI")
C, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Desk]]:
    """Serves an object of `desks/crewai_flows.py`."""
    desks = []

    def serve(served: str) -> Desk:
        desk = Desk(Framework("crewai", "crewai_flows", served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"CrewAI cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


def data(result: Result) -> list[Any]:
    """The data of the artifacts."""
    assert result.task is not None
    return [part.data for artifact in result.task.artifacts for part in artifact.parts]


async def test_a_review_over_crashes(serve: Callable[[str], Desk]) -> None:
    desk = serve("Writer")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert client.card.name == "Writer"
        assert client.card.description == "Writes about a topic."
        asked = await client.send([Part(text="Rome"), Part(data={"drafts": 3})])
        assert asked.state is ASKS
        assert asked.text == "About Rome\n\nIs this right? (approved, changed)"
        desk.kill()
        desk.start()
        assert asked.task is not None
        asked = await client.send("shorter", task=asked.task.id)
        assert asked.state is ASKS
        assert asked.text.startswith("About Rome, shorter\n")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("very well", task=asked.task.id)
        assert result.state is C
        (found,) = data(result)
        assert (found["text"], found["drafts"]) == ("About Rome, shorter", 5)
    assert desk.done == ["draft", "judge", "change", "judge", "publish"]


@pytest.mark.parametrize("served", ["Writer", "Stored"])
async def test_a_conversation_keeps_the_state(serve: Callable[[str], Desk], served: str) -> None:
    desk = serve(served)
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        ids = set()
        for number, context in ((1, "a"), (2, "a"), (1, "b")):
            asked = await client.send("Rome", context=context)
            if number == 2:
                desk.kill()
                desk.start()
            assert asked.task is not None
            result = await client.send("very well", task=asked.task.id)
            (found,) = data(result)
            assert found["drafts"] == number
            ids.add(found["id"])
    assert len(ids) == 2
    assert not ids & {"a", "b"}
    if served == "Stored":
        assert {line.removeprefix("session ") for line in desk.done if "session" in line} == ids


async def test_a_canceled_review_is_forgotten(serve: Callable[[str], Desk]) -> None:
    desk = serve("Writer")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("Rome", context="c")
        assert asked.task is not None
        await client.task(asked.task.id).cancel()
        asked = await client.send("Paris", context="c")
        assert asked.text.startswith("About Paris\n")


async def test_a_method_asks(serve: Callable[[str], Desk]) -> None:
    desk = serve("Painter")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        # nobody says the id of a state
        asked = await client.send([Part(text="A house"), Part(data={"id": "x"})])
        assert (asked.state, asked.text) == (ASKS, "Which color?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        photo = Part(raw=b"x", media_type="image/png", filename="red.png")
        asked = await client.send([Part(text="red"), photo], task=asked.task.id)
        assert (asked.state, asked.text) == (ASKS, "Which frame?")
        assert asked.task is not None
        result = await client.send("wood", task=asked.task.id)
        assert result.state is C
        assert result.text.startswith("A house in red\n(The user has sent a file, red.png,")
        assert result.text.endswith(f" with wood, {desk.done[-1]}")
        assert not result.text.endswith("x")
    assert desk.done[::2] == ["paint"] * 3


async def test_an_agent_in_a_flow(serve: Callable[[str], Desk]) -> None:
    desk = serve("Helped")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send("weather")
        assert result.text == "The tool says: sunny in Rome"
        assert result.task is not None
        assert "Calling weather" in [message.text for message in result.task.history]


async def test_a_cancel_stops_a_flow(serve: Callable[[str], Desk]) -> None:
    desk = serve("Slow")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send("go", wait=False)
        while "slow begins" not in desk.done:
            await asyncio.sleep(0.05)
        assert result.task is not None
        canceled = await client.task(result.task.id).cancel()
        assert canceled.status.state is TaskState.CANCELED
        while "slow is stopped" not in desk.done:
            await asyncio.sleep(0.05)
        assert "after" not in desk.done


async def test_a_client_sets_only_the_inputs(serve: Callable[[str], Desk]) -> None:
    desk = serve("narrow")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        for given in ({"drafts": 3}, {"id": "x"}, {"topic": 5}):
            result = await client.send([Part(text="Rome"), Part(data=given)])
            assert result.state is TaskState.FAILED
            assert result.text == "The message must have data with the fields topic"


@pytest.mark.parametrize(
    ("served", "words"),
    [
        ("instance", "give serve() its class"),
        ("Heir", "has no method that starts it"),
        ("Chat", "conversational flows are not served"),
    ],
)
def test_what_cannot_be_served_is_refused(
    serve: Callable[[str], Desk], served: str, words: str
) -> None:
    with pytest.raises(RuntimeError, match="did not start") as refused:
        serve(served)
    assert words in str(refused.value)
    assert "Traceback" not in str(refused.value)
