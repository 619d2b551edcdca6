"""Fixtures for the tests of payments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.stores.store import Store
from tests.harness.stores import BACKENDS
from tests.products.payments.loopback_facilitator import (
    KEY,
    LoopbackFacilitator,
    loopback_facilitator,
)


@pytest.fixture(autouse=True)
def wallet_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALLET_KEY", KEY)


@pytest.fixture
async def facilitator() -> AsyncIterator[LoopbackFacilitator]:
    async with loopback_facilitator() as found:
        yield found


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An open, empty store of each kind."""
    found = BACKENDS[request.param](tmp_path)
    await found.open()
    yield found
    await found.close()
