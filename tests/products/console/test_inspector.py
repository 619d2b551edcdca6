"""The inspector of other agents, and the console of a store without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.admin import open_store
from dragoman.cli.console_command import ConsoleServer
from dragoman.client import Client, HTTPTransport, read_card
from dragoman.console import Console, RemoteAgent, StoredTasks
from tests.harness.server import serving
from tests.harness.stores import database
from tests.products.console.parts import ACT, TOKENS, booking, consoled, stored


@asynccontextmanager
async def inspecting(console: Console, tokens: list[str]) -> AsyncIterator[httpx.AsyncClient]:
    app = App(mounts={"/": ConsoleServer()})
    app.answer_first(console, close=console.close)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
        assert console.token is not None
        console.token.print()
        assert (await http.get(f"/console/?token={tokens[-1]}")).status_code == 303
        yield http


def inspector(url: str, tokens: list[str], target: Any = "") -> Console:
    """The inspector of an agent at a URL, whose card may be another one."""

    def connect(transport: Any, *, auth: Any, headers: Any, extensions: Any) -> Client:
        more = {"auth": auth, "headers": headers, "extensions": extensions, "insecure": True}
        return Client.connect(target or url, transport=transport, attempts=1, **more)

    return Console(tell=tokens.append, source=RemoteAgent(url, HTTPTransport, connect))


async def called(http: httpx.AsyncClient, method: str, params: Any) -> list[Any]:
    """The results of a call of the chat."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await http.post("/console/agents/agent/", json=body, headers=ACT)
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] == "text/event-stream":
        lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line[6:]) for line in lines]
    return [answer.json()]


async def recorded(http: httpx.AsyncClient) -> list[Any]:
    """What the view of the wire shows."""
    found = (await http.get("/console/api/wire")).json()["exchanges"]
    return [(await http.get(f"/console/api/wire/{each['number']}")).json() for each in found]


def said(text: str) -> dict[str, Any]:
    return {"message": {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}}


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.1"])
async def test_the_inspector_calls_agents_of_each_version(version: str) -> None:
    tokens: list[str] = []
    async with serving(App(booking())) as url, AsyncExitStack() as stack:
        async with httpx.AsyncClient() as plain:
            document = (await plain.get(f"{url}/.well-known/agent-card.json")).content
        form = read_card(document).supported_interfaces[0].replace(protocol_version=version)
        card = read_card(document).replace(supported_interfaces=(form,))
        http = await stack.enter_async_context(inspecting(inspector(url, tokens, card), tokens))
        assert (await http.get("/console/api/session")).json()["title"] == "Booking"
        (shown,) = (await http.get("/console/api/agents")).json()["agents"]
        assert shown["name"] == "Booking"
        events = await called(http, "SendStreamingMessage", said("Rome"))
        assert "Booked: Rome" in json.dumps(events)
        (task,) = {
            update.get("taskId", update.get("id"))
            for each in events
            for update in each["result"].values()
        }
        (got,) = await called(http, "GetTask", {"id": task})
        assert got["result"]["status"]["state"] == "TASK_STATE_COMPLETED"
        wire = await recorded(http)
        assert any("Booked: Rome" in each.get("answer", "") for each in wire)
        word = {"1.0": "SendStreamingMessage", "0.3": "message/stream", "0.1": "tasks/send"}
        assert any(word[version] in each.get("body", "") for each in wire)
        assert (await http.get("/console/api/tasks")).status_code == 404


FORMS = {
    "JSONRPC 1.0": '"method":"SendStreamingMessage"',
    "HTTP+JSON 1.0": '"text":"Rome"',
    "GRPC 1.0": '"text": "Rome"',
    "JSONRPC 0.3": '"method":"message/stream"',
    "HTTP+JSON 0.3": '"text":"Rome"',
    "GRPC 0.3": '"text": "Rome"',
    "JSONRPC 0.1": '"method":"tasks/send',
}


async def test_a_call_in_other_versions_and_bindings_is_made_and_not_sent() -> None:
    tokens: list[str] = []
    async with (
        serving(App(booking())) as url,
        inspecting(inspector(url, tokens), tokens) as http,
    ):
        await called(http, "SendStreamingMessage", said("Rome"))
        before = await recorded(http)
        (sent,) = (each for each in before if each.get("call"))
        call = {"agent": "agent", "method": sent["call"], "params": sent["params"]}
        answer = await http.post("/console/api/requests", json=call, headers=ACT)
        made = {each["title"]: each for each in answer.json()["requests"]}
        assert list(made) == list(FORMS)
        for title, text in FORMS.items():
            assert text in made[title]["body"], made[title]
        assert made["GRPC 1.0"]["url"].startswith("grpc://127.0.0.1")
        assert len(await recorded(http)) == len(before)


async def test_an_agent_with_grpc_only() -> None:
    tokens: list[str] = []
    async with (
        serving(App(booking(), bindings=("GRPC",), grpc_port=0)) as url,
        inspecting(inspector(url, tokens), tokens) as http,
    ):
        (shown,) = (await http.get("/console/api/agents")).json()["agents"]
        assert shown["url"].startswith("grpc")
        events = await called(http, "SendStreamingMessage", said("Rome"))
        assert "Booked: Rome" in json.dumps(events)
        (failed,) = await called(http, "GetTask", {"id": "none"})
        assert failed["error"]["code"] == -32001
        wire = [each for each in await recorded(http) if each["method"] == "gRPC"]
        assert "Rome" in wire[0]["body"]
        assert "Booked: Rome" in wire[0]["answer"]
        assert wire[0]["url"].endswith("/lf.a2a.v1.A2AService/SendStreamingMessage")
        assert "TASK_NOT_FOUND" in wire[-1]["answer"]


async def test_an_agent_with_grpc_only_where_grpc_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.client.bindings._installed", lambda: False)
    tokens: list[str] = []
    async with (
        serving(App(booking(), bindings=("GRPC",), grpc_port=0)) as url,
        inspecting(inspector(url, tokens), tokens) as http,
    ):
        (shown,) = (await http.get("/console/api/agents")).json()["agents"]
        assert shown["name"] == "Booking"
        assert "pip install 'dragoman[grpc]'" in shown["error"]
        (failed,) = await called(http, "SendMessage", said("Rome"))
        assert "pip install 'dragoman[grpc]'" in failed["error"]["message"]


async def test_an_answer_that_cannot_be_read_is_marked() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            await receive()
            body = b'{"jsonrpc":"2.0","id":1,"result":{"task":{"id":7}}}'
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": body})
        else:
            await app(scope, receive, send)

    tokens: list[str] = []
    app = App(booking())
    async with serving(broken) as url, inspecting(inspector(url, tokens), tokens) as http:
        (failed,) = await called(http, "SendMessage", said("Rome"))
        assert "error" in failed
        (sent,) = (each for each in await recorded(http) if each.get("call"))
        assert '"id":7' in sent["answer"]
        assert sent["undecoded"]


async def test_the_page_logs_in_and_the_wire_hides_credentials() -> None:
    tokens: list[str] = []
    async with (
        serving(App(booking(), auth=TOKENS)) as url,
        inspecting(inspector(url, tokens), tokens) as http,
    ):
        (refused,) = await called(http, "SendStreamingMessage", said("Rome"))
        assert "error" in refused
        (scheme,) = (await http.get("/console/api/session")).json()["schemes"]
        given = {"scheme": scheme["name"], "secret": "tom"}
        assert (await http.post("/console/api/caller", json=given)).status_code == 403
        done = await http.post("/console/api/caller", json=given, headers=ACT)
        assert done.status_code == 200
        options = {"headers": {"X-Own": "yes"}, "extensions": [], "metadata": {"trip": 7}}
        changed = await http.post("/console/api/options", json=options, headers=ACT)
        assert changed.status_code == 200
        events = await called(http, "SendStreamingMessage", said("Rome"))
        assert "Booked: Rome" in json.dumps(events)
        wire = await recorded(http)
        sent = next(
            each for each in reversed(wire) if "SendStreamingMessage" in each.get("body", "")
        )
        assert sent["sent"]["authorization"] == "***"
        assert "x-own" in sent["sent"]
        assert json.loads(sent["body"])["params"]["metadata"] == {"trip": 7}


async def test_an_agent_that_is_not_there_is_an_error_in_words() -> None:
    tokens: list[str] = []
    async with inspecting(inspector("http://127.0.0.1:1", tokens), tokens) as http:
        (shown,) = (await http.get("/console/api/agents")).json()["agents"]
        assert shown["error"]
        (failed,) = await called(http, "SendMessage", said("Rome"))
        assert failed["error"]["message"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_is_shown_without_a_server(tmp_path: Path, kind: str) -> None:
    store = stored(tmp_path) if kind == "sqlite" else await asyncio.to_thread(database)
    async with consoled(App(booking(), store=store)) as running:
        task = await running.send("Rome")
    tokens: list[str] = []
    source = StoredTasks("tasks.db")
    console = Console(
        tell=tokens.append, source=source, store=lambda: open_store(store, write=True)
    )
    async with inspecting(console, tokens) as http:
        (row,) = (await http.get("/console/api/tasks")).json()["rows"]
        assert row["id"] == task["id"]
        shown = (await http.get(f"/console/api/tasks/{task['id']}")).json()
        assert shown["row"]["state"] == "completed"
        path = f"/console/api/tasks/{task['id']}/cancel"
        assert (await http.post(path, headers=ACT)).status_code == 409
        redrive = {"task": task["id"]}
        done = await http.post("/console/api/webhooks/redrive", json=redrive, headers=ACT)
        assert done.status_code == 200
        saved = (await http.get(f"/console/api/tasks/{task['id']}/log")).text.splitlines()
        assert json.loads(saved[0])["format"] == "dragoman-task-log"
        assert len(saved) == 1 + row["last"]
