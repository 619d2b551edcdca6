"""Requests to an issuer of tokens: limits on responses, and pauses while the issuer fails."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""The first and the longest pause after a failure. Each pause is twice as long as the last."""
LOG_INTERVAL = 10.0
"""At most one log line about an issuer's failures in this many seconds."""


class Backoff:
    """Pauses while an issuer fails. `after` is the number of consecutive failures that starts
    one."""

    def __init__(self, after: int = 1) -> None:
        self._after = after
        self._failures = 0
        self._pause = 0.0
        self._until = 0.0
        self._logged = -math.inf

    @property
    def failing(self) -> bool:
        """Whether the issuer has failed so often that only one request at a time may try it."""
        return self._failures >= self._after

    def left(self) -> float:
        """The seconds until the issuer may be asked again; 0 if it may be asked now."""
        return max(0.0, self._until - time.monotonic()) if self.failing else 0.0

    def retry_after(self) -> dict[str, str]:
        """The header that says when to try again."""
        return {"retry-after": str(max(1, math.ceil(self.left())))}

    def succeeded(self) -> None:
        """The issuer has responded: end the pause."""
        self._failures, self._pause = 0, 0.0

    def failed(self) -> bool:
        """Count a failure. Return whether to log it."""
        now = time.monotonic()
        self._failures += 1
        # Requests that were in progress when the pause started do not prolong it.
        if self.failing and now >= self._until:
            self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self._pause))
            self._until = now + self._pause
        if now < self._logged + LOG_INTERVAL:
            return False
        self._logged = now
        return True


async def read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read the whole body. Raises ValueError if it is larger. The session's timeout limits the
    time."""
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > limit:
            raise ValueError(f"the response is larger than {limit} bytes")
    return bytes(found)
