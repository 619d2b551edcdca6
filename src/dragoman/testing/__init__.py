"""Helpers for tests: try a handler alone, or an agent in this process with a client of it; write a
conversation down; let things go wrong on purpose."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from dragoman.agent import Agent
from dragoman.app import App
from dragoman.client import Client, Engine
from dragoman.client.engine import Inside
from dragoman.made import EventNotYielded
from dragoman.testing.conversation import Exchange, Recorder, Replay
from dragoman.testing.faults import DeafBell, Faulty
from dragoman.testing.rehearsal import Rehearsal, fault, message, rehearse, turn

__all__ = (
    "DeafBell",
    "EventNotYielded",
    "Exchange",
    "Faulty",
    "Recorder",
    "Rehearsal",
    "Replay",
    "TalkingClient",
    "message",
    "rehearse",
    "talking",
    "turn",
)


class TalkingClient(Client):
    """A client of an agent in this process, which also tells what its handlers raised."""

    errors: Sequence[BaseException] = ()
    """What the handlers raised, in order; the tasks only say the types."""

    @property
    def error(self) -> BaseException | None:
        """The first of them, if there is any."""
        return self.errors[0] if self.errors else None


@asynccontextmanager
async def talking(
    agent: Agent,
    *,
    through: Callable[[Engine], Engine] | None = None,
    strict: bool = False,
    **settings: Any,
) -> AsyncIterator[TalkingClient]:
    """A client of an agent that is served in this process, without a socket. `through` wraps the
    way to it, as `Recorder` does, or `lambda engine: Faulty(engine, drop=0.2)`. What a handler
    raises is the client's `error`; with `strict` it is raised when the block ends. EventNotYielded
    then, if a handler made an event and did not hand it over."""
    errors: list[BaseException] = []
    try:
        async with App(agent, **{"drain": 0.0, **settings}) as app:
            if app._worker is not None:
                app._worker.raised = errors.append
            engine: Engine = Inside(app)
            if through is not None:
                engine = through(engine)
            client = cast(TalkingClient, TalkingClient.connect(app=app, engine=engine))
            client.errors = errors
            async with client:
                yield client
    except Exception as raised:
        if (error := fault(errors, strict)) is not None:
            raise error from raised  # it is why the test failed, most likely
        raise
    if (error := fault(errors, strict)) is not None:
        raise error
