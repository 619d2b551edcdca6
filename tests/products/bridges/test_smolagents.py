"""Agents of smolagents that write code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import TaskState
from dragoman.client import Client
from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs smolagents")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """The agent of `desks/smolagents_kinds.py`."""
    desk = Desk(Framework("smolagents", "smolagents_kinds", "agent"), tmp_path)
    try:
        desk.start()
    except Absent as absent:
        pytest.skip(f"smolagents cannot be installed: {absent}")
    yield desk
    desk.stop()


async def test_code_asks(desk: Desk) -> None:
    lines = "x = work('a') + user_input('Who?')\nfinal_answer({'said': x})"
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send(lines)
        assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Who?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send(" by Ada", task=asked.task.id)
        assert result.task is not None
        data = [part.data for artifact in result.task.artifacts for part in artifact.parts]
        assert data == [{"said": "a is done by Ada"}]
        assert desk.done == ["model", "a", "model"]


async def test_callers_at_the_same_time_share_no_variables(desk: Desk) -> None:
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        found = await asyncio.gather(
            *(client.send(f"x = work('{n}')\nfinal_answer(x)") for n in range(8))
        )
        assert [result.text for result in found] == [f"{n} is done" for n in range(8)]
