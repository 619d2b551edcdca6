"""MCP servers that do harm over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman import App, TaskState
from dragoman.client import Client
from dragoman.mcp import HTTPServer, agent
from dragoman.mcp.client import server_process
from tests.harness.server import serving

Call = Callable[[Any, Any], Awaitable[None]]
TOOL = {"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}
JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream")]


@asynccontextmanager
async def hostile(call: Call) -> AsyncIterator[HTTPServer]:
    """A server whose tool calls are answered by this function."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        message = json.loads(body) if body else {}
        method, id = message.get("method"), message.get("id")
        if method == "tools/call":
            await call(message, send)
            return
        results: dict[Any, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            },
            "tools/list": {"tools": [TOOL]},
        }
        status, answer = 202 if id is None else 200, {"jsonrpc": "2.0", "id": id}
        if scope["method"] != "POST":
            status = 405
        elif method in results:
            answer["result"] = results[method]
        else:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        await send({"type": "http.response.start", "status": status, "headers": JSON})
        body = json.dumps(answer).encode() if status == 200 else b""
        await send({"type": "http.response.body", "body": body})

    async with serving(app, lifespan="off") as url:
        yield HTTPServer(url=f"{url}/mcp", name="hostile")


async def outcome(call: Call, *, ended: asyncio.Event | None = None, **options: Any) -> Any:
    async with (
        hostile(call) as server,
        App(agent(server, timeout=options.pop("timeout", 5)), store="memory:", **options) as app,
        Client.connect("http://agent.example", app=app) as client,
    ):
        async with asyncio.timeout(30):
            result = await client.send({}, skill="add")
        if ended is not None:
            ended.set()
        return result


async def test_a_body_without_end(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def endless(message: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": JSON})
        while not ended.is_set():
            await send({"type": "http.response.body", "body": b" " * 65536, "more_body": True})
            await asyncio.sleep(0)

    failed = await outcome(endless, ended=ended)
    assert failed.state is TaskState.FAILED
    assert "the response is longer than 16777216 bytes" in caplog.text


async def test_a_flood_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, ended = 0, asyncio.Event()

    class Counting(server_process.Pace):
        async def keep(self, count: int = 1) -> None:
            nonlocal lines
            lines += count
            await super().keep(count)

    async def flood(message: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        token = message["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": 1, "message": "x"}
        line = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        event = f"event: message\ndata: {json.dumps(line)}\n\n".encode()
        while not ended.is_set():
            await send({"type": "http.response.body", "body": event * 100, "more_body": True})
            await asyncio.sleep(0)

    monkeypatch.setattr("dragoman.mcp.client.server_over_http.Pace", Counting)
    failed = await outcome(flood, ended=ended, turn_timeout=2)
    assert failed.state is TaskState.FAILED
    assert 0 < lines < 30_000  # 4,000 in a second, and what one read brings


async def test_a_compressed_body_is_refused() -> None:
    async def compressed(message: Any, send: Any) -> None:
        headers = [*JSON, (b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": gzip.compress(b" " * (1 << 20))})

    assert (await outcome(compressed)).state is TaskState.FAILED


@pytest.mark.parametrize("status", [302, 401, 404, 500])
async def test_statuses_that_are_no_answer(status: int) -> None:
    async def refuse(message: Any, send: Any) -> None:
        headers = [(b"location", b"https://elsewhere.example/")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    failed = await outcome(refuse)
    assert failed.state is TaskState.FAILED
    assert failed.text
    assert "Traceback" not in failed.text


async def test_a_server_that_goes_away_in_a_call() -> None:
    async def cut(message: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
        raise RuntimeError("gone")

    failed = await outcome(cut, timeout=3)
    assert failed.state is TaskState.FAILED
