"""Streams of other makes, cut: the task is right in the end, and no error escapes.

They tell no places, so what was told may come again as a whole; the task itself has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from dragoman import TaskState
from dragoman.client import Client
from tests.faults.network.faulty_network import abreast, behind
from tests.harness.faulty_proxy import Cut, Fault, Truncate, streams
from tests.harness.scale import SCALE, SOAK, say, seeded
from tests.interop import peers

STRIDE = max(1, round(1 / SCALE)) if SOAK else 101
"""How many bytes lie between two cuts; closing and resetting take turns."""
PLACES = max(20, int(300 * SCALE)) if SOAK else 16
"""Where a longer stream is cut."""
FOREIGN = [
    peer for peer in peers.EVERY if peer.binding != "GRPC" and peer.offers("works on unheard")
]
"""Those that a proxy for HTTP can stand before, and whose tasks come to an end in spite of it."""


class Desk(NamedTuple):
    """A foreign server, and the binding to speak with it."""

    url: str
    binding: str

    async def follow(self, said: str, *faults: Fault) -> int:
        """Follow a stream through faults: it ends as the task did. The bytes of what came whole."""
        async with Client.connect(self.url) as client:
            card = client.card
        async with (
            behind(self.url, card, streams(*faults), self.binding) as (client, proxy),
            client.stream(said) as stream,
        ):
            _ = [event async for event in stream]
            assert proxy.struck == len(faults)
            assert stream.task is not None
            task = await client.task(stream.task.id).get()
            assert stream.task.status == task.status
            told, kept = stream.task.artifacts, task.artifacts  # this agent keeps each chunk apart
            assert {a.artifact_id: a.text for a in told} == {a.artifact_id: a.text for a in kept}
            verb, _, number = said.partition(" ")
            if verb == "count":
                assert stream.result.state is TaskState.COMPLETED
                assert stream.result.text == "".join(f"{n}," for n in range(int(number)))
            else:
                assert stream.result.state is TaskState.INPUT_REQUIRED
            return max(proxy.passed)


@pytest.fixture(scope="module", params=FOREIGN, ids=str)
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """Each of them in turn; one that cannot be had here is skipped, and it is said why."""
    peer: peers.Peer = request.param
    with ExitStack() as stack:
        try:
            url = stack.enter_context(peers.serving(peer.name))
        except peers.Absent as why:
            pytest.skip(f"{peer.name}: {why}")
        yield Desk(url, peer.binding)


@pytest.mark.soak
@pytest.mark.parametrize("said", ["count 5", "ask"])
async def test_cut_at_every_byte(desk: Desk, said: str) -> None:
    """It has mostly come to its end before it is taken up again."""
    start = seeded("foreign").randrange(STRIDE)
    size = await desk.follow(said)
    # An answer may be a little shorter than the first; a body is so by head and framing.
    places = range(start, size - 60, STRIDE)
    faults: list[Fault] = [Cut(byte, reset=bool(byte // STRIDE % 2)) for byte in places]
    faults += [Truncate(byte) for byte in places[::3] if byte < 0.75 * size - 400]
    say(f"{size} bytes, {len(faults)} faults")

    async def cut(fault: Fault) -> None:
        await desk.follow(said, fault)

    await abreast(cut, faults, 24)


@pytest.mark.soak
async def test_taken_up_while_the_agent_works(desk: Desk) -> None:
    chance = seeded("works")
    size = await desk.follow("count 40")
    faults = [Cut(chance.randrange(size // 2), chance.random() < 0.5) for _ in range(PLACES)]

    async def cut(fault: Fault) -> None:
        await desk.follow("count 40", fault)

    await abreast(cut, faults, 16)
