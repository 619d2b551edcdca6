"""The access log: a record for each request, with who asked for what, and how long it took."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Turn
from dragoman.client import Client
from dragoman.security import ApiKey
from dragoman.telemetry.logs import Ids, Json, Text, access_logger
from tests.harness.raw_http import connect
from tests.harness.server import BINDINGS, served, serving
from tests.telemetry.monitored_agent import office

KEY = "the-right-key"
GATE = [ApiKey(keys={"ann": KEY}, header="X-Key")]


class Lines(logging.Handler):
    """Records of the access log, as the format `json` writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(Json())
        self.addFilter(Ids())
        self.found: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self._came = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))
        self.texts.append(Text().format(record))
        self._came.set()

    async def until(self, ready: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first record that is as it should be."""
        async with asyncio.timeout(10):
            while not (found := [line for line in self.found if ready(line)]):
                self._came.clear()
                await self._came.wait()
        return found[0]

    async def of(self, **fields: Any) -> dict[str, Any]:
        """The first record that has these fields."""
        return await self.until(lambda line: fields.items() <= line.items())


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    """What is logged."""
    handler = Lines()
    access_logger.addHandler(handler)
    yield handler
    access_logger.removeHandler(handler)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_what_a_record_says(lines: Lines, binding: str) -> None:
    app = App(office(), auth=GATE, access_log=True, grpc_port=0, bindings=BINDINGS)
    headers = {"x-key": KEY}
    anywhere: Any = {"trust": ["*"], "insecure": True}
    async with (
        serving(app) as url,
        Client.connect(url, bindings=[binding], headers=headers, **anywhere) as client,
    ):
        result = await client.send("x")
        assert result.task is not None
        sent = await lines.of(operation="SendMessage")
        async with client.stream("y") as stream:
            assert [event async for event in stream]
        streamed = await lines.of(operation="SendStreamingMessage")
        with pytest.raises(Exception, match="not found"):
            await client.task("none").get()
        missing = await lines.of(operation="GetTask")
    name = {"JSONRPC": "jsonrpc", "HTTP+JSON": "http", "GRPC": "grpc"}[binding]
    told = {"agent": "office", "binding": name, "version": "1.0", "caller": "ann"}
    for line in (sent, streamed, missing):
        assert told.items() <= line.items()
        assert (line["logger"], line["client"]) == ("dragoman.access", "127.0.0.1")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert (sent["task"], sent["outcome"]) == (result.task.id, "ok")
    assert 10 <= sent["duration_ms"] < 60_000, "the agent takes a hundredth of a second"
    assert stream.task is not None
    assert streamed["task"] == stream.task.id
    assert streamed["duration_ms"] >= 10, "a stream is logged when it ends"
    assert (missing["task"], missing["outcome"]) == ("none", "TASK_NOT_FOUND")
    if name == "grpc":
        assert (sent["grpc_status"], missing["grpc_status"]) == ("OK", "NOT_FOUND")
        assert sent["path"].endswith("/SendMessage")
    else:
        assert sent["status"] == streamed["status"] == 200
        assert missing["status"] == (200 if name == "jsonrpc" else 404)


async def test_requests_that_come_to_nothing(lines: Lines) -> None:
    app = App(office(), auth=GATE, access_log=True)
    secret = "a-very-secret-word"
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
        await http.get(f"/tasks?token={secret}", headers={"a2a-version": "1.0"})
        refused = await lines.of(path="/tasks")
        assert (refused["status"], refused["outcome"]) == (401, "UNAUTHENTICATED")
        assert refused["operation"] == "ListTasks"
        assert "caller" not in refused
        http.headers["x-key"] = KEY
        await http.post("/", content=b"{")
        assert (await lines.of(path="/"))["outcome"] == "PARSE_ERROR"
        call = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": 5}}
        await http.post("/", json=call)
        wrong = await lines.of(operation="GetTask")
        assert (wrong["outcome"], wrong["caller"]) == ("INVALID_PARAMS", "ann")
        await http.get("/no%20where%0a")
        nowhere = await lines.of(path="/no%20where%0a")
        assert (nowhere["status"], nowhere["outcome"]) == (404, "METHOD_NOT_FOUND")
        await http.get("/tasks", headers={"host": "other.example"})
        assert (await lines.of(status=421))["path"] == "/tasks"
        await http.get("/healthz")
        assert (await lines.of(path="/healthz"))["outcome"] == "ok"
        long = "x" * app.settings.max_head
        await http.get("/long", headers={"x-long": long})
        assert (await lines.of(path="/long"))["status"] == 431
    assert secret not in json.dumps(lines.found) + "".join(lines.texts)
    assert KEY not in json.dumps(lines.found) + "".join(lines.texts)
    assert all("duration_ms" in line for line in lines.found)
    assert "GET /healthz 200 " in "".join(lines.texts)
    (text,) = [text for text in lines.texts if "GetTask" in text]
    assert text.endswith(" ms GetTask INVALID_PARAMS caller=ann")


@contextlib.contextmanager
def waiting() -> Iterator[tuple[Agent, asyncio.Event]]:
    """An agent that waits for its gate."""
    agent, gate = Agent("Slow", description="Waits.", key="slow"), asyncio.Event()

    @agent.handler
    async def wait(turn: Turn) -> Any:
        """Wait."""
        yield turn.working("soon")
        await gate.wait()

    yield agent, gate
    gate.set()


@pytest.mark.parametrize("binding", ["HTTP+JSON", "GRPC"])
async def test_a_client_that_goes_away(
    lines: Lines, binding: str, constants: Callable[..., None]
) -> None:
    constants(keepalive=0.1)
    with waiting() as (agent, _):
        app = App(agent, access_log=True, grpc_port=0, bindings=BINDINGS, drain_timeout=0.0)
        async with serving(app) as url:
            async with Client.connect(url, bindings=[binding]) as client:
                stream = client.stream("x")
                async with stream:
                    await anext(aiter(stream))
                    assert not [line for line in lines.found if "operation" in line]
            line = await lines.of(operation="SendStreamingMessage")
    assert stream.task is not None
    assert (line["outcome"], line["task"]) == ("CLIENT_GONE", stream.task.id)


async def test_a_request_that_is_not_sent_to_its_end(lines: Lines) -> None:
    async with served(App(office(), access_log=True)) as server:
        async with connect(server.url) as raw:
            await raw.send(
                b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                b"content-length: 9\r\n\r\n{"
            )
        line = await lines.of(path="/")
    assert line["outcome"] == "CLIENT_GONE"
    assert "status" not in line


async def test_behind_a_proxy_it_is_the_callers_address(lines: Lines) -> None:
    app = App(office(), access_log=True, trusted_proxies=["127.0.0.1"])
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        await http.get("/healthz", headers={"x-forwarded-for": "203.0.113.7"})
        assert (await lines.of(path="/healthz"))["client"] == "203.0.113.7"


async def test_nothing_is_logged_unasked(lines: Lines) -> None:
    async with serving(App(office())) as url, httpx.AsyncClient(base_url=url) as http:
        await http.get("/healthz")
    assert lines.found == []
