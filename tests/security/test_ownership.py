"""Two principals, every operation, every binding and version: nobody sees what is not theirs, and
without a word nobody sees anything. The matrix is made from the table of operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from dragoman.model.operations import OPERATIONS
from tests.harness import agents
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, JsonRpc
from tests.harness.older_clients import Grpc03, Http03, JsonRpc03
from tests.harness.protected_app import KINDS, asked, message, protected
from tests.harness.scale import SOAK

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEARLY = ("A-KEY", "a-ke")
"""Keys that look like one that is valid."""
UNKNOWN = "01900000-0000-7000-8000-000000000000"
CALLS: dict[str, Any] = {
    "SendMessage": lambda task: {"message": message("more", taskId=task)},
    "SendStreamingMessage": lambda task: {"message": message("more", taskId=task)},
    "GetTask": lambda task: {"id": task},
    "ListTasks": None,
    "CancelTask": lambda task: {"id": task},
    "SubscribeToTask": lambda task: {"id": task},
    "CreateTaskPushNotificationConfig": lambda task: {"taskId": task, "url": "https://h.example/x"},
    "GetTaskPushNotificationConfig": lambda task: {"taskId": task, "id": "hook"},
    "ListTaskPushNotificationConfigs": lambda task: {"taskId": task},
    "DeleteTaskPushNotificationConfig": lambda task: {"taskId": task, "id": "hook"},
    "GetExtendedAgentCard": None,
}
"""What is asked of a task that may be somebody else's; None where no task is named."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[RunningApp]:
    """An agent that wants a key."""
    settings: dict[str, Any] = {"push": True, "egress_allow": ["*.example"]}
    async with protected(agents.make(extended=True), **settings) as found:
        yield found


async def test_every_operation_has_an_entry() -> None:
    assert set(CALLS) == {operation.name for operation in OPERATIONS}


@pytest.mark.clause("authz.permission")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", CALLS)
async def test_a_stranger_learns_nothing(
    server: RunningApp, name: str, kind: type[Binding]
) -> None:
    if not kind.can(name) or (name == "ListTasks" and kind in (JsonRpc03, Grpc03)):
        return
    alice, bob = server.client(JsonRpc, "a-key"), server.client(kind, "b-key")
    task = (await alice.call("SendMessage", message=message("ask")))["task"]
    hook = {"taskId": task["id"], "id": "hook", "url": "https://h.example/x", "token": "t"}
    await alice.call("CreateTaskPushNotificationConfig", **hook)
    if CALLS[name] is None:
        found = await asked(bob, name, {})
        assert task["id"] not in str(found)
        return
    theirs = await asked(bob, name, CALLS[name](task["id"]))
    nobodys = await asked(bob, name, CALLS[name](UNKNOWN))
    assert isinstance(theirs, Failed)
    assert theirs.reason == "TASK_NOT_FOUND"
    assert vars(theirs) == vars(nobodys)
    # and nothing has happened to it
    assert await alice.call("GetTask", id=task["id"]) == task
    (kept,) = (await alice.call("ListTaskPushNotificationConfigs", taskId=task["id"]))["configs"]
    assert kept["url"] == "https://h.example/x"


@pytest.mark.clause("access.before-queries")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("key", ["", "wrong", *(NEARLY if SOAK else ())])
async def test_without_a_key_nothing_is_answered(
    server: RunningApp, name: str, kind: type[Binding], key: str
) -> None:
    if not kind.can(name) or (name == "ListTasks" and kind in (JsonRpc03, Grpc03)):
        return
    params = {} if CALLS[name] is None else CALLS[name](UNKNOWN)
    found = await asked(server.client(kind, key), name, params)
    assert isinstance(found, Failed)
    # 0.3 over HTTP+JSON has a status and no reason of its own for this
    assert found.reason == "UNAUTHENTICATED" or (kind is Http03 and found.status == 401)


@pytest.mark.parametrize("key", NEARLY)
async def test_a_key_that_is_nearly_right_is_wrong(server: RunningApp, key: str) -> None:
    """How a key is compared does not depend on the operation; `make soak` tries it with all."""
    failed = await asked(server.client(JsonRpc, key), "ListTasks", {})
    assert isinstance(failed, Failed)
    assert failed.reason == "UNAUTHENTICATED", vars(failed)


async def test_a_key_that_is_being_replaced(server: RunningApp) -> None:
    old, new = server.client(JsonRpc, "a-key"), server.client(JsonRpc, "a-key-that-comes")
    task = (await old.call("SendMessage", message=message("hello")))["task"]
    assert (await new.call("GetTask", id=task["id"]))["id"] == task["id"]


@pytest.mark.clause("card.security-schemes")
async def test_what_the_card_says(server: RunningApp) -> None:
    for version in ("1.0", "0.3", ""):
        headers = {"A2A-Version": version} if version else {}
        card = (
            await server.http.get(f"{server.url}/.well-known/agent-card.json", headers=headers)
        ).json()
        assert "securitySchemes" in card
        if version != "0.3":
            key = card["securitySchemes"]["key"]["apiKeySecurityScheme"]
            assert key == {"location": "header", "name": "X-Key"}
            assert card["securityRequirements"] == [{"schemes": {"key": {}}}]
        if version != "1.0":
            assert card["securitySchemes"]["key"]["type"] == "apiKey"
            assert card["security"] == [{"key": []}]
    answer = await server.http.post(f"{server.url}/message:send", json={"message": message("x")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"]
