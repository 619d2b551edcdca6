"""Helpers for tests: run a handler alone, or an agent in this process with a client; record and
replay a conversation; inject faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from dragoman.agent.agent import Agent
from dragoman.agent.unyielded_events import EventNotYielded
from dragoman.client import Client, Transport
from dragoman.client.transport import ASGITransport
from dragoman.server.app import App
from dragoman.testing.faults import FaultyTransport, SilentBell
from dragoman.testing.recording import Exchange, Recorder, Replay
from dragoman.testing.run_handler import HandlerRun, fault, message, run_handler, turn

__all__ = (
    "EventNotYielded",
    "Exchange",
    "FaultyTransport",
    "HandlerRun",
    "Recorder",
    "Replay",
    "SilentBell",
    "TalkingClient",
    "local_client",
    "message",
    "run_handler",
    "turn",
)


class TalkingClient(Client):
    """A client of an agent in this process, which also has the errors of its handlers."""

    errors: Sequence[BaseException] = ()
    """The exceptions of the handlers, in order. The tasks contain only their types."""

    @property
    def error(self) -> BaseException | None:
        """The first of them, or None."""
        return self.errors[0] if self.errors else None


@asynccontextmanager
async def local_client(
    agent: Agent,
    *,
    through: Callable[[Transport], Transport] | None = None,
    strict: bool = False,
    **settings: Any,
) -> AsyncIterator[TalkingClient]:
    """Serve an agent in this process, without a socket, and yield a client for it. `through` wraps
    the transport, for example with `Recorder` or `lambda inner: FaultyTransport(inner, drop=0.2)`.
    An exception in a handler becomes the client's `error`; with `strict` it is raised when the
    block ends. EventNotYielded is raised there, too, if a handler made an event and did not hand it
    over."""
    errors: list[BaseException] = []
    try:
        async with App(agent, **{"drain_timeout": 0.0, **settings}) as app:
            if app._worker is not None:
                app._worker.raised = errors.append
            transport: Transport = ASGITransport(app)
            if through is not None:
                transport = through(transport)
            client = cast(TalkingClient, TalkingClient.connect(app=app, transport=transport))
            client.errors = errors
            async with client:
                yield client
    except Exception as raised:
        if (error := fault(errors, strict)) is not None:
            raise error from raised  # probably the reason why the test failed
        raise
    if (error := fault(errors, strict)) is not None:
        raise error
