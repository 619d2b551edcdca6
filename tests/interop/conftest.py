"""What the tests with foreign clients and servers share."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from dragoman import App
from dragoman.client import Client
from dragoman.security import Anonymous
from tests.harness.server import serving
from tests.interop import peers
from tests.interop.agents import all_agents
from tests.interop.peers import Absent, Peer, environments
from tests.interop.reference import BINDINGS, HTTP, Speak, peer


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server_url() -> AsyncIterator[str]:
    """The URL of a server with all agents, started once. It hardly ever polls,
    so that a waiting client that nobody wakes is a failed test and not a slow one."""
    settings: dict[str, Any] = {"push": True, "egress_allow": ["*.example"]}
    settings |= {"grpc_port": 0, "bindings": BINDINGS}
    anybody = Anonymous(tenants=["*"])
    async with serving(
        App(*all_agents(), auth=anybody, drain_timeout=0.0, poll=60.0, **settings)
    ) as url:
        yield url


@pytest.fixture(params=HTTP)
def speak(request: pytest.FixtureRequest) -> Speak:
    """Opens a peer of the agent at a URL; a test that uses it runs over each binding of HTTP."""
    return partial(peer, binding=request.param)


@pytest.fixture(params=BINDINGS)
def meet(server_url: str, request: pytest.FixtureRequest) -> Speak:
    """Opens a peer of an agent, by its name; over each binding."""
    return lambda name, **options: peer(f"{server_url}/{name}", binding=request.param, **options)


# ---- foreign servers -------------------------------------------------------------------------


@pytest.fixture(scope="session")
def desks(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a foreign server, which is started when it is first asked for. A test that
    asks for one which cannot be had here is skipped, and says why."""
    known: dict[str, str | Absent] = {}
    with ExitStack() as stack:

        def url(name: str) -> str:
            if name not in known:
                if not environments.ready(name):
                    tell(request, f"installing {name} into .peers; this is done once\n")
                try:
                    known[name] = stack.enter_context(peers.serving(name))
                except Absent as why:
                    known[name] = why
            found = known[name]
            if isinstance(found, Absent):
                pytest.skip(f"{name}: {found}")
            return found

        yield url


@pytest.fixture
async def client(peer: Peer, desks: Callable[[str], str]) -> AsyncIterator[Client]:
    """Our client of the peer that a test runs with, over its binding."""
    async with Client.connect(
        desks(peer.name), bindings=[peer.binding], deadline=peers.PATIENCE
    ) as client:
        yield client


def tell(request: pytest.FixtureRequest, text: str) -> None:
    """Say something to whoever runs the tests, now."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        sys.stderr.write(text)
        sys.stderr.flush()
