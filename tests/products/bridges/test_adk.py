"""What ADK has besides agents, and what is logged of an agent's work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman import Part, TaskArtifactUpdateEvent, TaskState
from dragoman.client import Client
from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs ADK")
C, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Serves an object of `desks/adk_kinds.py`, or of another module."""
    desks = []

    def serve(served: str, module: str = "adk_kinds") -> Desk:
        desk = Desk(Framework("adk", module, served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"ADK cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


async def test_a_workflow_asks(serve: Callable[..., Desk]) -> None:
    desk = serve("trip")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("hello")
        assert (asked.state, asked.text) == (ASKS, "Which city?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("Rome", task=asked.task.id)
        assert result.state is C
        assert result.task is not None
        data = [part.data for artifact in result.task.artifacts for part in artifact.parts]
    assert data == [{"trip": "Rome"}]


async def test_a_sequence_goes_on_where_it_asked(serve: Callable[..., Desk]) -> None:
    desk = serve("relay")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("hello")
        assert (asked.state, asked.text) == (ASKS, "Which?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("red", task=asked.task.id)
        assert result.state is C
        assert result.task is not None
        texts = {artifact.name: artifact.text.strip() for artifact in result.task.artifacts}
    assert texts == {"one": "first red", "two": "second"}
    assert desk.done == ["model"] * 3


async def test_what_a_tool_did_is_done_again_without_it(serve: Callable[..., Desk]) -> None:
    desk = serve("photographer")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("hello")
        assert (asked.state, asked.text) == (ASKS, "Keep it?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("yes", task=asked.task.id)
        assert result.state is C
        # the picture itself is too large for one entry of the log
        assert result.text.strip() == "700000 bytes, 2 bytes, 1 taken"
        assert result.task is not None
        (file,) = (artifact for artifact in result.task.artifacts if artifact.name == "small.png")
        assert [part.raw for part in file.parts] == [b"\xff\x00"]
    assert desk.done.count("camera") == 1
    assert desk.done.count("model") == 4


async def test_a_callback_changes_what_is_streamed(serve: Callable[..., Desk]) -> None:
    desk = serve("loud")
    chunks = []
    async with (
        asyncio.timeout(60),
        Client.connect(desk.url) as client,
        client.stream("hello") as stream,
    ):
        async for event in stream:
            if isinstance(event, TaskArtifactUpdateEvent):
                chunks.append(event.text)
    assert chunks == ["SECRET ", "WORDS "]


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Desk]]:
    """Serves the remote agent of a module, and tells its address to those that call it."""
    desks = []

    def serve(module: str) -> Desk:
        folder = tmp_path / "remote"
        folder.mkdir()
        desk = Desk(Framework("", module, "agent"), folder)
        desks.append(desk)
        desk.start()
        monkeypatch.setenv("REMOTE", desk.url)
        return desk

    yield serve
    for desk in desks:
        desk.stop()


@pytest.mark.parametrize("served", ["traveler", "watched", "office", "trip"])
async def test_a_tool_that_is_a_remote_agent_asks(
    serve: Callable[..., Desk], remote: Callable[[str], Desk], served: str
) -> None:
    called = remote("remote_desk")
    desk = serve(served, "adk_remote")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send("Rome")
        for question, answer in (("Window or aisle?", "window"), ("Which meal?", "vegan")):
            assert (result.state, result.text) == (ASKS, question)
            desk.kill()
            desk.start()
            assert result.task is not None
            result = await client.send(answer, task=result.task.id)
        assert result.state is C
        assert result.task is not None
        parts = [part for artifact in result.task.artifacts for part in artifact.parts]
    assert "Rome, window, vegan" in (parts[0].text or parts[0].data["result"])
    assert [each for each in called.done if "book" not in each] == ["seat window", "meal vegan"]


@pytest.mark.parametrize("served", ["traveler", "watched", "trip"])
async def test_a_tool_that_is_a_remote_agent_gets_a_file(
    serve: Callable[..., Desk], remote: Callable[[str], Desk], served: str
) -> None:
    called = remote("remote_desk")
    desk = serve(served, "adk_remote")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("Rome")
        assert asked.task is not None
        plan = Part(raw=b"x" * 77, media_type="image/png", filename="plan.png")
        await client.send([Part(text="window"), plan], task=asked.task.id)
    assert called.done[-1] == "seat window, 77 bytes"


async def test_two_remote_tasks_ask_at_the_same_time(
    serve: Callable[..., Desk], remote: Callable[[str], Desk]
) -> None:
    remote("remote_desk")
    desk = serve("couple", "adk_remote")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send("hello")
        questions = []
        while result.state is ASKS and result.task is not None:
            questions.append(result.text)
            desk.kill()
            desk.start()
            result = await client.send(f"said {len(questions)}", task=result.task.id)
        assert result.state is C
        rome, oslo = result.text.split("; ")
    assert sorted(questions) == ["Which meal?"] * 2 + ["Window or aisle?"] * 2
    said = [*rome.split(", ")[1:], *oslo.split(", ")[1:]]
    assert sorted(said) == ["said 1", "said 2", "said 3", "said 4"]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_remote_agent_asks_for_an_approval(
    serve: Callable[..., Desk], remote: Callable[[str], Desk], approved: bool
) -> None:
    called = remote("remote_desk")
    desk = serve("payer", "adk_remote")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send("go")
        assert result.task is not None
        for said in ("yes", {"result": True}):
            assert result.state is TaskState.AUTH_REQUIRED
            result = await client.send(said, task=result.task.id)
        assert called.done == []
        assert result.text == "May I pay?"
        assert result.grant is not None
        handle = client.task(result.task.id)
        result = await (handle.approve if approved else handle.decline)(result.grant)
        assert result.state is C
        assert ("Rome is paid" if approved else "nothing is paid") in result.text
    assert called.done == (["pay Rome"] if approved else [])


@pytest.mark.parametrize("served", ["team", "talker"])
async def test_a_sub_agent_that_is_remote_asks(
    serve: Callable[..., Desk], remote: Callable[[str], Desk], served: str
) -> None:
    called = remote("talking_desk")
    desk = serve(served, "adk_team")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("hello")
        assert (asked.state, asked.text) == (ASKS, "To whom?")
        desk.kill()
        desk.start()
        assert asked.task is not None
        chunks = []
        async with client.stream("Ann", task=asked.task.id) as stream:
            async for event in stream:
                if isinstance(event, TaskArtifactUpdateEvent) and event.text:
                    chunks.append(event.text)
        assert stream.result.state is C
        assert [part.raw for part in stream.result.files] == [b"pixels"]
    assert chunks == ["Good ", "day, ", "Ann"]
    assert "talk Ann" not in called.done


async def test_a_remote_sub_agent_refuses(
    serve: Callable[..., Desk], remote: Callable[[str], Desk]
) -> None:
    remote("talking_desk")
    desk = serve("talker", "adk_team")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send("refuse")
    assert result.state is TaskState.FAILED
    assert "I do not talk about that." in desk.log


@pytest.mark.parametrize(("served", "name"), [("app", "an_app"), ("runner", "Runner")])
async def test_an_app_and_a_runner(serve: Callable[..., Desk], served: str, name: str) -> None:
    desk = serve(served)
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert client.card.name == name
        for _ in range(2):
            result = await client.send("hello", context="c")
            assert (result.state, result.text.strip()) == (C, "quiet words")
