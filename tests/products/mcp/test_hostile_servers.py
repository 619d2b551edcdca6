"""MCP servers that do harm: what they do stays theirs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman import App, TaskState
from dragoman.client import Client
from dragoman.mcp import StdioServer, agent
from dragoman.mcp.client.server_process import Pace
from tests.products.mcp.desk import calling, command, over_http


def hostile(kind: str, **env: str) -> StdioServer:
    server = command(script="hostile_server.py", **env)
    return StdioServer(command=(*server.command, kind), name="hostile", env=env)


async def call(client: Client, skill: str = "add", **arguments: Any) -> Any:
    async with asyncio.timeout(20):
        return await client.send(arguments, skill=skill)


async def test_a_megabyte_of_description_that_gives_orders() -> None:
    async with calling(agent(hostile("megabyte"))) as client:
        (skill,) = client.card.skills
    assert len(skill.description) < 1300
    assert len(skill.name) <= 100
    # what the server says is between delimiters that it cannot forge, and nothing is invisible
    first, *_, last = skill.description.splitlines()
    assert first.startswith("\u27e6untrusted ")
    assert first.endswith("the MCP server hostile\u27e7")
    assert last == f"\u27e6end {first.split()[1]}\u27e7"
    assert skill.description.count("\u27e7") == 2
    assert "\u200b" not in skill.description
    assert "\U000e0041" not in skill.description


async def test_orders_inside_of_a_schema() -> None:
    async with calling(agent(hostile("orders"))) as client:
        field = client.skills["add"].input["properties"]["x"]  # type: ignore[index]
    assert len(field["description"]) <= 300
    assert field["enum"] == ["b"]  # what would mean something else when it is clean
    assert "\u200b" not in str(field)


async def test_too_many_tools_and_names_that_cannot_be_ids() -> None:
    async with calling(agent(hostile("many"))) as client:
        ids = list(client.skills)
    assert len(ids) == 256
    assert all(id.isascii() and " " not in id for id in ids)


async def test_schemas_that_are_too_large_are_left_out() -> None:
    async with calling(agent(hostile("large"))) as client:
        assert not {"wide", "deep"} & set(client.skills)
        assert "add" in client.skills
        assert (await call(client)).text == "3"


@pytest.mark.parametrize("kind", ["changing", "schema"])
async def test_a_tool_that_changes_after_approval_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.mcp.client.connection.FRESH", 0.0)
    async with calling(agent(hostile(kind))) as client:
        before = client.card.skills
        refused = await call(client)
        assert refused.state is TaskState.FAILED
        assert "has changed since it was approved" in refused.text
        assert ("input" if kind == "schema" else "description") in refused.text
    assert "files" not in str(before)


async def test_a_flood_of_progress_is_limited_and_ends() -> None:
    """The tool floods for as long as it is let; other tools are called meanwhile."""
    async with over_http() as url:
        both = agent(hostile("flood"), url)
        async with App(both, store="memory:", turn_timeout=1.5) as app, connected(app) as client:
            (well,) = [id for id in client.skills if id.endswith(".add") and "127" in id]
            flooding = asyncio.create_task(call(client, "hostile.add"))
            while not flooding.done():
                assert (await call(client, well, a=1, b=2)).parts[0].data == {"total": 3}
                await asyncio.sleep(0.1)
            task = (await flooding).task
            assert task.status.state is TaskState.FAILED
            assert len([each for each in task.history if each.text.startswith("x")]) < 40


def connected(app: App) -> Client:
    return Client.connect("http://agent.example", app=app)


async def test_a_line_without_end() -> None:
    async with calling(agent(hostile("line"))) as client:
        failed = await call(client)
        assert "ended during the call" in failed.text


async def test_lines_that_are_no_messages_are_passed_over() -> None:
    async with calling(agent(hostile("garbage"))) as client:
        assert (await call(client)).text == "3"


async def test_a_flood_of_questions_is_limited() -> None:
    async with calling(agent(hostile("asks"), timeout=1)) as client:
        asked = await call(client)
        assert asked.state is TaskState.INPUT_REQUIRED
        assert asked.text.startswith("question 0")
        async with asyncio.timeout(10):
            canceled = await client.task(asked.task.id).cancel()
        assert canceled.status.state is TaskState.CANCELED


async def test_a_question_must_not_lead_to_a_private_address() -> None:
    async with calling(agent(hostile("phish"))) as client:
        failed = await call(client)
        assert failed.state is TaskState.FAILED
        assert "10.0.0.1" not in failed.text
        assert "refused" in failed.text


async def test_a_server_that_stops_is_replaced(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr("dragoman.mcp.client.call_step.CHECK", 0.2)
        patched.setattr("dragoman.mcp.client.server_process.PATIENCE", 0.2)
        async with calling(agent(hostile("stop", STARTS=str(starts)), timeout=0.3)) as client:
            for _ in range(2):
                failed = await call(client)
                assert failed.text == "The tool add gave no sign for 0.3 seconds"
    assert len(set(starts.read_text().split())) == 2


async def test_a_server_that_dies_is_started_again_after_growing_pauses(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with calling(agent(hostile("die", STARTS=str(starts)))) as client:
        pauses = []
        for _ in range(3):
            began = time.monotonic()
            failed = await call(client)
            assert "it is not known whether the tool has done its work" in failed.text
            pauses.append(time.monotonic() - began)
    assert len(set(starts.read_text().split())) == 3
    assert pauses[1] >= 0.4
    assert pauses[2] >= 0.9


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("base64", "cannot be read: the content has wrong base64"),
        ("wrong", "is not what MCP says"),
        ("error", "No seats."),
    ],
)
async def test_wrong_results(kind: str, why: str) -> None:
    async with calling(agent(hostile(kind))) as client:
        failed = await call(client)
        assert failed.state is TaskState.FAILED
        assert why in failed.text
        assert len(failed.text) <= 2000


async def test_a_pattern_that_takes_for_ever_is_not_matched() -> None:
    async with calling(agent(hostile("pattern"))) as client:
        assert (await call(client)).state is TaskState.COMPLETED


async def test_a_server_that_does_not_start() -> None:
    from dragoman import AgentError

    with pytest.raises(AgentError, match="The MCP server hostile is not available"):
        async with calling(agent(hostile("exit"))):
            raise AssertionError("it has started")


async def test_what_comes_too_fast_waits() -> None:
    pace = Pace(10)
    for _ in range(10):
        async with asyncio.timeout(0.1):
            await pace.keep()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await pace.keep()
