"""A server that wants a key, and callers of it over every binding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

from dragoman import Agent, App
from dragoman.security import ApiKey
from tests.harness.clients import STREAMS, Binding, Failed, Grpc, HttpJson, JsonRpc
from tests.harness.older_clients import Grpc03, Http03, JsonRpc03
from tests.harness.server import BINDINGS, serving

KINDS: tuple[type[Binding], ...] = (JsonRpc, HttpJson, Grpc, JsonRpc03, Http03, Grpc03)
KEYS = {"alice": ["a-key", "a-key-that-comes"], "bob": "b-key"}


def message(text: str, **more: Any) -> dict[str, Any]:
    """What a user says."""
    return {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}], **more}


@dataclass
class House:
    """A server, and ways to it."""

    app: App
    url: str
    http: httpx.AsyncClient
    channel: Any

    def client(self, kind: type[Binding], key: str, **headers: str) -> Binding:
        """A caller with this key, or none."""
        if key:
            headers["x-key"] = key
        channel = self.channel if issubclass(kind, Grpc) else None
        return kind(self.url, self.http, headers, channel)


@asynccontextmanager
async def housed(agent: Agent, **settings: Any) -> AsyncIterator[House]:
    """The agent, for who has a key."""
    settings.setdefault("auth", ApiKey(header="X-Key", keys=KEYS))
    app = App(agent, grpc_port=0, bindings=BINDINGS, drain_timeout=0.0, **settings)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(app))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=20))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{app.ports[0].number}")
        stack.push_async_callback(channel.close)
        yield House(app, url, http, channel)


async def asked(client: Binding, name: str, params: dict[str, Any]) -> Any:
    """What comes of it."""
    try:
        if name in STREAMS:
            return [seen.event for seen in await client.stream(name, **params)]
        return await client.call(name, **params)
    except Failed as failed:
        return failed
