"""The agent that everybody calls: it says the same, waits, or says much."""

from __future__ import annotations

import asyncio

from dragoman import Agent, Turn

agent = Agent("Neighbour", key="neighbour", description="Says the same, waits, or says much.")


@agent.handler
async def answer(turn: Turn) -> str:
    """`wait 3` takes three seconds, `much 1000` says a thousand letters."""
    word, _, number = turn.text[:32].partition(" ")
    if word == "wait":
        await asyncio.sleep(float(number))
    if word == "much":
        return "x" * int(number)
    return turn.text[:100]
