"""A monkey in the machine room: it kills, stops, restarts and misleads whatever it finds. What it
did, and when, is part of the history."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import asyncpg

from tests.faults.cluster.cluster import Cluster, Replica
from tests.harness.scale import say

POISE = 4.0
"""How long it lies in wait for an open transaction."""
BUSY = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name SIMILAR TO $1 AND backend_xid IS NOT NULL
"""
OURS = "(replica|worker)%"
SHIFTS = (-86_400, -3600, -60, 0, 60, 3600, 86_400)
"""How many seconds a clock may be wrong."""


class Deed(NamedTuple):
    """Something that it did."""

    what: str
    at: float
    """When it struck, by the clock that nobody can set."""
    over: float
    """When it was as before."""
    pid: int
    streams: int
    """How many streams were open."""
    transactions: int
    """How many transactions of whom it struck were in the middle of writing."""

    @property
    def kills(self) -> bool:
        """Whether somebody had no chance to say a word."""
        return self.what.startswith(("kill", "crash"))


class Monkey:
    """Does one thing after the other, in an order that its chance decides. A `nap` is as long as
    a worker sleeps beside all that; `hanging` is for how long the database hangs."""

    def __init__(
        self,
        cluster: Cluster,
        chance: random.Random,
        streams: Callable[[], int],
        nap: float = 0.0,
        hanging: float = 3.0,
    ) -> None:
        self.cluster = cluster
        self.chance = chance
        self.deeds: list[Deed] = []
        self._streams = streams
        self._nap = nap
        self._hanging = hanging
        self._napping: dict[Replica, asyncio.Task[None]] = {}
        self._tricks: dict[str, Callable[[], Awaitable[None]]] = {
            "kill a replica": lambda: self._kill(self._any(self.cluster.replicas)),
            "kill a worker": lambda: self._kill(self._any(self.cluster.hands)),
            "stop a worker": lambda: self._stop(self._any(self.cluster.hands)),
            "kill the database": lambda: self._database("kill", signal.SIGKILL),
            "restart the database": lambda: self._database("restart", signal.SIGINT),
            "crash the database": lambda: self._database("crash", signal.SIGQUIT),
            "hang the database": self._hang,
            "restart a replica": lambda: self._restart(self._any(self.cluster.replicas)),
            "restart a worker": lambda: self._restart(self._any(self.cluster.hands)),
            "shift a clock": self._shift,
            "cut the bell": self._cut,
        }
        if cluster.bell is not None:
            self._tricks["kill the bell"] = lambda: self._bell(signal.SIGKILL)
            self._tricks["freeze the bell"] = lambda: self._bell(signal.SIGSTOP)
        if nap:
            self._tricks["have a worker nap"] = self._doze

    async def play(self, times: int, pause: tuple[float, float]) -> None:
        """So many tricks, all kinds of them if there are enough."""
        plan: list[str] = []
        while len(plan) < times:
            tricks = list(self._tricks)
            self.chance.shuffle(tricks)
            plan += tricks
        for name in plan[:times]:
            await asyncio.sleep(self.chance.uniform(*pause))
            told = len(self.deeds)
            await self._tricks[name]()
            for deed in self.deeds[told:]:
                say(
                    f"{deed.what}: {deed.streams} streams and {deed.transactions} transactions "
                    f"open, over after {deed.over - deed.at:.1f} s"
                )
        await asyncio.gather(*self._napping.values())

    def _any(self, those: list[Replica]) -> Replica:
        """One of those who are awake."""
        return self.chance.choice([served for served in those if served not in self._napping])

    async def _kill(self, served: Replica) -> None:
        deed = await self._strike(f"kill {served.kind}", served)
        await served.kill()
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        await served.start()
        self._done(deed)

    async def _restart(self, served: Replica) -> None:
        """It is told to go, as by a rolling update: it ends in order."""
        deed = await self._strike(f"restart {served.kind}", served)
        status = await served.kill(signal.SIGTERM)
        assert status == 0, "\n".join([f"ended with {status}", *served.lines[-40:]])
        await served.start()
        self._done(deed)

    async def _stop(self, served: Replica) -> None:
        await self._sleep(served, self.cluster.lease + self.chance.uniform(0.5, 1.5))

    async def _doze(self) -> None:
        """It sleeps on while other things happen, but never two at once."""
        if not any(not napping.done() for napping in self._napping.values()):
            self._napping.clear()
            served = self._any(self.cluster.hands)
            self._napping[served] = asyncio.create_task(self._sleep(served, self._nap))

    async def _sleep(self, served: Replica, seconds: float) -> None:
        """A worker does not know how long it has slept."""
        process = served.process
        assert process is not None
        deed = await self._strike("stop worker", served)
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)
        self._done(deed)

    async def _database(self, how: str, sign: signal.Signals) -> None:
        postgres = self.cluster.postgres
        deed = await self._strike(f"{how} database")
        await asyncio.to_thread(postgres.end, sign)
        await asyncio.sleep(self.chance.uniform(0, 1.0))
        await asyncio.to_thread(postgres.start)
        self._done(deed)

    async def _hang(self) -> None:
        """The database says nothing for a while, and refuses nothing."""
        deed = await self._strike("hang database")
        with self.cluster.postgres.hanging():
            await asyncio.sleep(self._hanging)
        self._done(deed)

    async def _shift(self) -> None:
        """Somebody sets the clock of a machine, ahead or back."""
        served = self._any(self.cluster.all)
        deed = await self._strike(f"shift {served.kind}", served)
        served.clock.shift(self.chance.choice(SHIFTS))
        self._done(deed)

    async def _cut(self) -> None:
        """Nobody hears anything until they have noticed."""
        deed = await self._strike("cut bell")
        if self.cluster.bell is not None:
            await asyncio.to_thread(self.cluster.bell.restart)
        else:
            await asyncio.to_thread(
                self.cluster.postgres.sql,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE application_name = 'dragoman bell'",
            )
        self._done(deed)

    async def _bell(self, sign: signal.Signals) -> None:
        bell = self.cluster.bell
        assert bell is not None
        deed = await self._strike(f"{sign.name} bell")
        if sign is signal.SIGSTOP:
            assert bell.process is not None
            os.kill(bell.process.pid, signal.SIGSTOP)
            await asyncio.sleep(1.0)
            os.kill(bell.process.pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(bell.kill)
            await asyncio.sleep(self.chance.uniform(0, 1.0))
            await asyncio.to_thread(bell.start)
        self._done(deed)

    async def _strike(self, what: str, served: Replica | None = None) -> Deed:
        """The moment when a transaction is open (of this process, or any), if there is one soon."""
        db = await asyncpg.connect(self.cluster.url)
        try:
            patience = time.monotonic() + POISE
            who = served.name if served is not None else OURS
            while not (open := await db.fetchval(BUSY, who)) and time.monotonic() < patience:
                await asyncio.sleep(0)
        finally:
            db.terminate()  # it may not take time to say goodbye
        pid = served.process.pid if served is not None and served.process is not None else 0
        return Deed(what, time.monotonic(), 0.0, pid, self._streams(), open)

    def _done(self, deed: Deed) -> None:
        self.deeds.append(deed._replace(over=time.monotonic()))
