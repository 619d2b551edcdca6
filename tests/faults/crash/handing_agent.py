"""An agent that gives its tasks to somebody outside; its process kills itself where its environment
says so, see `durable_agent`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dragoman import Agent, Turn
from dragoman.server import maintenance
from tests.faults.crash import durable_agent
from tests.faults.crash.durable_agent import FOLDER, Points

HANDED, KIND, TIMEOUT = "given", "HANDOVER_KIND", "HANDOVER_TIMEOUT"
GIVEN = ("first", "second")
"""The messages whose turns are handed over."""
NAME = "Office"


def make(points: Points, folder: Path, *, durable: bool, timeout: float) -> Agent:
    """An agent that may be run again as often as it is killed."""
    agent = Agent(NAME, description="Has others do the work.", retries=0 if durable else 1000)
    file = os.open(folder / HANDED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @agent.skill(durable=durable)
    async def pass_on(turn: Turn) -> AsyncIterator[Any]:
        if turn.text not in GIVEN:
            yield turn.artifact(f"heard {turn.text}")
            return
        yield turn.artifact(f"passing {turn.text} on")
        handover = await turn.hand_over(timeout=timeout)
        points.pass_by("before", "given")
        os.write(file, f"{turn.text} {handover}\n".encode())
        points.pass_by("after", "given")

    return agent


if FOLDER in os.environ:
    maintenance.ATTEMPTS = 1000
    agent = make(
        durable_agent.passing,
        Path(os.environ[FOLDER]),
        durable=os.environ[KIND] == "durable",
        timeout=float(os.environ[TIMEOUT]),
    )
