"""A small HTTP server for operators: metrics, liveness and readiness.

It has its own port, so that metrics are never public by accident, and so that a worker, which has
no other port, can be probed and scraped like a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from dragoman.model.errors import Unavailable
from dragoman.telemetry.logs import logger

Page = Callable[[], Awaitable[tuple[int, str, bytes]]]
"""Returns a status, a media type and a body."""
PATIENCE = 10.0
"""Seconds in which the client must send the request and read the response."""
HEAD = 16 * 1024
VISITORS = 64
"""The maximum number of connections."""
WORDS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class MetricsServer:
    """Serves pages: `async with MetricsServer(…) as server: server.port`."""

    def __init__(self, pages: Mapping[str, Page], host: str, port: int) -> None:
        self.port = port
        """The open port; before the start, the requested one, where 0 means any."""
        self._pages = pages
        self._host = host
        self._visits: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> MetricsServer:
        try:
            self._server = await asyncio.start_server(
                self._enter, self._host, self.port, limit=HEAD
            )
        except (OSError, OverflowError) as error:
            raise Unavailable(
                f"metrics: cannot listen on {self._host}:{self.port}: {error}"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._visits) >= VISITORS:
            writer.close()
            return
        visit = asyncio.create_task(self._visit(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # a client that disconnects, sends nothing or does not send HTTP gets no response
        gone = (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, ValueError)
        try:
            with suppress(*gone):
                async with asyncio.timeout(PATIENCE):
                    head = await reader.readuntil(b"\r\n\r\n")
                    method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
                    writer.write(await self._answer(method, target.partition("?")[0]))
                    await writer.drain()
        except Exception:
            logger.exception("a request to the metrics port failed")
        finally:
            writer.close()

    async def _answer(self, method: str, path: str) -> bytes:
        page = self._pages.get(path)
        if method not in ("GET", "HEAD"):
            status, kind, body = 405, "text/plain", b"GET only\n"
        elif page is None:
            known = " ".join(self._pages)
            status, kind, body = 404, "text/plain", f"Available: {known}\n".encode()
        else:
            status, kind, body = await page()
        head = (
            f"HTTP/1.1 {status} {WORDS[status]}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else body)
