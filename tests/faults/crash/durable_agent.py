"""A durable agent whose process kills itself with SIGKILL, before or after what touches the log.

Its environment says at which point. A point is `before` or `after` an append, an accepted message,
a claim, a wake-up, a release, a value that is saved or an effect outside; it is named, or numbered
in the order of a life.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from dragoman import Agent, Turn
from dragoman.agent import durable
from dragoman.agent.step_results import StepUncertain
from dragoman.model.events import Entry, Private
from dragoman.model.types import TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.server import maintenance
from tests.faults.crash import broken_promises
from tests.faults.crash.agent import BROKEN

FOLDER, STORE, KILL = "DURABLE_FOLDER", "DURABLE_STORE", "DURABLE_KILL"
NAP = 0.3
TEXT = "one two three four five six seven"
SAID = ["quoted", "Shall I buy?", "nearly there"]
UNNAMED = ("sent", "waiting", "subscribed", "waited")
"""Entries that are named by a digest or by the id of another agent's task."""


class Points:
    """The points that a process has passed, and the one at which it ends."""

    def __init__(self, folder: Path, kill: str) -> None:
        self._kill = kill
        self._passed = 0
        self._files = {name: _open(folder / name) for name in ("points", "kills", "effects")}
        self._made: set[str] = set()
        """Effects that took place and whose step is not sent to the store yet."""
        self._sent: set[str] = set()
        """Those whose step may or may not be in the log."""
        self._lock = threading.Lock()

    def pass_by(self, when: str, *names: str) -> None:
        """Pass a point, or end there."""
        with self._lock:
            self._passed += 1
            self._write("points", f"{when} {' '.join(names)}")
            if self._kill not in (str(self._passed), *(f"{when} {name}" for name in names)):
                return
            kill = {"at": f"{when} {' '.join(names)}", "made": [*self._made], "sent": [*self._sent]}
            self._write("kills", json.dumps(kill))
            os.kill(os.getpid(), signal.SIGKILL)

    def effect(self, name: str) -> str:
        """Do something outside, durably."""
        self.pass_by("before", f"effect:{name}")
        with self._lock:  # a kill from another thread comes before it or after it
            self._write("effects", f"{name} {time.time()}")
            os.fsync(self._files["effects"])
            self._made.add(name)
        self.pass_by("after", f"effect:{name}")
        return f"{name} done"

    def send(self, entries: Sequence[Entry]) -> None:
        """These are on their way to the log."""
        found = self._made & _steps(entries)
        self._made -= found
        self._sent |= found

    def logged(self, entries: Sequence[Entry]) -> None:
        """These are in the log."""
        self._sent -= _steps(entries)

    def _write(self, file: str, line: str) -> None:
        os.write(self._files[file], f"{line}\n".encode())  # one write: it happens, or it does not


def _open(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _steps(entries: Sequence[Entry]) -> set[str]:
    events = (entry.event for entry in entries)
    return {event.name for event in events if isinstance(event, Private) and event.kind == "step"}


def _named(entry: Entry) -> str:
    event = entry.event
    if isinstance(event, Private):
        if event.kind in UNNAMED:
            return event.kind
        name = event.name.partition(" ")[0] if event.name.startswith("dragoman.") else event.name
        return f"{event.kind}:{name}" if name else event.kind
    if isinstance(event, TaskArtifactUpdateEvent):
        return f"chunk:{(event.artifact.parts[0].text or '').strip()}"
    if isinstance(event, TaskStatusUpdateEvent):
        said = event.status.message.text if event.status.message else ""
        return f"status:{event.status.state.name.lower()}:{said}"
    return type(event).__name__


def watch(store: Any, points: Points) -> None:
    """Have every change of the store pass points."""
    append, claim = store.append, store.claim

    def appended(self: Any, held: Any, entries: Any, **more: Any) -> Any:
        names = [_named(entry) for entry in entries]
        names += ["release"] if more.get("release") else []
        names += ["suspend"] if more.get("pause") else []
        points.pass_by("before", *names)
        points.send(entries)
        future = append(self, held, entries, **more)

        def landed(future: asyncio.Future[bool]) -> None:
            if future.exception() is None:
                points.logged(entries)
                points.pass_by("after", *names)

        landed(future) if future.done() else future.add_done_callback(landed)
        return future

    def claimed(self: Any, *arguments: Any) -> Any:
        future = claim(self, *arguments)

        def landed(future: asyncio.Future[Any]) -> None:
            if future.exception() is None and future.result():
                points.pass_by("after", "claim")

        landed(future) if future.done() else future.add_done_callback(landed)
        return future

    store.append, store.claim = appended, claimed
    for name in ("accept", "cancel", "revoke", "save_context", "wake", "wake_now"):
        setattr(store, name, _around(name, getattr(store, name), points))


def _around(name: str, call: Any, points: Points) -> Any:
    async def around(self: Any, *arguments: Any, **named: Any) -> Any:
        if name != "wake":  # which is tried all the time
            points.pass_by("before", name)
        found = await call(self, *arguments, **named)
        if found:
            points.pass_by("after", name)
        return found

    return around


def run_of(turn: Turn) -> Any:
    """The run, which can be asked to write what it has."""
    return turn._run


def make(points: Points) -> Agent:
    """An agent that does, says, asks and sleeps."""
    agent = Agent("Buyer", description="Buys what it is told to.")

    async def effect(name: str) -> str:
        return points.effect(name)

    def blocking(name: str) -> str:
        return points.effect(name)

    async def words(turn: Turn, *some: str) -> AsyncIterator[Any]:
        for word in some:
            yield turn.write(f"{word} ")
            await run_of(turn).relieve()  # so that it is appended by itself

    @agent.skill(durable=True)
    async def order(turn: Turn) -> AsyncIterator[Any]:
        async for event in words(turn, "one"):
            yield event
        yield turn.write("two ")  # which may be appended together with the step
        await turn.step("quote", effect, "quote")
        await turn.save_context((await turn.context_saved() or 0) + 1)
        yield turn.working("quoted")
        async for event in words(turn, "three", "four"):
            yield event
        try:
            await turn.step("pay", effect, "pay", once=True)
        except StepUncertain:
            await turn.step("look", effect, "look")
        answer = await turn.ask_for("Shall I buy?")
        assert answer.text == "yes"
        yield turn.write("five ")
        await turn.step("bed", blocking, "bed")
        await turn.sleep(NAP)
        await asyncio.gather(
            turn.step("left", effect, "left"), turn.step("right", blocking, "right")
        )
        async for event in words(turn, "six"):
            yield event
        yield turn.working("nearly there")
        await run_of(turn).relieve()
        assert await turn.context_saved() == 1, "it was saved once"
        yield turn.write("seven")

    return agent


if FOLDER in os.environ:  # also of an agent that imports this module
    durable.SHORT = 0.01
    maintenance.LONGEST_DELAY = 0.05
    broken_promises.switch(os.environ.get(BROKEN, ""))
    passing = Points(Path(os.environ[FOLDER]), os.environ.get(KILL, ""))
    _module = importlib.import_module(f"dragoman.stores.{os.environ[STORE]}")
    watch(_module.SqliteStore if os.environ[STORE] == "sqlite" else _module.PostgresStore, passing)
    agent = make(passing)
