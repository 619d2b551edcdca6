"""Streamed responses: short, long, very long, and one whose agent yields between chunks."""

from __future__ import annotations

from benchmarks import wire
from benchmarks.bench import Bench, Work
from benchmarks.measure import Server


async def run(bench: Bench) -> None:
    """Measure it on all peers."""
    for store in bench.stores:
        await bench.compare("stream", prepare, store)
    if "sqlite" in bench.stores and "a2a-sdk" in bench.peers:
        bench.note(
            "a2a-sdk with SQLite writes the whole task for every event: its cost grows with the "
            "square of the answer's length. It is given one stream of 1,000 in a round, and none "
            "of 10,000."
        )


async def prepare(bench: Bench, server: Server) -> list[Work]:
    """The works for one server: each batch streams the same number of chunks."""
    total = 1000 if bench.quick else 5000
    sizes = (100, 1000, 5000)
    if server.store != "memory":
        total, sizes = (
            (total, (100, 1000, 10_000)) if server.peer == "dragoman" else (1, (100, 1000))
        )
    works = [_work(server, f"stream{size}", size, f"stream {size}", total) for size in sizes]
    return [*works, _work(server, "stream100await", 100, "stream 100 await", total)]


def _work(server: Server, name: str, size: int, text: str, total: int) -> Work:
    return Work(
        key=f"{name}.{server.store}",
        per="event",
        connections=1,
        count=max(1, total // size),
        payload=lambda: wire.stream(text),
        check=wire.chunks(size),
        units=size,
        limit=60,
    )
