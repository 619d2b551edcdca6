"""Our client against servers that others wrote: all there is to ask for.

`make test` runs it with the reference SDK, `make interop` with all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from dragoman import TaskState
from dragoman.client import Client, Result, Stream
from dragoman.client.transport import HTTPTransport, TransportRequest, TransportResponse
from dragoman.model.errors import A2AError, TaskNotFound
from dragoman.model.types import (
    AuthenticationInfo,
    Message,
    Part,
    Role,
    Task,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)
from dragoman.webhooks.receiver import Receiver
from tests.client.test_client import Cut
from tests.harness.webhooks import receiving
from tests.interop.peers import PATIENCE, WHOLE, Peer, serving
from tests.interop.peers.table import OFFERS

HERE = Path(__file__).parent


@pytest.fixture(params=WHOLE, ids=str)
def peer(request: pytest.FixtureRequest) -> Peer:
    """Each of those that the whole matrix is for."""
    found: Peer = request.param
    return found


def id_of(result: Result) -> str:
    """The task that there is."""
    assert result.task is not None
    return result.task.id


async def completed(peer: Peer, client: Client) -> str:
    """A task that has ended."""
    return id_of(await client.send("hello"))


async def run(stream: Stream) -> Stream:
    """A stream at its end."""
    async with stream:
        async for _ in stream:
            pass
    return stream


def test_every_row_of_the_table_is_asked_for() -> None:
    tests = "".join((HERE / f"test_{name}.py").read_text() for name in ("client", "matrix"))
    assert [row for row in OFFERS if f'"{row}"' not in tests] == []


# ---- messages --------------------------------------------------------------------------------


async def test_parts_of_every_kind(peer: Peer, client: Client) -> None:
    parts = [
        Part(text="hello é 😀", metadata={"tone": "soft"}),
        Part(data={"list": [1, None, 1.5, True], "deep": {"text": ""}}),
        Part(raw=b"\x00\xff\xfe", filename="bytes.png", media_type="image/png"),
        Part(url="https://files.example/a?b=c", media_type="text/csv"),
    ]
    result = await client.send(parts, metadata={"of": "the request"}, skill="desk")
    if not peer.offers("keeps what is with a part"):
        parts = [replace(part, metadata=None, filename="") for part in parts]
    if not peer.offers("keeps null inside of data"):
        parts[1] = Part(data={"list": [1, 0, 1.5, True], "deep": {"text": ""}})
    assert list(result.parts) == parts


async def test_null_is_data(peer: Peer, client: Client) -> None:
    parts = [Part(text="hello"), Part(data=None)]
    with peer.meets("takes null for data"):
        found = list((await client.send(parts)).parts)
        assert (found == parts) == peer.offers("takes null for data")


async def test_many_at_once(peer: Peer, client: Client) -> None:
    async def one(number: int) -> str:
        return (await client.send(f"hello {number}")).text

    found = await asyncio.gather(*(one(number) for number in range(20)))
    assert found == [f"hello {number}" for number in range(20)]


async def test_an_answer_without_a_task(peer: Peer, client: Client) -> None:
    result = await client.send("say hi")
    streamed = (await run(client.stream("say hi"))).result
    if peer.offers("answers without a task"):
        assert (result.task, result.text) == (None, "hi")
        assert (streamed.task, streamed.text) == (None, "hi")
    else:
        assert (result.message, result.text) == (None, "say hi")
        assert (streamed.message, streamed.text) == (None, "say hi")


async def test_failure(peer: Peer, client: Client) -> None:
    result = await client.send("fail")
    streamed = (await run(client.stream("fail"))).result
    assert result.state is streamed.state is TaskState.FAILED
    assert (result.text == "as told") == peer.offers("says why it failed")
    assert result.text == streamed.text
    assert result.task is not None
    assert "as told" in (result.text, result.task.history[-1].text)


async def test_crash(peer: Peer, client: Client) -> None:
    with peer.meets("fails when it crashes"):
        assert (await client.send("crash")).state is TaskState.FAILED
    with peer.meets("... in a stream"):
        async with peer.limit("... in a stream"):
            assert (await run(client.stream("crash"))).result.state is TaskState.FAILED


async def test_turns_in_streams(peer: Peer, client: Client) -> None:
    asked = await run(client.stream("ask"))
    assert asked.task is not None
    assert asked.result.state is TaskState.INPUT_REQUIRED
    assert asked.result.text == "Which?"  # wherever it is
    answered = await run(client.stream("this one", task=asked.task.id))
    assert answered.task is not None
    assert (answered.result.state, answered.result.text) == (TaskState.COMPLETED, "this one")
    assert (answered.task.id == asked.task.id) == peer.offers("goes on with a task")


# ---- tasks -----------------------------------------------------------------------------------


async def test_sending_without_waiting(peer: Peer, client: Client) -> None:
    begun = await client.send("count 60", wait=False)
    assert (begun.state is not TaskState.COMPLETED) == peer.offers("answers at once")


async def test_waiting_for_a_task(peer: Peer, client: Client) -> None:
    async with peer.begun(client, "count 20") as remote:
        done = Result(await remote.wait())
    assert done.state is TaskState.COMPLETED
    assert done.text == "".join(f"{number}," for number in range(20))


async def test_joining_late(peer: Peer, client: Client) -> None:
    async with peer.begun(client, "count 60") as remote:
        joined = (await run(remote.subscribe())).result
    whole = Result(await remote.get())
    assert joined.state is whole.state is TaskState.COMPLETED
    assert whole.text == "".join(f"{number}," for number in range(60))
    assert joined.text == whole.text


async def test_history(peer: Peer, client: Client) -> None:
    remote = client.task(await completed(peer, client))
    assert [message.text for message in (await remote.get()).history] == ["hello"]
    assert (not (await remote.get(history=0)).history) == peer.offers("leaves the history out")


async def test_list(peer: Peer, client: Client) -> None:
    first = await client.send("one")
    assert first.task is not None
    context = first.task.context_id
    ids = [first.task.id]
    for text in ("two", "ask"):
        ids.append(id_of(await client.send(text, context=context)))

    async def listed(**options: object) -> list[Task]:
        return [task async for task in client.list(context=context, **options)]  # type: ignore[arg-type]

    with peer.meets("lists"):
        assert {task.id for task in await listed()} == set(ids)
        assert not any(task.artifacts for task in await listed())
        assert sorted(task.id for task in await listed(page=1)) == sorted(ids)
        (asking,) = await listed(state=TaskState.INPUT_REQUIRED)
        assert asking.id == ids[2]
        texts = {Result(task).text for task in await listed(artifacts=True)}
        assert texts == {"one", "two", "Which?"}
        assert await listed(since="2999-01-01T00:00:00Z") == []


async def test_subscribe(peer: Peer, client: Client) -> None:
    async with (
        peer.begun(client, "wait") as remote,
        remote.subscribe() as one,
        remote.subscribe() as two,
    ):
        seen = [await anext(aiter(stream)) for stream in (one, two)]
        assert [event.id for event in seen if isinstance(event, Task)] == [remote.id] * 2
        await remote.cancel()
        for stream in (one, two):
            *_, last = [event async for event in stream]
            assert isinstance(last, TaskStatusUpdateEvent)
            assert stream.result.state is TaskState.CANCELED


async def test_a_subscription_goes_on_beyond_a_question(peer: Peer, client: Client) -> None:
    remote = client.task(id_of(await client.send("ask")))
    async with remote.subscribe() as stream:
        assert isinstance(await anext(aiter(stream)), Task)
        if peer.offers("goes on with a task"):
            await remote.reply("this one")
        with peer.meets("streams beyond a question"):
            *_, last = [event async for event in stream]
            assert isinstance(last, TaskStatusUpdateEvent)
            assert stream.result.text == "this one"


async def test_cancel_what_asks(peer: Peer, client: Client) -> None:
    remote = client.task(id_of(await client.send("ask")))
    await remote.cancel()
    async with asyncio.timeout(PATIENCE):
        while (await remote.get()).status.state is not TaskState.CANCELED:
            assert not peer.offers("cancels before it answers")


async def test_extended_card(peer: Peer, client: Client) -> None:
    with peer.meets("has an extended card"):
        card = await client.extended_card()
        assert (card.description == "Known to few.") == peer.offers("has an extended card")


# ---- webhooks --------------------------------------------------------------------------------


async def test_webhooks(peer: Peer, client: Client) -> None:
    remote = client.task(id_of(await client.send("ask")))

    async def listed() -> set[str]:
        return {config.id async for config in remote.webhooks()}

    with peer.meets("has webhooks"):
        made = await remote.add_webhook("https://hooks.example/a", token="secret")
        assert (made.task_id, made.url) == (remote.id, "https://hooks.example/a")
        other = await remote.add_webhook("https://hooks.example/b", id="other")
        assert other.id == "other"
        found = await remote.webhook("other")
        assert (found == other) == peer.offers("finds a webhook by its id")
        with pytest.raises(TaskNotFound):
            await client.task("unknown").add_webhook("https://hooks.example/c")
    with peer.meets("lists webhooks"):
        assert await listed() == {made.id, "other"}
    with peer.meets("deletes webhooks"):
        await remote.delete_webhook("other")
        with peer.meets("lists webhooks"):
            assert await listed() == {made.id}
        with peer.meets("a webhook that is gone"):
            assert (await remote.webhook("other")).id == made.id


async def test_what_is_delivered(peer: Peer, client: Client) -> None:
    async with receiving() as inbox:
        webhook = TaskPushNotificationConfig(url=inbox.url, token="secret")
        result = await client.send("hello", webhook=webhook)
        if not peer.offers("has webhooks"):
            assert not inbox.posts
            return
        posts = await inbox.end(id_of(result))
    receiver = Receiver(token="secret", tasks=[id_of(result)])
    told = [receiver.verify(post.headers, post.body).event for post in posts]
    assert isinstance(told[0], Task)
    last = told[posts.index(inbox.ends[0])]
    assert isinstance(last, TaskStatusUpdateEvent if peer.offers("pushes events") else Task)
    assert last.status.state is TaskState.COMPLETED
    assert any("hello" in post.body.decode() for post in posts)


async def test_what_is_delivered_later(peer: Peer, client: Client) -> None:
    async with receiving() as inbox:
        async with peer.begun(client, "wait") as remote:
            try:
                with peer.meets("has webhooks"):
                    bearer = AuthenticationInfo(scheme="Bearer", credentials="key")
                    await remote.add_webhook(inbox.url, authentication=bearer)
            finally:
                await remote.cancel()
        if not peer.offers("pushes when canceled"):
            await asyncio.sleep(0.3)
            assert not inbox.posts
            return
        await inbox.end(remote.id)
        post = inbox.ends[0]
    assert (post.headers.get("authorization") == "Bearer key") == peer.offers("says who pushes")
    event = Receiver(insecure=True).verify(post.headers, post.body).event
    assert isinstance(event, TaskStatusUpdateEvent if peer.offers("pushes events") else Task)
    assert event.status.state is TaskState.CANCELED


# ---- mistakes --------------------------------------------------------------------------------


async def test_nothing_can_be_done_with_nothing(client: Client) -> None:
    nothing = client.task("unknown")
    with pytest.raises(TaskNotFound):
        await nothing.cancel()
    with pytest.raises(TaskNotFound):
        await nothing.wait()
    with pytest.raises(TaskNotFound):
        await run(nothing.subscribe())


async def test_a_reply_to_nothing(peer: Peer, client: Client) -> None:
    with peer.meets("a reply to nothing"):
        assert id_of(await client.task("unknown").reply("hello")) != "unknown"
    with peer.meets("a stream to nothing"):
        assert (await run(client.stream("hello", task="unknown"))).result.text == "hello"


async def test_a_reply_to_what_has_ended(peer: Peer, client: Client) -> None:
    ended = await completed(peer, client)
    with peer.meets("a reply to what has ended"):
        assert id_of(await client.task(ended).reply("again")) != ended


async def test_a_reply_in_another_context(peer: Peer, client: Client) -> None:
    asked = id_of(await client.send("ask"))
    with peer.meets("another context"):
        result = await client.send("this one", task=asked, context="another")
        assert (id_of(result) == asked) == peer.offers("goes on with a task")


async def test_a_subscription_to_what_has_ended(peer: Peer, client: Client) -> None:
    ended = await completed(peer, client)
    with peer.meets("a look at what has ended"):
        stream = client.task(ended).subscribe()
        async with stream:
            assert [type(event) async for event in stream] == [Task]
        assert stream.result.text == "hello"
    assert (await client.task(ended).wait()).status.state is TaskState.COMPLETED


async def test_canceling_what_has_ended(peer: Peer, client: Client) -> None:
    remote = client.task(await completed(peer, client))
    with peer.meets("canceling what has ended"):
        await remote.cancel()
    kept = (await remote.get()).status.state is TaskState.COMPLETED
    assert kept == peer.offers("ends a task only once")


async def test_canceling_twice(peer: Peer, client: Client) -> None:
    async with peer.begun(client, "wait") as remote:
        await remote.cancel()
        await remote.wait()
    with peer.meets("canceling twice"):
        assert (await remote.cancel()).status.state is TaskState.CANCELED


async def test_a_message_without_parts(peer: Peer, client: Client) -> None:
    with peer.meets("a message without parts") as refused:
        await client.send(Message(message_id="", role=Role.USER, parts=()))
    fields = [field for field, _ in refused.value.violations]
    assert ("message.parts" in fields) == peer.offers("says which field is wrong")


async def test_a_page_that_is_too_large(peer: Peer, client: Client) -> None:
    with peer.meets("a page too large"):
        _ = [task async for task in client.list(page=1000)]


async def test_a_client_goes_on_after_errors(peer: Peer, client: Client) -> None:
    with pytest.raises(A2AError):
        await client.send(Message(message_id="", role=Role.USER, parts=()))
    assert await completed(peer, client)


# ---- the network -----------------------------------------------------------------------------


class Once(HTTPTransport):
    """Breaks the first stream off after so many bytes."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place
        self.cut: Cut | None = None

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Cut what streams first."""
        response = await super().send(request)
        if request.patience is None or self.cut is not None:
            return response
        # gRPC has messages, and these are smaller
        grpc = request.url.startswith("grpc:")
        self.cut = Cut(response, self._place // 3 if grpc else self._place, whole=grpc)
        return self.cut


@pytest.mark.parametrize("place", [700, 1100, 1900, 2600])
async def test_a_stream_that_is_cut_comes_to_the_right_end(
    peer: Peer, desks: Callable[[str], str], place: int
) -> None:
    transport = Once(place)
    connected = Client.connect(desks(peer.name), bindings=[peer.binding], transport=transport)
    with peer.meets("works on unheard"):
        async with connected as client, peer.limit("works on unheard"):
            stream = await run(client.stream("count 20"))
        assert stream.result.state is TaskState.COMPLETED
        assert stream.result.text == "".join(f"{number}," for number in range(20))
    assert transport.cut is not None
    assert transport.cut.struck


async def test_a_card_can_announce_another_address(peer: Peer, desks: Callable[[str], str]) -> None:
    desks(peer.name)  # skips where it cannot be had
    with serving(peer.name, public="http://desk.example:1234") as url:
        async with Client.connect(url, bindings=[peer.binding]) as client:
            found = urlsplit(client.interface.url)
            assert found.hostname == "desk.example"
            # gRPC has a port of its own, and its address in a card no scheme
            expected = ("grpc", found.port) if peer.binding == "GRPC" else ("http", 1234)
            assert (found.scheme, found.port) == expected
