"""The run of a turn, as the turn sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dragoman.model.conversation import ContextValue, ConversationMessage, MessagePlace
from dragoman.model.events import Event
from dragoman.model.remote_task import RemoteTask, SeenTask
from dragoman.model.types import Task
from dragoman.telemetry.logs import logger


class Running(Protocol):
    """The part of a run that a turn uses."""

    name: str
    """The agent's name."""
    deadline: float
    """When the run must have ended, by the monotonic clock."""
    reason: str
    """Why the run was asked to stop: cancel, deadline or drain; empty if it was not."""

    @property
    def origin(self) -> str:
        """The agent's origin, see `lineage`."""

    @property
    def must_end(self) -> float:
        """When the whole work must have ended, as a Unix time: of a durable handler, with all that
        it waits for."""

    @property
    def address(self) -> str:
        """The URL at which others reach the agent; empty if it is not known."""

    async def emit(self, event: Event) -> None:
        """Log an event."""

    async def settle(self, event: Event) -> bool:
        """Log an event and wait until it is durable; False if the run is over."""

    async def related(self, ids: Sequence[str], limit: int = 100) -> list[Task]:
        """Return the tasks with these ids, or the other tasks of the context."""

    async def conversation(
        self, before: MessagePlace, limit: int, characters: int
    ) -> list[ConversationMessage]:
        """Return what was said in the context before a message."""

    async def save(self, value: bytes) -> None:
        """Keep a private value of the task, and wait until it is durable."""

    async def hand_over(self, digest: str, timeout: float) -> None:
        """Leave the task to the holder of a secret when the handler ends; durable when it
        returns."""

    async def context_value(self) -> ContextValue | None:
        """Return the private value of the context. PermissionError."""

    async def save_context(self, value: bytes, version: int) -> int:
        """Keep a private value of the context, if it has this version (0: there is none), and wait
        until it is durable; its new version. ContextChanged, PermissionError."""

    def connection(self, address: str) -> Mapping[str, Any]:
        """The agent's client options for another agent."""

    def delegate(self, remote: RemoteTask, name: str = "") -> None:
        """Log a task of another agent that this task began, and the name of the send."""

    def see(self, found: SeenTask) -> None:
        """Log in which state a task of another agent is."""

    def audit(self, event: str, result: str, **about: str) -> None:
        """Write an entry to the audit log."""


class Over:
    """Replaces a run that has ended: its turn can log no more events."""

    name = origin = address = ""
    deadline = must_end = 0.0
    reason = ""

    def __init__(self, handler: str) -> None:
        self.handler = handler
        self._warned = False

    async def emit(self, event: Event) -> None:
        """Drop the event and warn once. Yields to the event loop."""
        if not self._warned:
            self._warned = True
            name = type(event).__name__
            logger.warning("handler %s: dropped %s, because its turn has ended", self.handler, name)
        await asyncio.sleep(0)

    async def related(self, ids: Sequence[str], limit: int = 100) -> list[Task]:
        """Return no tasks."""
        return []

    async def conversation(
        self, before: MessagePlace, limit: int, characters: int
    ) -> list[ConversationMessage]:
        """Return nothing."""
        return []

    async def settle(self, event: Event) -> bool:
        """Return False."""
        return False

    async def save(self, value: bytes) -> None:
        """Raise RuntimeError."""
        raise RuntimeError("the turn has ended: nothing can be saved any more")

    async def hand_over(self, digest: str, timeout: float) -> None:
        """Raise RuntimeError."""
        raise RuntimeError("the turn has ended: it cannot be handed over any more")

    async def context_value(self) -> ContextValue | None:
        """Raise RuntimeError."""
        raise RuntimeError("the turn has ended: it cannot read the value of its context any more")

    async def save_context(self, value: bytes, version: int) -> int:
        """Raise RuntimeError."""
        raise RuntimeError("the turn has ended: nothing can be saved any more")

    def connection(self, address: str) -> Mapping[str, Any]:
        """No options."""
        return {}

    def see(self, found: SeenTask) -> None:
        """Do nothing."""

    def delegate(self, remote: RemoteTask, name: str = "") -> None:
        """Do nothing."""

    def audit(self, event: str, result: str, **about: str) -> None:
        """Do nothing."""
