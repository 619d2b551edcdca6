"""The figures that a process tells, scraped from real servers."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Turn
from dragoman.client import Client
from dragoman.model.errors import Unavailable
from dragoman.security import ApiKey
from dragoman.stores.memory import MemoryStore
from dragoman.telemetry.metrics import Counter, Histogram, Metrics, render
from tests.harness.server import serving
from tests.harness.webhooks import receiving
from tests.telemetry.monitored_agent import office, port
from tests.telemetry.scrape import Scrape, get, parse, scrape

ROOT = Path(__file__).resolve().parents[2]


def send(text: str) -> dict[str, Any]:
    """A message over JSON-RPC."""
    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}


async def test_what_is_counted(tmp_path: Path) -> None:
    app = App(office(), store=f"sqlite:///{tmp_path}/x.db", metrics=0)
    async with serving(app) as url:
        for binding in ("JSONRPC", "HTTP+JSON"):
            async with Client.connect(url, bindings=[binding]) as client:
                for text in ("x", "fail", "ask"):
                    await client.send(text)
        async with Client.connect(url) as client, client.stream("y") as stream:
            assert [event async for event in stream]
        async with httpx.AsyncClient(base_url=url) as http:
            await http.post("/", content=b"{")
            await http.get("/tasks/none")
            await http.get("/nothing/here/at/all")
        found = await scrape(port(app))
    told = {"agent": "office", "version": "1.0"}
    sends = {**told, "operation": "SendMessage", "outcome": "ok"}
    assert found.get("dragoman_requests_total", **sends, binding="jsonrpc") == 3
    assert found.get("dragoman_requests_total", **sends, binding="http") == 3
    missing = {**told, "operation": "GetTask", "binding": "http", "outcome": "TASK_NOT_FOUND"}
    assert found.get("dragoman_requests_total", **missing) == 1
    assert found.get("dragoman_request_seconds_count", operation="SendMessage") == 6
    assert found.get("dragoman_refused_total") == 2, "what was an operation is not counted twice"
    assert found.get("dragoman_refused_total", binding="jsonrpc", reason="PARSE_ERROR") == 1
    assert found.get("dragoman_refused_total", binding="http", reason="METHOD_NOT_FOUND") == 1
    for outcome, number in (("completed", 3), ("failed", 2), ("input_required", 2)):
        assert found.get("dragoman_turn_seconds_count", agent="office", outcome=outcome) == number
        assert found.get("dragoman_tasks", agent="office", state=outcome) == number
    assert found.get("dragoman_accept_seconds_count") == 7
    assert found.get("dragoman_claim_seconds_count", agent="office") == 7
    assert found.get("dragoman_append_seconds_count") >= 7
    assert found.get("dragoman_event_lag_seconds_count") >= 1
    assert found.get("dragoman_event_lag_seconds_sum") < 5
    assert found.get("dragoman_queue_tasks") == found.get("dragoman_turns_running") == 0
    assert found.get("dragoman_ready") == found.get("dragoman_store_up") == 1
    assert found.get("process_cpu_seconds_total") > 0
    assert found.get("process_resident_memory_bytes") > 1_000_000


async def test_what_runs_and_what_waits() -> None:
    agent, gate = Agent("Slow", description="Waits.", key="slow"), asyncio.Event()

    @agent.handler
    async def wait(turn: Turn) -> str:
        """Wait."""
        await gate.wait()
        return "done"

    async with App(agent, metrics=0, max_running=1) as app, Client.connect(app=app) as client:
        for text in "abc":
            await client.send(text, wait=False)
        stream = client.stream("d")
        await anext(stream)
        found = await scrape(port(app))
        assert found.get("dragoman_streams_open") == 1
        assert found.get("dragoman_turns_running", agent="slow") == 1
        assert found.get("dragoman_queue_tasks", agent="slow") == 3
        assert found.get("dragoman_queue_oldest_seconds", agent="slow") > 0
        gate.set()
        assert [event async for event in stream]


async def test_who_is_turned_away(constants: Callable[..., None]) -> None:
    constants(rate_burst=2)
    gate = [ApiKey(keys={"somebody": "the-right-key"}, header="X-Key")]
    app = App(office(), auth=gate, rate=0.001, quota_tasks=1, metrics=0)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        await http.post("/", json=send("x"))
        mine = {"X-Key": "the-right-key"}
        for _ in range(3):
            await http.post("/", json=send("ask"), headers=mine)
        found = await scrape(port(app))
        status, _, page = await get(port(app))
    refused = {"agent": "office", "binding": "jsonrpc"}
    assert found.get("dragoman_refused_total", **refused, reason="UNAUTHENTICATED") == 1
    assert found.get("dragoman_refused_total", **refused, reason="RESOURCE_EXHAUSTED") == 1
    assert status == 200
    assert "somebody" not in page, "whoever calls is nobody's business here"
    assert "the-right-key" not in page


@pytest.mark.parametrize(("status", "outcome"), [(200, "delivered"), (500, "parked")])
async def test_deliveries(status: int, outcome: str) -> None:
    settings: Mapping[str, Any] = {"egress_allow": ("127.0.0.1",), "push_retries": ()}
    async with (
        receiving(*[status] * 9) as inbox,
        App(office(), push=True, metrics=0, **settings) as app,
        Client.connect(app=app) as client,
    ):
        asked = await client.send("ask")
        assert asked.task is not None
        await client.task(asked.task.id).add_webhook(inbox.url)
        await client.task(asked.task.id).reply("ask")
        told = {"agent": "office", "outcome": outcome}
        async with asyncio.timeout(10):
            while not (found := await scrape(port(app))).get("dragoman_deliveries_total", **told):
                await asyncio.sleep(0.02)
        assert found.get("dragoman_deliveries_total") == found.get(
            "dragoman_deliveries_total", **told
        )


# ---- the port ------------------------------------------------------------------------------


async def test_the_port_is_not_that_of_the_agents() -> None:
    app = App(office(), metrics=0)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/metrics")).status_code == 404
        for path in ("/healthz", "/readyz"):
            assert (await get(port(app), path))[::2] == (200, '{"status":"ok"}')
        assert (await get(port(app), "/metrics?x=y"))[0] == 200
        assert (await get(port(app), "/"))[0] == 404
        assert (await get(port(app), method="POST"))[0] == 405
        status, head, body = await get(port(app), method="HEAD")
        assert (status, body) == (200, "")
        assert "content-length: 0" not in head
        reader, writer = await asyncio.open_connection("127.0.0.1", port(app))
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await app.drain()
        assert (await get(port(app), "/readyz"))[::2] == (503, '{"status":"draining"}')
        assert (await get(port(app), "/healthz"))[0] == 200
        assert (await scrape(port(app))).get("dragoman_ready") == 0


async def test_without_the_setting_nothing_is_kept() -> None:
    async with App(office()) as app:
        assert app.monitoring is not None
        assert app.monitoring.metrics is None
        assert app.monitoring.server is None
        with pytest.raises(RuntimeError, match="metrics are disabled: set `metrics`"):
            await app.monitoring.page()


async def test_the_page_in_code() -> None:
    async with App(office(), metrics=0) as app:
        assert app.monitoring is not None
        assert b"dragoman_ready 1" in await app.monitoring.page()


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Unavailable, match="metrics: cannot listen on"):
            async with App(office(), metrics=taken.getsockname()[1]):
                pass


async def test_a_count_is_shared_for_a_while() -> None:
    class Counting(MemoryStore):
        counts = 0

        async def census(self, agents: Any) -> Any:
            """Count how often."""
            self.counts += 1
            return await super().census(agents)

    store = Counting()
    async with App(office(), store=store, metrics=0) as app:
        await asyncio.gather(*(scrape(port(app)) for _ in range(5)))
    assert store.counts == 1


# ---- the format ----------------------------------------------------------------------------


def test_the_format() -> None:
    counter = Counter("a_total", "A", "name")
    counter.add('quo"te\\\n')
    times = Histogram("b_seconds", "B", buckets=(0.1, 1.0))
    for value in (0.1, 0.5, 2.0):
        times.at().observe(value)
    assert render([counter, times]).decode() == (
        "# HELP a_total A\n# TYPE a_total counter\n"
        'a_total{name="quo\\"te\\\\\\n"} 1\n'
        "# HELP b_seconds B\n# TYPE b_seconds histogram\n"
        'b_seconds_bucket{le="0.1"} 1\nb_seconds_bucket{le="1"} 2\nb_seconds_bucket{le="+Inf"} 3\n'
        "b_seconds_sum 2.6\nb_seconds_count 3\n"
    )
    assert isinstance(parse(render(Metrics().families).decode()), Scrape)


def test_the_table_in_the_documentation() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|", page, re.MULTILINE)
    told = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), what)
        for name, kind, labels, what in rows
    }
    assert told == {
        figure.name: (figure.kind, figure.labels, figure.help) for figure in Metrics().families
    }
