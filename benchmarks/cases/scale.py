"""GetTask and pages of ListTasks in a SQLite store with many tasks, and in one with few."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import fill, measure, wire
from benchmarks.bench import Bench, Work

FEW = 1000


async def run(bench: Bench) -> None:
    """Only dragoman: how its cost grows is the figure."""
    if "sqlite" not in bench.stores or not bench.only("dragoman"):
        return
    many = 20_000 if bench.quick else 1_000_000
    few_file, many_file = [await _filled(bench, tasks) for tasks in (FEW, many)]
    with (
        measure.serving(["dragoman"], "sqlite", few_file) as [few],
        measure.serving(["dragoman"], "sqlite", many_file) as [large],
    ):
        await bench.rotate([(few, _works(bench, FEW)), (large, _works(bench, many))])


async def _filled(bench: Bench, tasks: int) -> Path:
    """A store with so many tasks: the one of an earlier run, if it is there."""
    path = measure.disk() / fill.name(tasks)
    if not path.exists():
        bench.progress(f"scale: storing {tasks:,} tasks")
        command = (sys.executable, "-m", "benchmarks.fill", str(path), str(tasks))
        process = await asyncio.create_subprocess_exec(*command, cwd=measure.ROOT)
        try:
            if await process.wait():
                raise measure.NotServing("the store could not be filled")
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
    return path


def _works(bench: Bench, tasks: int) -> list[Work]:
    chosen = random.Random(tasks)

    def some() -> int:
        return chosen.randrange(tasks)

    size = f"{tasks // 1000}k" if tasks < 1_000_000 else f"{tasks // 1_000_000}m"
    page = min(50, tasks)
    full = f'"pageSize":{page}'.encode()
    return [
        _work(bench, f"get{size}", lambda: wire.call("GetTask", id=fill.task(some())), b'"status"'),
        _work(bench, f"list{size}", lambda: wire.call("ListTasks"), full),
        _work(
            bench,
            f"liststate{size}",
            lambda: wire.call("ListTasks", status="TASK_STATE_INPUT_REQUIRED"),
            b"TASK_STATE_INPUT_REQUIRED",
        ),
        _work(
            bench,
            f"listcontext{size}",
            lambda: wire.call("ListTasks", contextId=fill.context(some())),
            b'"totalSize":100',
        ),
    ]


def _work(bench: Bench, name: str, payload: Callable[[], bytes], needle: bytes) -> Work:
    many, few = (300, 30) if bench.quick else (2000, 100)
    return Work(
        key=f"{name}.sqlite",
        per="request",
        connections=8,
        count=many if name.startswith("get") else few,
        payload=payload,
        check=wire.has(b'"result"', needle),
    )
