"""Graphs of LangGraph of several kinds: breakpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman import TaskState
from dragoman.client import Client, Result
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework

C, AUTH = TaskState.COMPLETED, TaskState.AUTH_REQUIRED
PATIENCE = 60.0


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Serves a graph."""
    desks = []

    def serve(served: str) -> Desk:
        desk = Desk(Framework("langgraph", "langgraph_kinds", served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"langgraph cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


async def approved(client: Client, asked: Result) -> Result:
    assert asked.task is not None
    assert asked.grant is not None
    return await client.task(asked.task.id).approve(asked.grant)


async def declined(client: Client, asked: Result) -> Result:
    assert asked.task is not None
    assert asked.grant is not None
    return await client.task(asked.task.id).decline(asked.grant)


@pytest.mark.parametrize("kind", ["before", "after", "nested", "inside"])
async def test_a_breakpoint_needs_an_approval(serve: Callable[..., Desk], kind: str) -> None:
    desk = serve(kind)
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        asked = await client.send("delete")
        assert asked.state is AUTH
        assert "tools" in asked.text or kind == "inside"
        assert "/tmp/x" in asked.text or kind == "inside", "the client sees what it approves"
        assert desk.done == ["model"]
        assert asked.task is not None
        asked = await client.send("yes", task=asked.task.id)
        assert asked.state is AUTH, "words approve nothing"
        desk.kill()
        desk.start()
        assert desk.done == ["model"]
        result = await approved(client, asked)
        while kind == "after" and result.state is AUTH:
            result = await approved(client, result)
        assert result.state is C
        assert desk.done == ["model", "delete", "model"]


@pytest.mark.parametrize("kind", ["before", "after", "nested", "inside"])
async def test_what_is_declined_does_not_run(serve: Callable[..., Desk], kind: str) -> None:
    desk = serve(kind)
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        for number in (1, 2):  # the conversation goes on
            result = await declined(client, await client.send("delete", context="c"))
            while kind == "after" and result.state is AUTH:
                result = await declined(client, result)
            assert result.state is C
            assert "eclined" in result.text
            assert "delete" not in desk.done
            assert desk.done.count("model") >= number


async def test_each_breakpoint_is_asked_about(serve: Callable[..., Desk]) -> None:
    desk = serve("everywhere")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        result = await client.send("delete")
        for done in ([], ["model"], ["model", "delete"]):
            assert result.state is AUTH
            assert desk.done == done
            result = await approved(client, result)
        assert result.state is C
        assert desk.done == ["model", "delete", "model"]
