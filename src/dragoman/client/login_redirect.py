"""Where the browser comes back to after a login at an authorization server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from dragoman.model.errors import Unauthenticated

PATIENCE = 300.0
"""Seconds that a person may take to log in."""
PAGE = (
    "<!doctype html><meta charset=utf-8><title>dragoman</title>"
    "<p style='font:1.2em sans-serif;margin:3em'>{}</p>"
)


class Denied(Unauthenticated):
    """The authorization server refused."""

    word = ""


class Redirect(Protocol):
    """Where the browser comes back to from the authorization server, with a code."""

    url: str

    async def code(self) -> str:
        """Wait for the code. Raises Unauthenticated."""


class Callback:
    """The redirect address for the browser: one request on loopback that has the state that was
    sent."""

    def __init__(self, port: int, state: str) -> None:
        self._port = port
        self._state = state
        self._found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Callback:
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", self._port)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/callback"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._found.cancel()
        self._server.close()

    async def code(self) -> str:
        """Wait for the code that the authorization server sends."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._found
        except TimeoutError:
            raise Unauthenticated(f"no login within {PATIENCE:g} s") from None

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            status, words = self._take(head.split(b" ")[1].decode("latin-1"))
            page = PAGE.format(words).encode()
            writer.write(
                b"HTTP/1.1 %d %b\r\nContent-Type: text/html\r\nContent-Length: %d\r\n"
                b"Cache-Control: no-store\r\nConnection: close\r\n\r\n%b"
                % (status, HTTPStatus(status).phrase.encode(), len(page), page)
            )
            await writer.drain()
        except (OSError, TimeoutError, EOFError, IndexError, asyncio.LimitOverrunError):
            pass  # not the browser
        finally:
            writer.close()

    def _take(self, target: str) -> tuple[int, str]:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path != "/callback" or not secrets.compare_digest(
            query.get("state", "").encode(), self._state.encode()
        ):
            return 404, "This request does not belong to the login in progress."
        if not self._found.done():
            if code := query.get("code"):
                self._found.set_result(code)
            else:
                self._found.set_exception(denied(query, 400))
        return 200, "Done. You can close this window and return to the terminal."


def denied(document: Mapping[str, Any], status: int) -> Denied:
    """The error in a response of an authorization server."""
    word = str(document.get("error") or f"HTTP {status}")
    more = document.get("error_description")
    error = Denied(f"the authorization server refused: {word}{f': {more}' if more else ''}")
    error.word = word
    return error
