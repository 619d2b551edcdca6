"""A turn of an executor that runs again after a crash replaces what the first attempt wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import TaskState
from dragoman.client import Client
from tests.products.bridges.desk import Desk, Framework


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """The executor, with one retry."""
    desk = Desk(Framework("", "crashing_executor", "twice"), tmp_path)
    desk.start()
    yield desk
    desk.stop()


async def crash(desk: Desk, text: str) -> None:
    """Kill the server when the executor is in the middle, and start it again."""
    async with asyncio.timeout(30):
        while text not in desk.done:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)  # what it has said is written
    await asyncio.to_thread(desk.kill)
    await asyncio.to_thread(desk.start)


async def test_nothing_is_there_twice(desk: Desk) -> None:
    async with asyncio.timeout(90):
        async with Client.connect(desk.url) as client:
            result = await client.send("die one", wait=False)
            assert result.task is not None
            id = result.task.id
            await crash(desk, "die one")
            asked = await client.task(id).wait()
            assert asked.status.state is TaskState.INPUT_REQUIRED
            assert [artifact.text for artifact in asked.artifacts] == [
                *("die one ", "first", "second: done", "third"),
            ]
            await client.send("die two", task=id, wait=False)
            await crash(desk, "die two")
            task = await client.task(id).wait()
    assert task.status.state is TaskState.COMPLETED
    assert [artifact.text for artifact in task.artifacts] == [
        *("die one die two ", "first", "second: done", "third"),
        *("first", "second: done", "third"),
    ]
    assert [line for line in desk.done if line.startswith("die two:")] == [
        "die two: TASK_STATE_INPUT_REQUIRED",
        "die two: TASK_STATE_INPUT_REQUIRED",
    ]


async def test_a_message_without_a_task(desk: Desk) -> None:
    async with asyncio.timeout(30), Client.connect(desk.url) as client:
        result = await client.send("say")
    assert (result.task, result.text) == (None, "just a message")
