"""The same conversation with an agent of each framework, served by `dragoman serve`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Part, TaskArtifactUpdateEvent, TaskState
from dragoman.client import Client
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import FRAMEWORKS, Desk

C = TaskState.COMPLETED


@pytest.fixture(scope="module", params=FRAMEWORKS)
def desk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """The agent, served once for all tests of a framework."""
    desk = Desk(FRAMEWORKS[request.param], tmp_path_factory.mktemp("desk"))
    try:
        desk.start()
    except Absent as absent:
        pytest.skip(f"{request.param}: {absent}")
    yield desk
    desk.stop()


@pytest.fixture(params=FRAMEWORKS)
def own_desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    """The agent, served for one test, which may kill it."""
    desk = Desk(FRAMEWORKS[request.param], tmp_path)
    try:
        desk.start()
    except Absent as absent:
        pytest.skip(f"{request.param}: {absent}")
    yield desk
    desk.stop()


@pytest.fixture
async def client(desk: Desk) -> AsyncIterator[Client]:
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        yield client


async def until(desk: Desk, what: str) -> None:
    async with asyncio.timeout(20):
        while what not in desk.done:
            await asyncio.sleep(0.02)


async def test_the_card_says_what_the_framework_says(client: Client) -> None:
    assert client.card.name == "Desk"
    assert "secret prompt" not in str(client.card)
    assert len(client.card.skills) == 1


async def test_an_answer_is_streamed(client: Client) -> None:
    chunks = []
    async with client.stream("good morning") as stream:
        async for event in stream:
            if isinstance(event, TaskArtifactUpdateEvent):
                chunks.append(event.text)
    assert "".join(chunks) == "You said good morning as message 1"
    assert len(chunks) == 3
    assert stream.result.state is C


async def test_a_tool_is_called(desk: Desk, client: Client) -> None:
    result = await client.send("weather")
    assert result.state is C
    assert result.text.endswith("sunny in Rome")
    assert "weather" in desk.done
    if "tools" not in framework(desk).lacks:
        assert result.task is not None
        said = [message.text for message in result.task.history]
        assert "Calling weather" in said


def framework(desk: Desk) -> Any:
    return desk._framework


async def test_a_file_reaches_the_model(client: Client) -> None:
    file = Part(raw=b"x" * 77, media_type="image/png", filename="x.png")
    result = await client.send([Part(text="look at this"), file])
    assert result.text == "77 bytes of image/png"


async def test_a_structured_result_is_data(client: Client) -> None:
    result = await client.send("structured")
    assert result.state is C
    assert result.task is not None
    data = [part.data for artifact in result.task.artifacts for part in artifact.parts]
    assert {"city": "Rome", "degrees": 21} in data


async def test_a_question_is_answered_in_words(client: Client) -> None:
    asked = await client.send("question")
    assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Which color?")
    assert asked.task is not None
    result = await client.send("red", task=asked.task.id)
    assert result.state is C
    assert result.text.endswith("red")


async def test_a_yes_in_words_approves_nothing(desk: Desk, client: Client) -> None:
    before = desk.done.count("delete")
    asked = await client.send("delete")
    assert asked.state is TaskState.AUTH_REQUIRED
    assert "/tmp/x" in asked.text
    assert asked.task is not None
    again = await client.send("yes", task=asked.task.id)
    assert again.state is TaskState.AUTH_REQUIRED
    assert desk.done.count("delete") == before
    assert again.grant is not None
    result = await client.task(asked.task.id).approve(again.grant)
    assert result.state is C
    assert result.text.endswith("deleted /tmp/x")
    assert desk.done.count("delete") == before + 1


async def test_an_approval_that_is_declined(desk: Desk, client: Client) -> None:
    before = desk.done.count("delete")
    asked = await client.send("delete")
    assert asked.task is not None
    assert asked.grant is not None
    result = await client.task(asked.task.id).decline(asked.grant)
    assert result.state is C
    assert desk.done.count("delete") == before


async def test_a_cancel_stops_the_work(desk: Desk, client: Client) -> None:
    result = await client.send("slow", wait=False)
    assert result.task is not None
    await until(desk, "slow begins")
    canceled = await client.task(result.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED
    await until(desk, "slow is stopped")


async def test_a_cancel_of_a_task_that_asks(client: Client) -> None:
    asked = await client.send("question")
    assert asked.task is not None
    canceled = await client.task(asked.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED


async def test_an_error_is_masked(client: Client) -> None:
    result = await client.send("fail")
    assert result.state is TaskState.FAILED
    assert "secret" not in result.text


async def test_a_conversation_is_remembered(client: Client) -> None:
    context = "memory"
    assert (await client.send("one", context=context)).text == "You said one as message 1"
    assert (await client.send("two", context=context)).text == "You said two as message 2"
    other = await client.send("one", context="elsewhere")
    assert other.text == "You said one as message 1"


async def test_two_tasks_of_a_conversation_at_the_same_time(client: Client) -> None:
    found = await asyncio.gather(*(client.send(f"n{n}", context="both") for n in range(3)))
    numbers = sorted(result.text.rpartition(" ")[2] for result in found)
    assert numbers == ["1", "2", "3"]


async def test_the_answer_comes_to_a_new_server(own_desk: Desk) -> None:
    async with asyncio.timeout(60), Client.connect(own_desk.url) as client:
        asked = await client.send("question")
        assert asked.state is TaskState.INPUT_REQUIRED
        own_desk.kill()
        own_desk.start()
        assert asked.task is not None
        result = await client.send("red", task=asked.task.id)
    assert result.state is C
    assert result.text.endswith("red")


async def test_a_crash_calls_no_model_and_no_tool_again(own_desk: Desk) -> None:
    async with asyncio.timeout(60), Client.connect(own_desk.url) as client:
        result = await client.send("slow", context="c", wait=False)
        await until(own_desk, "slow begins")
        before = own_desk.done.count("model")
        own_desk.kill()
        own_desk.start()
        async with asyncio.timeout(20):
            while own_desk.done.count("slow begins") < 2:
                await asyncio.sleep(0.05)
        assert own_desk.done.count("model") == before
        assert result.task is not None
        await client.task(result.task.id).cancel()
