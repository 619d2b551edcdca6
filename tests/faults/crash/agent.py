"""The agent that is crashed: it writes down that it ran, and then says its chunks.

Served, it finds in its environment where to write, and which promise to break.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dragoman import Agent, Turn
from tests.faults.crash import broken_promises

EFFECTS, BROKEN = "CRASH_EFFECTS", "CRASH_BROKEN"


def make(effects: Path) -> Agent:
    """An agent that may be run three times."""
    agent = Agent("Clerk", description="Says what it is told to.", retries=2)
    file = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @agent.handler
    async def work(turn: Turn) -> AsyncIterator[Any]:
        key, chunks, pause = turn.text.split()
        # one write: it happens, or it does not
        os.write(file, f"{turn.idempotency_key} {turn.attempt} {key}\n".encode())
        for index in range(int(chunks)):
            yield turn.write(f"{key}/{turn.attempt}/{index}")
            await asyncio.sleep(float(pause))

    return agent


if EFFECTS in os.environ:
    broken_promises.switch(os.environ.get(BROKEN, ""))
    agent = make(Path(os.environ[EFFECTS]))
