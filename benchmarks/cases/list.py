"""ListTasks: the first page of many stored tasks."""

from __future__ import annotations

from benchmarks import load, wire
from benchmarks.bench import Bench, Work
from benchmarks.load import Broken
from benchmarks.measure import Server


async def run(bench: Bench) -> None:
    """Measure it on all peers that can list."""
    if "memory" not in bench.stores:
        return
    if "fasta2a" in bench.peers:
        bench.note("fasta2a does not list tasks.")
    await bench.compare("list", prepare)


async def prepare(bench: Bench, server: Server) -> list[Work]:
    """Store the tasks by sends; the work is then to list them."""
    if server.peer == "fasta2a":
        return []
    tasks = 1000 if bench.quick else 10_000
    async with load.connect(server.port, 32) as connections:
        check = wire.has(b"TASK_STATE_COMPLETED")
        await load.drive(connections, tasks, lambda: wire.send(wire.ECHO), check)
        page = wire.result(await connections[0].send(wire.call("ListTasks")))
    if len(page["tasks"]) != 50 or page["totalSize"] != tasks:
        raise Broken(f"{server.peer}: {len(page['tasks'])} of {page['totalSize']} tasks")
    return [
        Work(
            key=f"list{tasks // 1000}k.memory",
            per="request",
            connections=8,
            count=16 if bench.quick else 48,
            payload=lambda: wire.call("ListTasks"),
            check=wire.has(b'"totalSize"', b"TASK_STATE_COMPLETED"),
        )
    ]
