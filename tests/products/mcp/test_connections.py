"""The connections to an MCP server: how many there are, for whom, and when they end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Caller, Request, TaskState
from dragoman.client import Client
from dragoman.mcp import StdioServer, agent
from tests.products.mcp.desk import NEW, OLD, calling, command, over_http


def light(tmp_path: Path, kind: str = "plain") -> StdioServer:
    """A server that starts quickly; it writes down its processes."""
    server = command(script="hostile_server.py")
    env = {"STARTS": str(tmp_path / "starts")}
    return StdioServer(command=(*server.command, kind), name="light", env=env)


def started(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "starts").read_text().split()]


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def callers(made: Agent, *names: str) -> AsyncIterator[list[Client]]:
    """Clients of an agent, each of another caller; an empty name is anonymous."""

    async def identify(request: Request) -> Caller:
        return Caller(identity=request.headers.get("x-name", ""))

    async with App(made, store="memory:", identify=identify) as app:
        clients = [
            Client.connect("http://agent.example", app=app, headers={"x-name": name})
            for name in names
        ]
        for client in clients:
            await client.open()
        try:
            yield clients
        finally:
            for client in clients:
                await client.close()


async def call(client: Client) -> Any:
    result = await client.send({}, skill="add")
    assert result.state is TaskState.COMPLETED, result
    return result


async def test_all_callers_share_a_process(tmp_path: Path) -> None:
    async with callers(agent(light(tmp_path)), "ann", "bob", "") as clients:
        for client in clients:
            await call(client)
        (process,) = started(tmp_path)
        assert running(process)
    assert not running(process)


async def test_each_caller_has_a_process_and_the_longest_idle_ends_first(tmp_path: Path) -> None:
    made = agent(light(tmp_path), per_caller=True, connections=2)
    async with callers(made, "", "ann", "", "bob", "ann") as clients:
        anonymous, ann, other, bob, _ = clients
        await call(anonymous)
        await call(other)  # shares it
        await call(ann)
        first, second = started(tmp_path)
        await call(anonymous)
        await call(bob)  # ann's was idle for longest
        _, _, third = started(tmp_path)
        assert running(first)
        assert not running(second)
        assert running(third)
    assert not running(first)
    assert not running(third)


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_calls_at_the_same_time(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2026-07-28 each has a connection; there are no more than allowed."""
    async with over_http(version) as url:
        made = agent(url, connections=2)
        async with calling(made) as client:
            asked = [await client.send({"day": f"{n}"}, skill="book") for n in range(2)]
            (pool,) = made._pools.values()  # type: ignore[attr-defined]
            assert len(pool) == (2 if version == OLD else 1)
            told = await client.task(asked[0].task.id).reply({"seats": 1})  # type: ignore[union-attr]
            assert told.text == "1 seats on 0"
            assert (await client.call_skill("add", a=1, b=2)) == {"total": 3}
            told = await client.task(asked[1].task.id).reply({"seats": 2})  # type: ignore[union-attr]
            assert told.text == "2 seats on 1"


async def test_a_call_waits_for_a_free_connection() -> None:
    async with (
        over_http(OLD) as url,
        calling(agent(url, connections=1, connect_timeout=1)) as client,
    ):
        asked = await client.send({"day": "A"}, skill="book")
        full = await client.send({"a": 1, "b": 2}, skill="add")
        assert full.state is TaskState.FAILED
        assert "are in use" in full.text
        waiting = asyncio.create_task(client.send({"a": 1, "b": 2}, skill="add"))
        await client.task(asked.task.id).reply({"seats": 1})
        assert (await waiting).state is TaskState.COMPLETED


async def test_a_caller_with_one_process_can_call_while_a_question_is_open() -> None:
    async with (
        over_http(OLD) as url,
        calling(agent(url, per_caller=True, connections=1)) as client,
    ):
        asked = await client.send({"day": "A"}, skill="book")
        assert await client.call_skill("add", a=1, b=2) == {"total": 3}
        other = await client.send({"day": "B"}, skill="book")
        told = await client.task(other.task.id).reply({"seats": 2})
        assert told.text == "2 seats on B"
        told = await client.task(asked.task.id).reply({"seats": 1})
        assert told.text == "1 seats on A"


async def test_a_question_is_held_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with over_http(OLD) as url:
        made = agent(url)
        made._settings.held._seconds = 0.2  # type: ignore[attr-defined]
        async with calling(made) as client:
            asked = {
                skill: await client.send({"day": "A"}, skill=skill) for skill in ("book", "reserve")
            }
            await asyncio.sleep(0.5)
            told = {
                skill: await client.task(each.task.id).reply({"seats": 2})
                for skill, each in asked.items()
            }
            assert told["book"].state is TaskState.FAILED
            assert "not marked as idempotent or read-only" in told["book"].text
            assert told["reserve"].text == "2 seats on A"


async def test_a_tool_that_may_be_repeated_is_called_again_when_its_server_ends(
    tmp_path: Path,
) -> None:
    notes = str(tmp_path / "notes")
    async with calling(agent(command(NOTES=notes))) as client:
        assert (await client.send({}, skill="die_once")).text.endswith("alive")
        failed = await client.send({}, skill="die")
        assert "it is not known whether the tool has done its work" in failed.text
    assert (tmp_path / "notes").read_text().splitlines() == ["died", "dying"]


async def test_a_cancel_ends_the_call_that_waits_for_an_answer() -> None:
    async with (
        over_http(OLD) as url,
        calling(agent(url, connections=1, connect_timeout=2)) as client,
    ):
        asked = await client.send({"day": "A"}, skill="book")
        await client.task(asked.task.id).cancel()
        assert await client.call_skill("add", a=1, b=2) == {"total": 3}
