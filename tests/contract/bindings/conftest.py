"""A server for each test, and clients of each binding; with a bell, with a silent one, and on disk.

JSON-RPC runs with all of these; the other bindings and the older dialects run only with the default
bell, because the code behind them is the same. `make soak` also runs HTTP+JSON with all of them.
`@pytest.mark.storeless` marks tests that do not depend on store or bell: they run only with the
defaults, and in `make soak` with all. `@pytest.mark.needs("list")` leaves out bindings that cannot
express this. 0.1 can express so little that tests must include it, with `@pytest.mark.first`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Caller, Request
from dragoman.model import clock
from dragoman.model.errors import Unauthenticated
from dragoman.testing import SilentBell
from tests.harness import agents
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Grpc, HttpJson, JsonRpc
from tests.harness.older_clients import Grpc03, Http03, JsonRpc01, JsonRpc03
from tests.harness.scale import SOAK
from tests.harness.server import serving
from tests.harness.stores import postgres
from tests.harness.trust import NOBODY


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
    config.addinivalue_line("markers", "storeless: is not about the store or the bell")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _apt(item)]
    for item in items:
        params = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
        if (params or {}).get("start", "bell") != "bell":
            item.add_marker("slow")


def _apt(item: pytest.Item) -> bool:
    """Whether the test's binding can say what the test is about."""
    params = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
    usual = (params or {}).get("start", "bell") == "bell"
    if not usual and not SOAK and item.get_closest_marker("storeless") is not None:
        return False
    kind = params and params.get("kind")
    if kind not in KINDS:
        return True
    if kind not in WITH_ALL and not usual:
        return False
    if kind is JsonRpc01 and item.get_closest_marker("first") is None:
        return False
    wanted = {feature for marker in item.iter_markers("needs") for feature in marker.args}
    return all(kind.can(feature) for feature in wanted)


@pytest.fixture(params=["bell", "deaf", "sqlite", "postgres"])
async def start(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an application: `await start(agent options…, settings…)`."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=20, verify=NOBODY))

        async def begin(
            required: bool = False,
            streaming: bool = True,
            extended: bool = False,
            agent: Agent | None = None,
            **settings: Any,
        ) -> RunningApp:
            made = agent or agents.make(required=required, streaming=streaming, extended=extended)
            settings = {"cancel_grace": 0.3, "drain_timeout": 0.2, "poll": 0.02, **settings}
            if request.param == "sqlite":
                settings = {"store": f"sqlite:///{tmp_path}/{clock.uuid7()}.db", **settings}
            if request.param == "postgres":
                settings = {"store": postgres(tmp_path, pool_size=3), **settings}
            if "kind" in request.fixturenames and issubclass(request.getfixturevalue("kind"), Grpc):
                settings = {"grpc_port": 0, **settings}
            bell = SilentBell() if request.param == "deaf" else None
            app = App(made, bell=bell, identify=identify, **settings)
            url = await stack.enter_async_context(serving(app))
            if hasattr(made, "gate"):
                stack.callback(made.gate.set)  # whoever still waits may go
            server = RunningApp(app, url, http)
            stack.push_async_callback(server.close)
            return server

        yield begin


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> type[Binding]:
    """Each binding in turn."""
    found: type[Binding] = request.param
    return found


@pytest.fixture
async def server(start: Start) -> RunningApp:
    """An application with the usual settings, and push switched on."""
    found: RunningApp = await start(push=True, egress_allow=["example.com"])
    return found


@pytest.fixture
def client(server: RunningApp, kind: type[Binding]) -> Binding:
    """A client of it."""
    return server.client(kind)


def user(text: str | None = None, **fields: Any) -> dict[str, Any]:
    """A user's message."""
    parts = fields.pop("parts", None) or [{"text": text}]
    return {"messageId": "m-1", "role": "ROLE_USER", "parts": parts, **fields}
