"""How the server finds the version of a request, and features of older versions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dragoman.model.events import RESUME
from tests.contract.bindings.conftest import user
from tests.contract.bindings.test_task_across_bindings import (
    FORMS,
    OLDER,
    SUPPORTED,
    assembly,
    each,
    first,
    hall,
    only,
    post,
    rpc,
    said,
)
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, Grpc, JsonRpc
from tests.harness.older_clients import Grpc03, Http03, JsonRpc01, JsonRpc03

__all__ = ["hall"]  # a fixture
pytestmark = pytest.mark.first


# ---- versions ------------------------------------------------------------------------------

NEWER = {"SendMessage": {"message": user("x")}, "GetTask": {"id": "none"}}
LATER = {"message/send": {"message": said("x")}, "tasks/pushNotificationConfig/list": {"id": "-"}}


async def agreed(server: RunningApp, method: str, params: Any, version: str, query: bool) -> Any:
    """What is answered to a request that names a version."""
    if query:
        return await rpc(server, method, params, f"/?A2A-Version={quote(version)}")
    return await rpc(server, method, params, A2A_Version=version)


def reason(answer: dict[str, Any]) -> str:
    """Why a request failed, if it did."""
    return answer["error"]["data"][0]["reason"] if "error" in answer else ""


@pytest.mark.clause("version.requested", "version.unsupported", "version.query-parameter")
@pytest.mark.parametrize("query", [False, True], ids=["header", "query"])
async def test_a_version_must_be_one_of_the_methods(hall: RunningApp, query: bool) -> None:
    for method, params, good in (
        ("SendMessage", {"message": user("x")}, ("1.0", "1.0.3")),
        ("message/send", {"message": said("x")}, ("0.3", "0.2", "0.3.0", "0.2.6")),
        ("tasks/send", first("ask"), ("0.1", "0.1.0")),
        ("tasks/send", {"message": said("x")}, ("0.2", "0.3")),
    ):
        for version in ("", *good):
            answer = await agreed(hall, method, params, version, query)
            assert "result" in answer, (method, version, answer)
        others = {"1.0", "0.3", "0.2", "0.1"} - set(good)
        if method == "tasks/send":
            others = {"1.0"}
        for version in (*others, "2.0", "0.9", "1", "latest"):
            answer = await agreed(hall, method, params, version, query)
            assert reason(answer) == "VERSION_NOT_SUPPORTED", (method, version)
            assert answer["error"]["data"][0]["metadata"] == SUPPORTED
            # a client that names something of 1.0 knows the code that came with it
            known = method == "SendMessage" or not version.startswith("0.")
            assert answer["error"]["code"] == (-32009 if known else -32603), (method, version)


@pytest.mark.clause("version.empty")
async def test_a_request_that_names_no_version_is_one_of_0_3(hall: RunningApp) -> None:
    """Where the request can be of 0.3; a method, path or package that only 1.0 has is of 1.0."""
    for headers in ({}, {"A2A_Version": ""}):
        sent = await rpc(hall, "message/send", {"message": said("x")}, **headers)
        task = sent["result"]
        assert (task["kind"], task["status"]["state"]) == ("task", "completed")
        # 0.2 and 0.1 have this method, too
        got = await rpc(hall, "tasks/get", {"id": task["id"]}, **headers)
        assert got["result"] == task
        missing = await rpc(hall, "tasks/get", {"id": "none"}, **headers)
        assert missing["error"]["code"] == -32001
        older = {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]}}
        answer = await post(hall, "/v1/message:send", older, **headers)
        assert answer.headers["content-type"] == "application/json"
        assert "content" in answer.json()["task"]["history"][0]
    task = await hall.client(Grpc03, A2A_Version="").call("SendMessage", message=user("x"))
    assert task["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_header_goes_before_the_query(hall: RunningApp) -> None:
    path = "/?A2A-Version=0.3"
    assert "result" in await rpc(hall, "SendMessage", NEWER["SendMessage"], path, A2A_Version="1.0")
    answer = await rpc(hall, "message/send", LATER["message/send"], path, A2A_Version="1.0")
    assert reason(answer) == "VERSION_NOT_SUPPORTED"


@pytest.mark.clause("http.headers")
async def test_a_path_says_the_version(hall: RunningApp) -> None:
    newer = {"message": user("x")}
    older = {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]}}
    for path, body, good, wrong in (
        ("/message:send", newer, ("", "1.0", "1.0.1"), ("0.3", "0.2", "0.1", "3.0", "x")),
        ("/v1/message:send", older, ("", "0.3", "0.3.0"), ("0.2", "1.0", "0.1", "3.0", "x")),
    ):
        for version in good:
            assert (await post(hall, path, body, A2A_Version=version)).status_code == 200
            asked = await post(hall, f"{path}?A2A-Version={version}", body)
            assert asked.status_code == 200
        for version in wrong:
            for answer in (
                await post(hall, path, body, A2A_Version=version),
                await post(hall, f"{path}?A2A-Version={version}", body),
            ):
                assert answer.status_code == 400
                told = answer.json()
                if "error" in told:
                    assert told["error"]["details"][0]["metadata"] == SUPPORTED
                else:
                    assert (told["code"], told["type"]) == (-32603, "InternalError")
                    assert path.startswith("/v1")
                    assert version.startswith("0.")
    assert (await post(hall, "/blue/v1/message:send", older)).status_code == 404


@pytest.mark.clause("version.unsupported", "grpc.metadata")
async def test_the_package_says_the_version(hall: RunningApp) -> None:
    for kind, good, wrong in (
        (Grpc, ("", "1.0", "1.0.9"), ("0.3", "0.2", "0.1", "7.0", "x")),
        (Grpc03, ("", "0.3", "0.3.0"), ("1.0", "0.2", "7.0", "x")),
    ):
        for version in good:
            await hall.client(kind, A2A_Version=version).call("SendMessage", message=user("x"))
        for version in wrong:
            for name in ("SendMessage", "SendStreamingMessage"):
                client = hall.client(kind, A2A_Version=version)
                with pytest.raises(Failed) as failed:
                    await (client.call if name == "SendMessage" else client.stream)(
                        name, message=user("x")
                    )
                assert (failed.value.reason, failed.value.status) == ("VERSION_NOT_SUPPORTED", 400)
                assert failed.value.metadata == SUPPORTED


# ---- extensions ----------------------------------------------------------------------------


@pytest.mark.clause("grpc.metadata", "http.headers")
@each
async def test_an_extension_that_is_required(kind: type[Binding]) -> None:
    uri = agents_required()
    async with assembly(required=True) as server:
        with pytest.raises(Failed) as failed:
            await server.client(kind).call("SendMessage", message=user("x"))
        if kind.can("reason"):
            assert failed.value.reason == "EXTENSION_SUPPORT_REQUIRED"
            assert failed.value.metadata == {"extension": uri}
        assert uri in failed.value.message
        client = server.client(kind, A2A_Extensions=f"urn:unknown,{uri}, {RESUME}")
        await client.call("SendMessage", message=user("x"))
        assert client.activated == f"{uri}, {RESUME}"
        await client.stream("SendStreamingMessage", message=user("x"))
        assert client.activated == f"{uri}, {RESUME}"
        other = "a2a-extensions" if kind.version != "1.0" else "x-a2a-extensions"
        assert other not in client.last.headers
        # whoever asks by the other name is understood, too
        swapped = server.client(kind)
        swapped.headers["A2A-Extensions" if kind.version != "1.0" else "X-A2A-Extensions"] = uri
        await swapped.call("SendMessage", message=user("x"))
        assert swapped.activated == uri


def agents_required() -> str:
    """The extension that the agent requires."""
    from tests.harness.agents import REQUIRED

    return REQUIRED


async def test_resuming_in_0_1(hall: RunningApp) -> None:
    client = hall.client(JsonRpc01, A2A_Extensions=RESUME)
    whole = await client.stream("SendStreamingMessage", message=user("chunks 5", taskId="t/1"))
    for number, seen in enumerate(whole):
        (value,) = seen.event.values()
        assert seen.id.endswith(f":{value['metadata'][RESUME]['place']}")
        again = hall.client(JsonRpc01, A2A_Extensions=RESUME, Last_Event_ID=seen.id)
        rest = await again.stream("SubscribeToTask", id="t/1")
        assert rest == whole[number + 1 :]


@pytest.mark.parametrize("there", FORMS, ids=lambda kind: kind.name)
async def test_a_place_of_one_form_is_one_of_every_other(
    hall: RunningApp, there: type[Binding]
) -> None:
    whole = await hall.client(JsonRpc, A2A_Extensions=RESUME).stream(
        "SendStreamingMessage", message=user("chunks 5")
    )
    place = whole[3].id
    client = hall.client(there, A2A_Extensions=RESUME, Last_Event_ID=place)
    rest = await client.stream("SubscribeToTask", id=place.partition(":")[0])
    assert [seen.event for seen in rest] == [seen.event for seen in whole[4:]]


# ---- waiting and history -------------------------------------------------------------------


async def test_what_waits_in_0_3(hall: RunningApp) -> None:
    older = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "gate"}]}

    async def state(answer: Any) -> str:
        task = answer.get("result") or answer.get("task") or answer
        return str(task["status"]["state"]).upper().replace("-", "_")

    for configuration in ({"blocking": False}, {"blocking": False, "historyLength": 1}):
        answer = await rpc(
            hall, "message/send", {"message": said("gate"), "configuration": configuration}
        )
        assert (await state(answer)) in ("SUBMITTED", "WORKING")
    for configuration in ({}, {"blocking": False}, {"historyLength": 2}):
        body = {"message": older, "configuration": configuration}
        answer = (await post(hall, "/v1/message:send", body)).json()
        assert (await state(answer)).endswith(("SUBMITTED", "WORKING"))
    waiting = [
        rpc(hall, "message/send", {"message": said("gate")}),
        rpc(hall, "message/send", {"message": said("gate"), "configuration": {}}),
        rpc(hall, "message/send", {"message": said("gate"), "configuration": {"blocking": True}}),
        rpc(hall, "tasks/send", first("gate")),
        post(hall, "/v1/message:send", {"message": older}),
        post(hall, "/v1/message:send", {"message": older, "configuration": {"blocking": True}}),
        hall.client(Grpc03).call("SendMessage", message=user("gate")),
        hall.client(Grpc03).call("SendMessage", message=user("gate"), configuration={}),
    ]
    tasks = [asyncio.create_task(each_) for each_ in waiting]
    async with asyncio.timeout(30):
        while len(await hall.client(JsonRpc).tasks()) < 5 + len(waiting):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in tasks)
    hall.gate.set()
    for task in tasks:
        answer = await task
        found = answer if isinstance(answer, dict) else answer.json()
        assert (await state(found)).endswith("COMPLETED")


async def test_no_history_is_all_of_it_where_zero_is_nothing(hall: RunningApp) -> None:
    sent = await hall.client(JsonRpc).call("SendMessage", message=user("x"))
    id = sent["task"]["id"]
    counts = {
        kind.name: len(
            (await hall.client(kind).call("GetTask", id=id, historyLength=0)).get("history", [])
        )
        for kind in FORMS
    }
    assert counts == {
        "jsonrpc": 0,
        "http": 0,
        "grpc": 0,
        "jsonrpc-0.3": 0,
        "http-0.3": 2,
        "grpc-0.3": 2,
    }
    for kind in FORMS:
        client = hall.client(kind)
        assert len((await client.call("GetTask", id=id, historyLength=1))["history"]) == 1
        with pytest.raises(Failed) as failed:
            await client.call("GetTask", id=id, historyLength=-1)
        assert failed.value.reason == "INVALID_PARAMS"


# ---- 0.1 -----------------------------------------------------------------------------------


async def test_two_callers_with_one_id_do_not_meet(hall: RunningApp) -> None:
    ann, bob, blue = (
        hall.client(JsonRpc01, X_User="ann"),
        hall.client(JsonRpc01, X_User="bob"),
        hall.client(JsonRpc01, X_User="ann", X_Tenant="blue"),
    )
    for client, text in ((ann, "ask ann"), (bob, "ask bob"), (blue, "ask blue")):
        await client.call("SendMessage", message=user(text, taskId="same"))
    for client, text in ((ann, "ask ann"), (bob, "ask bob"), (blue, "ask blue")):
        found = await client.call("GetTask", id="same")
        assert found["history"][0]["parts"] == [{"text": text}]
        assert len(await client.tasks()) == 1
    await bob.call("CancelTask", id="same")
    assert (await ann.call("GetTask", id="same"))["status"]["state"].endswith("INPUT_REQUIRED")
    stranger = hall.client(JsonRpc01, X_User="eve")
    for name in ("GetTask", "CancelTask"):
        with pytest.raises(Failed) as failed:
            await stranger.call(name, id="same")
        assert failed.value.reason == "TASK_NOT_FOUND"
    # nor by the name that is ours
    inside = (await only(hall, X_User="ann"))["id"]
    for other in FORMS:
        with pytest.raises(Failed) as failed:
            await hall.client(other, X_User="eve").call("GetTask", id=inside)
        assert failed.value.reason == "TASK_NOT_FOUND"


async def test_an_id_that_is_known_goes_on(hall: RunningApp) -> None:
    client = hall.client(JsonRpc01)
    one = (await client.call("SendMessage", message=user("ask", taskId="t")))["task"]
    two = (await client.call("SendMessage", message=user("june", taskId="t")))["task"]
    assert (one["id"], two["id"]) == ("t", "t")
    assert one["contextId"] == two["contextId"]
    assert [m["parts"][0]["text"] for m in two["history"]][-2:] == ["june", "working on june"]
    with pytest.raises(Failed) as failed:  # it has ended
        await client.call("SendMessage", message=user("more", taskId="t"))
    assert failed.value.reason == "UNSUPPORTED_OPERATION"
    assert len(await client.tasks()) == 1


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_concurrent_first_sends_are_one_task(store: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db" if store == "sqlite" else store
    async with assembly(store=url) as server:
        client = server.client(JsonRpc01)
        sends = [
            asyncio.create_task(client.call("SendMessage", message=user(text, taskId="t")))
            for text in ("gate 1", "gate 2", "gate 3", "gate 4")
        ]
        await only(server)
        async with asyncio.timeout(30):
            while True:
                found = await client.call("GetTask", id="t")
                texts = [m["parts"][0]["text"] for m in found["history"]]
                if {"gate 1", "gate 2", "gate 3", "gate 4"} <= set(texts):
                    break
                await asyncio.sleep(0.01)
        server.gate.set()
        for send in sends:
            assert (await send)["task"]["id"] == "t"
        await only(server)


ODD = [
    "a/b",
    "with space",
    "ünï \U0001f600",
    "..",
    "%2F",
    "~2F",
    "a:b",
    "v0.1-x",
    "?q#f",
    "x" * 256,
]


async def test_odd_ids(hall: RunningApp) -> None:
    for number, id in enumerate(ODD):
        who = {"X_User": f"user-{number}"}
        client = hall.client(JsonRpc01, **who)
        sent = (await client.call("SendMessage", message=user("ask", taskId=id)))["task"]
        assert sent["id"] == id
        assert (await client.call("GetTask", id=id))["id"] == id
        inside = (await only(hall, **who))["id"]
        for other in FORMS:  # which put it into paths as it is
            found = await hall.client(other, **who).call("GetTask", id=inside)
            assert found["id"] == inside
        seen = []
        async with client.open("SubscribeToTask", id=id) as events:
            found = await client.call("CancelTask", id=id)
            async for one in events:
                seen.append(one)
        assert {value["taskId"] for one in seen for value in one.event.values()} == {id}
        assert found["id"] == id
        assert found["status"]["state"] == "TASK_STATE_CANCELED"


async def test_ids_that_are_none(hall: RunningApp) -> None:
    for id in ("", "x" * 257, 5, None):
        answer = await rpc(hall, "tasks/send", first(id=id))  # type: ignore[arg-type]
        assert answer["error"]["code"] == -32602
    assert not await hall.client(JsonRpc).tasks()


async def test_tasks_send_as_another_name_of_message_send(hall: RunningApp) -> None:
    answer = await rpc(hall, "tasks/send", {"message": said("hello")})
    task = answer["result"]
    assert task["kind"] == "task"
    assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "hello"}]
    assert task == (await rpc(hall, "tasks/get", {"id": task["id"]}))["result"]
    reply = await rpc(hall, "tasks/send", {"message": said("hi", metadata={"skill": "talk"})})
    assert reply["result"]["kind"] == "message"


@pytest.mark.parametrize("path", ["/tasks/send", "/"])
async def test_the_method_in_the_path(hall: RunningApp, path: str) -> None:
    params = first("hello", status={"state": "submitted", "timestamp": "2026-01-01T00:00:00"})
    answer = await rpc(hall, "tasks/send", params, path)
    assert answer["result"]["id"] == "t-1"
    assert answer["result"]["artifacts"][0]["parts"] == [{"type": "text", "text": "hello"}]
    path = "/tasks/get" if path != "/" else path
    found = await rpc(hall, "tasks/get", {"id": "t-1", "historyLength": 0}, path)
    assert found["result"]["id"] == "t-1"
    assert "history" not in found["result"]
    path = "/tasks/cancel" if path != "/" else path
    assert (await rpc(hall, "tasks/cancel", {"id": "t-1"}, path))["error"]["code"] == -32002


async def test_a_direct_reply_is_a_task_in_0_1(hall: RunningApp) -> None:
    message = {"metadata": {"skill": "talk"}}
    params = first("hi")
    params["message"] |= message
    task = (await rpc(hall, "tasks/send", params))["result"]
    assert task["status"]["state"] == "completed"
    assert task["status"]["message"]["parts"] == [{"type": "text", "text": "you said hi"}]
    client = hall.client(JsonRpc01)
    (only_one,) = await client.stream(
        "SendStreamingMessage", message=user("hi", metadata={"skill": "talk"}, taskId="t-2")
    )
    assert only_one.final is True
    assert only_one.event["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_states_that_0_1_does_not_know(hall: RunningApp) -> None:
    client = hall.client(JsonRpc01)
    rejected = (await client.call("SendMessage", message=user("reject")))["task"]
    assert rejected["status"]["state"] == "TASK_STATE_FAILED"
    login = (await client.call("SendMessage", message=user("auth")))["task"]
    assert login["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


# ---- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["AP/+IGJ5dGVz", "dGVzdA=="], ids=["bytes", "looks-encoded"])
async def test_files_of_those_who_send_them_bare(hall: RunningApp, content: str) -> None:
    file = {"fileWithBytes": content, "mimeType": "text/plain"}
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"file": file}]}
    message["metadata"] = {"skill": "files"}
    answer = await post(hall, "/v1/message:send", {"message": message}, User_Agent="node")
    task = answer.json()["task"]
    assert task["artifacts"][0]["parts"] == [{"file": file}]
    found = await hall.client(JsonRpc).call("GetTask", id=task["id"])
    assert found["artifacts"][0]["parts"][0]["raw"] == content


async def test_nothing_is_said_that_the_proto_does_not_have(hall: RunningApp) -> None:
    """The client is strict, as old ones are: any other field would be an error."""
    client = hall.client(Http03)
    message = user(parts=[{"data": 5}, {"text": "x"}], metadata={"skill": "files"})
    task = (await client.call("SendMessage", message=message))["task"]
    raw = (await hall.http.get(f"{hall.url}/v1/tasks/{task['id']}")).json()
    assert "kind" not in json.dumps(raw)
    assert raw["history"][0]["content"][0]["data"] == {"data": {"value": 5}}


async def test_pages_of_tasks_in_0_3(hall: RunningApp) -> None:
    client = hall.client(Http03)
    for kind in OLDER:
        await hall.client(kind).call("SendMessage", message=user("x"))
    page = await client.call("ListTasks", pageSize=2)
    rest = await client.call("ListTasks", pageSize=2, pageToken=page["nextPageToken"])
    assert (len(page["tasks"]), len(rest["tasks"]), page["totalSize"]) == (2, 1, 3)
    assert JsonRpc03.can("list") is False
