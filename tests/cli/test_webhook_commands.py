"""`dragoman push` and `dragoman listen`, one sending to the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.client import Client
from dragoman.webhooks import signature
from tests.cli.test_agent_commands import run
from tests.harness.server import serving
from tests.harness.webhooks import talker

KEY = signature.secret().text


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """An agent that pushes, and signs what it pushes."""
    settings: dict[str, Any] = {"push": True, "egress_allow": ["127.0.0.1"], "push_keys": [KEY]}
    async with serving(App(talker(), poll=0.05, drain_timeout=0.0, **settings)) as url:
        yield url


@contextlib.asynccontextmanager
async def listening(*arguments: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The command at work, and where it listens."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", "listen", "--port", "0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    first = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
    found = re.search(r"http://\S+/", first)
    assert found is not None, first
    try:
        yield found[0], process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def output(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """All that it wrote, once it has ended by itself."""
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0, err
    return out.decode(), err.decode()


async def test_webhooks_of_a_task(url: str) -> None:
    async with Client.connect(url) as agent:
        asked = await agent.send("ask")
    assert asked.task is not None
    hook = ["http://127.0.0.1:1/x", "--token", "t", "--authorization", "Bearer secret", "--id", "h"]
    status, out, err = await run("push", "add", url, asked.task.id, *hook)
    assert (status, out) == (0, "h  http://127.0.0.1:1/x  token, Bearer\n"), err
    _, out, _ = await run("push", "list", url, asked.task.id)
    assert "authentication" in out
    assert "secret" not in out
    _, out, _ = await run("push", "get", url, asked.task.id, "h", "--json")
    assert json.loads(out)["url"] == "http://127.0.0.1:1/x"
    status, _, _ = await run("push", "delete", url, asked.task.id, "h")
    assert status == 0
    assert (await run("push", "list", url, asked.task.id))[1] == "no webhooks\n"
    status, _, err = await run("push", "get", url, asked.task.id, "h")
    assert (status, "not found" in err) == (1, True)


async def test_what_arrives_is_verified_and_shown(url: str) -> None:
    async with (
        listening("--token", "sesame", "--key", KEY, "--count", "3") as (hook, process),
        Client.connect(url) as agent,
        httpx.AsyncClient() as http,
    ):
        body = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": 3}}}
        headers = {"x-a2a-notification-token": "guess"}
        assert (await http.post(hook, json=body, headers=headers)).status_code == 401
        assert (await http.get(hook)).status_code == 405
        asked = await agent.send("ask")
        assert asked.task is not None
        await agent.task(asked.task.id).add_webhook(hook, token="sesame")
        await agent.task(asked.task.id).reply("one")
        out, err = await output(process)
    assert out == "one\nThat is it\n"
    assert f"verified task {asked.task.id}" in err
    assert "[working] Well" in err
    assert f"[completed] task {asked.task.id}" in err
    assert "refused (401)" in err
    assert "refused (405)" in err


async def test_what_arrives_as_json(url: str) -> None:
    async with listening("--any", "--json", "--count", "1") as (hook, process):
        async with Client.connect(url) as agent:
            await agent.send("one", webhook=config(hook))
        out, _ = await output(process)
    assert "statusUpdate" in json.loads(out.splitlines()[0])


async def begun(hook: str, body: bytes) -> bytes:
    """The status line that a post gets of which only the beginning is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(hook).port)
    try:
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 99000000\r\n\r\n" + body)
        return await reader.readline()
    finally:
        writer.transport.abort()


async def test_a_stranger_is_refused_before_its_body() -> None:
    async with listening("--token", "sesame") as (hook, _), asyncio.timeout(10):
        assert b" 401 " in await begun(hook, b"{")


async def test_a_body_that_is_too_large() -> None:
    async with listening("--any") as (hook, _), httpx.AsyncClient() as http, asyncio.timeout(10):
        assert b" 413 " in await begun(hook, b" " * (17 * 1024 * 1024))
        body = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": 3}}}
        assert (await http.post(hook, json=body)).status_code == 200


def config(url: str) -> Any:
    """A webhook that rides in a send."""
    from dragoman.model.types import TaskPushNotificationConfig

    return TaskPushNotificationConfig(url=url)


async def test_keys_that_are_none() -> None:
    status, _, err = await run("listen", "--key", "nonsense")
    assert (status, "--key" in err, "Traceback" in err) == (2, True, False)
