"""A turn that hands part of its work to another agent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from dragoman import Agent, App, Message, Part, Role, TaskState, Turn
from dragoman.client import (
    Client,
    DeadlineExceeded,
    Delegation,
    TransportRequest,
    TransportResponse,
)
from dragoman.client.transport import ASGITransport
from dragoman.model import clock
from dragoman.model.lineage import LINEAGE, lineage
from tests.client.transports import BINDINGS
from tests.harness.server import serving
from tests.harness.workers import OVER, WorkerHarness

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Handler = Callable[[Turn, str], Awaitable[Any]]


class Helper:
    """An agent to delegate to, and what came to it. At `gate` it waits, at `ask` it asks."""

    def __init__(self, name: str = "Helper", **options: Any) -> None:
        self.agent = Agent(name, description="Helps.", **options)
        self.gate = asyncio.Event()
        self.turns: list[Turn] = []
        self.headers: list[dict[str, str]] = []
        self._came = asyncio.Condition()

        @self.agent.handler
        async def help(turn: Turn) -> AsyncIterator[Any]:
            """Help."""
            self.turns.append(turn)
            async with self._came:
                self._came.notify_all()
            if "gate" in turn.text:
                yield turn.working("waiting")
                await self.gate.wait()
            if "ask" in turn.text:
                yield turn.ask("What?")
                return
            yield turn.write(f"helped with {turn.text}")
            yield turn.artifact(list(turn.message.parts))

        self.app = App(self.agent, drain_timeout=0.0, poll=0.02)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Note the headers, and pass it on."""
        if scope["type"] == "http":
            self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        await self.app(scope, receive, send)

    async def came(self, turns: int) -> None:
        """Wait for so many turns."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.turns) >= turns)

    async def states(self) -> list[TaskState]:
        """How its tasks stand."""
        async with Client.connect(app=self.app) as client:
            return [task.status.state async for task in client.list()]


@asynccontextmanager
async def office(
    handler: Callable[[Turn], Any], helper: Helper, **settings: Any
) -> AsyncIterator[Client]:
    """An agent with this handler, and a client of it; the helper runs as well."""
    agent = Agent("Office", description="Delegates.")
    agent.handler(handler)
    async with (
        helper.app,
        App(agent, **{"drain_timeout": 0.0, "poll": 0.02, **settings}) as app,
        Client.connect(app=app) as client,
    ):
        yield client
        helper.gate.set()


def notice(client: Client, tasks: int, known: asyncio.Event) -> None:
    """Tell when a client that works for a turn knows of so many tasks that it has begun."""
    begin = client._sends.began

    def note(task: str) -> None:
        begin(task)
        if len(client._sends.open) == tasks:
            known.set()

    client._sends.began = note  # type: ignore[method-assign]


async def begun(client: Client, text: str) -> str:
    """Begin a task."""
    task = (await client.send(text, wait=False)).task
    assert task is not None
    return task.id


# ---- results -------------------------------------------------------------------------------


@pytest.mark.parametrize("binding", BINDINGS)
async def test_results_come_back_over_the_network(binding: str) -> None:
    helper = Helper()
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(serving(helper.app))
        agent = Agent("Office", description="Delegates.")

        @agent.handler
        async def delegate(turn: Turn) -> AsyncIterator[Any]:
            """Have it done."""
            async with turn.connect(there, bindings=[binding]) as other:
                result = await other.send(turn.text)
                yield turn.artifact(result.text.partition("\n")[0], name="sent")
                async with other.stream([Part(data={"a": 1}), Part(text="x")]) as stream:
                    async for event in stream:
                        yield turn.working(type(event).__name__)
                yield turn.artifact(stream.result.data, name="streamed")
                reply = await other.send("ask")
                assert reply.task is not None
                done = await other.task(reply.task.id).reply("this")
                yield turn.artifact(done.text.partition("\n")[0], name="replied")

        here = await stack.enter_async_context(serving(App(agent)))
        client = await stack.enter_async_context(Client.connect(here))
        result = await client.send("gardening")
        assert result.state is TaskState.COMPLETED
        texts = {found.name: found.parts[0] for found in result.artifacts}
        assert texts["sent"].text == "helped with gardening"
        assert texts["streamed"].data == {"a": 1}
        assert texts["replied"].text == "helped with this"


@pytest.mark.parametrize("streaming", [True, False])
async def test_results_come_back_in_process(streaming: bool) -> None:
    helper = Helper(streaming=streaming)

    async def delegate(turn: Turn) -> str:
        async with turn.connect(app=helper.app) as other:
            return (await other.send(turn.text)).text

    async with office(delegate, helper) as client:
        assert "helped with cooking" in (await client.send("cooking")).text


async def test_what_was_said_twice_is_done_twice() -> None:
    helper = Helper()

    async def delegate(turn: Turn) -> str:
        async with turn.connect(app=helper.app) as other:
            tasks = [(await other.send("dice")).task for _ in range(2)]
        async with turn.connect(app=helper.app) as other:
            tasks += [(await other.send("dice")).task]
            tasks += [
                found.task for found in await asyncio.gather(other.send("dice"), other.send("dice"))
            ]
        return str(len({task.id for task in tasks if task}))

    async with office(delegate, helper) as client:
        assert (await client.send("x")).text == "5"


# ---- cancelling ----------------------------------------------------------------------------


async def by_send(turn: Turn, other: Client) -> None:
    await other.send("gate")


async def by_stream(turn: Turn, other: Client) -> None:
    async with other.stream("gate") as stream:
        async for _ in stream:
            pass


async def by_wait(turn: Turn, other: Client) -> None:
    task = (await other.send("gate", wait=False)).task
    assert task is not None
    await other.task(task.id).wait()


async def by_both(turn: Turn, other: Client) -> None:
    await other.send("gate", wait=False)
    await other.send("gate")


async def by_catching(turn: Turn, other: Client) -> None:
    try:
        await other.send("gate")
    except asyncio.CancelledError:
        return  # and leaves the block as if nothing had happened


WAYS = [by_send, by_stream, by_wait, by_both, by_catching]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_turn_that_is_canceled_cancels_what_it_has_begun(
    way: Callable[[Turn, Client], Awaitable[None]], streaming: bool
) -> None:
    helper = Helper(streaming=streaming)
    known = asyncio.Event()

    async def delegate(turn: Turn) -> str:
        async with turn.connect(app=helper.app) as other:
            notice(other, turns, known)
            await way(turn, other)
        return "done"

    turns = 2 if way is by_both else 1
    async with office(delegate, helper) as client:
        task = client.task(await begun(client, "x"))
        await helper.came(turns)
        await known.wait()
        assert (await task.cancel()).status.state is TaskState.CANCELED
        assert await helper.states() == [TaskState.CANCELED] * turns


async def test_it_reaches_the_agents_behind() -> None:
    last, middle = Helper("Last"), Agent("Middle", description="Delegates, too.")

    @middle.handler
    async def further(turn: Turn) -> str:
        """Hand it on."""
        async with turn.connect(app=last.app) as other:
            if turn.text == "gate":
                notice(other, 1, known)
            return (await other.send(turn.text)).text

    app, known = App(middle, drain_timeout=0.0, poll=0.02), asyncio.Event()

    async def delegate(turn: Turn) -> str:
        async with turn.connect(app=app) as other:
            return (await other.send(turn.text)).text

    async with app, office(delegate, last) as client:
        assert "helped with x" in (await client.send("x")).text
        task = client.task(await begun(client, "gate"))
        await known.wait()
        await task.cancel()
        async with Client.connect(app=app) as there:
            states = {found.status.state async for found in there.list()}
        assert states == {TaskState.COMPLETED, TaskState.CANCELED}
        async with Client.connect(app=last.app) as there:  # it is told on the way out
            for found in [found async for found in there.list()]:
                await there.task(found.id).wait()
        assert sorted(state.name for state in await last.states()) == ["CANCELED", "COMPLETED"]


async def test_one_that_does_not_listen_does_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.client.client.LAST_WORD", 0.05)
    helper = Helper()

    class Stubborn(ASGITransport):
        """Answers everything but a cancel."""

        asked = 0

        async def send(self, request: TransportRequest) -> TransportResponse:
            if isinstance(request.body, bytes) and b"CancelTask" in request.body:
                self.asked += 1
                await asyncio.Event().wait()
            return await super().send(request)

    transport, known = Stubborn(helper.app), asyncio.Event()

    async def delegate(turn: Turn) -> None:
        async with turn.connect(app=helper.app, transport=transport) as other:
            notice(other, 1, known)
            await other.send("gate")

    async with office(delegate, helper) as client:
        task = client.task(await begun(client, "x"))
        await known.wait()
        assert (await task.cancel()).status.state is TaskState.CANCELED
        assert transport.asked == 1
        assert await helper.states() == [TaskState.WORKING]


async def test_whoever_is_cancelled_twice_has_said_it_all_the_same() -> None:
    helper = Helper()
    asked, go, known = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(ASGITransport):
        """Is a while on the way with a cancel."""

        closed = False

        async def send(self, request: TransportRequest) -> TransportResponse:
            if isinstance(request.body, bytes) and b"CancelTask" in request.body:
                asked.set()
                await go.wait()
            return await super().send(request)

        async def close(self) -> None:
            self.closed = True
            await super().close()

    transport = Slow(helper.app)
    wanted = True
    behalf = Delegation(
        (),
        key="k",
        until=float("inf"),
        deadline="",
        trace="",
        canceled=lambda: not wanted,
    )

    async def work() -> None:
        async with Client.connect(app=helper.app, transport=transport, delegation=behalf) as other:
            notice(other, 1, known)
            await other.send("gate")

    async with helper.app:
        working = asyncio.create_task(work())
        await known.wait()
        async with Client.connect(app=helper.app) as client:
            (task,) = [task async for task in client.list()]
            wanted = False
            working.cancel()
            await asked.wait()
            working.cancel()
            await asyncio.wait([working])
            assert working.cancelled()
            assert not transport.closed
            go.set()
            assert (await client.task(task.id).wait()).status.state is TaskState.CANCELED
            while not transport.closed:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("ending", ["error", "end", "timeout", "cancelled by itself"])
async def test_an_end_of_ones_own_leaves_the_others_alone(ending: str) -> None:
    helper = Helper()

    async def delegate(turn: Turn) -> str:
        async with turn.connect(app=helper.app) as other:
            await other.send("gate", wait=False)
            if ending == "error":
                raise ValueError("oops")
            if ending == "timeout":
                async with asyncio.timeout(0.01):
                    await other.send("gate")
            if ending == "cancelled by itself":
                raise asyncio.CancelledError
        return "done"

    async with office(delegate, helper) as client:
        result = await client.send("x")
        failed = ending != "end"
        assert result.state is (TaskState.FAILED if failed else TaskState.COMPLETED)
        assert set(await helper.states()) == {TaskState.WORKING}


async def test_what_was_begun_elsewhere_is_left_alone() -> None:
    helper = Helper()
    following = asyncio.Event()

    async def delegate(turn: Turn) -> None:
        async with (
            turn.connect(app=helper.app) as other,
            other.task(turn.text).subscribe() as stream,
        ):
            async for _ in stream:
                following.set()

    async with office(delegate, helper) as client:
        async with Client.connect(app=helper.app) as direct:
            other = await begun(direct, "gate")
        task = client.task(await begun(client, other))
        await following.wait()
        await task.cancel()
        assert await helper.states() == [TaskState.WORKING]


async def test_what_has_ended_or_asks_is_not_canceled() -> None:
    helper = Helper()
    asked = asyncio.Event()

    async def delegate(turn: Turn) -> None:
        async with turn.connect(app=helper.app) as other:
            await other.send("x")
            await other.send("ask")
            asked.set()
            await asyncio.Event().wait()

    async with office(delegate, helper) as client:
        task = client.task(await begun(client, "x"))
        await asked.wait()
        await task.cancel()
        assert set(await helper.states()) == {TaskState.COMPLETED, TaskState.INPUT_REQUIRED}


# ---- time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [by_send, by_wait])
async def test_a_turn_cannot_wait_longer_than_it_may_last(
    way: Callable[[Turn, Client], Awaitable[None]],
) -> None:
    helper = Helper()
    raised: list[BaseException] = []

    async def delegate(turn: Turn) -> None:
        async with turn.connect(app=helper.app) as other:
            try:
                await way(turn, other)
            except BaseException as error:
                raised.append(error)
                raise

    # it is looked after so seldom that only the client can notice
    async with office(delegate, helper, turn_timeout=0.8, poll=20.0) as client:
        result = await client.send("x")
        assert result.state is TaskState.FAILED
        assert [type(error) for error in raised] == [DeadlineExceeded]
        assert await helper.states() == [TaskState.CANCELED]


async def test_a_turn_that_has_lasted_too_long_cancels_what_it_has_begun() -> None:
    helper = Helper()

    async def delegate(turn: Turn) -> None:
        async with turn.connect(app=helper.app) as other:
            await other.send("gate", wait=False)
            await asyncio.Event().wait()

    async with office(delegate, helper, turn_timeout=0.8) as client:
        assert (await client.send("x")).state is TaskState.FAILED
        assert await helper.states() == [TaskState.CANCELED]


async def test_a_call_before_the_end_of_the_turn() -> None:
    """Also one that was to go on for longer by its own deadline."""
    helper = Helper()
    left: list[float] = []

    async def delegate(turn: Turn) -> None:
        for options in ({}, {"deadline": 5.0}, {"deadline": 500.0}):
            async with turn.connect(app=helper.app, **options) as other:  # type: ignore[arg-type]
                assert other._connection.until is not None
                left.append(other._connection.until - asyncio.get_running_loop().time())

    async with office(delegate, helper, turn_timeout=60.0) as client:
        assert (await client.send("x")).state is TaskState.COMPLETED
    assert 30 < left[0] <= 60
    assert left[1] <= 5
    assert 30 < left[2] <= 60


# ---- what goes along -----------------------------------------------------------------------


async def test_lineage() -> None:
    last, middle = Helper("Last"), Agent("Middle", description="Delegates, too.")
    seen: list[Turn] = []

    @middle.handler
    async def further(turn: Turn) -> str:
        """Hand it on."""
        seen.append(turn)
        async with turn.connect(app=last.app) as other:
            return (await other.send(turn.text, metadata={"mine": 1})).text

    app = App(middle, drain_timeout=0.0)

    async def delegate(turn: Turn) -> str:
        seen.append(turn)
        async with turn.connect(app=app) as other:
            return (await other.send(turn.text)).text

    async with app, office(delegate, last, turn_timeout=100.0) as client:
        await client.send("x")
    assert LINEAGE == "urn:dragoman:lineage:v1"
    (first, second), third = seen, last.turns[0]
    assert LINEAGE not in first.metadata
    path = [("Office", first.task.id), ("Middle", second.task.id)]
    assert [(a.agent, a.task) for a in lineage(second.metadata)] == path[:1]
    assert [(a.agent, a.task) for a in lineage(third.metadata)] == path
    assert len({ancestor.origin for ancestor in lineage(third.metadata)}) == 2
    assert third.metadata["mine"] == 1
    assert [ancestor.agent for ancestor in lineage(third.metadata)] == ["Office", "Middle"]
    assert clock.now() < second.metadata[LINEAGE]["deadline"] < clock.stamp(2**34)


@pytest.mark.parametrize(
    "told", [None, 5, "x", [], {"path": 5}, {"path": [5]}, {"path": [{"agent": "a"}]}]
)
def test_a_lineage_that_makes_no_sense_is_none(told: Any) -> None:
    assert lineage({LINEAGE: told}) == ()


@pytest.fixture(params=["with", "without"])
def telemetry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry is there, or it is not."""
    if request.param == "with":
        pytest.importorskip("opentelemetry.trace")
    else:
        monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)


class Traced(ASGITransport):
    """Begins a trace with each request."""

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Add what a caller would."""
        headers = {**request.headers, "traceparent": TRACE}
        return await super().send(
            TransportRequest(request.method, request.url, headers, request.body)
        )


@pytest.mark.usefixtures("telemetry")
async def test_the_trace_goes_on() -> None:
    helper = Helper()
    agent = Agent("Office", description="Delegates.")

    @agent.handler
    async def delegate(turn: Turn) -> str:
        """Have it done."""
        async with turn.connect(app=helper) as other:
            return (await other.send(turn.text)).text

    async with helper.app, App(agent, drain_timeout=0.0) as app:
        async with Client.connect(app=app, transport=Traced(app)) as client:
            await client.send("x")
        traces = [headers.get("traceparent") for headers in helper.headers]
        assert traces[1:] == [TRACE]  # the first is for the card
        helper.headers.clear()
        async with Client.connect(app=app) as client:
            await client.send("x")
        assert all("traceparent" not in headers for headers in helper.headers)


async def test_a_span_that_is_open_comes_first() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    helper = Helper()
    agent = Agent("Office", description="Delegates.")
    span = trace.SpanContext(
        trace_id=0x1234,
        span_id=0x5678,
        is_remote=False,
        trace_flags=trace.TraceFlags(1),
        trace_state=trace.TraceState([("a", "b")]),
    )

    @agent.handler
    async def delegate(turn: Turn) -> str:
        """Have it done, as part of a trace."""
        with trace.use_span(trace.NonRecordingSpan(span)):
            async with turn.connect(app=helper) as other:
                return (await other.send(turn.text)).text

    async with (
        helper.app,
        App(agent, drain_timeout=0.0) as app,
        Client.connect(app=app, transport=Traced(app)) as client,
    ):
        await client.send("x")
    assert helper.headers[-1]["traceparent"] == f"00-{0x1234:032x}-{0x5678:016x}-01"
    assert helper.headers[-1]["tracestate"] == "a=b"


# ---- a turn that is run again --------------------------------------------------------------


def as_text(turn: Turn) -> Any:
    return turn.text


def as_message(turn: Turn) -> Any:
    """With an id that is the same each time."""
    return Message(message_id="fixed", role=Role.USER, parts=(Part(text=turn.text),))


def as_data(turn: Turn) -> Any:
    return {"text": turn.text, "list": [1, 2]}


@pytest.mark.parametrize("what", [as_text, as_message, as_data])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("finished", [True, False])
async def test_a_turn_that_is_run_again_finds_what_it_has_begun(
    what: Callable[[Turn], Any], streaming: bool, finished: bool
) -> None:
    """The first worker dies: before the helper has finished, or after."""
    helper = Helper(streaming=streaming)
    found: list[str] = []
    done = asyncio.Event()

    async def delegate(turn: Turn) -> str:
        async with turn.connect(app=helper.app) as other:
            first = (await other.send("before")).task
            async with other.stream(what(turn), skill="", references=["r"]) as stream:
                async for _ in stream:
                    if turn.attempt == 1 and not finished:
                        break
            assert first is not None
            assert stream.task is not None
            found.append(f"{first.id} {stream.task.id}")
            if turn.attempt == 1:
                done.set()
                await asyncio.Event().wait()
            return stream.result.text

    harness = WorkerHarness(delegate, retries=1)
    async with helper.app:
        task = (await harness.send("x")).head.id
        worker = harness.worker()
        first = worker.begin(await harness.claim(worker, OVER))
        await done.wait()
        await harness.reap()
        await harness.run()
        assert (await harness.task(task)).status.state is TaskState.COMPLETED
        worker.abandon(first)
        await asyncio.wait([first.task])
        assert await helper.states() == [TaskState.COMPLETED] * 2
    assert len(found) == 2
    assert len(set(found)) == 1
    assert len(helper.turns) == 2


async def test_one_that_says_something_else_begins_anew() -> None:
    """Also in the same words to another skill, or under an id that is another each time."""
    helper = Helper()

    @helper.agent.skill
    async def other(turn: Turn) -> str:
        """Do something else."""
        helper.turns.append(turn)
        return "else"

    async def delegate(turn: Turn) -> None:
        async with turn.connect(app=helper.app) as client:
            await client.send("dig", skill="other" if turn.attempt == 2 else "")
            part = Part(text="dig")
            await client.send(
                Message(message_id=clock.uuid7(), role=Role.USER, parts=(part,)),
                references=[f"r{turn.attempt}"],
            )
            await client.send(f"dig {turn.attempt}")
        if turn.attempt == 1:
            done.set()
            await asyncio.Event().wait()

    done = asyncio.Event()
    harness = WorkerHarness(delegate, retries=1)
    async with helper.app:
        task = (await harness.send("x")).head.id
        worker = harness.worker()
        first = worker.begin(await harness.claim(worker, OVER))
        await done.wait()
        await harness.reap()
        await harness.run()
        assert (await harness.task(task)).status.state is TaskState.COMPLETED
        worker.abandon(first)
        await asyncio.wait([first.task])
    assert len(helper.turns) == 6
