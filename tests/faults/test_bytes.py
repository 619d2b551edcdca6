"""Any bytes at any endpoint are answered: never with a 5xx, never with silence."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman import Agent, Turn
from dragoman.model.operations import OPERATIONS, Operation
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.harness.raw_http import Answer, Client, Connection, connect, request
from tests.harness.server import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = ((b"Content-Type", b"application/json"),)
FEW = settings(max_examples=60, deadline=None)


def echo() -> Agent:
    """An agent that gives back what it gets, so that all of it goes through the whole server."""
    agent = Agent("Echo", description="Gives back what it gets.", input_modes=["*/*"])

    @agent.skill(id="echo")
    async def answer(turn: Turn) -> AsyncIterator[Any]:
        yield turn.artifact(list(turn.message.parts), metadata=turn.message.metadata)

    @agent.skill(id="ask")
    async def question(turn: Turn) -> AsyncIterator[Any]:
        yield turn.ask("What?")

    @agent.handler
    async def default(turn: Turn) -> AsyncIterator[Any]:
        yield turn.artifact(list(turn.message.parts), metadata=turn.metadata)

    return agent


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def url() -> AsyncIterator[str]:
    """A server with all that is on by default, and push."""
    async with serving(App(echo(), push=True, egress_allow=["x"])) as url:
        yield url


@pytest.fixture(autouse=True)
def calm(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No request may make the server log an error."""
    yield
    records = caplog.get_records("call")
    assert [r.getMessage() for r in records if r.levelno >= logging.ERROR] == []


def sound(answer: Answer | None) -> Answer:
    """An answer that is not the server's own fault, in the form that every error has."""
    assert answer is not None, "the server hung up"
    assert answer.status < 500, answer
    assert b"INTERNAL_ERROR" not in answer.body, answer
    assert b"TASK_STATE_FAILED" not in answer.body, answer
    if answer.status >= 400:
        found = answer.json()
        if "error" not in found:  # 0.3 over HTTP+JSON
            assert found["code"] != -32603
            assert found["type"].endswith("Error")
            assert found["message"]
            return answer
        error = found["error"]
        details = error.get("details") or error["data"]
        assert details[0]["reason"]
        assert error["message"]
    return answer


def polite(answer: Answer | None) -> None:
    """The same, where the HTTP server may refuse a request before the application sees it."""
    if answer is not None and answer.body not in (b"Invalid HTTP request received.",):
        sound(answer)


async def alive(url: str) -> None:
    """The server still does its work."""
    async with Client(url) as client:
        body = json.dumps({"message": message("still there?")}).encode()
        answer = sound(await client.ask("POST", "/message:send", body, JSON))
        assert answer.status == 200
        assert b"still there?" in answer.body


def message(text: str, **more: Any) -> dict[str, Any]:
    """A message from the user."""
    return {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}], **more}


# ---- a valid request of each operation -----------------------------------------------------

FULL = {
    "tenant": "",
    "message": {
        "messageId": "m",
        "contextId": "c",
        "taskId": "",
        "role": "ROLE_USER",
        "parts": [
            {"text": "hi", "mediaType": "text/plain", "metadata": {"a": 1}},
            {"raw": "aGk=", "filename": "f", "mediaType": "image/png"},
            {"url": "http://x/y"},
            {"data": {"a": [1, None]}},
        ],
        "metadata": {"skill": "echo", "x": [1]},
        "extensions": ["urn:x"],
        "referenceTaskIds": ["t"],
    },
    "configuration": {
        "acceptedOutputModes": ["text/plain"],
        "historyLength": 5,
        "returnImmediately": False,
        "taskPushNotificationConfig": {
            "id": "p",
            "url": "http://x",
            "token": "t",
            "authentication": {"scheme": "Bearer", "credentials": "c"},
        },
    },
    "metadata": {"x": {"y": 1}},
}


def samples(task: str) -> dict[str, dict[str, Any]]:
    """For each operation, a request that uses all of its fields."""
    config = {"tenant": "", "taskId": task, "id": "p"}
    return {
        "SendMessage": FULL,
        "SendStreamingMessage": FULL,
        "GetTask": {"tenant": "", "id": task, "historyLength": 1},
        "ListTasks": {
            "tenant": "",
            "contextId": "c",
            "status": "TASK_STATE_COMPLETED",
            "pageSize": 2,
            "pageToken": "WyIiLCIiXQ",
            "historyLength": 1,
            "statusTimestampAfter": "2026-01-31T12:00:00Z",
            "includeArtifacts": True,
        },
        "CancelTask": {"tenant": "", "id": task, "metadata": {"x": 1}},
        "SubscribeToTask": {"tenant": "", "id": task},
        "CreateTaskPushNotificationConfig": {
            **config,
            "url": "http://x",
            "token": "t",
            "authentication": {"scheme": "Bearer", "credentials": "c"},
        },
        "GetTaskPushNotificationConfig": config,
        "ListTaskPushNotificationConfigs": {
            "tenant": "",
            "taskId": task,
            "pageSize": 1,
            "pageToken": "WyIiLCIiXQ",
        },
        "DeleteTaskPushNotificationConfig": config,
        "GetExtendedAgentCard": {"tenant": ""},
    }


async def ended(client: Client) -> str:
    """The id of a task that has ended, with a push config."""
    answer = await client.ask("POST", "/message:send", json.dumps(FULL).encode(), JSON)
    return str(sound(answer).json()["task"]["id"])


def rpc(method: Any, params: Any, **more: Any) -> bytes:
    """The body of a JSON-RPC request."""
    return json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **more}
    ).encode()


def http(operation: Operation, sample: dict[str, Any]) -> tuple[str, str, bytes | None]:
    """The verb, target and body of the same request over HTTP+JSON."""
    rest = dict(sample)
    path = operation.path
    for name in ("id", "taskId"):
        if f"{{{name}}}" in path:
            path = path.replace(f"{{{name}}}", quote(text(rest.pop(name)), safe="") or "-")
    if operation.verbs[0] == "POST":
        return "POST", path, json.dumps(rest).encode()
    query = "&".join(f"{name}={quote(text(value), safe='')}" for name, value in rest.items())
    return operation.verbs[0], f"{path}?{query}", None


def text(value: Any) -> str:
    """A value as a query has it."""
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.clause("bindings.same-operations")
async def test_the_samples_are_valid(url: str) -> None:
    async with Client(url) as client:
        task = await ended(client)
        known = samples(task)
        assert list(known) == [operation.name for operation in OPERATIONS]
        refused = {
            "CancelTask": "TASK_NOT_CANCELABLE",
            "SubscribeToTask": "UNSUPPORTED_OPERATION",
            "GetExtendedAgentCard": "UNSUPPORTED_OPERATION",
        }
        for operation in OPERATIONS:
            sample = known[operation.name]
            one = sound(await client.ask("POST", "/", rpc(operation.name, sample), JSON))
            method, target, body = http(operation, sample)
            other = sound(await client.ask(method, target, body, JSON))
            for answer in (one, other):
                reason = refused.get(operation.name)
                assert (b"reason" in answer.body) is (reason is not None), answer
                assert reason is None or reason.encode() in answer.body


# ---- wrong types everywhere ----------------------------------------------------------------

DEEP: Any = "bottom"
for _ in range(40):
    DEEP = [DEEP]
WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    2**70,
    -(2**31) - 1,
    "",
    "x",
    "\x00",
    "\u2028\U0010ffff",
    "x" * 5000,
    "9" * 5000,
    "../../..",
    [],
    [[]],
    [None],
    [{}],
    {},
    {"": None},
    {"skill": {}},
    DEEP,
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, that of the document itself too."""
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    """The document with another value at one place."""
    if not path:
        return wrong
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = wrong
    return changed


NAMES = [operation.name for operation in OPERATIONS]


@pytest.mark.parametrize("name", NAMES)
async def test_wrong_values_over_json_rpc(url: str, name: str) -> None:
    async with Client(url) as client:
        sample = samples(await ended(client))[name]
        for path in places(sample):
            for wrong in WRONG:
                body = rpc(name, replaced(sample, path, wrong))
                answer = sound(await client.ask("POST", "/", body, JSON))
                tenant = path == ("tenant",)  # which nobody may name here
                assert answer.status in (200, 204, *([403] if tenant else [])), (path, wrong)


@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
async def test_wrong_values_over_http(url: str, operation: Operation) -> None:
    async with Client(url) as client:
        sample = samples(await ended(client))[operation.name]
        for path in places(sample):
            if not path and operation.verbs[0] != "POST":
                continue
            for wrong in WRONG:
                changed = replaced(sample, path, wrong)
                if not path:
                    method, target, _ = http(operation, sample)
                    body: bytes | None = json.dumps(wrong).encode()
                else:
                    method, target, body = http(operation, changed)
                sound(await client.ask(method, target, body, JSON))


@pytest.mark.clause("rpc.invalid-request", "rpc.id-echo")
async def test_wrong_values_in_the_envelope(url: str) -> None:
    async with Client(url) as client:
        sample = samples(await ended(client))["GetTask"]
        for name in ("jsonrpc", "method", "id", "params"):
            for wrong in WRONG:
                envelope = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": sample}
                body = json.dumps({**envelope, name: wrong}).encode()
                answer = sound(await client.ask("POST", "/", body, JSON))
                if name == "id" and isinstance(wrong, str | int | None) and wrong is not True:
                    long = isinstance(wrong, str) and len(wrong) > 1000
                    assert answer.json()["id"] == (None if long else wrong)
        for wrong in WRONG:
            answer = sound(await client.ask("POST", "/", json.dumps(wrong).encode(), JSON))
            assert answer.json()["error"]["code"] == -32600


# ---- what is not JSON ----------------------------------------------------------------------

MESSAGE = b'{"messageId":"m","role":"ROLE_USER","parts":[{"data":%b}]}'
BAD: dict[str, bytes] = {
    "nothing": b"",
    "space": b" ",
    "no json": b"hello",
    "cut": b'{"a":',
    "comma": b"[1,]",
    "comment": b"{} // x",
    "two": b"{}{}",
    "quotes": b"{'a':1}",
    "nan": b"NaN",
    "infinity": b"-Infinity",
    "huge float": b"1e999",
    "huge int": b"9" * 100_000,
    "huge fraction": b"0." + b"1" * 100_000 + b"x",
    "utf-8": b'"\xff\xfe"',
    "surrogate bytes": b'"\xed\xa0\x80"',
    "overlong": b'"\xc0\xaf"',
    "lone surrogate": b'"\\ud800"',
    "lone low surrogate": b'"\\udc00x"',
    "half a pair": b'"\\ud83d\\u0041"',
    "control": b'"\x00"',
    "escape": b'"\\q"',
    "bom": b"\xef\xbb\xbf{}",
    "utf-16": '{"a":1}'.encode("utf-16"),
    "opening": b"[" * 100_000,
    "opening objects": b'{"a":' * 100_000,
    "closing": b"]" * 100_000,
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep mixture": b'[{"a":' * 50_000 + b"1" + b"}]" * 50_000,
}


def codes(name: str) -> tuple[int, ...]:
    """How this is refused: as no JSON, or, if it is deep, perhaps for that."""
    return (-32700, -32600) if "deep" in name or "opening" in name else (-32700,)


@pytest.mark.clause("rpc.parse-error", "limits.sizes", "http.utf8")
@pytest.mark.parametrize("name", BAD)
async def test_what_is_not_json(url: str, name: str) -> None:
    async with Client(url) as client:
        for content in (
            BAD[name],
            b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":%b}' % BAD[name],
        ):
            answer = sound(await client.ask("POST", "/", content, JSON))
            assert answer.status == 200
            assert answer.json()["error"]["code"] in codes(name)
        body = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":%b}}'
        answer = sound(await client.ask("POST", "/", body % (MESSAGE % BAD[name]), JSON))
        assert answer.json()["error"]["code"] in codes(name)
        for target in ("/message:send", "/message:stream"):
            answer = sound(await client.ask("POST", target, BAD[name], JSON))
            assert answer.status == 400
            answer = sound(
                await client.ask("POST", target, b'{"message":%b}' % (MESSAGE % BAD[name]), JSON)
            )
            assert answer.status == 400
        for target in ("/tasks/x:cancel", "/tasks/x:subscribe", "/tasks/x/pushNotificationConfigs"):
            answer = sound(await client.ask("POST", target, BAD[name], JSON))
            assert answer.status in (400, 404)
    await alive(url)


@pytest.mark.parametrize(
    "data",
    [
        b"9" * 4000,
        b"-" + b"9" * 4000,
        b"1e308",
        b"1e-999",
        b"0." + b"1" * 100_000,
        b'{"a":1,"a":2}',
        b'"%b"' % (b"[{" * 50_000),
        b'"%b"' % (b'\\"[' * 50_000),
        b'"\\ud83d\\ude00\\u0000"',
        b'{"\\u0000":{"":[]}}',
        b"[%b]" % b",".join([b"[]"] * 10_000),
    ],
    ids=lambda data: repr(data[:12]),
)
async def test_what_is_json_however_odd_is_taken(url: str, data: bytes) -> None:
    async with Client(url) as client:
        body = b'{"message":%b}' % (MESSAGE % data)
        answer = sound(await client.ask("POST", "/message:send", body, JSON))
        assert answer.status == 200
        parts = answer.json()["task"]["artifacts"][0]["parts"]
        assert parts[0]["data"] == json.loads(data)


async def test_duplicate_keys(url: str) -> None:
    async with Client(url) as client:
        body = b'{"message":1,"message":%b,"message":null,"message":%b}' % (
            MESSAGE % b"1",
            MESSAGE % b"2",
        )
        answer = sound(await client.ask("POST", "/message:send", body, JSON))
        assert answer.status == 200
        assert answer.json()["task"]["history"][0]["parts"] == [{"data": 2}]


@pytest.mark.clause("limits.sizes")
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
async def test_the_deepest_nesting_that_is_taken(
    opening: bytes, closing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "max_depth", 20)
    async with serving(App(echo())) as url, Client(url) as client:
        for depth in (15, 16, 17, 18, 19, 20, 21, 25, 40, 100, 1000):
            inner = depth - 4  # the request, the message, its parts, the part
            data = opening * inner + b"1" + closing * inner
            body = b'{"message":%b}' % (MESSAGE % data)
            answer = sound(await client.ask("POST", "/message:send", body, JSON))
            assert answer.status == (200 if depth <= 20 else 400), depth


@pytest.mark.clause("limits.sizes")
async def test_nesting_is_counted_whatever_the_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "max_depth", 20)
    async with serving(App(echo())) as url, Client(url) as client:
        for depth in (20, 22, 30, 40, 60):
            inner = (depth - 4) // 2
            data = b'[{"a":' * inner + b"1" + b"}]" * inner
            body = b'{"message":%b}' % (MESSAGE % data)
            answer = sound(await client.ask("POST", "/message:send", body, JSON))
            assert answer.status == (200 if depth <= 20 else 400), depth


@pytest.mark.clause("limits.sizes")
@pytest.mark.parametrize(
    "body",
    [
        "b'['*101 + b'\"' + b'\\\\\"' * 500_000",
        "b'['*101 + b'\"' * 999_999",
        "b'['*101 + b'\"\\\\' * 500_000",
        "b'['*500_000 + b'}'*500_000",
    ],
)
async def test_measuring_the_nesting_takes_no_longer_than_reading(body: str) -> None:
    # In a process of its own: what does not end could not be interrupted here.
    code = f"""
from dragoman.bindings.request_body import check
from dragoman.model.errors import InvalidRequest
try:
    check({body}, 100, 10**9)
except InvalidRequest:
    pass
"""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(10):
            assert await child.wait() == 0
    except TimeoutError:
        child.kill()
        await child.wait()
        pytest.fail("a megabyte keeps the server busy for more than ten seconds")


# ---- random bytes --------------------------------------------------------------------------

POSTS = [
    "/",
    "/message:send",
    "/message:stream",
    "/tenant/message:send",
    "/tasks/x:cancel",
    "/tasks/x:subscribe",
    "/tasks/x/pushNotificationConfigs",
]


@FEW
@given(body=st.binary(max_size=200), target=st.sampled_from(POSTS))
async def test_random_bytes_as_a_body(url: str, body: bytes, target: str) -> None:
    async with Client(url) as client:
        sound(await client.ask("POST", target, body, JSON))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["message", "parts", "id", "text", "data", "metadata", "role", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@FEW
@given(value=VALUES, method=st.sampled_from([*NAMES, "message/send", "x"]))
async def test_random_documents_as_params(url: str, value: Any, method: str) -> None:
    async with Client(url) as client:
        sound(await client.ask("POST", "/", rpc(method, value), JSON))


@FEW
@given(data=st.data(), target=st.sampled_from(["/", "/message:send", "/message:stream"]))
async def test_a_valid_request_with_some_bytes_changed(
    url: str, data: st.DataObject, target: str
) -> None:
    body = bytearray(rpc("SendMessage", FULL) if target == "/" else json.dumps(FULL).encode())
    places = st.integers(0, len(body) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=4)):
        body[place] = byte
    start, end = sorted(data.draw(st.tuples(places, places)))
    if data.draw(st.booleans()):
        del body[start:end]
    async with Client(url) as client:
        sound(await client.ask("POST", target, bytes(body), JSON))


METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"]
PIECES = st.sampled_from(
    ["tasks", "message:send", "v1", "x:cancel", "x:subscribe", "pushNotificationConfigs", ".."]
)


@FEW
@given(
    pieces=st.lists(
        PIECES | st.binary(max_size=6).map(lambda raw: quote(raw, safe="/:")), max_size=4
    ),
    query=st.binary(max_size=20).map(lambda raw: quote(raw, safe="=&+%;")),
    method=st.sampled_from(METHODS[:5]),
)
async def test_random_paths(url: str, pieces: list[str], query: str, method: str) -> None:
    async with Client(url) as client:
        polite(await client.ask(method, f"/{'/'.join(pieces)}?{query}", b"{}", JSON))


@FEW
@given(target=st.binary(max_size=30), method=st.sampled_from(METHODS))
async def test_random_bytes_as_a_target(url: str, target: bytes, method: str) -> None:
    async with connect(url) as connection:
        await connection.send(request(method, b"/" + target, b"{}", JSON))
        answer = await connection.answer(whole=False)
        assert answer is None or answer.status < 500


@FEW
@given(line=st.binary(max_size=60))
async def test_random_bytes_as_a_request(url: str, line: bytes) -> None:
    async with connect(url) as connection:
        await connection.send(line + b"\r\n\r\n")
        connection.writer.write_eof()
        answer = await connection.answer(whole=False)
        assert answer is None or answer.status < 500


HEADERS = [
    "A2A-Version",
    "A2A-Extensions",
    "X-A2A-Extensions",
    "Idempotency-Key",
    "Last-Event-ID",
    "Content-Type",
    "Authorization",
    "If-None-Match",
    "Accept",
    "X-Forwarded-Host",
    "Cookie",
]
CONTENT = st.binary(max_size=20).map(lambda raw: bytes(b for b in raw if b not in b"\r\n\0"))


@FEW
@given(
    headers=st.lists(st.tuples(st.sampled_from(HEADERS).map(str.encode), CONTENT), max_size=4),
    target=st.sampled_from(["/", "/message:send", "/tasks", "/.well-known/agent-card.json"]),
)
async def test_random_bytes_as_headers(
    url: str, headers: list[tuple[bytes, bytes]], target: str
) -> None:
    post = target in ("/", "/message:send")
    body = json.dumps({"message": message("hi")}).encode()
    async with Client(url) as client:
        content = rpc("SendMessage", {"message": message("hi")}) if target == "/" else body
        answer = await client.ask(
            "POST" if post else "GET", target, content if post else None, headers
        )
        if answer is None or answer.status != 304:
            polite(answer)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Host", b"\xff\xfe"),
        ("Host", b""),
        ("Host", b"x" * 5000),
        ("A2A-Version", b"9" * 5000),
        ("A2A-Version", b"1.0.0.0"),
        ("A2A-Extensions", b"," * 5000),
        ("A2A-Extensions", b"urn:dragoman:resume:v1," * 200),
        ("Idempotency-Key", b"\xff" * 5000),
        ("Last-Event-ID", b"x:" + b"9" * 5000),
        ("Last-Event-ID", b"x:\xb2"),
        ("Content-Type", b";" * 1000),
        ("Content-Type", b"application/json; charset=utf-7"),
        ("Content-Length", b"-1"),
        ("Content-Length", b"9" * 30),
        ("Content-Length", b"9" * 5000),
        ("Content-Length", b"1, 2"),
        ("Content-Length", b"\xb2"),
        ("Transfer-Encoding", b"gzip"),
        ("Expect", b"nothing"),
    ],
    ids=lambda value: repr(value)[:24],
)
async def test_odd_headers(url: str, name: str, value: bytes) -> None:
    resume = (b"A2A-Extensions", b"urn:dragoman:resume:v1")
    header = (name.encode(), value)
    body = json.dumps({"message": message("hi")}).encode()
    for target, headers in (
        ("/message:send", (header,)),
        ("/message:stream", (header, resume)),
        ("/tasks/x:subscribe", (header, resume)),
    ):
        async with connect(url) as connection:
            await connection.send(request("POST", target, body, headers))
            connection.writer.write_eof()
            answer = await connection.answer(whole=False)
            assert answer is None or answer.status < 500
    async with connect(url) as connection:
        await connection.send(request("GET", "/.well-known/agent-card.json", None, (header,)))
        connection.writer.write_eof()
        answer = await connection.answer(whole=False)
        assert answer is None or answer.status < 500
    await alive(url)


@pytest.mark.parametrize("value", [b"9" * 5000, b"-1", b"", b"\xb2", b"1e3"])
async def test_a_length_that_a_server_did_not_check(value: bytes) -> None:
    # The HTTP server above refuses these itself; another one may hand them on.
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"[]", "more_body": False}

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/message:send",
        "query_string": b"",
        "headers": [(b"content-length", value)],
    }
    async with App(echo()) as app:
        await app(scope, receive, send)
    assert sent[0]["status"] in (400, 413)


# ---- bodies that do not end ----------------------------------------------------------------

LARGE = 100 * 1024 * 1024
TARGETS = ["/", "/message:send", "/message:stream", "/tasks/x:cancel"]


@pytest.mark.clause("limits.sizes")
@pytest.mark.parametrize("target", TARGETS)
async def test_a_large_body_is_refused_by_its_length(url: str, target: str) -> None:
    async with connect(url) as connection:
        length = (b"Content-Length", b"%d" % LARGE)
        await connection.send(request("POST", target, None, (*JSON, length)))
        answer = sound(await connection.answer())
        assert answer.status == 413  # and not a byte of it was sent


@pytest.mark.clause("limits.sizes")
async def test_a_large_body_that_is_sent_all_the_same(url: str) -> None:
    await overflow(url, "/", (b"Content-Length", b"%d" % LARGE))


@pytest.mark.clause("limits.sizes")
@pytest.mark.parametrize("target", TARGETS)
async def test_a_large_body_without_a_length(url: str, target: str) -> None:
    await overflow(url, target, (b"Transfer-Encoding", b"chunked"))


async def overflow(url: str, target: str, header: tuple[bytes, bytes]) -> None:
    """Send what is too large. A server that hangs up on it may do so before its answer is read."""
    for _ in range(10):
        async with connect(url) as connection:
            await connection.send(request("POST", target, None, (*JSON, header)))
            pouring = asyncio.create_task(pour(connection, chunked=b"chunked" in header))
            try:
                answer = await connection.answer()
            finally:
                pouring.cancel()
                await asyncio.wait([pouring])
        await alive(url)
        if answer is not None:
            assert sound(answer).status == 413
            return
    pytest.fail("the server hangs up without a word")


async def pour(connection: Connection, *, chunked: bool) -> None:
    """Send a hundred megabytes, or as much of them as is taken."""
    piece = b" " * 2**20
    if chunked:
        piece = b"%x\r\n%b\r\n" % (len(piece), piece)
    with contextlib.suppress(ConnectionError):
        for _ in range(LARGE // 2**20):
            connection.writer.write(piece)
            await connection.writer.drain()


@pytest.mark.clause("limits.sizes")
async def test_the_largest_body_that_is_taken() -> None:
    async with serving(App(echo(), max_body=1000)) as url, Client(url) as client:
        empty = len(json.dumps({"message": message("")}))
        for size, status in ((1000, 200), (1001, 413)):
            body = json.dumps({"message": message("x" * (size - empty))}).encode()
            assert len(body) == size
            assert sound(await client.ask("POST", "/message:send", body, JSON)).status == status
            pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
            async with connect(url) as connection:
                chunked = (b"Transfer-Encoding", b"chunked")
                head = request("POST", "/message:send", None, (*JSON, chunked))
                await connection.send(head + pieces)
                assert sound(await connection.answer()).status == status


HALVES: dict[str, tuple[Any, list[bytes]]] = {
    "nothing of it": ((b"Content-Length", b"100"), []),
    "half of it": ((b"Content-Length", b"100"), [b'{"jsonrpc":']),
    "all but a byte": ((b"Content-Length", b"100"), [b" " * 99]),
    "no chunk": ((b"Transfer-Encoding", b"chunked"), []),
    "some chunks": ((b"Transfer-Encoding", b"chunked"), [b"1\r\n{\r\n", b"1\r\n \r\n"]),
    "half a chunk": ((b"Transfer-Encoding", b"chunked"), [b"a\r\n{"]),
    "no last chunk": ((b"Transfer-Encoding", b"chunked"), [b"2\r\n{}\r\n"]),
}


@pytest.mark.clause("limits.sizes")
@pytest.mark.parametrize("target", ["/", "/message:send"])
@pytest.mark.parametrize("name", HALVES)
async def test_a_body_that_stops_halfway(name: str, target: str) -> None:
    async with stopping(name, target) as connection:
        answer = sound(await shortly(connection.answer()))
        assert answer.status == 408


@pytest.mark.parametrize("name", [name for name, (_, pieces) in HALVES.items() if pieces])
async def test_a_connection_whose_body_stopped_is_over(name: str) -> None:
    async with stopping(name, "/") as connection:
        assert sound(await shortly(connection.answer())).status == 408
        assert await shortly(connection.over())


@contextlib.asynccontextmanager
async def stopping(name: str, target: str) -> AsyncIterator[Connection]:
    """A connection over which half a body was sent; the server keeps idle ones for ever."""
    header, pieces = HALVES[name]
    app = App(echo(), request_timeout=0.1)
    async with serving(app, timeout_keep_alive=3600) as url, connect(url) as connection:
        await connection.send(request("POST", target, None, (*JSON, header)))
        for piece in pieces:
            await asyncio.sleep(0.01)
            await connection.send(piece)
        yield connection


async def shortly(waiting: Any) -> Any:
    """What comes soon, of a server that waits for a tenth of a second."""
    try:
        return await asyncio.wait_for(waiting, 3)
    except TimeoutError:
        pytest.fail("the server still waits")


@pytest.mark.clause("limits.sizes")
async def test_a_body_that_trickles() -> None:
    app = App(echo(), request_timeout=0.2)
    async with serving(app, timeout_keep_alive=3600) as url, connect(url) as connection:
        header = (b"Content-Length", b"1000000")
        await connection.send(request("POST", "/", None, (*JSON, header)))

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    connection.writer.write(b" ")
                    await connection.writer.drain()
                    await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        try:
            answer = sound(await shortly(connection.answer()))
            assert answer.status == 408
            assert await shortly(connection.over())
        finally:
            trickling.cancel()
            await asyncio.wait([trickling])


@pytest.mark.parametrize("name", HALVES)
async def test_a_client_that_goes_away_halfway(url: str, name: str) -> None:
    header, pieces = HALVES[name]
    for target in TARGETS:
        async with connect(url) as connection:
            await connection.send(request("POST", target, None, (*JSON, header)))
            for piece in pieces:
                await connection.send(piece)
            await asyncio.sleep(0.01)
    await alive(url)


async def test_a_body_in_many_pieces(url: str) -> None:
    body = json.dumps({"message": message("hi")}).encode()
    async with connect(url) as connection:
        length = (b"Content-Length", b"%d" % len(body))
        await connection.send(request("POST", "/message:send", None, (*JSON, length)))
        for byte in body:
            await connection.send(bytes([byte]))
        assert sound(await connection.answer()).status == 200
