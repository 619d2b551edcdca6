"""Rows that cannot be read: they are logged, counted and skipped.

A task whose head cannot be read is set aside: it leaves the queue, and is held by ASIDE for PAUSE
seconds. Then the reaper looks at it again, like at every claim whose lease has run out. So it is
taken up by itself when it has been repaired, and is not looked at all the time until then. A
webhook that cannot be read is parked, which an operator can undo (`dragoman db redrive`).
"""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec

from dragoman.stores.store import Unreadable
from dragoman.telemetry.logs import logger

ASIDE = "unreadable"
"""The holder of a task that is set aside."""
PAUSE = 600.0
"""For so many seconds a task is set aside before it is looked at again."""
REPEAT = 600.0
"""So many seconds pass before the same is logged again."""
REMEMBERED = 1000
"""Of so many it is remembered when they were logged."""
KINDS = ("head", "log", "snapshot", "webhook", "count")

ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What is raised by columns that are not as they were written."""
DECODING = (*ERRORS, msgspec.MsgspecError)


class UnreadableRows:
    """What could not be read since the start. It may be told by any thread."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        """How often something was logged, by what it was."""
        self._told: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def found(self, error: Unreadable, what: str = "") -> None:
        """Log and count it, unless that was done lately; `what` was done about it."""
        now = time.monotonic()
        name = (error.kind, error.task)
        with self._lock:
            if now - self._told.get(name, -REPEAT) < REPEAT:
                return
            if len(self._told) >= REMEMBERED:
                self._told.clear()
            self._told[name] = now
            self.counts[error.kind] += 1
        more = f"; {what}" if what else ""
        logger.error("%s%s; see `dragoman db check`", error, more, extra={"task": error.task})


def agrees(row: Any) -> None:
    """Refuse a head that contradicts itself; ValueError. Such a head would come back to whoever
    looks for work, again and again, and could not be worked on."""
    if row.last < 1:
        raise ValueError(f"last is {row.last}")
    inbox = row.inbox
    if inbox:
        if not 0 < inbox[0] <= inbox[-1] <= row.last:
            raise ValueError("inbox names messages that are not in its log")
        if row.replied or row.state.terminal:
            raise ValueError("it has ended, but a message waits in its inbox")
    elif row.holder and not (row.began or row.due or row.cancel_at):
        raise ValueError("a worker holds it, but its inbox is empty")
