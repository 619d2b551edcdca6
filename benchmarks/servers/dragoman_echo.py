"""The echo agent on dragoman."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.servers import script
from dragoman import Agent, App, Turn

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
                if order.gives_way:
                    await asyncio.sleep(0)
        case "ask":
            yield turn.ask(script.QUESTION)
        case "artifacts":
            for name, text in script.artifacts(order):
                yield turn.artifact(text, name=name)
        case _:
            yield turn.artifact(turn.text, name="echo")


def main(port: int) -> None:
    """Serve until ended."""
    import uvicorn

    uvicorn.run(
        App(agent, max_tasks=1_000_000),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
