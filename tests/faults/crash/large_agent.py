"""An agent that says a great deal: so many megabytes, a quarter at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dragoman import Agent, Turn

CHUNK = "x" * (256 * 1024)

agent = Agent("Bulk", description="Says a great deal.")


@agent.handler
async def say(turn: Turn) -> AsyncIterator[Any]:
    for _ in range(int(turn.text) * 4):
        yield turn.write(CHUNK)
        await asyncio.sleep(0)
