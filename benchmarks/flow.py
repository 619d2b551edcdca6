"""Simulates a database and its processes: tasks arrive at random, wait as the model of
`benchmarks.capacity` predicts, and are timed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any

from benchmarks.capacity import GROUP, Assumed, Costs

ROWS = 3
"""What a task writes, one after the other: accepted, artifact, end."""
WARM = 0.5
"""The part of the run that is not counted."""
LOOKS = 40
"""How often the queues are counted."""

LANE, PROCESS = "the writer lane of each process", "CPU of the processes"
DATABASE, LOG = "CPU of PostgreSQL", "write-ahead log"


class Servers:
    """Some that serve one queue, first come, first served; they count while a span lasts."""

    def __init__(self, number: int, since: float, until: float) -> None:
        self.free = [0.0] * number
        self.busy = 0.0
        self.since, self.until = since, until

    def take(self, now: float, seconds: float) -> tuple[float, float]:
        """When it begins, and when it is done."""
        begin = max(now, self.free[0])
        end = begin + seconds
        heapreplace(self.free, end)
        self.busy += self.within(begin, end)
        return begin, end

    def within(self, begin: float, end: float) -> float:
        """The part of a time that counts."""
        return max(0.0, min(end, self.until) - max(begin, self.since))

    def behind(self, now: float) -> float:
        """Seconds of work that have not been begun, or not ended."""
        return sum(free - now for free in self.free if free > now)


@dataclass(slots=True)
class Task:
    """When it was sent, and how many of its rows are written."""

    sent: float
    written: int = 0


@dataclass(slots=True)
class Process:
    """A core, a lane to the database, and a bell."""

    core: Servers
    waiting: list[Task] = field(default_factory=list)
    sending: bool = False
    ended: list[Task] = field(default_factory=list)
    ringing: bool = False
    quiet: float = 0.0
    """Until when it may not ring."""


@dataclass(frozen=True)
class Statement:
    """Rows on their way to the database."""

    process: Process
    tasks: Sequence[Task]


@dataclass(frozen=True)
class Point:
    """What came of a load."""

    offered: float
    done: float
    """Tasks a second that ended."""
    written: float
    """Tasks a second by the rows that were written, also of those that have not ended."""
    here: tuple[float, float]
    """Seconds until it is answered where it was sent: the half are quicker, and 99 in 100."""
    elsewhere: tuple[float, float]
    """Seconds until another process has been rung; what it then reads is not counted."""
    use: dict[str, float]
    """The part of each resource that is used. A lane and the log take more at once the longer they
    take, and are never idle under load: so a lane counts as far as it is full and for what it would
    take alone, and the log while it takes bytes."""
    wakes: float
    """The part of the database's cores that wakes listeners. It gives way to statements."""
    lock: float
    """The part of the time that NOTIFY's lock is held."""
    grown: dict[str, float]
    """By how many rows the queues have grown, for each row that came meanwhile."""

    @property
    def busiest(self) -> str:
        """The resource that is used most."""
        return max(self.use, key=self.use.__getitem__)

    @property
    def queue(self) -> str:
        """The queue that grows, if one does."""
        name = max(self.grown, key=self.grown.__getitem__)
        return name if self.grown[name] > 0.02 else ""


class Set:
    """A database and the processes on it."""

    def __init__(
        self, costs: Costs, assumed: Assumed, processes: int, rate: float, tasks: int, seed: int
    ) -> None:
        self.assumed = assumed
        self.rate, self.left = rate, tasks
        self.chance = random.Random(seed)
        self.events: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self.serial = count()
        until = tasks / rate
        self.span = span = (WARM * until, until)
        self.processes = [Process(Servers(1, *span)) for _ in range(processes)]
        self.cores = Servers(assumed.cores, *span)
        self.lock, self.log = Servers(1, *span), Servers(1, *span)
        self.flushing: list[Statement] = []
        self.row = costs.database / ROWS
        # A row's time in a lane was measured as a whole. What of it is not the database's is the
        # process's: it puts the statement together, and nothing is under way meanwhile.
        self.held = min(max(costs.each - self.row, 0), costs.process / ROWS)
        self.step = (costs.process + assumed.serving) / ROWS - self.held
        self.disk = costs.wal / ROWS / assumed.bandwidth
        self.trip = assumed.network + assumed.flush
        self.wave = (0.0, 0.0)
        self.full = self.waking = self.filling = 0.0
        self.done = self.rows = 0
        self.here: list[float] = []
        self.elsewhere: list[float] = []
        self.queues: list[dict[str, float]] = []

    def run(self) -> Point:
        """Play it to the end."""
        since, until = self.span
        self.at(0, self.come, None)
        for part in range(LOOKS):
            self.at(since + part * (until - since) / LOOKS, self.look, None)
        while self.events:
            now, _, do, what = heappop(self.events)
            do(now, what)
        took, number = until - since, len(self.processes)
        core = sum(process.core.busy for process in self.processes)
        return Point(
            offered=self.rate,
            done=self.done / took,
            written=self.rows / ROWS / took,
            here=shares(self.here),
            elsewhere=shares(self.elsewhere),
            use={
                LANE: self.full / took / number,
                PROCESS: core / took / number,
                DATABASE: (self.cores.busy - self.waking) / took / self.assumed.cores,
                LOG: self.filling / took,
            },
            wakes=self.waking / took / self.assumed.cores,
            lock=self.lock.busy / took,
            grown=self.grown(),
        )

    def grown(self) -> dict[str, float]:
        """From the first half of what was seen to the second; one look may be at a bad moment."""
        half = LOOKS // 2
        came = half * self.rate * ROWS * (self.span[1] - self.span[0]) / 2
        first, second = self.queues[:half], self.queues[half:]
        return {
            name: (sum(look[name] for look in second) - sum(look[name] for look in first)) / came
            for name in first[0]
        }

    def at(self, when: float, do: Callable[[float, Any], None], what: object) -> None:
        heappush(self.events, (when, next(self.serial), do, what))

    def look(self, now: float, _: None) -> None:
        """How many rows wait where."""
        core = sum(process.core.behind(now) for process in self.processes)
        self.queues.append(
            {
                "the cores of the processes": core / (self.step + self.held),
                "the lanes": sum(len(process.waiting) for process in self.processes),
                "the cores of PostgreSQL": self.cores.behind(now) / self.row if self.row else 0,
                "the log": sum(len(statement.tasks) for statement in self.flushing),
            }
        )

    # -- a process

    def come(self, now: float, _: None) -> None:
        """A task is sent, and the next one will be."""
        self.think(now, self.chance.choice(self.processes), Task(now))
        self.left -= 1
        if self.left:
            self.at(now + self.chance.expovariate(self.rate), self.come, None)

    def think(self, now: float, process: Process, task: Task) -> None:
        """What a process does before each row."""
        self.at(process.core.take(now, self.step)[1], self.submit, (process, task))

    def submit(self, now: float, what: tuple[Process, Task]) -> None:
        process, task = what
        process.waiting.append(task)
        if not process.sending:
            process.sending = True
            self.send(now, process)

    def send(self, now: float, process: Process) -> None:
        """All that waits shares a statement. The core puts it together before anything else; what
        it had promised before that is late by as much only at the end of its queue."""
        tasks, process.waiting = process.waiting[:GROUP], process.waiting[GROUP:]
        held = self.held * len(tasks)
        process.core.take(now, held)
        self.at(now + held + self.assumed.network / 2, self.execute, Statement(process, tasks))

    def answered(self, now: float, statements: Sequence[Statement]) -> None:
        """They are written: what each row waited for goes on, and so does the lane."""
        counts = self.span[0] <= now < self.span[1]
        for statement in statements:
            process, tasks = statement.process, statement.tasks
            self.rows += len(tasks) if counts else 0
            alone = self.trip + (self.held + self.row + self.disk) * len(tasks)
            self.full += self.log.within(now - alone, now) * len(tasks) / GROUP
            for task in tasks:
                task.written += 1
                if task.written < ROWS:
                    self.think(now, process, task)
                    continue
                process.ended.append(task)
                self.done += counts
                if task.sent >= self.span[0]:
                    self.here.append(now - task.sent)
            process.sending = bool(process.waiting)
            if process.sending:
                self.send(now, process)
            if not process.ringing:
                process.ringing = True
                self.at(max(now, process.quiet), self.ring, process)

    # -- the database

    def execute(self, now: float, statement: Statement) -> None:
        """One core executes it."""
        end = self.cores.take(now, self.row * len(statement.tasks))[1]
        self.at(end, self.commit, statement)

    def commit(self, now: float, statement: Statement) -> None:
        """It waits for the log; all that waits when a flush begins shares it."""
        self.flushing.append(statement)
        if len(self.flushing) == 1:
            self.at(max(now, self.log.free[0]), self.flush, None)

    def flush(self, now: float, _: None) -> None:
        statements, self.flushing = self.flushing, []
        rows = sum(len(statement.tasks) for statement in statements)
        end = self.log.take(now, self.assumed.flush + self.disk * rows)[1]
        self.filling += self.log.within(end - self.disk * rows, end)
        self.at(end + self.assumed.network / 2, self.answered, statements)

    def ring(self, now: float, process: Process) -> None:
        """Tell the others what was written, once the lock is had."""
        ended, process.ended = process.ended, []
        process.ringing = False
        locked = self.lock.take(now + self.assumed.network / 2, self.assumed.notify)[1]
        process.quiet = max(now + self.assumed.batch, locked + self.assumed.network / 2)
        self.at(locked, self.wake, ended)

    def wake(self, now: float, ended: Sequence[Task]) -> None:
        """Every listener runs, on whatever core is free. One that was signalled and has not run
        since hears both at once, so that rings share what waits for the cores."""
        begin, end = self.wave
        if begin <= now:
            listeners = len(self.processes)
            wide = min(listeners, self.assumed.cores)
            before = self.cores.busy
            for _ in range(wide):
                begin, end = self.cores.take(now, self.assumed.wake * listeners / wide)
            self.waking += self.cores.busy - before
            self.wave = begin, end
        heard = end + self.assumed.network / 2
        self.elsewhere += [heard - task.sent for task in ended if task.sent >= self.span[0]]


def shares(taken: list[float]) -> tuple[float, float]:
    """What the half is below, and 99 in 100."""
    taken.sort()
    return (taken[len(taken) // 2], taken[len(taken) * 99 // 100]) if taken else (0.0, 0.0)
