"""Makes the private entries of turns that failed, were lost or run again."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

from dragoman.model.events import Entry
from dragoman.model.failed_turn import FailedTurn, failed_turn_entry
from dragoman.stores.store import Head
from dragoman.telemetry.logs import redacted

LONGEST = 16 * 1024
"""The most characters of a traceback."""
LONGEST_TEXT = 1000
FRAMES = 100
"""The most frames of each exception: the last ones."""


def failed(
    head: Head,
    reason: str,
    text: str,
    *,
    error: BaseException | None = None,
    stack: str = "",
    correlation: str = "",
) -> Entry:
    """The entry that says how an attempt went wrong."""
    shown = stack or ("" if error is None else _traceback(error))
    found = FailedTurn(
        turn=head.turn,
        attempt=head.attempt,
        worker=head.holder,
        reason=reason,
        text=_clean(text)[:LONGEST_TEXT],
        correlation=correlation,
        traceback=_shortened(_clean(shown)),
    )
    return Entry(0, failed_turn_entry(found), 0, b"")


def stack_of(task: asyncio.Task[Any]) -> str:
    """Where a task waits: the frames of the coroutines that wait for each other."""
    lines: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None and len(lines) < FRAMES:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        lines += traceback.format_stack(frame, limit=1)
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return "".join(lines)


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-FRAMES))


def _clean(text: str) -> str:
    return redacted(text).encode("utf-8", "replace").decode()


def _shortened(text: str) -> str:
    """Keep the end, which names the error, and the beginning."""
    if len(text) <= LONGEST:
        return text
    first = LONGEST // 4
    gone = len(text) - LONGEST
    return f"{text[:first]}\n… {gone} characters …\n{text[first + gone :]}"
