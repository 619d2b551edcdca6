"""Streamed responses over gRPC, short and long."""

from __future__ import annotations

from benchmarks import calls
from benchmarks.bench import Bench, Work
from benchmarks.measure import Server


async def run(bench: Bench) -> None:
    """Measure it on all peers that have gRPC, and on gRPC itself."""
    if "memory" in bench.stores:
        await bench.compare("grpc-stream", prepare, manner="grpc")


async def prepare(bench: Bench, server: Server) -> list[Work]:
    """The works for one server: each batch streams the same number of chunks."""
    total = 1000 if bench.quick else 5000
    return [_work(size, total) for size in (100, 1000)]


def _work(size: int, total: int) -> Work:
    return Work(
        key=f"grpc-stream{size}.memory",
        per="event",
        connections=1,
        count=total // size,
        payload=lambda: calls.send(f"stream {size}"),
        check=calls.chunks(size),
        units=size,
        limit=60,
        connect=calls.through(calls.Stream),
    )
