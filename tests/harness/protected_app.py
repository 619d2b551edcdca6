"""An application that requires an API key, and calls to it over each binding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dragoman import Agent, App
from dragoman.security import ApiKey
from tests.harness.app import RunningApp, running
from tests.harness.clients import STREAMS, Binding, Failed, Grpc, HttpJson, JsonRpc
from tests.harness.older_clients import Grpc03, Http03, JsonRpc03
from tests.harness.server import BINDINGS

KINDS: tuple[type[Binding], ...] = (JsonRpc, HttpJson, Grpc, JsonRpc03, Http03, Grpc03)
KEYS = {"alice": ["a-key", "a-key-that-comes"], "bob": "b-key"}


def message(text: str, **more: Any) -> dict[str, Any]:
    """Create a message of the user."""
    return {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}], **more}


@asynccontextmanager
async def protected(agent: Agent, **settings: Any) -> AsyncIterator[RunningApp]:
    """Serve the agent to callers with an API key."""
    settings.setdefault("auth", ApiKey(header="X-Key", keys=KEYS))
    app = App(agent, grpc_port=0, bindings=BINDINGS, drain_timeout=0.0, **settings)
    async with running(app) as found:
        yield found


async def asked(client: Binding, name: str, params: dict[str, Any]) -> Any:
    """Call an operation, and return its result, its events or its error."""
    try:
        if name in STREAMS:
            return [seen.event for seen in await client.stream(name, **params)]
        return await client.call(name, **params)
    except Failed as failed:
        return failed
