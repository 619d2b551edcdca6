"""A durable agent that waits for another agent, twice; its process kills itself where its
environment says so, see `durable_agent`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from dragoman import Agent, Task, Turn
from dragoman.agent import durable
from dragoman.server import maintenance
from tests.faults.crash import durable_agent
from tests.faults.crash.durable_agent import FOLDER, Points
from tests.faults.crash.sending_agent import REMOTE

LOOKS = "WAITING_LOOKS"
"""After how many seconds it looks again if no notification comes."""
NAME = "Patient"


def make(points: Points, remote: str) -> Agent:
    """An agent that waits for a question, answers it, and waits for the end."""
    agent = Agent(NAME, description="Waits for others.")

    async def effect(name: str) -> str:
        return points.effect(name)

    @agent.skill(durable=True)
    async def patient(turn: Turn) -> AsyncIterator[Any]:
        async with turn.connect(remote) as client:
            begun = await client.send("work", wait=False)
            assert begun.task is not None
            handle = client.task(begun.task.id)
            asked = await turn.wait(handle)
            yield turn.write(f"{text(asked)} ")
            await turn.step("between", effect, "between")
            await handle.reply("red", wait=False)
            found = await turn.wait(handle)
            yield turn.write(text(found))
            await turn.step("after", effect, "after")

    return agent


def text(task: Task) -> str:
    """What a task says: its state, and its status or result."""
    said = task.status.message.text if task.status.message else ""
    results = ["".join(part.text or "" for part in found.parts) for found in task.artifacts]
    return f"{task.status.state.name.lower()} {said or ' '.join(results)}"


if FOLDER in os.environ:
    maintenance.ATTEMPTS = 1000
    durable.FIRST_LOOK, durable.LAST_LOOK = 0.1, float(os.environ[LOOKS])
    agent = make(durable_agent.passing, os.environ[REMOTE])
