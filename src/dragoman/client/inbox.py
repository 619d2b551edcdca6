"""Receives notifications by webhook, for a client that cannot keep a stream open."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from dragoman.model import clock
from dragoman.model.types import TaskPushNotificationConfig
from dragoman.webhooks.receiver import Notification, Receiver, ReceiverApp


class Inbox:
    """The client's own webhook. Serve `inbox.app` (ASGI) at `url`."""

    def __init__(self, url: str, *, keys: tuple[str, ...] = ()) -> None:
        self._url = url
        self._token = secrets.token_urlsafe(24)
        self._rings: dict[str, list[Callable[[], object]]] = {}
        self._receiver = Receiver(token=self._token, keys=keys)
        self.app: ReceiverApp = self._receiver.app(self._take)
        """The application that receives the notifications."""

    def config(self, task: str) -> TaskPushNotificationConfig:
        """The webhook configuration to register with the agent."""
        return TaskPushNotificationConfig(
            id=clock.uuid7(), task_id=task, url=self._url, token=self._token
        )

    @contextmanager
    def expecting(self, task: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever a notification for this task arrives. Each waiter has its
        own."""
        arrived = asyncio.Event()
        # Another event loop may serve the inbox.
        ring = partial(asyncio.get_running_loop().call_soon_threadsafe, arrived.set)
        self._rings.setdefault(task, []).append(ring)
        try:
            yield arrived
        finally:
            self._rings[task].remove(ring)
            if not self._rings[task]:
                del self._rings[task]

    async def _take(self, notification: Notification) -> None:
        for ring in list(self._rings.get(notification.task_id, ())):
            ring()
