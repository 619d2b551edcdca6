"""The bell: a lossy wake-up ("this log has new entries"), so that readers need not poll often.

A lost ring costs latency, never correctness: a reader reads before it waits, and every replica also
polls at an interval and wakes its own listeners.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

SWEPT = 5.0
"""The sweep ends a wait that is longer than this; a shorter one gets a timer."""


class Listener:
    """Waits for rings on some topics. A ring between two waits is not lost."""

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
        """End the current wait, or the next one at once."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float = math.inf) -> None:
        """Wait until a ring or the timeout."""
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
        """Stop listening."""
        self._listeners.remove(self)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CallbackListener(Listener):
    """A listener that calls a function."""

    __slots__ = ("_call",)

    def __init__(
        self, listeners: Listeners, topics: tuple[str, ...], call: Callable[[], None]
    ) -> None:
        super().__init__(listeners, topics)
        self._call = call

    def wake(self) -> None:
        """Call the function."""
        self._call()


class Listeners:
    """All listeners of this process, by topic."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of the listeners, stored because looking it up costs time."""
        self._by_topic: dict[str, dict[Listener, None]] = {}

    def listen(self, *topics: str) -> Listener:
        """Make a listener; close it after use."""
        return self._add(Listener(self, topics))

    def on_ring(self, call: Callable[[], None], *topics: str) -> Listener:
        """Make a listener that calls a function; close it after use."""
        return self._add(CallbackListener(self, topics, call))

    def remove(self, listener: Listener) -> None:
        """Remove a listener."""
        for topic in listener.topics:
            listeners = self._by_topic.get(topic)
            if listeners is not None:
                listeners.pop(listener, None)
                if not listeners:
                    del self._by_topic[topic]

    def wake(self, topic: str) -> None:
        """Wake the listeners of a topic."""
        listeners = self._by_topic.get(topic)
        if listeners is not None:
            for listener in listeners:
                listener.wake()

    def sweep(self, now: float) -> None:
        """Wake the listeners whose timeout is over."""
        for listeners in list(self._by_topic.values()):
            for listener in list(listeners):
                if listener.deadline <= now:
                    listener.wake()

    def _add(self, listener: Listener) -> Listener:
        for topic in listener.topics:
            self._by_topic.setdefault(topic, {})[listener] = None
        return listener

    def wake_all(self) -> None:
        """Wake all listeners."""
        for topic in list(self._by_topic):
            self.wake(topic)

    def places(self) -> Mapping[str, int]:
        """The ids of the logs that have readers, with the lowest version that a reader has seen."""
        return {
            topic: min(listener.seen for listener in listeners)
            for topic, listeners in self._by_topic.items()
            if ":" not in topic  # other topics are not task ids
        }


class Bell(Protocol):
    """Carries rings between processes; `listeners` are those of this process."""

    listeners: Listeners
    shared: bool
    """Whether rings reach other processes."""

    async def open(self) -> None:
        """Open connections; constructors do no I/O."""

    async def close(self) -> None:
        """Close all resources."""

    def ring(self, topic: str) -> None:
        """Wake the listeners on all replicas. It never blocks; a ring may be lost."""

    def carry(self, topic: str) -> None:
        """Wake the listeners on the other replicas only."""
