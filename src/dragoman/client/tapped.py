"""Connections that show their bytes, for people who look for a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from aiohttp import TCPConnector
from aiohttp.client_proto import ResponseHandler

from dragoman.client.engine import Tap


class Tapped(ResponseHandler):
    """aiohttp's side of a connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tap: Tap) -> None:
        super().__init__(loop)
        self._tap = tap

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Show what is written, from now on."""
        super().connection_made(Watched(transport, self._tap))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Show what has come."""
        self._tap(False, data)
        super().data_received(data)


class Watched:
    """A transport that shows what is written."""

    def __init__(self, transport: Any, tap: Tap) -> None:
        self._transport = transport
        self._tap = tap

    def write(self, data: bytes) -> None:
        """Show it, and write it."""
        self._tap(True, bytes(data))
        self._transport.write(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """The same with several."""
        self.write(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def attach(connector: TCPConnector, tap: Tap) -> None:
    """Have this connector's connections watched."""
    # aiohttp has no public place for this; it makes each connection's protocol here
    connector._factory = partial(Tapped, loop=asyncio.get_running_loop(), tap=tap)  # type: ignore[assignment]
