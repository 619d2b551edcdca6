"""One task over all bindings and versions: created over one, read and canceled over others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from dragoman import App
from tests.contract.bindings.conftest import KINDS, identify, user
from tests.contract.bindings.test_send import until
from tests.harness import agents
from tests.harness.app import RunningApp, running
from tests.harness.clients import Binding, Failed, Grpc, HttpJson, JsonRpc, Seen
from tests.harness.older_clients import Grpc03, Http03, JsonRpc01, JsonRpc03
from tests.harness.server import BINDINGS
from tests.harness.webhooks import receiving

pytestmark = pytest.mark.first
FORMS: tuple[type[Binding], ...] = tuple(kind for kind in KINDS if kind is not JsonRpc01)
"""Those whose ids of tasks are ours."""
OLDER = (JsonRpc03, Http03, Grpc03)
SUPPORTED = {"supported": "1.0, 0.3, 0.2, 0.1"}
each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
form = pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.name)


@asynccontextmanager
async def assembly(
    *, required: bool = False, extended: bool = False, **settings: Any
) -> AsyncIterator[RunningApp]:
    """A server that speaks everything."""
    agent = agents.make(required=required, extended=extended)
    known = {"cancel_grace": 0.3, "drain_timeout": 0.2, "poll": 0.02, "grpc_port": 0, "push": True}
    more = {"egress_allow": ["127.0.0.1"], "push_retries": (0.02,), "bindings": BINDINGS}
    app = App(agent, identify=identify, **{**known, **more, **settings})
    async with running(app) as server:
        yield server
        server.gate.set()


@pytest.fixture
async def hall() -> AsyncIterator[RunningApp]:
    """Such a server with the usual settings."""
    async with assembly() as server:
        yield server


async def post(server: RunningApp, path: str, body: Any, **headers: str) -> httpx.Response:
    """A request by hand."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await server.http.post(f"{server.url}{path}", json=body, headers=named)


async def rpc(server: RunningApp, method: str, params: Any, path: str = "/", **headers: str) -> Any:
    """A JSON-RPC request by hand, and what it is answered."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return (await post(server, path, body, **headers)).json()


def said(text: str = "hello", **more: Any) -> dict[str, Any]:
    """A message of 0.3."""
    parts = [{"kind": "text", "text": text}]
    return {"kind": "message", "messageId": "m-1", "role": "user", "parts": parts, **more}


def first(text: str = "hello", id: str = "t-1", **more: Any) -> dict[str, Any]:
    """The parameters of a send in 0.1."""
    return {"id": id, "message": {"role": "user", "parts": [{"type": "text", "text": text}]}} | more


async def only(server: RunningApp, **headers: str) -> dict[str, Any]:
    """The one task that there is, as 1.0 tells it."""
    client = server.client(JsonRpc, **headers)
    async with asyncio.timeout(30):
        while not (tasks := await client.tasks()):
            await asyncio.sleep(0.01)
    (task,) = tasks
    found: dict[str, Any] = await client.call("GetTask", id=task["id"])
    return found


# ---- one task ------------------------------------------------------------------------------

PARTS = [
    {"text": "ünïcode \u2028 \U0001f600"},
    {"data": {"deep": {"er": [1, 2.5, None, True, {}]}}},
    {"data": ["no", "object"]},
    {"raw": "AP/+IGJ5dGVz", "filename": "a.json", "mediaType": "application/json"},
    {"raw": "QVAvK0lHSjVkR1Z6", "filename": "text that looks like base64"},
    {"url": "https://example.com/a.pdf", "filename": "a.pdf"},
    {"text": "", "metadata": {"x": [1]}},
]


@form
async def test_a_task_is_the_same_in_all_of_them(hall: RunningApp, kind: type[Binding]) -> None:
    message = user(
        parts=PARTS,
        metadata={"skill": "files", "more": {"x": 1}},
        contextId="mine",
        extensions=["urn:e"],
    )
    sent = await hall.client(kind).call("SendMessage", message=message)
    task = sent["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"] == PARTS
    assert task["history"][0]["parts"] == PARTS
    assert task["history"][0]["metadata"] == message["metadata"]
    assert task["history"][0]["extensions"] == ["urn:e"]
    assert task["contextId"] == "mine"
    for other in FORMS:
        assert await hall.client(other).call("GetTask", id=task["id"]) == task


async def test_a_task_of_0_1_is_the_same_in_all_of_them(hall: RunningApp) -> None:
    oldest = hall.client(JsonRpc01)
    parts = [PARTS[0], PARTS[1], {"raw": "AP/+IGJ5dGVz", "filename": "a.bin"}, PARTS[5], PARTS[6]]
    message = user(parts=parts, metadata={"skill": "files"}, contextId="mine", taskId="t-1")
    sent = (await oldest.call("SendMessage", message=message))["task"]
    assert (sent["id"], sent["contextId"]) == ("t-1", "mine")
    assert sent["artifacts"][0]["parts"] == parts
    assert await oldest.call("GetTask", id="t-1") == sent
    task = await only(hall)
    for other in FORMS:
        found = await hall.client(other).call("GetTask", id=task["id"])
        assert found == task
        assert found["status"]["timestamp"] == sent["status"]["timestamp"]
        assert found["artifacts"][0]["parts"] == parts
        assert found["history"][0]["parts"] == parts


async def test_what_0_3_has_no_field_for_is_carried(hall: RunningApp) -> None:
    newer = hall.client(JsonRpc)
    before = (await newer.call("SendMessage", message=user("x")))["task"]["id"]
    part = {"text": "x", "mediaType": "text/plain", "filename": "a.txt", "metadata": {"own": 1}}
    message = user(parts=[part], metadata={"skill": "files"}, referenceTaskIds=[before])
    task = (await newer.call("SendMessage", message=message))["task"]["id"]
    for kind in OLDER:
        client = hall.client(kind)
        found = (await client.call("GetTask", id=task))["history"][0]
        assert found["parts"][0].keys() == {"text", "metadata"}
        assert found["parts"][0]["metadata"]["own"] == 1
        again = user(parts=found["parts"], metadata=found["metadata"])
        if kind.can("references"):
            again["referenceTaskIds"] = found["referenceTaskIds"]
        sent = (await client.call("SendMessage", message=again))["task"]
        told = (await newer.call("GetTask", id=sent["id"]))["history"][0]
        assert told["parts"] == [part]
        assert told["referenceTaskIds"] == [before]
        assert told["metadata"] == {"skill": "files"}


@each
async def test_a_question_is_answered_from_another(hall: RunningApp, kind: type[Binding]) -> None:
    client = hall.client(kind)
    asked = (await client.call("SendMessage", message=user("ask")))["task"]
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    ours = await only(hall)
    other = FORMS[(KINDS.index(kind) + 1) % len(FORMS)]
    answer = user("june", taskId=ours["id"])
    done = (await hall.client(other).call("SendMessage", message=answer))["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    found = await client.call("GetTask", id=asked["id"])
    texts = [message["parts"][0]["text"] for message in found["history"]]
    assert texts == ["ask", "working on ask", "Which dates?", "june", "working on june"]
    assert [a["parts"] for a in found["artifacts"]] == [[{"text": "june"}]]


@each
async def test_one_begins_and_another_cancels(hall: RunningApp, kind: type[Binding]) -> None:
    client = hall.client(kind)
    sending = asyncio.create_task(client.call("SendMessage", message=user("gate")))
    task = await only(hall)
    await until(hall.client(JsonRpc), task["id"], "WORKING")
    other = FORMS[(KINDS.index(kind) + 2) % len(FORMS)]
    found = await hall.client(other).call("CancelTask", id=task["id"])
    assert found["status"]["state"] == "TASK_STATE_CANCELED"
    sent = (await sending)["task"]
    assert sent["status"]["state"] == "TASK_STATE_CANCELED"
    with pytest.raises(Failed) as failed:
        await client.call("CancelTask", id=sent["id"])
    assert failed.value.reason == "TASK_NOT_CANCELABLE"


def plain(seen: Seen) -> Any:
    """What all versions say about an event."""
    ((name, value),) = seen.event.items()
    if name == "artifactUpdate":
        return value["artifact"]["parts"], value.get("append", False)
    return value["status"]["state"], value["status"].get("message", {}).get("parts")


async def test_streams_in_every_form_see_the_same(hall: RunningApp) -> None:
    oldest = hall.client(JsonRpc01)
    begun = asyncio.create_task(
        oldest.stream("SendStreamingMessage", message=user("relay", taskId="t"))
    )
    task = (await only(hall))["id"]
    await until(hall.client(JsonRpc), task, "WORKING")
    streams = {
        kind: asyncio.create_task(hall.client(kind).stream("SubscribeToTask", id=task))
        for kind in FORMS
    }
    again = asyncio.create_task(oldest.stream("SubscribeToTask", id="t"))
    async with asyncio.timeout(30):
        while len(hall.app.streams.open) < len(FORMS) + 2:
            await asyncio.sleep(0.01)
    hall.gate.set()
    found = {kind: await stream for kind, stream in streams.items()}
    expected = [seen.event for seen in found[JsonRpc]]
    assert [next(iter(event)) for event in expected] == [
        "task",
        *["artifactUpdate"] * 20,
        "statusUpdate",
    ]
    for kind, seen in found.items():
        assert [one.event for one in seen] == expected, kind.name
    ids = [seen.id for seen in found[JsonRpc]]
    for kind in (HttpJson, JsonRpc03, Http03):
        assert [seen.id for seen in found[kind]] == ids
    told = [plain(seen) for seen in found[JsonRpc]]
    assert [plain(seen) for seen in await again] == told
    assert [plain(seen) for seen in await begun][-21:] == told[1:]
    assert {next(iter(seen.event.values()))["taskId"] for seen in await again} == {"t"}


# ---- the end of a stream -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*OLDER, JsonRpc01], ids=lambda kind: kind.name)
async def test_the_last_event_says_so(hall: RunningApp, kind: type[Binding]) -> None:
    for text in ("hello", "ask", "chunks 3", "reject", "fail"):
        seen = await hall.client(kind).stream("SendStreamingMessage", message=user(text))
        finals = [one.final for one in seen if "statusUpdate" in one.event]
        assert finals == [False] * (len(finals) - 1) + [True], text
        assert "statusUpdate" in seen[-1].event


@pytest.mark.parametrize("kind", OLDER, ids=lambda kind: kind.name)
async def test_a_question_is_not_the_end_of_a_subscription(
    hall: RunningApp, kind: type[Binding]
) -> None:
    client = hall.client(kind)
    task = (await client.call("SendMessage", message=user("ask")))["task"]["id"]
    seen = []
    async with client.open("SubscribeToTask", id=task) as events:
        async for one in events:
            seen.append(one)
            if len(seen) == 1:
                await client.call("SendMessage", message=user("ask", taskId=task))
            elif one.event["statusUpdate"]["status"]["state"].endswith("REQUIRED"):
                await client.call("CancelTask", id=task)
    assert [one.final for one in seen] == [None, False, False, False, True]


async def frames(
    server: RunningApp, verb: str, path: str, **options: Any
) -> tuple[httpx.Response, str]:
    """An answer and its whole body."""
    response = await server.http.request(verb, f"{server.url}{path}", **options)
    return response, response.text


async def test_an_error_before_the_first_event(hall: RunningApp) -> None:
    body = {"jsonrpc": "2.0", "id": "x", "method": "tasks/resubscribe", "params": {"id": "none"}}
    for method, params in (
        ("tasks/resubscribe", {"id": "none"}),
        ("message/stream", {"message": said(taskId="none")}),
        ("message/stream", {"message": {}}),
        ("tasks/sendSubscribe", {"id": ""}),
    ):
        body |= {"method": method, "params": params}
        response, text = await frames(hall, "POST", "/", json=body)
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert text.startswith("data: ")
        assert text.endswith("}\n\n")
        assert text.count("\n") == 2
        told = json.loads(text[6:])
        assert told["id"] == "x"
        assert told["error"]["code"] in (-32001, -32602)
    for path, kind in (("/v1/tasks/none:subscribe", "json"), ("/tasks/none:subscribe", "a2a+json")):
        response, text = await frames(hall, "GET", path)
        assert response.status_code == 404
        assert response.headers["content-type"] == f"application/{kind}"
    assert json.loads((await frames(hall, "GET", "/v1/tasks/none:subscribe"))[1]) == {
        "code": -32001,
        "type": "TaskNotFoundError",
        "message": "Task not found",
    }
    for each_ in (Grpc, Grpc03):
        with pytest.raises(Failed) as failed:
            await hall.client(each_).stream("SubscribeToTask", id="none")
        assert (failed.value.reason, failed.value.status) == ("TASK_NOT_FOUND", 404)


async def test_signs_of_life_are_no_events(
    hall: RunningApp, constants: Callable[..., None]
) -> None:
    constants(keepalive=0.03)
    async with assembly() as server:
        task = (await server.client(JsonRpc).call("SendMessage", message=user("ask")))["task"]["id"]
        resubscribe = {"jsonrpc": "2.0", "id": 1, "method": "tasks/resubscribe"}
        resubscribe["params"] = {"id": task}
        newer = {**resubscribe, "method": "SubscribeToTask"}
        for request, alive in (
            (
                server.http.build_request("POST", server.url, json=resubscribe),
                b": alive\n: alive\n",
            ),
            (
                server.http.build_request("GET", f"{server.url}/v1/tasks/{task}:subscribe"),
                b": alive\n: alive\n",
            ),
            (server.http.build_request("POST", server.url, json=newer), b": alive\n\n"),
        ):
            response = await server.http.send(request, stream=True)
            body = b""
            async with asyncio.timeout(30):
                async for piece in response.aiter_raw():
                    body += piece
                    if alive in body:
                        break
            await response.aclose()


# ---- webhooks ------------------------------------------------------------------------------


@each
async def test_a_webhook_speaks_as_who_registered_it(hall: RunningApp, kind: type[Binding]) -> None:
    client = hall.client(kind)
    async with receiving() as inbox:
        asked = (
            (await client.call("SendMessage", message=user("ask", taskId="t-1")))["task"]
            if (kind is JsonRpc01)
            else (await client.call("SendMessage", message=user("ask")))["task"]
        )
        hook = {"taskId": asked["id"], "url": inbox.url, "token": "secret"}
        await client.call("CreateTaskPushNotificationConfig", **hook)
        task = await only(hall)
        await hall.client(JsonRpc).call("SendMessage", message=user("hi", taskId=task["id"]))
        posts = await inbox.came(4 if kind.version == "1.0" else 3)
        done = await client.call("GetTask", id=asked["id"])
    assert {post.headers["x-a2a-notification-token"] for post in posts} == {"secret"}
    kinds = {post.headers["content-type"] for post in posts}
    events = [post.event for post in posts]
    if kind.version == "1.0":
        assert kinds == {"application/a2a+json"}
        assert [next(iter(event)) for event in events] == [
            "statusUpdate",  # the answer replaces the question
            "statusUpdate",
            "artifactUpdate",
            "statusUpdate",
        ]
        return
    assert kinds == {"application/json"}
    answered, *events = events  # which has replaced the question
    assert (answered["status"]["state"], "message" in answered["status"]) == ("working", False)
    assert [event["status"]["state"] for event in events] == ["working", "completed"]
    assert ["artifacts" in event for event in events] == [False, True]
    assert events[0]["id"] == asked["id"]
    texts = [[m["parts"][0]["text"] for m in event["history"]] for event in events]
    assert texts[1] == [m["parts"][0]["text"] for m in done["history"]]
    assert texts[0] == texts[1][:-1]  # as it was at that time
    part = events[1]["artifacts"][0]["parts"][0]
    if kind is JsonRpc01:
        assert "kind" not in events[0]
        assert events[0]["sessionId"] == asked["contextId"]
        assert part == {"type": "text", "text": "hi"}
    else:
        assert {event["kind"] for event in events} == {"task"}
        assert events[0]["contextId"] == asked["contextId"]
        assert part == {"kind": "text", "text": "hi"}


@each
async def test_a_webhook_that_comes_with_the_message(hall: RunningApp, kind: type[Binding]) -> None:
    async with receiving() as inbox:
        hook = {"url": inbox.url, "token": "t"}
        await hall.client(kind).call(
            "SendMessage",
            message=user("hello"),
            configuration={"taskPushNotificationConfig": hook},
        )
        posts = await inbox.came(3 if kind.version == "1.0" else 2)
    last = posts[-1].event
    status = last["statusUpdate"]["status"] if kind.version == "1.0" else last["status"]
    assert status["state"].lower().endswith("completed")
    assert ("kind" in last) == (kind.version == "0.3")


# ---- idempotency ---------------------------------------------------------------------------


async def test_one_key_is_one_send_in_every_form(hall: RunningApp) -> None:
    found = await asyncio.gather(
        *(
            hall.client(kind, Idempotency_Key="k").call("SendMessage", message=user("hi"))
            for kind in FORMS * 3
        )
    )
    assert len({answer["task"]["id"] for answer in found}) == 1
    await only(hall)
    for kind in FORMS:
        seen = await hall.client(kind, Idempotency_Key="k").stream(
            "SendStreamingMessage", message=user("hi")
        )
        (told,) = {
            value.get("id") or value["taskId"] for one in seen for value in one.event.values()
        }
        assert told == found[0]["task"]["id"]
        with pytest.raises(Failed) as failed:
            await hall.client(kind, Idempotency_Key="k").call("SendMessage", message=user("other"))
        assert failed.value.fields == ["Idempotency-Key"]
    await only(hall)


@pytest.mark.parametrize("kind", [*OLDER, Grpc], ids=lambda kind: kind.name)
async def test_a_known_callers_message_is_known_in_every_form(
    hall: RunningApp, kind: type[Binding]
) -> None:
    for each_ in (JsonRpc, kind, kind):
        await hall.client(each_, X_User="ann").call("SendMessage", message=user("hi"))
    await only(hall, X_User="ann")
