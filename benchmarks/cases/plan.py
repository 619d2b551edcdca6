"""One more step of an orchestrator's plan: plans of two lengths, and the difference."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measure
from benchmarks.bench import Bench
from benchmarks.load import Broken
from benchmarks.measure import ROOT, Client, Server, pin_server

SHORT, LONG = 5, 25
ABREAST = 4


async def run(bench: Bench) -> None:
    """On SQLite; the agent that is called is another process."""
    if "sqlite" not in bench.stores or "dragoman" not in bench.only("dragoman"):
        return
    count = 8 if bench.quick else 40
    with measure.serving(["dragoman"]) as (server,), contextlib.ExitStack() as stack:
        programs = {size: stack.enter_context(planning(server, size)) for size in (SHORT, LONG)}
        for program in programs.values():
            await program.tell(f"{ABREAST} {ABREAST}")  # cards are read once
        for number in range(bench.rounds):
            bench.progress(f"plan.sqlite: round {number + 1} of {bench.rounds}")
            cost = {}
            for size, program in programs.items():
                cost[size] = await _cost(program, count)
            more = (cost[LONG] - cost[SHORT]) / (count * (LONG - SHORT))
            bench.record("plan.sqlite.dragoman.cpu_us_per_step", more * 1e6)


async def _cost(program: Client, count: int) -> float:
    await program.quiet()
    before = program.cpu()
    await program.tell(f"{count} {ABREAST}", limit=300)
    await program.quiet()
    return program.cpu() - before


@contextlib.contextmanager
def planning(server: Server, size: int) -> Iterator[Client]:
    """A program whose plans have so many steps, with a store of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=measure.disk()) as folder:
        words = ["-m", "benchmarks.steps.planned_steps", f"sqlite:///{Path(folder) / 'plans.db'}"]
        process = subprocess.Popen(
            [sys.executable, *words, f"http://127.0.0.1:{server.port}", str(size)],
            cwd=ROOT,
            env=measure.environment("dragoman"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        program = Client("dragoman", process)
        try:
            pin_server(process.pid)
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"ready":
                raise Broken("the orchestrator does not start")
            yield program
        finally:
            program.end()
