"""The agent of the crash tests, in a worker's process: it also writes down when it ran."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from dragoman import Agent, Turn
from tests.faults.crash.agent import EFFECTS

RUNS = "CLUSTER_RUNS"
RETRIES = 5


class Run(NamedTuple):
    """One run of a turn, as its process saw it. Times are of the clock that nobody can set."""

    pid: int
    turn: str
    attempt: int
    begun: float
    ended: float | None
    """None if it never came to its end."""


def make(effects: Path, runs: Path) -> Agent:
    """The agent. Told to `ask`, it asks back when it has said everything."""
    agent = Agent("Clerk", description="Says what it is told to.", retries=RETRIES)
    done = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    times = os.open(runs, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def stamp(turn: Turn, what: str) -> None:
        about = f"{turn.idempotency_key} {turn.attempt} {what} {time.monotonic()}"
        os.write(times, f"{os.getpid()} {about}\n".encode())

    @agent.handler
    async def work(turn: Turn) -> AsyncIterator[Any]:
        key, chunks, pause, *verb = turn.text.split()
        # one write: it happens, or it does not
        os.write(done, f"{turn.idempotency_key} {turn.attempt} {key}\n".encode())
        stamp(turn, "begin")
        for index in range(int(chunks)):
            yield turn.write(f"{key}/{turn.attempt}/{index}")
            await asyncio.sleep(float(pause))
        if verb == ["ask"]:
            yield turn.ask("And then?")
        stamp(turn, "end")

    return agent


def runs(file: Path) -> list[Run]:
    """All runs, in the order in which they began."""
    begun: dict[tuple[str, int], Run] = {}
    for line in file.read_text().split("\n")[:-1]:
        pid, turn, attempt, what, at = line.split()
        known = begun.get((turn, int(attempt)))
        if what == "begin":
            begun[turn, int(attempt)] = Run(int(pid), turn, int(attempt), float(at), None)
        elif known is not None:
            begun[turn, int(attempt)] = known._replace(ended=float(at))
    return list(begun.values())


if RUNS in os.environ:
    agent = make(Path(os.environ[EFFECTS]), Path(os.environ[RUNS]))
