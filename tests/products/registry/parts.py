"""Agents at addresses that stay the same while their cards change, and registries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dragoman import Agent, AgentCard, App, Caller, Turn
from dragoman.client import read_card
from dragoman.registry import Registry, RegistryApp
from dragoman.registry.entries import CardVersion
from dragoman.security import Token
from dragoman.security.card_keys import CardKey
from tests.harness.server import served, serving

OPERATOR = Caller(identity="olga", scopes=frozenset({"registry:write"}))
ANNOUNCER = Caller(identity="agents", scopes=frozenset({"registry:announce"}))
READER = Caller(identity="rita")
TRAVELER = Caller(identity="tom", scopes=frozenset({"travel"}))
TOKENS = Token({"operator": OPERATOR, "announcer": ANNOUNCER, "reader": READER, "tom": TRAVELER})


class Desk:
    """An address where agents answer, one after the other."""

    def __init__(self) -> None:
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def shows(
        self,
        *keys: CardKey,
        name: str = "Flight Desk",
        description: str = "Books flights.",
        tags: Sequence[str] = ("travel",),
        version: str = "1.0",
        modes: Sequence[str] = ("text/plain",),
        **options: Any,
    ) -> AsyncIterator[str]:
        """An agent with this card, signed by these keys."""
        agent = Agent(name, description=description, version=version)

        @agent.skill(
            tags=list(tags), examples=["Book me a flight to Lisbon"], input_modes=list(modes)
        )
        async def book_flight(turn: Turn) -> str:
            """Book a flight to a city."""
            return f"{name}: {turn.text}"

        async with serving(App(agent, sign=keys, **options), port=self.port) as url:
            self.port = int(url.rpartition(":")[2])
            yield url


def made(name: str, **more: Any) -> AgentCard:
    """A card that nobody serves."""
    document: dict[str, Any] = {
        "name": name,
        "description": f"{name} does things.",
        "version": "1.0",
        "supportedInterfaces": [
            {"url": "https://a.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "do", "name": "Do", "description": "Does it.", "tags": ["doing"]}],
    }
    return read_card(document | more)


def stored(card: AgentCard, **more: Any) -> CardVersion:
    """A card as it is stored."""
    return CardVersion(card, fetched="2026-01-01T00:00:00.000Z", **more)


def registry(folder: Path, **options: Any) -> App:
    """A registry in a file of this folder. `auth` and others are settings of the server."""
    names = ("allow", "accept", "interval", "operators")
    own = {name: options.pop(name) for name in names if name in options}
    app = RegistryApp(f"sqlite:///{folder}/agents.db", **own)
    return App(mounts={"/": app}, **options)


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[Registry]:
    """A registry on this machine, without authentication."""
    async with served(registry(folder, **options)) as server, Registry(server.url) as client:
        yield client


async def states(client: Registry) -> dict[str, str]:
    """The states of all entries, by URN."""
    return {entry.urn: entry.state for entry in await client.entries()}
