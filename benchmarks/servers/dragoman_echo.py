"""The echo agent on dragoman."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.servers import script
from dragoman import Agent, Turn

agent = Agent("Echo", description="Echoes.", version="1.0.0")


@agent.skill(tags=["echo"])
async def echo(turn: Turn) -> AsyncIterator[Any]:
    """Do what the text says."""
    order = script.read(turn.text)
    yield turn.working()
    match order.verb:
        case "stream":
            for chunk in script.chunks(order):
                yield turn.write(chunk)
                if order.pause is not None:
                    await asyncio.sleep(order.pause)
        case "clock":
            async for chunk in script.ticks(order):
                yield turn.write(chunk)
        case "tell":
            yield turn.write(script.now())
            yield turn.ask(script.QUESTION)
        case "ask":
            yield turn.ask(script.QUESTION)
        case "artifacts":
            for name, text in script.artifacts(order):
                yield turn.artifact(text, name=name)
        case _:
            yield turn.artifact(turn.text, name="echo")
