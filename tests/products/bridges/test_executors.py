"""Executors that were written for a2a-sdk, served as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from dragoman import TaskState
from dragoman.client import Client
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import EXECUTORS, Desk

C = TaskState.COMPLETED


@pytest.fixture(scope="module", params=EXECUTORS)
def desk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """The executor, served once for all tests."""
    desk = Desk(EXECUTORS[request.param], tmp_path_factory.mktemp("desk"))
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


async def test_the_card_is_the_executors(client: Client) -> None:
    card = client.card
    assert (card.name, card.version) == ("Desk", "2.1.0")
    assert [skill.id for skill in card.skills] == ["desk"]
    assert "image/*" in card.default_input_modes


async def test_a_task_with_an_artifact(client: Client) -> None:
    result = await client.send("hello")
    assert (result.state, result.text) == (C, "You said hello")
    assert result.task is not None
    (artifact,) = result.task.artifacts
    assert artifact.artifact_id != "random-1", "ids are made of turn and order"
    assert [m.text for m in result.task.history if m.role.name == "AGENT"] == ["at work"]
    assert result.task.status.message is not None
    assert result.task.status.message.text == "done"


async def test_a_message_without_a_task(client: Client) -> None:
    result = await client.send("say")
    assert (result.task, result.text) == (None, "just a message")


async def test_a_task_that_is_enqueued_as_a_whole(client: Client) -> None:
    result = await client.send("whole")
    assert (result.state, result.text) == (C, "as a whole")


async def test_a_question_and_its_answer(client: Client) -> None:
    asked = await client.send("question")
    assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Which color?")
    assert asked.task is not None
    result = await client.send("red", task=asked.task.id)
    assert (result.state, result.text) == (C, "You said red")


async def test_a_cancel_stops_execute_and_calls_cancel(desk: Desk, client: Client) -> None:
    result = await client.send("slow", wait=False)
    assert result.task is not None
    async with asyncio.timeout(10):
        while "execute slow" not in desk.done:
            await asyncio.sleep(0.02)
    canceled = await client.task(result.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED
    assert canceled.status.message is not None
    assert canceled.status.message.text == "as you wish"
    assert desk.done[-2:] == ["slow is stopped", "cancel"]


async def test_a_cancel_of_a_task_that_asks_calls_cancel(desk: Desk, client: Client) -> None:
    asked = await client.send("question")
    assert asked.task is not None
    canceled = await client.task(asked.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED
    assert desk.done[-1] == "cancel"


async def test_an_error_is_masked(client: Client) -> None:
    result = await client.send("fail")
    assert result.state is TaskState.FAILED
    assert "secret" not in result.text
