"""An agent that asks a question: the client's reply starts the next turn of the same task."""

from collections.abc import AsyncIterator
from typing import Any

from dragoman import Agent, Turn

agent = Agent("Tailor", description="Makes shirts to measure.")


@agent.skill(tags=["clothes"], examples=["A shirt please"])
async def make_shirt(turn: Turn) -> AsyncIterator[Any]:
    """Makes a shirt, once the size is known."""
    sizes = [message.text for message in turn.history if message.text in ("S", "M", "L")]
    if not sizes:
        yield turn.ask("Which size: S, M or L?")
        return
    yield turn.working("Cutting")
    yield turn.artifact({"garment": "shirt", "size": sizes[-1]}, name="order")
