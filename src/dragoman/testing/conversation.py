"""A conversation with an agent, written down, and played back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.client.credentials import secretive
from dragoman.client.engine import Engine, Request, Response


class Exchange(Struct, kw_only=True):
    """A request and what it was answered with. Secrets are not written down."""

    method: str
    url: str
    headers: dict[str, str]
    body: str = ""
    status: int
    answered: dict[str, str]
    """The headers of the answer."""
    answer: str = ""
    """As much of its body as was read."""


class Recorder:
    """An engine that writes down what goes through it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.exchanges: list[Exchange] = []

    async def send(self, request: Request) -> Response:
        """See `Engine.send`."""
        response = await self._engine.send(request)
        body = request.body
        exchange = Exchange(
            method=request.method,
            url=request.url,
            headers=_masked(request.headers),
            body=body.decode("utf-8", "replace") if isinstance(body, bytes) else "…",
            status=response.status,
            answered=_masked(response.headers),
        )
        self.exchanges.append(exchange)
        return Recorded(response, exchange)

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()

    def save(self, path: str | Path) -> None:
        """Write it to a file, for `Replay`."""
        encoded = msgspec.json.format(msgspec.json.encode(self.exchanges), indent=2)
        Path(path).write_bytes(encoded + b"\n")


class Recorded:
    """An answer that is written down as it is read."""

    def __init__(self, response: Response, exchange: Exchange) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response
        self._exchange = exchange

    async def chunks(self) -> AsyncIterator[bytes]:
        """See `Response.chunks`."""
        async for chunk in self._response.chunks():
            self._exchange.answer += chunk.decode("utf-8", "replace")
            yield chunk

    async def close(self) -> None:
        """See `Response.close`."""
        await self._response.close()


class Replay:
    """An engine that answers as it was written down, in the same order. Another request than the
    one that comes next is an AssertionError. Ids and times in bodies are not compared."""

    def __init__(self, path: str | Path) -> None:
        read = Path(path).read_bytes()
        self._left = msgspec.json.decode(read, type=list[Exchange])

    async def send(self, request: Request) -> Response:
        """See `Engine.send`."""
        asked = f"{request.method} {urlsplit(request.url).path}"
        if not self._left:
            raise AssertionError(f"the recording has ended, and now comes {asked}")
        exchange = self._left.pop(0)
        known = f"{exchange.method} {urlsplit(exchange.url).path}"
        if asked != known:
            raise AssertionError(f"the recording has {known}, and now comes {asked}")
        return Replayed(exchange)

    async def close(self) -> None:
        """See `Engine.close`."""


class Replayed:
    """An answer that was written down."""

    def __init__(self, exchange: Exchange) -> None:
        self.status = exchange.status
        self.headers: Mapping[str, str] = exchange.answered
        self._body = exchange.answer.encode()

    async def chunks(self) -> AsyncIterator[bytes]:
        """See `Response.chunks`."""
        yield self._body

    async def close(self) -> None:
        """See `Response.close`."""


def _masked(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: "***" if secretive(name) else value for name, value in headers.items()}
