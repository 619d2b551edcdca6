"""Fixtures for the tests of all stores.

A test with many further parameters runs with each of them in memory and in one of the stores that
keep tasks; `make soak` runs all of them with all stores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.stores.store import Store
from tests.harness.scale import SOAK
from tests.harness.stores import BACKENDS, Make

HERE = Path(__file__).parent
MANY = 3
"""So many further parameters are shared out between the stores."""
KEEPING = ("sqlite", "postgres")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SOAK:
        return
    tests: dict[str, dict[str, None]] = {}
    for item in items:
        if found := _further(item):
            tests.setdefault(_test(item), {})[found[1]] = None
    places = {
        name: {more: place for place, more in enumerate(found)}
        for name, found in tests.items()
        if len(found) >= MANY
    }
    items[:] = [item for item in items if _apt(item, places)]


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _further(item: pytest.Item) -> tuple[str, str] | None:
    """The store, and the further parameters; nothing for other tests."""
    params = getattr(getattr(item, "callspec", None), "params", None) or {}
    if not item.path.is_relative_to(HERE) or params.get("make") not in BACKENDS:
        return None
    kind = str(params["make"])
    return kind, getattr(item, "callspec").id.replace(kind, "", 1)  # noqa: B009


def _apt(item: pytest.Item, places: dict[str, dict[str, int]]) -> bool:
    """Whether these parameters run with this store: a third of them with PostgreSQL, the others
    with SQLite."""
    found = _further(item)
    place = found and places.get(_test(item), {}).get(found[1])
    if found is None or place is None or found[0] not in KEEPING:
        return True
    return found[0] == KEEPING[place % 3 == 0]


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
