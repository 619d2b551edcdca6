"""A wait for another agent's task: how a handler looks at it, and how it is notified of its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dragoman.agent.step_results import LARGEST
from dragoman.model.errors import A2AError
from dragoman.model.types import Task
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.client import TaskHandle

TOO_LARGE = b"true"
"""Stands for another agent's task that is too large to be kept: it is fetched again."""


class RemoteWait:
    """The task of another agent, as a durable handler waits for it."""

    def __init__(self, remote: TaskHandle, url: str) -> None:
        self.name = remote.id
        self._remote = remote
        self._url = url
        """Where this server takes notifications for the handler's task; empty if nowhere."""

    @property
    def subscribes(self) -> bool:
        """Whether the other agent may be able to notify us."""
        return bool(self._url) and self._remote._pushes

    async def look(self) -> bytes | None:
        """The other agent's task if it has ended or asks, as it is kept; None otherwise."""
        from dragoman.client import Unreachable

        try:
            task = await self._remote.get()
        except (Unreachable, TimeoutError) as error:  # it may come back
            logger.warning("cannot read task %s of another agent: %s", self.name, error)
            return None
        if not task.status.state.settled:
            return None
        data = msgspec.json.encode(task)
        return data if len(data) <= LARGEST else TOO_LARGE

    async def subscribe(self, secret: str) -> str:
        """Register a webhook at the other agent. Returns its id; empty if the agent refuses it."""
        try:
            return (await self._remote.add_webhook(self._url, token=secret)).id
        except (A2AError, ConnectionError, TimeoutError) as error:
            logger.info("no notifications of task %s; polling it instead: %s", self.name, error)
            return ""

    async def unsubscribe(self, webhook: str) -> None:
        """Delete the webhook at the other agent, if it is still there."""
        try:
            await self._remote.delete_webhook(webhook)
        except (A2AError, ConnectionError, TimeoutError) as error:
            logger.info("cannot delete the webhook of task %s: %s", self.name, error)

    async def result(self, data: bytes) -> Task:
        """The task that a look has found."""
        if data == TOO_LARGE:
            return await self._remote.get()
        return msgspec.json.decode(data, type=Task)
