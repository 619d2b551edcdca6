"""Crews of CrewAI, and an agent whose tool returns much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

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
    """Serves an object of `desks/crewai_kinds.py`."""
    desks = []

    def serve(served: str) -> Desk:
        desk = Desk(Framework("crewai", "crewai_kinds", served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"CrewAI cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


def texts(result: Result) -> list[str]:
    """The texts of the artifacts."""
    assert result.task is not None
    return [artifact.text for artifact in result.task.artifacts]


def models(desk: Desk) -> list[str]:
    """What models were called for."""
    return [line.removeprefix("model: ") for line in desk.done if line.startswith("model: ")]


async def test_the_message_is_the_input_of_a_crew(serve: Callable[[str], Desk]) -> None:
    desk = serve("single")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert client.card.name == "Single"
        assert "secret prompt" not in str(client.card)
        found = await asyncio.gather(*(client.send(f"n{n}") for n in range(3)))
        assert [texts(result) for result in found] == [[f"Done: n{n}"] for n in range(3)]
        by_name = await client.send([Part(data={"message": "by name"})])
        assert texts(by_name) == ["Done: by name"]


async def test_a_review_over_a_crash(serve: Callable[[str], Desk]) -> None:
    desk = serve("reviewed")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("a poem")
        assert asked.state is ASKS
        assert asked.text.startswith("Done: a poem")
        assert texts(asked) == []
        desk.kill()
        desk.start()
        assert asked.task is not None
        again = await client.send("shorter", task=asked.task.id)
        assert again.state is ASKS
        assert again.text.startswith("Done: a poem, shorter")
        desk.kill()
        desk.start()
        result = await client.send("yes", task=asked.task.id)
        assert result.state is C
        assert texts(result) == ["Done: a poem, shorter"]
        assert models(desk) == ["a poem", "a poem, shorter"]


async def test_a_review_of_an_earlier_task(serve: Callable[[str], Desk]) -> None:
    desk = serve("early")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("it")
        assert asked.text.startswith("Done: plan it")
        assert texts(asked) == []
        assert asked.task is not None
        result = await client.send("yes", task=asked.task.id)
        assert texts(result) == ["Done: make it"]
        assert models(desk) == ["plan it", "make it"]


async def test_two_tasks_one_beside_the_other(serve: Callable[[str], Desk]) -> None:
    desk = serve("both")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert client.card.name == "Both"
        data = Part(data={"way": "then"})
        result = await client.send([Part(text="this"), data])
        assert texts(result) == ["Done: then"]
        assert sorted(models(desk)) == ["first this", "then"]
        missing = await client.send("this")
        assert missing.state is TaskState.FAILED
        assert "message, way" in missing.text


async def test_a_crash_between_two_tasks(serve: Callable[[str], Desk]) -> None:
    desk = serve("both")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        parts = [Part(text="this"), Part(data={"way": "hang"})]
        result = await client.send(parts, wait=False)
        while "hang" not in models(desk):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # the result of the first task is logged
        desk.kill()
        desk.start()
        assert result.task is not None
        task = await client.task(result.task.id).wait()
        assert task.status.state is C
        assert [artifact.text for artifact in task.artifacts] == ["Done: hang"]
        assert sorted(models(desk)) == ["first this", "hang", "hang"]


async def test_a_cancel_stops_a_crew(serve: Callable[[str], Desk]) -> None:
    desk = serve("both")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        parts = [Part(text="this"), Part(data={"way": "slow"})]
        result = await client.send(parts, wait=False)
        while "slow begins" not in desk.done:
            await asyncio.sleep(0.05)
        assert result.task is not None
        canceled = await client.task(result.task.id).cancel()
        assert canceled.status.state is TaskState.CANCELED
        while "slow is stopped" not in desk.done:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert models(desk).count("slow") == 1


async def test_a_crew_that_fails(serve: Callable[[str], Desk]) -> None:
    desk = serve("both")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        for text, way in (("fail", "then"), ("this", "fail")):
            result = await client.send([Part(text=text), Part(data={"way": way})])
            assert result.state is TaskState.FAILED, (text, way)
            assert "secret" not in result.text


async def test_a_question_after_a_long_result(serve: Callable[[str], Desk]) -> None:
    desk = serve("reader")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("go")
        assert (asked.state, asked.text) == (ASKS, "Which color?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("red", task=asked.task.id)
        assert texts(result)[-1].endswith(" characters, red")
        assert desk.done.count("read") == 1
