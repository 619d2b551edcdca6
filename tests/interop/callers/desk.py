"""The desk on our own server, for foreign clients: the same commands as the peers' desks."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman import Agent, AgentCard, App, Caller, Turn
from dragoman.server.settings import Settings
from tests.harness.server import BINDINGS, serving


def desk() -> Agent:
    """The agent; it shows more of itself to those it knows, which is nobody."""
    agent = Agent("Desk", description="Does what the text says.", input_modes=["*/*"])

    @agent.extended_card
    def extended(caller: Caller, public: AgentCard) -> AgentCard:
        return public

    # (the client of fasta2a takes no card whose skills leave out their modes)
    @agent.skill(tags=["desk"], input_modes=["*/*"], output_modes=["*/*"], reply=True)
    async def work(turn: Turn) -> AsyncIterator[Any]:
        """Works."""
        if turn.text.startswith("say "):
            yield turn.reply(turn.text[4:])
            return
        yield turn.working()
        match turn.text.split():
            case ["ask"]:
                yield turn.ask("Which?")
            case ["wait"]:
                await asyncio.Event().wait()
            case ["fail"]:
                yield turn.fail("as told")
            case ["crash"]:
                raise RuntimeError("as told")
            case ["count", number]:
                await asyncio.sleep(0.25)  # some signs of life
                for n in range(int(number)):
                    yield turn.write(f"{n},", name="count")
                    await asyncio.sleep(0.005)
            case _:
                yield turn.artifact(list(turn.message.parts), name="echo")

    return agent


def has_grpc() -> bool:
    """Whether the server can speak gRPC here."""
    return "grpc_port" in Settings.__struct_fields__ and bool(importlib.util.find_spec("grpc"))


@asynccontextmanager
async def desk_serving() -> AsyncIterator[str]:
    """The URL of the desk, with everything on that a foreign client may ask for. Its streams show
    often that they live, which not every client takes lightly."""
    settings: dict[str, Any] = {"egress_allow": ["127.0.0.1"], "poll": 60.0}
    if has_grpc():
        settings |= {"grpc_port": 0, "bindings": BINDINGS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "keepalive", 0.1)
        async with serving(App(desk(), push=True, drain_timeout=0.0, **settings)) as url:
            yield url
