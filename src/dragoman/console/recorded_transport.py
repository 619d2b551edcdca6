"""A transport that records what the inspector sends and receives, without credentials."""

from __future__ import annotations

import codecs
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextvars import ContextVar
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from dragoman.client import Transport, TransportRequest, TransportResponse
from dragoman.client.credentials import masked
from dragoman.client.grpc_json import grpc_json
from dragoman.console.shapes import ExchangeSummary, ExchangeView

HIDDEN = "***"
"""What is shown instead of a secret."""
KEPT = 200
"""How many exchanges are kept."""
LONGEST = 100_000
"""The most bytes of a body that are kept."""
CALL: ContextVar[tuple[str, Any]] = ContextVar("call", default=("", None))
"""The call of the chat that is made: its method and its parameters."""
FORM = "application/x-www-form-urlencoded"
"""The type of requests to authorization servers, whose bodies and answers have secrets."""
_SECRET = re.compile(r"auth|cookie|key|secret|token|dpop|signature", re.IGNORECASE)
"""Headers whose values are credentials."""


class RecordedTransport:
    """Sends requests by another transport, and keeps the last ones. `secrets` are the names of
    further headers that are not shown, in lower case."""

    def __init__(self, inner: Transport, secrets: frozenset[str] = frozenset()) -> None:
        self._inner = inner
        self._secrets = secrets
        self._numbers = count(1)
        self.fields: Collection[str] = ()
        """The parameters of a query and the headers that the schemes of the card use for keys."""
        self.exchanges: deque[ExchangeView] = deque(maxlen=KEPT)

    @property
    def grpc(self) -> bool:
        """See `HTTPTransport.grpc`."""
        return bool(getattr(self._inner, "grpc", False))

    def goes_on(self, earlier: RecordedTransport) -> None:
        """Keep what an earlier one has recorded, and its numbers."""
        self._numbers, self.exchanges = earlier._numbers, earlier.exchanges
        self.fields = earlier.fields

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Send a request and return the response once its headers have arrived."""
        body = request.body if isinstance(request.body, bytes) else b""
        call, params = CALL.get()
        shown = ExchangeView(
            number=next(self._numbers),
            at=time.time(),
            method="gRPC" if request.url.startswith("grpc") else request.method,
            url=self._without_keys(request.url),
            sent=self._masked(request.headers),
            call=call,
            params=params,
        )
        form = any(
            name.lower() == "content-type" and text.startswith(FORM)
            for name, text in request.headers.items()
        )
        if shown.method == "gRPC":
            shown.body = grpc_json(request.url, body)[:LONGEST]
        else:
            text = body[:LONGEST].decode("utf-8", "replace")
            shown.body = masked(text) if form else text
        self.exchanges.append(shown)
        try:
            response = await self._inner.send(request)
        except Exception as error:
            shown.error = str(error) or type(error).__name__
            raise
        shown.status, shown.received = response.status, self._masked(response.headers)
        return RecordedResponse(response, shown, request.url, form=form)

    def undecoded(self, call: str, error: str) -> None:
        """Say that the last answer to a call could not be read."""
        found = (each for each in reversed(self.exchanges) if each.call == call and each.status)
        for each in found:
            each.undecoded = error
            return

    async def close(self) -> None:
        """Close all connections."""
        await self._inner.close()

    def _masked(self, headers: Mapping[str, str]) -> dict[str, str]:
        hidden = {*self._secrets, *self.fields}
        return {
            name: HIDDEN if _SECRET.search(name) or name.lower() in hidden else text
            for name, text in headers.items()
        }

    def _without_keys(self, url: str) -> str:
        parts = urlsplit(url)
        if not parts.query:
            return url
        pairs = [
            (name, HIDDEN if _SECRET.search(name) or name.lower() in self.fields else text)
            for name, text in parse_qsl(parts.query, keep_blank_values=True)
        ]
        return urlunsplit(parts._replace(query=urlencode(pairs, safe="*")))


class RecordedResponse:
    """A response whose body is recorded as it arrives."""

    def __init__(
        self, inner: TransportResponse, shown: ExchangeView, url: str, *, form: bool
    ) -> None:
        self._inner, self._shown, self._url, self._form = inner, shown, url, form
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self.status, self.headers = inner.status, inner.headers

    @property
    def public(self) -> bool:
        """See `TransportResponse.chunks`."""
        return bool(getattr(self._inner, "public", False))

    async def chunks(self) -> AsyncIterator[bytes]:
        """The pieces of the body."""
        try:
            async for chunk in self._inner.chunks():
                if len(self._text) < LONGEST:
                    self._keep(chunk)
                yield chunk
        except Exception as error:
            self._shown.error = str(error) or type(error).__name__
            raise

    def _keep(self, chunk: bytes) -> None:
        if self._shown.method == "gRPC":
            found = grpc_json(self._url, chunk, answer=True, status=self.status)
            self._text += f"\n{found}" if self._text else found
        else:
            self._text += self._decoder.decode(chunk[:LONGEST])
        self._shown.answer = masked(self._text) if self._form else self._text

    async def close(self) -> None:
        """Stop reading."""
        await self._inner.close()


def summaries(wire: RecordedTransport | None) -> list[ExchangeSummary]:
    """What was sent, without the bodies."""
    return [
        ExchangeSummary(
            number=each.number,
            at=each.at,
            method=each.method,
            url=each.url,
            status=each.status,
            error=each.error,
            call=each.call,
        )
        for each in (wire.exchanges if wire is not None else ())
    ]
