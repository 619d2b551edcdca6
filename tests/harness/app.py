"""An application that is served for tests, with clients for each binding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx

from dragoman import Agent, App
from tests.harness.clients import Binding, Grpc
from tests.harness.server import serving
from tests.harness.trust import NOBODY


class RunningApp:
    """A served application, with clients for each binding."""

    def __init__(self, app: App, url: str, http: httpx.AsyncClient) -> None:
        self.app = app
        self.url = url
        self.http = http
        self._channel: Any = None

    @property
    def agent(self) -> Agent:
        """The agent, or the first of several."""
        return next(iter(self.app.agents.values()))

    @property
    def address(self) -> str:
        """The address of gRPC."""
        return f"127.0.0.1:{self.app.ports[0].number}"

    @property
    def channel(self) -> Any:
        """The gRPC channel that all clients share."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address)
        return self._channel

    @property
    def gate(self) -> asyncio.Event:
        """The event that opens the gate of the agent in `tests.harness.agents`."""
        found: asyncio.Event = self.agent.gate  # type: ignore[attr-defined]
        return found

    def client(self, kind: type[Binding], key: str = "", **headers: str) -> Binding:
        """Create a client of a binding, with an API key (see `protected_app`) and headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key:
            named["x-key"] = key
        channel = self.channel if issubclass(kind, Grpc) else None
        return kind(self.url, self.http, named, channel)

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close()


@asynccontextmanager
async def running(app: App, **options: Any) -> AsyncIterator[RunningApp]:
    """Serve an application until the block ends. The options are those of its HTTP client."""
    options = {"timeout": 20, "verify": NOBODY, **options}
    async with serving(app) as url, httpx.AsyncClient(**options) as http:
        found = RunningApp(app, url, http)
        try:
            yield found
        finally:
            await found.close()
