"""One caller's tasks take all slots: another caller's is next."""

from __future__ import annotations

import asyncio

import pytest

from dragoman import Agent, Turn
from tests.harness.clients import JsonRpc
from tests.harness.protected_app import message, protected
from tests.harness.stores import database

SLOTS, MANY = 4, 200


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgresql"])
async def test_another_caller_is_answered_soon(store: str, tmp_path: object) -> None:
    agent = Agent("Slow", description="Takes its time.")
    ended: list[str] = []
    queued = asyncio.Event()

    @agent.skill()
    async def work(turn: Turn) -> str:
        """Works for a moment."""
        await queued.wait()
        await asyncio.sleep(0.02)
        ended.append(turn.caller.identity)
        return "done"

    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/x.db"}.get(store) or database()
    async with protected(agent, store=url, max_running=SLOTS) as server:
        alice, bob = server.client(JsonRpc, "a-key"), server.client(JsonRpc, "b-key")
        later = {"returnImmediately": True}
        for first in range(0, MANY, 50):
            await asyncio.gather(
                *(
                    alice.call(
                        "SendMessage",
                        message=message("x", messageId=f"m{n}"),
                        configuration=later,
                    )
                    for n in range(first, first + 50)
                )
            )
        queued.set()
        for number in range(3):
            asked = message("y", messageId=f"b{number}")
            await asyncio.wait_for(bob.call("SendMessage", message=asked), 20)
        assert len(ended) < 20 * SLOTS, "bob waited for what alice had waiting"
        assert ended.count("bob") == 3
