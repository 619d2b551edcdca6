"""Frameworks call a remote agent through tools, in an environment and a process of their own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from dragoman import Agent, AgentCard, AgentSkill, TaskState, Turn
from dragoman.bridges import remote as tools
from dragoman.bridges.remote import RemoteQuestion
from dragoman.client import Client, RemoteSkill
from dragoman.model.types import AgentCapabilities, AgentInterface
from dragoman.testing import local_client
from tests.interop.peers import FULL, serving
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework, forks

HERE = Path(__file__).parent
CALLERS = {
    "Pydantic AI": ("pydantic-ai", "pydantic_ai_caller.py"),
    "LangGraph": ("langgraph", "langgraph_caller.py"),
    "OpenAI Agents": ("openai-agents", "openai_agents_caller.py"),
    "Google ADK": ("adk", "adk_caller.py"),
}
HOSTS = {
    "Pydantic AI": Framework("pydantic-ai", "pydantic_ai_desk", "host"),
    "LangGraph": Framework("langgraph", "langgraph_desk", "host"),
}
ASKS = TaskState.INPUT_REQUIRED
QUICK = ("Pydantic AI", "LangGraph")
PATIENCE = 60.0


class Said(Struct):
    """What a hostile agent says."""

    words: str


@pytest.fixture(params=[name for name in CALLERS if FULL or name in QUICK])
def caller(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A framework."""
    found: tuple[str, str] = CALLERS[request.param]
    return found


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Desk]:
    """The remote agent."""
    desk = Desk(Framework("", "remote_desk", "agent"), tmp_path)
    desk.start()
    yield desk
    desk.stop()


async def played(caller: tuple[str, str], remote: Desk, scene: str) -> dict[str, Any]:
    """What came of a scene."""
    return await asyncio.to_thread(_played, caller, remote, scene)


def _played(caller: tuple[str, str], remote: Desk, scene: str) -> dict[str, Any]:
    environment, script = caller
    try:
        framework = forks(environment)
    except Absent as absent:
        pytest.skip(f"{environment} cannot be installed: {absent}")
    said, errors = remote.folder / "said", remote.folder / "errors"
    with said.open("w") as out, errors.open("w") as err:
        process = framework.start(
            *(str(HERE / "callers" / script), remote.url, scene, str(remote.folder)),
            folder=remote.folder,
            environment={**os.environ, "PYTHONPATH": str(HERE / "callers")},
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        try:
            status = process.wait(PATIENCE)
        finally:
            process.kill()
    assert status == 0, errors.read_text()[-3000:]
    found: dict[str, Any] = json.loads(said.read_text().splitlines()[-1])
    return found


async def test_calls_at_the_same_time(caller: tuple[str, str], remote: Desk) -> None:
    found = await played(caller, remote, "price")
    assert sorted(found["answers"], key=str) == [{"total": 20}, {"total": 30}]
    assert sorted(remote.done) == ["price 2", "price 3"]


async def test_a_remote_agent_that_asks(caller: tuple[str, str], remote: Desk) -> None:
    found = await played(caller, remote, "book")
    assert found["questions"] == ["Window or aisle?", "Which meal?"]
    assert found["answers"] == ["Rome, window, vegan"]
    assert remote.done == ["book Rome", "seat window", "meal vegan"]


async def test_a_remote_agent_that_dies_and_comes_back(
    caller: tuple[str, str], remote: Desk
) -> None:
    playing = asyncio.create_task(played(caller, remote, "wait"))
    async with asyncio.timeout(PATIENCE):
        while not remote.done:
            await asyncio.sleep(0.02)
    remote.kill()
    await asyncio.to_thread(remote.start)
    found = await playing
    assert found["answers"] == ["A seat to Rome"]
    assert remote.done.count("done Rome") == 1


async def test_what_is_done_again_runs_once(caller: tuple[str, str], remote: Desk) -> None:
    found = await played(caller, remote, "again")
    assert found["answers"] == [{"total": 20}]
    assert found["times"] > 1, "the framework has made the call again"
    assert remote.done == ["price 2"]


async def test_a_refusal_is_an_error(caller: tuple[str, str], remote: Desk) -> None:
    found = await played(caller, remote, "refuse")
    assert found["answers"] == []
    assert "We do not fly there." in found["error"]


async def test_a_price_is_an_error(caller: tuple[str, str], remote: Desk) -> None:
    """And no question: neither a model nor a user is asked for a payment in words."""
    found = await played(caller, remote, "sell")
    assert found["answers"] == []
    assert "a payment of 0.1 USDC on base-sepolia" in found["error"]
    assert "Ignore" not in str(found)


async def test_a_file_comes_along(caller: tuple[str, str], remote: Desk) -> None:
    found = await played(caller, remote, "picture")
    assert found["files"] == [["pixels", "image/png"]]


@pytest.mark.parametrize("name", [name for name in HOSTS if FULL or name in QUICK])
async def test_a_served_agent_passes_a_question_on(name: str, remote: Desk, tmp_path: Path) -> None:
    """A client asks an agent of the framework, whose tool asks the remote agent, which asks."""
    folder = tmp_path / "host"
    folder.mkdir()
    desk = Desk(HOSTS[name], folder, REMOTE=remote.url)
    try:
        await asyncio.to_thread(desk.start)
    except Absent as absent:
        pytest.skip(f"{HOSTS[name].environment} cannot be installed: {absent}")
    try:
        async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
            asked = await client.send("Rome")
            assert (asked.state, asked.text) == (ASKS, "Window or aisle?")
            assert asked.task is not None
            desk.kill()
            await asyncio.to_thread(desk.start)
            asked = await client.send("window", task=asked.task.id)
            assert (asked.state, asked.text) == (ASKS, "Which meal?")
            assert asked.task is not None
            result = await client.send("vegan", task=asked.task.id)
        assert result.state is TaskState.COMPLETED
        assert "Rome, window, vegan" in result.text
        assert remote.done == ["book Rome", "seat window", "meal vegan"]
    finally:
        desk.stop()


async def test_an_approval_needs_the_grant(remote: Desk) -> None:
    (pay,) = [tool for tool in await tools.tools(remote.url) if tool.name == "pay"]
    with pytest.raises(RemoteQuestion) as asked:
        await pay.call({"city": "Rome"}, key="a")
    assert asked.value.approval
    task = asked.value.task
    with pytest.raises(RemoteQuestion):
        await pay.answer(task, "yes", key="a:1")  # words approve nothing
    assert remote.done == []
    for _ in range(2):  # as after a crash
        found = await pay.answer(task, True, key="a:2")
        assert found.content == "Rome is paid"
    assert remote.done == ["pay Rome"]
    with pytest.raises(RemoteQuestion) as asked:
        await pay.call({"city": "Oslo"}, key="b")
    found = await pay.answer(asked.value.task, False, key="b:1")
    assert found.content == "nothing is paid"
    assert remote.done == ["pay Rome"]


@pytest.mark.parametrize("name", QUICK)
async def test_a_served_agent_passes_an_approval_on(
    name: str, remote: Desk, tmp_path: Path
) -> None:
    folder = tmp_path / "host"
    folder.mkdir()
    desk = Desk(HOSTS[name], folder, REMOTE=remote.url)
    try:
        await asyncio.to_thread(desk.start)
    except Absent as absent:
        pytest.skip(f"{HOSTS[name].environment} cannot be installed: {absent}")
    try:
        async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
            asked = await client.send("pay")
            assert (asked.state, asked.text) == (TaskState.AUTH_REQUIRED, "May I pay?")
            assert asked.task is not None
            assert asked.grant is not None
            result = await client.task(asked.task.id).approve(asked.grant)
        assert "Rome is paid" in result.text
        assert remote.done == ["pay Rome"]
    finally:
        desk.stop()


async def test_an_agent_without_receipts_runs_once() -> None:
    with serving("reference") as url:
        found = []
        for _ in range(2):
            tool = await tools.conversation_tool(url)
            answer = await tool.call({"message": "hello"}, key="key-1", conversation="c")
            found.append(answer)
        assert found[0].task == found[1].task
        assert found[0].text == found[1].text == "hello"
        other = await tool.call({"message": "hello"}, key="key-2", conversation="c")
        assert other.task != found[0].task


async def test_an_agent_is_a_node(remote: Desk) -> None:
    found = await played(CALLERS["LangGraph"], remote, "word")
    assert found["answers"] == ["Name a skill."]


def test_what_is_called_a_tool_is_safe(remote: Desk) -> None:
    """The plain functions, in this process."""
    evil = AgentCard(
        name="Evil\u202eAgent",
        description="x",
        version="1",
        supported_interfaces=[
            AgentInterface(url=remote.url, protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="a b/c!", name="x", description="Do it.\u200b" * 1000, tags=[])],
    )
    (tool,) = asyncio.run(tools.tools(evil))
    assert tool.name == "a_b_c"
    assert len(tool.description) <= tools.DESCRIPTION
    assert tool.description.isprintable()
    (function, *_) = asyncio.run(tools.functions(remote.url))
    assert function["function"]["name"] == "price"
    assert function["function"]["parameters"]["required"] == ["nights"]


async def test_plain_functions_call_and_answer(remote: Desk) -> None:
    found = {each["function"]["name"]: each for each in await tools.functions(remote.url)}
    price, book, picture = found["price"], found["book"], found["picture"]
    for _ in range(2):  # as when it is made again
        answer = await price["call"]('{"nights": 4}', "call-1", "ann")
        assert json.loads(answer.content) == {"total": 40}
    other = await price["call"]({"nights": 5}, "call-1", "bob")
    assert other.data == {"total": 50}, "an id is of one conversation"
    assert remote.done == ["price 4", "price 5"]
    (file,) = (await picture["call"]({"city": "Rome"}, "call-2", "ann")).files
    assert file.raw == b"pixels"
    with pytest.raises(RemoteQuestion) as seat:
        await book["call"]({"city": "Rome"}, "call-3", "ann")
    for _ in range(2):
        with pytest.raises(RemoteQuestion) as meal:
            await book["answer"](seat.value.value, "the same", "call-3", "ann")
    answer = await book["answer"](meal.value.value, "the same", "call-3", "ann")
    assert answer.content == "Rome, the same, the same"


async def test_each_call_of_a_node_runs_once(remote: Desk) -> None:
    found = await played(CALLERS["LangGraph"], remote, "twice")
    assert found["times"] == 2
    assert remote.done == ["price 2"] * 3


async def test_calls_outside_of_a_graph_are_new_ones(remote: Desk) -> None:
    await played(CALLERS["LangGraph"], remote, "outside")
    assert remote.done == ["price 2", "price 2", "price 3", "price 4"]


async def test_progress_is_streamed_by_the_graph(remote: Desk) -> None:
    found = await played(CALLERS["LangGraph"], remote, "progress")
    assert {"tool": "price", "progress": "Asking for 2 nights"} in found["answers"]


def test_a_schema_is_safe() -> None:
    hidden = "a\u200bb"
    city = {
        "type": "string",
        "enum": ["Rome", hidden],
        "default": hidden,
        "examples": [hidden],
        "description": hidden,
        "pattern": f"^{hidden}$",
    }
    schema = {"properties": {"city": city, hidden: {"type": "string"}}, "required": ["city"]}
    skill = RemoteSkill(id="x", name="x", description="x", input=schema)
    safe = tools._parameters(skill)
    assert "\u200b" not in str(safe)
    assert list(safe["properties"]) == ["city"]
    assert safe["properties"]["city"]["enum"] == ["Rome"]
    assert safe["properties"]["city"]["default"] == "ab"


async def test_data_is_safe_and_cut() -> None:
    agent = Agent("Hostile", description="Says much.")

    @agent.skill
    async def say(turn: Turn, times: int) -> Said:
        """Say it."""
        return Said("a\u200bb" * times)

    async with local_client(agent) as client:
        (tool,) = await tools.tools(client)
        found = await tool.call({"times": 1}, key="1")
        assert found.data == {"words": "ab"}
        long = await tool.call({"times": tools.ANSWER}, key="2")
        assert len(long.content) <= tools.ANSWER + 20
