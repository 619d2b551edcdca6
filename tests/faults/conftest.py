"""The long forms alone with `make soak`, in the folders that have some."""

from __future__ import annotations

import pytest

from tests.harness.scale import SOAK

LONG = ("faults/cluster/", "faults/crash/", "faults/network/")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: has a long form")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not SOAK:
        return
    here = [item for item in items if any(folder in item.nodeid for folder in LONG)]
    short = [item for item in here if item.get_closest_marker("soak") is None]
    items[:] = [item for item in items if item not in short]
    config.hook.pytest_deselected(items=short)
