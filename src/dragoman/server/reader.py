"""Readers of a log: one that waits for an answer, and one that streams.

Subscribe, read, then wait: a ring between reading and waiting is not lost. A reader holds a
place in the log and nothing else, so a slow one costs nothing.
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
"""How many seconds longer than its grace a cancel may take to be answered."""


class Shutdown:
    """Whether the server is going away: readers then end at once. A cancel goes on, since the
    agent, which may run elsewhere, has its grace."""

    def __init__(self) -> None:
        self.now = False
        self._cancels: set[asyncio.Future[None]] = set()

    @contextmanager
    def canceling(self) -> Iterator[None]:
        """A cancel is under way in this block."""
        ended = asyncio.get_running_loop().create_future()
        self._cancels.add(ended)
        try:
            yield
        finally:
            self._cancels.discard(ended)
            if not ended.done():
                ended.set_result(None)

    async def cancels_ended(self, grace: float) -> None:
        """Until all that are under way have ended. A store that hangs is not waited for."""
        if self._cancels:
            await asyncio.wait(list(self._cancels), timeout=grace + LATE)


class Reader:
    """Reads logs for whoever asks the service."""

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
        """The head once it is ready, or as it is when the time is up or, with `closing`, when the
        server goes away. One that is known to be the latest spares the first look."""
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
    """A task as it was at one place of its log after the other."""

    def __init__(self, store: Store, scope: Scope, task: str) -> None:
        self._store, self._scope, self._id = store, scope, task
        self._task: Task | None = None
        self._number = 0

    async def at(self, number: int) -> Task | None:
        """The task at this place, which is not before the last one; None if it is no more."""
        if not self._number:  # who keeps up with a log asks for its end: no need to fold it all
            record = await self._store.load(self._scope, self._id)
            if record is not None and record.head.last == number:
                self._task, self._number = record.task, number
        while self._number < number:
            size = min(number - self._number, BATCH)
            entries = await self._store.read(self._scope, self._id, self._number, size)
            if not entries:
                return None
            # callers' entries hold no folded tasks
            self._task = fold(self._task, (entry.event for entry in entries))  # type: ignore[misc]
            self._number = entries[-1].number
        return self._task


class LogStream:
    """A reader of one log from a place on. `next` until it gives None, then `close`."""

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
        """The first entry is a fresh start: the place that was asked for is not to be had."""
        self._store = reader.store
        self._closing = reader.closing
        self._scope = scope
        self._after = after
        self._first = first
        self._answer = answer
        """End with the answer to this message; 0 is the end of the task."""
        self.over = False
        """Nothing comes after what was given last."""
        self.live = False
        """What was given last came while it was waited for."""
        self._current = False
        self._nudged = False
        self._ear = reader.bell.listeners.listen(task)

    async def next(self) -> Sequence[Entry] | None:
        """What comes next, an empty one when nudged; None at the end."""
        while not self.over:
            self.live = self._current
            if self._current:  # what was written since then has rung the listener
                self._current = False
                await self._ear.wait()
                if self._nudged:
                    self._nudged = False
                    return ()
            entries = await self._store.read(self._scope, self.task, self._after, BATCH)
            if entries:
                return self._taken(entries)
            head = await self._store.head(self._scope, self.task)
            if entries is None or head is None:
                raise TaskNotFound
            if head.last > self._after:
                await asyncio.sleep(0)  # something came in between
                continue
            if self._first is not None and head.born:
                return self._taken(())
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
        """Read no more."""
        self._ear.close()

    def _taken(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """These entries up to the one that ends the stream, behind the first."""
        self._current = 0 < len(entries) < BATCH and (
            sum([len(entry.wire or b"") for entry in entries]) < LARGE
        )
        for index, entry in enumerate(entries):
            event = entry.event
            if type(event) is TaskStatusUpdateEvent:
                state = event.status.state
                if state.interrupted:
                    self._current = False  # the end of a turn changes the head alone
                if state.terminal or (
                    state is TaskState.INPUT_REQUIRED and 0 < self._answer <= entry.turn
                ):
                    self.over = True
            elif type(event) is Received:
                self._current = False  # how large it is does not show here
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
        """Nothing more will come. At auth-required the handler may go on and finish."""
        if head.state.terminal or head.replied:
            return True
        if not 0 < self._answer <= head.settled:
            return False
        return not head.holder or head.state is TaskState.INPUT_REQUIRED
