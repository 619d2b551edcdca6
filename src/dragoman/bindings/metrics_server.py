"""A port for operators: metrics, liveness and readiness.

It is not the agents' port, so that figures are never told to the public by accident, and a worker,
which has no other, is probed and scraped like a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from dragoman.model.errors import Unavailable
from dragoman.telemetry.logs import logger

Page = Callable[[], Awaitable[tuple[int, str, bytes]]]
"""A status, a media type and a body."""
PATIENCE = 10.0
"""How long a request may take to arrive, and its answer to be taken."""
HEAD = 16 * 1024
VISITORS = 64
"""The most connections at once: there are few who look after a process."""
WORDS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class MetricsServer:
    """Shows pages: `async with MetricsServer(…) as board: board.port`."""

    def __init__(self, pages: Mapping[str, Page], host: str, port: int) -> None:
        self.port = port
        """The port, once it is open; before that, the one that is wanted."""
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
                f"metrics_port: cannot listen on {self._host}:{self.port}: {error}"
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
        # who goes away, sends nothing, or something else than HTTP is not answered
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
