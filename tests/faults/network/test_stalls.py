"""A network on which nothing moves any more, for a while or for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dragoman.client import Client
from tests.faults.network.faulty_network import BINDINGS, HANGS, House, abreast, house
from tests.harness.faulty_proxy import Garble, Proxy, Stall, requests, streams

PLACES = [(binding, byte) for binding in BINDINGS for byte in (0, 100, 500, 900, 1700, 2300)]
"""Before the head, in it, between it and the first event, and in later ones."""
PATIENCE = 1.5
"""Longer than a busy machine takes for all that comes before a stall."""


@pytest.fixture
async def home() -> AsyncIterator[House]:
    """An agent whose idle streams say often that they are alive."""
    async with house(keepalive=0.05) as home:
        yield home


async def follow(home: House, client: Client, proxy: Proxy, said: str) -> None:
    """Follow a stream to its end, and check it."""
    async with client.stream(said) as stream:
        told = [event async for event in stream]
    await home.check(stream, told, fresh=all(request.resumes for request in proxy.seen[1:]))


@pytest.mark.parametrize("cut", [False, True], ids=["goes-on", "is-cut"])
async def test_a_stall_that_ends(home: House, cut: bool) -> None:
    async def stalled(place: tuple[str, int]) -> None:
        stall = Stall(place[1], cut)
        async with home.behind(streams(stall), place[0]) as (client, proxy):
            following = asyncio.create_task(follow(home, client, proxy, "count 4"))
            await stall.begun.wait()
            assert not following.done()
            stall.until.set()
            await following
            assert len(proxy.seen) == 1 + cut

    await abreast(stalled, PLACES)
    home.check_runs(len(PLACES))


async def test_a_stall_that_never_ends(home: House) -> None:
    """A stream on which not even a sign of life comes is taken up again."""

    async def stalled(place: tuple[str, int]) -> None:
        plan = streams(Stall(place[1]))
        async with home.behind(plan, place[0], patience=PATIENCE) as (client, proxy):
            await follow(home, client, proxy, "count 4")
            assert len(proxy.seen) > proxy.struck == 1

    await abreast(stalled, PLACES)
    home.check_runs(len(PLACES))


async def test_a_stream_that_is_garbled(home: House) -> None:
    """An HTTP library may wait for ever for the rest of what it could not read."""

    async def garbled(place: tuple[str, int]) -> None:
        plan = streams(Garble(place[1]))
        async with home.behind(plan, place[0], patience=PATIENCE) as (client, proxy):
            await follow(home, client, proxy, "count 4")
            assert len(proxy.seen) > proxy.struck == 1

    places = [(binding, byte) for binding in BINDINGS for byte in (0, 100, 500, 900, 1700)]
    await abreast(garbled, places)
    home.check_runs(len(places))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_that_is_only_quiet_is_left_alone(home: House, binding: str) -> None:
    """Its signs of life are enough."""
    async with home.behind(streams(), binding, patience=PATIENCE) as (client, proxy):
        async with asyncio.timeout(HANGS):
            await follow(home, client, proxy, f"rest {2 * PATIENCE}")
        assert len(proxy.seen) == 1


async def test_a_send_that_stalls(home: House) -> None:
    cases = [(binding, byte) for binding in BINDINGS for byte in (0, 100, 300)]

    async def stalled(place: tuple[str, int]) -> None:
        plan = requests(Stall(place[1]))
        async with home.behind(plan, place[0], timeout=PATIENCE) as (client, proxy):
            assert (await client.send("hello")).text == "hello"
            assert len(proxy.seen) > proxy.struck == 1

    await abreast(stalled, cases)
    home.check_runs(len(cases))
