"""Records a conversation with an agent, and replays it."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.client.credentials import FIELDS, masked
from dragoman.client.transport import Transport, TransportRequest, TransportResponse
from dragoman.model.lineage import LINEAGE
from dragoman.telemetry.logs import MASK, secretive

LATER = "…"
"""Replaces a body that was generated in pieces."""
_CHANGING = re.compile(rf"id|\w+Ids?|\w*[tT]imestamp\w*|{FIELDS}|{LINEAGE}")


class Exchange(Struct, kw_only=True):
    """A request and its response. Secrets are not recorded."""

    method: str
    url: str
    headers: dict[str, str]
    body: str = ""
    status: int
    answered: dict[str, str]
    """The headers of the response."""
    answer: str = ""
    """The part of its body that was read."""


class Recorder:
    """A transport that records requests and responses."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.exchanges: list[Exchange] = []

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        response = await self._transport.send(request)
        body = request.body
        exchange = Exchange(
            method=request.method,
            url=_masked_url(request.url),
            headers=_masked(request.headers),
            body=body.decode("utf-8", "replace") if isinstance(body, bytes) else LATER,
            status=response.status,
            answered=_masked(response.headers),
        )
        self.exchanges.append(exchange)
        return Recorded(response, exchange)

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._transport.close()

    def save(self, path: str | Path) -> None:
        """Write the recording to a file, for `Replay`."""
        recording = [_without_secrets(exchange) for exchange in self.exchanges]
        encoded = msgspec.json.format(msgspec.json.encode(recording), indent=2)
        Path(path).write_bytes(encoded + b"\n")


class Recorded:
    """A response that is recorded while it is read."""

    def __init__(self, response: TransportResponse, exchange: Exchange) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response
        self._exchange = exchange
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    async def chunks(self) -> AsyncIterator[bytes]:
        """See `TransportResponse.chunks`."""
        async for chunk in self._response.chunks():
            self._exchange.answer += self._decode(chunk)
            yield chunk

    async def close(self) -> None:
        """See `TransportResponse.close`."""
        await self._response.close()


class Replay:
    """A transport that returns the recorded responses in the same order. Raises AssertionError if a
    request differs from the recorded one. Ids and times in bodies are not compared."""

    def __init__(self, path: str | Path) -> None:
        read = Path(path).read_bytes()
        self._left = msgspec.json.decode(read, type=list[Exchange])

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        body = request.body.decode() if isinstance(request.body, bytes) else LATER
        asked = _summary(request.method, request.url, body)
        if not self._left:
            raise AssertionError(f"the recording has ended, but the client sends {_shown(asked)}")
        exchange = self._left.pop(0)
        recorded = _summary(exchange.method, exchange.url, exchange.body)
        if asked != recorded:
            problem = f"the recording has {_shown(recorded)}, but the client sends {_shown(asked)}"
            raise AssertionError(problem)
        return Replayed(exchange)

    async def close(self) -> None:
        """See `Transport.close`."""


class Replayed:
    """A recorded response."""

    def __init__(self, exchange: Exchange) -> None:
        self.status = exchange.status
        self.headers: Mapping[str, str] = exchange.answered
        self._body = exchange.answer.encode()

    async def chunks(self) -> AsyncIterator[bytes]:
        """See `TransportResponse.chunks`."""
        yield self._body

    async def close(self) -> None:
        """See `TransportResponse.close`."""


def _masked(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: MASK if secretive(name) else value for name, value in headers.items()}


def _masked_url(url: str) -> str:
    """The URL without the secrets in its query."""
    parts = urlsplit(url)
    if not any(secretive(name) for name, _ in parse_qsl(parts.query)):
        return url
    query = _masked(dict(parse_qsl(parts.query, keep_blank_values=True)))
    return parts._replace(query=urlencode(query, safe="*")).geturl()


def _without_secrets(exchange: Exchange) -> Exchange:
    """The exchange without the secrets in its bodies."""
    return replace(exchange, body=masked(exchange.body), answer=masked(exchange.answer))


def _summary(method: str, url: str, body: str) -> tuple[str, str, dict[str, str], Any]:
    """The parts of a request that must be equal."""
    parts = urlsplit(url)
    query = {name: value for name, value in parse_qsl(parts.query) if not secretive(name)}
    try:
        document = _without_ids(msgspec.json.decode(body))
    except msgspec.DecodeError:
        document = None  # empty, a form, or generated in pieces
    return method, parts.path, query, document


def _without_ids(value: Any) -> Any:
    """The document without values that differ each time."""
    if isinstance(value, dict):
        return {k: _without_ids(item) for k, item in value.items() if not _CHANGING.fullmatch(k)}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


def _shown(summary: tuple[str, str, dict[str, str], Any]) -> str:
    method, path, query, document = summary
    where = f"{path}?{urlencode(query)}" if query else path
    return f"{method} {where} {msgspec.json.encode(document).decode()}"
