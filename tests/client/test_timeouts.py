"""How long the client waits: for an attempt, in all, and for a stream on which nothing comes."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from dragoman import App, TaskState
from dragoman.client import Client, TransportRequest, TransportResponse, Unreachable
from dragoman.client.transport import ASGITransport, Silent
from dragoman.model.errors import BodyTooLarge, LimitExceeded, Unavailable
from tests.client.test_client import parrot
from tests.client.transports import (
    BINDINGS,
    STREAM,
    Answer,
    Mute,
    Script,
    card,
    event,
    interface,
    result,
    task,
)
from tests.harness.raw_server import Listener, Visit, listening
from tests.harness.server import serving

FOREVER = 3600.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.fixture
async def app() -> AsyncIterator[App]:
    """An agent, running."""
    agent = parrot()
    async with asyncio.timeout(20), App(agent, drain_timeout=0.0, poll=0.02) as app:
        yield app
        agent.gate.set()  # type: ignore[attr-defined]


class Deaf(ASGITransport):
    """Answers nothing but the card until it is told to; what it is sent arrives."""

    def __init__(self, app: App, *, mute: int) -> None:
        super().__init__(app)
        self.mute = mute
        self.asked: list[TransportRequest] = []

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Pass it on, and perhaps keep the answer."""
        response = await super().send(request)
        if request.method == "POST":
            self.asked.append(request)
            if len(self.asked) <= self.mute:
                await asyncio.Event().wait()
        return response


# ---- one attempt ---------------------------------------------------------------------------


async def test_an_attempt_at_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    transport = Mute()
    async with Client.connect(card(), transport=transport, timeout=0.01, attempts=3) as client:
        async with asyncio.timeout(10):
            with pytest.raises(TimeoutError):
                await client.task("t").get()
        assert transport.asked == 3


async def test_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    transport = Mute()
    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            async with Client.connect("http://x", transport=transport, timeout=0.01, attempts=3):
                pass
        assert transport.asked == 3
        with pytest.raises(TimeoutError):
            async with Client.connect("http://x", transport=transport, deadline=0.01):
                pass


async def test_an_answer_that_begins_and_never_ends() -> None:
    async def talk(visit: Visit) -> None:
        await visit.request()
        await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        await visit.over()

    async with listening(talk) as listener, asyncio.timeout(10):
        found = card(interface(f"http://127.0.0.1:{listener.port}"))
        async with Client.connect(found, timeout=0.1, attempts=1) as client:
            with pytest.raises(TimeoutError):
                await client.task("t").get()


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_send_that_takes_long_is_repeated_where_there_are_receipts(
    app: App, binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    transport = Deaf(app, mute=2)
    connected = Client.connect(
        app=app, transport=transport, bindings=[binding], timeout=0.2, attempts=20
    )
    async with connected as client:
        assert (await client.send("hello")).text == "hello"
    assert len(transport.asked) >= 3
    assert len({request.headers["idempotency-key"] for request in transport.asked}) == 1
    assert app.agents["parrot"].runs == ["hello"]  # type: ignore[attr-defined]


async def test_a_send_that_takes_long_is_not_repeated_elsewhere() -> None:
    transport = Mute()
    async with Client.connect(card(), transport=transport, timeout=0.01) as client:
        for wait in (True, False):
            with pytest.raises(TimeoutError):
                await client.send("x", wait=wait)
        assert transport.asked == 2
        with pytest.raises(TimeoutError):
            await client.task("t").cancel()
        assert transport.asked == 3


# ---- in all --------------------------------------------------------------------------------


async def test_all_attempts_at_a_call(app: App) -> None:
    async with Client.connect(
        card(), transport=Mute(), timeout=0.05, attempts=1000, deadline=0.3
    ) as client:
        with pytest.raises(TimeoutError):
            await client.task("t").get()


async def test_a_pause_is_bounded_by_it_as_well() -> None:
    busy = Script(lambda _: Answer(b"", status=503, headers={"retry-after": "50"}))
    async with (
        asyncio.timeout(10),
        Client.connect(card(), transport=busy, deadline=0.05) as client,
    ):
        with pytest.raises(TimeoutError):
            await client.task("t").get()
    assert len(busy.asked) == 1


Wait = Callable[[Client, str], Awaitable[object]]


async def by_wait(client: Client, id: str) -> object:
    return await client.task(id).wait()


async def by_stream(client: Client, id: str) -> object:
    async with client.task(id).subscribe() as stream:
        return [event async for event in stream]


async def by_poll(client: Client, id: str) -> object:
    client._connection.card = card(streaming=False)
    return await client.task(id).wait(poll=0.01)


WAYS: list[Wait] = [by_wait, by_stream, by_poll]


@pytest.mark.parametrize("way", WAYS)
async def test_whoever_waits_for_a_task_gives_up_and_the_task_goes_on(app: App, way: Wait) -> None:
    async with Client.connect(app=app) as client:
        begun = (await client.send("gate", wait=False)).task
        assert begun is not None
        client._connection.deadline = 0.1
        with pytest.raises(TimeoutError):
            await way(client, begun.id)
        client._connection.deadline = None
        assert (await client.task(begun.id).get()).status.state is TaskState.WORKING
        app.agents["parrot"].gate.set()  # type: ignore[attr-defined]
    async with Client.connect(app=app) as client:
        assert (await client.task(begun.id).wait()).status.state is TaskState.COMPLETED


async def test_a_stream(app: App) -> None:
    async with Client.connect(app=app) as client:
        client._connection.deadline = 0.5
        events = []
        with pytest.raises(TimeoutError):
            async with client.stream("gate") as stream:
                async for told in stream:
                    events.append(told)
        client._connection.deadline = None
        assert len(events) == 2
        assert stream.result.state is TaskState.WORKING
        assert stream.task is not None
        assert (await client.task(stream.task.id).get()).status.state is TaskState.WORKING


# ---- a local end is not the task's ---------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_a_wait_that_is_cancelled_leaves_the_task_alone(app: App, way: Wait) -> None:
    async with Client.connect(app=app) as client:
        begun = (await client.send("gate", wait=False)).task
        assert begun is not None
        waiting = asyncio.ensure_future(way(client, begun.id))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with Client.connect(app=app) as client:
        assert (await client.task(begun.id).get()).status.state is TaskState.WORKING
        app.agents["parrot"].gate.set()  # type: ignore[attr-defined]
        assert (await client.task(begun.id).wait()).status.state is TaskState.COMPLETED


@pytest.mark.parametrize("binding", BINDINGS)
async def test_so_does_a_send_or_stream_that_is_cancelled(binding: str) -> None:
    agent = parrot()
    app = App(agent, drain_timeout=0.0, poll=0.02)
    async with asyncio.timeout(20), serving(app) as url:
        async with Client.connect(url, bindings=[binding]) as client:

            async def follow() -> None:
                async with client.stream("gate") as stream:
                    _ = [event async for event in stream]

            going = [asyncio.create_task(client.send("gate")), asyncio.create_task(follow())]
            while len(agent.runs) < 2:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
            for one in going:
                one.cancel()
            await asyncio.wait(going)
            assert all(one.cancelled() for one in going)
        async with Client.connect(url, bindings=[binding]) as client:
            states = {item.status.state async for item in client.list()}
            assert states == {TaskState.WORKING}
            agent.gate.set()  # type: ignore[attr-defined]
            async for item in client.list():
                assert (await client.task(item.id).wait()).status.state is TaskState.COMPLETED


async def test_a_stream_that_is_left_is_closed_at_once() -> None:
    answer = Answer(
        [event({"task": task("WORKING")}), event({"task": task()})],
        headers=STREAM,
    )
    async with Client.connect(card(), transport=Script(lambda _: answer)) as client:
        async with client.stream("x") as stream:
            async for _ in stream:
                break
        assert answer.closed
        assert [told async for told in stream] == []


# ---- nothing comes -------------------------------------------------------------------------


class Quiet:
    """A server whose streams fall silent after an event; the next one tells the end."""

    def __init__(self, *, comments: int = 0, first: bytes = b"") -> None:
        self.comments = comments
        self.first = first or event({"task": task("WORKING")})
        self.methods: list[bytes] = []

    async def talk(self, visit: Visit) -> None:
        """Serve one connection."""
        _, _, body = await visit.request()
        self.methods.append(body.partition(b'"method":"')[2].partition(b'"')[0])
        if self.methods[-1] == b"GetTask":
            answer = result(task("COMPLETED", "a", "b"))
            await visit.send(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
                % (len(answer), answer)
            )
        elif len(self.methods) == 1:
            await visit.send(HEAD + self.first)
            for _ in range(self.comments):
                await asyncio.sleep(0.1)
                await visit.send(b": alive\n\n")
            if self.comments:
                await visit.send(event({"task": task("COMPLETED", "a", "b")}))
                return
        else:
            await visit.send(HEAD + event({"task": task("COMPLETED", "a", "b")}))
            return
        await visit.over()


async def follow(listener: Listener, **options: float) -> str:
    """What a stream comes to."""
    found = card(interface(f"http://127.0.0.1:{listener.port}"))
    async with (
        asyncio.timeout(20),
        Client.connect(found, **options) as client,  # type: ignore[arg-type]
        client.stream("x") as stream,
    ):
        _ = [told async for told in stream]
        return stream.result.text


async def test_a_stream_on_which_nothing_comes_is_taken_up_again() -> None:
    quiet = Quiet()
    async with listening(quiet.talk) as listener:
        assert await follow(listener, patience=0.5) == "ab"
    assert quiet.methods[:2] == [b"SendStreamingMessage", b"SubscribeToTask"]


async def test_a_sign_of_life_is_something() -> None:
    quiet = Quiet(comments=15)
    async with listening(quiet.talk) as listener:
        assert await follow(listener, patience=1.0) == "ab"
    assert quiet.methods == [b"SendStreamingMessage"]


@pytest.mark.parametrize("first", [b"", b": alive\n\n"])
async def test_a_stranger_that_takes_long_to_begin_is_not_asked_again(first: bytes) -> None:
    """The head, or a comment, has come, and no event that would name the task."""

    async def talk(visit: Visit) -> None:
        await visit.request()
        if first:
            await visit.send(HEAD + first)
        await visit.over()

    async with listening(talk) as listener:
        with pytest.raises(Silent):
            await follow(listener, patience=0.1)
        assert listener.visits == 1


async def test_a_stream_without_an_event_has_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    transport = Script(lambda _: Answer(b": nothing\n\n", headers=STREAM))
    async with Client.connect(card(), transport=transport) as client:
        with pytest.raises(Unreachable, match="ended before"):
            _ = [told async for told in client.stream("x")]
    assert len(transport.asked) == client._connection.attempts


async def test_a_message_to_one_with_receipts_is_sent_again(app: App) -> None:
    """Its first answer never comes."""
    agent = app.agents["parrot"]
    first = True

    async def proxy(visit: Visit) -> None:
        nonlocal first
        mute, first = first, False
        line, headers, body = await visit.request()
        async with Inner(app) as inner:
            response = await inner.send(line, headers, body)
            if not mute:
                await visit.send(HEAD)
                async for chunk in response.chunks():
                    await visit.send(chunk)
                return
        await visit.over()

    async with Client.connect(app=app) as client:
        told = client.card
    async with listening(proxy) as listener, asyncio.timeout(20):
        found = card(interface(f"http://127.0.0.1:{listener.port}/"), like=told)
        async with (
            Client.connect(found, patience=0.5) as client,
            client.stream("count 3") as stream,
        ):
            _ = [told async for told in stream]
        assert stream.result.text == "0,1,2,"
        assert listener.visits >= 2
    assert agent.runs == ["count 3"]  # type: ignore[attr-defined]


class Inner:
    """Hands requests that came over a socket to an application."""

    def __init__(self, app: App) -> None:
        self._transport = ASGITransport(app)

    async def __aenter__(self) -> Inner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def send(self, line: str, headers: dict[str, str], body: bytes) -> TransportResponse:
        """Pass it on."""
        method, path, _ = line.split(" ")
        return await self._transport.send(
            TransportRequest(method, f"http://x{path}", headers, body)
        )


async def test_a_silent_server_is_given_up_after_so_many_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)

    async def silent(visit: Visit) -> None:
        await visit.over()

    async with listening(silent) as listener, asyncio.timeout(20):
        found = card(interface(f"http://127.0.0.1:{listener.port}"))
        async with Client.connect(found, patience=0.05, attempts=3) as client:
            with pytest.raises(Unreachable):
                _ = [told async for told in client.task("t").subscribe()]
        assert listener.visits == 3


# ---- as the agent wishes -------------------------------------------------------------------


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are made, which take no time."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr("dragoman.client.retry_pauses.asyncio", types.SimpleNamespace(sleep=sleep))
    return found


def refusing(times: int, status: int, wish: str) -> Script:
    """Refuses so often, and then answers."""

    def answer(request: TransportRequest) -> TransportResponse:
        if len(transport.asked) <= times:
            headers = {"content-type": "text/html", "retry-after": wish}
            return Answer(b"<html>", status=status, headers=headers)
        if b"GetTask" in request.body:  # type: ignore[operator]
            return Answer(result(task()))
        return Answer(event({"task": task()}), headers=STREAM)

    transport = Script(answer)
    return transport


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after(pauses: list[float], status: int) -> None:
    transport = refusing(2, status, "7")
    async with Client.connect(card(), transport=transport) as client:
        assert (await client.task("t").get()).id == "t"
        assert pauses == [7.0, 7.0]
        transport.asked.clear()
        _ = [told async for told in client.stream("x")]
        assert pauses == [7.0] * 4


async def test_retry_after_of_the_card(pauses: list[float]) -> None:
    with pytest.raises(Unavailable):
        async with Client.connect("http://x", transport=refusing(9, 503, "7"), attempts=3):
            pass
    assert pauses == [7.0, 7.0]


async def test_retry_after_has_its_bounds(pauses: list[float]) -> None:
    async with Client.connect(card(), transport=refusing(1, 503, "100000")) as client:
        await client.task("t").get()
    assert pauses == [60.0]


async def test_retry_after_may_be_a_time(pauses: list[float]) -> None:
    wish = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    async with Client.connect(card(), transport=refusing(1, 503, wish)) as client:
        await client.task("t").get()
    assert 20 < pauses[0] <= 30


@pytest.mark.parametrize(
    "wish", ["Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21", "", "-1", "1e3", "soon", "²", "0"]
)
async def test_a_wish_that_makes_no_sense_is_not_heeded(pauses: list[float], wish: str) -> None:
    async with Client.connect(card(), transport=refusing(1, 503, wish)) as client:
        await client.task("t").get()
    assert len(pauses) == 1
    assert 0 < pauses[0] <= 0.1


async def test_pauses_grow_and_end(pauses: list[float]) -> None:
    async with Client.connect(card(), transport=refusing(99, 503, ""), attempts=12) as client:
        with pytest.raises(Unavailable):
            await client.task("t").get()
    assert len(pauses) == 11
    for number, pause in enumerate(pauses):
        longest = min(0.1 * 2**number, 5.0)
        assert longest / 2 <= pause <= longest


async def test_what_would_be_no_smaller_is_not_tried_again(pauses: list[float]) -> None:
    for status, kind in ((413, BodyTooLarge), (408, LimitExceeded)):
        transport = refusing(9, status, "1")
        async with Client.connect(card(), transport=transport) as client:
            with pytest.raises(kind):
                await client.send("x")
        assert len(transport.asked) == 1
    assert pauses == []
