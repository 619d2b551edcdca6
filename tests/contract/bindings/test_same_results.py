"""The same requests over all bindings to one server give the same results and the same errors.

The two JSON forms of 1.0 must be identical; gRPC and older versions are compared with the first, as
far as they can express the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio
from google.protobuf.json_format import ParseError
from msgspec.structs import replace

from dragoman import App, Caller, Request, Settings
from dragoman.model import errors
from dragoman.model.errors import A2AError
from dragoman.model.events import RESUME
from dragoman.model.operations import OPERATIONS
from tests.contract.bindings.conftest import identify as named
from tests.contract.bindings.conftest import user
from tests.harness import agents
from tests.harness.app import RunningApp
from tests.harness.clients import STREAMS, Binding, Failed, Grpc, HttpJson, JsonRpc, asked
from tests.harness.older_clients import Grpc03, Http03, JsonRpc03
from tests.harness.server import BINDINGS as LISTED
from tests.harness.server import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

BINDINGS = (JsonRpc, HttpJson)
HOOK = "https://127.0.0.1:9/hook"  # a name would be looked up
KNOWN = {"X-User": "ann"}


# ---- servers -------------------------------------------------------------------------------


def identify(request: Request) -> Caller:
    """As everywhere, and one caller whom the server cannot cope with."""
    if request.headers.get("x-user") == "broken":
        raise RuntimeError("secret inside")
    return named(request)


class OneStream(Settings):
    """Settings with the smallest limit of streams; that of connections stays."""

    max_streams = 1


def app(name: str) -> App:
    """An application that can do everything, or one that lacks something."""
    settings: dict[str, Any] = {
        "push": True,
        "cancel_grace": 0.3,
        "drain_timeout": 0.1,
        "poll": 0.02,
        "grpc_port": 0,
        "bindings": LISTED,
        "egress_allow": ["127.0.0.1"],
    }
    if name == "bare":
        agent = agents.make(streaming=False)
        settings["push"] = False
    elif name == "strict":
        agent = agents.make(required=True, extended=True)
    else:
        agent = agents.make()
        agent.extended_card(lambda caller, card: replace(card, description=caller.identity))
    if name == "tight":
        small = OneStream(**settings, store="memory:?max_tasks=1", max_body=2000)
        return App(agent, identify=identify, settings=small)
    return App(agent, identify=identify, **settings)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def servers() -> AsyncIterator[dict[str, RunningApp]]:
    """A server of each kind."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=20))
        found: dict[str, RunningApp] = {}
        for name in ("full", "bare", "strict", "tight", "draining"):
            made = app(name)
            url = await stack.enter_async_context(serving(made))
            found[name] = RunningApp(made, url, http)
            stack.callback(found[name].gate.set)
            stack.push_async_callback(found[name].close)
        for endpoint in found["draining"].app.endpoints.values():
            endpoint.service.draining = True
        full = found["tight"]  # all of its one task, all of its one stream
        await full.client(JsonRpc).call(
            "SendMessage", message=user("gate"), configuration={"returnImmediately": True}
        )
        (task,) = (await full.client(JsonRpc).call("ListTasks"))["tasks"]
        stream = full.client(HttpJson).open("SubscribeToTask", id=task["id"])
        events = await stack.enter_async_context(stream)
        await anext(events)
        yield found
        assert len(full.app.streams.open) == 1  # it was there all the time


# ---- cases ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A request, and how it is to end. `$ended` and `$asking` stand for tasks in that state."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    error: type[A2AError] | None = None
    server: str = "full"
    headers: dict[str, str] = field(default_factory=dict)
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        end = self.error.__name__ if self.error else "fine"
        return f"{self.name}-{end}" + (f"-{self.fields[0]}" if self.fields else "")


def saying(text: str = "hello", **more: Any) -> dict[str, Any]:
    """The parameters of a send."""
    configuration = more.pop("configuration", None)
    found: dict[str, Any] = {"message": user(text, **more)}
    return found | ({"configuration": configuration} if configuration else {})


def bad(name: str, where: str, **params: Any) -> Case:
    """A request with one wrong field."""
    return Case(name, params, errors.InvalidParams, fields=(where,))


def sends(name: str) -> list[Case]:
    """What a send can lead to, streamed or not."""
    pushing = {"taskPushNotificationConfig": {"url": HOOK, "id": "c"}}
    return [
        Case(name, saying()),
        Case(name, saying(parts=[{"text": "a"}, {"data": {"b": [1, None]}}, {"raw": "AAE="}])),
        Case(name, saying("ask")),
        Case(name, saying("reject")),
        Case(name, saying("fail")),
        Case(name, saying("raise")),
        Case(name, saying("chunks 4")),
        Case(name, saying("hi", metadata={"skill": "talk"})),
        Case(name, saying("june", taskId="$asking")),
        Case(name, saying("hello", contextId="mine")),
        Case(name, {**saying(), "tenant": "blue", "metadata": {"a": 1}}),
        Case(name, saying(configuration={"historyLength": 0})),
        Case(name, saying("ask", configuration=pushing)),
        Case(name, saying(), headers={"A2A-Extensions": f"urn:unknown,{RESUME}"}),
        Case(name, saying(), headers=KNOWN),
        Case(name, saying(taskId="unknown"), errors.TaskNotFound),
        Case(name, saying(taskId="$ended"), errors.UnsupportedOperation),
        Case(name, saying(), errors.Unavailable, "draining"),
        Case(name, saying(), errors.LimitExceeded, "tight"),
        Case(name, saying("x" * 3000), errors.BodyTooLarge, "tight"),
        Case(name, saying(configuration=pushing), errors.PushNotificationNotSupported, "bare")
        if name == "SendMessage"
        else Case(name, saying(), errors.UnsupportedOperation, "bare"),
        Case(
            name,
            saying(parts=[{"text": "x", "mediaType": "image/png"}]),
            errors.ContentTypeNotSupported,
        ),
        bad(name, "message"),
        bad(name, "message.parts", message=user("x") | {"parts": []}),
        bad(name, "message.role", message=user("x") | {"role": "BOSS"}),
        bad(name, "message.parts[0].text", message=user("x") | {"parts": [{"text": 1}]}),
        bad(name, "message.contextId", **saying("x", taskId="$asking", contextId="other")),
        bad(name, "message.metadata.skill", **saying("x", metadata={"skill": "dance"})),
        bad(name, "message.parts", **saying("x", metadata={"skill": "book"})),
        bad(name, "configuration.historyLength", **saying(configuration={"historyLength": -1})),
        bad(
            name,
            "configuration.taskPushNotificationConfig.url",
            **saying(configuration={"taskPushNotificationConfig": {"url": "ftp://x"}}),
        ),
    ]


def webhooks(name: str, **params: Any) -> list[Case]:
    """What every operation on push configs can lead to."""
    return [
        Case(name, {"taskId": "$asking", **params}),
        Case(name, {"taskId": "unknown", **params}, errors.TaskNotFound),
        Case(name, {"taskId": "unknown", **params}, errors.PushNotificationNotSupported, "bare"),
    ]


def anything(name: str, **params: Any) -> list[Case]:
    """What every operation can lead to."""
    return [
        Case(name, params, errors.VersionNotSupported, headers={"A2A-Version": "0.3"}),
        Case(name, params, errors.VersionNotSupported, headers={"A2A-Version": "two"}),
        Case(name, params, errors.ExtensionSupportRequired, "strict"),
        Case(name, params, errors.Unauthenticated, headers={"X-User": "nobody"}),
        Case(name, params, errors.InternalError, headers={"X-User": "broken"}),
    ]


def elsewhere(name: str, **params: Any) -> Case:
    """A tenant that is not the caller's."""
    there = {"X-Tenant": "blue", **KNOWN}
    return Case(name, {**params, "tenant": "red"}, errors.Forbidden, headers=there)


SAMPLES: dict[str, dict[str, Any]] = {
    "SendMessage": saying(),
    "SendStreamingMessage": saying(),
    "GetTask": {"id": "x"},
    "ListTasks": {},
    "CancelTask": {"id": "x"},
    "SubscribeToTask": {"id": "x"},
    "CreateTaskPushNotificationConfig": {"taskId": "x", "url": HOOK},
    "GetTaskPushNotificationConfig": {"taskId": "x", "id": "c"},
    "ListTaskPushNotificationConfigs": {"taskId": "x"},
    "DeleteTaskPushNotificationConfig": {"taskId": "x", "id": "c"},
    "GetExtendedAgentCard": {},
}

CASES: list[Case] = [
    *(case for name, params in SAMPLES.items() for case in anything(name, **params)),
    *(elsewhere(name, **params) for name, params in SAMPLES.items() if "Card" not in name),
    *sends("SendMessage"),
    *sends("SendStreamingMessage"),
    Case("GetTask", {"id": "$ended"}),
    Case("GetTask", {"id": "$ended", "historyLength": 0}),
    Case("GetTask", {"id": "$ended", "historyLength": 1}),
    Case("GetTask", {"id": "$asking"}),
    Case("GetTask", {"id": "$asking", "tenant": "blue"}, errors.TaskNotFound),
    Case("GetTask", {"id": "$ended"}, errors.TaskNotFound, headers=KNOWN),
    Case("GetTask", {"id": "unknown"}, errors.TaskNotFound),
    bad("GetTask", "historyLength", id="x", historyLength=-1),
    bad("GetTask", "historyLength", id="x", historyLength="many"),
    Case("ListTasks"),
    Case("ListTasks", {"pageSize": 2, "includeArtifacts": True, "historyLength": 1}),
    Case("ListTasks", {"contextId": "mine", "status": "TASK_STATE_COMPLETED"}),
    Case("ListTasks", {"status": "TASK_STATE_UNSPECIFIED", "tenant": "nobody"}),
    Case("ListTasks", {"statusTimestampAfter": "2999-01-01T00:00:00Z"}),
    bad("ListTasks", "pageSize", pageSize=0),
    bad("ListTasks", "pageSize", pageSize=101),
    bad("ListTasks", "pageSize", pageSize="many"),
    bad("ListTasks", "pageToken", pageToken="broken"),
    bad("ListTasks", "historyLength", historyLength=-1),
    bad("ListTasks", "status", status="DONE"),
    bad("ListTasks", "statusTimestampAfter", statusTimestampAfter="yesterday"),
    bad("ListTasks", "includeArtifacts", includeArtifacts="perhaps"),
    Case("CancelTask", {"id": "$asking"}),
    Case("CancelTask", {"id": "$asking", "metadata": {"why": "enough"}}),
    Case("CancelTask", {"id": "unknown"}, errors.TaskNotFound),
    Case("CancelTask", {"id": "$ended"}, errors.TaskNotCancelable),
    bad("CancelTask", "metadata", id="x", metadata=5),
    Case("SubscribeToTask", {"id": "$asking"}),
    Case("SubscribeToTask", {"id": "unknown"}, errors.TaskNotFound),
    Case("SubscribeToTask", {"id": "$ended"}, errors.UnsupportedOperation),
    Case("SubscribeToTask", {"id": "x"}, errors.UnsupportedOperation, "bare"),
    Case("SubscribeToTask", {"id": "x"}, errors.LimitExceeded, "tight"),
    *webhooks("CreateTaskPushNotificationConfig", url=HOOK, id="c"),
    *webhooks("CreateTaskPushNotificationConfig", url=HOOK),
    Case(
        "CreateTaskPushNotificationConfig",
        {
            "taskId": "$asking",
            "url": HOOK,
            "token": "t",
            "authentication": {"scheme": "Bearer", "credentials": "c"},
        },
    ),
    bad("CreateTaskPushNotificationConfig", "url", taskId="$asking"),
    bad("CreateTaskPushNotificationConfig", "url", taskId="$asking", url="nowhere"),
    bad("CreateTaskPushNotificationConfig", "token", taskId="$asking", url=HOOK, token=5),
    *webhooks("GetTaskPushNotificationConfig", id="given"),
    Case("GetTaskPushNotificationConfig", {"taskId": "$asking", "id": "no"}, errors.TaskNotFound),
    *webhooks("ListTaskPushNotificationConfigs"),
    *webhooks("ListTaskPushNotificationConfigs", pageSize=1),
    bad("ListTaskPushNotificationConfigs", "pageSize", taskId="$asking", pageSize=-1),
    bad("ListTaskPushNotificationConfigs", "pageToken", taskId="$asking", pageToken="broken"),
    *webhooks("DeleteTaskPushNotificationConfig", id="given"),
    *webhooks("DeleteTaskPushNotificationConfig", id="no"),
    Case("GetExtendedAgentCard", headers=KNOWN),
    Case("GetExtendedAgentCard", {}, errors.Unauthenticated),
    Case("GetExtendedAgentCard", {}, errors.UnsupportedOperation, "bare"),
    Case(
        "GetExtendedAgentCard",
        {},
        errors.ExtendedAgentCardNotConfigured,
        "strict",
        {"A2A-Extensions": agents.REQUIRED, **KNOWN},
    ),
]

# As the specification has them: the code of JSON-RPC with its HTTP status, the status of HTTP+JSON.
CODES = {
    "TASK_NOT_FOUND": (-32001, 200, 404),
    "TASK_NOT_CANCELABLE": (-32002, 200, 400),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": (-32003, 200, 400),
    "UNSUPPORTED_OPERATION": (-32004, 200, 400),
    "CONTENT_TYPE_NOT_SUPPORTED": (-32005, 200, 400),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": (-32007, 200, 400),
    "EXTENSION_SUPPORT_REQUIRED": (-32008, 200, 400),
    "VERSION_NOT_SUPPORTED": (-32009, 200, 400),
    "PARSE_ERROR": (-32700, 200, 400),
    "INVALID_REQUEST": (-32600, 200, 400),
    "INVALID_PARAMS": (-32602, 200, 400),
    "INTERNAL_ERROR": (-32603, 200, 500),
    "UNAUTHENTICATED": (-32603, 401, 401),
    "PERMISSION_DENIED": (-32603, 403, 403),
    "UNAVAILABLE": (-32603, 503, 503),
    "MEDIA_TYPE_NOT_ACCEPTED": (-32600, 415, 415),
    "RESOURCE_EXHAUSTED": (-32603, 429, 429),
}


def codes(error: type[A2AError]) -> tuple[int, int, int]:
    """The codes of an error."""
    return (-32600, 413, 413) if error is errors.BodyTooLarge else CODES[error.reason]


# ---- comparing -----------------------------------------------------------------------------

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def normal(value: Any) -> Any:
    """A value in which each id is a number, the same for the same one, and no time is told."""
    names: dict[str, str] = {}
    text = json.dumps(value, sort_keys=True)
    text = _ID.sub(lambda match: names.setdefault(match[0], f"id-{len(names)}"), text)
    return json.loads(_TIME.sub("time", text))


async def test_ids_and_times_do_not_matter_but_which_is_which_does() -> None:
    one, two = "0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002"
    at = "2026-01-31T12:00:00.000Z"
    assert normal([one, two, one, at]) == ["id-0", "id-1", "id-0", "time"]
    assert normal([one, one]) != normal([one, two])


def whole(events: list[Any]) -> Any:
    """What a stream has told in all. (How much of it was in the first event is chance: that is
    the task as it is when the stream begins.)"""
    if "task" not in events[0]:
        return events
    task = json.loads(json.dumps(events[0]["task"]))
    for event in events[1:]:
        if artifact := event.get("artifactUpdate", {}).get("artifact"):
            task.setdefault("artifacts", []).append(artifact)
        if status := event.get("statusUpdate", {}).get("status"):
            if message := task["status"].get("message"):
                task.setdefault("history", []).append(message)
            task["status"] = status
    return task


async def prepared(server: RunningApp, client: Binding, params: Any) -> Any:
    """The parameters with tasks in them."""
    text = json.dumps(params)
    for state, words in (("$ended", "hello"), ("$asking", "ask")):
        if state not in text:
            continue
        configuration: dict[str, Any] = {}
        if server.app.settings.push:
            configuration["taskPushNotificationConfig"] = {"url": HOOK, "id": "given"}
        plain = server.client(type(client))
        sent = await plain.call("SendMessage", message=user(words), configuration=configuration)
        text = text.replace(state, sent["task"]["id"])
    return json.loads(text)


@dataclass
class Outcome:
    """What came of a request over one binding."""

    result: Any = None
    failed: Failed | None = None
    headers: dict[str, str] = field(default_factory=dict)


HEADERS = ("a2a-extensions", "www-authenticate", "retry-after")


async def outcome(server: RunningApp, client: Binding, case: Case) -> Outcome:
    """Send the request over one binding."""
    params = await prepared(server, client, case.params)
    found = Outcome()
    try:
        if case.name in ("SendStreamingMessage", "SubscribeToTask"):
            found.result = []
            async with client.open(case.name, **params) as events:
                async for seen in events:
                    found.result.append([seen.id, seen.event])
                    if case.name == "SubscribeToTask" and len(found.result) == 1:
                        await server.client(type(client)).call("CancelTask", id=params["id"])
        else:
            found.result = await client.call(case.name, **params)
    except Failed as failed:
        found.failed = failed
    found.headers = {name: client.last.headers.get(name, "") for name in HEADERS}
    found.headers["a2a-extensions"] = client.activated
    return found


@pytest.mark.clause(
    "bindings.same-results",
    "bindings.same-operations",
    "errors.rpc-codes",
    "errors.http-status",
    "errors.payload",
    "rpc.error-info",
    "http.error-info",
)
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_both_bindings_answer_alike(servers: dict[str, RunningApp], case: Case) -> None:
    server = servers[case.server]
    found = []
    for kind in BINDINGS:
        client = server.client(kind)
        client.headers |= case.headers
        found.append(await outcome(server, client, case))
    one, two = found
    assert one.headers == two.headers
    if case.error is None:
        assert (one.failed, two.failed) == (None, None)
        if case.name in STREAMS:
            assert all(o.result[-1][0].startswith(o.result[0][0].partition(":")[0]) for o in found)
            one.result, two.result = (whole([event for _, event in o.result]) for o in found)
        assert normal(one.result) == normal(two.result)
        return
    assert one.failed is not None
    assert two.failed is not None
    for failed in (one.failed, two.failed):
        assert failed.reason == case.error.reason
        assert tuple(failed.fields) == case.fields
        assert "secret" not in failed.message
    assert normal(one.failed.message) == normal(two.failed.message)
    assert one.failed.metadata == two.failed.metadata
    found_codes = (one.failed.code, one.failed.status, two.failed.status)
    assert found_codes == codes(case.error)


OTHERS = (Grpc, JsonRpc03, Http03, Grpc03)


def sayable(case: Case, kind: type[Binding]) -> bool:
    """Whether the binding can say what the case asks, and be told what it answers."""
    try:
        message = asked(case.name, case.params)
    except ParseError:
        return False
    if issubclass(kind, Grpc) and case.error is errors.BodyTooLarge:
        return False  # gRPC says so itself, in words of its own
    if kind is Grpc:
        return True
    said = case.params.get("configuration", case.params)
    parts = case.params.get("message", {}).get("parts", [])
    return not (
        case.error is errors.VersionNotSupported
        or getattr(message, "tenant", "")
        or (case.name == "ListTasks" and not kind.can("list"))
        or (said.get("historyLength") == 0 and not kind.can("history-zero"))
        or ("Configs" in case.name and len(case.params) > 1 and not kind.can("push-pages"))
        or any("mediaType" in part for part in parts)
        or (case.name.startswith("Create") and "id" not in case.params)  # they have their own rule
        or (case.name.startswith("Send") and case.fields == ("message",))
    )


def unsayable(kind: type[Binding]) -> set[str]:
    """The cases that are not tried."""
    return {str(case) for case in CASES if not sayable(case, kind)}


async def test_nothing_is_left_out_but_what_cannot_be_said() -> None:
    wrong = {
        "SendMessage-BodyTooLarge",
        "SendStreamingMessage-BodyTooLarge",
        "SendMessage-InvalidParams-message.role",
        "SendMessage-InvalidParams-message.parts[0].text",
        "SendStreamingMessage-InvalidParams-message.role",
        "SendStreamingMessage-InvalidParams-message.parts[0].text",
        "GetTask-InvalidParams-historyLength",
        "ListTasks-InvalidParams-pageSize",
        "ListTasks-InvalidParams-status",
        "ListTasks-InvalidParams-statusTimestampAfter",
        "ListTasks-InvalidParams-includeArtifacts",
        "CancelTask-InvalidParams-metadata",
        "CreateTaskPushNotificationConfig-InvalidParams-token",
    }
    assert unsayable(Grpc) == wrong
    for kind in OTHERS[1:]:
        rest = unsayable(kind) - wrong
        told = [name for name in rest if "Version" not in name and "Forbidden" not in name]
        assert len({name.partition("-")[0] for name in told}) < 8
        assert len([case for case in CASES if sayable(case, kind)]) > 100


@pytest.mark.clause("bindings.same-results", "bindings.same-operations", "errors.grpc-status")
@pytest.mark.parametrize(
    ("case", "kind"),
    [(case, kind) for kind in OTHERS for case in CASES if sayable(case, kind)],
    ids=lambda value: value.name if isinstance(value, type) else str(value),
)
async def test_the_others_answer_alike(
    servers: dict[str, RunningApp], case: Case, kind: type[Binding]
) -> None:
    server = servers[case.server]
    found = []
    for each in (JsonRpc, kind):
        client = server.client(each, **case.headers)
        found.append(await outcome(server, client, case))
    one, two = found
    if case.error is None or not kind.name.startswith("grpc"):  # where they are told before
        assert one.headers["a2a-extensions"] == two.headers["a2a-extensions"]
    if case.error is None:
        assert (one.failed, two.failed) == (None, None)
        if case.name == "GetExtendedAgentCard":
            assert one.result["description"] == two.result["description"] == "ann"
            return
        if case.name in STREAMS:
            one.result, two.result = (whole([event for _, event in o.result]) for o in found)
        assert normal(without(one.result)) == normal(without(two.result))
        return
    assert one.failed is not None
    assert two.failed is not None
    if kind.can("reason") or case.error.rpc not in (-32008, -32009):
        assert two.failed.reason == case.error.reason
    assert tuple(two.failed.fields) == case.fields
    if case.fields != ("message.parts",):  # in protobuf an empty list is none
        assert normal(one.failed.message) == normal(two.failed.message)
    if kind.can("reason"):
        assert two.failed.metadata == one.failed.metadata
    if issubclass(kind, Grpc):
        http = codes(case.error)[2]
        assert two.failed.status == (429 if http == 413 else http)
    elif kind is Http03:
        assert two.failed.status == codes(case.error)[2]
    else:
        code, status, _ = codes(case.error)
        former = -32603 if code in (-32008, -32009) else code
        assert (two.failed.code, two.failed.status) == (former, status)


def without(value: Any) -> Any:
    """Without what one side may leave out: a page's empty end."""
    if isinstance(value, dict) and value.get("nextPageToken") == "" and "configs" in value:
        return {"configs": value["configs"]}
    return value


@pytest.mark.clause("bindings.same-results", "list.only-visible")
async def test_one_sees_what_the_other_did(servers: dict[str, RunningApp]) -> None:
    server = servers["full"]
    one, two = (server.client(kind) for kind in BINDINGS)
    for here, there in ((one, two), (two, one)):
        task = (await here.call("SendMessage", message=user("ask")))["task"]
        assert await there.call("GetTask", id=task["id"]) == task
        config = {"taskId": task["id"], "id": "c", "url": HOOK}
        await here.call("CreateTaskPushNotificationConfig", **config)
        found = await there.call("ListTaskPushNotificationConfigs", taskId=task["id"])
        assert found == {"configs": [config]}
        async with here.open("SubscribeToTask", id=task["id"]) as events:
            assert (await anext(events)).event == {"task": task}
            done = await there.call("SendMessage", message=user("june", taskId=task["id"]))
            seen = [seen.event async for seen in events]
        assert seen[-1]["statusUpdate"]["status"] == done["task"]["status"]
        assert await here.call("GetTask", id=task["id"]) == done["task"]


async def test_all_operations_and_errors_are_among_the_cases() -> None:
    assert {case.name for case in CASES} == {operation.name for operation in OPERATIONS}
    shown = {case.error for case in CASES if case.error}
    known = {
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, A2AError)
    }
    # What only one binding can have, or what is not told as an error but as a failed task.
    others = {
        A2AError,
        errors.ParseError,
        errors.InvalidRequest,
        errors.AmbiguousRequest,  # refused before any operation is known; see test_repeated
        errors.MethodNotFound,
        errors.MethodNotAllowed,
        errors.MediaTypeNotAccepted,
        errors.Misdirected,
        errors.TooSlow,
        errors.InvalidAgentResponse,
        errors.HandoverEnded,  # of requests that are no operations of A2A
    }
    assert known - shown == others


# ---- what is no request at all -------------------------------------------------------------


@pytest.mark.clause("bindings.same-results", "limits.sizes")
@pytest.mark.parametrize(
    ("body", "kind", "error"),
    [
        (b"hello", "application/json", errors.ParseError),
        (b'"\xff"', "application/json", errors.ParseError),
        (b"[" * 200 + b"]" * 200, "application/json", errors.InvalidRequest),
        (b"{}", "text/plain", errors.MediaTypeNotAccepted),
        (b" " * 3000, "application/json", errors.BodyTooLarge),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_bodies_that_are_no_request(
    servers: dict[str, RunningApp], body: bytes, kind: str, error: type[A2AError]
) -> None:
    server = servers["tight"]
    headers = {"Content-Type": kind, "A2A-Version": "1.0"}
    rpc = await server.http.post(f"{server.url}/", content=body, headers=headers)
    http = await server.http.post(f"{server.url}/message:send", content=body, headers=headers)
    one, two = rpc.json()["error"], http.json()["error"]
    assert one["message"] == two["message"]
    assert one["data"] == two["details"]
    assert one["data"][0]["reason"] == error.reason
    assert (one["code"], rpc.status_code, http.status_code) == codes(error)
