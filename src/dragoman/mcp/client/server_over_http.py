"""An MCP server that is reached over HTTP: its limits, and where requests may go.

The operator has named the address. Requests go to its origin and nowhere else (the SDK follows no
redirect that leaves it), with no proxy, cookie or credential of the environment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from dragoman.mcp.client.mcp_servers import HTTPServer
from dragoman.mcp.client.server_process import LARGEST_MESSAGE, MESSAGES, Pace

CONNECT = 30.0
EVENTS = "text/event-stream"
LINES = 4
"""How many lines an event of a stream has, about."""


@asynccontextmanager
async def server_over_http(server: HTTPServer) -> AsyncIterator[Any]:
    """The streams of messages to and from a server."""
    inner = httpx2.AsyncHTTPTransport(trust_env=False)
    async with (
        httpx2.AsyncClient(
            # not compressed: the limits count what is received
            headers={**server.headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(CONNECT, read=None),  # each call has a time limit of its own
            trust_env=False,
            transport=_Limits(inner),
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=LARGEST_MESSAGE
        ) as streams,
    ):
        yield streams


class _Limits(httpx2.AsyncBaseTransport):
    """Limits what comes back."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the server compresses, although it must not")
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Limited(response.stream, kind == EVENTS)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Limited(httpx2.AsyncByteStream):
    """The body of a response: at most one message, or a stream of events at a limited pace."""

    def __init__(self, inner: httpx2.AsyncByteStream, events: bool) -> None:
        self._inner, self._events = inner, events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, pace = 0, Pace(LINES * MESSAGES)
        async for chunk in self._inner:
            size += len(chunk)
            if self._events:
                await pace.keep(chunk.count(b"\n"))
            elif size > LARGEST_MESSAGE:
                raise httpx2.ReadError(f"the response is longer than {LARGEST_MESSAGE} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
