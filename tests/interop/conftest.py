"""What the tests with the reference SDK share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from dragoman import App
from tests.interop.agents import household
from tests.interop.reference import BINDINGS, Speak, peer
from tests.serving import serving


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def house() -> AsyncIterator[str]:
    """The URL of a server with all agents of the household, started once. It hardly ever polls,
    so that a waiting client that nobody wakes is a failed test and not a slow one."""
    async with serving(
        App(*household(), push=True, egress_allow=["*.example"], drain=0.0, poll=60.0)
    ) as url:
        yield url


@pytest.fixture(params=BINDINGS)
def speak(request: pytest.FixtureRequest) -> Speak:
    """Opens a peer of the agent at a URL; a test that uses it runs over each binding."""
    return partial(peer, binding=request.param)


@pytest.fixture
def meet(house: str, speak: Speak) -> Speak:
    """Opens a peer of an agent of the household, by its name."""
    return lambda name, **options: speak(f"{house}/{name}", **options)
