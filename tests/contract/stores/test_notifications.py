"""Durable handlers that wait for another agent's task: its webhook wakes them, on every store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, TaskState, Turn
from dragoman.agent import durable
from dragoman.agent.remote_wait import RemoteWait
from dragoman.bells.bell import Bell
from dragoman.bells.memory import MemoryBell
from dragoman.client import Client
from dragoman.model.caller import Scope
from dragoman.model.events import Private
from dragoman.stores.store import NOTIFICATION, Head
from dragoman.testing import SilentBell
from tests.harness.server import serving
from tests.harness.services import free
from tests.harness.stores import BACKENDS, accept, claim

C, W = TaskState.COMPLETED, TaskState.WORKING


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Pair:
    """An agent that waits for the task of another one, and that other one."""

    def __init__(self, store: Any, remote_url: str, port: int, **settings: Any) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.gate = asyncio.Event()
        self.looks = 0
        self.remote = remote_url
        agent = Agent("Patient", description="Waits.")

        @agent.skill(durable=True)
        async def patient(turn: Turn) -> str:
            async with turn.connect(self.remote) as client:
                begun = await turn.step("begin", self.begin, client)
                found = await turn.wait(client.task(begun))
            if found.status.state is TaskState.INPUT_REQUIRED:
                return "it asks"
            return "".join(part.text or "" for part in found.artifacts[0].parts)

        given: dict[str, Any] = {"url": self.url, "poll": 0.05, "egress_allow": ["127.0.0.1"]}
        self.app = App(agent, store=store, **{**given, **settings})
        self.agent = agent
        self.scope = Scope(agent.key)

    @staticmethod
    async def begin(client: Client) -> str:
        result = await client.send("work", wait=False)
        assert result.task is not None
        return result.task.id

    async def waits(self, task: str) -> Head:
        """Wait until the handler is suspended."""
        async with asyncio.timeout(10):
            while True:
                head = await self.app.store.head(self.scope, task)
                if head is not None and head.waits and not head.holder:
                    return head
                await asyncio.sleep(0.01)

    async def private(self, task: str) -> list[Private]:
        found = await self.app.store.private(self.scope, task)
        return [entry.event for entry in found if isinstance(entry.event, Private)]


def slow_agent(gate: asyncio.Event, *, asks: bool = False) -> Agent:
    agent = Agent("Slow", description="Takes its time.")

    @agent.skill
    async def work(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working("begun")
        await gate.wait()
        if asks:
            yield turn.ask("which?")
        else:
            yield turn.artifact(f"done: {turn.text}")

    return agent


@asynccontextmanager
async def pair(
    backend: str,
    folder: Path,
    *,
    push: bool = True,
    asks: bool = False,
    bell: Callable[[], Bell] = MemoryBell,
    **settings: Any,
) -> AsyncIterator[tuple[Pair, Client, asyncio.Event, App]]:
    gate = asyncio.Event()
    slow = slow_agent(gate, asks=asks)
    other = App(slow, bell=bell(), push=push, egress_allow=["127.0.0.1"], poll=0.05)
    port = free()
    async with asyncio.timeout(30), serving(other) as remote:
        two = Pair(BACKENDS[backend](folder), remote, port, bell=bell(), **settings)
        async with serving(two.app, port=port) as url, Client.connect(url) as client:
            yield two, client, gate, other


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a notification, a handler looks again after a minute."""
    monkeypatch.setattr(durable, "LAST_LOOK", 60.0)
    monkeypatch.setattr(durable, "FIRST_LOOK", 60.0)


@pytest.mark.parametrize("asks", [False, True])
async def test_a_webhook_wakes_it(backend: str, tmp_path: Path, asks: bool) -> None:
    async with pair(backend, tmp_path, asks=asks) as (two, client, gate, other):
        result = await client.send("go", wait=False)
        assert result.task is not None
        head = await two.waits(result.task.id)
        assert (head.state, head.waits) == (W, NOTIFICATION)
        gate.set()
        found = await client.task(result.task.id).wait()
        assert found.status.state is C
        text = "".join(part.text or "" for part in found.artifacts[0].parts)
        assert text == ("it asks" if asks else "done: work")
        kinds = [event.kind for event in await two.private(result.task.id)]
        assert kinds.count("subscribed") == kinds.count("waiting") == 1
        # nothing is left that would notify us of a task that we do not wait for
        (theirs,) = other.agents
        begun = (await two.private(result.task.id))[0]
        assert begun.kind in ("sent", "step")
        task = next(e.name for e in await two.private(result.task.id) if e.kind == "waiting")
        assert await other.store.webhooks(Scope(theirs), task) == []


@pytest.mark.parametrize("asks", [False, True])
async def test_with_a_silent_bell(backend: str, tmp_path: Path, asks: bool) -> None:
    """Neither the delivery nor the worker is told: both look by themselves."""
    async with pair(backend, tmp_path, asks=asks, bell=SilentBell) as (two, client, gate, _):
        result = await client.send("go", wait=False)
        assert result.task is not None
        assert (await two.waits(result.task.id)).waits == NOTIFICATION
        gate.set()
        found = await client.task(result.task.id).wait()
        assert found.status.state is C
        text = "".join(part.text or "" for part in found.artifacts[0].parts)
        assert text == ("it asks" if asks else "done: work")
        kinds = [event.kind for event in await two.private(result.task.id)]
        assert kinds.count("waiting") == kinds.count("subscribed") == kinds.count("waited") == 1


async def test_without_push_it_looks_again(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "FIRST_LOOK", 0.05)
    monkeypatch.setattr(durable, "SHORT", 0.01)
    async with pair(backend, tmp_path, push=False) as (two, client, gate, _):
        result = await client.send("go", wait=False)
        assert result.task is not None
        await two.waits(result.task.id)
        gate.set()
        assert (await client.task(result.task.id).wait()).status.state is C
        kinds = [event.kind for event in await two.private(result.task.id)]
        assert "subscribed" not in kinds


async def test_without_an_address_it_looks_again(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "FIRST_LOOK", 0.05)
    async with pair(backend, tmp_path, url="") as (two, client, gate, _):
        result = await client.send("go", wait=False)
        assert result.task is not None
        gate.set()
        assert (await client.task(result.task.id).wait()).status.state is C
        kinds = [event.kind for event in await two.private(result.task.id)]
        assert "subscribed" not in kinds


async def test_a_crash_before_the_webhook_is_registered(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says that the handler waits, and nobody will notify it: it looks again."""
    monkeypatch.setattr(durable, "FIRST_LOOK", 0.05)
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)
    died = asyncio.Event()
    subscribe = RemoteWait.subscribe

    async def dies(self: RemoteWait, secret: str) -> str:
        if died.is_set():
            return await subscribe(self, secret)
        died.set()
        await asyncio.sleep(60)  # its lease runs out
        raise AssertionError

    monkeypatch.setattr(RemoteWait, "subscribe", dies)
    async with pair(backend, tmp_path) as (two, client, gate, _):
        result = await client.send("go", wait=False)
        assert result.task is not None
        await died.wait()
        worker = two.app._worker
        assert worker is not None
        run = worker.runs[result.task.id]
        worker.abandon(run)
        assert await two.app.store.revoke(run.claim.head, None) is not None
        gate.set()
        found = await client.task(result.task.id).wait()
        assert found.status.state is C
        kinds = [event.kind for event in await two.private(result.task.id)]
        assert kinds.count("waiting") == 1
        assert "subscribed" not in kinds


async def test_an_end_just_before_the_webhook_is_registered(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No notification comes of it: the handler looks once more."""
    subscribe = RemoteWait.subscribe

    async def late(self: RemoteWait, secret: str) -> str:
        gate.set()
        while not (await self._remote.get()).status.state.terminal:
            await asyncio.sleep(0.01)
        return await subscribe(self, secret)

    monkeypatch.setattr(RemoteWait, "subscribe", late)
    async with pair(backend, tmp_path) as (_, client, gate, _), asyncio.timeout(20):
        assert (await client.send("go")).state is C


async def test_the_secret_is_kept_as_a_digest(backend: str, tmp_path: Path) -> None:
    async with pair(backend, tmp_path) as (two, client, gate, other):
        result = await client.send("go", wait=False)
        assert result.task is not None
        await two.waits(result.task.id)
        waiting = next(e for e in await two.private(result.task.id) if e.kind == "waiting")
        (theirs,) = other.agents
        (hook,) = await other.store.webhooks(Scope(theirs), waiting.name)
        assert len(hook.config.token) >= 32
        assert hook.config.token not in str(await two.private(result.task.id))
        gate.set()
        await client.task(result.task.id).wait()


async def test_a_notification_needs_the_secret_of_the_task(backend: str, tmp_path: Path) -> None:
    ended = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {}}}
    ended["statusUpdate"]["status"] = {"state": "TASK_STATE_COMPLETED"}
    async with (
        pair(backend, tmp_path) as (two, client, gate, other),
        httpx.AsyncClient() as http,
    ):
        result = await client.send("go", wait=False)
        assert result.task is not None
        task = result.task.id
        before = await two.waits(task)
        url = f"{two.url}/notifications/{task}"
        for token in ("", "guess"):
            answer = await http.post(url, json=ended, headers={"x-a2a-notification-token": token})
            assert answer.status_code == 404
        assert (await two.waits(task)).version == before.version
        waiting = next(e for e in await two.private(task) if e.kind == "waiting")
        (theirs,) = other.agents
        (hook,) = await other.store.webhooks(Scope(theirs), waiting.name)
        headers = {"x-a2a-notification-token": hook.config.token}
        # it wakes the handler, and does not let anybody write
        stolen = {"authorization": f"Bearer {hook.config.token}"}
        answer = await http.get(f"{two.url}/handovers/{task}", headers=stolen)
        assert answer.status_code == 404
        # progress of the other task leads to no look, what is not JSON to an error
        progress = {**ended, "statusUpdate": {**ended["statusUpdate"]}}
        progress["statusUpdate"]["status"] = {"state": "TASK_STATE_WORKING"}
        assert (await http.post(url, json=progress, headers=headers)).status_code == 200
        assert (await two.waits(task)).version == before.version
        assert (await http.post(url, content=b"{", headers=headers)).status_code in (400, 415)
        assert (await http.get(url, headers=headers)).status_code == 405
        # and one that says an end, too early, to a look that finds none
        assert (await http.post(url, json=ended, headers=headers)).status_code == 200
        async with asyncio.timeout(10):
            while (await two.app.store.head(two.scope, task)).version == before.version:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        assert (await two.waits(task)).state is W
        gate.set()
        assert (await client.task(task).wait()).status.state is C


async def test_a_notification_ends_no_sleep(backend: str, tmp_path: Path) -> None:
    """A late one, of a task that the handler waited for before."""
    agent = Agent("Sleeper", description="Sleeps.")
    began = time.monotonic()

    @agent.skill(durable=True)
    async def sleeper(turn: Turn) -> str:
        await turn.sleep(seconds=60)
        return "slept"

    app = App(agent, store=BACKENDS[backend](tmp_path), poll=0.02)
    async with asyncio.timeout(20), app, Client.connect(app=app) as client:
        result = await client.send("go", wait=False)
        assert result.task is not None
        scope = Scope(agent.key)
        while True:
            head = await app.store.head(scope, result.task.id)
            if head is not None and head.waits:
                break
            await asyncio.sleep(0.01)
        assert await app.store.wake_now([result.task.id]) == {}
        assert (await app.store.head(scope, result.task.id)).woken is False  # type: ignore[union-attr]
        await client.task(result.task.id).cancel()
    assert time.monotonic() - began < 20


async def test_a_turn_that_is_postponed_is_not_woken_in_vain(backend: str, tmp_path: Path) -> None:
    """It is to be woken while it is still about to give back its claim."""
    store = BACKENDS[backend](tmp_path)
    await store.open()
    try:
        await accept(store)
        held = await claim(store)
        assert await store.wake_now([held.head.id]) == {}
        assert await store.revoke(held.head, None, begun=False, delay=60) is not None
        assert (await claim(store)).head.id == held.head.id
    finally:
        await store.close()


async def test_a_notification_that_comes_while_the_handler_runs_is_not_lost(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the last look, and before the claim is given back."""
    looked, go_on = asyncio.Event(), asyncio.Event()
    suspend = durable.Journal._suspend

    async def slowly(self: Any, waits: str, **options: Any) -> None:
        if waits == durable.NOTIFICATION and not looked.is_set():
            looked.set()
            await go_on.wait()
        await suspend(self, waits, **options)

    monkeypatch.setattr(durable.Journal, "_suspend", slowly)
    async with pair(backend, tmp_path) as (two, client, gate, other):
        result = await client.send("go", wait=False)
        assert result.task is not None
        await looked.wait()
        gate.set()
        waiting = next(e for e in await two.private(result.task.id) if e.kind == "waiting")
        (theirs,) = other.agents
        async with asyncio.timeout(10):  # until all of it was delivered
            while True:
                record = await other.store.load(Scope(theirs), waiting.name)
                census = (await other.store.census([theirs]))[theirs]
                assert record is not None
                if record.task.status.state is C and not census.behind:
                    break
                await asyncio.sleep(0.01)
        go_on.set()
        assert (await client.task(result.task.id).wait()).status.state is C
