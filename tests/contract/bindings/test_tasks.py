"""GetTask, ListTasks, CancelTask, and access to tasks of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.bindings.conftest import Start, user
from tests.contract.bindings.test_send import until
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed


@pytest.mark.clause("get.unknown-task", "cancel.unknown-task", "errors.not-found")
@pytest.mark.parametrize("name", ["GetTask", "CancelTask"])
async def test_unknown_tasks(client: Binding, name: str) -> None:
    with pytest.raises(Failed) as failed:
        await client.call(name, id="unknown")
    assert failed.value.reason == "TASK_NOT_FOUND"


@pytest.mark.storeless
async def test_negative_history(client: Binding) -> None:
    names = ["GetTask", "ListTasks"] if client.can("list") else ["GetTask"]
    for name in names:
        params = {"id": "x"} if name == "GetTask" else {}
        with pytest.raises(Failed) as failed:
            await client.call(name, **params, historyLength=-1)
        assert failed.value.fields == ["historyLength"]


@pytest.mark.clause("access.every-operation", "list.only-visible", "errors.not-found")
async def test_nobody_sees_what_is_not_theirs(server: RunningApp, kind: type[Binding]) -> None:
    ann = server.client(kind, X_User="ann")
    task = (await ann.call("SendMessage", message=user("ask")))["task"]["id"]
    config = {"taskId": task, "url": "https://example.com/hook", "id": "c"}
    await ann.call("CreateTaskPushNotificationConfig", **config)
    others = [
        server.client(kind, X_User="bob"),
        server.client(kind),
        server.client(kind, X_User="ann", X_Tenant="elsewhere"),
    ]
    for other in others:
        assert len(await other.tasks()) == 0
        for name, params in (
            ("GetTask", {"id": task}),
            ("CancelTask", {"id": task}),
            ("SendMessage", {"message": user("june", taskId=task)}),
            ("CreateTaskPushNotificationConfig", config),
            ("GetTaskPushNotificationConfig", {"taskId": task, "id": "c"}),
            ("ListTaskPushNotificationConfigs", {"taskId": task}),
            ("DeleteTaskPushNotificationConfig", {"taskId": task, "id": "c"}),
        ):
            with pytest.raises(Failed) as theirs:
                await other.call(name, **params)
            unknown = {k: "unknown" if v == task else v for k, v in params.items()}
            if "message" in unknown:
                unknown["message"] = user("june", taskId="unknown")
            with pytest.raises(Failed) as nobodys:
                await other.call(name, **unknown)
            assert theirs.value == nobodys.value
            assert theirs.value.reason == "TASK_NOT_FOUND"
        with pytest.raises(Failed):
            await other.stream("SubscribeToTask", id=task)
    assert (await ann.call("GetTask", id=task))["status"]["state"].endswith("INPUT_REQUIRED")


@pytest.mark.needs("tenant")
@pytest.mark.clause("http.tenant-prefix")
async def test_tenants_are_apart(server: RunningApp, kind: type[Binding]) -> None:
    client = server.client(kind)
    task = (await client.call("SendMessage", tenant="blue", message=user("x")))["task"]["id"]
    assert (await client.call("GetTask", tenant="blue", id=task))["id"] == task
    assert (await client.call("ListTasks", tenant="blue"))["totalSize"] == 1
    assert (await client.call("ListTasks", tenant="red"))["totalSize"] == 0
    for params in ({"tenant": "red"}, {}):
        with pytest.raises(Failed) as failed:
            await client.call("GetTask", **params, id=task)
        assert failed.value.reason == "TASK_NOT_FOUND"
    bound = server.client(kind, X_Tenant="red")
    with pytest.raises(Failed) as failed:
        await bound.call("GetTask", tenant="blue", id=task)
    assert failed.value.reason == "PERMISSION_DENIED"
    assert failed.value.status == 403


@pytest.mark.storeless
@pytest.mark.clause("auth.reject", "auth.challenge")
async def test_a_caller_that_cannot_be_identified(server: RunningApp, kind: type[Binding]) -> None:
    client = server.client(kind, X_User="nobody")
    with pytest.raises(Failed) as failed:
        await client.call("GetTask", id="x")
    assert (failed.value.reason, failed.value.status) == ("UNAUTHENTICATED", 401)
    assert client.last.headers["www-authenticate"] == "Bearer"


@pytest.mark.needs("list")
@pytest.mark.clause("list.answer-fields", "list.artifacts")
async def test_an_empty_list(client: Binding) -> None:
    answer = await client.call("ListTasks")
    assert answer == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}


@pytest.mark.needs("list")
@pytest.mark.clause(
    "list.filters", "list.order", "list.cursor", "list.total-size", "list.artifacts"
)
async def test_listing(client: Binding) -> None:
    made = []
    for number in range(12):
        text = "ask" if number % 3 == 0 else f"echo {number}"
        message = user(text, contextId=f"context-{number % 2}")
        made.append((await client.call("SendMessage", message=message))["task"])
        await asyncio.sleep(0.002)  # a millisecond of its own for each status
    newest = [task["id"] for task in reversed(made)]

    async def pages(**query: Any) -> list[list[str]]:
        found, token = [], ""
        while True:
            page = await client.call(
                "ListTasks", **query, **({"pageToken": token} if token else {})
            )
            assert all("artifacts" not in task for task in page["tasks"])
            found.append([task["id"] for task in page["tasks"]])
            token = page["nextPageToken"]
            if not token:
                assert page["totalSize"] == sum(map(len, found))
                return found

    assert await pages() == [newest]
    assert await pages(pageSize=5) == [newest[:5], newest[5:10], newest[10:]]
    assert await pages(pageSize=6) == [newest[:6], newest[6:]]
    asking = [t["id"] for t in reversed(made) if t["status"]["state"].endswith("INPUT_REQUIRED")]
    assert await pages(status="TASK_STATE_INPUT_REQUIRED", pageSize=3) == [asking[:3], asking[3:]]
    odd = [task["id"] for task in reversed(made) if task["contextId"] == "context-1"]
    assert await pages(contextId="context-1", pageSize=4) == [odd[:4], odd[4:]]
    since = made[7]["status"]["timestamp"]
    assert await pages(statusTimestampAfter=since) == [newest[:5]]
    both = await pages(contextId="context-1", status="TASK_STATE_INPUT_REQUIRED")
    assert both == [[task for task in odd if task in asking]]
    page = await client.call("ListTasks", includeArtifacts=True, historyLength=0, pageSize=1)
    assert page["tasks"][0]["artifacts"][0]["parts"] == [{"text": "echo 11"}]
    assert "history" not in page["tasks"][0]


@pytest.mark.needs("list")
@pytest.mark.clause("list.order")
async def test_a_new_status_comes_first(client: Binding) -> None:
    first = (await client.call("SendMessage", message=user("ask")))["task"]["id"]
    await asyncio.sleep(0.002)
    second = (await client.call("SendMessage", message=user("ask")))["task"]["id"]
    await asyncio.sleep(0.002)
    await client.call("SendMessage", message=user("june", taskId=first))
    assert [t["id"] for t in (await client.call("ListTasks"))["tasks"]] == [first, second]


def json_only(query: dict[str, Any], field: str) -> Any:
    """A case that a message of protobuf cannot hold."""
    return pytest.param(query, field, marks=pytest.mark.needs("json-query"))


@pytest.mark.storeless
@pytest.mark.needs("list")
@pytest.mark.clause("list.page-size", "list.invalid-params")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"pageSize": 0}, "pageSize"),
        ({"pageSize": 101}, "pageSize"),
        ({"pageSize": -1}, "pageSize"),
        ({"pageToken": "garbage"}, "pageToken"),
        ({"pageToken": "bm90IGpzb24"}, "pageToken"),
        json_only({"status": "TASK_STATE_DANCING"}, "status"),
        json_only({"statusTimestampAfter": "yesterday"}, "statusTimestampAfter"),
        json_only({"statusTimestampAfter": "2026-13-01T00:00:00Z"}, "statusTimestampAfter"),
    ],
)
async def test_bad_queries(client: Binding, query: dict[str, Any], field: str) -> None:
    with pytest.raises(Failed) as failed:
        await client.call("ListTasks", **query)
    assert failed.value.reason == "INVALID_PARAMS"
    assert failed.value.fields == [field]


@pytest.mark.clause("cancel.updated-task", "state.terminal-final")
@pytest.mark.parametrize("text", ["gate", "ask", "auth", "stubborn"])
async def test_cancel_whatever_the_agent_does(client: Binding, text: str) -> None:
    sent = await client.call(
        "SendMessage", message=user(text), configuration={"returnImmediately": True}
    )
    task = sent["task"]["id"]
    await until(client, task, "WORKING" if text in ("gate", "stubborn") else "REQUIRED")
    found = await client.call("CancelTask", id=task)
    assert found["id"] == task
    assert found["status"]["state"] == "TASK_STATE_CANCELED"
    with pytest.raises(Failed) as failed:
        await client.call("CancelTask", id=task)
    assert failed.value.reason == "TASK_NOT_CANCELABLE"
    assert (await client.call("GetTask", id=task))["status"] == found["status"]


@pytest.mark.clause("cancel.idempotent")
async def test_concurrent_cancels_share_one_answer(client: Binding) -> None:
    sent = await client.call(
        "SendMessage", message=user("stubborn"), configuration={"returnImmediately": True}
    )
    task = sent["task"]["id"]
    await until(client, task, "WORKING")
    answers = await asyncio.gather(*(client.call("CancelTask", id=task) for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)


async def test_the_first_terminal_status_wins(client: Binding) -> None:
    sent = await client.call(
        "SendMessage", message=user("finishing"), configuration={"returnImmediately": True}
    )
    task = sent["task"]["id"]
    await until(client, task, "WORKING")
    with pytest.raises(Failed) as failed:
        await client.call("CancelTask", id=task)
    assert failed.value.reason == "TASK_NOT_CANCELABLE"
    found = await client.call("GetTask", id=task)
    assert found["status"]["state"] == "TASK_STATE_COMPLETED"
    assert found["status"]["message"]["parts"] == [{"text": "done all the same"}]


@pytest.mark.clause("cancel.terminal-task")
async def test_an_ended_task_cannot_be_canceled(client: Binding) -> None:
    task = (await client.call("SendMessage", message=user("x")))["task"]["id"]
    with pytest.raises(Failed) as failed:
        await client.call("CancelTask", id=task)
    assert failed.value.reason == "TASK_NOT_CANCELABLE"


async def test_a_blocked_sender_learns_of_the_cancel(client: Binding) -> None:
    send = asyncio.create_task(client.call("SendMessage", message=user("gate")))
    async with asyncio.timeout(30):
        while not (tasks := await client.tasks()):
            await asyncio.sleep(0.01)
    await client.call("CancelTask", id=tasks[0]["id"])
    assert (await send)["task"]["status"]["state"] == "TASK_STATE_CANCELED"


@pytest.mark.clause("push.create", "push.read", "push.get-unknown", "push.delete", "push.with-send")
async def test_push_configs(client: Binding) -> None:
    task = (await client.call("SendMessage", message=user("ask")))["task"]["id"]
    full = {
        "taskId": task,
        "id": "a",
        "url": "https://example.com/hook",
        "token": "t",
        "authentication": {"scheme": "Bearer", "credentials": "c"},
    }
    assert await client.call("CreateTaskPushNotificationConfig", **full) == full
    given = await client.call(
        "CreateTaskPushNotificationConfig", taskId=task, url="https://example.com/2"
    )
    assert given["id"]
    assert given["id"] != "a"
    assert await client.call("GetTaskPushNotificationConfig", taskId=task, id="a") == full
    listed = await client.call("ListTaskPushNotificationConfigs", taskId=task)
    assert sorted(c["id"] for c in listed["configs"]) == sorted(["a", given["id"]])
    if client.can("push-pages"):
        page = await client.call("ListTaskPushNotificationConfigs", taskId=task, pageSize=1)
        rest = await client.call(
            "ListTaskPushNotificationConfigs", taskId=task, pageToken=page["nextPageToken"]
        )
        assert page["configs"] + rest["configs"] == listed["configs"]
    for _ in range(2):
        gone = await client.call("DeleteTaskPushNotificationConfig", taskId=task, id="a")
        assert gone is None
    with pytest.raises(Failed) as failed:
        await client.call("GetTaskPushNotificationConfig", taskId=task, id="a")
    assert failed.value.reason == "TASK_NOT_FOUND"
    with pytest.raises(Failed) as failed:
        await client.call("CreateTaskPushNotificationConfig", taskId=task, url="ftp://x")
    assert failed.value.fields == ["url"]
    sent = await client.call(
        "SendMessage",
        message=user("ask"),
        configuration={"taskPushNotificationConfig": {"url": "https://example.com/3"}},
    )
    listed = await client.call("ListTaskPushNotificationConfigs", taskId=sent["task"]["id"])
    assert [c["url"] for c in listed["configs"]] == ["https://example.com/3"]


@pytest.mark.storeless
@pytest.mark.clause("capability.push", "capability.push-in-send")
async def test_without_push(start: Start, kind: type[Binding]) -> None:
    server = await start(push=False)
    client = server.client(kind)
    card = (await server.http.get(f"{server.url}/.well-known/agent-card.json")).json()
    assert card["capabilities"]["pushNotifications"] is False
    config = {"url": "https://example.com/hook"}
    for name, params in (
        ("CreateTaskPushNotificationConfig", {"taskId": "t", **config}),
        ("GetTaskPushNotificationConfig", {"taskId": "t", "id": "c"}),
        ("ListTaskPushNotificationConfigs", {"taskId": "t"}),
        ("DeleteTaskPushNotificationConfig", {"taskId": "t", "id": "c"}),
        (
            "SendMessage",
            {"message": user("x"), "configuration": {"taskPushNotificationConfig": config}},
        ),
    ):
        with pytest.raises(Failed) as failed:
            await client.call(name, **params)
        assert failed.value.reason == "PUSH_NOTIFICATION_NOT_SUPPORTED"


@pytest.mark.storeless
@pytest.mark.clause(
    "capability.extended-card", "capability.extended-card-missing", "extended.authenticated"
)
async def test_the_extended_card(start: Start, kind: type[Binding]) -> None:
    server = await start()
    with pytest.raises(Failed) as failed:
        await server.client(kind).call("GetExtendedAgentCard")
    assert failed.value.reason == "UNSUPPORTED_OPERATION"
    server = await start(extended=True)
    with pytest.raises(Failed) as failed:
        await server.client(kind).call("GetExtendedAgentCard")
    assert (failed.value.reason, failed.value.status) == ("UNAUTHENTICATED", 401)
    with pytest.raises(Failed) as failed:
        await server.client(kind, X_User="ann").call("GetExtendedAgentCard")
    assert failed.value.reason == "EXTENDED_AGENT_CARD_NOT_CONFIGURED"

    from msgspec.structs import replace

    server.agent.extended_card(
        lambda caller, card: replace(card, description=f"For {caller.identity}")
    )
    card = await server.client(kind, X_User="ann").call("GetExtendedAgentCard")
    assert card["description"] == "For ann"
    assert card["capabilities"]["extendedAgentCard"] is True


@pytest.mark.storeless
@pytest.mark.needs("1.0")
@pytest.mark.clause("capability.required-extension", "extensions.unknown-ignored", "http.headers")
async def test_extensions(start: Start, kind: type[Binding]) -> None:
    from dragoman.model.events import RESUME
    from tests.harness.agents import REQUIRED

    server = await start(required=True)
    with pytest.raises(Failed) as failed:
        await server.client(kind).call("ListTasks")
    assert failed.value.reason == "EXTENSION_SUPPORT_REQUIRED"
    assert failed.value.metadata == {"extension": REQUIRED}
    client = server.client(kind, A2A_Extensions=f"urn:unknown, {REQUIRED},{RESUME}")
    await client.call("ListTasks")
    assert client.last.headers["a2a-extensions"] == f"{REQUIRED}, {RESUME}"
    older = server.client(kind, X_A2A_Extensions=REQUIRED)
    await older.call("ListTasks")
    assert older.last.headers["a2a-extensions"] == REQUIRED


@pytest.mark.storeless
@pytest.mark.needs("1.0")
@pytest.mark.clause("version.requested", "version.unsupported", "version.patch-ignored")
async def test_versions(server: RunningApp, kind: type[Binding]) -> None:
    for version in ("1.0", "1.0.7", ""):
        await server.client(kind, A2A_Version=version).call("ListTasks")
    for version in ("0.3", "2.0", "1", "latest"):
        with pytest.raises(Failed) as failed:
            await server.client(kind, A2A_Version=version).call("ListTasks")
        assert failed.value.reason == "VERSION_NOT_SUPPORTED"
        assert failed.value.metadata == {"supported": "1.0, 0.3, 0.2, 0.1"}


@pytest.mark.storeless  # it has one of its own
async def test_a_full_store_refuses_and_loses_nothing(start: Start, kind: type[Binding]) -> None:
    server = await start(store="memory:?max_tasks=2")
    client = server.client(kind)
    configuration = {"returnImmediately": True}
    for _ in range(2):
        await client.call("SendMessage", message=user("gate"), configuration=configuration)
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=user("x"))
    assert (failed.value.reason, failed.value.status) == ("RESOURCE_EXHAUSTED", 429)
    server.gate.set()
    for task in await client.tasks():
        await until(client, task["id"], "COMPLETED")
    await client.call("SendMessage", message=user("x"))
    assert len(await client.tasks()) == 2


async def test_more_work_than_may_run_waits_its_turn(start: Start, kind: type[Binding]) -> None:
    server = await start(max_running=1)
    client = server.client(kind)
    first = await client.call(
        "SendMessage", message=user("gate"), configuration={"returnImmediately": True}
    )
    await until(client, first["task"]["id"], "WORKING")
    second = await client.call(
        "SendMessage", message=user("echo"), configuration={"returnImmediately": True}
    )
    assert second["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    server.gate.set()
    await until(client, second["task"]["id"], "COMPLETED")
