"""An agent that says a great deal: so many megabytes, a quarter at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from dragoman import Agent, Settings, Turn

CHUNK = "x" * (256 * 1024)
if "BULK_OUTPUT" in os.environ:  # more than a turn may write by the size of its task
    Settings.max_output = int(os.environ["BULK_OUTPUT"])  # type: ignore[assignment,method-assign]

agent = Agent("Bulk", description="Says a great deal.")


@agent.handler
async def say(turn: Turn) -> AsyncIterator[Any]:
    for _ in range(int(turn.text) * 4):
        yield turn.write(CHUNK)
        await asyncio.sleep(0)
