"""JSON-RPC only: envelopes, ids, notifications, error codes, and the HTTP request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from dragoman import App, Caller, Request
from tests.contract.bindings.conftest import identify as named
from tests.contract.bindings.conftest import user
from tests.harness import agents
from tests.harness.app import RunningApp, running
from tests.harness.clients import BAD_REQUEST, ERROR_INFO

pytestmark = pytest.mark.asyncio(loop_scope="module")


def identify(request: Request) -> Caller:
    """As everywhere, and one caller whom the server cannot cope with."""
    if request.headers.get("x-user") == "broken":
        raise RuntimeError("secret inside")
    return named(request)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server() -> AsyncIterator[RunningApp]:
    """One server for the module: what a test makes, it makes under a tenant of its own."""
    agent = agents.make()
    agent.extended_card(lambda caller, card: card)
    app = App(
        agent,
        identify=identify,
        push=True,
        egress_allow=["example.com"],
        cancel_grace=0.3,
        drain_timeout=0.2,
        poll=0.02,
    )
    async with running(app) as found:
        yield found
        found.gate.set()


@pytest.fixture
def tenant() -> str:
    """A name that nobody else uses."""
    return f"tenant-{uuid4()}"


async def post(
    server: RunningApp, body: Any, *, url: str = "", path: str = "/", **headers: str
) -> httpx.Response:
    """Post a body as it is, or as JSON; with the headers of a client, unless others are given."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    known = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    known |= {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {name: value for name, value in known.items() if value != "none"}
    return await server.http.post((url or server.url) + path, content=content, headers=sent)


def envelope(method: str = "ListTasks", params: Any = None, **more: Any) -> dict[str, Any]:
    """A request object."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}, **more}


def without(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The document without a member."""
    return {key: value for key, value in document.items() if key != name}


def failed(response: httpx.Response, code: int, status: int = 200) -> dict[str, Any]:
    """The error of an answer, which is a proper JSON-RPC answer."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"jsonrpc", "id", "error"}
    assert body["jsonrpc"] == "2.0"
    assert body["error"].keys() == {"code", "message", "data"}
    assert body["error"]["code"] == code, body
    assert body["error"]["message"]
    assert body["error"]["data"][0]["@type"] == ERROR_INFO
    found: dict[str, Any] = body["error"]
    return found


def violations(error: dict[str, Any]) -> list[str]:
    """The fields that a validation error names."""
    bad = [item for item in error["data"] if item["@type"] == BAD_REQUEST]
    return [each["field"] for item in bad for each in item["fieldViolations"]]


async def total(server: RunningApp, tenant: str) -> int:
    """How many tasks a tenant has."""
    answer = await post(server, envelope("ListTasks", {"tenant": tenant}))
    found: int = answer.json()["result"]["totalSize"]
    return found


def sending(tenant: str, text: str = "hello") -> dict[str, Any]:
    """The parameters of a send."""
    return {"tenant": tenant, "message": user(text)}


# ---- ids -----------------------------------------------------------------------------------

IDS = ['"a"', '""', '"1"', '"\\u00fc"', "0", "1", "-7", "9007199254740993", "1.5", "1.0", "null"]


@pytest.mark.clause("rpc.id-echo", "rpc.envelope")
@pytest.mark.parametrize("id", IDS)
async def test_an_id_comes_back_with_its_type(server: RunningApp, id: str) -> None:
    expected = json.loads(id)
    for method, params, member in (
        ("ListTasks", "{}", "result"),
        ("GetTask", '{"id":"unknown"}', "error"),
        ("Nothing", "{}", "error"),
    ):
        body = f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'
        response = await post(server, body.encode())
        assert response.status_code == 200
        answer = response.json()
        assert answer.keys() == {"jsonrpc", "id", member}
        assert answer["id"] == expected
        assert type(answer["id"]) is type(expected)


@pytest.mark.clause("rpc.id-echo", "rpc.stream")
@pytest.mark.parametrize("id", ['"s"', "7", "1.5", "null"])
async def test_each_event_of_a_stream_has_the_id(server: RunningApp, id: str) -> None:
    params = json.dumps({"message": user("hello")})
    body = f'{{"jsonrpc":"2.0","id":{id},"method":"SendStreamingMessage","params":{params}}}'
    response = await post(server, body.encode())
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line[:6] == "data: "]
    assert len(events) >= 3
    for event in events:
        assert event.keys() == {"jsonrpc", "id", "result"}
        assert event["id"] == json.loads(id)
        assert type(event["id"]) is type(json.loads(id))
        assert len(event["result"]) == 1


@pytest.mark.clause("rpc.id-echo", "rpc.invalid-request")
@pytest.mark.parametrize("id", [True, False, {}, {"a": 1}, [], [1]])
async def test_an_id_of_another_type_is_refused(server: RunningApp, tenant: str, id: Any) -> None:
    response = await post(server, envelope("SendMessage", sending(tenant), id=id))
    assert "id" in failed(response, -32600)["message"]
    assert response.json()["id"] is None
    assert await total(server, tenant) == 0


# ---- envelopes -----------------------------------------------------------------------------

WRONG: dict[str, dict[str, Any]] = {
    "no jsonrpc": without(envelope(), "jsonrpc"),
    "another jsonrpc": envelope(jsonrpc="1.0"),
    "jsonrpc as a number": envelope(jsonrpc=2.0),
    "jsonrpc null": envelope(jsonrpc=None),
    "no method": without(envelope(), "method"),
    "method as a number": envelope(method=5),  # type: ignore[arg-type]
    "method null": envelope(method=None),  # type: ignore[arg-type]
    "nothing of it": {"id": 1},
}


@pytest.mark.clause("rpc.invalid-request", "rpc.envelope", "errors.field-violations")
@pytest.mark.parametrize("name", WRONG)
async def test_what_is_no_request(server: RunningApp, name: str) -> None:
    error = failed(await post(server, WRONG[name]), -32600)
    field = "method" if "method" in name else "jsonrpc"
    assert violations(error) == [field]
    assert field in error["message"]
    assert error["data"][0]["reason"] == "INVALID_REQUEST"


@pytest.mark.clause("rpc.id-echo")
@pytest.mark.parametrize("name", WRONG)
async def test_the_id_of_what_is_no_request_comes_back_too(server: RunningApp, name: str) -> None:
    for id in ("a", 7):
        response = await post(server, {**WRONG[name], "id": id})
        failed(response, -32600)
        assert response.json()["id"] == id


@pytest.mark.clause("rpc.invalid-request")
@pytest.mark.parametrize("body", [b"5", b'"x"', b"null", b"true", b"{}"])
async def test_json_that_is_no_object(server: RunningApp, body: bytes) -> None:
    response = await post(server, body)
    failed(response, -32600)
    assert response.json()["id"] is None


@pytest.mark.clause("fields.unknown-ignored")
async def test_members_that_are_not_known_are_passed_over(server: RunningApp) -> None:
    response = await post(server, envelope(extra={"a": 1}, auth=None))
    assert "result" in response.json()


@pytest.mark.clause("rpc.invalid-request")
@pytest.mark.parametrize("length", [0, 1, 2])
async def test_batches_are_refused(server: RunningApp, tenant: str, length: int) -> None:
    batch = [envelope("SendMessage", sending(tenant), id=number) for number in range(length)]
    response = await post(server, batch)
    error = failed(response, -32600)
    assert "batch" in error["message"].lower()
    assert response.json()["id"] is None
    assert await total(server, tenant) == 0


@pytest.mark.clause("rpc.parse-error")
@pytest.mark.parametrize(
    "body", [b"", b"  ", b"hello", b'{"jsonrpc":', b"{'id':1}", b'{"id":"\xff"}', b"{}{}", b"NaN"]
)
async def test_what_is_not_json(server: RunningApp, body: bytes) -> None:
    response = await post(server, body)
    error = failed(response, -32700)
    assert error["data"][0]["reason"] == "PARSE_ERROR"
    assert response.json()["id"] is None


# ---- methods and parameters ----------------------------------------------------------------


@pytest.mark.clause("rpc.method-not-found", "rpc.method-names")
@pytest.mark.parametrize(
    "method",
    ["Nothing", "sendMessage", "getTask", "GetTask ", "", "tasks/list", "message/other", "send"],
)
async def test_methods_that_do_not_exist(server: RunningApp, method: str) -> None:
    error = failed(await post(server, envelope(method)), -32601)
    assert repr(method) in error["message"]
    assert error["data"][0]["reason"] == "METHOD_NOT_FOUND"


async def test_a_long_method_is_not_repeated_in_full(server: RunningApp) -> None:
    assert len(failed(await post(server, envelope("x" * 5000)), -32601)["message"]) < 200


@pytest.mark.clause("version.requested", "version.unsupported")
@pytest.mark.parametrize(
    "method",
    [
        "message/send",
        "message/stream",
        "tasks/get",
        "tasks/cancel",
        "tasks/resubscribe",
        "tasks/send",
        "tasks/sendSubscribe",
        "tasks/pushNotification/set",
        "tasks/pushNotification/get",
        "tasks/pushNotificationConfig/set",
        "tasks/pushNotificationConfig/get",
        "tasks/pushNotificationConfig/list",
        "tasks/pushNotificationConfig/delete",
        "agent/getAuthenticatedExtendedCard",
    ],
)
@pytest.mark.parametrize("version", ["1.0", "2.0", "latest"])
async def test_older_methods_in_a_newer_version(
    server: RunningApp, method: str, version: str
) -> None:
    response = await post(server, envelope(method, {"id": "x"}), A2A_Version=version)
    error = failed(response, -32009)
    assert error["data"][0]["reason"] == "VERSION_NOT_SUPPORTED"
    assert error["data"][0]["metadata"] == {"supported": "1.0, 0.3, 0.2, 0.1"}
    assert response.json()["id"] == 1


@pytest.mark.clause("rpc.invalid-params", "errors.field-violations")
@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("GetTask", {}, "id"),
        ("GetTask", {"id": 5}, "id"),
        ("GetTask", {"id": None}, "id"),
        ("GetTask", {"id": ""}, "id"),
        ("GetTask", {"id": "x", "historyLength": "many"}, "historyLength"),
        ("SendMessage", {}, "message"),
        ("SendMessage", {"message": "hello"}, "message"),
        ("SendStreamingMessage", {"message": {**user("x"), "role": "BOSS"}}, "message.role"),
        ("ListTasks", {"status": "DONE"}, "status"),
        ("CancelTask", {"metadata": {}}, "id"),
        ("SubscribeToTask", {}, "id"),
        ("CreateTaskPushNotificationConfig", {"taskId": "x"}, "url"),
        ("CreateTaskPushNotificationConfig", {"url": "http://x"}, "taskId"),
        ("GetTaskPushNotificationConfig", {"taskId": "x"}, "id"),
        ("DeleteTaskPushNotificationConfig", {"id": "x"}, "taskId"),
        ("ListTaskPushNotificationConfigs", {}, "taskId"),
    ],
)
async def test_parameters_that_do_not_fit(
    server: RunningApp, method: str, params: Any, field: str
) -> None:
    error = failed(await post(server, envelope(method, params)), -32602)
    assert violations(error) == [field]
    assert error["message"].startswith(field)
    assert error["data"][0]["reason"] == "INVALID_PARAMS"


@pytest.mark.clause("rpc.invalid-params")
@pytest.mark.parametrize("params", [[], ["x"], "x", 5, True])
async def test_parameters_are_an_object(server: RunningApp, params: Any) -> None:
    failed(await post(server, {**envelope("GetTask"), "params": params}), -32602)


@pytest.mark.clause("rpc.no-params")
async def test_operations_that_need_no_parameters(server: RunningApp) -> None:
    for method, headers in (("GetExtendedAgentCard", {"X-User": "ann"}), ("ListTasks", {})):
        for body in (without(envelope(method), "params"), envelope(method)):
            response = await post(server, body, **headers)
            assert "result" in response.json(), response.text
    card = (
        await post(server, without(envelope("GetExtendedAgentCard"), "params"), X_User="ann")
    ).json()
    assert card["result"]["name"] == "Contract"


@pytest.mark.clause("push.delete")
async def test_delete_answers_null(server: RunningApp) -> None:
    sent = (await post(server, envelope("SendMessage", {"message": user("ask")}))).json()
    task = sent["result"]["task"]["id"]
    params = {"taskId": task, "id": "c", "url": "https://example.com/hook"}
    await post(server, envelope("CreateTaskPushNotificationConfig", params))
    for _ in range(2):
        response = await post(server, envelope("DeleteTaskPushNotificationConfig", params))
        assert response.status_code == 200
        assert response.json() == {"jsonrpc": "2.0", "id": 1, "result": None}


@pytest.mark.clause("rpc.send-result", "send.task-or-message", "rpc.media-type")
async def test_a_send_names_what_it_answers(server: RunningApp) -> None:
    response = await post(server, envelope("SendMessage", {"message": user("hello")}))
    assert response.headers["content-type"] == "application/json"
    assert response.json()["result"].keys() == {"task"}
    message = user("hello", metadata={"skill": "talk"})
    response = await post(server, envelope("SendMessage", {"message": message}))
    assert response.json()["result"].keys() == {"message"}


@pytest.mark.clause("rpc.internal-error", "errors.logged")
async def test_a_fault_of_ours(server: RunningApp, caplog: pytest.LogCaptureFixture) -> None:
    error = failed(await post(server, envelope(), X_User="broken"), -32603)
    assert "RuntimeError" in error["message"]
    assert "secret" not in json.dumps(error)
    assert error["data"][0]["reason"] == "INTERNAL_ERROR"
    assert "secret inside" in caplog.text


# ---- notifications -------------------------------------------------------------------------


def quiet(response: httpx.Response) -> None:
    """Nothing is said."""
    assert response.status_code == 204
    assert response.content == b""


@pytest.mark.clause("rpc.envelope")
@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_a_notification_is_executed(server: RunningApp, tenant: str, method: str) -> None:
    quiet(await post(server, without(envelope(method, sending(tenant)), "id")))
    async with asyncio.timeout(10):
        while True:
            params = {"tenant": tenant, "includeArtifacts": True}
            answer = await post(server, envelope("ListTasks", params))
            tasks = answer.json()["result"]["tasks"]
            if tasks and tasks[0]["status"]["state"] == "TASK_STATE_COMPLETED":
                break
            await asyncio.sleep(0.01)
    assert [task["artifacts"][0]["parts"] for task in tasks] == [[{"text": "hello"}]]
    assert not server.app.streams.open


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("GetTask", {"id": "unknown"}),
        ("GetTask", {}),
        ("GetTask", []),
        ("Nothing", {}),
        ("message/send", {}),
        ("SubscribeToTask", {"id": "unknown"}),
    ],
)
async def test_a_notification_that_fails(server: RunningApp, method: str, params: Any) -> None:
    quiet(await post(server, {"jsonrpc": "2.0", "method": method, "params": params}))


async def test_a_notification_in_another_version(server: RunningApp) -> None:
    quiet(await post(server, without(envelope(), "id"), A2A_Version="0.3"))


async def test_who_asks_is_looked_at_before_what_is_asked(server: RunningApp) -> None:
    for body in (b"{broken", b'{"jsonrpc":"2.0","id":1,"method":"NoSuchMethod"}'):
        headers = {"Content-Type": "application/json", "X-User": "nobody"}
        response = await server.http.post(f"{server.url}/", content=body, headers=headers)
        assert response.status_code == 401


async def test_a_notification_from_nobody_is_challenged(server: RunningApp, tenant: str) -> None:
    body = without(envelope("SendMessage", sending(tenant)), "id")
    response = await post(server, body, X_User="nobody")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert await total(server, tenant) == 0


async def test_no_content_has_no_length(server: RunningApp) -> None:
    """RFC 9110, 8.6: no Content-Length with 204."""
    response = await post(server, without(envelope(), "id"))
    quiet(response)
    assert "content-length" not in response.headers


# ---- how it is posted ----------------------------------------------------------------------


@pytest.mark.clause("rpc.media-type")
@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/json",
        "application/xml",
        "application/jsonp",
    ],
)
async def test_other_media_types(server: RunningApp, tenant: str, kind: str) -> None:
    body = envelope("SendMessage", sending(tenant))
    response = await post(server, body, Content_Type=kind)
    error = failed(response, -32600, status=415)
    assert kind.partition(";")[0] in error["message"]
    assert "application/json" in error["message"]
    assert error["data"][0]["reason"] == "MEDIA_TYPE_NOT_ACCEPTED"
    assert await total(server, tenant) == 0


@pytest.mark.clause("rpc.media-type")
@pytest.mark.parametrize(
    "kind",
    [
        "none",
        "",
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/a2a+json",
    ],
)
async def test_media_types_that_are_taken(server: RunningApp, kind: str) -> None:
    response = await post(server, envelope(), Content_Type=kind)
    assert "result" in response.json()


@pytest.mark.clause("version.query-parameter", "version.unsupported", "version.patch-ignored")
async def test_the_version_as_a_query_parameter(server: RunningApp) -> None:
    for version in ("1.0", "1.0.4", ""):
        path = f"/?A2A-Version={version}"
        assert "result" in (await post(server, envelope(), path=path, A2A_Version="none")).json()
    for version in ("0.3", "2.0", "latest"):
        path = f"/?A2A-Version={version}"
        error = failed(await post(server, envelope(), path=path, A2A_Version="none"), -32009)
        assert version in error["message"]


@pytest.mark.clause("params.case", "rpc.headers")
@pytest.mark.parametrize("name", ["a2a-version", "A2A-VERSION", "A2a-Version"])
async def test_the_case_of_a_header_does_not_matter(server: RunningApp, name: str) -> None:
    headers = {"content-type": "application/json", name: "0.3"}
    response = await server.http.post(server.url, json=envelope(), headers=headers)
    failed(response, -32009)


@pytest.mark.parametrize("verb", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_only_post_is_taken(server: RunningApp, verb: str) -> None:
    response = await server.http.request(verb, f"{server.url}/")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    if verb != "HEAD":
        error = response.json()["error"]
        assert (error["code"], error["status"]) == (405, "UNIMPLEMENTED")
        assert "POST" in error["message"]


async def test_with_and_without_a_slash_at_the_end() -> None:
    one, two = agents.make(), agents.make()
    two.key = "second"
    async with running(App(one, two, drain_timeout=0.1)) as server:
        for path in ("/contract", "/contract/", "/second", "/second/"):
            response = await post(server, envelope(), path=path)
            assert response.status_code == 200
            assert response.json()["result"]["tasks"] == []
    async with running(App(one, drain_timeout=0.1)) as server:
        for path in ("", "/", "/?A2A-Version=1.0", "?A2A-Version=1.0"):
            assert "result" in (await post(server, envelope(), path=path)).json()


# ---- streams -------------------------------------------------------------------------------


@pytest.mark.clause("rpc.stream", "stream.refusals")
async def test_an_error_before_the_stream_is_an_ordinary_answer(server: RunningApp) -> None:
    for params in ({"message": user("x", taskId="unknown")},):
        failed(await post(server, envelope("SendStreamingMessage", params)), -32001)
    failed(await post(server, envelope("SubscribeToTask", {"id": "unknown"})), -32001)


@pytest.mark.clause("rpc.stream")
async def test_an_error_in_the_stream_is_an_error_object(server: RunningApp) -> None:
    body = envelope("SendStreamingMessage", {"message": user("gate")}, id="s")
    found: list[dict[str, Any]] = []
    headers = {"A2A-Version": "1.0"}
    async with server.http.stream("POST", f"{server.url}/", json=body, headers=headers) as response:
        async for line in response.aiter_lines():
            assert not line.startswith("event:")
            if not line.startswith("data: "):
                continue
            found.append(json.loads(line[6:]))
            if "task" in found[-1].get("result", {}):
                store: Any = server.app.store
                store._forget(store._logs[found[-1]["result"]["task"]["id"]])
    last = found[-1]
    assert last.keys() == {"jsonrpc", "id", "error"}
    assert last["id"] == "s"
    assert last["error"]["code"] == -32001
    assert last["error"]["data"][0]["reason"] == "TASK_NOT_FOUND"
    assert all("result" in event for event in found[:-1])


async def test_a_client_that_leaves_a_stream_disturbs_nobody(
    server: RunningApp, tenant: str
) -> None:
    body = envelope("SendStreamingMessage", {"tenant": tenant, "message": user("gate")})
    with suppress(httpx.ReadError):
        async with server.http.stream("POST", f"{server.url}/", json=body) as response:
            await anext(response.aiter_lines())
    server.gate.set()
    try:
        async with asyncio.timeout(10):
            while True:
                answer = await post(server, envelope("ListTasks", {"tenant": tenant}))
                (task,) = answer.json()["result"]["tasks"]
                if task["status"]["state"] == "TASK_STATE_COMPLETED":
                    break
                await asyncio.sleep(0.01)
    finally:
        server.gate.clear()
