"""Pauses between attempts: exponential backoff with jitter, or the server's `Retry-After`."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from dragoman.client.transport import Unreachable
from dragoman.model.errors import A2AError, LimitExceeded, Unavailable

FIRST, LONGEST, MOST = 0.1, 5.0, 60.0
PASSING = (Unreachable, Unavailable, LimitExceeded)
"""Errors after which a retry may succeed."""


class Pauses:
    """Counts consecutive failures."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._failed = 0

    def reset(self) -> None:
        """Record progress."""
        self._failed = 0

    async def after(self, error: BaseException) -> None:
        """Wait before the next attempt, as long as the agent asks. Raise the error after the last
        attempt."""
        self._failed += 1
        if self._failed >= self._attempts:
            raise error
        pause = min(FIRST * 2 ** (self._failed - 1), LONGEST) * random.uniform(0.5, 1)
        if isinstance(error, A2AError):
            if error.http in (408, 413):  # a retry would be as large and as slow
                raise error
            pause = max(pause, min(_retry_after(error.headers.get("retry-after", "")), MOST))
        await asyncio.sleep(pause)


def _retry_after(text: str) -> float:
    """Return the seconds of a `Retry-After` header, a number or a date; 0 if it is not valid."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return 0.0
