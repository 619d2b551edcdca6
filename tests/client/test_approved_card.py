"""A client for an agent that somebody else has named, with the card that was approved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, AgentCard, App, Turn
from dragoman.client import (
    ApprovedAgent,
    CardCache,
    CardChanged,
    Client,
    HTTPTransport,
    Unreachable,
    fetch_card,
    read_card,
)
from dragoman.client.logged_result import known_agent
from dragoman.client.sync import Client as Blocking
from dragoman.security.card_keys import CardKey
from tests.client.test_logged_result import Memory
from tests.harness.server import serving

GOOD, EVIL = CardKey.generate("ES256"), CardKey.generate("ES256")


class Named:
    """A reference; it counts how often it was resolved."""

    def __init__(self, agent: ApprovedAgent | BaseException) -> None:
        self.agent = agent
        self.asked = 0

    def __repr__(self) -> str:
        return "Named"

    async def resolve(self) -> ApprovedAgent:
        self.asked += 1
        if isinstance(self.agent, BaseException):
            raise self.agent
        return self.agent


def echo(description: str = "Echoes.") -> Agent:
    agent = Agent("Echo", description=description, version="1")

    @agent.skill(tags=["echo"])
    async def say(turn: Turn) -> str:
        """Say it."""
        return turn.text

    return agent


async def seen(url: str) -> ApprovedAgent:
    """The agent there, as it is now."""
    transport = HTTPTransport()
    found = await fetch_card(url, transport)
    await transport.close()
    return ApprovedAgent(url, found.card, found.keys)


async def test_the_approved_card_is_used() -> None:
    async with serving(App(echo("Other words."))) as url:
        now = await seen(url)
        approved = replace(now, card=replace(now.card, description="Approved words."))
        named = Named(approved)
        client = Client.connect(named)
        assert repr(client) == "Client(Named, not open)" and not named.asked
        async with client:
            assert client.card.description == "Approved words."
            assert (await client.send("hi")).text == "hi"
        async with client:  # opened again, it asks again
            assert named.asked == 2


def test_without_await() -> None:
    import asyncio

    async def work() -> str:
        async with serving(App(echo())) as url:
            named = Named(await seen(url))

            def call() -> str:
                with Blocking.connect(named) as agent:
                    return agent.send("hi").text

            return await asyncio.to_thread(call)

    assert asyncio.run(work()) == "hi"


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"supported_interfaces": ()}, "supported interfaces"),
        (
            {
                "security_schemes": read_card(
                    {
                        "name": "x",
                        "description": "x",
                        "version": "1",
                        "capabilities": {},
                        "supportedInterfaces": [
                            {"url": "x:", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
                        ],
                        "defaultInputModes": ["a/b"],
                        "defaultOutputModes": ["a/b"],
                        "skills": [],
                        "securitySchemes": {"key": {"mtlsSecurityScheme": {}}},
                    }
                ).security_schemes
            },
            "security schemes",
        ),
    ],
)
async def test_a_card_that_differs_is_refused(other: dict[str, Any], what: str) -> None:
    async with serving(App(echo())) as url:
        now = await seen(url)
        approved = replace(now, card=replace(now.card, **other))
        with pytest.raises(CardChanged, match=f"other {what}"):
            await Client.connect(Named(approved)).open()


async def test_keys() -> None:
    async with serving(App(echo(), sign=[GOOD])) as url:
        approved = await seen(url)
        assert set(approved.keys) == {GOOD.thumbprint}
        async with Client.connect(Named(approved)) as client:
            assert (await client.send("hi")).text == "hi"
        others = replace(approved, keys={EVIL.thumbprint: EVIL.jwk()})
        with pytest.raises(CardChanged, match="not signed by an approved key"):
            await Client.connect(Named(others)).open()


async def test_fetched_cards() -> None:
    transport = HTTPTransport()
    async with serving(App(echo())) as url:
        found = await fetch_card(url, transport)
        assert (found.card.name, found.keys, found.unverified) == ("Echo", {}, "")
    async with serving(App(echo(), sign=[GOOD], card_jku="https://keys.example/set")) as url:
        found = await fetch_card(url, transport)
        assert not found.keys and "no keys at its own origin" in found.unverified
        own = f"{url}/.well-known/jwks.json"
    async with serving(App(echo(), sign=[GOOD], card_jku=f"{own}x")) as url:
        found = await fetch_card(url, transport)
        assert not found.keys  # of another port, so of another origin
    await transport.close()


async def test_it_is_kept_for_the_next_run() -> None:
    card: AgentCard = echo().card("https://a.example")
    named = Named(ApprovedAgent("https://a.example", card, {"x": {"kty": "EC"}}))
    memory = Memory()
    first = await known_agent(memory, named)
    assert await known_agent(memory.again(), named) == first == named.agent
    assert named.asked == 1
    small = Memory(largest=10)
    await known_agent(small, named)
    assert await known_agent(small.again(), named) == first  # too large, so it asked again
    assert named.asked == 3
    failing, log = Named(Unreachable("gone")), Memory()
    for memory in (log, log.again()):
        with pytest.raises(Unreachable, match="gone"):
            await known_agent(memory, failing)
    assert failing.asked == 1


async def test_in_a_durable_handler() -> None:
    async with serving(App(echo())) as url:
        named = Named(await seen(url))
        desk = Agent("Desk", description="Asks.", version="1")

        @desk.skill(durable=True)
        async def ask(turn: Turn) -> str:
            """Ask the echo."""
            async with turn.connect(named) as other:
                found = await other.send(turn.text)
            await turn.sleep(0.01)  # it runs again from its beginning
            return found.text

        async with serving(App(desk, poll=0.02)) as at, Client.connect(at) as client:
            assert (await client.send("hi")).text == "hi"
        assert named.asked == 1


@pytest.mark.parametrize("how", ["approved", "cached"])
async def test_an_agent_that_was_seen_before_is_waited_for(how: str) -> None:
    """A card gets few attempts if its address may be mistyped; here it is not."""
    cache = CardCache()
    async with serving(App(echo(), drain_timeout=0.0)) as url:
        named = Named(await seen(url))
        async with Client.connect(url, card_cache=cache):
            pass
    for place, (card, tag, _) in cache.known.items():
        cache.known[place] = (card, tag, 0.0)  # it is old
    target: Any = named if how == "approved" else url
    client = Client.connect(target, card_cache=cache, attempts=9)
    opening = asyncio.create_task(client.open())
    with pytest.raises(Unreachable):  # which takes four attempts
        await Client.connect(url, attempts=9).open()
    async with serving(App(echo(), drain_timeout=0.0), port=int(url.rpartition(":")[2])):
        await opening
        assert (await client.send("hello")).text == "hello"
        await client.close()
