"""The delay of a ring to another process, and the cost for a process that it does not concern.

`python -m benchmarks.cases.bell URL COUNT` is the other process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator

from benchmarks.bench import Bench
from benchmarks.measure import Process, pin_server
from dragoman import bells
from dragoman.bells.bell import Bell
from tests.harness.services import Missing, Nats, Postgres, Redis

RATE = 500
"""Rings a second while their way is timed."""
BURST = 100
END = "bench:end"


async def run(bench: Bench) -> None:
    """Only dragoman's bells, each with a server of its own."""
    if not bench.only("dragoman"):
        return
    for kind in (Postgres, Nats, Redis):
        try:
            with kind() as server:
                url = server.dsn() if isinstance(server, Postgres) else server.url
                for number in range(bench.rounds):
                    bench.progress(f"bell: round {number + 1} of {bench.rounds}, {server.name}")
                    await _time(bench, server.name, url)
                    await _cost(bench, server.name, url)
        except Missing as missing:
            bench.note(f"bell: {kind.name} is not measured; {missing}")


async def _time(bench: Bench, name: str, url: str) -> None:
    count = RATE if bench.quick else 5 * RATE
    rung = []
    async with _ringing(url) as bell:
        with _listening(name, url, count) as there:
            began = time.monotonic()
            for number in range(count):
                await asyncio.sleep(max(0, began + number / RATE - time.monotonic()))
                rung.append(time.monotonic())
                bell.ring(f"bench:{number}")
            bell.ring(END)
            heard = json.loads(await _line(there))
    took = [(there - here) * 1000 for here, there in zip(rung, heard, strict=True)]
    cuts = statistics.quantiles(took, n=100)
    bench.record(f"bell.{name}.p50_ms", cuts[49])
    bench.record(f"bell.{name}.p99_ms", cuts[98])


async def _cost(bench: Bench, name: str, url: str) -> None:
    count = 5_000 if bench.quick else 50_000
    topics = [str(uuid.uuid4()) for _ in range(count)]
    async with _ringing(url) as bell:
        with _listening(name, url, 0) as there:
            await there.quiet()
            before = there.cpu()
            for first in range(0, count, BURST):
                for topic in topics[first : first + BURST]:
                    bell.ring(topic)
                await asyncio.sleep(0.005)
            await there.quiet()
            bench.record(f"bell.{name}.cpu_us_per_ring", (there.cpu() - before) / count * 1e6)
            bell.ring(END)
            await _line(there)


@contextlib.asynccontextmanager
async def _ringing(url: str) -> AsyncIterator[Bell]:
    bell = bells.connect(url)
    await bell.open()
    try:
        yield bell
    finally:
        await bell.close()


@contextlib.contextmanager
def _listening(name: str, url: str, count: int) -> Iterator[Process]:
    command = [sys.executable, "-m", "benchmarks.cases.bell", url, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pin_server(process.pid)
        try:
            process.stdout.readline()
            yield Process(name, process)
        finally:
            process.terminate()


async def _line(there: Process) -> str:
    assert there.process.stdout is not None
    return (await asyncio.to_thread(there.process.stdout.readline)).decode()


async def _listen(url: str, count: int) -> None:
    """Say when each of so many topics was rung."""
    heard = [0.0] * count

    def hear(number: int) -> None:
        heard[number] = time.monotonic()

    async with _ringing(url) as bell:
        for number in range(count):
            bell.listeners.on_ring(lambda number=number: hear(number), f"bench:{number}")  # type: ignore[misc]
        with bell.listeners.listen(END) as listener:
            print("ready", flush=True)
            await listener.wait()
        print(json.dumps(heard), flush=True)


if __name__ == "__main__":
    asyncio.run(_listen(sys.argv[1], int(sys.argv[2])))
