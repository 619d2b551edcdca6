"""SendStreamingMessage and SubscribeToTask: which events, in which order, until when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dragoman import Agent, App, Turn
from dragoman.bindings import sse
from dragoman.client import Client
from dragoman.dialects import v1_0
from dragoman.model.caller import Scope
from dragoman.model.events import RESUME, Entry
from dragoman.model.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.stores.memory import MemoryStore
from dragoman.stores.store import Record
from tests.contract.bindings.conftest import Start, user
from tests.contract.bindings.test_send import ended, until
from tests.harness import agents
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, HttpJson, JsonRpc, Seen


def kinds(events: list[Seen]) -> list[str]:
    """The one field that each event has."""
    assert all(len(seen.event) == 1 for seen in events)
    return [next(iter(seen.event)) for seen in events]


def states(events: list[Seen]) -> list[str]:
    """The states that the status updates tell."""
    return [
        seen.event["statusUpdate"]["status"]["state"].removeprefix("TASK_STATE_")
        for seen in events
        if "statusUpdate" in seen.event
    ]


@pytest.mark.clause("stream.task-first", "stream.ends-terminal", "stream.one-of", "events.order")
async def test_a_task_then_its_events_then_the_end(client: Binding) -> None:
    events = await client.stream("SendStreamingMessage", message=user("hello"))
    assert kinds(events) == ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]
    assert events[0].event["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert states(events) == ["WORKING", "COMPLETED"]
    task = events[0].event["task"]["id"]
    if client.can("ids"):
        assert [seen.id for seen in events] == [f"{task}:{n}" for n in (1, 2, 3, 4)]


@pytest.mark.clause("stream.message-only", "rpc.stream", "http.stream")
async def test_a_direct_reply_is_the_only_event(client: Binding) -> None:
    message = user("hi", metadata={"skill": "talk"})
    events = await client.stream("SendStreamingMessage", message=message)
    assert kinds(events) == ["message"]
    assert events[0].event["message"]["parts"] == [{"text": "you said hi"}]


@pytest.mark.clause("artifact-update.append", "artifact-update.last-chunk")
async def test_chunks_of_an_artifact(client: Binding) -> None:
    events = await client.stream("SendStreamingMessage", message=user("chunks 300"))
    chunks = [seen.event["artifactUpdate"] for seen in events if "artifactUpdate" in seen.event]
    assert [chunk["artifact"]["parts"][0]["text"] for chunk in chunks] == [
        f"{n} " for n in range(300)
    ]
    assert "append" not in chunks[0]
    assert all(chunk["append"] for chunk in chunks[1:])
    assert len({chunk["artifact"]["artifactId"] for chunk in chunks}) == 1
    task = await client.call("GetTask", id=events[0].event["task"]["id"])
    # in the task it is one text, which others would join with spaces or line ends
    assert task["artifacts"][0]["parts"] == [{"text": "".join(f"{n} " for n in range(300))}]
    assert task["artifacts"][0]["name"] == "counted"


@pytest.mark.clause("http.stream-ends-interrupted")
async def test_a_send_stream_ends_at_input_required(client: Binding) -> None:
    events = await client.stream("SendStreamingMessage", message=user("ask"))
    assert states(events) == ["WORKING", "INPUT_REQUIRED"]
    task = events[0].event["task"]
    more = await client.stream("SendStreamingMessage", message=user("june", taskId=task["id"]))
    assert kinds(more)[0] == "task"
    # nobody sees the old question: the answer has replaced it
    task = more[0].event["task"]
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    assert "message" not in task["status"]
    assert [message["parts"] for message in task["history"][-2:]] == [
        *([{"text": "Which dates?"}], [{"text": "june"}])
    ]
    assert states(more) == ["WORKING", "COMPLETED"]


@pytest.mark.clause("auth-required.streams-open")
async def test_a_send_stream_stays_open_at_auth_required(
    client: Binding, server: RunningApp
) -> None:
    seen: list[Seen] = []
    async with client.open("SendStreamingMessage", message=user("auth")) as events:
        async for event in events:
            seen.append(event)
            if states(seen)[-1:] == ["AUTH_REQUIRED"]:
                server.gate.set()
    assert states(seen) == ["WORKING", "AUTH_REQUIRED", "WORKING", "COMPLETED"]


@pytest.mark.clause("subscribe.task-first", "subscribe.ends-terminal", "events.same-for-all")
async def test_subscribers_see_the_same_events_in_the_same_order(
    client: Binding, server: RunningApp
) -> None:
    answer = await client.call(
        "SendMessage", message=user("gate"), configuration={"returnImmediately": True}
    )
    task = answer["task"]["id"]
    await until(client, task, "WORKING")

    async def follow() -> list[Seen]:
        return await client.stream("SubscribeToTask", id=task)

    followers = [asyncio.create_task(follow()) for _ in range(5)]
    while len(server.app.streams.open) < 5:
        await asyncio.sleep(0.01)
    server.gate.set()
    found = [await follower for follower in followers]
    assert kinds(found[0]) == ["task", "artifactUpdate", "statusUpdate"]
    assert all(one == found[0] for one in found[1:])


async def test_an_event_is_encoded_once_for_all_of_its_readers(
    client: Binding, server: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[object] = []
    once = v1_0.response

    def counted(event: object) -> bytes:
        encoded.append(event)
        return once(event)

    monkeypatch.setattr(v1_0, "response", counted)
    answer = await client.call(
        "SendMessage", message=user("gate"), configuration={"returnImmediately": True}
    )
    task = answer["task"]["id"]
    await until(client, task, "WORKING")
    followers = [asyncio.create_task(client.stream("SubscribeToTask", id=task)) for _ in range(5)]
    while len(server.app.streams.open) < 5:
        await asyncio.sleep(0.01)
    server.gate.set()
    for follower in followers:
        assert kinds(await follower) == ["task", "artifactUpdate", "statusUpdate"]
    assert len([e for e in encoded if isinstance(e, TaskArtifactUpdateEvent)]) == 1
    assert len([e for e in encoded if isinstance(e, TaskStatusUpdateEvent)]) == 2


@pytest.mark.parametrize("metadata", [None, {"own": 1}], ids=["bare", "metadata"])
async def test_one_that_tells_its_place_is_encoded_once_for_all_of_its_readers(
    start: Start,
    kind: type[Binding],
    metadata: dict[str, Any] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: Counter[int] = Counter()
    once = sse.placed

    def counted(entry: Entry, **how: Any) -> Any:
        if not isinstance(entry.event, Task):
            made[entry.number] += 1
        return once(entry, **how)

    agent = Agent("Relay", description="Tells a lot.")
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]

    @agent.handler
    async def relay(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working()
        await agent.gate.wait()  # type: ignore[attr-defined]
        for number in range(20):
            yield turn.artifact(str(number), id=str(number))
            yield turn.working(metadata=metadata)

    server = await start(agent=agent)
    monkeypatch.setattr(sse, "placed", counted)
    client = server.client(kind, A2A_Extensions=RESUME)
    answer = await client.call(
        "SendMessage", message=user("x"), configuration={"returnImmediately": True}
    )
    task = answer["task"]["id"]
    await until(client, task, "WORKING")
    followers = [asyncio.create_task(client.stream("SubscribeToTask", id=task)) for _ in range(5)]
    while len(server.app.streams.open) < 5:
        await asyncio.sleep(0.01)
    server.gate.set()
    found = [await follower for follower in followers]
    assert all(one == found[0] for one in found[1:])
    told = [next(iter(seen.event.values())) for seen in found[0]]
    assert [each["metadata"][RESUME] for each in told] == [{"place": n} for n in range(2, 44)]
    owns = [each["metadata"].get("own") for each in told if "status" in each][1:-1]
    assert owns == [metadata and 1] * 20
    assert len(told) == 42
    if server.app.store.shared and metadata:
        return  # readers of a database may have entries of their own
    assert set(made.values()) <= {1}


@pytest.mark.clause("subscribe.interrupted-task")
async def test_a_subscription_outlives_interrupted_states(client: Binding) -> None:
    task = (await client.call("SendMessage", message=user("ask")))["task"]
    seen: list[Seen] = []
    async with client.open("SubscribeToTask", id=task["id"]) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == 1:
                await client.call("SendMessage", message=user("june", taskId=task["id"]))
    assert seen[0].event["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    # the answer's own, and the handler's
    assert states(seen) == ["WORKING", "WORKING", "COMPLETED"]


@pytest.mark.clause("events.close-one")
async def test_closing_one_stream_touches_nothing_else(client: Binding, server: RunningApp) -> None:
    async with client.open("SendStreamingMessage", message=user("gate")) as events:
        task = (await anext(events)).event["task"]["id"]
    await until(client, task, "WORKING")
    async with client.open("SubscribeToTask", id=task) as events:
        await anext(events)
        server.gate.set()
        assert states([seen async for seen in events])[-1] == "COMPLETED"
    assert (await client.call("GetTask", id=task))["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.clause("subscribe.terminal-task", "subscribe.unknown-task", "stream.refusals")
async def test_refusals_are_ordinary_answers(client: Binding) -> None:
    task = (await client.call("SendMessage", message=user("x")))["task"]["id"]
    for name, params, reason in (
        ("SubscribeToTask", {"id": task}, "UNSUPPORTED_OPERATION"),
        ("SubscribeToTask", {"id": "nothing"}, "TASK_NOT_FOUND"),
        ("SendStreamingMessage", {"message": user("x", taskId=task)}, "UNSUPPORTED_OPERATION"),
        ("SendStreamingMessage", {"message": user("x", taskId="none")}, "TASK_NOT_FOUND"),
        ("SendStreamingMessage", {"message": {}}, "INVALID_PARAMS"),
    ):
        with pytest.raises(Failed) as failed:
            await client.stream(name, **params)
        assert failed.value.reason == reason
        events = client.last.headers["content-type"].startswith("text/event-stream")
        assert events == (client.name == "jsonrpc-0.3")  # which takes nothing else there


@pytest.mark.storeless
@pytest.mark.clause("capability.streaming")
async def test_without_the_capability(start: Start, kind: type[Binding]) -> None:
    server = await start(streaming=False)
    client = server.client(kind)
    card = (await server.http.get(f"{server.url}/.well-known/agent-card.json")).json()
    assert card["capabilities"]["streaming"] is False
    for name, params in (
        ("SendStreamingMessage", {"message": user("x")}),
        ("SubscribeToTask", {"id": "any"}),
    ):
        with pytest.raises(Failed) as failed:
            await client.stream(name, **params)
        assert failed.value.reason == "UNSUPPORTED_OPERATION"


async def test_both_verbs_subscribe(server: RunningApp) -> None:
    client = server.client(HttpJson)
    task = (await client.call("SendMessage", message=user("ask")))["task"]["id"]
    for verb in ("GET", "POST"):
        async with server.http.stream(verb, f"{server.url}/tasks/{task}:subscribe") as response:
            assert response.status_code == 200
            first = await anext(response.aiter_lines())
            assert first.startswith(f"id: {task}:")


async def test_resumes_exactly_after_a_place(server: RunningApp, kind: type[Binding]) -> None:
    plain = server.client(kind)
    whole = await plain.stream("SendStreamingMessage", message=user("chunks 20"))
    task = whole[0].event["task"]["id"]
    for place in (1, 7, 21, 22):
        client = server.client(kind, A2A_Extensions=RESUME, Last_Event_ID=f"{task}:{place}")
        rest = await client.stream("SubscribeToTask", id=task)
        assert client.activated == RESUME
        assert [_place(seen) for seen in rest] == list(range(place + 1, 24))
        assert [_stripped(seen.event) for seen in rest] == [seen.event for seen in whole[place:]]


@pytest.mark.parametrize("place", ["99", "0", "-1", "x", "9" * 30])
async def test_a_place_that_is_not_there_starts_afresh(
    server: RunningApp, kind: type[Binding], place: str
) -> None:
    task = (await server.client(kind).call("SendMessage", message=user("hi")))["task"]
    client = server.client(kind, A2A_Extensions=RESUME, Last_Event_ID=f"{task['id']}:{place}")
    (only,) = await client.stream("SubscribeToTask", id=task["id"])
    assert only.event["task"]["metadata"][RESUME] == {"place": 4, "reset": True}
    assert only.event["task"]["status"] == task["status"]


async def test_without_the_extension_a_place_means_nothing(
    server: RunningApp, kind: type[Binding]
) -> None:
    task = (await server.client(kind).call("SendMessage", message=user("ask")))["task"]
    client = server.client(kind, Last_Event_ID=f"{task['id']}:2")
    async with client.open("SubscribeToTask", id=task["id"]) as events:
        assert "task" in (await anext(events)).event


async def test_a_repeated_stream_gets_the_rest(server: RunningApp, kind: type[Binding]) -> None:
    client = server.client(kind, Idempotency_Key="s-1")
    async with client.open("SendStreamingMessage", message=user("gate")) as events:
        first = (await anext(events)).event["task"]["id"]
    await until(server.client(kind), first, "WORKING")
    async with client.open("SendStreamingMessage", message=user("gate")) as events:
        assert (await anext(events)).event["task"]["id"] == first
        server.gate.set()
        found = [event async for event in events]
    assert states(found)[-1] == "COMPLETED"
    assert len(await server.client(kind).tasks()) == 1


async def test_a_repeated_stream_with_a_place_that_is_not_there_starts_afresh(
    server: RunningApp, kind: type[Binding]
) -> None:
    options = {"Idempotency_Key": "s-2", "A2A_Extensions": RESUME}
    await server.client(kind, **options).stream("SendStreamingMessage", message=user("hi"))
    again = server.client(kind, **options, Last_Event_ID="bogus:99")
    (only,) = await again.stream("SendStreamingMessage", message=user("hi"))
    assert only.event["task"]["metadata"][RESUME] == {"place": 4, "reset": True}


@pytest.mark.clause("stream.live")
async def test_idle_streams_say_that_they_are_alive(
    start: Start, constants: Callable[..., None]
) -> None:
    constants(keepalive=0.05)
    server = await start()
    client = server.client(JsonRpc)
    task = (await client.call("SendMessage", message=user("ask")))["task"]["id"]
    request = client.request("SubscribeToTask", {"id": task})
    response = await server.http.send(request, stream=True)
    lines = response.aiter_lines()
    async with asyncio.timeout(30):
        while not (await anext(lines)).startswith(": alive"):
            pass
    await response.aclose()


async def test_a_reader_that_went_away_is_noticed(
    start: Start, kind: type[Binding], constants: Callable[..., None]
) -> None:
    constants(keepalive=0.05)
    server = await start()
    client = server.client(kind)
    task = (await client.call("SendMessage", message=user("ask")))["task"]["id"]
    async with client.open("SubscribeToTask", id=task) as events:
        await anext(events)
        assert len(server.app.streams.open) == 1
    async with asyncio.timeout(30):
        while server.app.streams.open:
            await asyncio.sleep(0.01)


@pytest.mark.clause("limits.sizes")
async def test_the_number_of_streams_is_limited(
    start: Start, kind: type[Binding], constants: Callable[..., None]
) -> None:
    constants(max_streams=1)
    server = await start()
    client = server.client(kind)
    task = (await client.call("SendMessage", message=user("ask")))["task"]["id"]
    async with client.open("SubscribeToTask", id=task) as events:
        await anext(events)
        with pytest.raises(Failed) as failed:
            await client.stream("SubscribeToTask", id=task)
        assert (failed.value.reason, failed.value.status) == ("RESOURCE_EXHAUSTED", 429)
        assert client.last.headers["retry-after"] == "1"


async def test_draining_ends_streams_in_order(start: Start, kind: type[Binding]) -> None:
    server = await start(drain_timeout=0.05)
    client = server.client(kind)
    task = (await client.call("SendMessage", message=user("ask")))["task"]["id"]
    async with client.open("SubscribeToTask", id=task) as events:
        await anext(events)
        await server.app.drain()
        assert [event async for event in events] == []
    late = client.call("SendMessage", message=user("late"))
    if server.app.settings.store.startswith("postgresql:"):  # others can do it
        assert (await late)["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
        with pytest.raises(Failed) as failed:  # but could tell nobody here
            await client.call("SendMessage", message=user("hi", metadata={"skill": "talk"}))
        assert failed.value.status == 503
        assert len(await client.tasks()) == 2
    else:
        with pytest.raises(Failed) as failed:
            await late
        assert (failed.value.reason, failed.value.status) == ("UNAVAILABLE", 503)
    assert (await client.call("GetTask", id=task))["id"] == task


async def test_draining_lets_running_turns_end(start: Start, kind: type[Binding]) -> None:
    server = await start(drain_timeout=5.0)
    client = server.client(kind)
    stream = asyncio.create_task(client.stream("SendStreamingMessage", message=user("gate")))
    async with asyncio.timeout(30):
        while not (tasks := await client.tasks()):
            await asyncio.sleep(0.01)
    await until(client, tasks[0]["id"], "WORKING")
    drain = asyncio.create_task(server.app.drain())
    await asyncio.sleep(0)
    server.gate.set()
    assert states(await stream)[-1] == "COMPLETED"
    await drain


async def test_draining_ends_turns_that_do_not_end(start: Start, kind: type[Binding]) -> None:
    server = await start(drain_timeout=0.1)
    client = server.client(kind)
    send = asyncio.create_task(client.call("SendMessage", message=user("gate")))
    async with asyncio.timeout(30):
        while not (tasks := await client.tasks()):
            await asyncio.sleep(0.01)
    await until(client, tasks[0]["id"], "WORKING")
    await server.app.drain()
    task = (await send)["task"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "shut down" in task["status"]["message"]["parts"][0]["text"]
    assert await ended(client, task["id"])


def _place(seen: Seen) -> int:
    (value,) = seen.event.values()
    place = int(value["metadata"][RESUME]["place"])  # a double, in protobuf
    assert not seen.id or seen.id.endswith(f":{place}")
    return place


def _stripped(event: dict[str, Any]) -> dict[str, Any]:
    ((name, value),) = event.items()
    metadata = {k: v for k, v in value["metadata"].items() if k != RESUME}
    rest = {k: v for k, v in value.items() if k != "metadata"}
    return {name: {**rest, "metadata": metadata} if metadata else rest}


async def test_a_turn_that_is_quicker_than_its_stream_is_told_all_the_same() -> None:
    class Late(MemoryStore):
        """What is asked for a follow-up is answered when its turn has ended."""

        async def load(self, scope: Scope, task: str) -> Record | None:
            while (head := await self.head(scope, task)) and head.last == 4:
                await asyncio.sleep(0.001)
            return await super().load(scope, task)

    agent = agents.make()
    async with (
        App(agent, store=Late(), drain_timeout=0.0) as app,
        Client.connect(app=app) as client,
    ):
        asked = await client.send("ask")
        assert asked.task is not None
        async with client.stream("hello", task=asked.task.id) as stream:
            events = [event async for event in stream]
    assert isinstance(events[0], Task)
    assert not events[0].artifacts
    assert [event.artifact.name for event in events if hasattr(event, "artifact")] == ["echo"]
