"""Readers of a log: one waits for a result, the other streams.

Subscribe, read, then wait: a ring between reading and waiting is not lost. A reader holds a
position in the log and nothing else, so a slow reader costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dragoman.bells.bell import Bell
from dragoman.model.caller import Scope
from dragoman.model.errors import TaskNotFound
from dragoman.model.events import Entry, Received, Reply
from dragoman.model.lifecycle import fold
from dragoman.model.types import Task, TaskState, TaskStatusUpdateEvent
from dragoman.stores.store import LARGE, Head, Store

BATCH = 512


LATE = 1.0
"""A cancel may take this many seconds longer than its grace period."""


class Shutdown:
    """Whether the server is shutting down: readers then end at once. A cancel continues, because
    the agent has its grace period and may run on another replica."""

    def __init__(self) -> None:
        self.now = False
        self._cancels: set[asyncio.Future[None]] = set()

    @contextmanager
    def canceling(self) -> Iterator[None]:
        """Mark that a cancel is in progress in this block."""
        ended = asyncio.get_running_loop().create_future()
        self._cancels.add(ended)
        try:
            yield
        finally:
            self._cancels.discard(ended)
            if not ended.done():
                ended.set_result(None)

    async def cancels_ended(self, grace: float) -> None:
        """Wait until all cancels in progress have ended, with a limit in case the store hangs."""
        if self._cancels:
            await asyncio.wait(list(self._cancels), timeout=grace + LATE)


class Reader:
    """Reads logs for the service."""

    def __init__(self, store: Store, bell: Bell, closing: Shutdown) -> None:
        self.store = store
        self.bell = bell
        self.closing = closing

    async def until(
        self,
        ready: Callable[[Head], bool],
        scope: Scope,
        task: str,
        timeout: float,
        known: Head | None = None,
        *,
        closing: bool = True,
    ) -> Head:
        """Wait until the head is ready, and return it. Return it as it is after the timeout or,
        with `closing`, when the server shuts down. A `known` latest head saves the first read."""
        deadline = time.monotonic() + timeout
        listener = self.bell.listeners.listen(task)
        try:
            while True:
                head, known = known or await self.store.head(scope, task), None
                if head is None:
                    raise TaskNotFound
                if ready(head) or (closing and self.closing.now):
                    return head
                if (left := deadline - time.monotonic()) <= 0:
                    return head
                listener.seen = head.version
                await listener.wait(left)
        finally:
            listener.close()


class History:
    """A task as it was at increasing positions of its log."""

    def __init__(self, store: Store, scope: Scope, task: str) -> None:
        self._store, self._scope, self._id = store, scope, task
        self._task: Task | None = None
        self._number = 0

    async def at(self, number: int) -> Task | None:
        """The task at this position, which must not be before the last one; None if the task was
        deleted."""
        if not self._number:  # at the end of the log there is no need to fold it all
            record = await self._store.load(self._scope, self._id)
            if record is not None and record.head.last == number:
                self._task, self._number = record.task, number
        while self._number < number:
            size = min(number - self._number, BATCH)
            entries = await self._store.read(self._scope, self._id, self._number, size)
            if not entries:
                return None
            # The entries that callers pass contain no folded tasks.
            self._task = fold(self._task, (entry.event for entry in entries))  # type: ignore[misc]
            self._number = entries[-1].number
        return self._task


class LogStream:
    """Reads one log from a position on. Call `next` until it returns None, then `close`."""

    def __init__(
        self,
        reader: Reader,
        scope: Scope,
        task: str,
        *,
        context: str,
        after: int,
        first: Entry | None = None,
        answer: int = 0,
        reset: bool = False,
    ) -> None:
        self.task, self.context = task, context
        self.reset = reset
        """The requested position is not available: the first entry is a fresh start."""
        self._store = reader.store
        self._closing = reader.closing
        self._scope = scope
        self._after = after
        self._first = first
        self._answer = answer
        """End with the result of this message; 0 means the end of the task."""
        self.over = False
        """Nothing follows the last entries."""
        self.live = False
        """The last entries arrived while the reader waited."""
        self._current = False
        self._nudged = False
        self._ear = reader.bell.listeners.listen(task)

    async def next(self) -> Sequence[Entry] | None:
        """Return the next entries, or an empty sequence after `nudge`; None at the end."""
        while not self.over:
            self.live = self._current
            if self._current:  # later writes have rung the listener
                self._current = False
                await self._ear.wait()
                if self._nudged:
                    self._nudged = False
                    return ()
            entries = await self._store.read(self._scope, self.task, self._after, BATCH)
            if entries:
                return self._up_to_end(entries)
            head = await self._store.head(self._scope, self.task)
            if entries is None or head is None:
                raise TaskNotFound
            if head.last > self._after:
                await asyncio.sleep(0)  # something arrived in between
                continue
            if self._first is not None and head.born:
                return self._up_to_end(())
            if self._ended(head) or self._closing.now:
                self.over = True
                break
            self._ear.seen = head.version
            self._current = True
        return None

    def nudge(self) -> None:
        """Make `next` return."""
        self._nudged = True
        self._ear.wake()

    def close(self) -> None:
        """Stop reading."""
        self._ear.close()

    def _up_to_end(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return these entries up to the one that ends the stream."""
        self._current = 0 < len(entries) < BATCH and (
            sum([len(entry.wire or b"") for entry in entries]) < LARGE
        )
        for index, entry in enumerate(entries):
            event = entry.event
            if type(event) is TaskStatusUpdateEvent:
                state = event.status.state
                if state.interrupted:
                    self._current = False  # the end of a turn changes only the head
                if state.terminal or (
                    state is TaskState.INPUT_REQUIRED and 0 < self._answer <= entry.turn
                ):
                    self.over = True
            elif type(event) is Received:
                self._current = False  # its size is not visible here
            elif type(event) is Reply:
                self.over = True
                self._first = None
            if self.over:
                entries = entries[: index + 1]
                break
        if entries:
            self._after = entries[-1].number
        if self._first is not None:
            entries = [self._first, *entries]
            self._first = None
        return entries

    def _ended(self, head: Head) -> bool:
        """Whether nothing more follows. After auth-required the handler may continue and finish."""
        if head.state.terminal or head.replied:
            return True
        if not 0 < self._answer <= head.settled:
            return False
        return not head.holder or head.state is TaskState.INPUT_REQUIRED
