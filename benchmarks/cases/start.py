"""The time from the start of a process to its first response."""

from __future__ import annotations

import asyncio
import time

from benchmarks import load, measure, wire
from benchmarks.bench import Bench


async def run(bench: Bench) -> None:
    """Start each peer several times, in turn."""
    if "memory" not in bench.stores:
        return
    runs = 2 if bench.quick else 5
    for number in range(runs):
        for peer in bench.only("dragoman", "a2a-sdk"):
            bench.progress(f"start: {number + 1} of {runs}, {peer}")
            taken = await _first_answer(peer)
            bench.record(f"start.{peer}.first_answer_ms", taken * 1000)


async def _first_answer(peer: str) -> float:
    began = time.perf_counter()
    server = measure.start(peer)
    try:
        server.wait()
        async with asyncio.timeout(30), load.connect(server.port) as [connection]:
            body = await connection.send(wire.send(wire.ECHO))
            taken = time.perf_counter() - began
        wire.has(b"TASK_STATE_COMPLETED")(body)
        return taken
    finally:
        server.stop()
