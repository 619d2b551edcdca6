"""Runs the same work on each server in turn, for several rounds, and keeps the best of each."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import load, measure
from benchmarks.load import Connect
from benchmarks.measure import Process, Server

A2A = ("dragoman", "a2a-sdk", "a2a-sdk-untraced", "fasta2a")
PEERS = (*A2A, "dbos")
STORES = {"memory": A2A, "sqlite": ("dragoman", "a2a-sdk"), "postgres": ("dragoman", "a2a-sdk")}
"""Who has which store."""


@dataclass(frozen=True)
class Work:
    """Requests of one kind. `units` is what one of them counts for: events of a stream, else 1."""

    key: str
    per: str
    connections: int
    count: int
    payload: Callable[[], bytes]
    check: Callable[[Any], None]
    units: int = 1
    limit: float = 300
    """The seconds that one batch may take."""
    connect: Connect = load.connect


@dataclass
class Bench:
    """The settings of a run and what it has found."""

    quick: bool
    rounds: int
    peers: Sequence[str]
    stores: Sequence[str] = tuple(STORES)
    figures: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def record(self, key: str, value: float, best: Callable[[float, float], float] = min) -> None:
        """Keep a sample, and the best of its kind as the figure."""
        self.samples.setdefault(key, []).append(value)
        self.figures[key] = best(self.figures.get(key, value), value)

    def note(self, text: str) -> None:
        """Something a reader of the figures must know."""
        if text not in self.notes:
            self.notes.append(text)

    def only(self, *peers: str) -> list[str]:
        """Those of the chosen peers that a measurement is for."""
        return [peer for peer in self.peers if peer in peers]

    def progress(self, text: str) -> None:
        """One line that says what is under way; an empty text wipes it away."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif text:
            print(text, file=sys.stderr, flush=True)

    async def compare(
        self,
        family: str,
        prepare: Callable[[Bench, Server], Awaitable[list[Work]]],
        store: str = "memory",
        manner: str = "http",
    ) -> None:
        """Measure the works of a family on all peers that have the store, interleaved."""
        chosen = (*self.only(*STORES[store]), measure.BARE)
        peers = [peer for peer in measure.COMMANDS[manner] if peer in chosen]
        self.progress(f"{family}.{store}: starting {', '.join(peers)}")
        with measure.serving(peers, store, manner=manner) as servers:
            works = []
            for server in servers:
                self.progress(f"{family}.{store}: preparing {server.peer}")
                works.append((server, await prepare(self, server)))
            await self.rotate(works)

    async def rotate(self, works: Sequence[tuple[Server, list[Work]]]) -> None:
        """Measure the works of each server, in turn."""
        for number in range(self.rounds):
            for place in range(max(len(each) for _, each in works)):
                for server, each in works:
                    if place < len(each):
                        work = each[place]
                        self.progress(
                            f"{work.key}: round {number + 1} of {self.rounds}, {server.peer}"
                        )
                        await self._sample(server, work)

    async def _sample(self, server: Server, work: Work) -> None:
        async with work.connect(server.port, work.connections) as connections:
            drive = partial(load.drive, connections)
            warm = max(work.connections, work.count // 10)
            await drive(warm, work.payload, work.check, work.limit)
            batch = partial(drive, work.count, work.payload, work.check, work.limit)
            await self.cost(server, work.key, work.per, work.count * work.units, batch)

    async def cost(
        self, process: Process, key: str, per: str, units: int, batch: Callable[[], Awaitable[None]]
    ) -> None:
        """Record what a unit costs a process that is warm, by batches of so many."""
        # A cheap one gets the batch more often, so that its figure is as sure as the others'.
        enough, most = (0.05, 5) if self.quick else (0.25, 20)
        await process.quiet()
        batches, elapsed, used = 0, 0.0, 0.0
        while batches < most and used < enough:
            before, began = process.cpu(), time.perf_counter()
            await batch()
            elapsed += time.perf_counter() - began
            await process.quiet()
            used += process.cpu() - before
            batches += 1
        key = f"{key}.{process.peer}"
        self.record(f"{key}.cpu_us_per_{per}", used / (batches * units) * 1e6)
        self.record(f"{key}.{per}s_per_s", batches * units / elapsed, max)
