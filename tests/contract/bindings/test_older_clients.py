"""Features of older clients only: 0.1 with task ids of the client, and gRPC in 0.3."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb
from a2a.types import a2a_pb2 as pb
from google.protobuf import json_format

from dragoman import Agent, Part, Turn
from dragoman.bindings.grpc import _handler
from dragoman.dialects.protobuf.package_codec import PACKAGES
from dragoman.model.events import RESUME
from dragoman.model.operations import OPERATIONS
from dragoman.server import webhook_configs
from tests.contract.bindings.conftest import Start
from tests.harness.app import RunningApp


def said(text: str) -> dict[str, Any]:
    """A message of 0.1."""
    return {"role": "user", "parts": [{"type": "text", "text": text}]}


class First:
    """A client of 0.1."""

    def __init__(self, server: RunningApp, **headers: str) -> None:
        self.server = server
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    async def call(self, method: str, /, **params: Any) -> Any:
        """The result, or the error, or the results of a stream."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self.server.http.post(self.server.url, json=request, headers=self.headers)
        if answer.headers["content-type"].startswith("text/event-stream"):
            lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            return [json.loads(line)["result"] for line in lines]
        found = answer.json()
        return found.get("result") or found["error"]


@pytest.fixture
async def first(server: RunningApp) -> First:
    """A client of 0.1."""
    return First(server)


async def test_a_task_has_the_id_that_its_owner_chose(first: First) -> None:
    sent = await first.call("tasks/send", id="t/1 é", sessionId="s", message=said("hello"))
    assert (sent["id"], sent["sessionId"]) == ("t/1 é", "s")
    assert await first.call("tasks/get", id="t/1 é") == sent
    stranger = First(first.server, x_user="bob")
    missing = await stranger.call("tasks/get", id="nothing")
    assert await stranger.call("tasks/get", id="t/1 é") == missing
    theirs = await stranger.call("tasks/send", id="t/1 é", sessionId="z", message=said("hello"))
    assert theirs["sessionId"] == "z"


async def test_a_reply_has_the_id_that_its_owner_chose(start: Start) -> None:
    agent = Agent("Talk", description="Talks.", version="1")

    @agent.skill(reply=True, tags=["talk"])
    async def talk(turn: Turn) -> str:
        """Answer without a task."""
        return f"you said {turn.text}"

    client = First(await start(agent=agent))
    sent = await client.call("tasks/send", id="t1", message=said("hello"))
    (event,) = await client.call("tasks/sendSubscribe", id="t2", message=said("hello"))
    assert (sent["id"], event["id"], event["final"]) == ("t1", "t2", True)


async def test_artifacts_have_one_number_in_streams_and_tasks(start: Start) -> None:
    agent = Agent("Two", description="Makes one after the other.", version="1")

    @agent.handler
    async def work(turn: Turn) -> AsyncIterator[Any]:
        yield turn.artifact(turn.text, name=turn.text)
        if turn.text == "one":
            yield turn.ask("And then?")

    client = First(await start(agent=agent))
    seen = await client.call("tasks/sendSubscribe", id="t", message=said("one"))
    seen += await client.call("tasks/sendSubscribe", id="t", message=said("two"))
    streamed = {e["artifact"]["name"]: e["artifact"]["index"] for e in seen if "artifact" in e}
    task = await client.call("tasks/get", id="t")
    told = {each["name"]: each["index"] for each in task["artifacts"]}
    assert streamed == told == {"one": 0, "two": 1}


async def test_the_webhook_of_a_send_is_the_one_of_its_task(first: First) -> None:
    hook = {"id": "mine", "url": "http://example.com/hook", "token": "k"}
    await first.call("tasks/send", id="t", message=said("ask"), pushNotification=hook)
    found = await first.call("tasks/pushNotification/get", id="t")
    del hook["id"]
    assert found == {"id": "t", "pushNotificationConfig": hook}


async def test_a_message_that_follows_is_sent_once_by_its_key(first: First) -> None:
    await first.call("tasks/send", id="t", message=said("ask"))
    keyed = First(first.server, idempotency_key="k")
    once = await keyed.call("tasks/send", id="t", message=said("ask again"))
    assert await keyed.call("tasks/send", id="t", message=said("ask again")) == once
    assert [m["parts"][0]["text"] for m in once["history"] if m["role"] == "user"] == [
        "ask",
        "ask again",
    ]
    error = await keyed.call("tasks/send", id="t", message=said("ask otherwise"))
    assert error["message"].startswith("Idempotency-Key: ")


async def test_messages_that_begin_a_task_at_the_same_time_follow_each_other(first: First) -> None:
    texts = [f"ask {number}" for number in range(4)]
    sends = [first.call("tasks/send", id="t", message=said(text)) for text in texts]
    assert {found.get("id") for found in await asyncio.gather(*sends)} == {"t"}
    task = await first.call("tasks/get", id="t")
    heard = [m["parts"][0]["text"] for m in task["history"] if m["role"] == "user"]
    assert sorted(heard) == texts


async def test_a_task_has_no_more_webhooks_by_sends_than_otherwise(
    first: First, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_configs, "WEBHOOKS", 2)
    hooks = [{"id": id, "url": "http://example.com/"} for id in ("a", "b", "b", "c")]
    task, answers = "", []
    for number, hook in enumerate(hooks):
        parts = [{"kind": "text", "text": "ask"}]
        message = {"role": "user", "messageId": f"m{number}", "taskId": task, "parts": parts}
        wishes = {"pushNotificationConfig": hook}
        found = await first.call("message/send", message=message, configuration=wishes)
        task = task or found["id"]
        answers.append(found.get("message", "taken"))
    assert answers == ["taken", "taken", "taken", "A task can have at most 2 webhooks"]


@pytest.mark.storeless
async def test_files_of_clients_on_node_are_bare(start: Start) -> None:
    agent = Agent("Files", description="Sends files back.", version="1")

    @agent.handler
    async def back(turn: Turn) -> list[Part]:
        return list(turn.message.parts)

    server = await start(agent=agent, grpc_port=0)
    content = b"abcd"  # which could be base64 text as well
    file = {"fileWithBytes": base64.b64encode(content).decode()}
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"file": file}]}
    answer = await server.http.post(
        f"{server.url}/v1/message:send", json={"message": message}, headers={"user-agent": "node"}
    )
    task = answer.json()["task"]
    assert task["artifacts"][0]["parts"] == task["history"][0]["content"] == [{"file": file}]
    # and that is what others see
    found = await server.http.get(
        f"{server.url}/tasks/{task['id']}", headers={"A2A-Version": "1.0"}
    )
    assert found.json()["history"][0]["parts"] == [{"raw": file["fileWithBytes"]}]

    (endpoint,) = server.app.endpoints.values()
    request = old_pb.SendMessageRequest(
        request=json_format.ParseDict(message, old_pb.Message()),
        configuration=old_pb.SendMessageConfiguration(blocking=True),
    )
    options = [("grpc.primary_user_agent", "grpc-node-js/1.14.7")]
    target = f"127.0.0.1:{endpoint.grpc}"
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        call = channel.unary_unary("/a2a.v1.A2AService/SendMessage")
        wire = await call(request.SerializeToString(), timeout=10)
    sent = old_pb.SendMessageResponse.FromString(wire).task
    assert sent.artifacts[0].parts[0].file.file_with_bytes == content


@pytest.mark.storeless
@pytest.mark.parametrize(
    ("path", "request_", "name"),
    [
        (
            "/a2a.v1.A2AService/SendMessage",
            old_pb.SendMessageRequest(
                request=old_pb.Message(
                    message_id="m", role=old_pb.ROLE_USER, content=[old_pb.Part(text="hello")]
                ),
                configuration=old_pb.SendMessageConfiguration(blocking=True),
            ),
            "x-a2a-extensions",
        ),
        (
            "/lf.a2a.v1.A2AService/SendMessage",
            pb.SendMessageRequest(
                message=pb.Message(
                    message_id="m", role=pb.ROLE_USER, parts=[pb.Part(text="hello")]
                ),
            ),
            "a2a-extensions",
        ),
    ],
    ids=["0.3", "1.0"],
)
async def test_grpc_repeats_the_extensions_under_the_name_of_its_version(
    start: Start, path: str, request_: Any, name: str
) -> None:
    server = await start(grpc_port=0)
    (endpoint,) = server.app.endpoints.values()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{endpoint.grpc}") as channel:
        call = channel.unary_unary(path)(
            request_.SerializeToString(), metadata=((name, RESUME),), timeout=10
        )
        await call
        answered = dict(await call.initial_metadata())
    assert {key: answered[key] for key in answered if "extensions" in key} == {name: RESUME}


async def test_a_grpc_caller_that_is_gone_leaves_no_reader_behind(start: Start) -> None:
    server = await start()
    (endpoint,) = server.app.endpoints.values()
    operation = next(each for each in OPERATIONS if each.call == "stream")
    request = pb.SendMessageRequest(
        message=pb.Message(message_id="m", role=pb.ROLE_USER, parts=[pb.Part(text="gate")])
    )

    class Gone:
        """A call whose caller has hung up."""

        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return (("a2a-extensions", RESUME),)

        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        async def read(self) -> bytes:
            return request.SerializeToString()

        async def send_initial_metadata(self, _: Any) -> None:
            raise asyncio.CancelledError

    handler = _handler(endpoint, PACKAGES[0], operation)
    with pytest.raises(asyncio.CancelledError):
        await handler.stream_stream(None, Gone())
    assert not endpoint.service.bell.listeners.places()
