"""A handler that cleans up when its task is canceled."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dragoman import Agent, Turn

agent = Agent("Baker", description="Bakes bread.")


@agent.skill(tags=["food"])
class Bake:
    """Bakes a loaf; it takes a minute."""

    async def run(self, turn: Turn) -> AsyncIterator[Any]:
        """The work."""
        yield turn.working("In the oven")
        await asyncio.sleep(60)
        yield turn.artifact("A loaf")

    async def cancel(self, turn: Turn) -> None:
        """dragoman calls this first, and then cancels `run` at its current await."""
        await turn.emit(turn.working("Taking it out of the oven"))
