"""Remote agents as tools: whose credentials are used, who sees which task, cards that change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import mcp.types as types
import pytest
from mcp import MCPError

from dragoman import App, Caller, Request
from dragoman.client import Client
from dragoman.mcp import McpApp
from dragoman.mcp.server import application
from dragoman.security import ApiKey
from tests.harness.server import served, serving
from tests.products.mcp import served_agents as desk
from tests.products.mcp.changing_agents import Replaced, agent_with
from tests.products.mcp.clients import NEW, OLD, VERSIONS, User, client, task_of, text

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = {"message": "Hello"}
KEYS = ApiKey(header="X-Key", keys={"ann": "anns-key", "bob": "bobs-key"})
ANN, BOB = {"X-Key": "anns-key"}, {"X-Key": "bobs-key"}
TOKEN = "the token of the bridge"
seen: list[dict[str, str]] = []
"""The headers of the requests to the agent."""


def note(request: Request) -> Caller:
    """Remember the headers of a request."""
    seen.append(dict(request.headers))
    return Caller(identity="bridge")


@asynccontextmanager
async def bridge(*urls: str, **options: Any) -> AsyncIterator[str]:
    """The URL of an MCP server for the agents at these URLs."""

    def connect(url: str) -> Client:
        return Client.connect(url, headers={"authorization": f"Bearer {TOKEN}"}, attempts=1)

    options.setdefault("auth", KEYS)
    patience = options.pop("patience", 20.0)
    app = App(mounts={"/mcp": McpApp(urls=urls, connect=connect, patience=patience)}, **options)
    async with served(app) as server:
        yield f"{server.url}/mcp"


@pytest.fixture(scope="module")
async def agent() -> AsyncIterator[str]:
    """The URL of an agent."""
    async with served(App(desk.desk, identify=note)) as server:
        yield server.url


@pytest.fixture(scope="module")
async def url(agent: str) -> AsyncIterator[str]:
    """The URL of a bridge to it."""
    async with bridge(agent) as found:
        yield found


@pytest.mark.parametrize("version", VERSIONS)
async def test_skills_of_remote_agents_are_tools(url: str, version: str) -> None:
    user = User({"answer": "On Monday"}, {"approve": True})
    async with client(url, version, user, headers=ANN) as found:
        names = {tool.name for tool in (await found.list_tools()).tools}
        chat = await found.call_tool("chat", HELLO)
        pay = await found.call_tool("pay", HELLO)
        files = await found.call_tool("files", HELLO)
        read = await found.read_resource(files.content[2].resource.uri)
    assert {*desk.desk.skills} <= names
    assert (text(chat), text(pay)) == ("Booked On Monday", "Paid")
    assert read.contents[0].blob == "JVBERg=="


async def test_callers_are_not_passed_on(url: str) -> None:
    seen.clear()
    async with client(url, headers=ANN) as found:
        await found.call_tool("echo", HELLO)
    sent = [headers for headers in seen if "authorization" in headers]
    assert {headers["authorization"] for headers in sent} == {f"Bearer {TOKEN}"}
    assert not any("x-key" in headers for headers in seen)


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_nobody_sees_the_tasks_of_others(url: str, version: str) -> None:
    async with client(url, version, headers=ANN) as found:
        asked = await found.call_tool("chat", HELLO)
        id = task_of(asked)
        artifact = (await found.call_tool("files", HELLO)).content[2].resource.uri
    async with client(url, version, headers=BOB) as found:
        for call in ("get_task", "cancel_task"):
            assert "there is no task" in text(await found.call_tool(call, {"task_id": id}))
        with pytest.raises(MCPError, match="no resource"):
            await found.read_resource(artifact)
        assert (await found.list_resources()).resources == []
    async with client(url, version, headers=ANN) as found:
        answered = await found.call_tool("answer_task", {"task_id": id, "message": "On Friday"})
    assert text(answered) == "Booked On Friday"


async def test_the_same_key_of_two_callers_is_two_calls(url: str) -> None:
    tasks = []
    for headers in (ANN, ANN, BOB):
        async with client(url, headers=headers | {"Idempotency-Key": "1"}) as found:
            tasks.append((await found.call_tool("echo", HELLO)).meta["dragoman/task"]["id"])
    names = [id.split(".")[1] for id in tasks]  # the ids at the agent
    assert names[0] == names[1] != names[2]


async def test_a_returned_question_is_for_its_caller_and_its_call(url: str) -> None:
    async with client(url, user=User(), headers=ANN) as found:
        asked = await found.session.call_tool("chat", HELLO, allow_input_required=True)
        assert isinstance(asked, types.InputRequiredResult)
        state = asked.request_state
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await found.session.call_tool("pay", HELLO, request_state=state)
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await found.session.call_tool("chat", HELLO, request_state=f"{state}x")
    async with client(url, user=User(), headers=BOB) as found:
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await found.session.call_tool("chat", HELLO, request_state=state)


async def test_a_session_belongs_to_its_caller(url: str) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": OLD,
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    accept = {"accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(trust_env=False) as http:
        refused = await http.post(url, json=hello, headers=accept)
        opened = await http.post(url, json=hello, headers=accept | ANN)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        stolen = await http.post(url, json=ping, headers=accept | BOB | session)
        own = await http.post(url, json=ping, headers=accept | ANN | session)
    assert (refused.status_code, stolen.status_code, own.status_code) == (401, 404, 200)


async def test_a_request_that_is_sent_twice_in_a_session_runs_once(url: str) -> None:
    accept = {"accept": "application/json, text/event-stream"} | ANN
    call = {"name": "echo", "arguments": HELLO}
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call}
    async with client(url, OLD, headers=ANN), httpx.AsyncClient(trust_env=False) as http:
        found = []
        for session in (await _opened(http, url), await _opened(http, url)):
            for _ in range(2):
                answer = await http.post(url, json=body, headers=accept | session, timeout=20)
                line = next(x for x in answer.text.splitlines() if x.startswith("data: {"))
                found.append(json.loads(line[6:])["result"]["_meta"]["dragoman/task"]["id"])
    assert found[0] == found[1] != found[2] == found[3]


async def _opened(http: httpx.AsyncClient, url: str) -> dict[str, str]:
    params = {
        "protocolVersion": OLD,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    headers = {"accept": "application/json, text/event-stream"} | ANN
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    opened = await http.post(url, json=body, headers=headers)
    session = {"mcp-session-id": opened.headers["mcp-session-id"]}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await http.post(url, json=ready, headers=headers | session)
    return session


# ---- cards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_changed_card_is_announced(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "LOOK", 0.05)
    told = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.set()

    replaced = Replaced()
    async with App(agent_with("before")) as first, App(agent_with("after")) as second:
        replaced.app = first
        async with (
            serving(replaced, lifespan="off") as agent,
            bridge(agent, auth=None) as url,
            client(url, version, message_handler=hear) as found,
        ):
            names = [tool.name for tool in (await found.list_tools()).tools]
            assert names[0] == "before"
            if version == NEW:
                async with found.listen(tools_list_changed=True) as changes:
                    replaced.app = second
                    async with asyncio.timeout(10):
                        await anext(aiter(changes))
            else:
                replaced.app = second
                async with asyncio.timeout(10):
                    await told.wait()
            names = [tool.name for tool in (await found.list_tools()).tools]
            assert names[0] == "after"
            assert text(await found.call_tool("after", {"message": "x"})) == "after"


async def test_agents_that_cannot_be_reached(agent: str) -> None:
    nowhere = "http://127.0.0.1:9"
    async with bridge(agent, nowhere, auth=None) as url, client(url) as found:
        names = {tool.name for tool in (await found.list_tools()).tools}
        assert "echo" in names
    async with bridge(nowhere, auth=None) as url, client(url) as found:
        with pytest.raises(MCPError, match=r"no agent can be reached: http://127\.0\.0\.1:9"):
            await found.list_tools()


async def test_an_agent_that_does_not_stream(agent: str) -> None:
    async def without_streaming(scope: Any, receive: Any, send: Any) -> None:
        """Change the card on its way."""
        card = scope["path"].endswith("agent-card.json")
        body = b""

        async def change(message: Any) -> None:
            nonlocal body
            if not card or message["type"] != "http.response.body":
                if not card:
                    await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                document = json.loads(body)
                document["capabilities"] = {"streaming": False}
                headers = [(b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": json.dumps(document).encode()})

        await app(scope, receive, change)

    async with (
        App(desk.desk) as app,
        serving(without_streaming, lifespan="off") as silent,
        bridge(silent, auth=None, patience=1.0) as url,
        client(url, OLD, User({"answer": "On Monday"})) as found,
    ):
        assert text(await found.call_tool("echo", HELLO)) == "Hello"
        assert text(await found.call_tool("chat", HELLO)) == "Booked On Monday"
        waiting = await found.call_tool("wait", HELLO)
        call = {"task_id": task_of(waiting)}
        assert "canceled" in text(await found.call_tool("cancel_task", call))
