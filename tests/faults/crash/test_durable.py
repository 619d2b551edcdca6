"""kill -9 of a server with a durable handler, at every point that touches the log."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.faults.crash.checker import names
from tests.faults.crash.durable_history import (
    History,
    check,
    kills,
    points,
)
from tests.harness.scale import SCALE, SOAK, say, seeded
from tests.harness.services import Postgres

CHAIN = (
    *("after accept", "after chunk:one", "after effect:quote", "after step:quote"),
    *("before step:dragoman.context_saved", "after step:dragoman.context_saved"),
    *("before save_context", "after save_context", "after step:dragoman.save_context"),
    *("after chunk:four", "after effect:pay", "after uncertain:pay", "after asked"),
    *("after answered", "after effect:bed", "before sleep", "after sleep", "after wake"),
    *("after effect:left", "after step:left", "after chunk:six", "before status:completed:"),
)
"""In the order of the handler, so that one task lives through all of them."""
SOME = (
    *("after chunk:one", "after effect:quote", "after step:dragoman.context_saved"),
    *("after save_context", "after chunk:four", "after effect:pay"),
    *("after asked", "after sleep", "after step:left", "before status:completed:"),
)
FEW = ("after effect:quote", "after save_context", "before step:pay", "after step:left")
"""For PostgreSQL, where the lease of a dead worker has to run out."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database, or empty for a file."""
    if request.param == "sqlite":
        return ""
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.create()


@pytest.mark.soak
async def test_killed_at_one_point_after_the_other(tmp_path: Path, url: str) -> None:
    chain = CHAIN if SOAK else FEW if url else SOME
    async with History(tmp_path, url) as history:
        for point in chain:
            assert await history.life(point) is None, f"no life ended {point}"
        task = await history.life()
    assert not check(tmp_path, task)
    assert len(kills(tmp_path)) == len(chain)


BREACHES = [
    ("steps", ("before begun:pay", "before begun:pay"), "step-twice"),
    ("rewriting", ("after chunk:four", ""), "text"),
    ("saver_keys", ("after save_context", ""), "failed"),
    ("reading", ("after save_context", ""), "failed"),
    ("intentions", ("after effect:pay", ""), "once-twice"),
    ("skipping_said", ("after step:pay", ""), "said"),
    ("due_times", ("before step:bed", ""), "sleep"),
]


@pytest.mark.soak
async def test_a_broken_promise_is_found(tmp_path: Path) -> None:
    for switch, deaths, expected in BREACHES if SOAK else BREACHES[:3]:
        folder = tmp_path / switch
        folder.mkdir()
        async with History(folder, broken=switch) as history:
            for death in deaths:
                task = await history.life(death)
        assert expected in names(check(folder, task)), (switch, check(folder, task))


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="takes minutes")
async def test_killed_once_at_every_point(tmp_path: Path, url: str, postgres: Postgres) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    async with History(whole, url) as history:
        await history.life()
    number = len(points(whole))
    assert number > 40
    for point in range(1, number + 1):
        await _lives(tmp_path / str(point), _new(url, postgres), [str(point)])


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="takes minutes")
async def test_killed_at_random_points(tmp_path: Path, url: str, postgres: Postgres) -> None:
    chance = seeded("durable")
    total = 0
    for number in range(max(1, int(40 * SCALE))):
        points = _random_points(chance)
        total += await _lives(tmp_path / str(number), _new(url, postgres), points)
    say(f"{total} kills")
    assert total


def _random_points(chance: random.Random) -> list[str]:
    """At most so many lives that none can be the fifth without another step."""
    return [str(chance.randint(1, 25)) for _ in range(chance.randint(1, 4))]


def _new(url: str, postgres: Postgres) -> str:
    return postgres.create() if url else ""


async def _lives(folder: Path, url: str, points: list[str]) -> int:
    """Live through these deaths, as far as they come; how many did."""
    folder.mkdir()
    task = None
    async with History(folder, url) as history:
        for point in [*points, ""]:
            task = await history.life(point)
            if task is not None:
                break
    found = check(folder, task)
    assert not found, (points, kills(folder), found)
    await asyncio.to_thread(_empty, folder)
    return len(kills(folder))


def _empty(folder: Path) -> None:
    for file in folder.glob("tasks.db*"):
        file.unlink()
