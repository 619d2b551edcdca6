"""What is told when the time is over: the last error, and the task that continues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from dragoman import App, TaskState
from dragoman.client import Client, DeadlineExceeded
from dragoman.model.errors import Unavailable
from tests.client.test_client import parrot
from tests.client.transports import (
    STREAM,
    Answer,
    Mute,
    Script,
    card,
    document,
    event,
    result,
    task,
)
from tests.harness.server import serving

DOWN = json.dumps(Unavailable("The store is not available").to_http()).encode()
RPC_DOWN = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "error": Unavailable("The store is not available").to_rpc()}
).encode()


@pytest.fixture
async def app() -> AsyncIterator[App]:
    """An agent, running."""
    agent = parrot()
    async with App(agent, drain_timeout=0.0, poll=0.02) as app:
        yield app
        agent.gate.set()  # type: ignore[attr-defined]


def down() -> Script:
    """An agent whose database is down."""
    return Script(lambda _: Answer(RPC_DOWN, status=503))


@pytest.mark.parametrize("streams", [False, True])
async def test_the_last_error(streams: bool) -> None:
    async with Client.connect(card(), transport=down(), deadline=0.3) as client:
        with pytest.raises(DeadlineExceeded) as caught:
            if streams:
                async with client.stream("x") as stream:
                    _ = [event async for event in stream]
            else:
                await client.send("x")
    error = caught.value
    assert str(error) == (
        "http://agent: no answer within 0.3 s; the last error: The store is not available"
    )
    assert isinstance(error, TimeoutError)
    assert isinstance(error.last, Unavailable)
    assert error.__cause__ is error.last
    assert error.task == ""


async def test_the_last_error_of_the_card() -> None:
    transport = Script(lambda _: Answer(DOWN, status=503, headers={"retry-after": "50"}))
    with pytest.raises(DeadlineExceeded, match=r"^http://x: no answer .* answered 503: The store"):
        async with Client.connect("http://x", transport=transport, deadline=0.1):
            pass
    with pytest.raises(DeadlineExceeded, match=r"^http://x: no answer within 0\.1 s$"):
        async with Client.connect("http://x", transport=Mute(), deadline=0.1):
            pass
    with pytest.raises(DeadlineExceeded, match=r"^http://x: no answer within 0\.01 s$"):
        async with Client.connect("http://x", transport=Mute(), timeout=0.01, attempts=1):
            pass


async def test_an_error_that_is_over_is_not_told() -> None:
    """The first attempt fails, the second one is answered, and what comes then takes long."""
    asked: list[str] = []

    def answer(request: object) -> Answer:
        method = document(request)["method"]  # type: ignore[arg-type]
        asked.append(method)
        if asked == ["SendMessage"]:
            return Answer(RPC_DOWN, status=503)
        working = task("WORKING")
        return Answer(result({"task": working} if method == "SendMessage" else working))

    transport = Script(answer)
    async with Client.connect(card(streaming=False), transport=transport, deadline=0.5) as client:
        with pytest.raises(DeadlineExceeded) as caught:
            await client.send("x")
    assert asked[:3] == ["SendMessage", "SendMessage", "GetTask"]
    assert str(caught.value) == "http://agent: no answer within 0.5 s; task t continues"
    assert caught.value.task == "t"


async def test_an_attempt_names_the_task_that_was_asked_for() -> None:
    async with Client.connect(card(), transport=Mute(), timeout=0.01, attempts=1) as client:
        with pytest.raises(DeadlineExceeded, match=r"within 0\.01 s \(task t\)$") as caught:
            await client.task("t").get()
    assert caught.value.task == "t"


@pytest.mark.parametrize("way", ["send", "stream", "wait", "subscribe", "reply"])
async def test_the_task_goes_on_and_is_named(app: App, way: str) -> None:
    async with Client.connect(app=app) as client:
        begun = None
        if way in ("wait", "subscribe"):
            begun = (await client.send("gate", wait=False)).task
        elif way == "reply":
            begun = (await client.send("ask")).task
        known = begun.id if begun else ""
        client._connection.deadline = 0.5
        with pytest.raises(DeadlineExceeded) as caught:
            if way == "send":
                await client.send("gate")
            elif way == "stream":
                async with client.stream("gate") as stream:
                    _ = [event async for event in stream]
            elif way == "wait":
                await client.task(known).wait()
            elif way == "reply":
                await client.task(known).reply("gate")
            else:
                async with client.task(known).subscribe() as stream:
                    _ = [event async for event in stream]
        client._connection.deadline = None
        error = caught.value
        assert error.task in (known, error.task) and error.task
        assert str(error) == f"http://inside: no answer within 0.5 s; task {error.task} continues"
        assert (await client.task(error.task).get()).status.state is TaskState.WORKING
        app.agents["parrot"].gate.set()  # type: ignore[attr-defined]
        assert (await client.task(error.task).wait()).status.state is TaskState.COMPLETED


async def test_a_send_with_a_deadline_comes_to_the_same(app: App) -> None:
    async with Client.connect(app=app) as client, Client.connect(app=app, deadline=20) as timely:
        for said in ("hello", "count 3", "ask"):
            one, other = await client.send(said), await timely.send(said)
            assert (one.state, one.text, one.data) == (other.state, other.text, other.data)
            assert one.task is not None and other.task is not None
            assert [m.text for m in one.task.history] == [m.text for m in other.task.history]
            assert other.task == await client.task(other.task.id).get()
        assert (await timely.send("hi", skill="talk")).text == "you said hi"
        short = (await timely.send("hello", history=1)).task
        assert short is not None
        assert len(short.history) <= 1


async def test_two_sends_at_once_do_not_mix_up_their_tasks(app: App) -> None:
    async with Client.connect(app=app, deadline=0.5) as client:
        found = await asyncio.gather(
            client.send("gate"), client.send("gate"), return_exceptions=True
        )
    assert all(isinstance(error, DeadlineExceeded) for error in found)
    assert len({error.task for error in found}) == 2  # type: ignore[union-attr]


async def test_a_stream_of_a_stranger_is_named_too() -> None:
    def answer(request: object) -> Answer:
        if document(request)["method"] == "SendStreamingMessage":  # type: ignore[arg-type]
            return Answer([event({"task": task("WORKING")})], headers=STREAM)
        return Answer(RPC_DOWN, status=503)

    async with Client.connect(card(), transport=Script(answer), deadline=0.5) as client:
        with pytest.raises(DeadlineExceeded) as caught:
            async with client.stream("x") as stream:
                _ = [told async for told in stream]
    assert caught.value.task == "t"
    assert "the last error: The store is not available; task t continues" in str(caught.value)


async def test_over_sockets() -> None:
    agent = parrot()
    async with serving(App(agent, drain_timeout=0.0, poll=0.02)) as url:
        async with Client.connect(url, deadline=0.5) as client:
            with pytest.raises(DeadlineExceeded, match=f"^{url}: no answer within 0.5 s; task"):
                await client.send("gate")
        agent.gate.set()  # type: ignore[attr-defined]
