"""A durable agent that is stopped between two steps; it writes down which process did what."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from dragoman import Agent, Turn
from dragoman.server import maintenance
from tests.faults.crash import broken_promises
from tests.faults.crash.agent import BROKEN, EFFECTS

PAUSE = 0.5
STEPS = ("first", "second", "third")


def make(effects: Path) -> Agent:
    """An agent that pauses after its first step."""
    agent = Agent("Slow", description="Takes its time.")
    file = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def effect(name: str) -> None:
        os.write(file, f"{name} {os.getpid()}\n".encode())

    @agent.skill(durable=True)
    async def work(turn: Turn) -> str:
        for name in STEPS:
            await turn.step(name, effect, name)
            if name == "first":
                await asyncio.sleep(PAUSE)
        return "done"

    return agent


if EFFECTS in os.environ:
    maintenance.LONGEST_DELAY = 0.05
    broken_promises.switch(os.environ.get(BROKEN, ""))
    agent = make(Path(os.environ[EFFECTS]))
