"""Replicas that only serve, workers, and a database: real processes, as many as it takes."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import pytest

from tests.faults.cluster.agent import RUNS
from tests.faults.cluster.load_balancer import Balance, balancing
from tests.faults.crash.server_process import Served
from tests.harness.services import Missing, Nats, Postgres, Redis

AGENT = "tests.faults.cluster.agent:agent"
LEASE, POLL, GRACE, DRAIN = 2.0, 0.2, 1.0, 1.0
SETTINGS = (
    f"poll={POLL}",
    f"cancel_grace={GRACE}",
    f"drain_timeout={DRAIN}",
    "push=true",
    "egress_allow=127.0.0.1",
    f"push_retries={','.join(['0.2'] * 200)}",
)


class Clock:
    """What a process takes for the time of day. How time passes is not changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.shift(0)

    @property
    def environment(self) -> dict[str, str]:
        """What a process is started with for it."""
        found = importlib.util.find_spec("libfaketime")
        assert found is not None
        assert found.origin is not None
        library = Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def shift(self, seconds: int) -> None:
        """From now on (and a second) it is so much ahead, or behind."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)


class Replica(Served):
    """`dragoman serve --serve-only`."""

    kind = "replica"
    name = store = bell = ""
    clock: Clock

    def command(self) -> list[str]:
        """See `Served.command`."""
        command = ["serve", self.agent, "--port", str(self.port), "--serve-only"]
        return [*command, "--store", self.store, *(["--bell", self.bell] if self.bell else [])]


class Hand(Replica):
    """`dragoman worker`."""

    kind = "worker"

    def command(self) -> list[str]:
        """See `Served.command`."""
        command = ["worker", self.agent, "--concurrency", "50", "--store", self.store]
        return [*command, *(["--bell", self.bell] if self.bell else [])]


NATS_RESET = "coro=<Client._read_loop() done"
"""What nats-py leaves behind when its server is killed: it closes a connection that was reset."""


class Cluster:
    """Replicas, workers and their database. The bell is `nats:`, `redis:`, or the default one."""

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int,
        workers: int,
        bell: str = "",
        lease: float = LEASE,
    ) -> None:
        self.folder = folder
        self.lease = lease
        self.runs = folder / "runs"
        self.effects = folder / "effects"
        try:
            self.postgres = Postgres(fsync=False)
            self.bell = _bell(bell)
        except Missing as missing:
            pytest.skip(str(missing))
        self.replicas = [self._made(Replica, f"replica{n}") for n in range(replicas)]
        self.hands = [self._made(Hand, f"worker{n}") for n in range(workers)]
        self.balance = Balance(())

    def _made(self, kind: type[Replica], name: str) -> Replica:
        clock = Clock(self.folder / f"clock-{name}")
        settings = (f"lease={self.lease}", *SETTINGS)
        served = kind(
            self.folder, *settings, agent=AGENT, **{RUNS: str(self.runs)}, **clock.environment
        )
        served.name, served.clock = name, clock
        return served

    @property
    def all(self) -> list[Replica]:
        """The processes of ours."""
        return [*self.replicas, *self.hands]

    @property
    def log(self) -> str:
        """What they have said."""
        return "\n".join(served.log for served in self.all)

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        try:
            await asyncio.to_thread(self.postgres.start)
            self._stack.callback(self.postgres.close)
            self.url = self.postgres.create("cluster")
            if self.bell is not None:
                await asyncio.to_thread(self.bell.start)
                self._stack.callback(self.bell.close)
            for served in self.all:
                served.store = f"{self.url}?application_name={served.name}"
                served.bell = getattr(self.bell, "url", "")
                await self._stack.enter_async_context(served)
            await asyncio.gather(*(served.start() for served in self.all))
            ports = [replica.port for replica in self.replicas]
            self.balance = await self._stack.enter_async_context(balancing(ports))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        (self.folder / "log").write_text(self.log)  # for whoever looks for the reason
        await self._stack.aclose()

    def sound(self) -> None:
        """Nothing has happened that was not foreseen."""
        for served in self.all:
            lines = served.lines
            places = [
                n
                for n, line in enumerate(lines)
                if "Traceback" in line and NATS_RESET not in lines[n - 1]
            ]
            assert not places, "\n".join(lines[places[0] - 5 : places[0] + 40])

    async def end(self) -> None:
        """Have all of them end in order; they do."""
        left = [s for s in self.all if s.process is not None and s.process.returncode is None]
        statuses = await asyncio.gather(*(served.kill(signal.SIGINT) for served in left))
        for status, served in zip(statuses, left, strict=True):
            assert not status, "\n".join([f"ended with {status}", *served.lines[-40:]])


def _bell(scheme: str) -> Nats | Redis | None:
    if scheme == "nats:":
        return Nats()
    return Redis() if scheme == "redis:" else None
