"""An application that is started inside of a step: its turns are not part of the step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client

inner = Agent("Inner", description="Asks for a city.")


@inner.skill(durable=True)
async def city(turn: Turn) -> AsyncIterator[Any]:
    """Asks, and repeats the answer."""
    yield turn.write("city: ")
    answer = await turn.ask_for("Which city?")
    yield turn.write(answer.text)


outer = Agent("Outer", description="Starts another application in a step.")


@outer.skill(durable=True)
async def call(turn: Turn) -> str:
    """Calls the other agent."""

    async def ask() -> str:
        async with App(inner, store="memory:") as app, Client.connect(app=app) as client:
            asked = await client.send("begin")
            assert asked.state is TaskState.INPUT_REQUIRED
            assert asked.task is not None
            return (await client.send("Lisbon", task=asked.task.id)).text

    return await turn.step("ask", ask)


async def test_its_output_is_not_that_of_the_step() -> None:
    async with (
        asyncio.timeout(20),
        App(outer, store="memory:") as app,
        Client.connect(app=app) as client,
    ):
        assert (await client.send("go")).text == "city: Lisbon"
