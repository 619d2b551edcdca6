"""`python -m benchmarks.capacity`: measures what a task costs PostgreSQL, and computes the highest
load that a system can take.

It measures on its own PostgreSQL, or on a given one, and computes the rest. It prints everything
that is not measured as an assumption.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg

from dragoman.model import clock
from dragoman.model.caller import Caller, Scope
from dragoman.model.events import Entry, Received
from dragoman.model.types import (
    Artifact,
    Message,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.store import Draft

SCOPE = Scope("agent", "tenant", "owner")
GROUP = 256
"""The most pieces of work that share a statement."""
SIZES = ((1, 1), (4, 1), (16, 1), (64, 1), (256, 1), (256, 8), (1000, 32))
"""Processes, and the databases that they are spread over."""


@dataclass(frozen=True)
class Costs:
    """What was measured. A task is accepted, claimed, and written to twice."""

    trip: float
    """Seconds from a question to its answer."""
    write: float
    """Seconds of a statement that writes one row, with its commit."""
    each: float
    """Seconds that each further row in it adds."""
    process: float
    """Seconds of CPU that a task costs the process that has the store."""
    database: float
    """Seconds of CPU that a task costs PostgreSQL."""
    commits: float
    """Commits of a task, when many share them."""
    wal: float
    """Bytes of write-ahead log of a task."""
    disk: float
    """Bytes that a task keeps, with its indexes."""


@dataclass(frozen=True)
class Assumed:
    """What is not measured here."""

    network: float = 0.0005
    """Seconds of a round trip between two machines."""
    serving: float = 0.0003
    """Seconds of CPU of a task outside the store: HTTP, JSON, streams, the agent's own."""
    cores: int = 16
    """Cores of the database's machine."""
    flush: float = 0.0005
    """Seconds that the disk takes to make a commit last."""
    bandwidth: float = 200e6
    """Bytes a second that the disk takes."""
    connections: int = 500
    """The most connections before a pooler is needed."""
    pool: int = 8
    """Connections of one process."""
    notify: float = 0.0001
    """Seconds that a commit with NOTIFY holds PostgreSQL's one lock for it."""
    batch: float = 0.01
    """A process notifies at most so often, in seconds."""
    wake: float = 0.00002
    """Seconds of CPU of the database for each listener of each notification."""


# -- measuring


def message(task: str) -> Received:
    """What is sent."""
    said = Message(
        message_id="m", task_id=task, context_id=task, role=Role.USER, parts=(Part(text="hello"),)
    )
    return Received(message=said, caller=Caller(), at=clock.now())


async def one(store: PostgresStore) -> None:
    """A task from its message to its end."""
    task = str(clock.uuid7())
    await store.accept(SCOPE, Draft(task=task, received=message(task), new=True, born=True))


async def turns(store: PostgresStore, left: int) -> None:
    """Work on so many."""
    while left > 0:
        claims = await store.claim(["agent"], "bench", 60, 64)
        await asyncio.gather(*(turn(store, claim) for claim in claims))
        left -= len(claims)
        if not claims:
            await asyncio.sleep(0.001)


async def turn(store: PostgresStore, claim: Any) -> None:
    """An artifact, and the end."""
    task = claim.head.id
    made = Artifact(artifact_id="a", parts=(Part(text="hello, too"),))
    artifact = TaskArtifactUpdateEvent(task_id=task, context_id=task, artifact=made)
    await store.append(claim, [Entry(0, artifact, claim.turn)])
    status = TaskStatus(state=TaskState.COMPLETED, timestamp=clock.now())
    ended = TaskStatusUpdateEvent(task_id=task, context_id=task, status=status)
    await store.append(claim, [Entry(0, ended, claim.turn)], release=True)


async def timed(doing: Any) -> float:
    """How long it takes."""
    began = time.perf_counter()
    await doing
    return time.perf_counter() - began


async def load(store: PostgresStore, number: int, width: int) -> None:
    """So many tasks, so many of them at once."""

    async def sender() -> None:
        for _ in range(number // width):
            await one(store)

    total = number // width * width
    await asyncio.gather(turns(store, total), *(sender() for _ in range(width)))


async def measure(url: str, number: int, cpu: Any) -> tuple[Costs, list[tuple[str, int, int]]]:
    """The costs, and the tables with their bytes and those of their indexes."""
    db = await asyncpg.connect(url)
    store = PostgresStore(url)
    await store.open()
    trips = [await timed(db.fetchval("SELECT 1")) for _ in range(500)]
    await load(store, 256, 64)
    single = [await timed(one(store)) for _ in range(200)]
    many = [await timed(asyncio.gather(*(one(store) for _ in range(GROUP)))) for _ in range(20)]
    await turns(store, 200 + 20 * GROUP)
    before, spent, ours = await figures(db), cpu(), time.process_time()
    began = time.perf_counter()
    await load(store, number, 64)
    took = time.perf_counter() - began
    after = await figures(db)
    print(f"{number} tasks in {took:.1f} s: {number / took:.0f} a second through one process")
    await db.execute("VACUUM ANALYZE")
    tables = [
        (row[0], row[1], row[2])
        for row in await db.fetch(
            "SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class WHERE "
            "relkind = 'r' AND relnamespace = current_schema()::regnamespace ORDER BY 2 DESC"
        )
    ]
    indexes = await db.fetch(
        "SELECT indexrelname, pg_relation_size(indexrelid), 0 FROM pg_stat_user_indexes "
        "WHERE schemaname = current_schema() ORDER BY 2 DESC"
    )
    tables += [(f"  {row[0]}", row[1], row[2]) for row in indexes]
    (count,) = await db.fetchrow("SELECT count(*) FROM task")
    size = sum(row[1] for row in tables if not row[0].startswith(" "))
    size += sum(row[1] for row in tables if row[0].startswith(" "))
    await store.close()
    await db.close()
    write = sorted(single)[len(single) // 2]
    group = sorted(many)[len(many) // 2]
    costs = Costs(
        trip=sorted(trips)[len(trips) // 2],
        write=write,
        each=max((group - write) / (GROUP - 1), 0),
        process=(time.process_time() - ours) / number,
        database=(cpu() - spent) / number,
        commits=(after[0] - before[0]) / number,
        wal=(after[1] - before[1]) / number,
        disk=size / count,
    )
    return costs, tables


async def figures(db: Any) -> tuple[int, int]:
    """Commits, and bytes of write-ahead log, so far."""
    await db.execute("SELECT pg_stat_force_next_flush()")
    row = await db.fetchrow(
        "SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()), "
        "pg_current_wal_lsn() - '0/0'::pg_lsn"
    )
    return int(row[0]), int(row[1])


def spent(postmaster: int) -> float:
    """Seconds of CPU of a server and its processes, also those that have ended."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(folder.name) == postmaster or int(fields[1]) == postmaster:
            total += sum(map(int, fields[11:13]))
            if int(folder.name) == postmaster:
                total += sum(map(int, fields[13:15]))
    return total / 100


# -- computing


@dataclass(frozen=True)
class Limit:
    """A bottleneck, and the tasks a second at which it is reached."""

    name: str
    rate: float


def limits(costs: Costs, assumed: Assumed, replicas: int, databases: int = 1) -> Iterator[Limit]:
    """What ends growth, for so many processes on so many databases."""
    # A lane sends one statement at a time; its time is the trip, the flush, and its rows, of which
    # a task has three: accepted, artifact, end. (Claims go beside it.)
    row = costs.each + costs.wal / 3 / assumed.bandwidth
    lane = assumed.network + assumed.flush + GROUP * row
    yield Limit("the writer lane of each process", replicas * GROUP / 3 / lane)
    yield Limit("CPU of the processes", replicas / (costs.process + assumed.serving))
    yield Limit("CPU of PostgreSQL", databases * assumed.cores / costs.database)
    yield Limit("write-ahead log", databases * assumed.bandwidth / costs.wal)
    # NOTIFY is none: a ring waits for its lock outside the writes, and a listener that was
    # signalled hears all rings since when it runs, however many. What it costs is the time until
    # others hear, which `benchmarks.simulate` shows.


def rows(costs: Costs, assumed: Assumed) -> Iterator[Sequence[str]]:
    """The table: growth by processes, then by databases."""
    yield "processes", "databases", "connections", "tasks/s", "first limit", "second", "third"
    for replicas, databases in SIZES:
        found = sorted(limits(costs, assumed, replicas, databases), key=lambda limit: limit.rate)
        each = replicas * assumed.pool // databases
        pooled = " (pooler)" if each > assumed.connections else ""
        names = [f"{limit.name} ({limit.rate:,.0f})" for limit in found[1:3]]
        yield (
            *(f"{replicas}", f"{databases}", f"{each}{pooled}", f"{found[0].rate:,.0f}"),
            *(found[0].name, *names),
        )


def table(lines: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    head, *rest = lines
    shown = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in shown)


def main(given: list[str] | None = None) -> int:
    """Measure, compute, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("--store", help="a database for it alone; by default one is started")
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--cores", type=int, default=Assumed.cores)
    chosen = parser.parse_args(given)
    with ExitStack() as stack:
        url, cpu = chosen.store, time.process_time
        if not url:
            from tests.harness.services import Postgres

            server = stack.enter_context(Postgres())
            assert server.process is not None
            url, pid = server.dsn(), server.process.pid
            cpu = lambda: spent(pid)  # noqa: E731
        costs, tables = asyncio.run(measure(url, chosen.tasks, cpu))
    print("\nmeasured, for each task:")
    for name, value in vars(costs).items():
        print(f"  {name:9} {value * 1e6:10.1f} µs" if value < 0.1 else f"  {name:9} {value:10.1f}")
    print("\nbytes after the run (tables, and below them the indexes):")
    for name, own, _ in tables:
        print(f"  {name:24} {own / 1e6:8.1f} MB")
    assumed = replace(Assumed(), cores=chosen.cores)
    print("\nassumed:")
    for name, value in vars(assumed).items():
        print(f"  {name:11} {value:g}")
    print(f"\n{table(list(rows(costs, assumed)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
