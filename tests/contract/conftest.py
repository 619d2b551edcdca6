"""A server per test, and a client of each binding; with a bell, with a deaf one, and on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Caller, Request, clock
from dragoman.errors import Unauthenticated
from dragoman.testing import DeafBell
from tests.contract import agents
from tests.contract.bindings import Binding, HttpJson, JsonRpc
from tests.serving import serving


class World:
    """One application being served, and its clients."""

    def __init__(self, agent: Agent, app: App, url: str, http: httpx.AsyncClient) -> None:
        self.agent = agent
        self.app = app
        self.url = url
        self.http = http

    @property
    def gate(self) -> asyncio.Event:
        """Opens what waits at the gate."""
        found: asyncio.Event = self.agent.gate  # type: ignore[attr-defined]
        return found

    def client(self, kind: type[Binding], **headers: str) -> Binding:
        """A client of a binding."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return kind(self.url, self.http, named)


def identify(request: Request) -> Caller:
    """A caller is who it says it is; nobody in particular without a word."""
    name = request.headers.get("x-user", "")
    if name == "nobody":
        raise Unauthenticated(headers={"www-authenticate": "Bearer"})
    return Caller(identity=name, tenant=request.headers.get("x-tenant", ""))


Start = Callable[..., Any]


@pytest.fixture(params=["bell", "deaf", "sqlite"])
async def start(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an application: `await start(agent options…, settings…)`."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=20))

        async def begin(
            required: bool = False,
            streaming: bool = True,
            extended: bool = False,
            agent: Agent | None = None,
            **settings: Any,
        ) -> World:
            made = agent or agents.make(required=required, streaming=streaming, extended=extended)
            settings = {"cancel_grace": 0.3, "drain": 0.2, "poll": 0.02, **settings}
            if request.param == "sqlite":
                settings = {"store": f"sqlite:///{tmp_path}/{clock.uuid7()}.db", **settings}
            bell = DeafBell() if request.param == "deaf" else None
            app = App(made, bell=bell, identify=identify, **settings)
            url = await stack.enter_async_context(serving(app))
            if hasattr(made, "gate"):
                stack.callback(made.gate.set)  # whoever still waits may go
            return World(made, app, url, http)

        yield begin


@pytest.fixture(params=[JsonRpc, HttpJson], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> type[Binding]:
    """Each binding in turn."""
    found: type[Binding] = request.param
    return found


@pytest.fixture
async def world(start: Start) -> World:
    """An application with the usual settings, and push switched on."""
    found: World = await start(push=True, egress_allow=["example.com"])
    return found


@pytest.fixture
def client(world: World, kind: type[Binding]) -> Binding:
    """A client of it."""
    return world.client(kind)


def user(text: str | None = None, **fields: Any) -> dict[str, Any]:
    """A user's message."""
    parts = fields.pop("parts", None) or [{"text": text}]
    return {"messageId": "m-1", "role": "ROLE_USER", "parts": parts, **fields}
