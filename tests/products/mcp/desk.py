"""The MCP server of the tests, over HTTP and as a process, in every version of the protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dragoman import Agent, App
from dragoman.client import Client
from dragoman.mcp import StdioServer
from tests.harness.server import serving
from tests.products.mcp.servers import desk_server

HERE = Path(__file__).parent / "servers"
NEW, OLD, OLDER = "2026-07-28", "2025-11-25", "2025-06-18"
VERSIONS = (OLDER, OLD, NEW)


def command(version: str = NEW, script: str = "desk_server.py", **env: str) -> StdioServer:
    """The server as a process."""
    words = [sys.executable, str(HERE / script)]
    if version != NEW:
        words = [sys.executable, str(HERE / "older.py"), version, *words]
    return StdioServer(command=tuple(words), name="desk", env=env)


@asynccontextmanager
async def over_http(version: str = NEW) -> AsyncIterator[str]:
    """The URL of the server in this process."""
    app = desk_server.server.streamable_http_app()
    async with serving(app if version == NEW else older(app, version)) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def calling(agent: Agent, **options: Any) -> AsyncIterator[Client]:
    """A client of an agent in this process."""
    async with (
        App(agent, **{"store": "memory:", **options}) as app,
        Client.connect("http://agent.example", app=app) as client,
    ):
        yield client


def older(app: Any, version: str) -> Any:
    """The application as a server that only knows this version."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        message = json.loads(body)
        if message.get("method") == "server/discover":
            await _refuse(send, message["id"])
            return
        if message.get("method") == "initialize":
            message["params"]["protocolVersion"] = version
        headers = [(name, text) for name, text in scope["headers"] if name != b"content-length"]
        body = json.dumps(message).encode()
        scope = {**scope, "headers": [*headers, (b"content-length", b"%d" % len(body))]}
        events = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return events.pop() if events else await receive()

        await app(scope, replay, send)

    return serve


async def _refuse(send: Any, id: Any) -> None:
    error = {"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(error).encode()})
