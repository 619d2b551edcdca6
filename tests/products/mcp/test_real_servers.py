"""MCP servers of the registries, each in an environment of its own, served as agents and called by
the client of the reference SDK."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from msgspec.structs import replace

from dragoman import App
from dragoman.mcp import HTTPServer, StdioServer, agent
from tests.harness.server import serving
from tests.interop.peers import FULL, environments
from tests.interop.reference import Peer, asking, gather, peer, send, state, states
from tests.products.mcp.desk import HERE

pytestmark = pytest.mark.skipif(not FULL, reason="make interop calls them")


@asynccontextmanager
async def called(server: StdioServer | HTTPServer, **options: Any) -> AsyncIterator[Peer]:
    """The reference SDK's client of an agent of this server."""
    app = App(agent(server, **options), store="memory:")
    async with serving(app) as url, peer(url, binding="JSONRPC") as found:
        yield found


def python(name: str, *words: str) -> StdioServer:
    """A server from PyPI."""
    try:
        interpreter = environments.python(name)
    except environments.Absent as why:
        pytest.skip(str(why))
    return StdioServer(command=(str(interpreter), *words), name=name)


def everything() -> StdioServer:
    """The reference server from npm."""
    try:
        folder = environments.node("mcp-server-everything")
    except environments.Absent as why:
        pytest.skip(str(why))
    script = folder / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    return StdioServer(command=("node", str(script), "stdio"), name="everything")


def data(value: Any) -> Any:
    from a2a.types import a2a_pb2 as pb

    return pb.Part(data=ParseDict(value, Value()))


def contents(task: Any) -> list[Any]:
    """The texts and data of the artifacts."""
    return [
        part.text if part.HasField("text") else MessageToDict(part).get("data")
        for artifact in task.artifacts
        for part in artifact.parts
    ]


def skill(name: str) -> dict[str, str]:
    return {"skill": name}


async def test_time() -> None:
    async with called(python("mcp-server-time", "-m", "mcp_server_time")) as found:
        assert {each.id for each in found.card.skills} >= {"get_current_time", "convert_time"}
        arguments = {
            "source_timezone": "Europe/Rome",
            "time": "12:00",
            "target_timezone": "Asia/Tokyo",
        }
        task = await send(found.plain, data(arguments), metadata=skill("convert_time"))
        assert state(task) == "completed"
        assert "Asia/Tokyo" in str(contents(task))
        wrong = await send(
            found.plain, data({"timezone": "Nowhere"}), metadata=skill("get_current_time")
        )
        assert state(wrong) == "failed"
        assert "Nowhere" in wrong.status.message.parts[0].text
        asked = await send(found.plain, "What time is it?")
        assert state(asked) == "input_required"
        assert "get_current_time" in asked.status.message.parts[0].text


async def test_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "file.txt").write_text("hello\n")
    server = python("mcp-server-git", "-m", "mcp_server_git", "--repository", str(tmp_path))
    async with called(server) as found:
        here = {"repo_path": str(tmp_path)}
        task = await send(found.plain, data(here), metadata=skill("git_status"))
        assert state(task) == "completed"
        assert "file.txt" in str(contents(task))
        add = {**here, "files": ["file.txt"]}
        assert state(await send(found.plain, data(add), metadata=skill("git_add"))) == "completed"
        away = {"repo_path": "/"}
        assert state(await send(found.plain, data(away), metadata=skill("git_status"))) == "failed"


async def test_everything() -> None:
    async with called(everything()) as found:
        names = {each.id for each in found.card.skills}
        assert "echo" in names
        task = await send(found.plain, data({"message": "hello"}), metadata=skill("echo"))
        assert "hello" in str(contents(task))
        (total,) = [name for name in names if name in ("add", "get-sum")]
        task = await send(found.plain, data({"a": 1, "b": 2}), metadata=skill(total))
        assert "3" in str(contents(task))
        (image,) = [name for name in names if "tiny" in name.lower()]
        task = await send(found.plain, data({}), metadata=skill(image))
        assert any(part.media_type == "image/png" for part in task.artifacts[0].parts)
        (long,) = [name for name in names if "long" in name.lower()]
        request = asking(data({"duration": 1, "steps": 3}), metadata=skill(long))
        events = await gather(found.live.send_message(request))
        assert states(events)[-1] == "completed"
        assert states(events).count("working") >= 2
        asks = "trigger-elicitation-request"
        task = await send(found.plain, data({}), metadata=skill(asks))
        assert state(task) == "input_required"
        assert "name (text): Your full, legal name" in task.status.message.parts[0].text
        task = await send(found.plain, "decline", task=task.id)
        assert state(task) == "completed"
        assert "declined" in str(contents(task))
        url = {"url": "https://login.example/"}
        task = await send(found.plain, data(url), metadata=skill("trigger-url-elicitation"))
        assert state(task) == "auth_required"
        assert "https://login.example/" in task.status.message.parts[0].text
        task = await send(found.plain, "done", task=task.id)
        assert state(task) == "completed"


@pytest.fixture(params=["stdio", "http"])
async def fastmcp(request: pytest.FixtureRequest) -> AsyncIterator[StdioServer | HTTPServer]:
    script = str(HERE / "fastmcp_server.py")
    server = python("fastmcp", script)
    if request.param == "stdio":
        yield server
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *server.command, str(port), env=server.environment()
    )
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.1)
                else:
                    writer.close()
                    break
        yield HTTPServer(url=f"http://127.0.0.1:{port}/mcp", name="fastmcp")
    finally:
        process.kill()
        await process.wait()


async def test_fastmcp(fastmcp: StdioServer | HTTPServer) -> None:
    async with called(fastmcp) as found:
        request = asking(data({"steps": 3}), metadata=skill("count"))
        events = await gather(found.live.send_message(request))
        assert states(events)[-1] == "completed"
        said = [
            event.status_update.status.message.parts[0].text
            for event in events
            if event.HasField("status_update") and event.status_update.status.message.parts
        ]
        assert said[-1] == "step 3"
        asked = await send(found.plain, data({"day": "Monday"}), metadata=skill("reserve"))
        assert state(asked) == "input_required"
        told = await send(found.plain, data({"seats": 2}), task=asked.id)
        assert "2 seats on Monday" in str(contents(told))
        # this one runs only as a task of the server (SEP-2663)
        asked = await send(found.plain, data({"day": "Monday"}), metadata=skill("deliver"))
        assert state(asked) == "input_required"
        told = await send(found.plain, data({"seats": 2}), task=asked.id)
        assert state(told) == "completed"
        assert "2 seats on Monday" in str(contents(told))
    async with called(replace(fastmcp, older=True)) as found:
        asked = await send(found.plain, data({"day": "Monday"}), metadata=skill("book"))
        assert state(asked) == "input_required"
        question, schema = asked.status.message.parts
        assert question.text.startswith("How many seats?")
        assert "seats" in MessageToDict(schema)["data"]["properties"]
        told = await send(found.plain, data({"seats": 2}), task=asked.id)
        assert state(told) == "completed"
        assert "2 seats on Monday" in str(contents(told))
