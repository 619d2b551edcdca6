"""GetTask and pages of ListTasks in a store with many tasks, and in one with few."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks import fill, measure, pgfill, wire
from benchmarks.bench import Bench, Work
from benchmarks.measure import Server

FEW = 1000


@dataclass
class Paired(Server):
    """A server whose database is another process; what that computes counts as well."""

    seen: dict[int, float] = field(default_factory=dict)

    def cpu(self) -> float:
        """Seconds of CPU of both, also of those who have ended meanwhile."""
        database = measure.postgres().process
        assert database is not None
        family = psutil.Process(database.pid)
        for member in [family, *family.children()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.seen[member.pid] = measure.spent(member)
        return super().cpu() + sum(self.seen.values())


async def run(bench: Bench) -> None:
    """Only dragoman: how its cost grows is the figure."""
    if not bench.only("dragoman"):
        return
    many = 20_000 if bench.quick else 1_000_000
    for store in bench.stores:
        if store == "memory":
            continue
        with contextlib.ExitStack() as stack:
            works = []
            for tasks in (FEW, many):
                server = await _served(bench, store, tasks)
                stack.callback(server.stop)
                server.wait(pause=0.01)
                works.append((server, _works(bench, store, tasks)))
            await bench.rotate(works)


async def _served(bench: Bench, store: str, tasks: int) -> Server:
    if store == "sqlite":
        return measure.start("dragoman", store, await _filled(bench, tasks))
    bench.progress(f"scale: storing {tasks:,} tasks in PostgreSQL")
    url = measure.database()
    await pgfill.write(url, tasks)
    found = measure.start("dragoman", store, url=url)
    return Paired(found.peer, found.process, found.port, found.log, store)


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


def _works(bench: Bench, store: str, tasks: int) -> list[Work]:
    chosen = random.Random(tasks)

    def some() -> int:
        return chosen.randrange(tasks)

    size = f"{tasks // 1000}k" if tasks < 1_000_000 else f"{tasks // 1_000_000}m"
    page = min(50, tasks)
    full = f'"pageSize":{page}'.encode()

    def work(name: str, payload: Callable[[], bytes], needle: bytes) -> Work:
        return _work(bench, f"{name}{size}.{store}", payload, needle)

    return [
        work("get", lambda: wire.call("GetTask", id=fill.task(some())), b'"status"'),
        work("list", lambda: wire.call("ListTasks"), full),
        work(
            "liststate",
            lambda: wire.call("ListTasks", status="TASK_STATE_INPUT_REQUIRED"),
            b"TASK_STATE_INPUT_REQUIRED",
        ),
        work(
            "listcontext",
            lambda: wire.call("ListTasks", contextId=fill.context(some())),
            b'"totalSize":100',
        ),
    ]


def _work(bench: Bench, key: str, payload: Callable[[], bytes], needle: bytes) -> Work:
    many, few = (300, 30) if bench.quick else (2000, 100)
    return Work(
        key=key,
        per="request",
        connections=8,
        count=many if key.startswith("get") else few,
        payload=payload,
        check=wire.has(b'"result"', needle),
    )
