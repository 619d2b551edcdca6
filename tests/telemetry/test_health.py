"""Whether a process is alive, and whether it is ready for work."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import App
from dragoman.model.errors import Unavailable
from dragoman.stores.memory import MemoryStore
from dragoman.telemetry import store_health
from tests.harness.server import serving
from tests.telemetry.monitored_agent import office, port
from tests.telemetry.scrape import get, scrape

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Fickle(MemoryStore):
    """A store that can be made to fail, or to hang."""

    fails = False
    looks = 0

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """Fail, or hang, if it is to."""
        self.looks += 1
        await self.free.wait()
        if self.fails:
            raise Unavailable("The disk is gone")
        return await super().moved(places)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at once, and be patient for a moment."""
    monkeypatch.setattr(store_health, "FRESH", 0.02)
    monkeypatch.setattr(store_health, "PATIENCE", 0.1)


async def test_a_store_that_fails() -> None:
    store = Fickle()
    app = App(office(), store=store, metrics=0, poll=60)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/readyz")).json() == {"status": "ok"}
        store.fails = True
        await asyncio.sleep(0.03)
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": "store unreachable"})
        assert (await get(port(app), "/readyz"))[0] == 503
        assert (await http.get("/healthz")).status_code == 200, "to start it anew would not help"
        found = await scrape(port(app))
        assert found.get("dragoman_store_up") == found.get("dragoman_ready") == 0
        assert not found.get("dragoman_tasks")
        assert not [n for n, _ in found.samples if n == "dragoman_tasks"], "nobody knows"
        store.fails = False
        await asyncio.sleep(0.03)
        assert (await http.get("/readyz")).status_code == 200


async def test_a_store_that_hangs_is_asked_once() -> None:
    store = Fickle()
    async with (
        serving(App(office(), store=store, poll=60)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        assert (await http.get("/readyz")).status_code == 200
        store.free.clear()
        await asyncio.sleep(0.03)
        before = store.looks
        answers = await asyncio.gather(*(http.get("/readyz") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {503}
        assert (await http.get("/readyz")).elapsed.total_seconds() < 0.1, "known by now"
        assert store.looks == before + 1
        store.free.set()
        await asyncio.sleep(0.03)
        assert (await http.get("/readyz")).status_code == 200


async def test_many_who_ask_cost_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_health, "FRESH", 60.0)
    store = Fickle()
    async with (
        serving(App(office(), store=store, poll=60)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        for _ in range(5):
            await asyncio.gather(*(http.get("/readyz") for _ in range(5)))
    assert store.looks == 1


async def test_the_health_of_grpc_follows() -> None:
    store = Fickle()
    async with App(office(), store=store, grpc_port=0, poll=0.02) as app:
        (grpc_port,) = app.ports
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port.number}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=""))
            async with asyncio.timeout(10):
                assert (await watch.read()).status == SERVING
                store.fails = True
                assert (await watch.read()).status == NOT_SERVING
                store.fails = False
                assert (await watch.read()).status == SERVING
                await app.drain()
                assert (await watch.read()).status == NOT_SERVING
            watch.cancel()
