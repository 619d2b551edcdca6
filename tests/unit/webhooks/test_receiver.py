"""The receiver: whom it believes, what it hands on, how often, and what it answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.routing import Mount

from dragoman.dialects import v1_0
from dragoman.dialects.v0_3 import rpc
from dragoman.model.errors import A2AError, InvalidParams, ParseError, TaskNotFound
from dragoman.model.events import Reply
from dragoman.model.types import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.webhooks import receiver as module
from dragoman.webhooks import signature
from dragoman.webhooks.receiver import (
    BadSignature,
    MissingSignature,
    Notification,
    Receiver,
    TooNew,
    TooOld,
    WrongToken,
)
from tests.harness import wire_values as wire
from tests.harness.scale import examples
from tests.harness.server import serving
from tests.harness.trust import NOBODY

ROOT = Path(__file__).resolve().parents[3]
KEY, OTHER, PRIVATE = signature.secret(), signature.secret(), signature.private()
STATUS = TaskStatus(state=TaskState.COMPLETED)
UPDATE = TaskStatusUpdateEvent(task_id="t-1", context_id="c-1", status=STATUS)
HELLO = Message(message_id="m-1", task_id="t-1", role=Role.AGENT, parts=(Part(text="hello"),))
EVENTS = (
    Task(id="t-1", context_id="c-1", status=STATUS),
    HELLO,
    UPDATE,
    TaskArtifactUpdateEvent(
        task_id="t-1",
        context_id="c-1",
        artifact=Artifact(artifact_id="a-1", parts=(Part(text="result"),)),
    ),
)


def push(event: Any = UPDATE) -> bytes:
    """An event as it is sent."""
    return v1_0.response(Reply(event) if isinstance(event, Message) else event)


BODY = push()


def signed(
    body: bytes = BODY, *, id: str = "d-1", key: Any = KEY, late: float = 0.0
) -> dict[str, str]:
    """The headers of a delivery."""
    at = int(time.time() - late)
    return {
        "Content-Type": "application/a2a+json",
        "Webhook-Id": id,
        "Webhook-Timestamp": str(at),
        "Webhook-Signature": signature.sign([key], id, at, body),
    }


def without(headers: dict[str, str], *names: str) -> dict[str, str]:
    """Headers of which some are missing."""
    return {name: value for name, value in headers.items() if name not in names}


# ---- whom it believes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        rpc.encode(EVENTS[0]),  # 0.3
        b'{"id":"t-1","contextId":"c-1","status":{"state":"completed"}}',  # without its kind
        b'{"id":"t-1","sessionId":"c-1","status":{"state":"completed"}}',  # 0.1
    ],
)
def test_before_1_0_it_is_the_whole_task(body: bytes) -> None:
    assert Receiver(keys=[KEY.text]).verify(signed(body), body).event == EVENTS[0]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_notification(event: Any) -> None:
    body = push(event)
    found = Receiver(keys=[KEY.text]).verify(signed(body), body)
    assert found == Notification(
        id="d-1", task_id="t-1", event=event, timestamp=found.timestamp, fresh=True
    )
    assert found.timestamp is not None
    assert abs(time.time() - found.timestamp) < 5


@pytest.mark.parametrize("key", [KEY, PRIVATE], ids=["hmac", "ed25519"])
def test_signatures(key: Any) -> None:
    given = key.text if key is KEY else key.public().text
    here = Receiver(keys=[OTHER.text, given])
    assert here.verify(signed(key=key), BODY).event == UPDATE
    for headers, body in (
        (signed(key=signature.secret()), BODY),
        (signed(key=signature.private()), BODY),
        (signed(key=key), BODY + b" "),
        ({**signed(key=key), "Webhook-Id": "d-2"}, BODY),
        ({**signed(key=key), "Webhook-Timestamp": str(int(time.time()) + 2)}, BODY),
        ({**signed(key=key), "Webhook-Signature": "v1,"}, BODY),
    ):
        with pytest.raises(BadSignature):
            here.verify(headers, body)


@pytest.mark.parametrize("name", ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"])
def test_a_signature_is_not_whole_without(name: str) -> None:
    here = Receiver(keys=[KEY.text], token="sesame")
    headers = {**signed(), "X-A2A-Notification-Token": "sesame"}
    assert here.verify(headers, BODY)
    for wrong in (without(headers, name), {**headers, name: ""}):
        with pytest.raises(MissingSignature):
            here.verify(wrong, BODY)


def test_time() -> None:
    here = Receiver(keys=[KEY.text], tolerance=60)
    for late in (0, 55, -55):
        assert here.verify(signed(late=late), BODY)
    with pytest.raises(TooOld):
        here.verify(signed(late=65), BODY)
    with pytest.raises(TooNew):
        here.verify(signed(late=-65), BODY)


@pytest.mark.parametrize("text", ["soon", "1.5", "-1", "1e9", "٣", "1" * 13, " 1", "nan"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InvalidParams, match="webhook-timestamp: expected Unix seconds"):
        Receiver(token="sesame").verify(
            {"X-A2A-Notification-Token": "sesame", "Webhook-Timestamp": text}, BODY
        )


@pytest.mark.parametrize("given", ["", "Sesame", "sesam", "sesame ", "sésame", "\udc80", "\ud800"])
def test_a_wrong_token(given: str) -> None:
    here = Receiver(token="sesame", keys=[KEY.text])
    with pytest.raises(WrongToken):
        here.verify({**signed(), "X-A2A-Notification-Token": given}, BODY)
    with pytest.raises(WrongToken):
        here.verify(signed(), BODY)


def test_a_token_alone_needs_neither_id_nor_time() -> None:
    # as the reference agent sends it
    found = Receiver(token="sesame").verify({"X-A2A-Notification-Token": "sesame"}, BODY)
    assert (found.id, found.timestamp, found.fresh) == ("", None, True)


def test_a_time_counts_even_if_it_is_not_signed() -> None:
    headers = {"X-A2A-Notification-Token": "sesame", "Webhook-Timestamp": "1614265330"}
    with pytest.raises(TooOld):
        Receiver(token="sesame").verify(headers, BODY)


def test_headers_of_any_kind() -> None:
    here = Receiver(keys=[KEY.text])
    headers = signed()
    for form in (
        {name.upper(): value for name, value in headers.items()},
        Headers(headers),
        httpx.Headers(headers),
        list(headers.items()),
        iter([(name.encode(), value.encode()) for name, value in headers.items()]),
        {name.encode(): value.encode() for name, value in headers.items()},
    ):
        assert here.verify(form, BODY).id == "d-1"


@pytest.mark.parametrize("id", ["x" * 257, "é"])
def test_ids_are_short_and_plain(id: str) -> None:
    with pytest.raises(InvalidParams, match="webhook-id"):
        Receiver(insecure=True).verify({"webhook-id": id}, BODY)


# ---- what it can be told -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "anyone can send notifications; .* insecure=True"),
        ({"keys": []}, "anyone can send notifications"),
        ({"token": ""}, "token: must not be empty"),
        ({"token": "", "keys": [KEY.text]}, "token: must not be empty"),
        ({"token": "", "insecure": True}, "token: must not be empty"),
        ({"keys": KEY.text}, "expected lists, not strings"),
        ({"token": "x", "tasks": "t-1"}, "expected lists, not strings"),
        ({"keys": ["whsec_c2hvcnQ="]}, "24 to 64 bytes"),
        ({"token": "x", "tolerance": 0}, "greater than 0"),
        ({"token": "x", "tolerance": float("nan")}, "greater than 0"),
        ({"token": "x", "remember": 0}, "greater than 0"),
        ({"token": "x", "max_body": 0}, "greater than 0"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Receiver(**arguments)


def test_insecure_believes_anybody() -> None:
    assert Receiver(insecure=True).verify({}, BODY).event == UPDATE


def test_nothing_secret_is_shown() -> None:
    assert KEY.text not in repr(vars(Receiver(keys=[KEY.text])))


# ---- what it takes -------------------------------------------------------------------------


def refused(body: bytes | str) -> str:
    """What is said of a body that is none."""
    with pytest.raises((InvalidParams, ParseError)) as caught:
        Receiver(insecure=True).verify({}, body.encode() if isinstance(body, str) else body)
    return str(caught.value)


def test_bodies_that_are_none() -> None:
    one = "body: expected exactly one of task, message, statusUpdate, artifactUpdate"
    assert refused("{}") == one
    assert refused('{"task": null}') == one
    assert refused('{"kind": "task", "id": "t-1"}') == one
    both = {"message": json.loads(push(HELLO))["message"], **json.loads(BODY)}
    assert refused(json.dumps(both)) == one
    assert refused("[]").startswith("body: expected object")
    assert refused("").startswith("Body is not valid JSON")
    assert refused(b"\xff").startswith("Body is not valid")
    assert refused('{"a":' * 5000) != ""
    assert refused("[" * 100_000) != ""


def test_the_field_that_is_wrong_is_named() -> None:
    update = json.loads(BODY)["statusUpdate"]
    for name, value, said in (
        ("taskId", "", "statusUpdate.taskId: must not be empty"),
        ("contextId", 7, "statusUpdate.contextId: expected str, got int"),
        ("status", None, "statusUpdate.status: is required"),
        ("status", {"state": "DONE"}, "statusUpdate.status.state: invalid enum value 'DONE'"),
    ):
        assert refused(json.dumps({"statusUpdate": {**update, name: value}})) == said


def test_the_liberties_of_protojson() -> None:
    body = {"status_update": {"task_id": "t-1", "context_id": "c-1", "status": {"state": 3}}}
    assert Receiver(insecure=True).verify({}, json.dumps(body).encode()).event == UPDATE


def test_expected_tasks() -> None:
    known: set[str] = set()
    asked: list[str] = []

    def expects(task: str) -> bool:
        asked.append(task)
        return task in known

    for here in (Receiver(insecure=True, tasks=known), Receiver(insecure=True, tasks=expects)):
        known.clear()
        with pytest.raises(TaskNotFound, match="does not expect"):
            here.verify({}, BODY)
        known.add("t-1")  # a collection may change
        assert here.verify({}, BODY).task_id == "t-1"
        with pytest.raises(TaskNotFound):
            here.verify({}, push(Message(message_id="m", role=Role.AGENT, parts=HELLO.parts)))
    assert asked == ["t-1", "t-1", ""]


def test_what_was_handled_is_acknowledged_when_its_task_is_no_longer_expected() -> None:
    known = {"t-1"}
    here = Receiver(keys=[KEY.text], tasks=known)
    here.done(here.verify(signed(), BODY))
    known.clear()
    assert not here.verify(signed(), BODY).fresh
    with pytest.raises(TaskNotFound):
        here.verify(signed(id="d-2"), BODY)


# ---- once ----------------------------------------------------------------------------------


def test_fresh_until_it_is_done() -> None:
    here = Receiver(keys=[KEY.text])
    first = here.verify(signed(), BODY)
    assert here.verify(signed(), BODY).fresh
    here.done(first)
    assert not here.verify(signed(late=10), BODY).fresh
    assert here.verify(signed(id="d-2"), BODY).fresh


def test_what_has_no_id_is_always_fresh() -> None:
    here = Receiver(insecure=True)
    here.done(here.verify({}, BODY))
    assert here.verify({}, BODY).fresh


def test_only_so_many_are_remembered_the_latest() -> None:
    here = Receiver(insecure=True, remember=3)
    for number in (0, 1, 2, 0, 3):
        here.done(here.verify({"webhook-id": f"d-{number}"}, BODY))
    fresh = [here.verify({"webhook-id": f"d-{number}"}, BODY).fresh for number in range(4)]
    assert fresh == [False, True, False, False]


def test_only_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    here = Receiver(insecure=True, tolerance=300)
    here.done(here.verify({"webhook-id": "d-1"}, BODY))
    now += module.AGE - 1
    assert not here.verify({"webhook-id": "d-1"}, BODY).fresh
    now += 2
    assert here.verify({"webhook-id": "d-1"}, BODY).fresh
    here.done(here.verify({"webhook-id": "d-2"}, BODY))
    assert len(here._seen) == 1


def test_memory_is_never_shorter_than_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    here = Receiver(insecure=True, tolerance=module.AGE)
    here.done(here.verify({"webhook-id": "d-1"}, BODY))
    now += module.AGE * 2 - 1
    assert not here.verify({"webhook-id": "d-1"}, BODY).fresh


# ---- over HTTP -----------------------------------------------------------------------------


class Desk:
    """A handler that notes what it is given, and fails or waits on demand."""

    def __init__(self) -> None:
        self.got: list[Notification] = []
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def handle(self, notification: Notification) -> None:
        self.got.append(notification)
        await self.gate.wait()
        if self.broken:
            raise RuntimeError("the desk is broken")

    async def busy(self, calls: int = 1) -> None:
        """Until the handler has been called so often."""
        async with asyncio.timeout(30):
            while len(self.got) < calls:
                await asyncio.sleep(0.005)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def plain(receiver: Receiver, handle: Any) -> tuple[Any, str]:
    """The plain ASGI application."""
    return receiver.app(handle), "/"


def routed(receiver: Receiver, handle: Any) -> tuple[Any, str]:
    """A route of Starlette, in a mounted part."""
    return Starlette(
        routes=[Mount("/api", routes=[receiver.route("/hooks", handle)])]
    ), "/api/hooks"


Host = Callable[[Receiver, Any], tuple[Any, str]]


@pytest.fixture(params=[plain, routed], ids=["asgi", "starlette"])
def host(request: pytest.FixtureRequest) -> Host:
    found: Host = request.param
    return found


@contextlib.asynccontextmanager
async def sender(host: Host, receiver: Receiver, handle: Any) -> AsyncIterator[Any]:
    """What posts a body with headers to the receiver."""
    app, path = host(receiver, handle)
    async with serving(app) as url, httpx.AsyncClient(timeout=5, verify=NOBODY) as client:

        async def post(headers: dict[str, str], body: bytes = BODY) -> httpx.Response:
            return await client.post(url + path, headers=headers, content=body)

        post.client, post.url = client, url + path  # type: ignore[attr-defined]
        yield post


async def test_handled(host: Host, desk: Desk) -> None:
    async with sender(host, Receiver(keys=[KEY.text]), desk.handle) as post:
        for number, event in enumerate(EVENTS):
            body = push(event)
            answer = await post(signed(body, id=f"d-{number}"), body)
            assert answer.status_code == 200, answer.text
        assert [found.event for found in desk.got] == list(EVENTS)
        assert [found.id for found in desk.got] == ["d-0", "d-1", "d-2", "d-3"]


async def test_refused(host: Host, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    here = Receiver(keys=[KEY.text], token="sesame", tasks={"t-1"})
    right = {"x-a2a-notification-token": "sesame"}
    elsewhere = push(Task(id="t-2", context_id="c", status=STATUS))
    cases = [
        (401, {**signed(), "x-a2a-notification-token": "guess"}, BODY),
        (401, right, BODY),
        (401, right | signed(key=OTHER), BODY),
        (401, right | signed(late=900), BODY),
        (401, right | signed(late=-900), BODY),
        (400, right | signed() | {"Webhook-Timestamp": "x"}, BODY),
        (400, right | signed(b"{}"), b"{}"),
        (400, right | signed(b"not json"), b"not json"),
        (404, right | signed(elsewhere), elsewhere),
    ]
    caplog.set_level(logging.INFO, "dragoman")
    async with sender(host, here, desk.handle) as post:
        for status, headers, body in cases:
            answer = await post(headers, body)
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["code"] == status
            assert "sesame" not in answer.text + caplog.text
            assert KEY.text[6:] not in answer.text + caplog.text
        assert (await post(right | signed())).status_code == 200
    assert len(desk.got) == 1
    assert caplog.text.count("webhook refused") == len(cases)
    assert "The signature is wrong" in caplog.text


async def test_only_post(host: Host, desk: Desk) -> None:
    async with sender(host, Receiver(keys=[KEY.text]), desk.handle) as post:
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
            answer = await post.client.request(method, post.url, headers=signed())
            assert answer.status_code == 405
            assert answer.headers["allow"] == "POST"
    assert desk.got == []


async def test_any_content_type(host: Host, desk: Desk) -> None:
    async with sender(host, Receiver(keys=[KEY.text]), desk.handle) as post:
        for number, kind in enumerate(("text/plain", "application/json; charset=latin-1", "?")):
            answer = await post({**signed(id=f"d-{number}"), "Content-Type": kind})
            assert answer.status_code == 200
    assert len(desk.got) == 3


async def test_large_bodies(host: Host, desk: Desk) -> None:
    here = Receiver(keys=[KEY.text], max_body=200_000)
    async with sender(host, here, desk.handle) as post:
        for size, status in ((200_000, 200), (200_001, 413), (5_000_000, 413)):
            body = BODY + b" " * (size - len(BODY))
            answer = await post(signed(body, id=f"d-{size}"), body)
            assert answer.status_code == status

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b" " * 100_000

        answer = await post.client.post(post.url, headers=signed(), content=pieces())
        assert answer.status_code == 413
        # a stranger's body is not even read
        assert (await post({}, b" " * 5_000_000)).status_code == 401
        assert (await post(signed())).status_code == 200
    assert len(desk.got) == 2


async def test_a_body_that_does_not_arrive(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_TIMEOUT", 0.05)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(1)

    async with sender(plain, Receiver(keys=[KEY.text]), desk.handle) as post:
        answer = await post.client.post(post.url, headers=signed(), content=slow())
        assert answer.status_code == 408


async def test_unfinished_bodies_share_a_bound(desk: Desk) -> None:
    """Signatures need the body, so anybody can begin to send one."""
    size = 1024 * 1024
    here = Receiver(keys=[KEY.text], max_body=size)
    refused = asyncio.Queue[bytes]()

    async def unfinished(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: {size}\r\n"
        for name, value in signed(id=f"d-{number}").items():
            head += f"{name}: {value}\r\n"
        try:
            writer.write(head.encode() + b"\r\n" + b" " * (size - 1))
            refused.put_nowait(await reader.readline())
        finally:
            writer.transport.abort()

    async with sender(plain, here, desk.handle) as post, asyncio.timeout(10):
        port = httpx.URL(post.url).port
        bodies = [asyncio.create_task(unfinished(number)) for number in range(12)]
        while here._held < (module.BODIES - 1) * size:
            await asyncio.sleep(0.005)
        for _ in range(12 - module.BODIES):
            assert b" 503 " in await refused.get()
        assert here._held <= module.BODIES * size
        assert (await post(signed())).status_code == 200, "a small one is taken all the same"
        for body in bodies:
            body.cancel()
        await asyncio.gather(*bodies, return_exceptions=True)
        while here._held:
            await asyncio.sleep(0.005)


# ---- once, over HTTP -----------------------------------------------------------------------


async def test_a_redelivery_is_acknowledged_and_not_handled(host: Host, desk: Desk) -> None:
    async with sender(host, Receiver(keys=[KEY.text]), desk.handle) as post:
        headers = signed()
        for again in (headers, headers, signed(late=20)):
            assert (await post(again)).status_code == 200
        assert len(desk.got) == 1
        assert (await post(signed(id="d-2"))).status_code == 200
        assert len(desk.got) == 2


async def test_without_an_id_each_is_handled(desk: Desk) -> None:
    async with sender(plain, Receiver(token="sesame"), desk.handle) as post:
        headers = {"x-a2a-notification-token": "sesame"}
        desk.gate.clear()
        both = [asyncio.create_task(post(headers)) for _ in range(2)]
        await desk.busy(2)
        desk.gate.set()
        assert [(await one).status_code for one in both] == [200, 200]


async def test_what_failed_is_handled_again(
    host: Host, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    async with sender(host, Receiver(keys=[KEY.text]), desk.handle) as post:
        desk.broken = True
        answer = await post(signed())
        assert answer.status_code == 500
        assert "desk" not in answer.text
        assert "the desk is broken" in caplog.text
        (record,) = (r for r in caplog.records if r.name == "dragoman")
        assert (record.levelname, vars(record)["task"]) == ("ERROR", "t-1")
        desk.broken = False
        assert (await post(signed())).status_code == 200
        assert (await post(signed())).status_code == 200
        assert len(desk.got) == 2


async def test_a_duplicate_of_what_is_being_handled_may_come_again(host: Host, desk: Desk) -> None:
    async with sender(host, Receiver(keys=[KEY.text]), desk.handle) as post:
        desk.gate.clear()
        first = asyncio.create_task(post(signed()))
        await desk.busy()
        second = await post(signed())
        assert second.status_code == 503
        assert second.headers["retry-after"] == "1"
        desk.gate.set()
        assert (await first).status_code == 200
        assert (await post(signed())).status_code == 200
        assert len(desk.got) == 1


async def test_a_sender_that_hangs_up_does_not_stop_the_handler(desk: Desk) -> None:
    here = Receiver(insecure=True)
    app = here.app(desk.handle)
    desk.gate.clear()
    request = asyncio.create_task(asgi(app, [(b"webhook-id", b"d-1")], BODY))
    await desk.busy()
    request.cancel()  # as some servers do
    with pytest.raises(asyncio.CancelledError):
        await request
    async with asyncio.timeout(30):
        assert await asgi(app, [(b"webhook-id", b"d-1")], BODY) == 503
    desk.gate.set()
    async with asyncio.timeout(30):
        while here.verify({"webhook-id": "d-1"}, BODY).fresh:
            await asyncio.sleep(0.005)
    assert await asgi(app, [(b"webhook-id", b"d-1")], BODY) == 200
    assert len(desk.got) == 1
    assert not here._running


async def test_handlers_that_are_left_end_with_the_server(desk: Desk) -> None:
    here = Receiver(insecure=True)
    app = here.app(desk.handle)
    desk.gate.clear()
    async with serving(app):
        request = asyncio.create_task(asgi(app, [(b"webhook-id", b"d-1")], BODY))
        await desk.busy()
        request.cancel()
    assert not here._running
    assert here.verify({"webhook-id": "d-1"}, BODY).fresh


# ---- handlers ------------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_thread(host: Host) -> None:
    where: list[threading.Thread] = []

    def handle(notification: Notification) -> None:
        where.append(threading.current_thread())

    async with sender(host, Receiver(keys=[KEY.text]), handle) as post:
        assert (await post(signed())).status_code == 200
    assert where[0] is not threading.main_thread()


async def test_an_object_and_a_lambda(desk: Desk) -> None:
    class Called:
        async def __call__(self, notification: Notification) -> None:
            await desk.handle(notification)

    for number, handle in enumerate((Called(), lambda given: desk.handle(given))):
        assert await asgi(Receiver(insecure=True).app(handle), [], BODY) == 200
        assert len(desk.got) == number + 1


@pytest.mark.parametrize("odd", [StopIteration, SystemExit, ValueError, asyncio.CancelledError])
async def test_odd_ways_to_fail(odd: type[BaseException]) -> None:
    def handle(notification: Notification) -> None:
        raise odd

    async def slowly(notification: Notification) -> None:
        if odd is not SystemExit:  # that ends the program, as anywhere else
            raise odd
        raise ValueError

    for failing in (handle, slowly):
        async with asyncio.timeout(30):
            assert await asgi(Receiver(insecure=True).app(failing), [], BODY) == 500


# ---- anything ------------------------------------------------------------------------------


async def asgi(app: Any, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    """The status of one request, without a server."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "headers": headers}, receive, send)
    status: int = sent[0]["status"]
    return status


NAMES = [signature.ID, signature.TIMESTAMP, signature.SIGNATURE, module.TOKEN]
NOISE = st.lists(st.tuples(st.sampled_from([name.encode() for name in NAMES]), st.binary()))
BODIES = (
    st.binary()
    | wire.JSON.map(lambda value: json.dumps(value).encode())
    | wire.structs(StreamResponse).map(v1_0.encode)
    | st.dictionaries(
        st.sampled_from(["task", "message", "statusUpdate", "artifact_update"]), wire.JSON
    ).map(lambda value: json.dumps(value).encode())
    | st.builds(
        lambda place, junk: BODY[:place] + junk + BODY[place:],
        st.integers(0, len(BODY)),
        st.binary(max_size=3),
    )
)


@settings(max_examples=examples(200), deadline=None)
@given(headers=NOISE, body=BODIES)
def test_nothing_that_is_sent_is_a_fault_of_ours(
    headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    def handle(notification: Notification) -> None:
        pass

    strict = Receiver(keys=[KEY.text, PRIVATE.public().text])
    assert asyncio.run(asgi(strict.app(handle), headers, body)) in (400, 401)
    with contextlib.suppress(A2AError):
        assert strict.verify(headers, body) is None
    open = Receiver(insecure=True)
    assert asyncio.run(asgi(open.app(handle), headers, body)) in (200, 400, 401)
    good = [(name.lower().encode(), value.encode()) for name, value in signed(body).items()]
    assert asyncio.run(asgi(strict.app(handle), good, body)) in (200, 400)


# ---- others --------------------------------------------------------------------------------


async def test_the_reference_agent_notifies(desk: Desk) -> None:
    from a2a.server.context import ServerCallContext
    from a2a.server.tasks import (
        BasePushNotificationSender,
        InMemoryPushNotificationConfigStore,
    )
    from a2a.types import a2a_pb2 as pb

    configs = InMemoryPushNotificationConfigStore()
    async with sender(routed, Receiver(token="sesame", tasks={"t-1"}), desk.handle) as post:
        config = pb.TaskPushNotificationConfig(id="p", url=post.url, token="sesame")
        await configs.set_info("t-1", config, ServerCallContext())
        reference = BasePushNotificationSender(post.client, configs)
        state = pb.TaskStatus(state=pb.TASK_STATE_COMPLETED)
        await reference.send_notification(
            "t-1", pb.TaskStatusUpdateEvent(task_id="t-1", context_id="c-1", status=state)
        )
    assert [found.event for found in desk.got] == [UPDATE]


async def test_the_example_of_the_documentation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_TOKEN", "the token of your push config")
    monkeypatch.setenv("HOOK_KEY", KEY.text)
    page = (ROOT / "docs/receiver.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(example, names)  # it is ours
    async with serving(names["app"]) as url, httpx.AsyncClient() as client:
        headers = {**signed(), "X-A2A-Notification-Token": "the token of your push config"}
        answer = await client.post(f"{url}/hooks", headers=headers, content=BODY)
        assert answer.status_code == 200
    assert capsys.readouterr().out == "t-1 COMPLETED\n"


def test_starlette_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette.routing", None)
    here = Receiver(insecure=True)
    assert here.app(print)
    with pytest.raises(ImportError):
        here.route("/", print)
