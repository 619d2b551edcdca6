"""The client against dragoman itself, in this process: what is said arrives, whatever breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman import Agent, App, Message, Part, TaskState, Turn
from dragoman.client import Client, Unreachable
from dragoman.client.transport import ASGITransport, TransportRequest, TransportResponse
from dragoman.model.errors import (
    InvalidAgentResponse,
    InvalidParams,
    MethodNotFound,
    TaskNotCancelable,
    TaskNotFound,
    Unavailable,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model.types import AgentInterface, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

BINDINGS = ["JSONRPC", "HTTP+JSON"]


def parrot() -> Agent:
    """An agent that does what the text says."""
    agent = Agent("Parrot", description="Repeats.")
    agent.runs = []  # type: ignore[attr-defined]
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]

    @agent.handler
    async def repeat(turn: Turn) -> AsyncIterator[Any]:
        """Do it."""
        agent.runs.append(turn.text)  # type: ignore[attr-defined]
        yield turn.working("on it")
        if turn.text == "ask":
            yield turn.ask("What?")
        elif turn.text == "gate":
            await agent.gate.wait()  # type: ignore[attr-defined]
        elif turn.text.startswith("count"):
            for number in range(int(turn.text.split()[1])):
                yield turn.write(f"{number},")
                await asyncio.sleep(0)
            yield turn.artifact({"done": True}, name="sum")
        elif turn.text:
            yield turn.artifact(turn.text)
        else:
            yield turn.artifact(list(turn.message.parts))

    @agent.skill(reply=True)
    async def talk(turn: Turn) -> Message | str:
        """Answer without a task."""
        return f"you said {turn.text}"

    return agent


@pytest.fixture
async def app() -> AsyncIterator[App]:
    """The agent, running."""
    agent = parrot()
    async with App(
        agent, push=True, egress_allow=["hooks.example"], drain_timeout=0.0, poll=0.02
    ) as app:
        yield app
        agent.gate.set()  # type: ignore[attr-defined]


@pytest.fixture(params=BINDINGS)
async def client(request: pytest.FixtureRequest, app: App) -> AsyncIterator[Client]:
    """A client of it over each binding."""
    async with Client.connect(app=app, bindings=[request.param]) as client:
        assert client.interface.protocol_binding == request.param
        yield client


# ---- operations ----------------------------------------------------------------------------


async def test_send(client: Client) -> None:
    result = await client.send("hello")
    assert (result.state, result.text) == (TaskState.COMPLETED, "hello")
    assert result.task is not None
    assert (await client.task(result.task.id).get()).id == result.task.id


async def test_a_direct_answer(client: Client) -> None:
    result = await client.send("hi", skill="talk")
    assert (result.task, result.text) == (None, "you said hi")


async def test_data_and_files(client: Client) -> None:
    parts = [Part(data={"a": [1, 2]}), Part(raw=b"\x00\xff", filename="x.bin")]
    result = await client.send(parts)
    assert result.data == {"a": [1, 2]}
    assert [part.raw for part in result.files] == [b"\x00\xff"]


async def test_several_turns(client: Client) -> None:
    asked = await client.send("ask")
    assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "What?")
    assert asked.task is not None
    done = await client.task(asked.task.id).reply("this")
    assert (done.state, done.text) == (TaskState.COMPLETED, "this")
    assert done.task is not None
    assert done.task.context_id == asked.task.context_id


async def test_stream(client: Client) -> None:
    async with client.stream("count 3") as stream:
        events = [event async for event in stream]
    assert [type(event).__name__ for event in events] == [
        "Task",
        "TaskStatusUpdateEvent",
        *["TaskArtifactUpdateEvent"] * 4,
        "TaskStatusUpdateEvent",
    ]
    assert stream.result.text == "0,1,2,"
    assert stream.result.data == {"done": True}
    assert stream.task == await client.task(events[0].id).get()  # type: ignore[union-attr]


async def test_a_streamed_direct_answer(client: Client) -> None:
    async with client.stream("hi", skill="talk") as stream:
        assert len([event async for event in stream]) == 1
    assert stream.result.text == "you said hi"


async def test_wait_and_cancel(client: Client, app: App) -> None:
    begun = await client.send("gate", wait=False)
    assert begun.task is not None
    task = client.task(begun.task.id)
    waiting = asyncio.create_task(task.wait())
    assert (await task.cancel()).status.state is TaskState.CANCELED
    assert (await waiting).status.state is TaskState.CANCELED
    with pytest.raises(TaskNotCancelable):
        await task.cancel()


async def test_list_goes_through_all_pages(client: Client) -> None:
    for number in range(7):
        await client.send(f"{number}")
    found = [task async for task in client.list(page=3, artifacts=True)]
    assert sorted(task.artifacts[0].parts[0].text for task in found) == [*"0123456"]  # type: ignore[type-var]
    asked = await client.send("ask")
    waiting = [task async for task in client.list(state=TaskState.INPUT_REQUIRED)]
    assert [task.id for task in waiting] == [asked.task.id]  # type: ignore[union-attr]


async def test_webhooks(client: Client) -> None:
    asked = await client.send("ask")
    assert asked.task is not None
    task = client.task(asked.task.id)
    made = await task.add_webhook("https://hooks.example/a", token="t")
    assert await task.webhook(made.id) == made
    assert [item async for item in task.webhooks()] == [made]
    await task.delete_webhook(made.id)
    assert [item async for item in task.webhooks()] == []


async def test_a_webhook_by_its_url(client: Client) -> None:
    asked = await client.send("ask", webhook="https://hooks.example/a")
    assert asked.task is not None
    found = [item.url async for item in client.task(asked.task.id).webhooks()]
    assert found == ["https://hooks.example/a"]
    with pytest.raises(TypeError, match="webhook: expected a URL or a TaskPushNotificationConfig"):
        await client.send("ask", webhook=5)  # type: ignore[arg-type]


async def test_errors_are_the_servers(client: Client) -> None:
    with pytest.raises(TaskNotFound):
        await client.task("unknown").get()
    with pytest.raises(InvalidParams) as caught:
        _ = [task async for task in client.list(page=1000)]
    assert [field for field, _ in caught.value.violations] == ["pageSize"]
    done = await client.send("hello")
    assert done.task is not None
    with pytest.raises(UnsupportedOperation):
        await client.task(done.task.id).reply("more")
    with pytest.raises(UnsupportedOperation):
        await client.extended_card()


# ---- what breaks ---------------------------------------------------------------------------


class Cutting(ASGITransport):
    """Breaks the first streams off after so many bytes each."""

    def __init__(self, app: App, *places: int) -> None:
        super().__init__(app)
        self.places = list(places)

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Cut what streams."""
        response = await super().send(request)
        streams = response.headers.get("content-type") == "text/event-stream"
        return Cut(response, self.places.pop(0)) if streams and self.places else response


class Cut:
    """A response that breaks off."""

    def __init__(self, response: TransportResponse, left: int, *, whole: bool = False) -> None:
        self.status, self.headers = response.status, response.headers
        self.struck = False
        self._response = response
        self._left = left
        self._whole = whole
        """Its pieces come as they are, or not at all."""

    async def chunks(self) -> AsyncIterator[bytes]:
        """What comes through."""
        async for chunk in self._response.chunks():
            if len(chunk) > self._left:
                if self._left and not self._whole:
                    yield chunk[: self._left]
                self.struck = True
                raise Unreachable("cut")
            self._left -= len(chunk)
            yield chunk

    async def close(self) -> None:
        """Close what is behind."""
        await self._response.close()


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("resumes", [True, False])
async def test_a_stream_that_is_cut_anywhere(
    app: App, binding: str, resumes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    for place in range(0, 6000, 101):
        await cut(app, binding, resumes, place, place // 2, place // 3)


async def cut(app: App, binding: str, resumes: bool, *places: int) -> None:
    """Cut a stream at these places: all is there in the end, and each chunk was told once."""
    runs = app.agents["parrot"].runs  # type: ignore[attr-defined]
    runs.clear()
    transport = Cutting(app, *places)
    async with Client.connect(app=app, transport=transport, bindings=[binding]) as client:
        client._connection.resumes = resumes
        async with asyncio.timeout(30), client.stream("count 20") as stream:
            events = [event async for event in stream]
        whole = "".join(f"{number}," for number in range(20))
        assert stream.result.text == whole
        chunks = [
            part.text or ""
            for event in events
            if isinstance(event, TaskArtifactUpdateEvent) and event.artifact.name != "sum"
            for part in event.artifact.parts
        ]
        if not isinstance(events[0], TaskArtifactUpdateEvent):
            told = "".join(part.text or "" for a in events[0].artifacts for part in a.parts)  # type: ignore[union-attr]
            assert told + "".join(chunks) == whole  # each once
        ends = [e for e in events if isinstance(e, TaskStatusUpdateEvent)]
        assert ends[-1].status.state is TaskState.COMPLETED
        assert runs == ["count 20"]


class Failing(ASGITransport):
    """Fails some requests, before or after they have reached the application."""

    def __init__(self, app: App, *, before: int = 0, after: int = 0) -> None:
        super().__init__(app)
        self.before, self.after = before, after
        self.canceled: list[str] = []
        """The keys of cancels."""

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Fail, or send."""
        if b"CancelTask" in (request.body or b"") or request.url.endswith(":cancel"):
            self.canceled.append(request.headers.get("idempotency-key", ""))
        if request.method == "POST" and self.before:
            self.before -= 1
            raise Unreachable("refused")
        response = await super().send(request)
        if request.method == "POST" and self.after:
            self.after -= 1
            raise Unreachable("the response was lost")
        return response


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_send_is_repeated_and_runs_once(app: App, binding: str) -> None:
    transport = Failing(app, before=2, after=2)
    async with Client.connect(app=app, transport=transport, bindings=[binding]) as client:
        assert (await client.send("hello")).text == "hello"
    assert app.agents["parrot"].runs == ["hello"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("lost", ["before", "after"])
async def test_a_cancel_that_is_lost_is_made_up_for(app: App, binding: str, lost: str) -> None:
    transport = Failing(app)
    async with Client.connect(app=app, transport=transport, bindings=[binding]) as client:
        begun = await client.send("gate", wait=False)
        assert begun.task is not None
        setattr(transport, lost, 1)
        assert (await client.task(begun.task.id).cancel()).status.state is TaskState.CANCELED
    assert len(set(transport.canceled)) == 1  # it is the same cancel, however often
    assert transport.canceled[0]


async def test_what_keeps_failing_is_told(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    transport = Failing(app, before=100)
    async with Client.connect(app=app, transport=transport, attempts=3) as client:
        with pytest.raises(Unreachable, match="refused"):
            await client.send("hello")
    assert transport.before == 97


# ---- cards and foreign answers -------------------------------------------------------------


class Canned:
    """Answers every request with the same."""

    def __init__(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.status, self.body, self.headers = status, body, {"content-type": kind}
        self.asked: list[TransportRequest] = []

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Answer."""
        self.asked.append(request)
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body."""
        yield self.body

    async def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (200, b'{"jsonrpc":"2.0","id":1,"result":{"id":7}}', InvalidAgentResponse, "id"),
        (200, b'{"jsonrpc":"2.0","id":1}', InvalidAgentResponse, "neither a result nor an error"),
        (200, b"<html>", InvalidAgentResponse, "JSON"),
        (404, b"<html>", MethodNotFound, "404"),
        (503, b"", Unavailable, "503"),
        (
            200,
            b'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no"}}',
            TaskNotFound,
            "no",
        ),
    ],
)
async def test_foreign_answers(
    app: App, status: int, body: bytes, error: type[Exception], words: str
) -> None:
    async with Client.connect(app=app) as client:
        card = client.card
    async with Client.connect(card, transport=Canned(status, body), attempts=1) as client:
        with pytest.raises(error, match=words):
            await client.task("t").get()


async def test_a_card_without_a_usable_interface(app: App) -> None:
    async with Client.connect(app=app) as client:
        card = client.card
    other = AgentInterface(url="http://x", protocol_binding="SMOKE", protocol_version="1.0")
    card = type(card)(
        **{f: getattr(card, f) for f in card.__struct_fields__} | {"supported_interfaces": (other,)}
    )
    with pytest.raises(VersionNotSupported, match=r"SMOKE 1\.0"):
        async with Client.connect(card, transport=Canned(200, b"")):
            pass


async def test_a_missing_card_is_told_with_both_places() -> None:
    with pytest.raises(MethodNotFound, match=r"agent-card\.json nor"):
        async with Client.connect("http://x", transport=Canned(404, b"")):
            pass


async def test_a_bad_card_names_the_field() -> None:
    with pytest.raises(InvalidAgentResponse, match="name"):
        async with Client.connect("http://x", transport=Canned(200, b'{"name": 5}')):
            pass


# ---- how it is held ------------------------------------------------------------------------


async def test_options_that_are_none() -> None:
    with pytest.raises(TypeError, match="bogus"):
        Client.connect("http://x", bogus=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="trust"):
        Client.connect("http://x", trust="https://y")
    with pytest.raises(ValueError, match="attempts"):
        Client.connect("http://x", attempts=0)


async def test_outside_its_block(app: App) -> None:
    client = Client.connect(app=app)
    with pytest.raises(RuntimeError, match="async with"):
        await client.send("x")
    async with client:
        assert (await client.send("x")).text == "x"
    with pytest.raises(RuntimeError, match="async with"):
        await client.send("x")
