"""Waiting for a task: by its stream, by a webhook, or by looking again and again."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client, Inbox, TransportRequest, TransportResponse, Unreachable
from dragoman.client.transport import ASGITransport
from dragoman.model.errors import InvalidParams, TaskNotFound
from dragoman.model.operations import OPERATIONS
from tests.client.transports import (
    Answer,
    Script,
    card,
    document,
    free_port,
    result,
    task,
)
from tests.harness.server import serving

NAMES = {operation.name: operation.call for operation in OPERATIONS}


def admin(*, streaming: bool = True) -> Agent:
    """An agent that writes word by word; at `gate` it waits, at `ask` it asks."""
    agent = Agent("Clerk", description="Writes.", streaming=streaming)
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]
    agent.runs = []  # type: ignore[attr-defined]

    @agent.handler
    async def write(turn: Turn) -> AsyncIterator[Any]:
        """Write it."""
        agent.runs.append(turn.text)  # type: ignore[attr-defined]
        for word in turn.text.split():
            if word == "gate":
                yield turn.working("waiting")
                await agent.gate.wait()  # type: ignore[attr-defined]
            elif word == "ask":
                yield turn.ask("What?")
                return
            else:
                yield turn.write(word)

    return agent


class Counted(ASGITransport):
    """Notes the operations that are asked for."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.calls: list[str] = []
        self.called = asyncio.Condition()

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Note it, and pass it on."""
        if request.method == "POST":
            self.calls.append(NAMES[document(request)["method"]])
        response = await super().send(request)
        async with self.called:
            self.called.notify_all()
        return response

    async def until(self, call: str, times: int = 1) -> None:
        """Wait until it has been answered so often."""
        async with self.called:
            await self.called.wait_for(lambda: self.calls.count(call) >= times)


@asynccontextmanager
async def working(agent: Agent, **settings: Any) -> AsyncIterator[tuple[Client, Counted]]:
    """An agent at work, and a client of it."""
    async with App(agent, **{"drain_timeout": 0.0, "poll": 0.02, **settings}) as app:
        transport = Counted(app)
        async with Client.connect(app=app, transport=transport) as client:
            yield client, transport
        agent.gate.set()  # type: ignore[attr-defined]


async def begun(client: Client, text: str) -> str:
    """Begin a task."""
    found = (await client.send(text, wait=False)).task
    assert found is not None
    return found.id


# ---- wait ----------------------------------------------------------------------------------


async def test_by_its_stream() -> None:
    agent = admin()
    async with working(agent) as (client, transport):
        id = await begun(client, "gate")
        waiting = asyncio.create_task(client.task(id).wait())
        await transport.until("subscribe")
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.COMPLETED
    assert transport.calls == ["send", "get", "subscribe", "get"]


async def test_until_it_asks() -> None:
    agent = admin()
    async with working(agent) as (client, transport):
        id = await begun(client, "gate ask")
        waiting = asyncio.create_task(client.task(id).wait())
        await transport.until("subscribe")
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.INPUT_REQUIRED


@pytest.mark.parametrize("streaming", [True, False])
async def test_one_that_has_ended_is_not_waited_for(streaming: bool) -> None:
    async with working(admin(streaming=streaming)) as (client, transport):
        done = (await client.send("a b")).task
        assert done is not None
        assert await client.task(done.id).wait() == done
        assert transport.calls == ["send", "get"]
        with pytest.raises(TaskNotFound):
            await client.task("unknown").wait()


async def test_one_that_ends_before_it_can_be_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscription is refused then, and there is no reason to sleep."""
    states = ["WORKING", "COMPLETED"]

    def answer(request: TransportRequest) -> TransportResponse:
        if b"GetTask" in request.body:  # type: ignore[operator]
            return Answer(result(task(states.pop(0))))
        error = {"code": -32004, "message": "ended"}
        return Answer(
            b'{"jsonrpc":"2.0","id":1,"error":%b}' % str(error).replace("'", '"').encode()
        )

    async def sleep(seconds: float) -> None:
        raise AssertionError("slept")

    monkeypatch.setattr("dragoman.client.task_handle.asyncio", types.SimpleNamespace(sleep=sleep))
    async with Client.connect(card(), transport=Script(answer)) as client:
        assert (await client.task("t").wait()).status.state is TaskState.COMPLETED


async def test_by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    agent = admin(streaming=False)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            agent.gate.set()  # type: ignore[attr-defined]
            await client.send("next")  # whose turn comes after the other's end
        await asyncio.sleep(0)

    async with working(agent) as (client, transport):
        id = await begun(client, "gate")
        monkeypatch.setattr(
            "dragoman.client.task_handle.asyncio", types.SimpleNamespace(sleep=sleep)
        )
        assert (await client.task(id).wait(poll=0.5)).status.state is TaskState.COMPLETED
        assert "subscribe" not in transport.calls
        assert pauses[:3] == [0.5, 0.75, 1.125]
        assert sorted(pauses) == pauses
        assert max(pauses) == 10.0
        pauses.clear()
        agent.gate.clear()  # type: ignore[attr-defined]
        id = await begun(client, "gate")
        await client.task(id).wait(poll=60)
        assert set(pauses) == {60}


# ---- webhooks ------------------------------------------------------------------------------


@asynccontextmanager
async def pushing(agent: Agent, **settings: Any) -> AsyncIterator[tuple[Client, Counted]]:
    """The same with an inbox where the agent can push."""
    port = free_port()
    inbox = Inbox(f"http://127.0.0.1:{port}/hook")
    allowed = {"push": True, "egress_allow": ["127.0.0.1"], **settings}
    async with serving(inbox.app, port=port), working(agent, **allowed) as (client, transport):
        client._inbox = inbox
        yield client, transport


async def test_by_a_webhook() -> None:
    agent = admin(streaming=False)
    async with pushing(agent) as (client, transport):
        id = await begun(client, "gate a b")
        waiting = asyncio.create_task(client.task(id).wait(poll=3600))
        await transport.until("create_webhook")
        await transport.until("get", 2)
        agent.gate.set()  # type: ignore[attr-defined]
        done = await waiting
        assert done.status.state is TaskState.COMPLETED
        assert "".join(part.text or "" for part in done.artifacts[0].parts) == "ab"
        assert transport.calls[-1] == "delete_webhook"
        assert "subscribe" not in transport.calls
        assert [config async for config in client.task(id).webhooks()] == []


async def test_by_a_webhook_until_it_asks() -> None:
    agent = admin(streaming=False)
    async with pushing(agent) as (client, transport):
        id = await begun(client, "gate ask")
        waiting = asyncio.create_task(client.task(id).wait(poll=3600))
        await transport.until("get", 2)
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.INPUT_REQUIRED
        assert [config async for config in client.task(id).webhooks()] == []


async def test_several_wait_for_one_task() -> None:
    agent = admin(streaming=False)
    async with pushing(agent) as (client, transport):
        id = await begun(client, "gate a b")
        waiting = [asyncio.create_task(client.task(id).wait()) for _ in range(3)]
        await transport.until("get", 6)
        agent.gate.set()  # type: ignore[attr-defined]
        states = {found.status.state for found in await asyncio.gather(*waiting)}
        assert states == {TaskState.COMPLETED}
        assert [config async for config in client.task(id).webhooks()] == []


async def test_each_who_waits_is_told() -> None:
    """What one has seen, another may not have looked at."""
    async with pushing(admin(streaming=False)) as (client, _):
        inbox = client._inbox
        assert inbox is not None
        with inbox.expecting("t") as one, inbox.expecting("t") as other:
            await inbox._take(types.SimpleNamespace(task_id="t"))  # type: ignore[arg-type]
            await one.wait()
            one.clear()
            await other.wait()
        await inbox._take(types.SimpleNamespace(task_id="t"))  # type: ignore[arg-type]
        assert not inbox._rings


async def test_the_webhook_is_removed_when_nobody_waits_any_more() -> None:
    async with pushing(admin(streaming=False)) as (client, transport):
        id = await begun(client, "gate")
        waiting = asyncio.create_task(client.task(id).wait())
        await transport.until("get", 2)
        assert len([config async for config in client.task(id).webhooks()]) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [config async for config in client.task(id).webhooks()] == []
        assert (await client.task(id).get()).status.state is TaskState.WORKING


async def test_a_push_that_is_lost_costs_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.client.task_handle.LOOK", 0.05)
    agent = admin(streaming=False)
    async with working(agent, push=True, egress_allow=["127.0.0.1"]) as (client, transport):
        client._inbox = Inbox(f"http://127.0.0.1:{free_port()}/nobody")
        id = await begun(client, "gate")
        waiting = asyncio.create_task(client.task(id).wait())
        await transport.until("get", 3)
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.COMPLETED


async def test_a_webhook_that_is_refused_is_told() -> None:
    async with working(admin(streaming=False), push=True) as (client, _):
        client._inbox = Inbox("http://127.0.0.1:9/not-allowed")
        with pytest.raises(InvalidParams, match="url"):
            await client.task(await begun(client, "gate")).wait()


@pytest.mark.parametrize("inbox", [True, False])
async def test_without_webhooks_or_an_inbox_it_looks(inbox: bool) -> None:
    agent = admin(streaming=False)
    async with working(agent, push=not inbox) as (client, transport):
        client._inbox = Inbox("http://127.0.0.1:9/") if inbox else None
        id = await begun(client, "gate")
        waiting = asyncio.create_task(client.task(id).wait(poll=0.01))
        await transport.until("get", 3)
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.COMPLETED
        assert "create_webhook" not in transport.calls


async def test_a_webhook_is_made_once_however_often_it_is_asked_for() -> None:
    class Losing(Counted):
        """Loses the first answer of each kind."""

        async def send(self, request: TransportRequest) -> TransportResponse:
            response = await super().send(request)
            if self.calls and self.calls.count(self.calls[-1]) == 1:
                raise Unreachable("lost")
            return response

    agent = admin()
    async with App(agent, drain_timeout=0.0, push=True, egress_allow=["127.0.0.1"]) as app:
        async with Client.connect(app=app) as client:
            id = await begun(client, "ask")
            await client.task(id).wait()
        transport = Losing(app)
        async with Client.connect(app=app, transport=transport, bindings=["JSONRPC"]) as client:
            made = await client.task(id).add_webhook("http://127.0.0.1:9/")
            assert [config async for config in client.task(id).webhooks()] == [made]
            assert transport.calls.count("create_webhook") == 2
            named = await client.task(id).add_webhook("http://127.0.0.1:9/", id="mine")
            assert named.id == "mine"
