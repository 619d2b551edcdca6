"""Asking an issuer of tokens: whole answers within a limit, and pauses while the issuer fails."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""The pause after a failure: the first, and the longest. Each is twice as long as the last."""
LOG_INTERVAL = 10.0
"""At most one log line about an issuer's failures in so many seconds."""


class Backoff:
    """Pauses while an issuer fails. `after` is the number of failures in a row that begins one."""

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
        """The header that tells a caller when to come back."""
        return {"retry-after": str(max(1, math.ceil(self.left())))}

    def succeeded(self) -> None:
        """The issuer has answered: no pause is due."""
        self._failures, self._pause = 0, 0.0

    def failed(self) -> bool:
        """Count a failure. True if it is to be logged."""
        now = time.monotonic()
        self._failures += 1
        # requests that were under way when the pause began do not make it longer
        if self.failing and now >= self._until:
            self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self._pause))
            self._until = now + self._pause
        if now < self._logged + LOG_INTERVAL:
            return False
        self._logged = now
        return True


async def read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body; ValueError if it is larger. The session's timeout bounds the time."""
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > limit:
            raise ValueError(f"the response is larger than {limit} bytes")
    return bytes(found)
