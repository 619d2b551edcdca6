"""HTTP+JSON only: paths and methods, queries, media types, ids in paths, and streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from dragoman import App
from dragoman.model.operations import OPERATIONS
from tests.contract.bindings.conftest import identify, user
from tests.harness import agents
from tests.harness.app import RunningApp, running
from tests.harness.clients import BAD_REQUEST, ERROR_INFO

pytestmark = pytest.mark.asyncio(loop_scope="module")

A2A = "application/a2a+json"
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
PATHS = {
    operation.path: {verb for o in OPERATIONS if o.path == operation.path for verb in o.verbs}
    for operation in OPERATIONS
}


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
    headers = {"A2A-Version": "1.0"}
    async with running(app, headers=headers) as found:
        yield found
        found.gate.set()


@pytest.fixture
def tenant() -> str:
    """A name that nobody else uses."""
    return f"tenant-{uuid4()}"


async def ask(server: RunningApp, verb: str, path: str, **options: Any) -> httpx.Response:
    """One request."""
    return await server.http.request(verb, server.url + path, **options)


def fine(response: httpx.Response) -> Any:
    """What was answered."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == A2A
    return response.json()


def failed(response: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    """The error that was answered, which has the shape of all errors."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == A2A
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"code", "status", "message", "details"}
    assert error["code"] == status
    assert error["status"].isupper()
    assert error["message"]
    info = error["details"][0]
    assert (info["@type"], info["domain"]) == (ERROR_INFO, "a2a-protocol.org")
    assert info["reason"] == reason, error
    return error


def violations(error: dict[str, Any]) -> list[str]:
    """The fields that a validation error names."""
    bad = [item for item in error["details"] if item["@type"] == BAD_REQUEST]
    return [each["field"] for item in bad for each in item["fieldViolations"]]


async def send(server: RunningApp, text: str, prefix: str = "", **more: Any) -> dict[str, Any]:
    """The task that comes of a message."""
    response = await ask(
        server, "POST", f"{prefix}/message:send", json={"message": user(text), **more}
    )
    found: dict[str, Any] = fine(response)["task"]
    return found


async def gated(server: RunningApp) -> dict[str, Any]:
    """A task that is being worked on."""
    return await send(server, "gate", configuration={"returnImmediately": True})


# ---- paths and verbs -----------------------------------------------------------------------


@pytest.mark.clause("http.routes", "http.tenant-prefix")
@pytest.mark.parametrize("prefix", ["", "/blue"])
@pytest.mark.parametrize("path", PATHS)
async def test_each_path_takes_its_verbs_and_no_other(
    server: RunningApp, path: str, prefix: str
) -> None:
    real = prefix + path.replace("{taskId}", "t").replace("{id}", "i")
    for verb in VERBS:
        response = await ask(server, verb, real)
        if verb in PATHS[path]:
            assert response.status_code != 405, verb
            if response.status_code == 404:
                failed(response, 404, "TASK_NOT_FOUND")
            continue
        assert response.status_code == 405, verb
        assert set(response.headers["allow"].split(", ")) == PATHS[path]
        if verb != "HEAD":
            error = failed(response, 405, "METHOD_NOT_FOUND")
            assert all(allowed in error["message"] for allowed in PATHS[path])


@pytest.mark.clause("http.routes", "http.tenant-prefix", "http.bodies")
@pytest.mark.parametrize("prefixed", [False, True])
async def test_each_operation_is_what_its_path_says(
    server: RunningApp, tenant: str, prefixed: bool
) -> None:
    prefix = f"/{tenant}" if prefixed else ""
    sent = fine(await ask(server, "POST", f"{prefix}/message:send", json={"message": user("ask")}))
    assert sent.keys() == {"task"}
    task = sent["task"]["id"]
    streamed = await ask(server, "POST", f"{prefix}/message:stream", json={"message": user("x")})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert fine(await ask(server, "GET", f"{prefix}/tasks/{task}"))["id"] == task
    listed = fine(await ask(server, "GET", f"{prefix}/tasks"))
    assert task in [item["id"] for item in listed["tasks"]]
    configs = f"{prefix}/tasks/{task}/pushNotificationConfigs"
    config = {"id": "c", "taskId": task, "url": "https://example.com/hook"}
    if prefixed:
        config["tenant"] = tenant
    assert fine(await ask(server, "POST", configs, json=config)) == config
    assert fine(await ask(server, "GET", f"{configs}/c")) == config
    assert fine(await ask(server, "GET", configs))["configs"] == [config]
    assert fine(await ask(server, "DELETE", f"{configs}/c")) == {}
    assert "configs" not in fine(await ask(server, "GET", configs))
    headers = {"X-User": "ann"}
    card = fine(await ask(server, "GET", f"{prefix}/extendedAgentCard", headers=headers))
    assert card["name"] == "Contract"
    for verb in ("GET", "POST"):
        url = f"{server.url}{prefix}/tasks/{task}:subscribe"
        async with server.http.stream(verb, url) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
    canceled = fine(await ask(server, "POST", f"{prefix}/tasks/{task}:cancel"))
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
    if prefixed:
        failed(await ask(server, "GET", f"/tasks/{task}"), 404, "TASK_NOT_FOUND")


@pytest.mark.clause("http.error-shape")
@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/message",
        "/message:",
        "/message:unknown",
        "/message:send/",
        "/tasks/",
        "/tasks/x/",
        "/tasks/x/y",
        "/tasks/x/pushNotificationConfigs/",
        "/tasks/x/pushNotificationConfigs/y/z",
        "/extendedAgentCard/x",
        "/blue/nothing",
        "/blue/",
        "/a/b/message:send",
        "/tasks/x/tasks/y",
        "/.well-known/other.json",
        "/" + "x" * 4000,
    ],
)
async def test_unknown_paths(server: RunningApp, path: str) -> None:
    for verb in ("GET", "POST"):
        error = failed(await ask(server, verb, path), 404, "METHOD_NOT_FOUND")
        assert error["status"] == "UNIMPLEMENTED"
        assert len(error["message"]) < 300


@pytest.mark.clause("version.requested", "version.unsupported")
@pytest.mark.parametrize("version", ["1.0", "2.0", "latest"])
@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", "/v1/message:send"),
        ("POST", "/v1/message:stream"),
        ("GET", "/v1/tasks"),
        ("GET", "/v1/tasks/x"),
        ("POST", "/v1/tasks/x:cancel"),
        ("GET", "/v1/tasks/x:subscribe"),
        ("POST", "/v1/tasks/x/pushNotificationConfigs"),
        ("GET", "/v1/card"),
    ],
)
async def test_older_paths_in_a_newer_version(
    server: RunningApp, verb: str, path: str, version: str
) -> None:
    response = await ask(server, verb, path, headers={"A2A-Version": version})
    error = failed(response, 400, "VERSION_NOT_SUPPORTED")
    assert error["status"] == "FAILED_PRECONDITION"
    assert error["details"][0]["metadata"] == {"supported": "1.0, 0.3, 0.2, 0.1"}


@pytest.mark.parametrize("tenant", ["v1x", "v2", "tasks2", "blue%20team", "bl%C3%BC", "a.b~c"])
async def test_names_of_tenants(server: RunningApp, tenant: str) -> None:
    task = await send(server, "hello", f"/{tenant}")
    assert fine(await ask(server, "GET", f"/{tenant}/tasks/{task['id']}"))["id"] == task["id"]
    failed(await ask(server, "GET", f"/other/tasks/{task['id']}"), 404, "TASK_NOT_FOUND")


@pytest.mark.clause("version.query-parameter")
async def test_the_version_as_a_query_parameter(server: RunningApp) -> None:
    async with httpx.AsyncClient(base_url=server.url) as http:
        for path in ("/tasks", "/tasks/x", "/tasks/x/pushNotificationConfigs"):
            for version, status in (("1.0", (200, 404)), ("1.0.1", (200, 404)), ("0.3", (400,))):
                response = await http.get(f"{path}?A2A-Version={version}")
                assert response.status_code in status, path
        response = await http.post("/message:send?A2A-Version=0.3", json={"message": user("x")})
        failed(response, 400, "VERSION_NOT_SUPPORTED")
        fine(await http.post("/message:send?A2A-Version=1.0", json={"message": user("x")}))


# ---- queries -------------------------------------------------------------------------------


@pytest.mark.clause("http.query-parameters")
async def test_the_names_of_query_parameters(server: RunningApp, tenant: str) -> None:
    context = "a context & more=1/2"
    for number in range(3):
        message = user(f"echo {number}", contextId=context)
        await ask(server, "POST", f"/{tenant}/message:send", json={"message": message})
    await send(server, "ask", f"/{tenant}")
    for camel, snake, value in (
        ("contextId", "context_id", context),
        ("status", "status", "TASK_STATE_COMPLETED"),
        ("status", "status", "3"),
        ("pageSize", "page_size", "3"),
        ("historyLength", "history_length", "0"),
        ("includeArtifacts", "include_artifacts", "true"),
        ("statusTimestampAfter", "status_timestamp_after", "2020-01-31T12:00:00+02:00"),
    ):
        found = [
            fine(await ask(server, "GET", f"/{tenant}/tasks?{name}={quote(value, safe='')}"))
            for name in (camel, snake)
        ]
        assert found[0] == found[1]
        listed = found[0]["tasks"]
        assert len(listed) == (4 if camel[0] in "hi" or camel == "statusTimestampAfter" else 3)
        if camel == "includeArtifacts":
            assert sum("artifacts" in task for task in listed) == 3
        if camel == "historyLength":
            assert not any("history" in task for task in listed)
    first = fine(await ask(server, "GET", f"/{tenant}/tasks?page_size=3"))
    token = first["nextPageToken"]
    rest = fine(await ask(server, "GET", f"/{tenant}/tasks?page_size=3&page_token={token}"))
    assert len(rest["tasks"]) == 1
    task = first["tasks"][0]["id"]
    for name in ("historyLength", "history_length"):
        assert "history" not in fine(await ask(server, "GET", f"/{tenant}/tasks/{task}?{name}=0"))


@pytest.mark.clause("http.query-parameters", "list.invalid-params")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("pageSize=many", "pageSize"),
        ("page_size=many", "pageSize"),
        ("pageSize=", "pageSize"),
        ("pageSize=0", "pageSize"),
        ("pageSize=101", "pageSize"),
        ("pageSize=1.5", "pageSize"),
        ("historyLength=-1", "historyLength"),
        ("includeArtifacts=perhaps", "includeArtifacts"),
        ("status=DONE", "status"),
        ("statusTimestampAfter=yesterday", "statusTimestampAfter"),
        ("pageToken=%21%21", "pageToken"),
    ],
)
async def test_query_parameters_that_do_not_fit(server: RunningApp, query: str, field: str) -> None:
    error = failed(await ask(server, "GET", f"/tasks?{query}"), 400, "INVALID_PARAMS")
    assert violations(error) == [field]
    assert error["message"].startswith(field)


@pytest.mark.clause("fields.unknown-ignored")
async def test_query_parameters_that_are_not_known(server: RunningApp) -> None:
    fine(await ask(server, "GET", "/tasks?colour=blue&&=&x=%FF%00"))


# ---- what the path says, and what the body says --------------------------------------------


@pytest.mark.parametrize(
    ("verb", "path", "body", "field"),
    [
        ("POST", "/tasks/{task}:cancel", {"id": "other"}, "id"),
        ("POST", "/tasks/{task}:cancel", {"id": 5}, "id"),
        ("POST", "/tasks/{task}:subscribe", {"id": "other"}, "id"),
        ("POST", "/tasks/{task}:cancel", {"tenant": "red"}, None),
        ("POST", "/blue/tasks/{task}:cancel", {"tenant": "red"}, "tenant"),
        ("POST", "/blue/message:send", {"tenant": "red"}, "tenant"),
        ("POST", "/blue/message:stream", {"tenant": "red"}, "tenant"),
        ("POST", "/tasks/{task}/pushNotificationConfigs", {"taskId": "other"}, "taskId"),
        ("POST", "/tasks/{task}/pushNotificationConfigs", {"task_id": "other"}, "taskId"),
        ("GET", "/tasks/{task}?id=other", None, "id"),
        ("GET", "/blue/tasks?tenant=red", None, "tenant"),
        ("GET", "/tasks/{task}/pushNotificationConfigs?taskId=other", None, "taskId"),
        ("GET", "/tasks/{task}/pushNotificationConfigs/c?id=other", None, "id"),
        ("DELETE", "/tasks/{task}/pushNotificationConfigs/c?task_id=other", None, "taskId"),
    ],
)
async def test_a_contradiction_is_refused(
    server: RunningApp, verb: str, path: str, body: dict[str, Any] | None, field: str | None
) -> None:
    task = (await send(server, "ask"))["id"]
    known = {"message": user("ask"), "url": "https://example.com/hook"}
    options: dict[str, Any] = {} if body is None else {"json": {**known, **body}}
    response = await ask(server, verb, path.replace("{task}", task), **options)
    if field is None:  # without one in the path, the body's word is good
        failed(response, 404, "TASK_NOT_FOUND")
    else:
        error = failed(response, 400, "INVALID_PARAMS")
        assert violations(error) == [field]
        assert "path" in error["message"]
    state = fine(await ask(server, "GET", f"/tasks/{task}"))["status"]["state"]
    assert state == "TASK_STATE_INPUT_REQUIRED"
    assert "configs" not in fine(await ask(server, "GET", f"/tasks/{task}/pushNotificationConfigs"))


async def test_agreement_is_none_of_our_business(server: RunningApp, tenant: str) -> None:
    task = (await send(server, "ask", f"/{tenant}", tenant=tenant))["id"]
    config = {"taskId": task, "task_id": task, "tenant": tenant, "url": "https://example.com/hook"}
    path = f"/{tenant}/tasks/{task}"
    fine(await ask(server, "POST", f"{path}/pushNotificationConfigs", json=config))
    fine(await ask(server, "GET", f"{path}?id={task}&tenant={tenant}"))
    fine(await ask(server, "POST", f"{path}:cancel", json={"id": task, "tenant": "", "x": None}))


@pytest.mark.clause("cancel.updated-task")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"content": b""},
        {"content": b" \n"},
        {"content": b"{}"},
        {"json": {}},
        {"json": {"metadata": {"why": "enough"}}},
        {"content": b"", "headers": {"Content-Type": "application/json"}},
        {"content": b"", "headers": {"Content-Type": A2A}},
    ],
)
async def test_cancel_needs_no_body(server: RunningApp, options: dict[str, Any]) -> None:
    task = (await send(server, "ask"))["id"]
    answer = fine(await ask(server, "POST", f"/tasks/{task}:cancel", **options))
    assert answer["status"]["state"] == "TASK_STATE_CANCELED"


@pytest.mark.parametrize("path", ["/message:send", "/message:stream", "/blue/message:send"])
async def test_a_send_needs_one(server: RunningApp, path: str) -> None:
    assert (await ask(server, "POST", path)).status_code == 400
    error = failed(await ask(server, "POST", path, json={}), 400, "INVALID_PARAMS")
    assert violations(error) == ["message"]
    for body in (b"[]", b"5", b'"x"', b"null"):
        failed(await ask(server, "POST", path, content=body), 400, "INVALID_PARAMS")


AWKWARD = ["a b", "ü", "50%", "%41", "a+b", "a?b#c", "a:b", "x:cancel", "a;b=c&d", '"', "\u2028"]


@pytest.mark.clause("http.query-parameters", "push.read")
@pytest.mark.parametrize("id", [*AWKWARD, "a/b", "/", "a%2Fb"])
async def test_ids_are_percent_encoded(server: RunningApp, id: str) -> None:
    task = (await send(server, "ask"))["id"]
    configs = f"/tasks/{task}/pushNotificationConfigs"
    config = {"id": id, "taskId": task, "url": "https://example.com/hook"}
    assert fine(await ask(server, "POST", configs, json=config)) == config
    one = f"{configs}/{quote(id, safe='')}"
    assert fine(await ask(server, "GET", one)) == config
    assert fine(await ask(server, "DELETE", one)) == {}
    failed(await ask(server, "GET", one), 404, "TASK_NOT_FOUND")


async def test_the_path_of_a_task_may_be_encoded_in_full(server: RunningApp) -> None:
    task = (await send(server, "ask"))["id"]
    encoded = "".join(f"%{ord(letter):02X}" for letter in task)
    assert fine(await ask(server, "GET", f"/%74asks/{encoded}"))["id"] == task
    answer = fine(await ask(server, "POST", f"/tasks/{encoded}%3Acancel"))
    assert answer["status"]["state"] == "TASK_STATE_CANCELED"


# ---- media types ---------------------------------------------------------------------------


@pytest.mark.clause("http.media-type")
@pytest.mark.parametrize(
    "kind", [A2A, "application/json", f"{A2A}; charset=utf-8", "Application/JSON;charset=UTF-8"]
)
async def test_media_types_that_are_taken(server: RunningApp, kind: str) -> None:
    body = json.dumps({"message": user("hello")}).encode()
    headers = {"Content-Type": kind}
    response = await ask(server, "POST", "/message:send", content=body, headers=headers)
    assert fine(response)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    response = await ask(server, "POST", "/message:send", content=body)  # none at all
    assert "content-type" not in response.request.headers
    fine(response)


@pytest.mark.clause("http.media-type")
@pytest.mark.parametrize("path", ["/message:send", "/message:stream", "/tasks/{task}:cancel"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
async def test_other_media_types(server: RunningApp, tenant: str, path: str, kind: str) -> None:
    task = (await send(server, "ask", f"/{tenant}"))["id"]
    body = json.dumps({"message": user("hello")}).encode()
    path = f"/{tenant}{path.replace('{task}', task)}"
    response = await ask(server, "POST", path, content=body, headers={"Content-Type": kind})
    error = failed(response, 415, "MEDIA_TYPE_NOT_ACCEPTED")
    assert kind in error["message"]
    listed = fine(await ask(server, "GET", f"/{tenant}/tasks"))["tasks"]
    assert [item["status"]["state"] for item in listed] == ["TASK_STATE_INPUT_REQUIRED"]


@pytest.mark.clause("push.delete")
async def test_delete_answers_an_empty_object(server: RunningApp) -> None:
    task = (await send(server, "ask"))["id"]
    for _ in range(2):
        path = f"/tasks/{task}/pushNotificationConfigs/c"
        response = await ask(server, "DELETE", path)
        assert (response.status_code, response.content) == (200, b"{}")
        assert response.headers["content-type"] == A2A


# ---- streams -------------------------------------------------------------------------------

KINDS = {"task", "message", "statusUpdate", "artifactUpdate"}


@pytest.mark.clause("http.stream", "stream.one-of")
async def test_a_stream_is_of_bare_events(server: RunningApp) -> None:
    body = {"message": user("chunks 5")}
    response = await ask(server, "POST", "/message:stream", json=body)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    blocks = response.text.rstrip("\n").split("\n\n")
    found = []
    for block in blocks:
        lines = [line.partition(": ") for line in block.split("\n")]
        assert [name for name, _, _ in lines] == ["id", "data"]
        event = json.loads(lines[1][2])
        assert len(event) == 1
        assert event.keys() <= KINDS
        found.append(*event)
    assert found == ["task", "statusUpdate", *["artifactUpdate"] * 5, "statusUpdate"]
    reply = {"message": user("hi", metadata={"skill": "talk"})}
    response = await ask(server, "POST", "/message:stream", json=reply)
    (line,) = [line for line in response.text.splitlines() if line.startswith("data: ")]
    assert json.loads(line[6:]).keys() == {"message"}


@pytest.mark.clause("http.stream", "http.stream-ends-interrupted")
async def test_a_stream_ends_at_a_question(server: RunningApp) -> None:
    response = await ask(server, "POST", "/message:stream", json={"message": user("ask")})
    last = json.loads(response.text.rstrip("\n").rpartition("data: ")[2])
    assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


@pytest.mark.clause("stream.refusals", "subscribe.terminal-task", "subscribe.unknown-task")
async def test_an_error_before_the_stream_is_an_ordinary_answer(server: RunningApp) -> None:
    task = (await send(server, "hello"))["id"]
    for verb in ("GET", "POST"):
        response = await ask(server, verb, f"/tasks/{task}:subscribe")
        failed(response, 400, "UNSUPPORTED_OPERATION")
        failed(await ask(server, verb, "/tasks/unknown:subscribe"), 404, "TASK_NOT_FOUND")
    body = {"message": user("more", taskId=task)}
    response = await ask(server, "POST", "/message:stream", json=body)
    failed(response, 400, "UNSUPPORTED_OPERATION")


@pytest.mark.clause("http.error-shape", "errors.payload")
@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_an_error_in_the_stream_is_named(server: RunningApp, verb: str) -> None:
    task = (await gated(server))["id"]
    blocks: list[dict[str, str]] = [{}]
    url = f"{server.url}/tasks/{task}:subscribe"
    async with server.http.stream(verb, url) as response:
        async for line in response.aiter_lines():
            if not line:
                blocks.append({})
                if len(blocks) == 2:  # the task has come: make the store forget it
                    store: Any = server.app.store
                    store._forget(store._logs[task])
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                blocks[-1][name] = value
    found = [block for block in blocks if block]
    assert all("event" not in block for block in found[:-1])
    assert found[-1]["event"] == "error"
    error = json.loads(found[-1]["data"])["error"]
    assert (error["code"], error["status"]) == (404, "NOT_FOUND")
    assert error["details"][0]["reason"] == "TASK_NOT_FOUND"
    assert "id" not in found[-1]
