"""Agents that do not stream, or not again: the client looks at the task instead."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client, TransportRequest, TransportResponse, Unreachable
from dragoman.client.transport import ASGITransport
from dragoman.model.errors import UnsupportedOperation
from dragoman.model.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from tests.client.test_waiting import Counted, admin, begun, working
from tests.client.transports import (
    BINDINGS,
    STREAM,
    Answer,
    Dead,
    Script,
    Ways,
    card,
    document,
    event,
    interface,
    result,
    task,
)

# ---- agents that do not stream -------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks again without a pause."""
    monkeypatch.setattr("dragoman.client.task_events.POLL", 0.005)
    monkeypatch.setattr("dragoman.client.task_events.LONGEST_POLL", 0.01)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("attempts", [1, 5])
async def test_a_stream_is_a_send_and_looks(binding: str, attempts: int) -> None:
    agent = admin(streaming=False)
    async with App(agent, drain_timeout=0.0) as app:
        options: Any = {"bindings": [binding], "attempts": attempts}
        async with (
            Client.connect(app=app, **options) as client,
            client.stream("a gate b c") as stream,
        ):
            told: list[Any] = []
            async for happened in stream:
                told.append(happened)
                if stream.task and stream.task.status.message:
                    agent.gate.set()  # type: ignore[attr-defined]
            assert isinstance(told[0], Task)
            texts = "".join(part.text or "" for a in told[0].artifacts for part in a.parts)
            for one in told[1:]:
                if isinstance(one, TaskArtifactUpdateEvent):
                    texts += "".join(part.text or "" for part in one.artifact.parts)
            assert texts == stream.result.text == "abc"
            assert isinstance(told[-1], TaskStatusUpdateEvent)
            assert stream.task == await client.task(told[0].id).get()
    assert agent.runs == ["a gate b c"]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("soon")
async def test_an_interface_that_answers_is_kept() -> None:
    agent = admin(streaming=False)
    async with App(agent, drain_timeout=0.0) as app:
        async with Client.connect(app=app) as client:
            known = client.card
        ways = Ways(one=ASGITransport(app), two=Dead())
        found = card(interface("http://one"), interface("http://two"), like=known)
        async with Client.connect(found, transport=ways, attempts=1) as client:
            agent.gate.set()  # type: ignore[attr-defined]
            async with client.stream("a gate b") as stream:
                _ = [event async for event in stream]
            assert stream.result.text == "ab"
        assert set(ways.hosts()) == {"one"}


@pytest.mark.usefixtures("soon")
async def test_a_direct_answer_of_one_that_does_not_stream() -> None:
    agent = Agent("Short", description="Answers.", streaming=False)

    @agent.handler(reply=True)
    async def answer(turn: Turn) -> str:
        """Answer."""
        return f"you said {turn.text}"

    async with (
        App(agent, drain_timeout=0.0) as app,
        Client.connect(app=app) as client,
        client.stream("x") as stream,
    ):
        assert len([event async for event in stream]) == 1
        assert stream.result.text == "you said x"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("attempts", [1, 5])
async def test_a_subscription_is_looks(attempts: int) -> None:
    agent = admin(streaming=False)
    async with working(agent) as (client, transport):
        client._connection.attempts = attempts
        id = await begun(client, "gate a b")
        async with client.task(id).subscribe() as stream:
            told = []
            async for happened in stream:
                told.append(happened)
                agent.gate.set()  # type: ignore[attr-defined]
        assert isinstance(told[0], Task)
        assert stream.result.text == "ab"
        assert stream.result.state is TaskState.COMPLETED
        assert set(transport.calls) == {"send", "get"}


@pytest.mark.usefixtures("soon")
async def test_a_follow_up_of_one_that_does_not_stream() -> None:
    """The answer to a message is not the question that it answers."""
    agent = admin(streaming=False)
    async with working(agent) as (client, _):
        asked = (await client.send("ask")).task
        assert asked is not None
        agent.gate.set()  # type: ignore[attr-defined]
        for text, state in (("ask", "INPUT_REQUIRED"), ("gate a", "COMPLETED")):
            async with client.stream(text, task=asked.id) as stream:
                _ = [happened async for happened in stream]
            assert stream.result.state is TaskState[state]
    assert agent.runs == ["ask", "ask", "gate a"]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("later", ["2026-01-01T00:00:01.000Z", "2026-01-01T00:00:00.000Z"])
async def test_a_follow_up_that_is_taken_up_late(later: str) -> None:
    """For a while the task stands as it did before the message; the answer may come at once."""
    question = {"messageId": "q", "role": "ROLE_AGENT", "parts": [{"text": "What?"}]}
    old = {"timestamp": "2026-01-01T00:00:00.000Z"}
    looks = [
        task("INPUT_REQUIRED", **old, message=question),  # before it is sent
        task("INPUT_REQUIRED", **old),
        task("INPUT_REQUIRED", **old, message=question),
        task("INPUT_REQUIRED", timestamp=later, message={**question, "messageId": "r"}),
    ]

    def answer(request: TransportRequest) -> TransportResponse:
        if b"GetTask" in request.body:  # type: ignore[operator]
            return Answer(result(looks.pop(0)))
        return Answer(result({"task": task("INPUT_REQUIRED", **old)}))

    async with (
        Client.connect(card(streaming=False), transport=Script(answer)) as client,
        client.stream("x", task="t") as stream,
    ):
        told = [happened async for happened in stream]
    assert looks == []
    assert len(told) >= 2
    assert stream.task is not None
    assert stream.task.status.message is not None
    assert stream.task.status.message.message_id == "r"


@pytest.mark.usefixtures("soon")
async def test_a_follow_up_whose_answer_cannot_be_told_from_before_ends() -> None:
    """Without times there is no telling; to wait for ever would be worse."""

    def answer(request: TransportRequest) -> TransportResponse:
        bare = task("INPUT_REQUIRED")
        return Answer(result(bare if b"GetTask" in request.body else {"task": bare}))  # type: ignore[operator]

    async with (
        Client.connect(card(streaming=False), transport=Script(answer)) as client,
        client.stream("x", task="t") as stream,
    ):
        assert len([happened async for happened in stream]) == 1


@pytest.mark.usefixtures("soon")
async def test_what_fails_is_tried_as_often_as_it_should_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    for request in ("subscribe", "stream"):
        transport = Dead()
        async with Client.connect(card(streaming=False), transport=transport, attempts=3) as client:
            stream = client.stream("x") if request == "stream" else client.task("t").subscribe()
            with pytest.raises(Unreachable):
                _ = [happened async for happened in stream]
        assert transport.asked == 3


async def test_a_card_that_does_not_say_so() -> None:
    """The agent streams; whoever has an older card looks at it all the same."""
    agent = admin()
    async with App(agent, drain_timeout=0.0) as app:
        async with Client.connect(app=app) as client:
            quiet = replace(client.card.capabilities, streaming=None)
            known = replace(client.card, capabilities=quiet)
        transport = Counted(app)
        async with Client.connect(known, transport=transport) as client:
            async with client.stream("a b") as stream:
                _ = [happened async for happened in stream]
            assert stream.result.text == "ab"
        assert set(transport.calls) <= {"send", "get"}


# ---- a subscription that is refused --------------------------------------------------------

REFUSALS = {
    "unsupported": b'{"jsonrpc":"2.0","id":1,"error":{"code":-32004,"message":"no"}}',
    "unknown method": b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}',
    "not found": b'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no"}}',
}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("sending", [True, False])
async def test_a_stream_that_broke_off_is_looked_at_if_it_cannot_be_listened_to_again(
    why: str, places: bool, sending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    looks = [task("WORKING", "a"), task("WORKING", "a", "b"), task("COMPLETED", "a", "b", "c")]
    begun = event({"task": task("WORKING", "a")})
    streams = [
        Answer(b"id: t:1\n" + begun if places else begun, headers=STREAM),
        Answer(REFUSALS[why]),
    ]

    def answer(request: TransportRequest) -> TransportResponse:
        if document(request)["method"] == "GetTask":
            return Answer(result(looks.pop(0)))
        return streams.pop(0)

    transport = Script(answer)
    async with Client.connect(card(), transport=transport) as client:
        client._connection.resumes = places
        async with client.stream("x") if sending else client.task("t").subscribe() as stream:
            told = [happened async for happened in stream]
        texts = [
            part.text
            for happened in told[1:]
            if isinstance(happened, TaskArtifactUpdateEvent)
            for part in happened.artifact.parts
        ]
        assert texts == ["b", "c"]
        assert stream.result.text == "abc"
        assert stream.result.state is TaskState.COMPLETED
    assert (looks, streams) == ([], [])


@pytest.mark.usefixtures("soon")
async def test_looks_that_fail_are_repeated_as_often_as_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    streams = [Answer(event({"task": task("WORKING")}), headers=STREAM)]

    def answer(request: TransportRequest) -> TransportResponse:
        if document(request)["method"] == "GetTask":
            raise Unreachable("gone")
        return streams.pop(0) if streams else Answer(REFUSALS["unsupported"])

    transport = Script(answer)
    async with Client.connect(card(), transport=transport, attempts=3) as client:
        with pytest.raises(Unreachable, match="gone"):
            _ = [happened async for happened in client.stream("x")]
    assert len(transport.asked) == 2 + 3


async def test_the_task_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without places, what the task has told may be told again by its stream."""
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    ids = {"taskId": "t", "contextId": "c"}
    again = {"artifactId": "a", "parts": [{"text": "b"}]}
    ended = task("COMPLETED", "a", "b")

    def answer(request: TransportRequest) -> TransportResponse:
        match document(request)["method"]:
            case "GetTask":
                return Answer(result(ended))
            case "SubscribeToTask":
                events = (
                    event({"task": task("WORKING", "a", "b")}),
                    event({"artifactUpdate": {**ids, "artifact": again, "append": True}}),
                    event({"statusUpdate": {**ids, "status": ended["status"]}}),
                )
                return Answer(events, headers=STREAM)
            case _:
                return Answer(event({"task": task("WORKING", "a")}), headers=STREAM)

    async with (
        Client.connect(card(), transport=Script(answer)) as client,
        client.stream("x") as stream,
    ):
        told = [happened async for happened in stream]
    assert stream.result.text == "ab"
    last = told[-1]
    assert isinstance(last, TaskArtifactUpdateEvent)
    assert not last.append
    assert [part.text for part in last.artifact.parts] == ["a", "b"]


async def test_a_subscription_that_is_refused_at_once_is_told() -> None:
    """Whoever subscribes to a task that has ended wants to know."""
    async with working(admin()) as (client, _):
        done = (await client.send("a")).task
        assert done is not None
        with pytest.raises(UnsupportedOperation, match="ended"):
            _ = [happened async for happened in client.task(done.id).subscribe()]
