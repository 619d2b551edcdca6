"""Agents of versions before 1.0: what the client does otherwise with them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from dragoman import TaskState
from dragoman.client import Client, TransportRequest, TransportResponse
from dragoman.model.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from tests.client.transports import (
    STREAM,
    Answer,
    Script,
    card,
    document,
    event,
    interface,
    result,
)


def old(state: str, *texts: str) -> dict[str, Any]:
    """A task as it was on the wire, with an artifact of these texts."""
    parts = [{"kind": "text", "text": text} for text in texts]
    return {
        "kind": "task",
        "id": "t",
        "contextId": "c",
        "status": {"state": state},
        "artifacts": [{"artifactId": "a", "parts": parts}],
    }


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries and looks again without a pause."""
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    monkeypatch.setattr("dragoman.client.task_events.POLL", 0.005)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("version", ["0.3", "0.2"])
@pytest.mark.parametrize("how", ["stream", "subscribe", "wait"])
async def test_a_task_is_looked_at_and_not_subscribed_to(version: str, how: str) -> None:
    """Some agents would tell nothing, or write each chunk once more."""
    looks = [old("working", "a", "b"), old("completed", "a", "b", "c")]
    if how != "stream":
        looks.insert(0, old("working", "a"))

    def answer(request: TransportRequest) -> TransportResponse:
        match document(request)["method"]:
            case "tasks/get":
                return Answer(result(looks.pop(0) if len(looks) > 1 else looks[0]))
            case "message/stream":
                return Answer(event(old("working", "a")), headers=STREAM)  # and breaks off
            case method:
                raise AssertionError(method)

    found = card(interface("http://agent", version=version))
    async with Client.connect(found, transport=Script(answer)) as client:
        if how == "wait":
            task = await client.task("t").wait(poll=0.0)
            assert task.status.state is TaskState.COMPLETED
            return
        async with (
            client.stream("x") if how == "stream" else client.task("t").subscribe() as stream
        ):
            first, b, c, last = [happened async for happened in stream]
    assert isinstance(first, Task)
    for told, text in ((b, "b"), (c, "c")):
        assert isinstance(told, TaskArtifactUpdateEvent)
        assert [part.text for part in told.artifact.parts] == [text]
    assert isinstance(last, TaskStatusUpdateEvent)
    assert (stream.result.state, stream.result.text) == (TaskState.COMPLETED, "abc")


@pytest.mark.parametrize(
    ("version", "streaming", "resumes", "joins"),
    [
        ("1.0", True, False, True),
        ("1.0", False, False, False),
        ("0.3", True, False, False),
        ("0.3", True, True, True),
    ],
)
async def test_which_agents_are_subscribed_to(
    version: str, streaming: bool, resumes: bool, joins: bool
) -> None:
    found = card(interface("http://agent", version=version), streaming=streaming)
    async with Client.connect(found, transport=Script(lambda _: Answer())) as client:
        client._connection.resumes = resumes
        assert client._connection.joins == joins


async def test_a_webhook_over_http_names_its_task_in_path_and_body() -> None:
    def answer(request: TransportRequest) -> TransportResponse:
        hook = document(request)["config"]
        return Answer(json.dumps(hook).encode())

    transport = Script(answer)
    found = card(interface("http://agent", "HTTP+JSON", version="0.3"))
    async with Client.connect(found, transport=transport) as client:
        made = await client.task("t").add_webhook("https://hooks.example/a", id="one")
    assert (made.task_id, made.id, made.url) == ("t", "one", "https://hooks.example/a")
    (request,) = transport.asked
    assert urlsplit(request.url).path == "/v1/tasks/t/pushNotificationConfigs"
    assert document(request)["parent"] == "tasks/t"
