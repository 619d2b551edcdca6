"""Fixtures for the tests of payments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dragoman.payments.signing import check_installed
from dragoman.stores.store import Store
from tests.harness.stores import BACKENDS

if TYPE_CHECKING:
    from tests.products.payments.loopback_facilitator import LoopbackFacilitator

check_installed()  # before the tests load eth-account: it keeps the recursion limit of the process


@pytest.fixture(autouse=True)
def wallet_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.products.payments.loopback_facilitator import KEY

    monkeypatch.setenv("WALLET_KEY", KEY)


@pytest.fixture
async def facilitator() -> AsyncIterator[LoopbackFacilitator]:
    from tests.products.payments.loopback_facilitator import loopback_facilitator

    async with loopback_facilitator() as found:
        yield found


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An open, empty store of each kind."""
    found = BACKENDS[request.param](tmp_path)
    await found.open()
    yield found
    await found.close()
