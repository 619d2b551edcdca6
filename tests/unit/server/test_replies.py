"""A direct reply is found behind what the handler has kept for itself."""

from __future__ import annotations

import asyncio

from dragoman import Agent, Message, Part, Role, Turn
from dragoman.testing import local_client


async def test_a_reply_after_saved_values() -> None:
    agent = Agent("Saver", description="Saves, and replies.")

    @agent.handler(reply=True)
    async def save(turn: Turn) -> Message:
        for number in range(3):
            await turn.save(number)
        return Message(message_id="m", role=Role.AGENT, parts=[Part(text="saved")])

    async with asyncio.timeout(20), local_client(agent) as client:
        result = await client.send("go")
    assert result.task is None
    assert result.text == "saved"
