"""A durable agent that has another agent work for it; its process kills itself where its
environment says so, see `durable_agent`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from dragoman import Agent, Turn
from dragoman.client import Client
from tests.faults.crash import durable_agent

REMOTE = "DURABLE_REMOTE"
SENDS = ("first gate", "inside gate", "pieces", "third gate")
"""What it has the other agent do, in this order."""


def make(remote: str) -> Agent:
    """An agent that sends, sends in a step, relays, asks, and sends again."""
    agent = Agent("Sender", description="Has others work.")

    async def inside(client: Client) -> str:
        return (await client.send("inside gate")).text

    @agent.skill(durable=True)
    async def order(turn: Turn) -> AsyncIterator[Any]:
        async with turn.connect(remote) as client:
            first = await client.send("first gate")
            yield turn.write(f"{first.text}, ")
            second = await turn.step("inside", inside, client)
            yield turn.write(f"{second}, ")
            relayed = await turn.relay(client.stream("pieces"), by="Remote")
            yield turn.write(f"{relayed.text.strip()}, ")
            answer = await turn.ask_for("Shall I buy?")
            third = await client.send("third gate")
            yield turn.write(f"{answer.text}, {third.text}")
            yield turn.artifact(str(len(turn.delegated)))

    return agent


if durable_agent.FOLDER in os.environ:
    agent = make(os.environ[REMOTE])
