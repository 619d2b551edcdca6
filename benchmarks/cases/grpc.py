"""A blocking send over gRPC, with 32 at once."""

from __future__ import annotations

from benchmarks import calls, wire
from benchmarks.bench import Bench, Work
from benchmarks.measure import Server


async def run(bench: Bench) -> None:
    """Measure it on all peers that have gRPC, and on gRPC itself."""
    if "memory" in bench.stores:
        await bench.compare("grpc", prepare, manner="grpc")


async def prepare(bench: Bench, server: Server) -> list[Work]:
    """The work for one server."""
    return [
        Work(
            key="grpc.memory.c32",
            per="request",
            connections=32,
            count=200 if bench.quick else 1000,
            payload=lambda: calls.send(wire.ECHO),
            check=calls.echoed,
            limit=60,
            connect=calls.through(calls.Send),
        )
    ]
