"""An executor of a2a-sdk on its own server, and the same class on `dragoman serve`."""

from __future__ import annotations

from benchmarks import wire
from benchmarks.bench import Bench, Work
from benchmarks.measure import Server


async def run(bench: Bench) -> None:
    """Measure it on both."""
    for store in bench.stores:
        await bench.compare("executor", prepare, store, manner="executor")


async def prepare(bench: Bench, server: Server) -> list[Work]:
    """The works for one server: blocking sends, and streamed responses."""
    many, total = (200, 1000) if bench.quick else (1000, 5000)
    slow = server.store != "memory" and server.peer != "dragoman"
    if slow:
        many, total = 64, 100  # a few dozen each second
    return [_send(server, many), _stream(server, 100, total), _stream(server, 1000, total)]


def _send(server: Server, count: int) -> Work:
    return Work(
        key=f"executor.{server.store}.c32",
        per="request",
        connections=32,
        count=count,
        payload=lambda: wire.send(wire.ECHO),
        check=wire.has(wire.ECHO.encode(), b"TASK_STATE_COMPLETED", b'"artifacts"'),
        limit=60,
    )


def _stream(server: Server, size: int, total: int) -> Work:
    return Work(
        key=f"executor-stream{size}.{server.store}",
        per="event",
        connections=1,
        count=max(1, total // size),
        payload=lambda: wire.stream(f"stream {size}"),
        check=wire.chunks(size),
        units=size,
        limit=60,
    )
