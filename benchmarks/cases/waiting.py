"""The memory of a server with many tasks that wait for input; they are in its store."""

from __future__ import annotations

from benchmarks import load, measure, wire
from benchmarks.bench import Bench
from benchmarks.servers import script

MIB = 1024 * 1024


async def run(bench: Bench) -> None:
    """Only dragoman, with SQLite: memory when empty, with waiting tasks, and started with them."""
    if "sqlite" not in bench.stores or not bench.only("dragoman"):
        return
    tasks = 1000 if bench.quick else 10_000
    key = f"waiting{tasks // 1000}k.sqlite.dragoman"
    check = wire.has(b"TASK_STATE_INPUT_REQUIRED")
    bench.progress(f"waiting: {tasks:,} tasks")
    with measure.serving(["dragoman"], "sqlite") as [server]:
        async with load.connect(server.port, 32) as connections:
            await load.drive(connections, 64, lambda: wire.send(script.ANSWER), check)
            bench.record(f"{key}.rss_mib_empty", await server.settled() / MIB)
            await load.drive(connections, tasks, lambda: wire.send(script.ANSWER), check)
            bench.record(f"{key}.rss_mib", await server.settled() / MIB)
        assert server.folder is not None
        server.end()
        with measure.serving(["dragoman"], "sqlite", server.folder / "tasks.db") as [again]:
            async with load.connect(again.port, 32) as connections:
                await load.drive(connections, 64, lambda: wire.send(script.ANSWER), check)
                bench.record(f"{key}.rss_mib_restarted", await again.settled() / MIB)
