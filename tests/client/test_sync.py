"""The client for code that does not await."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dragoman import Agent, App, Message, Part, TaskState, Turn
from dragoman import client as awaited
from dragoman.client import Unreachable, sync
from dragoman.client.transport import ASGITransport
from dragoman.model.errors import InvalidParams, TaskNotFound
from dragoman.model.lineage import lineage
from dragoman.model.types import TaskArtifactUpdateEvent
from tests.client.test_client import parrot
from tests.client.transports import BINDINGS, Dead, card, free_port
from tests.harness.server import serving

RENAMED = {"aclose": "close"}
PAIRS = [
    (awaited.Client, sync.Client),
    (awaited.TaskHandle, sync.SyncTaskHandle),
    (awaited.Stream, sync.Stream),
]


# ---- one face, the same features -----------------------------------------------------------


def methods(kind: type) -> set[str]:
    """The public methods of a class."""
    found = inspect.getmembers(kind, inspect.isroutine)
    return {name for name, _ in found if not name.startswith("_")}


@pytest.mark.parametrize(("there", "here"), PAIRS)
def test_every_method_has_its_counterpart(there: type, here: type) -> None:
    names = {RENAMED.get(name, name) for name in methods(there)}
    assert names == methods(here)


@pytest.mark.parametrize(("there", "here"), PAIRS)
def test_every_method_takes_the_same(there: type, here: type) -> None:
    for name in methods(there):
        theirs = inspect.signature(getattr(there, name)).parameters.values()
        ours = inspect.signature(getattr(here, RENAMED.get(name, name))).parameters.values()
        shape: Callable[[inspect.Parameter], Any] = lambda p: (p.name, p.kind, p.default)  # noqa: E731
        assert list(map(shape, ours)) == list(map(shape, theirs)), name


def test_nothing_is_left_to_be_awaited() -> None:
    for _, here in PAIRS:
        for name in methods(here):
            method = getattr(here, name)
            assert method.__doc__, name
            assert not inspect.iscoroutinefunction(method)
            assert not inspect.isasyncgenfunction(method)


def test_what_a_stream_shows() -> None:
    def properties(kind: type) -> set[str]:
        return {
            name
            for name, _ in inspect.getmembers(kind, lambda i: isinstance(i, property))
            if name[0] != "_"
        }

    assert properties(sync.Stream) == properties(awaited.Stream)


# ---- at work -------------------------------------------------------------------------------


class Server:
    """Serves an application on a loop of its own, as it is when the client is elsewhere."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self.app = app
        self.port = port
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with serving(self.app, port=self.port) as self.url:
            self._ready.set()
            await self._end.wait()

    @property
    def agent(self) -> Any:
        """The only agent."""
        (agent,) = self.app.agents.values()
        return agent

    def open(self) -> None:
        """Let those who wait go on."""
        self._loop.call_soon_threadsafe(self.agent.gate.set)

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def server() -> Iterator[Server]:
    """An agent, served."""
    with Server(
        App(parrot(), drain_timeout=0.0, push=True, egress_allow=["hooks.example"])
    ) as server:
        yield server


@pytest.mark.parametrize("binding", BINDINGS)
def test_all_of_it(server: Server, binding: str) -> None:
    with sync.Client.connect(server.url, bindings=[binding]) as client:
        assert client.card.name == "Parrot"
        assert client.interface.protocol_binding == binding
        assert client.send("hello").text == "hello"
        assert client.send("hi", skill="talk").text == "you said hi"
        assert client.send([Part(data=[1]), Part(raw=b"x")]).data == [1]
        with client.stream("count 3") as stream:
            told = [event for event in stream if isinstance(event, TaskArtifactUpdateEvent)]
        assert len(told) == 4
        assert stream.result.text == "0,1,2,"
        assert stream.task is not None
        asked = client.send("ask")
        assert asked.task is not None
        task = client.task(asked.task.id)
        assert task.id == asked.task.id
        assert task.get(history=0).history == ()
        assert task.wait().status.state is TaskState.INPUT_REQUIRED
        made = task.add_webhook("https://hooks.example/a")
        assert task.webhook(made.id) == made
        assert list(task.webhooks()) == [made]
        assert task.delete_webhook(made.id) is None
        assert task.reply("this").text == "this"
        waiting = client.send("gate", wait=False).task
        assert waiting is not None
        gate = client.task(waiting.id)
        with gate.subscribe(keep=False) as stream:
            assert next(stream).id == waiting.id  # type: ignore[union-attr]
        assert gate.cancel().status.state is TaskState.CANCELED
        assert len(list(client.list(page=2))) == 5
        first = next(iter(client.list(page=1)))
        assert first.id == waiting.id


def test_errors_are_raised_where_it_is_called(server: Server) -> None:
    with sync.Client.connect(server.url) as client:
        with pytest.raises(TaskNotFound):
            client.task("unknown").get()
        with pytest.raises(InvalidParams) as caught:
            list(client.list(page=1000))
        assert caught.value.violations[0][0] == "pageSize"
        with pytest.raises(TaskNotFound), client.task("unknown").subscribe() as stream:
            next(stream)
        with pytest.raises(FileNotFoundError):
            client.send(awaited.File("/does/not/exist"))
        with pytest.raises(ZeroDivisionError), client.stream("gate") as stream:
            for _ in stream:
                raise ZeroDivisionError
        assert client.send("still").text == "still"
    with (
        pytest.raises(Unreachable),
        sync.Client.connect(f"http://127.0.0.1:{free_port()}", attempts=1),
    ):
        pass
    with (
        pytest.raises(Unreachable),
        sync.Client.connect(card(), transport=Dead(), attempts=1) as client,
    ):
        client.send("x")
    with pytest.raises(ValueError, match="give a URL"):
        sync.Client.connect()


def test_time_runs_out(server: Server) -> None:
    with sync.Client.connect(server.url) as client:
        client._inner._connection.deadline = 0.2
        with pytest.raises(TimeoutError):
            client.send("gate")


def test_an_application_in_this_process() -> None:
    """It runs on the same loop as the client."""
    agent = parrot()
    app = App(agent, drain_timeout=0.0)
    with sync.Client.connect(app=app) as client:
        assert client.send("hello").text == "hello"
        with client.stream("count 2") as stream:
            assert len(list(stream)) == 6
    sync.shared().run(app.stop())


def test_whoever_would_wait_for_himself_is_told() -> None:
    agent = Agent("Narcissus", description="Talks to himself.")

    @agent.handler
    async def wait(turn: Turn) -> str:
        """Wait for the loop that this runs on."""
        with pytest.raises(RuntimeError, match="await the async method"):
            sync.Client.connect(card(), transport=Dead()).__enter__()
        return "told"

    app = App(agent, drain_timeout=0.0)
    with sync.Client.connect(app=app) as client:
        assert client.send("x").text == "told"
    sync.shared().run(app.stop())


# ---- threads -------------------------------------------------------------------------------


def test_two_threads_at_once(server: Server) -> None:
    def talk(client: sync.Client, name: str) -> list[str]:
        found = []
        for number in range(10):
            found.append(client.send(f"{name}{number}").text)
            with client.stream(f"count {number}") as stream:
                assert len(list(stream)) == number + 4
        return found

    def alone(name: str) -> list[str]:
        with sync.Client.connect(server.url) as client:
            return talk(client, name)

    with ThreadPoolExecutor(4) as pool, sync.Client.connect(server.url) as client:
        together = [pool.submit(talk, client, name) for name in "ab"]
        apart = [pool.submit(alone, name) for name in "cd"]
        for name, future in zip("abcd", [*together, *apart], strict=True):
            assert future.result(30) == [f"{name}{number}" for number in range(10)]


def test_there_is_one_loop_however_many_ask_for_it_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync, "_shared", None)
    barrier = threading.Barrier(8)

    class Slow:
        """Takes its time to be made."""

        def __init__(self) -> None:
            threading.Event().wait(0.05)

    monkeypatch.setattr(sync, "Loop", Slow)

    def ask() -> sync.Loop:
        barrier.wait()
        return sync.shared()

    with ThreadPoolExecutor(8) as pool:
        found = {id(future.result(20)) for future in [pool.submit(ask) for _ in range(8)]}
    assert len(found) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_process_that_was_forked_has_a_loop_of_its_own(server: Server) -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
from dragoman.client.sync import Client
with Client.connect(sys.argv[1]) as client:
    client.send("before")
child = os.fork()
if not child:
    with Client.connect(sys.argv[1]) as client:
        os._exit(7 if client.send("after").text == "after" else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, server.url], capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


async def test_in_a_handler_that_is_a_plain_function() -> None:
    helper, office = parrot(), Agent("Office", description="Delegates.")
    seen: list[Turn] = []
    inner = App(helper, drain_timeout=0.0)

    @helper.skill
    async def note(turn: Turn) -> str:
        """Note what came along."""
        seen.append(turn)
        return "noted"

    async with serving(inner) as url:

        @office.handler
        def delegate(turn: Turn) -> str:
            """Have it done."""
            with sync.Client.connect(url) as plain, sync.Client(turn.connect(url)) as own:
                own.send("x", skill="note")
                with own.stream(f"count {turn.text}") as stream:
                    list(stream)
                return plain.send(stream.result.text).text

        async with (
            App(office, drain_timeout=0.0) as app,
            awaited.Client.connect(app=app) as client,
        ):
            results = await asyncio.gather(*(client.send(f"{n}") for n in range(1, 6)))
    assert [result.text for result in results] == ["0,", "0,1,", "0,1,2,", "0,1,2,3,", "0,1,2,3,4,"]
    tasks = {result.task.id for result in results if result.task}
    assert {lineage(turn.metadata)[0].task for turn in seen} == tasks


async def test_a_plain_function_that_is_canceled_cancels_what_it_has_begun() -> None:
    """It looks after that itself; the end of its block does the rest."""
    helper, office = parrot(), Agent("Office", description="Delegates.")
    begun = threading.Event()

    @office.handler
    def delegate(turn: Turn) -> str:
        """Begin something, and wait."""
        with sync.Client(turn.connect(url)) as other:
            other.send("gate", wait=False)
            begun.set()
            until(lambda: turn.canceled)
        return "done"

    async with (
        serving(App(helper, drain_timeout=0.0)) as url,
        App(office, drain_timeout=0.0, poll=0.02) as app,
        awaited.Client.connect(app=app) as client,
        awaited.Client.connect(url) as there,
    ):
        task = (await client.send("x", wait=False)).task
        assert task is not None
        assert await asyncio.to_thread(begun.wait, 20)
        assert (await client.task(task.id).cancel()).status.state is TaskState.CANCELED
        (theirs,) = [found async for found in there.list()]
        assert (await there.task(theirs.id).wait()).status.state is TaskState.CANCELED


def test_a_webhook_that_is_served_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pushed comes in on another loop than the one that waits."""
    monkeypatch.setattr("dragoman.client.task_handle.LOOK", 3600.0)
    agent = Agent("Slow", description="Takes its time.", streaming=False)

    @agent.handler
    async def work(turn: Turn) -> str:
        """Take some time."""
        await asyncio.sleep(0.3)
        return "done"

    port = free_port()
    inbox = awaited.Inbox(f"http://127.0.0.1:{port}/")
    app = App(agent, drain_timeout=0.0, push=True, egress_allow=["127.0.0.1"])
    with (
        Server(inbox.app, port),
        Server(app) as server,
        sync.Client.connect(server.url, inbox=inbox, deadline=20.0) as client,
    ):
        task = client.send("x", wait=False).task
        assert task is not None
        assert client.task(task.id).wait(poll=3600).status.state is TaskState.COMPLETED


# ---- Ctrl-C --------------------------------------------------------------------------------

INTERRUPTED = """
import sys, warnings
warnings.simplefilter("error")
from dragoman.client.sync import Client
with Client.connect(sys.argv[1]) as client:
    try:
        if sys.argv[2] == "send":
            client.send("gate")
        else:
            with client.stream("gate") as stream:
                for event in stream:
                    pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(client.send("after").text, flush=True)
"""


@pytest.mark.parametrize("way", ["send", "stream"])
def test_ctrl_c(server: Server, way: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, server.url, way],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        runs: list[str] = server.agent.runs
        until(lambda: runs == ["gate"])
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert (out, err, child.returncode) == ("interrupted\nafter\n", "", 0)
    with sync.Client.connect(server.url) as client:
        states = [task.status.state for task in client.list()]
        assert states == [TaskState.COMPLETED, TaskState.WORKING]
        server.open()
        for task in client.list():
            assert client.task(task.id).wait().status.state is TaskState.COMPLETED


def test_ctrl_c_ends_a_program_that_does_not_expect_it(server: Server) -> None:
    code = (
        "import sys; from dragoman.client.sync import Client\n"
        "with Client.connect(sys.argv[1]) as client: client.send('gate')"
    )
    child = subprocess.Popen([sys.executable, "-c", code, server.url], stderr=subprocess.PIPE)
    try:
        runs: list[str] = server.agent.runs
        until(lambda: runs == ["gate"])
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert err.rstrip().endswith(b"KeyboardInterrupt")
    assert b"never" not in err
    assert child.returncode != 0


def until(ready: Callable[[], bool]) -> None:
    """Wait for it."""
    for _ in range(3000):
        if ready():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to that")


def test_the_span_of_the_caller_is_carried() -> None:
    """What is set where it is called is set where it is done."""
    trace = pytest.importorskip("opentelemetry.trace")
    headers: list[dict[str, str]] = []

    class Noting(ASGITransport):
        async def send(self, request: Any) -> Any:
            headers.append(dict(request.headers))
            return await super().send(request)

    span = trace.SpanContext(1, 2, False, trace.TraceFlags(1))
    app = App(parrot(), drain_timeout=0.0)
    with (
        sync.Client.connect(app=app, transport=Noting(app)) as client,
        trace.use_span(trace.NonRecordingSpan(span)),
    ):
        assert client.send("x").text == "x"
    sync.shared().run(app.stop())
    assert headers[-1]["traceparent"].startswith(f"00-{1:032x}-{2:016x}")


def test_what_is_said_may_be_a_message(server: Server) -> None:
    message = functools.partial(Message, message_id="m", parts=(Part(text="x"),))
    with sync.Client.connect(server.url) as client:
        assert client.send(message(role="ROLE_USER")).text == "x"  # type: ignore[arg-type]
