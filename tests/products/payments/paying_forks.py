"""Forks the processes that pay; see `tests.harness.forks`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import ModuleType

from tests.harness.forks import ROOT, Forked, Forks

_FORKS = Forks(
    (
        "tests.products.payments.killed.dying_buyer",
        "tests.products.payments.paying_process",
        "dragoman.stores.postgres",
    )
)


async def forked(module: ModuleType, *arguments: str, stdout: Path) -> Forked:
    """Run a module of the tests as a program that writes into a file."""
    assert module.__file__ is not None
    with stdout.open("wb") as file:
        return await asyncio.to_thread(
            _FORKS.start,
            *(module.__file__, *arguments),
            folder=ROOT,
            environment=os.environ,
            stdout=file.fileno(),
        )
