"""A monkey in the machine room: it kills, stops and restarts whatever it finds. What it did, and
when, is part of the history."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tests.faults.cluster.house import LEASE, House, Replica
from tests.faults.crash.forms import say


class Deed(NamedTuple):
    """Something that it did."""

    what: str
    at: float
    """When it struck (Unix time)."""
    over: float
    """When it was as before."""
    pid: int
    streams: int
    """How many streams were open."""


class Monkey:
    """Does one thing after the other, in an order that its chance decides."""

    def __init__(self, house: House, chance: random.Random, streams: Callable[[], int]) -> None:
        self.house = house
        self.chance = chance
        self.deeds: list[Deed] = []
        self._streams = streams
        self._tricks: dict[str, Callable[[], Awaitable[None]]] = {
            "kill a replica": self._replica,
            "kill a worker": self._worker,
            "stop a worker": self._sleep,
            "kill the database": lambda: self._database(signal.SIGKILL),
            "restart the database": lambda: self._database(signal.SIGINT),
            "crash the database": lambda: self._database(signal.SIGQUIT),
        }
        if house.bell is not None:
            self._tricks["kill the bell"] = lambda: self._bell(signal.SIGKILL)
            self._tricks["freeze the bell"] = lambda: self._bell(signal.SIGSTOP)

    async def play(self, times: int, pause: tuple[float, float]) -> None:
        """So many tricks, all kinds of them if there are enough."""
        plan: list[str] = []
        while len(plan) < times:
            tricks = list(self._tricks)
            self.chance.shuffle(tricks)
            plan += tricks
        for name in plan[:times]:
            await asyncio.sleep(self.chance.uniform(*pause))
            await self._tricks[name]()
            deed = self.deeds[-1]
            say(f"{name}: {deed.streams} streams open, over after {deed.over - deed.at:.1f} s")

    async def _replica(self) -> None:
        await self._kill("replica", self.chance.choice(self.house.replicas))

    async def _worker(self) -> None:
        await self._kill("worker", self.chance.choice(self.house.hands))

    async def _kill(self, what: str, served: Replica) -> None:
        assert served.process is not None
        pid = served.process.pid
        begun = self._strike()
        await served.kill()
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        await served.start()
        self._done(f"kill {what}", begun, pid)

    async def _sleep(self) -> None:
        """A worker does not know how long it has slept."""
        process = self.chance.choice(self.house.hands).process
        assert process is not None
        begun = self._strike()
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(LEASE + self.chance.uniform(0.5, 1.5))
        finally:
            process.send_signal(signal.SIGCONT)
        self._done("stop worker", begun, process.pid)

    async def _database(self, sign: signal.Signals) -> None:
        postgres = self.house.postgres
        begun = self._strike()
        await asyncio.to_thread(postgres.end, sign)
        await asyncio.sleep(self.chance.uniform(0, 1.0))
        await asyncio.to_thread(postgres.start)
        self._done(f"{sign.name} database", begun, 0)

    async def _bell(self, sign: signal.Signals) -> None:
        bell = self.house.bell
        assert bell is not None
        begun = self._strike()
        if sign is signal.SIGSTOP:
            assert bell.process is not None
            os.kill(bell.process.pid, signal.SIGSTOP)
            await asyncio.sleep(1.0)
            os.kill(bell.process.pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(bell.kill)
            await asyncio.sleep(self.chance.uniform(0, 1.0))
            await asyncio.to_thread(bell.start)
        self._done(f"{sign.name} bell", begun, 0)

    def _strike(self) -> tuple[float, int]:
        return time.time(), self._streams()

    def _done(self, what: str, begun: tuple[float, int], pid: int) -> None:
        self.deeds.append(Deed(what, begun[0], time.time(), pid, begun[1]))
