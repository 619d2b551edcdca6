"""The reference SDK streams: what a message brings about, and what happens to a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import httpx
import pytest
from a2a.client import ClientCallContext
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict

from dragoman import App
from dragoman.model.events import RESUME
from tests.harness.server import serving
from tests.interop.agents import TaskGate, agent, book, story
from tests.interop.reference import (
    Speak,
    asking,
    assembled,
    begin,
    gather,
    kinds,
    send,
    state,
    states,
    texts,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.clause(
    "stream.task-first", "stream.ends-terminal", "stream.one-of", "events.order",
    "updates.required-fields", "artifact-update.append", "artifact-update.last-chunk",
)  # fmt: skip
async def test_stream_from_the_first_event_to_the_last(meet: Speak) -> None:
    async with meet("talk") as peer:
        events = await gather(peer.live.send_message(asking("one two three")))
        task = await peer.plain.get_task(pb.GetTaskRequest(id=events[0].task.id))
    assert kinds(events) == [
        "task", "status_update", "artifact_update", "artifact_update", "artifact_update",
        "status_update",
    ]  # fmt: skip
    assert states(events) == ["submitted", "working", "completed"]
    assert texts(events[0].task.history[0].parts) == ["one two three"]
    chunks = [event.artifact_update for event in events if event.HasField("artifact_update")]
    assert [chunk.append for chunk in chunks] == [False, True, True]
    assert [chunk.last_chunk for chunk in chunks] == [False, False, True]
    updates = [*chunks, events[1].status_update, events[-1].status_update]
    assert {update.task_id for update in updates} == {task.id}
    assert {update.context_id for update in updates} == {task.context_id}
    (artifact,) = task.artifacts
    ((key, parts),) = assembled(events).items()
    assert (key, texts(parts)) == (artifact.artifact_id, ["one", "two", "three"])
    assert texts(artifact.parts) == ["onetwothree"]  # in the task it is one text
    assert events[-1].status_update.status == task.status


async def test_long_stream_loses_nothing(meet: Speak) -> None:
    words = [str(number) for number in range(400)]
    async with meet("talk") as peer:
        events = await gather(peer.live.send_message(asking(" ".join(words))))
    (parts,) = assembled(events).values()
    assert texts(parts) == words
    assert states(events) == ["submitted", "working", "completed"]


@pytest.mark.parametrize(("length", "kept"), [(None, 1), (0, 0), (1, 1)])
async def test_history_in_the_first_event(meet: Speak, length: int | None, kept: int) -> None:
    configuration = pb.SendMessageConfiguration(history_length=length)
    async with meet("talk") as peer:
        request = asking("hello", configuration=configuration)
        events = await gather(peer.live.send_message(request))
    assert len(events[0].task.history) == kept


@pytest.mark.clause("stream.live")
async def test_events_arrive_while_the_agent_is_at_work(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("story") as peer:
        stream = peer.live.send_message(asking(gate.name))
        early = [await anext(stream) for _ in range(3)]
        assert kinds(early) == ["task", "status_update", "artifact_update"]
        assert not gate.open.is_set()
        gate.open.set()
        late = await gather(stream)
    assert kinds(late) == ["artifact_update", "status_update"]
    (parts,) = assembled([*early, *late]).values()
    assert texts(parts) == ["before", "after"]


@pytest.mark.clause("stream.message-only", "send.return-immediately-no-effect")
@pytest.mark.parametrize("immediately", [False, True])
async def test_stream_of_a_direct_reply(meet: Speak, immediately: bool) -> None:
    configuration = pb.SendMessageConfiguration(return_immediately=immediately)
    async with meet("reply") as peer:
        request = asking("hello", configuration=configuration)
        events = await gather(peer.live.send_message(request))
    assert kinds(events) == ["message"]
    assert texts(events[0].message.parts) == ["You said hello"]


async def test_return_immediately_does_not_cut_a_stream_short(meet: Speak) -> None:
    async with meet("talk", polling=True) as peer:
        events = await gather(peer.live.send_message(asking("one two")))
    assert states(events) == ["submitted", "working", "completed"]


@pytest.mark.clause("turns.input-required", "http.stream-ends-interrupted")
async def test_questions_and_answers_by_streams(meet: Speak) -> None:
    async with meet("book") as peer:
        first = await gather(peer.live.send_message(asking("Lyon")))
        assert states(first) == ["submitted", "input_required"]
        task = first[0].task
        second = await gather(peer.live.send_message(asking("In May", task=task.id)))
        assert second[0].task.id == task.id
        assert states(second)[-1] == "input_required"
        assert texts(second[-1].status_update.status.message.parts) == ["Which class?"]
        third = await gather(
            peer.live.send_message(asking("First", task=task.id, context=task.context_id))
        )
    assert states(third)[-1] == "completed"
    (parts,) = assembled(third).values()
    assert texts(parts) == ["Lyon, In May, First"]


@pytest.mark.clause("auth-required.streams-open")
async def test_stream_stays_open_while_the_agent_waits_to_be_let_in(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("permit") as peer:
        stream = peer.live.send_message(asking(gate.name))
        assert states([await anext(stream), await anext(stream)]) == ["submitted", "auth_required"]
        await gate.reached.wait()
        gate.open.set()
        events = await gather(stream)
    assert kinds(events) == ["status_update", "artifact_update", "status_update"]
    assert states(events) == ["working", "completed"]


async def test_stream_ends_when_the_agent_stops_at_auth_required(meet: Speak) -> None:
    async with meet("permit") as peer:
        events = await gather(peer.live.send_message(asking("later")))
    assert states(events) == ["submitted", "auth_required"]


async def test_stream_of_an_agent_that_raises(meet: Speak) -> None:
    async with meet("fall") as peer:
        events = await gather(peer.live.send_message(asking("hello")))
    assert states(events) == ["submitted", "working", "failed"]
    assert "secret" not in str(events)


@pytest.mark.clause("stream.refusals")
async def test_stream_is_refused_as_a_send_is(meet: Speak) -> None:
    async with meet("picky") as peer:
        ended = await send(peer.plain, "hello")
        with pytest.raises(UnsupportedOperationError):
            await gather(peer.live.send_message(asking("more", task=ended.id)))
        with pytest.raises(TaskNotFoundError):
            await gather(peer.live.send_message(asking("more", task="unknown")))
        part = pb.Part(raw=b"%PDF", media_type="application/pdf")
        with pytest.raises(ContentTypeNotSupportedError):
            await gather(peer.live.send_message(asking(part)))


@pytest.mark.clause("content.injection")
@pytest.mark.parametrize(
    "text", ["\n", "\r\n", "\r", "\ndata: {}\n\nevent: error\n", "\0", "🌍"], ids=ascii
)
async def test_text_cannot_break_the_stream(meet: Speak, text: str) -> None:
    assert await _said(meet, text) == text


@pytest.mark.clause("content.injection")
@pytest.mark.parametrize("text", ["\x85", "\u2028", "\u2029"], ids=ascii)
async def test_line_ends_of_unicode_cannot_break_the_stream(meet: Speak, text: str) -> None:
    """To server-sent events they are none, but Python, and so the SDK, splits lines there."""
    assert await _said(meet, text) == text


async def _said(meet: Speak, text: str) -> str:
    """The text as it comes back in a stream."""
    async with meet("talk") as peer:
        events = await gather(peer.live.send_message(asking(text)))
    (parts,) = assembled(events).values()
    return " ".join(texts(parts))


# ---- subscriptions ---------------------------------------------------------------------------


@pytest.mark.clause("subscribe.task-first", "subscribe.ends-terminal", "get.current-state")
async def test_subscription_to_a_running_task(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("story") as peer:
        task = await begin(peer.plain, gate.name)
        await gate.reached.wait()
        stream = peer.live.subscribe(pb.SubscribeToTaskRequest(id=task.id))
        first = await anext(stream)
        assert kinds([first]) == ["task"]
        assert state(first.task) == "working"
        assert texts(first.task.artifacts[0].parts) == ["before"]
        assert first.task == await peer.plain.get_task(pb.GetTaskRequest(id=task.id))
        gate.open.set()
        rest = await gather(stream)
    assert kinds(rest) == ["artifact_update", "status_update"]
    assert rest[0].artifact_update.append
    assert texts(rest[0].artifact_update.artifact.parts) == ["after"]
    assert states(rest) == ["completed"]


@pytest.mark.clause("events.same-for-all", "events.close-one")
async def test_all_streams_show_the_same_and_one_can_leave(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("story") as peer:
        origin = peer.live.send_message(asking(gate.name))
        task = (await anext(origin)).task.id
        await gate.reached.wait()
        request = pb.SubscribeToTaskRequest(id=task)
        stay, leave = peer.live.subscribe(request), peer.live.subscribe(request)
        await anext(stay)
        async with aclosing(leave):
            await anext(leave)
        gate.open.set()
        seen, known = await gather(origin), await gather(stay)
    assert len(known) == 2
    assert seen[-2:] == known


async def test_client_that_goes_away_stops_nothing(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("story") as peer:
        async with aclosing(peer.live.send_message(asking(gate.name))) as stream:
            task = (await anext(stream)).task.id
        await gate.reached.wait()
        again = peer.live.subscribe(pb.SubscribeToTaskRequest(id=task))
        assert states([await anext(again)]) == ["working"]
        gate.open.set()
        assert states(await gather(again)) == ["completed"]


@pytest.mark.clause("subscribe.interrupted-task")
async def test_subscription_to_a_task_that_waits_for_input(meet: Speak) -> None:
    """It stays open over the turns, until the task has ended."""
    async with meet("book") as peer:
        task = await send(peer.plain, "Lyon")
        stream = peer.live.subscribe(pb.SubscribeToTaskRequest(id=task.id))
        assert states([await anext(stream)]) == ["input_required"]
        await send(peer.plain, "In May", task=task.id)
        await send(peer.plain, "Second", task=task.id)
        events = await gather(stream)
    assert [name for name in states(events) if name != "working"] == ["input_required", "completed"]


@pytest.mark.clause("subscribe.terminal-task")
async def test_no_subscription_to_a_task_that_has_ended(meet: Speak) -> None:
    async with meet("echo") as peer:
        task = await send(peer.plain, "hello")
        with pytest.raises(UnsupportedOperationError):
            await gather(peer.live.subscribe(pb.SubscribeToTaskRequest(id=task.id)))


@pytest.mark.clause("subscribe.unknown-task")
async def test_no_subscription_to_an_unknown_task(meet: Speak) -> None:
    async with meet("echo") as peer:
        with pytest.raises(TaskNotFoundError):
            await gather(peer.live.subscribe(pb.SubscribeToTaskRequest(id="unknown")))


async def test_stream_that_breaks_off_says_why(
    speak: Speak, constants: Callable[..., None]
) -> None:
    """A full store forgets the task that waits: the error comes when the stream has begun."""
    constants(keepalive=0.02)
    full = App(agent(book), store="memory:?max_tasks=1")
    async with serving(full) as url, speak(url) as peer:
        task = await send(peer.plain, "Lyon")
        stream = peer.live.subscribe(pb.SubscribeToTaskRequest(id=task.id))
        assert (await anext(stream)).task.id == task.id
        await send(peer.plain, "Nice")
        with pytest.raises(TaskNotFoundError):
            await gather(stream)


# ---- what our streams have beyond the protocol -----------------------------------------------


@pytest.mark.clause("extensions.opt-in")
async def test_stream_resumes_where_the_client_left_it(meet: Speak) -> None:
    """With the extension in force each event tells its place, and a later stream goes on there,
    even when the task has ended; without it there is no such thing."""
    asked = ServiceParametersFactory.create([with_a2a_extensions([RESUME])])
    async with meet("talk") as peer:
        bare = await gather(peer.live.send_message(asking("one two three")))
        context = ClientCallContext(service_parameters=asked)
        events = await gather(peer.live.send_message(asking("one two three"), context=context))
        task = events[0].task.id
        place = _place(events[2])
        context = ClientCallContext(service_parameters=asked | {"Last-Event-ID": f"{task}:{place}"})
        request = pb.SubscribeToTaskRequest(id=task)
        rest = await gather(peer.live.subscribe(request, context=context))
    assert all(RESUME not in str(event) for event in bare)
    places = [_place(event) for event in events]
    assert places == sorted(set(places))
    assert rest == events[3:]
    assert len(rest) == 3


def _place(event: pb.StreamResponse) -> int:
    held = getattr(event, str(event.WhichOneof("payload")))
    return int(MessageToDict(held.metadata)[RESUME]["place"])


class Overheard(httpx.AsyncHTTPTransport):
    """A transport that knows when a sign of life has gone by."""

    def __init__(self) -> None:
        super().__init__(verify=False)
        self.alive = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        response.stream = Tapped(response.stream, self.alive)  # type: ignore[arg-type]
        return response


class Tapped(httpx.AsyncByteStream):
    """A body as it came, with a listener on it."""

    def __init__(self, body: httpx.AsyncByteStream, alive: asyncio.Event) -> None:
        self.body = body
        self.alive = alive

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self.body:
            if b":" in chunk and b"data:" not in chunk:
                self.alive.set()
            yield chunk

    async def aclose(self) -> None:
        await self.body.aclose()


async def test_signs_of_life_disturb_no_client(
    speak: Speak, constants: Callable[..., None]
) -> None:
    constants(keepalive=0.02)
    gate, heard = TaskGate(), Overheard()
    async with (
        serving(App(agent(story))) as url,
        speak(url, transport=heard) as peer,
    ):
        reading = asyncio.create_task(gather(peer.live.send_message(asking(gate.name))))
        await gate.reached.wait()
        heard.alive.clear()
        await heard.alive.wait()
        gate.open.set()
        events = await reading
    assert states(events) == ["submitted", "working", "completed"]
