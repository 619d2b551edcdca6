"""What an agent of the OpenAI Agents SDK has besides messages: remote agents as tools."""

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

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs OpenAI Agents")
C, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """The remote agent."""
    folder = tmp_path / "remote"
    folder.mkdir()
    desk = Desk(Framework("", "remote_desk", "agent"), folder)
    desk.start()
    monkeypatch.setenv("REMOTE", desk.url)
    yield desk
    desk.stop()


@pytest.fixture
def serve(remote: Desk, tmp_path: Path) -> Iterator[Callable[[str], Desk]]:
    """Serves an object of `desks/openai_agents_kinds.py`."""
    desks = []

    def serve(served: str) -> Desk:
        desk = Desk(Framework("openai-agents", "openai_agents_kinds", served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"OpenAI Agents cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


def calls(*some: tuple[str, dict[str, Any]]) -> str:
    """A message that has the model call tools."""
    return json.dumps(some)


@pytest.mark.parametrize("served", ["agent", "replaced"])
async def test_a_remote_agent_asks_the_client(
    serve: Callable[[str], Desk], remote: Desk, served: str
) -> None:
    desk = serve(served)
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        text = calls(("book", {"city": "Rome"}), ("price", {"nights": 2}))
        asked = await client.send(text, context="c")
        assert (asked.state, asked.text) == (ASKS, "Window or aisle?")
        assert asked.task is not None
        desk.kill()
        desk.start()
        asked = await client.send("window", task=asked.task.id)
        assert (asked.state, asked.text) == (ASKS, "Which meal?")
        assert asked.task is not None
        desk.kill()
        desk.start()
        result = await client.send("vegan", task=asked.task.id)
        assert result.state is C
        assert sorted(json.loads(result.text)) == ["Rome, window, vegan", '{"total": 20}']
        assert result.task is not None
        history = [message.text for message in result.task.history]
        assert "Asking for 2 nights" in history
    assert sorted(remote.done) == ["book Rome", "meal vegan", "price 2", "seat window"]


async def test_a_crash_while_a_remote_agent_works(
    serve: Callable[[str], Desk], remote: Desk
) -> None:
    desk = serve("agent")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        begun = await client.send(calls(("wait", {"city": "Rome"})), wait=False)
        while not remote.done:
            await asyncio.sleep(0.02)
        desk.kill()
        desk.start()
        assert begun.task is not None
        task = await client.task(begun.task.id).wait()
        assert task.status.state is C
    assert remote.done == ["wait Rome", "done Rome"]
    assert desk.done.count("model") == 2


async def test_callers_and_tasks_share_no_calls(serve: Callable[[str], Desk], remote: Desk) -> None:
    """The ids of the model's calls are the same each time."""
    desk = serve("replaced")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        text = calls(("price", {"nights": 2}))
        for context in ("a", "a", "b"):
            result = await client.send(text, context=context)
            assert json.loads(result.text) == ['{"total": 20}']
    assert remote.done == ["price 2"] * 3


async def test_a_question_beside_an_approval(serve: Callable[[str], Desk], remote: Desk) -> None:
    desk = serve("agent")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        text = calls(
            ("book", {"city": "Rome"}),
            ("delete", {"path": "/tmp/x"}),
            ("ask_client", {"question": "Which color?"}),
        )
        result = await client.send(text)
        for _ in range(5):
            assert result.task is not None
            if result.grant is not None:
                result = await client.task(result.task.id).approve(result.grant)
            else:
                said = {"Window or aisle?": "aisle", "Which meal?": "none", "Which color?": "red"}
                result = await client.send([Part(text=said[result.text])], task=result.task.id)
            if result.state is C:
                break
        assert sorted(json.loads(result.text)) == ["Rome, aisle, none", "deleted /tmp/x", "red"]
    assert remote.done == ["book Rome", "seat aisle", "meal none"]
    assert desk.done.count("delete") == 1


async def test_a_remote_failure_reaches_the_model(
    serve: Callable[[str], Desk], remote: Desk
) -> None:
    desk = serve("agent")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send(calls(("refuse", {"city": "Rome"})))
        (said,) = json.loads(result.text)
        assert said.startswith("Error: refuse: the task is rejected")
        assert "We do not fly there." in said
