"""Pauses between attempts: exponential backoff with jitter, or what the server asks for."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from dragoman.client.transport import Unreachable
from dragoman.model.errors import A2AError, LimitExceeded, Unavailable

FIRST, LONGEST, MOST = 0.1, 5.0, 60.0
PASSING = (Unreachable, Unavailable, LimitExceeded)
"""What may be over by the next attempt."""


class Pauses:
    """Counts failures in a row."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._failed = 0

    def reset(self) -> None:
        """There was progress."""
        self._failed = 0

    async def after(self, error: BaseException) -> None:
        """Wait before the next attempt, as long as the agent asks for; raise it after the last."""
        self._failed += 1
        if self._failed >= self._attempts:
            raise error
        pause = min(FIRST * 2 ** (self._failed - 1), LONGEST) * random.uniform(0.5, 1)
        if isinstance(error, A2AError):
            if error.http in (408, 413):  # it would be no smaller, and no faster
                raise error
            pause = max(pause, min(_wish(error.headers.get("retry-after", "")), MOST))
        await asyncio.sleep(pause)


def _wish(text: str) -> float:
    """The seconds that `Retry-After` asks for, as a number or as a time; 0 if it makes no sense."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return 0.0
