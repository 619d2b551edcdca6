"""Frameworks call a remote agent through tools, in an environment and a process of their own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import AgentCard, AgentSkill, TaskState
from dragoman.bridges import remote as tools
from dragoman.bridges.remote import RemoteQuestion
from dragoman.client import Client
from dragoman.model.types import AgentCapabilities, AgentInterface
from tests.interop.peers import FULL, environments, serving
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import ROOT, Desk, Framework

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
    environment, script = caller
    try:
        python = await asyncio.to_thread(environments.python, environment)
    except Absent as absent:
        pytest.skip(f"{environment} cannot be installed: {absent}")
    sources = os.pathsep.join(map(str, (ROOT / "src", HERE / "callers")))
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-W", "ignore", str(HERE / "callers" / script)),
        *(remote.url, scene, str(remote.folder)),
        env={**os.environ, "PYTHONPATH": sources},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            said, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()[-3000:]
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
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
    assert json.loads(asyncio.run(function["call"]('{"nights": 4}', "call-1"))) == {"total": 40}
