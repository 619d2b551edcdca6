"""What LlamaIndex has besides agents: workflows that call no model, several agents, and several
questions at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman import Part, TaskState
from dragoman.client import Client
from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import FRAMEWORKS, Desk

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs LlamaIndex")
C = TaskState.COMPLETED


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Desk]]:
    """Serves an object of the desk's module."""
    desks = []

    def serve(served: str) -> Desk:
        desk = Desk(FRAMEWORKS["LlamaIndex"].object(served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"LlamaIndex cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


async def test_a_workflow_of_its_own_events(serve: Callable[[str], Desk]) -> None:
    desk = serve("journey")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert client.card.name == "Journey"
        for runs in (1, 2):
            trip = [Part(data={"city": "Rome", "nights": 3})]
            asked = await client.send(trip, context="c")
            assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Your name?")
            desk.kill()
            desk.start()
            assert asked.task is not None
            result = await client.send("Ada", task=asked.task.id)
            assert result.state is C
            assert result.task is not None
            parts = [part for artifact in result.task.artifacts for part in artifact.parts]
            assert "".join(part.text or "" for part in parts) == "It costs 30"
            assert parts[-1].data == {"city": "Rome", "name": "Ada", "runs": runs}
    assert desk.done == ["plan", "ask", "book"] * 2


async def test_the_text_fills_the_only_field_that_is_required(serve: Callable[[str], Desk]) -> None:
    desk = serve("journey")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert (await client.send("Rome")).text == "Your name?"
        refused = await client.send([Part(text="Rome"), Part(raw=b"x")])
        assert refused.state is TaskState.FAILED
        assert "no files" in refused.text
        wrong = await client.send([Part(data={"city": 5})])
        assert wrong.state is TaskState.FAILED
        assert "city, nights" in wrong.text


async def test_an_event_takes_the_files_of_an_answer(serve: Callable[[str], Desk]) -> None:
    desk = serve("album")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("go")
        assert asked.text == "Which photo?"
        assert asked.task is not None
        photo = Part(raw=b"x" * 77, media_type="image/png", filename="x.png")
        result = await client.send([Part(text="this"), photo], task=asked.task.id)
        assert result.text == "this: x.png, image/png, 77 bytes"


async def test_several_agents(serve: Callable[[str], Desk]) -> None:
    desk = serve("several")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert (await client.send("one", context="c")).text == "You said one as message 1"
        assert (await client.send("two", context="c")).text == "You said two as message 2"
        asked = await client.send("question", context="c")
        assert asked.task is not None
        result = await client.send("red", task=asked.task.id)
        assert result.text == "The tool says: red"


async def test_each_of_two_approvals_has_an_answer_of_its_own(
    serve: Callable[[str], Desk],
) -> None:
    desk = serve("desk")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("delete both")
        texts = [asked.text]
        assert asked.task is not None
        assert asked.grant is not None
        desk.kill()
        desk.start()
        asked = await client.task(asked.task.id).approve(asked.grant)
        texts.append(asked.text)
        assert asked.task is not None
        assert asked.grant is not None
        result = await client.task(asked.task.id).decline(asked.grant)
        assert result.state is C
    deleted = [line for line in desk.done if line.startswith("delete")]
    first = "/tmp/a" if "/tmp/a" in texts[0] else "/tmp/b"
    assert deleted == [f"delete {first}"]
    assert "/tmp/b" in "".join(texts) and "/tmp/a" in "".join(texts)
    assert desk.done.count("model") == 2


async def test_the_card_has_the_type_of_an_agents_results(serve: Callable[[str], Desk]) -> None:
    desk = serve("formed")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        (skill,) = client.skills.values()
        assert skill.output is not None
        assert set(skill.output["properties"]) == {"city", "degrees"}
