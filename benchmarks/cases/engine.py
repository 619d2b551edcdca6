"""The cost of one small POST with the HTTP libraries that a client can use."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.cases import client


async def run(bench: Bench) -> None:
    """Measure them on the same server, 16 at once."""
    if "memory" in bench.stores:
        await client.compare(bench, ["aiohttp", "httpx"], [client.sends(bench, "engine")])
