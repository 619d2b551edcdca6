"""What is special about agents of Pydantic AI."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman import TaskState
from dragoman.client import Client
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework


async def test_long_results_of_tools_that_run_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    """The second call ends first; after a question, both come from the log."""
    desk = Desk(Framework("pydantic-ai", "pydantic_ai_kinds", "long"), tmp_path)
    try:
        desk.start()
    except Absent as absent:
        pytest.skip(f"pydantic-ai cannot be installed: {absent}")
    try:
        async with asyncio.timeout(60), Client.connect(desk.url) as client:
            asked = await client.send("go")
            assert asked.state is TaskState.INPUT_REQUIRED
            assert desk.done == ["model", "b", "a"]
            desk.kill()
            desk.start()
            assert asked.task is not None
            result = await client.send("well", task=asked.task.id)
            assert result.text.split() == ["aa250000", "bb250000"]
            assert desk.done == ["model", "b", "a", "model"]
    finally:
        desk.stop()
