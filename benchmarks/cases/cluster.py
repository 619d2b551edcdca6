"""The delay of an event from the agent to a reader at another replica.

Two replicas serve, a worker runs the agent, and they share a PostgreSQL. Tasks are created at one
replica and followed at the other; each chunk contains the time at which it was written. a2a-sdk has
no worker; it runs the agent at the replica that received the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks import load, measure, wire
from benchmarks.bench import Bench
from benchmarks.load import Broken
from benchmarks.measure import Server
from tests.harness.services import Missing, Nats

RATE, SLOW = 500, 20
"""Events a second of all tasks together: what dragoman is held to, and what a2a-sdk can bear."""
TASKS = {RATE: 25, SLOW: 4}
AGENT = "benchmarks.servers.dragoman_echo:agent"
# (not those in the task that a stream begins with)
_AT = re.compile(rb'"artifactUpdate".*?"at (\d+\.\d+) "', re.DOTALL)


async def run(bench: Bench) -> None:
    """Each bell of dragoman's, and the stream of events of a2a-sdk, in turn."""
    if "postgres" not in bench.stores:
        return
    with contextlib.ExitStack() as stack:
        pairs: list[tuple[str, str, tuple[int, ...], list[Server]]] = []
        if bench.only("dragoman"):
            servers = stack.enter_context(replicas())
            pairs.append(("postgres", "dragoman", (RATE, SLOW), servers))
            try:
                bell = stack.enter_context(Nats()).url
                servers = stack.enter_context(replicas(bell=bell))
                pairs.append(("nats", "dragoman", (RATE,), servers))
            except Missing as missing:
                bench.note(f"cluster: NATS is not measured; {missing}")
        if bench.only("a2a-sdk"):
            pairs.append(("postgres", "a2a-sdk", (SLOW,), stack.enter_context(_peers())))
        for *_, servers in pairs:
            await ready(servers)
        for number in range(bench.rounds):
            for bell, peer, rates, servers in pairs:
                for rate in rates:
                    key = f"cluster{rate}.{bell}.{peer}"
                    bench.progress(f"{key}: round {number + 1} of {bench.rounds}")
                    await _round(bench, key, rate, servers)


@contextlib.contextmanager
def replicas(*, bell: str = "", serve: Sequence[str] = ()) -> Iterator[list[Server]]:
    """Two replicas of dragoman that only serve, which are yielded, and a worker for them."""
    common = (AGENT, "--store", "{store}", "--log-level", "warning")
    common += ("--bell", bell) if bell else ()
    serving = ("-m", "dragoman", "serve", *common, "--port", "{port}", "--serve-only", *serve)
    working = ("-m", "dragoman", "worker", *common)
    commands = [serving, serving, working]
    with _started("dragoman", commands, measure.database()) as [*servers, _]:
        yield servers


@contextlib.contextmanager
def _peers() -> Iterator[list[Server]]:
    words = ("-m", "benchmarks.servers.sdk_echo", "{port}", "{store}", "cluster")
    with _started("a2a-sdk", [words] * 2, measure.database()) as servers:
        yield servers


@contextlib.contextmanager
def _started(peer: str, commands: Sequence[tuple[str, ...]], url: str) -> Iterator[list[Server]]:
    """One after the other: the first makes the tables. Not held to a core; there are too many."""
    with contextlib.ExitStack() as stack:
        servers = []
        for words in commands:
            server = measure.launch(peer, words, url)
            stack.callback(server.stop)
            if "worker" not in words:
                server.wait(pause=0.01)
            servers.append(server)
        yield servers


async def ready(servers: list[Server]) -> None:
    """Until each of them answers, and so does whoever works for them."""
    for server in servers:
        async with load.connect(server.port, 8) as connections:
            await load.drive(connections, 16, lambda: wire.send(wire.ECHO), wire.echoed)


class Reader(load.Connection):
    """A connection that notes how long each chunk took to come."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.took: list[float] = []
        self.ordered = True
        self._last = self._now = 0.0
        self._place = 0

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._now = time.time()
        super().data_received(data)
        self._look()

    def _finish(self) -> None:
        self._look()
        super()._finish()

    def _look(self) -> None:
        for found in _AT.finditer(self._body, self._place):
            at = float(found[1])
            self.ordered = self.ordered and at > self._last
            self._last = at
            self.took.append(self._now - at)
            self._place = found.end()


async def _round(bench: Bench, key: str, rate: int, servers: list[Server]) -> None:
    tasks = TASKS[rate]
    size = round((2 if bench.quick else 10) * rate / tasks)
    order = f"clock {size} {rate / tasks:g}"
    first, second = servers
    took: list[float] = []

    async def follow() -> None:
        at_once = {"returnImmediately": True}
        async with load.connect(first.port) as [connection]:
            begun = wire.call("SendMessage", message=wire.message(order), configuration=at_once)
            task = wire.task(await connection.send(begun))["id"]
        loop = asyncio.get_running_loop()
        _, reader = await loop.create_connection(
            lambda: Reader(second.port), "127.0.0.1", second.port
        )
        try:
            body = await reader.send(wire.call("SubscribeToTask", id=task))
        finally:
            reader.close()
        if b"TASK_STATE_COMPLETED" not in body[-1000:] or len(reader.took) != size:
            raise Broken(f"{len(reader.took)} chunks of {size}: {body[-500:]!r}")
        if not reader.ordered:
            raise Broken(f"{size} chunks are not in order")
        took.extend(reader.took)

    try:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(follow())
    except ExceptionGroup as failed:
        # They fail alike; the first says it for all.
        raise failed.exceptions[0] from None
    cuts = statistics.quantiles(took, n=100)
    bench.record(f"{key}.p50_ms", cuts[49] * 1000)
    bench.record(f"{key}.p99_ms", cuts[98] * 1000)
