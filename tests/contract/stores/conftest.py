"""Fixtures for the tests of all stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.stores.store import Store
from tests.harness.stores import BACKENDS, Make


@pytest.fixture(params=BACKENDS)
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    """What opens stores of one backend; they are closed after the test."""
    opened: list[Store] = []

    async def build(**options: Any) -> Store:
        store = BACKENDS[request.param](tmp_path, **options)
        await store.open()
        opened.append(store)
        return store

    yield build
    for store in opened:
        await store.close()


@pytest.fixture
async def store(make: Make) -> Store:
    """An open, empty store."""
    return await make()
