"""Rows that are not readable: they are logged, counted and skipped.

A task with an unreadable head is set aside: it leaves the queue, and ASIDE holds it for PAUSE
seconds. Then the reaper reads it again, like every claim with an expired lease. So a repaired task
continues without help, and a damaged one is not read all the time. A webhook that is not readable
is parked; an operator can resume it (`dragoman db redrive`).
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
"""How many seconds a task is set aside before it is read again."""
REPEAT = 600.0
"""How many seconds pass before the same row is logged again."""
REMEMBERED = 1000
"""For how many rows the time of the last log line is remembered."""
KINDS = ("head", "log", "snapshot", "webhook", "count")

ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""The errors that damaged columns raise."""
DECODING = (*ERRORS, msgspec.MsgspecError)


class UnreadableRows:
    """The unreadable rows since the start. Every thread may report one."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        """How often something was unreadable, by kind."""
        self._reported: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def found(self, error: Unreadable, what: str = "") -> None:
        """Log and count it, unless that was done recently. `what` is what the program did about
        it."""
        now = time.monotonic()
        name = (error.kind, error.task)
        with self._lock:
            if now - self._reported.get(name, -REPEAT) < REPEAT:
                return
            if len(self._reported) >= REMEMBERED:
                self._reported.clear()
            self._reported[name] = now
            self.counts[error.kind] += 1
        more = f"; {what}" if what else ""
        logger.error("%s%s; see `dragoman db check`", error, more, extra={"task": error.task})


def agrees(row: Any) -> None:
    """Raise ValueError if a head contradicts itself. Workers could not work on such a task, but
    would claim it again and again."""
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
