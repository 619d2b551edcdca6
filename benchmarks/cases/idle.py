"""The memory of an idle stream."""

from __future__ import annotations

import asyncio

from benchmarks import load, measure, wire
from benchmarks.bench import Bench
from benchmarks.load import Broken
from benchmarks.measure import Server
from benchmarks.servers import script

FIRST = 20


async def run(bench: Bench) -> None:
    """Measure it on the peers whose streams stay open on a waiting task."""
    streams = 100 if bench.quick else 1000
    for store in bench.stores:
        with measure.serving(bench.only("dragoman", "a2a-sdk"), store) as servers:
            for server in servers:
                bench.progress(f"idle.{store}: {streams} streams, {server.peer}")
                async with asyncio.timeout(120):
                    grown = await _grown(server, streams)
                key = f"idle.{store}.{server.peer}.rss_kib_per_stream"
                bench.record(key, grown / streams / 1024)


async def _grown(server: Server, streams: int) -> int:
    async with load.connect(server.port) as [connection]:
        task_id = wire.task(await connection.send(wire.send(script.ANSWER)))["id"]
    # The first ones also pay for what is made once; they stay open and are not counted.
    async with load.connect(server.port, FIRST + streams) as connections:
        await _subscribe(connections[:FIRST], task_id)
        before = await server.settled()
        await _subscribe(connections[FIRST:], task_id)
        after = await server.settled()
        if any(connection.transport.is_closing() for connection in connections):
            raise Broken(f"{server.peer} closed an idle stream")
        return after - before


async def _subscribe(connections: list[load.Connection], task_id: str) -> None:
    for connection in connections:
        first = await connection.open(wire.call("SubscribeToTask", id=task_id))
        wire.has(b"TASK_STATE_INPUT_REQUIRED")(first)
