"""Helpers for tests: try a handler alone, or an agent in this process with a client of it; write a
conversation down; let things go wrong on purpose."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from dragoman.agent import Agent
from dragoman.app import App
from dragoman.client import Client, Engine
from dragoman.client.engine import Inside
from dragoman.testing.conversation import Exchange, Recorder, Replay
from dragoman.testing.faults import DeafBell, Faulty
from dragoman.testing.rehearsal import Rehearsal, message, rehearse, turn

__all__ = (
    "DeafBell",
    "Exchange",
    "Faulty",
    "Recorder",
    "Rehearsal",
    "Replay",
    "message",
    "rehearse",
    "talking",
    "turn",
)


@asynccontextmanager
async def talking(
    agent: Agent, *, through: Callable[[Engine], Engine] | None = None, **settings: Any
) -> AsyncIterator[Client]:
    """A client of an agent that is served in this process, without a socket. `through` wraps the
    way to it, as `Recorder` does, or `lambda engine: Faulty(engine, drop=0.2)`."""
    async with App(agent, **{"drain": 0.0, **settings}) as app:
        engine: Engine = Inside(app)
        if through is not None:
            engine = through(engine)
        async with Client.connect(app=app, engine=engine) as client:
            yield client
