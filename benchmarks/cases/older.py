"""A blocking send in 0.3 and the same in 1.0, both over JSON-RPC with 32 connections."""

from __future__ import annotations

from functools import partial

from benchmarks import load, wire
from benchmarks.bench import Bench, Work
from benchmarks.measure import Server


async def run(bench: Bench) -> None:
    """Measure both on all peers that speak both."""
    if "memory" in bench.stores:
        await bench.compare("older", prepare, manner="older")


async def prepare(bench: Bench, server: Server) -> list[Work]:
    """The works for one server."""
    count = 200 if bench.quick else 1000
    return [
        Work(
            key="older.memory",
            per="request",
            connections=32,
            count=count,
            payload=lambda: wire.older(wire.ECHO),
            check=wire.has(wire.ECHO.encode(), b'"completed"', b'"artifacts"'),
            limit=60,
            connect=partial(load.connect, version=""),
        ),
        Work(
            key="newer.memory",
            per="request",
            connections=32,
            count=count,
            payload=lambda: wire.send(wire.ECHO),
            check=wire.has(wire.ECHO.encode(), b"TASK_STATE_COMPLETED", b'"artifacts"'),
            limit=60,
        ),
    ]
