"""The bell: a lossy wake-up ("this moved on"), so that readers need not poll fast.

A lost ring costs latency, never correctness: whoever waits has read first, and every replica
also polls at a stated interval and wakes its own listeners.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

SWEPT = 5.0
"""A wait longer than this is ended by the sweep, not by a timer of its own."""


class Listener:
    """One who waits on some topics. A ring between two waits is not lost."""

    __slots__ = ("_listeners", "_rung", "_waiter", "deadline", "seen", "topics")

    def __init__(self, listeners: Listeners, topics: tuple[str, ...]) -> None:
        self._listeners = listeners
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None
        self.topics = topics
        self.seen = -1
        """The version of the head that this reader of a log has seen."""
        self.deadline = math.inf

    def wake(self) -> None:
        """End the present wait, or the next one at once."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float = math.inf) -> None:
        """Until woken, or until the time is up."""
        if not self._rung:
            loop = self._listeners.loop or asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None
            if timeout < SWEPT:
                timer = loop.call_later(max(timeout, 0), self.wake)
            else:
                self.deadline = time.monotonic() + timeout
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        self._rung = False

    def close(self) -> None:
        """Hear no more."""
        self._listeners.remove(self)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CallbackListener(Listener):
    """A listener that calls back at once."""

    __slots__ = ("_call",)

    def __init__(
        self, listeners: Listeners, topics: tuple[str, ...], call: Callable[[], None]
    ) -> None:
        super().__init__(listeners, topics)
        self._call = call

    def wake(self) -> None:
        """Call back."""
        self._call()


class Listeners:
    """All the listeners of this process, by topic."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where they wait; known from the start, it need not be asked for each time."""
        self._by_topic: dict[str, dict[Listener, None]] = {}

    def listen(self, *topics: str) -> Listener:
        """A new listener; close it after use."""
        return self._add(Listener(self, topics))

    def hook(self, call: Callable[[], None], *topics: str) -> Listener:
        """A new listener that calls back; close it after use."""
        return self._add(CallbackListener(self, topics, call))

    def remove(self, listener: Listener) -> None:
        """Forget a listener."""
        for topic in listener.topics:
            listeners = self._by_topic.get(topic)
            if listeners is not None:
                listeners.pop(listener, None)
                if not listeners:
                    del self._by_topic[topic]

    def wake(self, topic: str) -> None:
        """Wake those who wait on a topic."""
        listeners = self._by_topic.get(topic)
        if listeners is not None:
            for listener in listeners:
                listener.wake()

    def sweep(self, now: float) -> None:
        """Wake those whose time is up."""
        for listeners in list(self._by_topic.values()):
            for listener in list(listeners):
                if listener.deadline <= now:
                    listener.wake()

    def _add(self, listener: Listener) -> Listener:
        for topic in listener.topics:
            self._by_topic.setdefault(topic, {})[listener] = None
        return listener

    def wake_all(self) -> None:
        """Wake everybody."""
        for topic in list(self._by_topic):
            self.wake(topic)

    def places(self) -> Mapping[str, int]:
        """The logs that are read at present, and how far the one furthest behind has seen."""
        return {
            topic: min(listener.seen for listener in listeners)
            for topic, listeners in self._by_topic.items()
            if ":" not in topic  # the others are not the ids of tasks
        }


class Bell(Protocol):
    """Carries rings between processes; `listeners` are the local ends."""

    listeners: Listeners
    shared: bool
    """Whether other processes hear it."""

    async def open(self) -> None:
        """Make ready; constructors do no I/O."""

    async def close(self) -> None:
        """Let go of all resources."""

    def ring(self, topic: str) -> None:
        """Tell all replicas; never blocks, may be lost."""

    def carry(self, topic: str) -> None:
        """Tell the other replicas alone."""
