"""A person, a job queue or a machine finishes a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import dragoman
from dragoman import Agent, Turn

agent = Agent("Print Shop", description="Prints what you send.")
orders: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
"""What is to be printed, and the handover. In real life: a queue that other machines read."""


@agent.skill(tags=["printing"], examples=["A poster, please"])
async def print_it(turn: Turn) -> AsyncIterator[Any]:
    """Passes the order on. The task stays `working` until the printer ends it."""
    yield turn.working("Your order is in the queue")
    handover = await turn.hand_over(timeout=3600)
    await orders.put((turn.text, str(handover)))


async def printer(app: dragoman.App | None = None) -> None:
    """The other machine: takes one order, and writes to its task."""
    text, handover = await orders.get()
    async with dragoman.resume(handover, app=app) as task:
        await task.working("Printing")
        await task.artifact(f"Printed: {text}", name="print")
        await task.complete("Come and get it")


if __name__ == "__main__":
    agent.serve(url="http://127.0.0.1:8000")
