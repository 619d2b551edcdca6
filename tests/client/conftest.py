"""An authorization server, an agent behind it, and a person; and no test waits for ever."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.client.authorization_server import Authority, presiding
from tests.client.fake_user import Clock, Person
from tests.client.protected_agent import Guarded, guarded

PATIENCE = 30.0


@pytest.fixture
async def authority() -> AsyncIterator[Authority]:
    """The authorization server."""
    async with presiding() as authority:
        yield authority


@pytest.fixture
async def agent(authority: Authority) -> AsyncIterator[Guarded]:
    """An agent that takes its tokens."""
    async with guarded(authority.identify) as agent:
        yield agent


@pytest.fixture
def clock(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of client and authority alike."""
    clock = Clock(authority)
    clock.rule(monkeypatch)
    return clock


@pytest.fixture
def person() -> Person:
    """Who says yes in the browser."""
    return Person()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Bound each test that awaits."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.obj = bounded(item.obj)


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The same test, which fails when it takes too long."""

    @functools.wraps(test)
    async def run(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(PATIENCE):
            await test(*args, **kwargs)

    return run
