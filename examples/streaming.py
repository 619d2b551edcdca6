"""Streaming: yielded text becomes chunks of one artifact, from asynchronous or plain code."""

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from dragoman import Agent, Turn

agent = Agent("Storyteller", description="Tells stories, a word at a time.")


@agent.handler
async def tell(turn: Turn) -> AsyncIterator[Any]:
    """Tells a story about the hero that the message names."""
    yield turn.working("Once upon a time")
    for word in f"There was {turn.text or 'a fox'}, and it lived happily.".split():
        yield word + " "


@agent.skill(tags=["slow"])
def tell_slowly(turn: Turn) -> Iterator[str]:
    """Does the same in blocking code, which runs in a thread."""
    for word in f"There was {turn.text}.".split():
        time.sleep(0.01)
        yield word + " "
