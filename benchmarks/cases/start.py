"""From the start of a process to its first answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from benchmarks import load, measure, wire
from benchmarks.bench import Bench

SERVE = ["-m", "dragoman", "serve", "benchmarks.servers.dragoman_echo:agent", "--port", "{port}"]


async def run(bench: Bench) -> None:
    """Start each peer several times, in turn."""
    runs = 2 if bench.quick else 5
    command = _serve_command() if "dragoman" in bench.peers else None
    for number in range(runs):
        for peer in bench.only("dragoman", "a2a-sdk"):
            bench.progress(f"start: {number + 1} of {runs}, {peer}")
            taken = await _first_answer(peer, command if peer == "dragoman" else None)
            bench.record(f"start.{peer}.first_answer_ms", taken * 1000)


async def _first_answer(peer: str, command: list[str] | None) -> float:
    began = time.perf_counter()
    server = measure.start(peer, command)
    try:
        server.wait()
        async with asyncio.timeout(30), load.connect(server.port) as [connection]:
            body = await connection.send(wire.send(wire.ECHO))
            taken = time.perf_counter() - began
        wire.has(b"TASK_STATE_COMPLETED")(body)
        return taken
    finally:
        server.stop()


def _serve_command() -> list[str] | None:
    """The command line that users start a server with, where it exists."""
    probe = [sys.executable, "-m", "dragoman", "serve", "--help"]
    done = subprocess.run(probe, capture_output=True, timeout=30, check=False)
    return SERVE if done.returncode == 0 else None
