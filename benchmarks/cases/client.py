"""The cost of a client: blocking sends, 16 at once, and streamed responses, fast and slow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

from benchmarks import measure
from benchmarks.bench import Bench

PEERS = ("dragoman", "a2a-sdk", "a2a-sdk-untraced")


class Order(NamedTuple):
    """Work for a client; `units` is what one of them counts for: events of a stream, else 1."""

    key: str
    per: str
    text: str
    count: int
    warm: int
    units: int = 1


async def run(bench: Bench) -> None:
    """Measure it on all clients, of the same server."""
    if "memory" not in bench.stores:
        return
    await compare(bench, bench.only(*PEERS), [sends(bench, "client"), *_streams(bench)])


def sends(bench: Bench, family: str) -> Order:
    """Blocking sends, 16 at once."""
    return Order(f"{family}.send.c16", "request", "send 16", 200 if bench.quick else 1000, 64)


def _streams(bench: Bench) -> Iterator[Order]:
    chunks = 1000 if bench.quick else 5000
    for size in (100, 1000):
        yield Order(f"client.stream{size}", "event", f"stream {size}", chunks // size, 1, size)
    yield Order("client.stream100slow", "event", "stream 100 slow", 2, 1, 100)


async def compare(bench: Bench, peers: list[str], orders: list[Order]) -> None:
    """Give the orders to each client in turn, several rounds."""
    with measure.serving(["dragoman"]) as [server], measure.talking(peers, server) as clients:
        for number in range(bench.rounds):
            for order, client in product(orders, clients):
                bench.progress(f"{order.key}: round {number + 1} of {bench.rounds}, {client.peer}")
                await client.tell(f"{order.warm} {order.text}")
                batch = partial(client.tell, f"{order.count} {order.text}")
                await bench.cost(client, order.key, order.per, order.count * order.units, batch)
