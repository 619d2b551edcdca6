"""A client that stops reading for a while, and then reads everything."""

from __future__ import annotations

import asyncio
import time

from benchmarks import load, measure, wire
from benchmarks.bench import Bench
from benchmarks.measure import Server

CHUNKS = 40_000
MIB = 1024 * 1024


async def run(bench: Bench) -> None:
    """Only dragoman: that nothing is lost is the point, the memory is the figure."""
    if "memory" not in bench.stores:
        return
    for peer in bench.only("dragoman"):
        with measure.serving([peer]) as [server]:
            await _stall(bench, server, 3 if bench.quick else 45)


async def _stall(bench: Bench, server: Server, seconds: float) -> None:
    async with load.connect(server.port, receive_buffer=65536) as [connection]:
        key = f"stall.{server.peer}"
        bench.record(f"{key}.rss_mib_before", server.rss() / MIB)
        answer = connection.send(wire.stream(f"stream {CHUNKS}"))
        connection.transport.pause_reading()
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            bench.progress(f"stall: {passed:.0f} of {seconds:.0f} s, {server.peer}")
            await asyncio.sleep(1)
            bench.record(f"{key}.rss_mib_while_stalled", server.rss() / MIB, max)
        connection.transport.resume_reading()
        bench.progress(f"stall: reading {CHUNKS} chunks, {server.peer}")
        async with asyncio.timeout(120):
            wire.chunks(CHUNKS)(await answer)
        bench.record(f"{key}.rss_mib_after", server.rss() / MIB)
        bench.record(f"{key}.chunks_in_order", CHUNKS)
        bench.record(f"{key}.stalled_s", seconds)
