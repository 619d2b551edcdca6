"""GetTask of a task with a long history and many artifacts."""

from __future__ import annotations

import asyncio

from benchmarks import load, wire
from benchmarks.bench import Bench, Work
from benchmarks.load import Broken, Connection
from benchmarks.measure import Server
from benchmarks.servers import script

ASKS, ARTIFACTS = 25, 20


async def run(bench: Bench) -> None:
    """Measure it on all peers."""
    if "memory" in bench.stores:
        await bench.compare("get", prepare)


async def prepare(bench: Bench, server: Server) -> list[Work]:
    """Build the task up through the protocol, then read it."""
    async with load.connect(server.port) as [connection]:
        build = _build_at_once if server.peer == "fasta2a" else _build_by_dialogue
        async with asyncio.timeout(60):
            task_id = await build(connection)
            await server.quiet()
            task = wire.task(await connection.send(wire.call("GetTask", id=task_id)))
    history, artifacts = len(task.get("history", [])), len(task.get("artifacts", []))
    if history < 50 or artifacts != ARTIFACTS:
        raise Broken(f"{server.peer}: {history} messages and {artifacts} artifacts")
    return [
        Work(
            key="get.memory",
            per="request",
            connections=32,
            count=100 if bench.quick else 300,
            payload=lambda: wire.call("GetTask", id=task_id),
            check=wire.has(task_id.encode(), b"TASK_STATE_COMPLETED"),
        )
    ]


async def _build_by_dialogue(connection: Connection) -> str:
    task_id = None
    for _ in range(ASKS):
        task = wire.task(await connection.send(wire.send(script.ANSWER, task_id)))
        task_id = task["id"]
    await connection.send(wire.send(f"artifacts {ARTIFACTS}", task_id))
    return str(task_id)


async def _build_at_once(connection: Connection) -> str:
    text = f"history {2 * ASKS + 1} {ARTIFACTS}"
    return str(wire.task(await connection.send(wire.send(text)))["id"])
