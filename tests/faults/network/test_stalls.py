"""A network on which nothing moves any more, for a while or for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from dragoman.client import Client
from tests.faults.network.faulty_network import BINDINGS, HANGS, ProxiedApp, abreast, proxied
from tests.harness.faulty_proxy import Garble, Proxy, Stall, requests, streams

PLACES = [(binding, byte) for binding in BINDINGS for byte in (0, 100, 500, 900, 1700, 2300)]
"""Before the head, in it, between it and the first event, and in later ones."""
PATIENCE = 1.5
"""Longer than a busy machine takes for all that comes before a stall."""


@pytest.fixture
async def server(constants: Callable[..., None]) -> AsyncIterator[ProxiedApp]:
    """An agent whose idle streams say often that they are alive."""
    constants(keepalive=0.05)
    async with proxied() as server:
        yield server


async def follow(server: ProxiedApp, client: Client, proxy: Proxy, said: str) -> None:
    """Follow a stream to its end, and check it."""
    async with client.stream(said) as stream:
        told = [event async for event in stream]
    await server.check(stream, told, fresh=all(request.resumes for request in proxy.seen[1:]))


@pytest.mark.parametrize("cut", [False, True], ids=["goes-on", "is-cut"])
async def test_a_stall_that_ends(server: ProxiedApp, cut: bool) -> None:
    async def stalled(place: tuple[str, int]) -> None:
        stall = Stall(place[1], cut)
        async with server.behind(streams(stall), place[0]) as (client, proxy):
            following = asyncio.create_task(follow(server, client, proxy, "count 4"))
            await stall.begun.wait()
            assert not following.done()
            stall.until.set()
            await following
            assert len(proxy.seen) == 1 + cut

    await abreast(stalled, PLACES)
    server.check_runs(len(PLACES))


async def test_a_stall_that_never_ends(server: ProxiedApp) -> None:
    """A stream on which not even a sign of life comes is taken up again."""

    async def stalled(place: tuple[str, int]) -> None:
        plan = streams(Stall(place[1]))
        async with server.behind(plan, place[0], patience=PATIENCE) as (client, proxy):
            await follow(server, client, proxy, "count 4")
            assert len(proxy.seen) > proxy.struck == 1

    await abreast(stalled, PLACES)
    server.check_runs(len(PLACES))


async def test_a_stream_that_is_garbled(server: ProxiedApp) -> None:
    """An HTTP library may wait for ever for the rest of what it could not read."""

    async def garbled(place: tuple[str, int]) -> None:
        plan = streams(Garble(place[1]))
        async with server.behind(plan, place[0], patience=PATIENCE) as (client, proxy):
            await follow(server, client, proxy, "count 4")
            assert len(proxy.seen) > proxy.struck == 1

    places = [(binding, byte) for binding in BINDINGS for byte in (0, 100, 500, 900, 1700)]
    await abreast(garbled, places)
    server.check_runs(len(places))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_that_is_only_quiet_is_left_alone(server: ProxiedApp, binding: str) -> None:
    """Its signs of life are enough."""
    async with server.behind(streams(), binding, patience=PATIENCE) as (client, proxy):
        async with asyncio.timeout(HANGS):
            await follow(server, client, proxy, f"rest {2 * PATIENCE}")
        assert len(proxy.seen) == 1


async def test_a_send_that_stalls(server: ProxiedApp) -> None:
    cases = [(binding, byte) for binding in BINDINGS for byte in (0, 100, 300)]

    async def stalled(place: tuple[str, int]) -> None:
        plan = requests(Stall(place[1]))
        async with server.behind(plan, place[0], timeout=PATIENCE) as (client, proxy):
            assert (await client.send("hello")).text == "hello"
            assert len(proxy.seen) > proxy.struck == 1

    await abreast(stalled, cases)
    server.check_runs(len(cases))
