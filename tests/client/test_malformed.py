"""Servers that answer with something else than A2A: always an error of ours that says what."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.client import (
    Client,
    Limits,
    TooLarge,
    TransportRequest,
    TransportResponse,
    Unreachable,
)
from dragoman.client.transport import ASGITransport
from dragoman.model.errors import (
    A2AError,
    Forbidden,
    InternalError,
    InvalidAgentResponse,
    InvalidParams,
    LimitExceeded,
    MethodNotFound,
    TaskNotFound,
    Unauthenticated,
    Unavailable,
    restored,
)
from tests.client.transports import BINDINGS, STREAM, Answer, Script, card, event, interface, task
from tests.harness.raw_server import Visit, listening
from tests.harness.scale import examples

HTML = {"content-type": "text/html; charset=utf-8"}

Call = Callable[[Client], Awaitable[object]]


async def listed(client: Client) -> object:
    return [found async for found in client.list()]


async def hooks(client: Client) -> object:
    return [found async for found in client.task("t").webhooks()]


async def streamed(client: Client) -> object:
    async with client.stream("x") as stream:
        return [happened async for happened in stream]


async def followed(client: Client) -> object:
    async with client.task("t").subscribe() as stream:
        return [happened async for happened in stream]


CALLS: dict[str, Call] = {
    "send": lambda client: client.send("x"),
    "get": lambda client: client.task("t").get(),
    "cancel": lambda client: client.task("t").cancel(),
    "wait": lambda client: client.task("t").wait(),
    "list": listed,
    "add_webhook": lambda client: client.task("t").add_webhook("http://x"),
    "webhook": lambda client: client.task("t").webhook("w"),
    "webhooks": hooks,
    "delete_webhook": lambda client: client.task("t").delete_webhook("w"),
    "extended_card": lambda client: client.extended_card(),
    "stream": streamed,
    "subscribe": followed,
}
STREAMS = {"stream", "subscribe"}


async def ask(
    call: str, binding: str, answer: TransportResponse, limits: Limits | None = None
) -> object:
    """Make a call that is answered with this."""
    async with Client.connect(
        card(interface("http://agent", binding)),
        transport=Script(lambda _: answer),
        attempts=1,
        limits=limits or Limits(),
    ) as client:
        return await CALLS[call](client)


def rpc(value: Any) -> bytes:
    """A result of JSON-RPC, or what is in its place."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode()


# ---- what is no answer at all --------------------------------------------------------------


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (200, b"<html><h1>Welcome</h1></html>", InvalidAgentResponse, "JSON"),
        (200, b"", InvalidAgentResponse, "JSON"),
        (200, b"\xff\xfe", InvalidAgentResponse, "UTF-8|JSON"),
        (200, b"[" * 100_000, InvalidAgentResponse, "nested|JSON"),
        (301, b"<html>", InvalidAgentResponse, "redirects to https://other/"),
        (307, b"", InvalidAgentResponse, "redirects to https://other/"),
        (400, b"<html>", A2AError, "400"),
        (401, b"<html>", Unauthenticated, "401"),
        (403, b"", Forbidden, "403"),
        (404, b'{"detail":"Not Found"}', MethodNotFound, "404"),
        (405, b"", MethodNotFound, "405"),
        (418, b"teapot", InternalError, "418"),
        (429, b"slow down", LimitExceeded, "429"),
        (500, b"<html>oops", InternalError, "500"),
        (502, b"<html>nginx", Unavailable, "502"),
        (503, b"<html>nginx", Unavailable, "503"),
        (500, b'{"error": "oops"}', A2AError, "500|expected an object"),
        (500, b'{"error": null}', A2AError, "500"),
        (500, b"[]", A2AError, "500"),
    ],
)
async def test_what_is_no_answer(
    binding: str, status: int, body: bytes, kind: type[A2AError], words: str
) -> None:
    headers = {**HTML, "location": "https://other/", "www-authenticate": "Bearer"}
    for call in CALLS:
        if (call, binding, status) == ("delete_webhook", "HTTP+JSON", 200):
            continue  # that it is gone is all there is to say
        with pytest.raises(kind, match=words):
            await ask(call, binding, Answer(body, status=status, headers=headers))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_no_content(binding: str) -> None:
    for call in CALLS:
        if (call, binding) == ("delete_webhook", "HTTP+JSON"):
            assert await ask(call, binding, Answer(b"", status=204)) is None
            continue
        with pytest.raises(InvalidAgentResponse, match="204"):
            await ask(call, binding, Answer(b"", status=204))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_body_without_end(call: str, binding: str) -> None:
    told = 0

    def endless() -> Any:
        nonlocal told
        while True:
            told += 1
            yield b"x" * (1 << 16)

    headers = STREAM if call in STREAMS else None
    asked = Answer(endless(), headers=headers)
    with pytest.raises(TooLarge, match="longer than 1048576 bytes; raise it with limits=") as found:
        await ask(call, binding, asked, Limits(answer=1 << 20))
    assert (found.value.limit, found.value.value) == ("answer", 1 << 20)
    assert told <= 18
    assert asked.closed


# ---- answers with something wrong in them --------------------------------------------------

BAD_TASKS: dict[str, Any] = {
    "id": {**task(), "id": 7},
    "status": {"id": "t"},
    "status.state": {"id": "t", "status": {"state": "TASK_STATE_DREAMING"}},
    "status.message.parts": task(message={"messageId": "m", "role": "ROLE_AGENT", "parts": []}),
    "status.timestamp": task(timestamp="yesterday"),
    "artifacts": {**task(), "artifacts": {}},
    "artifacts[0].parts[1]": {
        **task(),
        "artifacts": [{"artifactId": "a", "parts": [{"text": "x"}, {"text": "x", "url": "y"}]}],
    },
    "history[0].role": {
        **task(),
        "history": [{"messageId": "m", "role": "ROLE_GHOST", "parts": [{"text": "x"}]}],
    },
    "metadata": {**task(), "metadata": []},
}


@pytest.mark.parametrize("field", BAD_TASKS)
@pytest.mark.parametrize("binding", BINDINGS)
async def test_the_field_is_named(field: str, binding: str) -> None:
    for call in ("get", "cancel", "wait", "send", "stream", "subscribe"):
        value: Any = BAD_TASKS[field]
        if call in ("send", *STREAMS):
            value = {"task": value}
        body = rpc(value) if binding == "JSONRPC" else json.dumps(value).encode()
        answer = Answer(b"data: %b\n\n" % body, headers=STREAM) if call in STREAMS else Answer(body)
        with pytest.raises(InvalidAgentResponse) as caught:
            await ask(call, binding, answer)
        assert field in str(caught.value), call


IDS = {"taskId": "t", "contextId": "c"}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"statusUpdate": {**IDS}}, "statusUpdate.status"),
        ({"statusUpdate": {"taskId": "t"}}, "statusUpdate"),
        ({"artifactUpdate": {**IDS, "artifact": {"parts": [{"text": "x"}]}}}, "artifactId"),
        ({"artifactUpdate": {**IDS, "artifact": 5}}, "artifactUpdate.artifact"),
        ({"message": {"parts": [{"text": "x"}]}}, "message."),
        ({"message": {"messageId": "m", "role": "ROLE_AGENT"}}, "message.parts"),
        ({}, "neither"),
        ({"surprise": {}}, "neither"),
        (None, ""),
        ([], ""),
        ("task", ""),
        (5, ""),
    ],
)
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("call", sorted(STREAMS))
async def test_an_event_with_something_wrong(
    call: str, binding: str, value: Any, field: str
) -> None:
    body = rpc(value) if binding == "JSONRPC" else json.dumps(value).encode()
    with pytest.raises(InvalidAgentResponse) as caught:
        await ask(call, binding, Answer(b"data: %b\n\n" % body, headers=STREAM))
    assert field in str(caught.value)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_send_that_is_answered_with_neither(binding: str) -> None:
    body = rpc({}) if binding == "JSONRPC" else b"{}"
    with pytest.raises(InvalidAgentResponse, match="neither a task nor a message"):
        await ask("send", binding, Answer(body))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_page_with_something_wrong(binding: str) -> None:
    page = {"tasks": [task(), {"id": "t"}], "nextPageToken": "", "pageSize": 2, "totalSize": 2}
    body = rpc(page) if binding == "JSONRPC" else json.dumps(page).encode()
    with pytest.raises(InvalidAgentResponse, match=r"tasks\[1\]\.status"):
        await ask("list", binding, Answer(body))
    configs = {"configs": [{"id": "w", "url": 5}]}
    body = rpc(configs) if binding == "JSONRPC" else json.dumps(configs).encode()
    with pytest.raises(InvalidAgentResponse, match=r"configs\[0\]\.url"):
        await ask("webhooks", binding, Answer(body))


NAMES = st.sampled_from(
    (
        *("id", "taskId", "contextId", "status", "state", "task", "message", "parts", "text"),
        *("statusUpdate", "artifactUpdate", "artifact", "artifacts", "artifactId", "history"),
        *("error", "code", "data", "details", "@type", "metadata", "fieldViolations", "reason"),
        *("result", "jsonrpc", "tasks", "configs", "url", "raw", "timestamp", "append", "role"),
    )
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def tried(call: str, binding: str, body: bytes, status: int = 200) -> None:
    """Whatever comes of it, it is a value, or an error of ours with something to say."""
    answer = Answer(body, status=status)
    if call in STREAMS:
        answer = Answer(b"data: %b\n\n" % body, status=status, headers=STREAM)
    try:
        asyncio.run(ask(call, binding, answer))
    except (A2AError, Unreachable) as error:
        assert str(error)


@settings(max_examples=examples(100), deadline=None)
@given(
    value=VALUES,
    call=st.sampled_from(list(CALLS)),
    binding=st.sampled_from(BINDINGS),
    envelope=st.sampled_from(["result", "error", ""]),
    status=st.sampled_from([200, 200, 200, 400, 404, 500]),
)
def test_whatever_comes_is_an_answer_or_an_error_of_ours(
    value: Any, call: str, binding: str, envelope: str, status: int
) -> None:
    document = {"jsonrpc": "2.0", "id": 1, envelope: value} if envelope else value
    tried(call, binding, json.dumps(document).encode(), status)


MESSAGE = {
    "messageId": "m",
    "contextId": "c",
    "taskId": "t",
    "role": "ROLE_AGENT",
    "parts": [{"text": "x"}, {"data": {"a": 1}}, {"raw": "eHg=", "filename": "f"}],
    "metadata": {"urn:dragoman:resume:v1": {"place": 1}},
}
WHOLE = {
    **task("COMPLETED", "a", "b", message=MESSAGE, timestamp="2026-01-31T12:00:00Z"),
    "history": [MESSAGE],
    "metadata": {"urn:dragoman:resume:v1": {"place": 1}, "b": 2},
}
ARTIFACT = {"artifactId": "a", "name": "n", "parts": [{"text": "x"}], "metadata": {"a": 1}}
SOUND: dict[str, list[Any]] = {
    "send": [{"task": WHOLE}, {"message": MESSAGE}],
    "get": [WHOLE],
    "wait": [WHOLE],
    "list": [{"tasks": [WHOLE], "nextPageToken": "", "pageSize": 1, "totalSize": 1}],
    "webhooks": [{"configs": [{"id": "w", "url": "http://x", "authentication": {"scheme": "a"}}]}],
    "stream": [
        {"task": WHOLE},
        {"message": MESSAGE},
        {"statusUpdate": {**IDS, "status": WHOLE["status"], "metadata": {"a": 1}}},
        {"artifactUpdate": {**IDS, "artifact": ARTIFACT, "append": True, "lastChunk": True}},
    ],
}


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), binding=st.sampled_from(BINDINGS), call=st.sampled_from(sorted(SOUND)))
def test_one_thing_wrong_in_a_sound_answer(data: st.DataObject, binding: str, call: str) -> None:
    value = copy.deepcopy(data.draw(st.sampled_from(SOUND[call])))
    if binding == "JSONRPC":
        value = {"jsonrpc": "2.0", "id": 1, "result": value}
    inner: Any = value
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(inner[key], dict | list) and inner[key] and data.draw(st.booleans()):
            inner = inner[key]
            continue
        break
    if data.draw(st.booleans()):
        inner[key] = data.draw(VALUES)
    else:
        del inner[key]
    tried(call, binding, json.dumps(value).encode())


@pytest.mark.parametrize("call", SOUND)
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_sound_answer(call: str, binding: str) -> None:
    """What the others are made from."""
    body = rpc(SOUND[call][0]) if binding == "JSONRPC" else json.dumps(SOUND[call][0]).encode()
    answer = Answer(b"data: %b\n\n" % body, headers=STREAM) if call in STREAMS else Answer(body)
    assert await ask(call, binding, answer)


# ---- errors in a stream --------------------------------------------------------------------

NOT_FOUND = {
    "code": 404,
    "status": "NOT_FOUND",
    "message": "gone",
    "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND"}],
}


@pytest.mark.parametrize(
    "text",
    [
        b"event: error\ndata: %b\n\n" % json.dumps({"error": NOT_FOUND}).encode(),
        b"data: %b\n\n" % json.dumps({"error": NOT_FOUND}).encode(),
        b"data: %b\n\n"
        % json.dumps({"error": NOT_FOUND}, indent=1).encode().replace(b"\n", b"\ndata: "),
        b'data: {"id": 1, "error": %b}\n\n' % json.dumps(NOT_FOUND).encode(),
    ],
)
@pytest.mark.parametrize("call", sorted(STREAMS))
async def test_an_error_in_a_stream(call: str, text: bytes) -> None:
    begun = b"data: %b\n\n" % json.dumps({"task": task("WORKING")}).encode()
    for before in (b"", begun):
        with pytest.raises(TaskNotFound, match="gone"):
            await ask(call, "HTTP+JSON", Answer(before + text, headers=STREAM))


@pytest.mark.parametrize("call", sorted(STREAMS))
async def test_an_error_in_a_stream_of_json_rpc(call: str) -> None:
    error = {"code": -32001, "message": "gone"}
    text = b"data: %b\n\n" % json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()
    for before in (b"", event({"task": task("WORKING")})):
        with pytest.raises(TaskNotFound, match="gone"):
            await ask(call, "JSONRPC", Answer(before + text, headers=STREAM))
    with pytest.raises(TaskNotFound, match="gone"):  # instead of a stream
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()
        await ask(call, "JSONRPC", Answer(body))


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("call", sorted(STREAMS))
async def test_an_answer_that_is_no_stream(call: str, binding: str) -> None:
    value = {"task": task()}
    body = rpc(value) if binding == "JSONRPC" else json.dumps(value).encode()
    with pytest.raises(
        InvalidAgentResponse, match=r"did not answer with a stream|not an A2A error"
    ):
        await ask(call, binding, Answer(body))


@pytest.mark.parametrize("kind", ["text/event-stream; charset=utf-8", "Text/Event-Stream"])
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_by_another_name(kind: str, binding: str) -> None:
    value = {"task": task()}
    body = rpc(value) if binding == "JSONRPC" else json.dumps(value).encode()
    answer = Answer(b"data: %b\n\n" % body, headers={"content-type": kind})
    assert len(await ask("stream", binding, answer)) == 1  # type: ignore[arg-type]


# ---- errors that are odd -------------------------------------------------------------------


@pytest.mark.parametrize(
    "details",
    [
        None,
        5,
        "x",
        {"a": 1},
        [None, 5, "x", []],
        [{"@type": "type.googleapis.com/google.rpc.ErrorInfo"}],
        [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": 5, "metadata": []}],
        [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "metadata": "x"}],
        [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": 5}],
        [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [5, None, "x"]}],
        [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": {"a": 1}}],
        [{"@type": ["x"]}],
    ],
)
async def test_details_that_make_no_sense(details: Any) -> None:
    error = {"code": -32602, "message": None, "data": details}
    with pytest.raises(InvalidParams):
        await ask("get", "JSONRPC", Answer(json.dumps({"error": error}).encode()))
    error = {"code": 400, "message": ["no"], "details": details}
    with pytest.raises(A2AError):
        await ask("get", "HTTP+JSON", Answer(json.dumps({"error": error}).encode(), status=400))


@pytest.mark.parametrize("code", [None, "x", True, 1.5, [], {}, 10**30, -32601])
async def test_codes_that_make_no_sense(code: Any) -> None:
    body = json.dumps({"error": {"code": code, "message": "no"}}).encode()
    for binding in BINDINGS:
        with pytest.raises(A2AError, match="no"):
            await ask("get", binding, Answer(body))


@pytest.mark.parametrize(
    ("http", "name"),
    [(413, "BodyTooLarge"), (408, "TooSlow"), (429, "LimitExceeded"), (0, "LimitExceeded")],
)
def test_errors_of_one_reason_are_told_apart_by_their_status(http: int, name: str) -> None:
    details = LimitExceeded().details()
    assert type(restored("no", details, http=http)).__name__ == name


# ---- cards ---------------------------------------------------------------------------------

CARD: dict[str, Any] = {
    "name": "A",
    "description": "d",
    "version": "1",
    "supportedInterfaces": [
        {"url": "http://agent", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["t"]}],
}
BAD_CARDS: list[tuple[dict[str, Any], str]] = [
    ({"name": 5}, "name"),
    ({"supportedInterfaces": []}, "supportedInterfaces"),
    ({"supportedInterfaces": [{"url": "http://x"}]}, r"supportedInterfaces\[0\]\.protocolBinding"),
    ({"capabilities": []}, "capabilities"),
    ({"capabilities": {"streaming": "yes"}}, r"capabilities\.streaming"),
    ({"skills": ["s"]}, r"skills\[0\]"),
    ({"defaultInputModes": "text/plain"}, "defaultInputModes"),
    ({"securitySchemes": {"a": 5}}, "securitySchemes"),
    (
        {"supportedInterfaces": [{**CARD["supportedInterfaces"][0], "url": "nowhere"}]},
        "'nowhere' is not the address",
    ),
    (
        {"supportedInterfaces": [{**CARD["supportedInterfaces"][0], "url": "http://[::1"}]},
        "is not the address",
    ),
    (
        {"supportedInterfaces": [{**CARD["supportedInterfaces"][0], "url": "ftp://agent"}]},
        "is not the address",
    ),
]


async def connect(answer: TransportResponse) -> None:
    """Read a card."""
    transport = Script(lambda _: answer)
    async with Client.connect("http://agent", transport=transport, attempts=1):
        pass


async def test_a_card_that_is_as_it_should_be() -> None:
    await connect(Answer(json.dumps(CARD).encode()))


@pytest.mark.parametrize(("change", "field"), BAD_CARDS)
async def test_a_card_with_something_wrong(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidAgentResponse, match=field):
        await connect(Answer(json.dumps({**CARD, **change}).encode()))


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (200, b"<html>", InvalidAgentResponse, "is a web page, not a card"),
        (200, b"", InvalidAgentResponse, "JSON"),
        (200, b"[]", InvalidAgentResponse, "not valid"),
        (200, b"null", InvalidAgentResponse, "not valid"),
        (204, b"", InvalidAgentResponse, "204"),
        (304, b"", InvalidAgentResponse, "304"),
        (301, b"", InvalidAgentResponse, "redirects to https://other/"),
        (401, b"", Unauthenticated, "401"),
        (404, b"", MethodNotFound, "no agent card"),
        (500, b"<html>", InternalError, "500"),
        (503, b"<html>", Unavailable, "503"),
    ],
)
async def test_what_is_no_card(status: int, body: bytes, kind: type[A2AError], words: str) -> None:
    headers = {**HTML, "location": "https://other/"} if status == 301 else HTML
    with pytest.raises(kind, match=words):
        await connect(Answer(body, status=status, headers=headers))


# ---- below HTTP ----------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x00\x05hello\r\n\r\n",
        b"HTTP/1.1 9999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        OK + b"Content-Length: -5\r\n\r\nhello",
        OK + b"Content-Length: 500\r\n\r\n{",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
@pytest.mark.parametrize("call", ["get", "stream"])
async def test_what_is_no_http(answer: bytes, call: str) -> None:
    async def talk(visit: Visit) -> None:
        await visit.request()
        await visit.send(answer)

    async with listening(talk) as listener:
        found = card(interface(f"http://127.0.0.1:{listener.port}"))
        async with Client.connect(found, attempts=1) as client:
            with pytest.raises(Unreachable):
                await CALLS[call](client)


# ---- applications in this process ----------------------------------------------------------


async def broken(scope: Any, receive: Any, send: Any) -> None:
    """Breaks off when so much has been sent that nothing more fits in."""
    await receive()
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(64):
        await send({"type": "http.response.body", "body": b": alive\n\n", "more_body": True})
    raise ValueError("oops")


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """Answers nothing."""


async def raising(scope: Any, receive: Any, send: Any) -> None:
    """Fails at once."""
    raise ValueError("oops")


@pytest.mark.parametrize("app", [broken, silent, raising])
async def test_an_application_that_breaks_off(
    app: Callable[..., Awaitable[None]],
) -> None:
    async with Client.connect(card(), transport=ASGITransport(app), attempts=1) as client:
        with pytest.raises(Unreachable):
            await streamed(client)
        with pytest.raises((Unreachable, InvalidAgentResponse)):
            await client.task("t").get()


async def test_an_application_that_says_much() -> None:
    """More than fits in at once, to one who reads slowly, and to one who goes away."""
    ended = asyncio.Event()

    async def chatty(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(300):
            body = b"data: %d\n\n" % number
            await send({"type": "http.response.body", "body": body, "more_body": number < 299})
        ended.set()

    transport = ASGITransport(chatty)
    response = await transport.send(TransportRequest("GET", "http://x/"))
    found = b""
    async for chunk in response.chunks():
        found += chunk
        await asyncio.sleep(0)
    assert found.count(b"data") == 300
    ended.clear()
    response = await transport.send(TransportRequest("GET", "http://x/"))
    await response.close()
    await ended.wait()
    await transport.close()
