"""A server per test, and a client of each binding; with a bell, with a deaf one, and on disk.

JSON-RPC runs with all of them, the other bindings and the older dialects with the usual bell only:
what is behind them is the same. `make soak` runs HTTP+JSON with all of them, too.
`@pytest.mark.needs("list")` leaves out those that cannot say it; 0.1 can say so little that tests
ask for it, with `@pytest.mark.first`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from dragoman import Agent, App, Caller, Request
from dragoman.model import clock
from dragoman.model.errors import Unauthenticated
from dragoman.testing import SilentBell
from tests.harness import agents
from tests.harness.clients import Binding, Grpc, HttpJson, JsonRpc
from tests.harness.older_clients import Grpc03, Http03, JsonRpc01, JsonRpc03
from tests.harness.scale import SOAK
from tests.harness.server import serving
from tests.harness.stores import database


class World:
    """One application being served, and its clients."""

    def __init__(self, agent: Agent, app: App, url: str, http: httpx.AsyncClient) -> None:
        self.agent = agent
        self.app = app
        self.url = url
        self.http = http
        self._channel: Any = None

    @property
    def address(self) -> str:
        """Where gRPC is."""
        return f"127.0.0.1:{self.app.ports[0].number}"

    @property
    def channel(self) -> Any:
        """The channel that all clients share."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address)
        return self._channel

    async def close(self) -> None:
        """Hang up."""
        if self._channel is not None:
            await self._channel.close()

    @property
    def gate(self) -> asyncio.Event:
        """Opens what waits at the gate."""
        found: asyncio.Event = self.agent.gate  # type: ignore[attr-defined]
        return found

    def client(self, kind: type[Binding], **headers: str) -> Binding:
        """A client of a binding."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        channel = self.channel if issubclass(kind, Grpc) else None
        return kind(self.url, self.http, named, channel)


def identify(request: Request) -> Caller:
    """A caller is who it says it is; nobody in particular without a word. One that says no tenant
    may name any."""
    name = request.headers.get("x-user", "")
    if name == "nobody":
        raise Unauthenticated(headers={"www-authenticate": "Bearer"})
    tenant = request.headers.get("x-tenant", "")
    return Caller(identity=name, tenant=tenant, tenants=frozenset() if tenant else frozenset("*"))


Start = Callable[..., Any]
OLDEST = (JsonRpc, HttpJson)
WITH_ALL = OLDEST if SOAK else (JsonRpc,)
"""The bindings that are tried with every store and bell."""
KINDS: tuple[type[Binding], ...] = (*OLDEST, Grpc, JsonRpc03, Http03, Grpc03, JsonRpc01)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*features): leaves out bindings that lack them")
    config.addinivalue_line("markers", "first: also for 0.1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _apt(item)]
    for item in items:
        params = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
        if (params or {}).get("start", "bell") != "bell":
            item.add_marker("slow")


def _apt(item: pytest.Item) -> bool:
    """Whether the test's binding can say what the test is about."""
    params = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
    kind = params and params.get("kind")
    if kind not in KINDS:
        return True
    if kind not in WITH_ALL and params.get("start", "bell") != "bell":
        return False
    if kind is JsonRpc01 and item.get_closest_marker("first") is None:
        return False
    wanted = {feature for marker in item.iter_markers("needs") for feature in marker.args}
    return all(kind.can(feature) for feature in wanted)


@pytest.fixture(params=["bell", "deaf", "sqlite", "postgres"])
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
            settings = {"cancel_grace": 0.3, "drain_timeout": 0.2, "poll": 0.02, **settings}
            if request.param == "sqlite":
                settings = {"store": f"sqlite:///{tmp_path}/{clock.uuid7()}.db", **settings}
            if request.param == "postgres":
                settings = {"store": database(), "postgres_pool_size": 3, **settings}
            if "kind" in request.fixturenames and issubclass(request.getfixturevalue("kind"), Grpc):
                settings = {"grpc_port": 0, **settings}
            bell = SilentBell() if request.param == "deaf" else None
            app = App(made, bell=bell, identify=identify, **settings)
            url = await stack.enter_async_context(serving(app))
            if hasattr(made, "gate"):
                stack.callback(made.gate.set)  # whoever still waits may go
            world = World(made, app, url, http)
            stack.push_async_callback(world.close)
            return world

        yield begin


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
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
