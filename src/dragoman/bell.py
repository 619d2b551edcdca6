"""The bell: a lossy wake-up ("this moved on"), so that readers need not poll fast.

A lost ring costs latency, never correctness: whoever waits has read first, and every replica
also polls at a stated interval and wakes its own ears.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

SWEPT = 5.0
"""A wait longer than this is ended by the sweep, not by a timer of its own."""


class Ear:
    """One who waits on some topics. A ring between two waits is not lost."""

    __slots__ = ("_ears", "_rung", "_waiter", "deadline", "seen", "topics")

    def __init__(self, ears: Ears, topics: tuple[str, ...]) -> None:
        self._ears = ears
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
            loop = self._ears.loop or asyncio.get_running_loop()
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
        self._ears.remove(self)

    def __enter__(self) -> Ear:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Hook(Ear):
    """An ear that calls back at once."""

    __slots__ = ("_call",)

    def __init__(self, ears: Ears, topics: tuple[str, ...], call: Callable[[], None]) -> None:
        super().__init__(ears, topics)
        self._call = call

    def wake(self) -> None:
        """Call back."""
        self._call()


class Ears:
    """All the ears of this process, by topic."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where they wait; known from the start, it need not be asked for each time."""
        self._by_topic: dict[str, dict[Ear, None]] = {}

    def listen(self, *topics: str) -> Ear:
        """A new ear; close it after use."""
        return self._add(Ear(self, topics))

    def hook(self, call: Callable[[], None], *topics: str) -> Ear:
        """A new ear that calls back; close it after use."""
        return self._add(Hook(self, topics, call))

    def remove(self, ear: Ear) -> None:
        """Forget an ear."""
        for topic in ear.topics:
            ears = self._by_topic.get(topic)
            if ears is not None:
                ears.pop(ear, None)
                if not ears:
                    del self._by_topic[topic]

    def wake(self, topic: str) -> None:
        """Wake those who wait on a topic."""
        ears = self._by_topic.get(topic)
        if ears is not None:
            for ear in ears:
                ear.wake()

    def sweep(self, now: float) -> None:
        """Wake those whose time is up."""
        for ears in list(self._by_topic.values()):
            for ear in list(ears):
                if ear.deadline <= now:
                    ear.wake()

    def _add(self, ear: Ear) -> Ear:
        for topic in ear.topics:
            self._by_topic.setdefault(topic, {})[ear] = None
        return ear

    def wake_all(self) -> None:
        """Wake everybody."""
        for topic in list(self._by_topic):
            self.wake(topic)

    def places(self) -> Mapping[str, int]:
        """The logs that are read at present, and how far the one furthest behind has seen."""
        return {
            topic: min(ear.seen for ear in ears)
            for topic, ears in self._by_topic.items()
            if ":" not in topic  # the others are not the ids of tasks
        }


class Bell(Protocol):
    """Carries rings between processes; `ears` are the local ends."""

    ears: Ears

    async def open(self) -> None:
        """Make ready; constructors do no I/O."""

    async def close(self) -> None:
        """Let go of all resources."""

    def ring(self, topic: str) -> None:
        """Tell all replicas; never blocks, may be lost."""

    def carry(self, topic: str) -> None:
        """Tell the other replicas alone."""
