"""All that a request can name may be somebody else's: tasks, contexts, references, pages, keys of
sends, places in a stream, tenants. None of it gives anything away, or is noticed by its owner."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from dragoman import Agent, App, Turn
from dragoman.model.events import RESUME
from dragoman.model.operations import OPERATIONS
from dragoman.model.types import (
    Message,
    SendMessageConfiguration,
    TaskPushNotificationConfig,
    WireStruct,
)
from dragoman.security import ApiKey
from tests.harness.app import RunningApp, running
from tests.harness.clients import Binding, Failed, Grpc, HttpJson, JsonRpc
from tests.harness.older_clients import Http03, JsonRpc01
from tests.security.test_not_found_cost import EVERY
from tests.security.test_ownership import UNKNOWN, asked, message

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMED: dict[str, set[str]] = {
    "SendMessage": {
        *("tenant", "message.messageId", "message.contextId", "message.taskId"),
        *("message.referenceTaskIds", "configuration.taskPushNotificationConfig.id"),
        *(
            f"configuration.taskPushNotificationConfig.{name}"
            for name in ("tenant", "taskId", "token")
        ),
    },
    "GetTask": {"tenant", "id"},
    "ListTasks": {"tenant", "contextId", "pageToken"},
    "CancelTask": {"tenant", "id"},
    "SubscribeToTask": {"tenant", "id"},
    "CreateTaskPushNotificationConfig": {"tenant", "taskId", "id", "token"},
    "GetTaskPushNotificationConfig": {"tenant", "taskId", "id"},
    "ListTaskPushNotificationConfigs": {"tenant", "taskId", "pageToken"},
    "DeleteTaskPushNotificationConfig": {"tenant", "taskId", "id"},
    "GetExtendedAgentCard": {"tenant"},
}
NAMED["SendStreamingMessage"] = NAMED["SendMessage"]
"""The fields by which a request names something that may be another's. Tasks that are named are in
`test_strangers` and `test_order`; the rest is here."""
INSIDE: dict[str, type[WireStruct]] = {
    "message": Message,
    "configuration": SendMessageConfiguration,
    "taskPushNotificationConfig": TaskPushNotificationConfig,
}


def naming(kind: type[WireStruct], path: str = "") -> Iterator[str]:
    """The fields of a request that name something."""
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name in INSIDE:
            yield from naming(INSIDE[name], f"{path}{name}.")
        elif name.lower().endswith(("id", "ids", "token", "tenant", "key", "cursor")):
            yield path + name
        else:
            inner = [a for a in (field.type, *get_args(field.type)) if isinstance(a, type)]
            assert name == "authentication" or not any(issubclass(a, WireStruct) for a in inner), (
                name
            )


async def test_every_field_that_names_something_has_an_entry() -> None:
    assert {o.name: set(naming(o.request)) for o in OPERATIONS} == NAMED


def teller() -> Agent:
    """Tells what it can see of other tasks."""
    agent = Agent("Teller", description="Tells what it sees.", version="1")

    @agent.handler
    async def tell(turn: Turn) -> AsyncIterator[Any]:
        around = [task.id for task in await turn.context_tasks()]
        named = [task.id for task in await turn.referenced_tasks()]
        yield turn.artifact(json.dumps({"around": around, "named": named}))
        if turn.text.startswith("ask"):
            yield turn.ask("And?")

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "sqlite"])
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningApp]:
    """A server for two."""
    file: Path = tmp_path_factory.mktemp("contexts") / "x.db"
    app = App(
        teller(),
        store="memory:" if request.param == "memory" else f"sqlite:///{file}",
        auth=ApiKey(header="X-Key", keys={"alice": "a-key", "bob": "b-key"}, tenants=["*"]),
        push=True,
        egress_allow=["*.example"],
        grpc_port=0,
        drain_timeout=0.0,
    )
    async with running(app) as found:
        yield found


def client(server: RunningApp, kind: type[Binding], who: str, **headers: str) -> Binding:
    """A caller with headers of its own."""
    return server.client(kind, f"{who}-key", **headers)


async def sent(caller: Binding, text: str, **more: Any) -> dict[str, Any]:
    """The task that a message brought about."""
    said = message(text, **{"messageId": str(uuid4()), **more})
    found: dict[str, Any] = (await caller.call("SendMessage", message=said))["task"]
    return found


def seen(task: dict[str, Any]) -> dict[str, list[str]]:
    """What the agent could see when it worked on the task."""
    found: dict[str, list[str]] = json.loads(task["artifacts"][-1]["parts"][0]["text"])
    return found


every = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)


@every
async def test_a_context_is_its_owner_s(server: RunningApp, kind: type[Binding]) -> None:
    alice, bob = client(server, JsonRpc, "a"), client(server, kind, "b")
    first = await sent(alice, "ask")
    context = first["contextId"]
    theirs = await sent(bob, "ask", contextId=context)
    again = await sent(bob, "ask", contextId=context)
    assert seen(theirs)["around"] == []
    # in 0.1 what the client calls a task is not what the agent does
    assert len(seen(again)["around"]) == 1
    assert first["id"] not in str(seen(again))
    # and she sees nothing of it, neither in lists nor in her agent's eyes
    listed = await alice.call("ListTasks", contextId=context)
    assert [task["id"] for task in listed["tasks"]] == [first["id"]]
    assert listed["totalSize"] == 1
    later = await sent(alice, "ask", contextId=context)
    assert seen(later)["around"] == [first["id"]]


@every
async def test_what_is_referred_to_is_the_caller_s_own(
    server: RunningApp, kind: type[Binding]
) -> None:
    if not kind.can("references"):
        return
    alice, bob = client(server, JsonRpc, "a"), client(server, kind, "b")
    first, own = await sent(alice, "ask"), await sent(bob, "ask")
    told = [
        seen(await sent(bob, "x", referenceTaskIds=ids))["named"]
        for ids in ([first["id"]], [UNKNOWN], [first["id"], own["id"], own["id"], UNKNOWN])
    ]
    assert told == [[], [], [own["id"]]]


async def test_references_are_bounded(server: RunningApp) -> None:
    """One task, named often enough, would fill the memory; and many would keep the server busy."""
    bob = client(server, JsonRpc, "b")
    own = await sent(bob, "ask")
    others = [f"{UNKNOWN[:-4]}{number:04}" for number in range(5000)]
    assert seen(await sent(bob, "x", referenceTaskIds=[own["id"]] * 50_000))["named"] == [own["id"]]
    assert seen(await sent(bob, "x", referenceTaskIds=[*others, own["id"]]))["named"] == []


def token(*cursor: Any) -> str:
    """A page token as an attacker writes it."""
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).decode().rstrip("=")


@every
async def test_a_page_of_another_s_list(server: RunningApp, kind: type[Binding]) -> None:
    if kind not in (JsonRpc, HttpJson, Grpc, Http03):
        return
    alice, bob = client(server, kind, "a"), client(server, kind, "b")
    hers = {(await sent(alice, f"ask {number}"))["id"] for number in range(3)}
    mine = {(await sent(bob, f"ask {number}"))["id"] for number in range(3)}
    page = await alice.call("ListTasks", pageSize=1)
    assert page["nextPageToken"]
    forged = [
        page["nextPageToken"],
        *(token("9999-12-31T23:59:59.999Z", id) for id in (*hers, UNKNOWN, "~", "")),
        token("", ""),
        token("' OR 1=1 --", "' OR 1=1 --"),
        token("\x00", "\uffff"),
    ]
    for each in forged:
        answer = await bob.call("ListTasks", pageToken=each, pageSize=10)
        found = {task["id"] for task in answer["tasks"]}
        assert not found & hers
        assert not mine - found or len(found) < answer["totalSize"]
    for each in ("x", "é", "[]", token(1, 2), token("a"), token("a", "b", "c"), "A" * 5000, "=="):
        refused = await asked(bob, "ListTasks", {"pageToken": each})
        assert isinstance(refused, Failed), each
        assert refused.reason == "INVALID_PARAMS"


@every
async def test_a_key_of_a_send_is_its_owner_s(server: RunningApp, kind: type[Binding]) -> None:
    key = {"Idempotency-Key": f"the-same-{kind.name}"}
    alice, bob = client(server, kind, "a", **key), client(server, kind, "b", **key)
    same = {"messageId": f"same-{kind.name}"}
    first = await sent(alice, "ask mine", **same)
    other = await sent(bob, "ask another", **same)  # with another body: no conflict, either
    assert other["id"] != first["id"]
    assert "mine" not in str(other)
    if kind is not JsonRpc01:  # there each send names a task of its own
        assert (await sent(alice, "ask mine", **same))["id"] == first["id"]
    # nor is the same message of two the same send
    same = {"messageId": f"also-{kind.name}"}
    tasks = [await sent(client(server, kind, who), "ask", **same) for who in ("a", "b")]
    assert tasks[0]["id"] != tasks[1]["id"]


@every
async def test_a_place_in_another_s_stream(server: RunningApp, kind: type[Binding]) -> None:
    hers = await sent(client(server, JsonRpc, "a"), "ask")
    place = {"Last-Event-ID": f"{hers['id']}:1", "A2A-Extensions": RESUME}
    bob = client(server, kind, "b", **place)
    found = [await asked(bob, "SubscribeToTask", {"id": id}) for id in (hers["id"], UNKNOWN)]
    assert vars(found[0]) == vars(found[1])
    assert found[0].reason == "TASK_NOT_FOUND"
    if kind is JsonRpc01:
        return  # its streams do not begin with what there is
    # with a task of his own it is a place that makes no sense: he begins with what there is
    own = await sent(client(server, kind, "b"), "ask")
    async with bob.open("SubscribeToTask", id=own["id"]) as events:
        first = await anext(events)
    assert hers["id"] not in str(first)
    assert first.event["task"]["id"] == own["id"]


@pytest.mark.parametrize("kind", [JsonRpc, HttpJson, Grpc], ids=lambda kind: kind.name)
async def test_a_tenant_that_is_named_is_no_way_in(server: RunningApp, kind: type[Binding]) -> None:
    alice, bob = client(server, kind, "a"), client(server, kind, "b")
    hers = (await alice.call("SendMessage", tenant="blue", message=message("ask")))["task"]
    for tenant in ("blue", "", "red"):
        params = {"tenant": tenant} if tenant else {}
        refused = await asked(bob, "GetTask", {"id": hers["id"], **params})
        assert isinstance(refused, Failed)
        assert refused.reason == "TASK_NOT_FOUND"
        listed = await bob.call("ListTasks", **params)
        assert hers["id"] not in str(listed)
    # hers, too, is only where she has put it
    assert isinstance(await asked(alice, "GetTask", {"id": hers["id"], "tenant": "red"}), Failed)
    assert (await alice.call("GetTask", id=hers["id"], tenant="blue"))["id"] == hers["id"]


async def test_two_choose_the_same_id(server: RunningApp) -> None:
    """In 0.1 the ids of tasks are the clients'."""
    alice, bob = client(server, JsonRpc01, "a"), client(server, JsonRpc01, "b")
    ones = [await sent(who, f"ask {n}", taskId="trip") for n, who in enumerate((alice, bob))]
    assert [one["id"] for one in ones] == ["trip", "trip"]
    assert ones[0]["contextId"] != ones[1]["contextId"]
    for who, one in ((alice, ones[0]), (bob, ones[1])):
        assert (await who.call("GetTask", id="trip"))["contextId"] == one["contextId"]
    # the id that is kept, spelled out, is no way in
    (kept,) = [
        task["id"]
        for task in (await client(server, JsonRpc, "a").call("ListTasks", pageSize=100))["tasks"]
        if task["contextId"] == ones[0]["contextId"]
    ]
    for kind in (JsonRpc, JsonRpc01):
        refused = await asked(client(server, kind, "b"), "GetTask", {"id": kept})
        assert isinstance(refused, Failed)
        assert refused.reason == "TASK_NOT_FOUND"
    assert isinstance(await asked(bob, "SubscribeToTask", {"id": kept}), Failed)


@pytest.mark.parametrize("key", ["a", "b"])
async def test_a_webhook_s_page_is_the_task_s(server: RunningApp, key: str) -> None:
    alice, who = client(server, JsonRpc, "a"), client(server, JsonRpc, key)
    hers, own = await sent(alice, "ask"), await sent(who, "ask " + key)
    for task, caller in ((hers, alice), (own, who)):
        for number in range(3):
            hook = {"taskId": task["id"], "id": f"h{number}", "url": "https://h.example/x"}
            await caller.call("CreateTaskPushNotificationConfig", **hook)
    page = await alice.call("ListTaskPushNotificationConfigs", taskId=hers["id"], pageSize=1)
    rest = await who.call(
        "ListTaskPushNotificationConfigs", taskId=own["id"], pageToken=page["nextPageToken"]
    )
    assert [each["id"] for each in rest["configs"]] == ["h1", "h2"]
    assert {each["taskId"] for each in rest["configs"]} == {own["id"]}
