"""An orchestrator, in process and without HTTP, whose plan calls an agent in another process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from benchmarks.steps.orders import STEPS, obey
from dragoman import App, Turn
from dragoman.model.caller import Call, Caller
from dragoman.model.types import SendMessageRequest
from dragoman.orchestrator import Member, Orchestrator, Step
from dragoman.testing import message

CALL = Call(Caller())
store, member, size = sys.argv[1], sys.argv[2], int(sys.argv[3])


def plan(turn: Turn, members: Mapping[str, Member]) -> list[Step]:
    """Steps that run one after the other."""
    return [
        Step(f"s{n}", agent="echo", input=turn.text, needs=(f"s{n - 1}",) if n else ())
        for n in range(size)
    ]


agent = Orchestrator("Desk", agents=[member], plan=plan)


async def main() -> None:
    """Work on the store of the command line."""
    async with App(agent, store=store) as app:
        service = app.endpoints[agent.key].service

        async def one(number: int) -> int:
            answer = await service.send(SendMessageRequest(message=message(str(number))), CALL)
            assert answer.task is not None
            assert len(answer.task.artifacts) == size, answer.task
            return int(answer.task.artifacts[-1].parts[0].text or "") + STEPS

        await obey(one)


if __name__ == "__main__":
    asyncio.run(main())
