"""Streamed answers: short, long, very long, and one whose agent gives way between chunks."""

from __future__ import annotations

from benchmarks import wire
from benchmarks.bench import Bench, Work
from benchmarks.measure import Server


async def run(bench: Bench) -> None:
    """Measure it on all peers."""
    await bench.compare("stream", prepare)


async def prepare(bench: Bench, server: Server) -> list[Work]:
    """The works for one server: each batch streams the same number of chunks."""
    total = 1000 if bench.quick else 5000
    works = [_work(f"stream{size}", size, f"stream {size}", total) for size in (100, 1000, 5000)]
    return [*works, _work("stream100await", 100, "stream 100 await", total)]


def _work(name: str, size: int, text: str, total: int) -> Work:
    return Work(
        key=f"{name}.memory",
        per="event",
        connections=1,
        count=max(1, total // size),
        payload=lambda: wire.stream(text),
        check=wire.chunks(size),
        units=size,
    )
