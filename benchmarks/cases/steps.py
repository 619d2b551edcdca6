"""Work of five steps, each of which runs once whatever happens: dragoman beside DBOS."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measure
from benchmarks.bench import Bench
from benchmarks.load import Broken
from benchmarks.measure import ROOT, Client, pin_server
from benchmarks.steps.orders import STEPS
from tests.interop.peers import environments

ABREAST = 16


async def run(bench: Bench) -> None:
    """Both on SQLite and PostgreSQL, interleaved."""
    peers = bench.only("dragoman", "dbos")
    count = 50 if bench.quick else 400
    for store in ("sqlite", "postgres"):
        if store not in bench.stores:
            continue
        with contextlib.ExitStack() as stack:
            programs = []
            for peer in peers:
                bench.progress(f"steps.{store}: starting {peer}")
                try:
                    programs.append(stack.enter_context(working(peer, store)))
                except environments.Absent as absent:
                    bench.note(f"steps: {peer} is not measured; {absent}")
            for program in programs:
                await program.tell(f"{ABREAST} {ABREAST}")  # what is done once is done
            for number in range(bench.rounds):
                for program in programs:
                    bench.progress(
                        f"steps.{store}: round {number + 1} of {bench.rounds}, {program.peer}"
                    )
                    await _round(bench, store, program, count)


async def _round(bench: Bench, store: str, program: Client, count: int) -> None:
    await program.quiet()
    before, began = program.cpu(), asyncio.get_running_loop().time()
    await program.tell(f"{count} {ABREAST}", limit=300)
    took = asyncio.get_running_loop().time() - began
    await program.quiet()
    key, steps = f"steps.{store}.{program.peer}", count * STEPS
    bench.record(f"{key}.cpu_us_per_step", (program.cpu() - before) / steps * 1e6)
    bench.record(f"{key}.steps_per_s", steps / took, best=max)


@contextlib.contextmanager
def working(peer: str, store: str) -> Iterator[Client]:
    """A program that waits for orders, with a store of its own."""
    if peer == "dbos":
        words = [environments.python(peer), ROOT / "benchmarks" / "steps" / "dbos_steps.py"]
    else:
        words = [sys.executable, "-m", "benchmarks.steps.dragoman_steps"]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=measure.disk()) as folder:
        url = f"sqlite:///{Path(folder) / 'steps.db'}" if store == "sqlite" else measure.database()
        process = subprocess.Popen(
            [*map(str, words), url],
            cwd=ROOT,
            env=measure.environment(peer) if peer == "dragoman" else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        program = Client(peer, process)
        try:
            pin_server(process.pid)
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"ready":
                raise Broken(f"{peer} does not start with {store}")
            yield program
        finally:
            program.end()
