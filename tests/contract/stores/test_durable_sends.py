"""Sends of durable handlers: each is a step, and none is repeated whose task is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import App, Message, Part, RemoteTask, Role, Task, TaskState, Turn
from dragoman.agent import durable
from dragoman.client import Client, DeadlineExceeded, File, Result, Unreachable
from dragoman.model import clock
from dragoman.model.errors import InvalidParams, TaskNotFound
from dragoman.stores.store import Store
from tests.harness.lives import Lives
from tests.harness.remote_agents import PIECES, REMOTES, RemoteAgent, WithoutReceipts, WithReceipts
from tests.harness.server import serving

ASKS = TaskState.INPUT_REQUIRED
TEXT = "".join(PIECES)

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeps of tests are short, and a handler that died runs again soon."""
    monkeypatch.setattr(durable, "SHORT", 0.01)
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)


@pytest.fixture(params=REMOTES)
async def remote(request: pytest.FixtureRequest) -> AsyncIterator[RemoteAgent]:
    """Another agent, on a port."""
    async with REMOTES[request.param]().serving() as agent:
        yield agent


@pytest.fixture
async def ours() -> AsyncIterator[WithReceipts]:
    """Another agent, one of ours."""
    remote = WithReceipts()
    async with remote.serving():
        yield remote


def texts(task: Task) -> list[str]:
    return [artifact.text for artifact in task.artifacts]


def said(task: Task) -> list[str]:
    """What the agent has said, in order."""
    found = [message for message in task.history if message.role.name == "AGENT"]
    assert len({message.message_id for message in found}) == len(found)
    return [message.text for message in found]


async def ended(lives: Lives, task: str) -> Task:
    """Run it to its end."""
    while not (await lives.head(task)).state.terminal:
        await lives.life()
    found = await lives.task(task)
    assert found.status.state is TaskState.COMPLETED, found.status
    return found


# ---- a send that has finished --------------------------------------------------------------


async def by_send(turn: Turn, client: Client, text: str) -> Result:
    return await client.send(text)


async def by_begin(turn: Turn, client: Client, text: str) -> Result:
    return await client.send(text, wait=False)


async def by_relay(turn: Turn, client: Client, text: str) -> Result:
    return await turn.relay(client.stream(text), by="Remote")


WAYS = [by_send, by_begin, by_relay]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", ["work", "ask", "say it"])
async def test_the_result_comes_from_the_log(
    store: Store, remote: RemoteAgent, way: Any, text: str
) -> None:
    seen: list[Result] = []

    async def handler(turn: Turn) -> str:
        async with turn.connect(remote.url) as client:
            seen.append(await way(turn, client, text))
        await turn.ask_for("?")
        return client.card.name

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    remote.requests.clear()
    await lives.send("x", task)
    found = await ended(lives, task)
    assert seen[0] == seen[1]
    assert seen[0].text or way is by_begin
    assert remote.runs == {text: 1}
    assert remote.requests == []
    assert texts(found)[-1] == "Remote"


async def test_a_replay_needs_no_agent(store: Store) -> None:
    remote = WithReceipts()

    async def handler(turn: Turn) -> AsyncIterator[Any]:
        async with turn.connect(url, attempts=1) as client:
            sent = await client.send("work")
            double = await client.call_skill("double", number=4, returns=int)
            stream = client.stream("pieces")
            await turn.relay(stream, by="Remote")
            await turn.ask_for("?")
            yield f"{sent.text} {double} {stream.text}"
            try:
                await client.send("more")
            except Unreachable:
                yield "nobody is there"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    remote.gate.set()
    async with remote.serving():
        url = remote.url
        await lives.life()
    await lives.send("x", task)
    found = await ended(lives, task)
    assert texts(found) == [TEXT, f"did work 8 {TEXT}nobody is there"]
    assert remote.runs == {"work": 1, "double 4": 1, "pieces": 1}


async def test_a_card_of_an_earlier_run_is_not_used_for_requests(store: Store) -> None:
    """The agent has another binding since then."""

    async def handler(turn: Turn) -> str:
        async with turn.connect(url) as client:
            first = await client.send("work")
            await turn.ask_for("?")
            return f"{first.text}, {(await client.send('more')).text}"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    port = 0
    for binding in ("JSONRPC", "HTTP+JSON"):
        app = App(WithReceipts().agent, bindings=[binding], drain_timeout=0.0)
        async with serving(app, port=port) as url:
            await lives.life()
            port = int(url.rpartition(":")[2])
        if binding == "JSONRPC":
            await lives.send("x", task)
    assert texts(await lives.task(task)) == ["did work, did more"]


async def test_a_question_stays_a_question(store: Store, remote: RemoteAgent) -> None:
    """The other agent's task goes on meanwhile; the handler takes the branch that it took."""

    async def handler(turn: Turn) -> AsyncIterator[Any]:
        async with turn.connect(remote.url) as client:
            result = await client.send("ask")
            while result.state is ASKS:
                assert result.task is not None
                answer = await turn.ask_for(result.text)
                result = await client.task(result.task.id).reply(answer.text)
            yield result.text
        yield turn.artifact(str(turn.delegated))

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    for answer in ("ask again", "ask a third time", "work"):
        await lives.life()
        assert (await lives.head(task)).state is ASKS
        await lives.send(answer, task)
    text, delegated = texts(await ended(lives, task))
    assert text == "did work"
    assert delegated.count("RemoteTask(") == 1
    assert (await lives.private(task)).count("sent") == 4
    assert remote.runs == dict.fromkeys(("ask", "ask again", "ask a third time", "work"), 1)


@pytest.mark.parametrize("approved", [True, False])
async def test_approvals(store: Store, ours: WithReceipts, approved: bool) -> None:
    async def handler(turn: Turn) -> str:
        async with turn.connect(ours.url) as client:
            result = await client.send("login")
            assert result.task is not None
            assert result.grant is not None
            handle = client.task(result.task.id)
            await turn.ask_for("?")
            answer = handle.approve if approved else handle.decline
            text = (await answer(result.grant)).text
            await turn.ask_for("?")
            return text

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    for _ in range(2):
        await lives.life()
        await lives.send("x", task)
    word = "Approved" if approved else "Declined"
    assert texts(await ended(lives, task)) == [f"did {word}"]
    assert ours.runs == {"login": 1, word: 1}


@pytest.mark.parametrize("text", ["large", "say large"])
async def test_what_is_too_large_to_be_kept(store: Store, ours: WithReceipts, text: str) -> None:
    async def handler(turn: Turn) -> str:
        async with turn.connect(ours.url) as client:
            sent = await client.send(text)
            relayed = await turn.relay(client.stream(text), by="Remote")
            await turn.ask_for("?")
        return f"{len(sent.text)} {len(relayed.text)}"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    private = [entry.event for entry in await store.private(lives.scope, task)]
    assert max(len(event.value) for event in private) < 10_000  # type: ignore[union-attr]
    await lives.send("x", task)
    found = await ended(lives, task)
    assert texts(found)[-1] == "300000 300000"
    assert len(found.artifacts) == 2, "what was relayed is not relayed again"
    assert ours.runs == {text: 2}


@pytest.mark.parametrize("caught", [InvalidParams, TaskNotFound, Unreachable, DeadlineExceeded])
async def test_an_error_is_the_same_again(
    store: Store, ours: WithReceipts, caught: type[Exception]
) -> None:
    errors: list[Exception] = []

    async def fail(turn: Turn, client: Client) -> None:
        if caught is InvalidParams:
            await client.send("x", skill="double")
        elif caught is TaskNotFound:
            await client.task("none").reply("x")
        elif caught is DeadlineExceeded:
            await client.send("gate")
        else:
            async with turn.connect("http://127.0.0.1:9", attempts=1):
                pass

    async def handler(turn: Turn) -> str:
        async with turn.connect(ours.url, deadline=0.2) as client:
            try:
                await fail(turn, client)
            except caught as error:
                errors.append(error)
        await turn.ask_for("?")
        return "done"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    ours.requests.clear()
    await lives.send("x", task)
    assert texts(await ended(lives, task)) == ["done"]
    first, second = errors
    assert type(second).__mro__[0] in type(first).__mro__
    assert str(second) == str(first)
    assert getattr(second, "violations", None) == getattr(first, "violations", None)
    assert getattr(second, "task", None) == getattr(first, "task", None)
    assert ours.requests == []


async def test_sends_in_any_order(store: Store, remote: RemoteAgent) -> None:
    """Side by side, after steps that take another time in each run."""
    results: list[dict[str, str]] = []
    pauses = {"a": 0.03, "bb": 0.01, "ccc": 0.0}

    async def handler(turn: Turn) -> None:
        async def branch(client: Client, name: str) -> tuple[str, str]:
            await asyncio.sleep(pauses[name])
            same = await client.send("same")
            assert same.task is not None
            return name, (await client.send(name)).text

        async with turn.connect(remote.url) as client:
            results.append(dict(await asyncio.gather(*(branch(client, name) for name in pauses))))
        await turn.ask_for("?")

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    pauses = {"a": 0.0, "bb": 0.01, "ccc": 0.03}
    await lives.send("x", task)
    await ended(lives, task)
    assert results[0] == results[1] == {name: f"did {name}" for name in pauses}
    assert remote.runs == {"same": 3, "a": 1, "bb": 1, "ccc": 1}


def own_message(folder: Path) -> Any:
    """With another id each time."""
    return Message(message_id=clock.uuid7(), role=Role.USER, parts=(Part(text="work"),))


def a_file(folder: Path) -> Any:
    """With text, so that it says what to do."""
    (folder / "file.txt").write_text("content")
    return ["work", File(folder / "file.txt")]


@pytest.mark.parametrize("content", [own_message, a_file])
@pytest.mark.parametrize("known", [False, True])
async def test_what_is_sent_may_have_another_form_each_time(
    store: Store, ours: WithReceipts, tmp_path: Path, content: Any, known: bool
) -> None:
    async def handler(turn: Turn) -> str:
        target = card if known else ours.url
        async with turn.connect(target) as client:
            first = await client.send(content(tmp_path), key="a key" if known else "")
            second = await client.send(content(tmp_path))
        await turn.ask_for("?")
        return f"{first.text}, {second.text}"

    async with Client.connect(ours.url) as client:
        card = client.card
    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    ours.requests.clear()
    await lives.send("x", task)
    assert texts(await ended(lives, task)) == ["did work, did work"]
    assert (ours.runs, ours.requests) == ({"work": 2}, [])
    assert ("a key" in ours.keys) == known
    assert len(set(ours.keys)) == 2


async def test_another_message_does_not_fit_the_log(
    store: Store, ours: WithReceipts, caplog: pytest.LogCaptureFixture
) -> None:
    text = "before"

    async def handler(turn: Turn) -> None:
        async with turn.connect(ours.url) as client:
            await client.send(text)
        await turn.ask_for("?")

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    text = "after"
    await lives.send("x", task)
    await lives.life()
    await asyncio.gather(*lives.workers[-1]._returned)
    assert "the log has step 'dragoman.send" in caplog.text
    assert ours.runs == {"before": 1}
    assert not (await lives.head(task)).state.terminal


# ---- a send that has not finished ----------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("way", [by_send, by_relay])
async def test_a_send_whose_task_is_known_is_not_repeated(
    store: Store, remote: RemoteAgent, way: Any, inside: bool
) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        async def work() -> str:
            result: Result = await way(turn, client, "pieces")
            return result.text

        async with turn.connect(remote.url) as client:
            before = await client.send("before")
            text = await turn.step("work", work) if inside else await work()
            yield turn.artifact(f"{before.text}, {text}")
            yield turn.artifact(str(turn.delegated))

    lives = Lives(handler, store)
    task = (await lives.send()).head.id

    async def half() -> None:
        await remote.reached.wait()
        await lives.logged(task, "sent", 2)
        await asyncio.sleep(0.05)  # what was relayed so far is written

    for _ in range(3):
        await lives.killed(half())
    remote.gate.set()
    found = await ended(lives, task)
    assert remote.runs == {"before": 1, "pieces": 1}
    assert texts(found)[-2] == f"did before, {TEXT}"
    assert texts(found)[-1].count("RemoteTask(") == 2
    assert (await lives.private(task)).count("sent") == 2
    if way is by_relay:
        assert texts(found)[:-2] == [TEXT]
        began = ["Remote: began pieces", *(f"Remote: wrote {piece}" for piece in PIECES)]
        assert said(found) == began


async def test_a_task_that_was_only_begun_is_not_begun_again(
    store: Store, remote: RemoteAgent
) -> None:
    async def begin(turn: Turn) -> str:
        async with turn.connect(remote.url) as client:
            result = await client.send("gate", wait=False)
            assert result.task is not None
            if len(lives.workers) == 1:
                await asyncio.Event().wait()
            return result.task.id

    async def handler(turn: Turn) -> str:
        return await turn.step("begin", begin, turn)

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.killed(lives.logged(task, "sent"))
    found = await ended(lives, task)
    await remote.reached.wait()
    assert remote.runs == {"gate": 1}
    remote.gate.set()
    async with Client.connect(remote.url) as client:
        assert (await client.task(texts(found)[0]).wait()).status.state is TaskState.COMPLETED


async def test_progress_of_an_agent_that_keeps_no_history(
    store: Store, remote: RemoteAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.client.task_events.progress_since", lambda *_: [])

    async def handler(turn: Turn) -> None:
        async with turn.connect(remote.url) as client:
            await turn.relay(client.stream("pieces"), by="Remote")

    lives = Lives(handler, store)
    task = (await lives.send()).head.id

    async def half() -> None:
        await remote.reached.wait()
        await lives.logged(task, "sent")
        await asyncio.sleep(0.05)

    await lives.killed(half())
    living = asyncio.create_task(lives.life())
    await asyncio.sleep(0.3)  # it follows
    remote.gate.set()
    await living
    found = await ended(lives, task)
    assert said(found)[-2:] == [f"Remote: wrote {piece}" for piece in PIECES[-2:]]
    assert len(said(found)) == 1 + len(PIECES)


async def test_a_send_whose_task_is_not_known_is_repeated(
    store: Store, remote: RemoteAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one for each crash; an agent with receipts does not notice."""

    async def handler(turn: Turn) -> str:
        async with turn.connect(remote.url) as client:
            return (await client.send("gate")).text

    monkeypatch.setattr("dragoman.agent.durable_sends.DurableSends.begin", lambda *_: None)
    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.killed(remote.reached.wait())
    monkeypatch.undo()
    monkeypatch.setattr(durable, "SHORT", 0.01)
    remote.close_gate()
    await lives.killed(lives.logged(task, "sent"))
    remote.gate.set()
    assert texts(await ended(lives, task)) == ["did gate"]
    assert remote.runs == {"gate": 1 if type(remote) is WithReceipts else 2}


@pytest.mark.parametrize("answer", ["gate", "gate ask", "unread ask", "unread"])
async def test_a_reply_whose_task_is_known_is_not_repeated(
    store: Store, remote: RemoteAgent, answer: str
) -> None:
    """Nor is the question that it answers taken for the result."""
    if "unread" in answer and isinstance(remote, WithReceipts):
        answer = f"gate {answer}"  # ours never shows the old question

    async def handler(turn: Turn) -> str:
        async with turn.connect(remote.url) as client:
            result = await client.send("ask")
            assert result.task is not None
            result = await client.task(result.task.id).reply(answer)
            return f"{result.text} {turn.delegated}"

    lives = Lives(handler, store)
    task = (await lives.send()).head.id

    async def half() -> None:
        await remote.reached.wait()
        await lives.logged(task, "sent", 2)

    await lives.killed(half())
    living = asyncio.create_task(lives.life())
    await asyncio.sleep(0.3)  # it may see the old question
    assert not living.done()
    remote.gate.set()
    await living
    found = await ended(lives, task)
    expected = "Which?" if "ask" in answer else f"did {answer}"
    assert expected in texts(found)[0]
    assert texts(found)[0].count("RemoteTask(") == 1
    assert remote.runs == {"ask": 1, answer: 1}


async def test_it_attaches_to_a_task_that_has_ended(store: Store, remote: RemoteAgent) -> None:
    async def handler(turn: Turn) -> str:
        async with turn.connect(remote.url) as client:
            return (await turn.relay(client.stream("pieces"), by="Remote")).text

    lives = Lives(handler, store)
    task = (await lives.send()).head.id

    async def half() -> None:
        await remote.reached.wait()
        await lives.logged(task, "sent")

    await lives.killed(half())
    remote.gate.set()
    async with Client.connect(remote.url) as client, asyncio.timeout(30):
        (begun,) = [found.id async for found in client.list()]
        assert (await client.task(begun).wait()).status.state.terminal
    found = await ended(lives, task)
    assert texts(found) == [TEXT, TEXT]
    assert said(found)[-1] == f"Remote: wrote {PIECES[-1]}"
    assert len(said(found)) == 1 + len(PIECES)


@pytest.mark.parametrize("text", ["login gate", "ask gate"])
async def test_it_attaches_to_a_task_that_asks(
    store: Store, remote: RemoteAgent, text: str
) -> None:
    async def handler(turn: Turn) -> str:
        async with turn.connect(remote.url) as client:
            return str((await client.send(text)).state)

    lives = Lives(handler, store)
    task = (await lives.send()).head.id

    async def half() -> None:
        await remote.reached.wait()
        await lives.logged(task, "sent")

    await lives.killed(half())
    living = asyncio.create_task(lives.life())
    await asyncio.sleep(0.1)
    remote.gate.set()
    async with asyncio.timeout(30):
        await living
    expected = TaskState.AUTH_REQUIRED if "login" in text else ASKS
    assert texts(await ended(lives, task)) == [str(expected)]
    assert remote.runs == {text: 1}


async def test_what_a_drain_interrupts_goes_on(store: Store, remote: RemoteAgent) -> None:
    async def handler(turn: Turn) -> str:
        async with turn.connect(remote.url) as client:
            return (await client.send("gate")).text

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    worker = lives.worker()
    run = worker.begin(await lives.claim(worker))
    await remote.reached.wait()
    await lives.logged(task, "sent")
    run.stop("drain")
    await asyncio.wait([run.task])
    remote.gate.set()
    assert texts(await ended(lives, task)) == ["did gate"]
    assert remote.runs == {"gate": 1}
    assert await remote.states() == [TaskState.COMPLETED]


async def test_relays_side_by_side(store: Store, remote: RemoteAgent) -> None:
    """One has ended, and the other is in the middle, when the worker dies."""

    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield turn.write("before ")
        async with turn.connect(remote.url) as client:
            found = await asyncio.gather(
                turn.relay(client.stream("pieces"), by="slow"),
                turn.relay(client.stream("work"), by="quick"),
            )
        yield turn.write("after")
        yield turn.working("both have ended")
        await turn.ask_for("?")
        yield turn.artifact(", ".join(result.text for result in found))

    lives = Lives(handler, store)
    task = (await lives.send()).head.id

    async def half() -> None:
        await remote.reached.wait()
        await lives.logged(task, "step", 2)
        await asyncio.sleep(0.05)

    for _ in range(2):
        await lives.killed(half())
    remote.gate.set()
    await lives.life()
    await lives.send("x", task)
    found = await ended(lives, task)
    by_name = sorted(texts(found))
    assert by_name == sorted(["before after", TEXT, "did work", f"{TEXT}, did work"])
    words = [f"slow: wrote {piece}" for piece in PIECES]
    words += ["slow: began pieces", "quick: began work", "both have ended", "?"]
    assert sorted(said(found)) == sorted(words)
    assert remote.runs == {"pieces": 1, "work": 1}


async def test_a_step_that_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next attempt sends anew, and each attempt finds its own task when it runs again."""
    monkeypatch.setattr(durable, "FIRST_PAUSE", 0.01)

    async def work(client: Client, calls: list[int]) -> str:
        calls.append(1)
        result = await client.send("work" if len(calls) < 3 else "gate")
        if len(calls) < 3:
            raise OSError("not yet")
        return result.text

    async def handler(turn: Turn) -> str:
        async with turn.connect(remote.url) as client:
            return await turn.step("work", work, client, [], retries=3)

    lives = Lives(handler, store)
    task = (await lives.send()).head.id

    async def half() -> None:
        await remote.reached.wait()
        await lives.logged(task, "sent", 3)

    async with WithoutReceipts().serving() as remote:
        await lives.killed(half())
        remote.gate.set()
        assert texts(await ended(lives, task)) == ["did gate"]
    assert remote.runs == {"work": 2, "gate": 1}


async def test_an_attempt_without_an_answer_is_repeated_with_its_key(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "FIRST_PAUSE", 0.01)

    async def work(client: Client) -> str:
        return (await client.send("gate")).text

    async def handler(turn: Turn) -> str:
        async with turn.connect(remote.url, attempts=1) as client:
            return await turn.step("work", work, client, retries=3)

    lives = Lives(handler, store)
    task = (await lives.send()).head.id

    async def half() -> None:
        await remote.reached.wait()
        await lives.logged(task, "sent")

    async with WithoutReceipts().serving() as remote:
        remote.failing = 2
        await lives.killed(half())
        assert len(remote.keys) == 3
        assert len(set(remote.keys)) == 1
        remote.gate.set()
        assert texts(await ended(lives, task)) == ["did gate"]
    assert remote.runs == {"gate": 1}


# ---- cancel --------------------------------------------------------------------------------


async def test_a_cancel_reaches_what_a_send_began(store: Store, remote: RemoteAgent) -> None:
    async def handler(turn: Turn) -> None:
        async with turn.connect(remote.url) as client:
            await client.send("gate", wait=False)
            await turn.ask_for("?")

    lives = Lives(handler, store)
    lives.agent.connections = lambda address: {}
    task = (await lives.send()).head.id
    await lives.life()
    await remote.reached.wait()
    await lives.ask_to_cancel(task, undo=True)
    await lives.life()
    assert (await lives.head(task)).state is TaskState.CANCELED
    assert await remote.states() == [TaskState.CANCELED]


async def test_a_cancel_of_a_send_that_a_dead_worker_began(
    store: Store, remote: RemoteAgent
) -> None:
    async def handler(turn: Turn) -> None:
        async with turn.connect(remote.url) as client:
            await client.send("gate")

    lives = Lives(handler, store)
    task = (await lives.send()).head.id

    async def half() -> None:
        await remote.reached.wait()
        await lives.logged(task, "sent")

    await lives.killed(half())
    await lives.ask_to_cancel(task, undo=True)
    await lives.life()
    assert (await lives.head(task)).state is TaskState.CANCELED
    assert await remote.states() == [TaskState.CANCELED]
    assert remote.runs == {"gate": 1}


# ---- turns that an older version began -----------------------------------------------------


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Turns begin as an older version has them; call it to have the new version again."""
    monkeypatch.setattr("dragoman.server.replay.FORM", 0)
    return lambda: monkeypatch.setattr("dragoman.server.replay.FORM", durable.FORM)


async def test_turns_that_began_before(
    store: Store, ours: WithReceipts, older: Callable[[], None]
) -> None:
    ids: list[tuple[str, str]] = []

    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield turn.write("one ")
        async with turn.connect(ours.url) as client:
            first = await client.send("first")
            yield turn.write("two ")
            await turn.step("step", lives.effect, "step")
            answer = await turn.ask_for("?")
            yield turn.write("three ")
            second = await client.send("second")
            assert first.task and second.task
            ids.append((first.task.id, second.task.id))
            yield turn.write(f"{answer.text} {first.text} {second.text}")
            yield turn.artifact(str(turn.delegated))
            await turn.ask_for("?")

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    assert await lives.private(task) == ["sent", "seen", "step", "asked"]
    older()
    for answer in ("four", "five"):
        await lives.send(answer, task)
        await lives.life()
    found = await lives.task(task)
    assert found.status.state is TaskState.COMPLETED
    assert texts(found)[0] == "one two three four did first did second"
    assert texts(found)[1].count(RemoteTask.__name__) == 2
    assert ids[0] == ids[1]
    assert ours.runs == {"first": 1, "second": 1}
