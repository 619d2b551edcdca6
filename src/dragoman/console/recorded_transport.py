"""A transport that records what the inspector sends and receives, without credentials."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from itertools import count

from dragoman.client import Transport, TransportRequest, TransportResponse
from dragoman.console.shapes import ExchangeView

KEPT = 200
"""How many exchanges are kept."""
LONGEST = 100_000
"""The most bytes of a body that are kept."""
_SECRET = re.compile(r"auth|cookie|key|secret|token|dpop|signature", re.IGNORECASE)
"""Headers whose values are credentials."""


class RecordedTransport:
    """Sends requests by another transport, and keeps the last ones."""

    def __init__(self, inner: Transport, secrets: frozenset[str] = frozenset()) -> None:
        self._inner = inner
        self._secrets = secrets
        """The names of further headers that are not shown, in lower case."""
        self._numbers = count(1)
        self.exchanges: deque[ExchangeView] = deque(maxlen=KEPT)

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Send a request and return the response once its headers have arrived."""
        body = request.body if isinstance(request.body, bytes) else b""
        shown = ExchangeView(
            number=next(self._numbers),
            at=time.time(),
            method=request.method,
            url=request.url,
            sent=self._masked(request.headers),
            body=body[:LONGEST].decode("utf-8", "replace"),
        )
        self.exchanges.append(shown)
        try:
            response = await self._inner.send(request)
        except Exception as error:
            shown.error = str(error) or type(error).__name__
            raise
        shown.status, shown.received = response.status, self._masked(response.headers)
        return RecordedResponse(response, shown)

    async def close(self) -> None:
        """Close all connections."""
        await self._inner.close()

    def _masked(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {
            name: "***" if _SECRET.search(name) or name.lower() in self._secrets else text
            for name, text in headers.items()
        }


class RecordedResponse:
    """A response whose body is recorded as it arrives."""

    def __init__(self, inner: TransportResponse, shown: ExchangeView) -> None:
        self._inner, self._shown = inner, shown
        self.status, self.headers = inner.status, inner.headers

    @property
    def public(self) -> bool:
        """See `TransportResponse.chunks`."""
        return bool(getattr(self._inner, "public", False))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces."""
        try:
            async for chunk in self._inner.chunks():
                room = LONGEST - len(self._shown.answer)
                if room > 0:
                    self._shown.answer += chunk.decode("utf-8", "replace")[:room]
                yield chunk
        except Exception as error:
            self._shown.error = str(error) or type(error).__name__
            raise

    async def close(self) -> None:
        """Stop reading."""
        await self._inner.close()
