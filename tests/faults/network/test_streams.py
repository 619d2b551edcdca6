"""Streams over a network that fails: nothing is lost, nothing is doubled, the agent runs once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman import TaskState
from tests.faults.network.faulty_network import BINDINGS, ProxiedApp, abreast, proxied
from tests.harness.faulty_proxy import Cut, Fault, Repeat, Truncate, streams
from tests.harness.scale import SCALE, SOAK, say, seeded

STRIDE = max(1, round(1 / SCALE)) if SOAK else 61
"""How many bytes lie between two cuts; closing and resetting take turns."""
STREAMS = max(20, int(1000 * SCALE)) if SOAK else 50
EVENTS = 200
SUBSCRIPTIONS = max(20, int(1000 * SCALE)) if SOAK else 30

SAID: dict[str, tuple[TaskState, int]] = {
    "count 4": (TaskState.COMPLETED, 7),
    "ask": (TaskState.INPUT_REQUIRED, 4),
    "permit": (TaskState.COMPLETED, 5),
    "later": (TaskState.AUTH_REQUIRED, 3),
}
"""What is said, how it ends, and with how many events."""


async def follow(
    server: ProxiedApp, said: str, binding: str, *faults: Fault, task: str = ""
) -> None:
    """Follow a stream through these faults, and check it."""
    async with (
        server.behind(streams(*faults), binding, attempts=10) as (client, proxy),
        client.stream(said, task=task) as stream,
    ):
        told = [event async for event in stream]
        await server.check(stream, told, fresh=all(request.resumes for request in proxy.seen[1:]))
        if said in SAID:
            assert stream.result.state is SAID[said][0]
        server.struck += proxy.struck


async def length(server: ProxiedApp, said: str, binding: str) -> int:
    """The bytes of the answer that a network without faults brings."""
    async with server.behind(streams(), binding) as (client, proxy), client.stream(said) as stream:
        told = [event async for event in stream]
    assert len(told) == SAID[said][1]
    await server.check(stream, told, fresh=True)
    return proxy.passed[0]


@pytest.mark.soak
@pytest.mark.parametrize("said", SAID)
async def test_cut_at_every_byte(said: str, constants: Callable[..., None]) -> None:
    constants(keepalive=0.01)
    start = seeded("cut").randrange(STRIDE)
    async with proxied() as server:
        cuts = [
            (binding, Cut(byte, reset=bool(byte // STRIDE % 2)))
            for binding in BINDINGS
            for byte in range(start, await length(server, said, binding), STRIDE)
        ]

        async def cut(case: tuple[str, Fault]) -> None:
            await follow(server, said, *case)

        await abreast(cut, cuts)
        server.check_runs(len(cuts) + len(BINDINGS))
        assert server.struck > 0.9 * len(cuts)  # with a keep-alive less, an answer is shorter


@pytest.mark.soak
@pytest.mark.parametrize("said", SAID)
async def test_an_end_that_only_looks_like_one(said: str) -> None:
    start = seeded("truncate").randrange(STRIDE)
    async with proxied() as server:
        ends = [
            (binding, Truncate(byte))
            for binding in BINDINGS
            for byte in range(start, await length(server, said, binding) - 400, STRIDE)
        ]  # a body is shorter than its answer, by head and framing

        async def truncate(case: tuple[str, Fault]) -> None:
            await follow(server, said, *case)

        await abreast(truncate, ends)
        server.check_runs(len(ends) + len(BINDINGS))
        assert server.struck > 0.9 * len(ends)


@pytest.mark.parametrize("said", SAID)
async def test_events_that_come_twice(said: str) -> None:
    async with proxied() as server:
        events = range(1, SAID[said][1] + 1)
        repeats = [
            (binding, Repeat(event, back))
            for binding in BINDINGS
            for event in events
            for back in range(1, event + 1)
        ]

        async def repeat(case: tuple[str, Fault]) -> None:
            await follow(server, said, *case)

        await abreast(repeat, repeats)
        server.check_runs(len(repeats))
        assert server.struck == len(repeats)


@pytest.mark.soak
async def test_a_further_turn_cut_at_every_byte() -> None:
    """Its stream begins with the task at work: the question that it answers is not its end."""
    start = seeded("turn").randrange(STRIDE)
    async with proxied() as server:
        faults = [
            (binding, fault)
            for binding in BINDINGS
            for byte in range(start, 2200, STRIDE)
            for fault in (Cut(byte, reset=bool(byte // STRIDE % 2)), Truncate(byte))
        ]

        async def turn(case: tuple[str, Fault]) -> None:
            async with server.behind(streams(), case[0]) as (client, _):
                asked = await client.send("ask")
            assert asked.task is not None
            await follow(server, "this one", *case, task=asked.task.id)

        await abreast(turn, faults)
        server.check_runs(2 * len(faults))
        assert server.struck > 0.8 * len(faults)


@pytest.mark.soak
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_direct_answer_cut_at_every_byte(binding: str) -> None:
    async with proxied() as server:

        async def cut(*faults: Fault) -> int:
            async with (
                server.behind(streams(*faults), binding) as (client, proxy),
                client.stream("hi", skill="talk") as stream,
            ):
                told = [event async for event in stream]
            assert len(told) == 1
            assert stream.result.text == "you said hi"
            assert proxy.struck == len(faults)
            return sum(proxy.passed)

        size = await cut()
        stride = range(seeded("answer").randrange(STRIDE), size, STRIDE)
        places = {*stride, *range(size - 8, size)}  # between the answer and the end of its stream
        await abreast(cut, [Cut(byte, reset) for byte in places for reset in (False, True)])
        server.check_runs(1 + 2 * len(places))


@pytest.mark.soak
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_many_streams_cut_again_and_again(tmp_path: Path, store: str) -> None:
    """Long streams side by side, each of them cut several times, mostly while its agent works."""
    chance = seeded("many")
    seeds = [chance.randrange(1 << 32) for _ in range(STREAMS // 2)]
    where = "memory:" if store == "memory" else f"sqlite:///{tmp_path}/tasks.db"
    async with proxied(store=where, poll=0.1) as server:

        async def one(seed: int) -> None:
            chance = random.Random(seed)
            said = f"{chance.choice(['pace', 'pace', 'count'])} {EVENTS}"
            await follow(server, said, chance.choice(BINDINGS), *several(chance, 30_000))

        await abreast(one, seeds)
        server.check_runs(len(seeds))
        assert server.struck > len(seeds)
        say(f"{len(seeds)} streams of {EVENTS} events, {server.struck} faults")


@pytest.mark.soak
async def test_subscriptions_cut_again_and_again() -> None:
    chance = seeded("subscriptions")
    seeds = [chance.randrange(1 << 32) for _ in range(SUBSCRIPTIONS)]
    async with proxied() as server:

        async def one(seed: int) -> None:
            chance = random.Random(seed)
            plan = streams(*several(chance, 10_000))
            async with server.behind(plan, chance.choice(BINDINGS), attempts=10) as (client, proxy):
                begun = await client.send("pace 60", wait=False)
                assert begun.task is not None
                async with client.task(begun.task.id).subscribe() as stream:
                    told = [event async for event in stream]
                await server.check(stream, told, fresh=False)
                server.struck += proxy.struck

        await abreast(one, seeds)
        server.check_runs(len(seeds))
        assert server.struck > len(seeds)


def several(chance: random.Random, reach: int) -> list[Fault]:
    """Some faults within so many bytes, each on what the one before has left of a stream."""
    found: list[Fault] = []
    for _ in range(chance.randint(2, 7)):
        byte = int(reach * chance.random() ** 2)
        again = Repeat(chance.randint(1, 30), chance.randint(1, 30))  # it ends nothing: be sparing
        cuts: list[Fault] = [Cut(byte), Cut(byte, reset=True), Truncate(byte)]
        found.append(chance.choice([*cuts, *cuts, again]))
    return found
