"""The queue that an executor gets: what it enqueues becomes events of the turn."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from a2a.server.events import EventQueue
from msgspec.structs import replace

from dragoman import (
    Message,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    Turn,
)
from dragoman.bridges.sdk.artifacts import Artifacts
from dragoman.bridges.sdk.executor_state import ExecutorState, saved_state
from dragoman.bridges.sdk.sdk_values import VALUES

logger = logging.getLogger("dragoman")


class Queue(EventQueue):
    """Takes what an executor enqueues, and gives it to the turn."""

    def __init__(self, turn: Turn, artifacts: Artifacts, given: TaskStatus) -> None:
        if "enqueue_event" not in getattr(EventQueue, "__abstractmethods__", ()):
            super().__init__()
        self._turn = turn
        self._artifacts = artifacts
        self._given = given
        self._ids = {"task_id": turn.task.id, "context_id": turn.context_id}
        self._closed = self._born = self._over = False
        self._asked: ExecutorState | None = None

    async def enqueue_event(self, event: Any) -> None:
        """Take an event."""
        if self._closed:
            logger.warning("an executor enqueued %s after close: dropped", type(event).__name__)
            return
        found = VALUES.event(event)
        if isinstance(found, Message):
            self._over = True
            await self._turn.emit(self._turn.reply(found))
            return
        if not self._over:
            await self._artifacts.begin()
        if isinstance(found, TaskArtifactUpdateEvent):
            await self._turn.emit(self._artifacts.identified(replace(found, **self._ids)))
        else:
            news = self._news(found) if isinstance(found, Task) else self._status(found)
            for each in news:
                if isinstance(each, TaskStatusUpdateEvent):
                    await self._remember(each.status)
                await self._turn.emit(each)

    async def _remember(self, status: TaskStatus) -> None:
        """Keep a question for the turn that its answer begins, before the client can answer it."""
        if self._over:
            return
        self._over = status.state.terminal
        before = saved_state(self._turn)
        if status.state.interrupted:
            self._asked = before.asked(self._turn, status)
            await self._asked.save(self._turn)
        elif self._asked is not None and not self._over:
            self._asked = None
            await before.forgotten().save(self._turn)

    async def close(self, immediate: bool = False) -> None:
        """Take no more events."""
        self._closed = True

    def end(self) -> None:
        """The turn is over: what comes now is dropped, with a warning."""
        self._over = True

    def is_closed(self) -> bool:
        """Whether it takes no more events."""
        return self._closed

    def _status(self, event: TaskStatusUpdateEvent) -> Iterator[TaskStatusUpdateEvent]:
        """The event as one of this task."""
        event, status = replace(event, **self._ids), event.status
        if status.message and status.message.message_id == self._turn.message.message_id:
            status = replace(status, message=None)  # the user's own; the history has it
        if status.state is TaskState.SUBMITTED and (self._born or not self._new):
            # Executors say so again, and at the beginning of each turn. A task cannot go back.
            if status.message is None and not event.metadata:
                return
            if not self._new:
                status = replace(status, state=TaskState.WORKING)
        self._born = True
        yield event if status is event.status else replace(event, status=status)

    @property
    def _new(self) -> bool:
        return self._turn.task.status.state is TaskState.SUBMITTED

    def _news(self, task: Task) -> Iterator[Any]:
        """What a task says that is not known yet."""
        known = self._turn.task
        for artifact in task.artifacts:
            whole = TaskArtifactUpdateEvent(
                task_id=known.id, context_id=known.context_id, artifact=artifact, last_chunk=True
            )
            event = self._artifacts.identified(whole)
            if event.artifact not in known.artifacts:
                yield event
        more, had = task.metadata or {}, known.metadata or {}
        metadata = {key: value for key, value in more.items() if had.get(key) != value}
        if task.status.state is TaskState.SUBMITTED:
            # with its first status a task begins to exist for clients
            news = self._new and not self._born
        else:
            # executors enqueue the task that they were given, too
            news = not (_same(task.status, self._given) or _same(task.status, known.status))
        if news or metadata:
            status = task.status if news else known.status
            yield from self._status(
                TaskStatusUpdateEvent(
                    task_id=known.id,
                    context_id=known.context_id,
                    status=status,
                    metadata=metadata or None,
                )
            )


def _same(one: TaskStatus, other: TaskStatus) -> bool:
    """Whether one status says no more than the other."""
    if one.message is not None:
        said = other.message
        return said is not None and said.message_id == one.message.message_id
    return one.state is other.state
