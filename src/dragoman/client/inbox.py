"""Where pushed events arrive, for those who wait for a task that cannot be listened to."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.receiver import Hook, Notification, Receiver
from dragoman.types import TaskPushNotificationConfig


class Inbox:
    """A webhook of one's own. Serve `inbox.app` (ASGI) where `url` leads to."""

    def __init__(self, url: str, *, keys: tuple[str, ...] = ()) -> None:
        self._url = url
        self._token = secrets.token_urlsafe(24)
        self._users: Counter[str] = Counter()
        self._came: dict[str, asyncio.Event] = {}
        self._receiver = Receiver(token=self._token, keys=keys)
        self.app: Hook = self._receiver.app(self._take)
        """The application that takes the notifications."""

    def config(self, task: str) -> TaskPushNotificationConfig:
        """What to register with the agent."""
        return TaskPushNotificationConfig(task_id=task, url=self._url, token=self._token)

    @contextmanager
    def expecting(self, task: str) -> Iterator[asyncio.Event]:
        """Set whenever something of this task has come."""
        came = self._came.setdefault(task, asyncio.Event())
        self._users[task] += 1
        try:
            yield came
        finally:
            self._users[task] -= 1
            if not self._users[task]:
                del self._users[task], self._came[task]

    async def _take(self, notification: Notification) -> None:
        if came := self._came.get(notification.task_id):
            came.set()
