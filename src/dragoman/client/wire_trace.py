"""Connections that print their bytes, for debugging."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from aiohttp import TCPConnector

from dragoman.client.transport import Trace
from dragoman.third_party_internals import aiohttp_protocol, set_aiohttp_protocol

LONGEST = 1 << 16
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})", re.IGNORECASE)


class TracedProtocol(aiohttp_protocol()):  # type: ignore[misc]
    """aiohttp's protocol, with the received bytes shown."""

    def __init__(self, loop: asyncio.AbstractEventLoop, trace: Trace) -> None:
        super().__init__(loop)
        self._trace = trace
        self._held = b""
        """The start of a message, held until all secrets in it can be masked."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Show the bytes that are written from now on."""
        super().connection_made(TracedTransport(transport, self._trace))

    def data_received(self, data: bytes) -> None:
        """Show the received bytes."""
        self._held += data
        if not _begun(self._held):
            self._trace(False, self._held)
            self._held = b""
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Show the bytes that were held back."""
        if self._held:
            self._trace(False, self._held)
            self._held = b""
        super().connection_lost(exc)


def _begun(data: bytes) -> bool:
    """Whether this is an incomplete head, or an incomplete short body: a header or field that is
    cut in two cannot be masked."""
    if data[:5] != b"HTTP/"[: len(data)]:
        return False
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        return len(data) < LONGEST
    length = _LENGTH.search(head)
    return length is not None and len(body) < int(length[1]) <= LONGEST


class TracedTransport:
    """A transport that shows the bytes that are written."""

    def __init__(self, transport: Any, trace: Trace) -> None:
        self._transport = transport
        self._trace = trace

    def write(self, data: bytes) -> None:
        """Show and write the bytes."""
        self._trace(True, bytes(data))
        self._transport.write(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """Show and write several pieces."""
        self.write(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def attach(connector: TCPConnector, trace: Trace) -> None:
    """Show the bytes of this connector's connections."""
    loop = asyncio.get_running_loop()
    set_aiohttp_protocol(connector, partial(TracedProtocol, loop=loop, trace=trace))
