"""Sends over a network that fails: the agent runs once, and its answer is right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dragoman import TaskState
from tests.faults.network.faulty_network import BINDINGS, ProxiedApp, abreast, proxied
from tests.harness.faulty_proxy import Cut, Fault, Lost, Twice, requests
from tests.harness.scale import SCALE, SOAK, seeded

STRIDE = max(1, round(1 / SCALE)) if SOAK else 29
SENDS = max(50, int(2000 * SCALE)) if SOAK else 50

LOST: list[Fault] = [
    Lost(delivered, reset) for delivered in (False, True) for reset in (False, True)
]


async def send(server: ProxiedApp, binding: str, *faults: Fault) -> None:
    """Send through these faults, a task and its next turn; the answers are those of the task."""
    async with server.behind(requests(*faults), binding, attempts=10) as (client, proxy):
        asked = await client.send("ask")
        assert asked.task is not None
        assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "What?")
        done = await client.task(asked.task.id).reply("this one")
        assert (done.state, done.text) == (TaskState.COMPLETED, "so far\nthis one")
        assert done.task == await server.get(asked.task.id)
        server.struck += proxy.struck


async def test_lost_on_the_way_there_or_back() -> None:
    faults: list[Fault] = [*LOST, Cut(0), Cut(0, reset=True)]
    async with proxied() as server:

        async def lose(case: tuple[str, Fault]) -> None:
            await send(server, case[0], case[1], case[1], case[1])

        cases = [(binding, fault) for binding in BINDINGS for fault in faults]
        await abreast(lose, cases)
        server.check_runs(2 * len(cases))
        assert server.struck == 3 * len(cases)


@pytest.mark.soak
@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_answer_cut_at_every_byte(binding: str) -> None:
    async with proxied() as server:
        async with server.behind(requests(), binding) as (client, proxy):
            await client.send("ask")
        places = range(seeded("send").randrange(STRIDE), proxy.passed[0], STRIDE)

        async def cut(fault: Fault) -> None:
            await send(server, binding, fault)

        await abreast(cut, [Cut(byte, reset) for byte in places for reset in (False, True)])
        server.check_runs(1 + 4 * len(places))
        assert server.struck == 2 * len(places)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_request_that_is_delivered_twice(binding: str) -> None:
    """As by a middlebox that tries again when it thinks it should."""
    async with proxied() as server:
        await send(server, binding, Twice(), Twice())
        server.check_runs(2)
        assert server.struck == 2


@pytest.mark.soak
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_many_sends_side_by_side(tmp_path: Path, store: str) -> None:
    chance = seeded("sends")
    seeds = [chance.randrange(1 << 32) for _ in range(SENDS // 2)]
    where = "memory:" if store == "memory" else f"sqlite:///{tmp_path}/tasks.db"
    async with proxied(store=where, poll=0.1) as server:

        async def one(seed: int) -> None:
            chance = random.Random(seed)
            faults: list[Fault] = []
            for _ in range(chance.randint(1, 5 if SOAK else 3)):
                cut = Cut(chance.randrange(1000), chance.random() < 0.5)
                faults.append(chance.choice([*LOST, Twice(), cut]))
            await send(server, chance.choice(BINDINGS), *faults)

        await abreast(one, seeds)
        server.check_runs(2 * len(seeds))
        assert server.struck >= len(seeds)
