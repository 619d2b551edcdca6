"""Deviations of real clients from the specification: the list in docs/dialects.md, row by row. Each
row names its test, which is here or in another file of the suite."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb

from dragoman import Agent, App, Turn
from dragoman.client.discovery import decode
from dragoman.dialects.v0_3.proto import resource_name
from tests.contract.bindings.conftest import identify, user
from tests.harness.app import RunningApp, running
from tests.harness.server import serving

ROOT = Path(__file__).resolve().parents[3]
SKILL_CARDS = ("", "1.0", "0.3", "0.2")


def echo() -> Agent:
    """An agent that says the text again; data are told as what they are."""
    agent = Agent("Echo", description="Says it again.", output_modes=["text/plain"])

    @agent.skill(tags=["echo"])
    async def say(turn: Turn) -> AsyncIterator[Any]:
        """Say it again."""
        if turn.text == "ask":
            yield turn.ask("Which?")
            return
        yield turn.artifact(turn.text or repr(turn.data))

    @agent.skill(tags=["echo"], input_modes=["image/png"], output_modes=["image/gif"])
    async def draw(turn: Turn) -> str:
        """Draw."""
        return "drawn"

    @agent.handler
    async def other(turn: Turn) -> AsyncIterator[Any]:
        async for event in say(turn):
            yield event

    return agent


@pytest.fixture
async def server() -> AsyncIterator[RunningApp]:
    """The agent, over every binding, with webhooks."""
    agent = echo()
    app = App(
        agent,
        identify=identify,
        grpc_port=0,
        push=True,
        egress_allow=["example.com"],
        idempotency="always",
        drain_timeout=0.0,
    )
    async with running(app) as found:
        yield found


async def rpc(server: RunningApp, method: str, /, path: str = "", **params: Any) -> Any:
    """The answer of a call by JSON-RPC."""
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await posted(server, request, path)


async def posted(server: RunningApp, request: Any, path: str = "", **headers: str) -> Any:
    """The result of a request, or its error."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await server.http.post(server.url + path, json=request, headers=named)
    found = answer.json()
    return found["result"] if "result" in found else found["error"]


def test_every_row_of_the_list_names_a_test() -> None:
    page = (ROOT / "docs/dialects.md").read_text()
    section = page.partition("## Quirks of clients")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!client \||---).*\| `(\w+)` \|$", section, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| (?!client \|)[^-|].*\|$", section, re.MULTILINE))
    written = "\n".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))
    assert rows
    for name in rows:
        assert f"def {name}(" in written, name


# ---- messages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"text": "hello", "type": "text"}, "hello"),
        ("hello", "hello"),
        ([{"text": "a", "type": "text"}, {"text": "b", "type": "text"}], "a\nb"),
        (
            {"type": "function_call", "name": "add", "parameters": []},
            repr({"type": "function_call", "name": "add", "parameters": []}),
        ),
    ],
    ids=["text", "string", "several", "call"],
)
async def test_a_message_with_content_and_no_parts(
    server: RunningApp, content: Any, text: str
) -> None:
    # as `ask()` of python-a2a sends it, to this path
    message = {"content": content, "role": "user", "message_id": "m"}
    status = {"state": "submitted", "timestamp": "2026-01-01T00:00:00.000000"}
    found = await rpc(
        server, "tasks/send", "/tasks/send", id="t", sessionId="s", status=status, message=message
    )
    assert found["artifacts"][0]["parts"] == [{"type": "text", "text": text}]


@pytest.mark.parametrize("content", [None, "", {}, []])
async def test_a_message_with_neither_content_nor_parts(server: RunningApp, content: Any) -> None:
    error = await rpc(server, "tasks/send", id="t", message={"content": content, "role": "user"})
    assert (error["code"], error["message"]) == (-32602, "message.parts: is required")


def unnamed(text: str) -> dict[str, Any]:
    """A message as openagents sends it."""
    return {"role": "user", "parts": [{"type": "text", "text": text}]}


async def test_a_message_without_an_id_gets_one(server: RunningApp) -> None:
    first, second = [
        (await rpc(server, "message/send", message=unnamed("hello")))["task"] for _ in range(2)
    ]
    # the server merges what is the same, and these are not
    assert first["id"] != second["id"]
    ids = {task["history"][0]["messageId"] for task in (first, second)}
    assert len(ids) == 2
    assert all(ids)


async def test_a_key_makes_messages_without_an_id_the_same(server: RunningApp) -> None:
    def request(text: str) -> dict[str, Any]:
        params = {"message": unnamed(text)}
        return {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}

    first = await posted(server, request("hello"), Idempotency_Key="k")
    assert await posted(server, request("hello"), Idempotency_Key="k") == first
    error = await posted(server, request("otherwise"), Idempotency_Key="k")
    assert error["message"].startswith("Idempotency-Key: ")


async def test_a_message_without_an_id_over_the_other_bindings_of_0_3(server: RunningApp) -> None:
    message = {"role": "ROLE_USER", "content": [{"text": "hello"}]}
    answer = await server.http.post(f"{server.url}/v1/message:send", json={"message": message})
    assert answer.json()["task"]["history"][0]["messageId"]
    request = old_pb.SendMessageRequest(
        request=old_pb.Message(role=old_pb.ROLE_USER, content=[old_pb.Part(text="hello")])
    )
    call = server.channel.unary_unary("/a2a.v1.A2AService/SendMessage")
    wire = await call(request.SerializeToString(), timeout=10)
    assert old_pb.SendMessageResponse.FromString(wire).task.history[0].message_id


async def test_in_1_0_a_message_has_an_id(server: RunningApp) -> None:
    message = {"role": "ROLE_USER", "parts": [{"text": "hello"}]}
    error = await rpc(server, "SendMessage", message=message)
    assert (error["code"], error["message"]) == (-32602, "message.messageId: is required")


async def test_ids_of_task_and_context_beside_the_message(server: RunningApp) -> None:
    begun = await rpc(server, "message/send", message=unnamed("ask"), contextId="c")
    assert begun["contextId"] == "c"
    task = begun["id"]
    done = await rpc(server, "message/send", message=unnamed("hello"), taskId=task, contextId="c")
    assert (done["id"], done["status"]["state"]) == (task, "completed")
    # what the message itself says counts
    message = {**unnamed("hello"), "contextId": "d"}
    assert (await rpc(server, "message/send", message=message, contextId="c"))["contextId"] == "d"


# ---- the card ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SKILL_CARDS)
async def test_each_skill_on_the_card_has_its_modes(server: RunningApp, version: str) -> None:
    url = f"{server.url}/.well-known/agent-card.json"
    answer = await server.http.get(url, headers={"A2A-Version": version} if version else {})
    say, draw = answer.json()["skills"]
    assert say["inputModes"] == ["text/plain", "application/json"]
    assert say["outputModes"] == ["text/plain"]
    assert (draw["inputModes"], draw["outputModes"]) == (["image/png"], ["image/gif"])
    assert decode(answer.content, "here").skills[0].output_modes == ("text/plain",)


# ---- webhooks ------------------------------------------------------------------------------


async def begun(server: RunningApp) -> str:
    """The id of a task that asks."""
    message = {"role": "user", "messageId": "m", "kind": "message", "parts": [TEXT]}
    found = await rpc(server, "message/send", message=message)
    return str(found["id"])


TEXT = {"kind": "text", "text": "ask"}


async def hook(server: RunningApp, task: str, id: str = "") -> None:
    """Give a task a webhook."""
    config = {"url": f"http://example.com/{id}"} | ({"id": id} if id else {})
    method = "tasks/pushNotificationConfig/set"
    await rpc(server, method, taskId=task, pushNotificationConfig=config)


async def got(server: RunningApp, task: str) -> list[str]:
    """The ids of the webhook that is got without one: over JSON-RPC, HTTP+JSON and gRPC."""
    found = await rpc(server, "tasks/pushNotificationConfig/get", id=task)
    ids = [found["pushNotificationConfig"]["id"]]
    # an SDK writes None for what is not given
    path = f"/v1/{resource_name(task, 'None')}"
    answer = (await server.http.get(server.url + path)).json()
    ids.append(answer["pushNotificationConfig"]["id"])
    call = server.channel.unary_unary("/a2a.v1.A2AService/GetTaskPushNotificationConfig")
    for name in (
        resource_name(task, "None"),
        f"{resource_name(task)}/pushNotificationConfigs",
        resource_name(task),
    ):
        request = old_pb.GetTaskPushNotificationConfigRequest(name=name)
        wire = await call(request.SerializeToString(), timeout=10)
        config = old_pb.TaskPushNotificationConfig.FromString(wire).push_notification_config
        ids.append(config.id)
    return ids


async def test_a_webhook_that_is_asked_for_without_its_id(server: RunningApp) -> None:
    task = await begun(server)
    error = await rpc(server, "tasks/pushNotificationConfig/get", id=task)
    assert error["code"] == -32001
    await hook(server, task, "2-two")
    await hook(server, task, "1-one")
    assert await got(server, task) == ["1-one"] * 5
    await hook(server, task)  # which has the task's id, and is the one that is meant
    assert await got(server, task) == [task] * 5
    error = await rpc(
        server, "tasks/pushNotificationConfig/get", id=task, pushNotificationConfigId="other"
    )
    assert error["code"] == -32001


# ---- requests ------------------------------------------------------------------------------


async def test_missing_credentials_are_named_before_1_0(server: RunningApp) -> None:
    stranger = {"X-User": "nobody"}
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hello"}]}
    answer = await server.http.post(
        f"{server.url}/v1/message:send", json={"message": message}, headers=stranger
    )
    assert answer.status_code == 401
    told = answer.json()
    assert (told["code"], told["type"]) == (401, "UnauthenticatedError")
    assert told["message"] == "Authentication is required"
    call = server.channel.unary_unary("/a2a.v1.A2AService/GetTask")
    request = old_pb.GetTaskRequest(name="tasks/t").SerializeToString()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request, metadata=(("x-user", "nobody"),), timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert caught.value.details() == "UnauthenticatedError: Authentication is required"


async def test_a_path_with_empty_segments(server: RunningApp) -> None:
    body: dict[str, Any] = {"message": user("hello")}
    for path in ("//message:send", "///message:send"):
        answer = await server.http.post(server.url + path, json=body)
        assert answer.status_code == 200, path
    task = answer.json()["task"]["id"]
    for path in (f"//tasks/{task}", f"/tasks//{task}", f"//v1//tasks/{task}"):
        assert (await server.http.get(server.url + path)).status_code == 200, path
    for path in ("//.well-known/agent-card.json", "//healthz"):
        assert (await server.http.get(server.url + path)).status_code == 200, path
    assert (await rpc(server, "GetTask", "//", id=task))["id"] == task
    # a slash that belongs to a name separates nothing
    answer = await server.http.get(f"{server.url}/tasks/%2F%2F")
    assert answer.json()["error"]["details"][0]["reason"] == "TASK_NOT_FOUND"


async def test_a_path_with_empty_segments_below_a_prefix() -> None:
    one, two = echo(), Agent("Two", description="Another.", version="1")
    two.handler(lambda turn: turn.text)
    app = App(one, two, drain_timeout=0.0)
    async with httpx.AsyncClient(timeout=20) as http, serving(app) as url:
        for path in ("/two//message:send", "//two/message:send"):
            answer = await http.post(url + path, json={"message": user("hello")})
            assert answer.status_code == 200, path


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_a_subscription_by_either_verb(server: RunningApp, verb: str, version: str) -> None:
    task = await begun(server)
    path = f"/tasks/{task}:subscribe" if version == "1.0" else f"/v1/tasks/{task}:subscribe"
    for body in (b"", b"{}") if verb == "POST" else (b"",):
        headers = {"content-type": "application/json"} if body else {}
        asked = server.http.stream(verb, server.url + path, content=body, headers=headers)
        async with asked as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    assert task in line
                    break


async def test_a_file_whose_bytes_are_base64_twice(server: RunningApp) -> None:
    # as the Python SDK of 0.3 writes it; the JavaScript one is known by its user agent
    twice = base64.b64encode(base64.b64encode(b"\x00\xff")).decode()
    message = {
        "messageId": "m",
        "role": "ROLE_USER",
        "content": [{"file": {"fileWithBytes": twice}}],
    }
    answer = await server.http.post(f"{server.url}/v1/message:send", json={"message": message})
    task = answer.json()["task"]["id"]
    found = (await server.http.get(f"{server.url}/tasks/{task}")).json()
    assert found["history"][0]["parts"] == [{"raw": base64.b64encode(b"\x00\xff").decode()}]
