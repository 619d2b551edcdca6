"""Delegation that goes round in circles, or on and on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Turn
from dragoman.client import Client
from dragoman.model.errors import UnsupportedOperation
from dragoman.model.lineage import Ancestor, admit, origin
from dragoman.server.settings import Settings
from tests.harness.server import serving


class Hop:
    """An agent that hands on what it is told to the next one."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.agent = Agent(name, description="Hands on.")
        self.next = ""
        self.turns = 0
        self.refused: list[UnsupportedOperation] = []

        @self.agent.handler
        async def hand(turn: Turn) -> str:
            """Hand it on."""
            self.turns += 1
            if not self.next or turn.text == "stay":
                return "here"
            async with turn.connect(self.next) as other:
                try:
                    return (await other.send(turn.text)).text
                except UnsupportedOperation as error:
                    self.refused.append(error)
                    return f"refused: {error.message}"

        self.app = App(self.agent, drain_timeout=0.0, **settings)


async def test_a_circle_is_ended() -> None:
    one, two = Hop("One"), Hop("Two")
    async with serving(one.app) as here, serving(two.app) as there:
        one.next, two.next = there, here
        async with asyncio.timeout(20), Client.connect(here) as client:
            result = await client.send("round and round")
    assert "came back to an agent that waits for its result" in result.text
    assert (one.turns, two.turns) == (1, 1)
    assert two.refused[0].metadata["lineage"] == "One > Two > One"


async def test_an_agent_that_calls_itself() -> None:
    one = Hop("One")
    async with serving(one.app) as here:
        one.next = here
        async with asyncio.timeout(20), Client.connect(here) as client:
            assert "came back" in (await client.send("go")).text
    assert one.turns == 1


async def test_two_agents_of_one_name_are_two() -> None:
    one, two = Hop("Same"), Hop("Same")
    async with serving(one.app) as here, serving(two.app) as there:
        one.next = there
        async with Client.connect(here) as client:
            assert (await client.send("go")).text == "here"


async def test_too_long_a_way_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "max_hops", 2)
    hops = [Hop(f"Hop {n}") for n in range(5)]
    servers = [serving(hop.app) for hop in hops]
    urls = [await server.__aenter__() for server in servers]
    try:
        for hop, url in zip(hops, urls[1:], strict=False):
            hop.next = url
        async with asyncio.timeout(20), Client.connect(urls[0]) as client:
            result = await client.send("on and on")
        assert "forwarded more than 2 times" in result.text
        assert [hop.turns for hop in hops] == [1, 1, 1, 0, 0]
    finally:
        for server in servers:
            await server.__aexit__(None, None, None)


def test_what_is_admitted() -> None:
    here = origin("store", "agent")
    admit((), "A", here, 0)
    others = tuple(Ancestor("A", "t", origin("store", f"other {n}")) for n in range(3))
    admit(others, "A", here, 3)
    for path, most in ((others, 2), ((*others, Ancestor("B", "t", here)), 9)):
        with pytest.raises(UnsupportedOperation):
            admit(path, "A", here, most)
    # who does not say where it comes from is not taken for anybody
    admit((Ancestor("A", "t"),), "A", here, 3)


async def test_an_agent_that_was_restarted_is_the_same(tmp_path: Path) -> None:
    """What tells an agent is its store, which replicas share."""
    seen: list[str] = []
    agent = Agent("One", description="Tells.")

    @agent.handler
    async def tell(turn: Turn) -> str:
        """Tell who it is."""
        assert turn._run is not None
        seen.append(turn._run.origin)
        return ""

    for _ in range(2):
        app = App(agent, store=f"sqlite:///{tmp_path / 'one.db'}", drain_timeout=0.0)
        async with app, Client.connect(app=app) as client:
            await client.send("who?")
    assert seen[0] == seen[1] != ""
