"""What Strands has besides messages: the state of an agent, agents as tools, sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Part, TaskState
from dragoman.client import Client
from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs Strands")
C, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Desk]]:
    """Serves an object of `desks/strands_kinds.py`."""
    desks = []

    def serve(served: str) -> Desk:
        desk = Desk(Framework("strands", "strands_kinds", served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"Strands cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


def calls(*some: tuple[str, dict[str, Any]]) -> str:
    """A message that has the model call tools."""
    return json.dumps(some)


@pytest.mark.parametrize("served", ["agent", "own"])
async def test_callers_at_the_same_time_share_nothing(
    serve: Callable[[str], Desk], served: str
) -> None:
    desk = serve(served)
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        both = [calls(("mark", {"value": f"v{n}"}), ("other", {"input": "hi"})) for n in range(4)]
        found = await asyncio.gather(
            *(client.send(text, context=f"c{n}") for n, text in enumerate(both))
        )
        assert all("hi[] in message 1" in result.text for result in found)
        found = await asyncio.gather(
            *(client.send(calls(("marked", {})), context=f"c{n}") for n in range(4))
        )
        for number, result in enumerate(found):
            assert f"mark is v{number}" in result.text


@pytest.mark.parametrize("served", ["agent", "own"])
async def test_a_crash_in_the_middle_of_two_tools(
    serve: Callable[[str], Desk], served: str
) -> None:
    desk = serve(served)
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        text = calls(("mark", {"value": "v"}), ("hang", {}))
        result = await client.send(text, context="c", wait=False)
        while {"hang", "mark v"} - {*desk.done}:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)  # what the first tool has returned is logged
        desk.kill()
        desk.start()
        assert result.task is not None
        task = await client.task(result.task.id).wait()
        assert task.status.state is C
        assert desk.done.count("mark v") == 1
        assert desk.done.count("model") == 2
        assert "mark is v" in (await client.send(calls(("marked", {})), context="c")).text


async def test_an_agent_that_is_a_tool_asks(serve: Callable[[str], Desk]) -> None:
    desk = serve("agent")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        inner = calls(("delete", {"path": "/tmp/y"}))
        asked = await client.send(calls(("other", {"input": inner})))
        assert asked.state is TaskState.AUTH_REQUIRED
        assert asked.task is not None
        assert asked.grant is not None
        assert asked.grant.operation == {"tool": "delete", "arguments": {"path": "/tmp/y"}}
        result = await client.task(asked.task.id).approve(asked.grant)
        assert "deleted /tmp/y" in result.text


async def test_an_agent_that_is_a_tool_remembers(serve: Callable[[str], Desk]) -> None:
    desk = serve("agent")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert (
            "in message 1" in (await client.send(calls(("memo", {"input": "a"})), context="c")).text
        )
        question = calls(("ask", {"question": "Who?"}))
        asked = await client.send(calls(("memo", {"input": question})), context="c")
        assert (asked.state, asked.text) == (ASKS, "Who?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("Ada", task=asked.task.id)
        assert "Ada" in result.text
        assert "in message 5" in result.text


async def test_a_question_that_nobody_answers(serve: Callable[[str], Desk]) -> None:
    desk = serve("own")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send(calls(("ask", {"question": "Who?"})), context="c")
        assert asked.task is not None
        await client.task(asked.task.id).cancel()
        assert (await client.send("hello", context="c")).text.startswith("hello")


async def test_a_question_after_a_large_file(serve: Callable[[str], Desk]) -> None:
    desk = serve("agent")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        file = Part(raw=b"x" * 400_000, media_type="image/png")
        text = Part(text=calls(("ask", {"question": "Who?"})))
        asked = await client.send([text, file], context="c")
        assert asked.state is ASKS
        assert asked.task is not None
        assert "Ada" in (await client.send("Ada", task=asked.task.id)).text
