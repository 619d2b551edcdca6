"""Requests and responses of the console, and the table of its routes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote

import msgspec
from msgspec import Struct

T = TypeVar("T")

ACTION_HEADER = b"x-dragoman-console"
"""A header that no browser sends by itself. Requests that change something need it."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
TRUSTED = "; require-trusted-types-for 'script'; trusted-types 'none'"
SAFE = {
    "cache-control": "private, no-store",
    "content-security-policy": POLICY + TRUSTED,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""The headers of every response that does not say otherwise."""


class ConsoleError(Exception):
    """A request that cannot be answered. The message says why."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class NotFound(ConsoleError):
    """There is no such thing, or the operator may not see it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 404)


class Forbidden(ConsoleError):
    """The operator may not do this."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 403)


class Response(Struct, frozen=True):
    """What is answered: a value that becomes JSON, bytes, or a stream of bytes."""

    value: Any = None
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = {}
    stream: AsyncIterator[bytes] | None = None


class Request(Struct, frozen=True, kw_only=True):
    """A request, with what the console reads of it."""

    method: str
    path: str
    parameters: Mapping[str, list[str]]
    headers: Mapping[bytes, bytes]
    scope: Mapping[str, Any]
    receive: Callable[[], Awaitable[Any]]

    @classmethod
    def read(cls, scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]]) -> Request:
        """Make it of ASGI's scope."""
        query = scope.get("query_string", b"").decode("latin-1")
        return cls(
            method=scope["method"],
            path=scope["path"],
            parameters=parse_qs(query, keep_blank_values=True),
            headers=dict(scope["headers"]),
            scope=scope,
            receive=receive,
        )

    def header(self, name: bytes) -> str:
        """The value of a header; empty if it is missing."""
        return self.headers.get(name, b"").decode("latin-1").strip()

    @property
    def html(self) -> bool:
        """Whether the client names HTML as a form that it accepts."""
        return any(
            part.partition(";")[0].strip().lower() == "text/html"
            for part in self.header(b"accept").split(",")
        )

    def one(self, name: str, default: str = "") -> str:
        """The last value of a parameter."""
        return self.parameters.get(name, [default])[-1]

    def given(self, name: str) -> str | None:
        """The last value of a parameter; None if it is missing."""
        found = self.parameters.get(name)
        return found[-1] if found else None

    def number(self, name: str, default: int, most: int = 10**9) -> int:
        """A parameter that is a number. Raises ConsoleError."""
        text = self.one(name) or str(default)
        if not (text.isascii() and text.isdecimal() and len(text) < 12):
            raise ConsoleError(f"{name}: must be a number, not {text[:40]!r}")
        return min(int(text), most)

    async def body(self) -> bytes:
        """The whole body."""
        message = await self.receive()
        found: bytes = message.get("body", b"")
        return found

    async def decode(self, kind: type[T]) -> T:
        """Decode the body. Raises ConsoleError."""
        try:
            return msgspec.json.decode(await self.body() or b"{}", type=kind)
        except msgspec.DecodeError as error:
            raise ConsoleError(f"the body is not valid: {error}") from None


Answer: TypeAlias = "Callable[..., Awaitable[Response]]"


class Route(Struct, frozen=True):
    """A method and a path, such as `/console/api/tasks/{id}`, and what answers."""

    method: str
    path: str
    answer: Answer
    harmless: bool = False
    """Whether a POST changes nothing."""

    def matches(self, path: str) -> dict[str, str] | None:
        """The named parts of a path; None if it is another one."""
        found = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path), path)
        return found and {name: unquote(text) for name, text in found.groupdict().items()}


async def respond(request: Request, send: Any, response: Response) -> None:
    """Send a response. A stream ends when its client has gone."""
    head = request.method == "HEAD"
    body = b""
    headers = {**SAFE, "content-type": response.kind, **response.headers}
    if response.stream is None:
        value = response.value
        body = value if isinstance(value, bytes) else msgspec.json.encode(value)
        if response.status != 304:
            headers["content-length"] = str(len(body))
    raw = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": raw})
    if response.stream is None or head:
        await send({"type": "http.response.body", "body": b"" if head else body})
        return
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    writing = asyncio.ensure_future(_write(send, response.stream))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            writing.result()
    finally:
        writing.cancel()
        gone.cancel()
        await asyncio.gather(writing, gone, return_exceptions=True)


async def _write(send: Any, stream: AsyncIterator[bytes]) -> None:
    with suppress(ConsoleError):  # what is followed is gone; the next request is told so
        async for chunk in stream:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _gone(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
