"""Waiting for a task, and following it: by a stream, by a webhook, by looking again and again."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client, File, Inbox, Request, Response, Unreachable
from dragoman.client.engine import Inside
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.operations import OPERATIONS
from dragoman.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from tests.client.networks import (
    BINDINGS,
    STREAM,
    Answer,
    Dead,
    Script,
    Ways,
    card,
    document,
    event,
    free_port,
    interface,
    result,
    task,
)
from tests.client.test_client import Cutting
from tests.serving import serving

NAMES = {operation.name: operation.call for operation in OPERATIONS}


def clerk(*, streaming: bool = True) -> Agent:
    """An agent that writes word by word; at `gate` it waits, at `ask` it asks."""
    agent = Agent("Clerk", description="Writes.", streaming=streaming)
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]
    agent.runs = []  # type: ignore[attr-defined]

    @agent.handler
    async def write(turn: Turn) -> AsyncIterator[Any]:
        """Write it."""
        agent.runs.append(turn.text)  # type: ignore[attr-defined]
        for word in turn.text.split():
            if word == "gate":
                yield turn.working("waiting")
                await agent.gate.wait()  # type: ignore[attr-defined]
            elif word == "ask":
                yield turn.ask("What?")
                return
            else:
                yield turn.write(word)

    return agent


class Counted(Inside):
    """Notes the operations that are asked for."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.calls: list[str] = []
        self.called = asyncio.Condition()

    async def send(self, request: Request) -> Response:
        """Note it, and pass it on."""
        if request.method == "POST":
            self.calls.append(NAMES[document(request)["method"]])
        response = await super().send(request)
        async with self.called:
            self.called.notify_all()
        return response

    async def until(self, call: str, times: int = 1) -> None:
        """Wait until it has been answered so often."""
        async with self.called:
            await self.called.wait_for(lambda: self.calls.count(call) >= times)


@asynccontextmanager
async def working(agent: Agent, **settings: Any) -> AsyncIterator[tuple[Client, Counted]]:
    """An agent at work, and a client of it."""
    async with App(agent, **{"drain": 0.0, "poll": 0.02, **settings}) as app:
        engine = Counted(app)
        async with Client.connect(app=app, engine=engine) as client:
            yield client, engine
        agent.gate.set()  # type: ignore[attr-defined]


async def begun(client: Client, text: str) -> str:
    """Begin a task."""
    found = (await client.send(text, wait=False)).task
    assert found is not None
    return found.id


# ---- wait ----------------------------------------------------------------------------------


async def test_by_its_stream() -> None:
    agent = clerk()
    async with working(agent) as (client, engine):
        id = await begun(client, "gate")
        waiting = asyncio.create_task(client.task(id).wait())
        await engine.until("subscribe")
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.COMPLETED
    assert engine.calls == ["send", "get", "subscribe", "get"]


async def test_until_it_asks() -> None:
    agent = clerk()
    async with working(agent) as (client, engine):
        id = await begun(client, "gate ask")
        waiting = asyncio.create_task(client.task(id).wait())
        await engine.until("subscribe")
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.INPUT_REQUIRED


@pytest.mark.parametrize("streaming", [True, False])
async def test_one_that_has_ended_is_not_waited_for(streaming: bool) -> None:
    async with working(clerk(streaming=streaming)) as (client, engine):
        done = (await client.send("a b")).task
        assert done is not None
        assert await client.task(done.id).wait() == done
        assert engine.calls == ["send", "get"]
        with pytest.raises(TaskNotFound):
            await client.task("unknown").wait()


async def test_one_that_ends_before_it_can_be_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscription is refused then, and there is no reason to sleep."""
    states = ["WORKING", "COMPLETED"]

    def answer(request: Request) -> Response:
        if b"GetTask" in request.body:  # type: ignore[operator]
            return Answer(result(task(states.pop(0))))
        error = {"code": -32004, "message": "ended"}
        return Answer(
            b'{"jsonrpc":"2.0","id":1,"error":%b}' % str(error).replace("'", '"').encode()
        )

    async def sleep(seconds: float) -> None:
        raise AssertionError("slept")

    monkeypatch.setattr("dragoman.client.remote.asyncio", types.SimpleNamespace(sleep=sleep))
    async with Client.connect(card(), engine=Script(answer)) as client:
        assert (await client.task("t").wait()).status.state is TaskState.COMPLETED


async def test_by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    agent = clerk(streaming=False)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            agent.gate.set()  # type: ignore[attr-defined]
            await client.send("next")  # whose turn comes after the other's end
        await asyncio.sleep(0)

    async with working(agent) as (client, engine):
        id = await begun(client, "gate")
        monkeypatch.setattr("dragoman.client.remote.asyncio", types.SimpleNamespace(sleep=sleep))
        assert (await client.task(id).wait(poll=0.5)).status.state is TaskState.COMPLETED
        assert "subscribe" not in engine.calls
        assert pauses[:3] == [0.5, 0.75, 1.125]
        assert sorted(pauses) == pauses
        assert max(pauses) == 10.0
        pauses.clear()
        agent.gate.clear()  # type: ignore[attr-defined]
        id = await begun(client, "gate")
        await client.task(id).wait(poll=60)
        assert set(pauses) == {60}


# ---- webhooks ------------------------------------------------------------------------------


@asynccontextmanager
async def pushing(agent: Agent, **settings: Any) -> AsyncIterator[tuple[Client, Counted]]:
    """The same with an inbox where the agent can push."""
    port = free_port()
    inbox = Inbox(f"http://127.0.0.1:{port}/hook")
    allowed = {"push": True, "egress_allow": ["127.0.0.1"], **settings}
    async with serving(inbox.app, port=port), working(agent, **allowed) as (client, engine):
        client.inbox = inbox
        yield client, engine


async def test_by_a_webhook() -> None:
    agent = clerk(streaming=False)
    async with pushing(agent) as (client, engine):
        id = await begun(client, "gate a b")
        waiting = asyncio.create_task(client.task(id).wait(poll=3600))
        await engine.until("create_webhook")
        await engine.until("get", 2)
        agent.gate.set()  # type: ignore[attr-defined]
        done = await waiting
        assert done.status.state is TaskState.COMPLETED
        assert "".join(part.text or "" for part in done.artifacts[0].parts) == "ab"
        assert engine.calls[-1] == "delete_webhook"
        assert "subscribe" not in engine.calls
        assert [config async for config in client.task(id).webhooks()] == []


async def test_by_a_webhook_until_it_asks() -> None:
    agent = clerk(streaming=False)
    async with pushing(agent) as (client, engine):
        id = await begun(client, "gate ask")
        waiting = asyncio.create_task(client.task(id).wait(poll=3600))
        await engine.until("get", 2)
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.INPUT_REQUIRED
        assert [config async for config in client.task(id).webhooks()] == []


async def test_several_wait_for_one_task() -> None:
    agent = clerk(streaming=False)
    async with pushing(agent) as (client, engine):
        id = await begun(client, "gate a b")
        waiting = [asyncio.create_task(client.task(id).wait()) for _ in range(3)]
        await engine.until("get", 6)
        agent.gate.set()  # type: ignore[attr-defined]
        states = {found.status.state for found in await asyncio.gather(*waiting)}
        assert states == {TaskState.COMPLETED}
        assert [config async for config in client.task(id).webhooks()] == []


async def test_each_who_waits_is_told() -> None:
    """What one has seen, another may not have looked at."""
    async with pushing(clerk(streaming=False)) as (client, _):
        inbox = client.inbox
        assert inbox is not None
        with inbox.expecting("t") as one, inbox.expecting("t") as other:
            await inbox._take(types.SimpleNamespace(task_id="t"))  # type: ignore[arg-type]
            await one.wait()
            one.clear()
            await other.wait()
        await inbox._take(types.SimpleNamespace(task_id="t"))  # type: ignore[arg-type]
        assert not inbox._rings


async def test_the_webhook_is_removed_when_nobody_waits_any_more() -> None:
    async with pushing(clerk(streaming=False)) as (client, engine):
        id = await begun(client, "gate")
        waiting = asyncio.create_task(client.task(id).wait())
        await engine.until("get", 2)
        assert len([config async for config in client.task(id).webhooks()]) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [config async for config in client.task(id).webhooks()] == []
        assert (await client.task(id).get()).status.state is TaskState.WORKING


async def test_a_push_that_is_lost_costs_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.client.remote.LOOK", 0.05)
    agent = clerk(streaming=False)
    async with working(agent, push=True, egress_allow=["127.0.0.1"]) as (client, engine):
        client.inbox = Inbox(f"http://127.0.0.1:{free_port()}/nobody")
        id = await begun(client, "gate")
        waiting = asyncio.create_task(client.task(id).wait())
        await engine.until("get", 3)
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.COMPLETED


async def test_a_webhook_that_is_refused_is_told() -> None:
    async with working(clerk(streaming=False), push=True) as (client, _):
        client.inbox = Inbox("http://127.0.0.1:9/not-allowed")
        with pytest.raises(InvalidParams, match="url"):
            await client.task(await begun(client, "gate")).wait()


@pytest.mark.parametrize("inbox", [True, False])
async def test_without_webhooks_or_an_inbox_it_looks(inbox: bool) -> None:
    agent = clerk(streaming=False)
    async with working(agent, push=not inbox) as (client, engine):
        client.inbox = Inbox("http://127.0.0.1:9/") if inbox else None
        id = await begun(client, "gate")
        waiting = asyncio.create_task(client.task(id).wait(poll=0.01))
        await engine.until("get", 3)
        agent.gate.set()  # type: ignore[attr-defined]
        assert (await waiting).status.state is TaskState.COMPLETED
        assert "create_webhook" not in engine.calls


async def test_a_webhook_is_made_once_however_often_it_is_asked_for() -> None:
    class Losing(Counted):
        """Loses the first answer of each kind."""

        async def send(self, request: Request) -> Response:
            response = await super().send(request)
            if self.calls and self.calls.count(self.calls[-1]) == 1:
                raise Unreachable("lost")
            return response

    agent = clerk()
    async with App(agent, drain=0.0, push=True, egress_allow=["127.0.0.1"]) as app:
        async with Client.connect(app=app) as client:
            id = await begun(client, "ask")
            await client.task(id).wait()
        engine = Losing(app)
        async with Client.connect(app=app, engine=engine, bindings=["JSONRPC"]) as client:
            made = await client.task(id).add_webhook("http://127.0.0.1:9/")
            assert [config async for config in client.task(id).webhooks()] == [made]
            assert engine.calls.count("create_webhook") == 2
            named = await client.task(id).add_webhook("http://127.0.0.1:9/", id="mine")
            assert named.id == "mine"


# ---- agents that do not stream -------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks again without a pause."""
    monkeypatch.setattr("dragoman.client.stream.POLL", 0.005)
    monkeypatch.setattr("dragoman.client.stream.LONGEST_POLL", 0.01)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("attempts", [1, 5])
async def test_a_stream_is_a_send_and_looks(binding: str, attempts: int) -> None:
    agent = clerk(streaming=False)
    async with App(agent, drain=0.0) as app:
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
    agent = clerk(streaming=False)
    async with App(agent, drain=0.0) as app:
        async with Client.connect(app=app) as client:
            known = client.card
        ways = Ways(one=Inside(app), two=Dead())
        found = card(interface("http://one"), interface("http://two"), like=known)
        async with Client.connect(found, engine=ways, attempts=1) as client:
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
        App(agent, drain=0.0) as app,
        Client.connect(app=app) as client,
        client.stream("x") as stream,
    ):
        assert len([event async for event in stream]) == 1
        assert stream.result.text == "you said x"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("attempts", [1, 5])
async def test_a_subscription_is_looks(attempts: int) -> None:
    agent = clerk(streaming=False)
    async with working(agent) as (client, engine):
        client.attempts = attempts
        id = await begun(client, "gate a b")
        async with client.task(id).subscribe() as stream:
            told = []
            async for happened in stream:
                told.append(happened)
                agent.gate.set()  # type: ignore[attr-defined]
        assert isinstance(told[0], Task)
        assert stream.result.text == "ab"
        assert stream.result.state is TaskState.COMPLETED
        assert set(engine.calls) == {"send", "get"}


@pytest.mark.usefixtures("soon")
async def test_a_follow_up_of_one_that_does_not_stream() -> None:
    """The answer to a message is not the question that it answers."""
    agent = clerk(streaming=False)
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
async def test_a_follow_up_that_is_taken_up_late() -> None:
    """For a while the task stands as it did before the message."""
    question = {"messageId": "q", "role": "ROLE_AGENT", "parts": [{"text": "What?"}]}
    old = {"timestamp": "2026-01-01T00:00:00.000Z"}
    new = {"timestamp": "2026-01-01T00:00:01.000Z"}
    looks = [
        task("INPUT_REQUIRED", **old, message=question),  # before it is sent
        task("INPUT_REQUIRED", **old),
        task("INPUT_REQUIRED", **old, message=question),
        task("INPUT_REQUIRED", **new, message={**question, "messageId": "r"}),
    ]

    def answer(request: Request) -> Response:
        if b"GetTask" in request.body:  # type: ignore[operator]
            return Answer(result(looks.pop(0)))
        return Answer(result({"task": task("INPUT_REQUIRED", **old)}))

    async with (
        Client.connect(card(streaming=False), engine=Script(answer)) as client,
        client.stream("x", task="t") as stream,
    ):
        told = [happened async for happened in stream]
    assert looks == []
    assert len(told) >= 2
    assert stream.result.task is not None
    assert stream.result.task.status.timestamp == new["timestamp"]


@pytest.mark.usefixtures("soon")
async def test_a_follow_up_whose_answer_cannot_be_told_from_before_ends() -> None:
    """Without times there is no telling; to wait for ever would be worse."""

    def answer(request: Request) -> Response:
        bare = task("INPUT_REQUIRED")
        return Answer(result(bare if b"GetTask" in request.body else {"task": bare}))  # type: ignore[operator]

    async with (
        Client.connect(card(streaming=False), engine=Script(answer)) as client,
        client.stream("x", task="t") as stream,
    ):
        assert len([happened async for happened in stream]) == 1


@pytest.mark.usefixtures("soon")
async def test_what_fails_is_tried_as_often_as_it_should_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.client.retry.FIRST", 0.0)
    for request in ("subscribe", "stream"):
        engine = Dead()
        async with Client.connect(card(streaming=False), engine=engine, attempts=3) as client:
            stream = client.stream("x") if request == "stream" else client.task("t").subscribe()
            with pytest.raises(Unreachable):
                _ = [happened async for happened in stream]
        assert engine.asked == 3


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
    monkeypatch.setattr("dragoman.client.retry.FIRST", 0.0)
    looks = [task("WORKING", "a"), task("WORKING", "a", "b"), task("COMPLETED", "a", "b", "c")]
    begun = event({"task": task("WORKING", "a")})
    streams = [
        Answer(b"id: t:1\n" + begun if places else begun, headers=STREAM),
        Answer(REFUSALS[why]),
    ]

    def answer(request: Request) -> Response:
        if document(request)["method"] == "GetTask":
            return Answer(result(looks.pop(0)))
        return streams.pop(0)

    engine = Script(answer)
    async with Client.connect(card(), engine=engine) as client:
        client.resumes = places
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


async def test_a_subscription_that_is_refused_at_once_is_told() -> None:
    """Whoever subscribes to a task that has ended wants to know."""
    async with working(clerk()) as (client, _):
        done = (await client.send("a")).task
        assert done is not None
        with pytest.raises(Exception, match="ended"):
            _ = [happened async for happened in client.task(done.id).subscribe()]


# ---- where a stream ends, though it was cut ------------------------------------------------


def asker() -> Agent:
    """An agent that asks: at `input` and `auth` it ends with that, at `wait` it goes on."""
    agent = Agent("Asker", description="Asks.", input_modes=["*/*"])
    agent.runs = []  # type: ignore[attr-defined]
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]

    @agent.handler
    async def ask(turn: Turn) -> AsyncIterator[Any]:
        """Ask."""
        agent.runs.append(turn.text)  # type: ignore[attr-defined]
        yield turn.working("well")
        await asyncio.sleep(0)
        yield turn.write("so far")
        await asyncio.sleep(0)
        if "input" in turn.text:
            yield turn.ask("What?")
            return
        yield turn.require_auth("Log in")
        if "wait" in turn.text:
            await agent.gate.wait()  # type: ignore[attr-defined]
            yield turn.artifact("done", name="end")

    return agent


PLACES = range(0, 1500, 150)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("file", [True, False])
@pytest.mark.parametrize("text", ["input", "auth"])
async def test_a_question_ends_the_stream(
    binding: str,
    resumes: bool,
    file: bool,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does where nothing was cut; a subscription goes on, but the answer is there."""
    monkeypatch.setattr("dragoman.client.retry.FIRST", 0.0)
    (tmp_path / "a.txt").write_text("a")
    agent = asker()
    async with App(agent, drain=0.0) as app:
        for place in PLACES:
            engine = Cutting(app, place, place // 2, place // 3)
            said = [text, File(tmp_path / "a.txt")] if file else text
            async with Client.connect(app=app, engine=engine, bindings=[binding]) as client:
                client.resumes = resumes
                async with client.stream(said) as stream:
                    _ = [happened async for happened in stream]
                assert stream.result.state is TaskState[f"{text.upper()}_REQUIRED"]
                assert stream.result.text == ("What?" if text == "input" else "Log in")
                assert stream.task is not None
                async with client.stream(text, task=stream.task.id) as stream:
                    _ = [happened async for happened in stream]
                assert stream.result.state is TaskState[f"{text.upper()}_REQUIRED"]
    assert agent.runs == [text] * 2 * len(PLACES)  # type: ignore[attr-defined]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_agent_that_goes_on_is_followed(
    binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client must log in somewhere, and then the same turn goes on."""
    monkeypatch.setattr("dragoman.client.retry.FIRST", 0.0)
    agent = asker()
    async with App(agent, drain=0.0) as app:
        for place in PLACES:
            agent.gate.clear()  # type: ignore[attr-defined]
            engine = Cutting(app, place, place // 2, place // 3)
            async with (
                Client.connect(app=app, engine=engine, bindings=[binding]) as client,
                client.stream("wait") as stream,
            ):
                async for _ in stream:
                    if stream.result.state is TaskState.AUTH_REQUIRED:
                        agent.gate.set()  # type: ignore[attr-defined]
            assert stream.result.state is TaskState.COMPLETED
            assert stream.result.text == "so far\ndone"


# ---- follow-ups that are streamed ----------------------------------------------------------


class Losing(Inside):
    """Loses the first answer of a stream, once all of it has been given."""

    lost = 0

    async def send(self, request: Request) -> Response:
        """Pass it on, and read the first one in vain."""
        response = await super().send(request)
        if response.headers.get("content-type") == "text/event-stream" and not self.lost:
            self.lost += 1
            _ = [chunk async for chunk in response.chunks()]
            raise Unreachable("lost")
        return response


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_follow_up_that_is_repeated_finds_the_next_question(binding: str) -> None:
    """The agent has asked again before the repeated message came, and nothing follows."""
    agent = clerk()
    async with App(agent, drain=0.0) as app:
        async with Client.connect(app=app) as client:
            asked = (await client.send("ask")).task
            assert asked is not None
        engine = Losing(app)
        async with (
            Client.connect(app=app, engine=engine, bindings=[binding]) as client,
            client.stream("ask", task=asked.id) as stream,
        ):
            told = [happened async for happened in stream]
        assert engine.lost == 1
        assert len(told) == 1
        assert stream.result.state is TaskState.INPUT_REQUIRED
        assert stream.result.text == "What?"
    assert agent.runs == ["ask", "ask"]  # type: ignore[attr-defined]


async def test_a_card_that_is_altered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that streams, and a card that does not say so: looked at all the same."""
    agent = clerk()
    async with App(agent, drain=0.0) as app:
        async with Client.connect(app=app) as client:
            quiet = replace(client.card.capabilities, streaming=None)
            known = replace(client.card, capabilities=quiet)
        async with Client.connect(known, engine=Counted(app)) as client:
            async with client.stream("a b") as stream:
                _ = [happened async for happened in stream]
            assert stream.result.text == "ab"
