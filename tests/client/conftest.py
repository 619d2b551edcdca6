"""An authorization server, an agent behind it, and a person."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.client.authority import Authority, presiding
from tests.client.guarded import Guarded, guarded
from tests.client.person import Clock, Person


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
