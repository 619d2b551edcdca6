"""Five steps with dragoman, in process and without HTTP."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.steps.orders import STEPS, obey
from dragoman import Agent, App, Turn
from dragoman.model.caller import Call, Caller
from dragoman.model.types import SendMessageRequest
from dragoman.testing import message

CALL = Call(Caller())

agent = Agent("Steps", description="Adds up.")


async def add(number: int) -> int:
    """One step."""
    return number + 1


@agent.skill(durable=True)
async def work(turn: Turn) -> str:
    """The work."""
    number = int(turn.text)
    for _ in range(STEPS):
        number = await turn.step("add", add, number)
    return str(number)


async def main() -> None:
    """Work on the store of the command line."""
    async with App(agent, store=sys.argv[1]) as app:
        service = app.endpoints[agent.key].service

        async def one(number: int) -> int:
            answer = await service.send(SendMessageRequest(message=message(str(number))), CALL)
            assert answer.task is not None
            return int(answer.task.artifacts[0].parts[0].text or "")

        await obey(one)


if __name__ == "__main__":
    asyncio.run(main())
