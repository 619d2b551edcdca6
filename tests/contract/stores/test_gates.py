"""Gates of skills, on every store: they ask first, and hold back the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from dragoman import (
    Agent,
    AgentExtension,
    App,
    GatedWork,
    GateStore,
    Message,
    Part,
    Role,
    Settings,
    Task,
    TaskState,
    Turn,
    UserError,
)
from dragoman.client import Client
from dragoman.model.events import Private
from dragoman.model.types import SendMessageRequest
from dragoman.stores.store import Store
from tests.harness.lives import Lives
from tests.harness.workers import CALL

URI = "https://example.org/ext/ticket"


class Ticket:
    """Asks for a ticket before the first turn of a task."""

    lives: Lives
    required = True

    def extensions(self, skill: str) -> Sequence[AgentExtension]:
        return (AgentExtension(uri=URI, required=self.required, params={"price": {skill: 1}}),)

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        ticket = work.saved
        if ticket is None:
            asked = Message(
                message_id=str(turn.uuid()),
                role=Role.AGENT,
                parts=(Part(text="Your ticket, please"),),
                metadata={"ticket": "required"},
                extensions=(URI,),
            )
            answer = await turn.ask_for(turn.ask(asked))
            ticket = (answer.metadata or {}).get("ticket")
            if ticket is None:
                return await turn.emit(turn.reject("No ticket"))
            await turn.step("check", self.lives.effect, "check")
            await work.save(ticket)
        work.conclude({"ticket": ticket}, "You had a ticket", extensions=(URI,))
        await self.lives.point()
        end = await work.run()
        await self.lives.point()
        state = "asks" if end is None else end.status.state.name
        await turn.step("after", self.lives.effect, state)
        return None


def gated(handler: Any, store: Store, **options: Any) -> Lives:
    ticket = Ticket()
    retries = options.pop("retries", 0)
    lives = ticket.lives = Lives(handler, store, gate=ticket, **options)
    lives.agent.retries = retries
    return lives


async def answer(lives: Lives, task: str, **metadata: Any) -> None:
    """Reply to a question of a task, with metadata."""
    message = Message(
        message_id=f"m-{len(await lives.log(task))}",
        role=Role.USER,
        parts=(Part(text="Here"),),
        task_id=task,
        metadata=metadata,
    )
    await lives.service._accept(SendMessageRequest(message=message), lives.scope, CALL)


def texts(task: Task) -> list[str]:
    return ["".join(part.text or "" for part in artifact.parts) for artifact in task.artifacts]


def last(task: Task) -> tuple[Any, Any, Any]:
    message = task.status.message
    assert message is not None
    return message.text, message.metadata, message.extensions


@pytest.fixture(autouse=True)
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that died runs again soon."""
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)


async def echo(turn: Turn) -> str:
    return f"{turn.text} {turn.message.metadata}"


async def test_a_gate_asks_first_and_adds_to_the_end(store: Store) -> None:
    lives = gated(echo, store, durable=False)
    task = (await lives.send("work")).head.id
    await lives.life()
    found = await lives.task(task)
    assert found.status.state is TaskState.INPUT_REQUIRED
    assert last(found) == ("Your ticket, please", {"ticket": "required"}, (URI,))
    await answer(lives, task, ticket=7)
    await lives.life()
    found = await lives.task(task)
    # the handler gets the message that began the turn, not the answer to its gate
    assert texts(found) == ["work None"]
    assert found.status.state is TaskState.COMPLETED
    assert last(found) == ("You had a ticket", {"ticket": 7}, (URI,))
    assert lives.done == {"check": 1, "COMPLETED": 1}


@pytest.mark.parametrize("forgets", [True, False])
async def test_the_question_of_a_gate_is_no_forgotten_event(
    store: Store, caplog: pytest.LogCaptureFixture, forgets: bool
) -> None:
    async def handler(turn: Turn) -> str:
        if forgets:
            turn.working("Soon")
        return "done"

    lives = gated(handler, store, durable=False)
    task = (await lives.send("work")).head.id
    await lives.life()
    await answer(lives, task, ticket=7)
    await lives.life()
    assert texts(await lives.task(task)) == ["done"]
    found = [one.message for one in caplog.records if "not yielded" in one.message]
    assert len(found) == forgets, found
    assert not forgets or "test_gates.py" in found[0]


async def test_a_gate_may_end_the_task_without_its_handler(store: Store) -> None:
    async def handler(turn: Turn) -> None:
        raise AssertionError("not reached")

    lives = gated(handler, store, durable=False)
    task = (await lives.send()).head.id
    await lives.life()
    await answer(lives, task, other=1)
    await lives.life()
    found = await lives.task(task)
    assert found.status.state is TaskState.REJECTED
    assert found.status.message is not None and found.status.message.text == "No ticket"


def blocking(turn: Turn) -> str:
    return turn.text


def stream(turn: Turn) -> Any:
    yield "a"
    yield "b"


async def failing(turn: Turn) -> None:
    raise UserError("It is closed")


async def broken(turn: Turn) -> None:
    raise ValueError("secret")


async def rejecting(turn: Turn) -> AsyncIterator[Any]:
    yield turn.reject("Never")
    yield "more"


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
@pytest.mark.parametrize(
    ("handler", "state", "said"),
    [
        (blocking, TaskState.COMPLETED, "You had a ticket"),
        (stream, TaskState.COMPLETED, "You had a ticket"),
        (failing, TaskState.FAILED, "It is closed"),
        (broken, TaskState.FAILED, "The agent failed (ValueError)"),
        (rejecting, TaskState.REJECTED, "Never"),
    ],
)
async def test_however_the_handler_ends(
    store: Store, handler: Any, state: TaskState, said: str, durable: bool
) -> None:
    if durable and handler in (blocking, stream):
        pytest.skip("a durable handler is an async def")
    lives = gated(handler, store, durable=durable)
    task = (await lives.send("x")).head.id
    await lives.life()
    await answer(lives, task, ticket=7)
    await lives.life()
    found = await lives.task(task)
    text, metadata, extensions = last(found)
    assert (found.status.state, metadata, extensions) == (state, {"ticket": 7}, (URI,))
    assert text.startswith(said)
    assert lives.done == {"check": 1, state.name: 1}


async def test_one_ticket_for_all_turns_of_a_task(store: Store) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        if turn.text == "x":
            await turn.save("mine")
            yield turn.ask("Which one?")
        else:
            yield f"{turn.saved}: {turn.text}"

    lives = gated(handler, store, durable=False)
    task = (await lives.send("x")).head.id
    await lives.life()
    await answer(lives, task, ticket=7)
    await lives.life()
    assert (await lives.task(task)).status.state is TaskState.INPUT_REQUIRED
    await lives.send("that", task)
    await lives.life()
    found = await lives.task(task)
    assert texts(found) == ["mine: that"]
    assert last(found)[1] == {"ticket": 7}
    assert lives.done == {"check": 1, "asks": 1, "COMPLETED": 1}


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("die_at", range(1, 9))
async def test_a_crash_anywhere(store: Store, die_at: int, retries: int, durable: bool) -> None:
    # points: 1, 2 check; 3 before the work; 4, 5 in it; 6 after it; 7, 8 of the step after
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        lives.done["work"] += 1
        yield "one, "
        await lives.point()
        yield turn.working("on it")
        yield "two"
        await lives.point()

    lives = gated(handler, store, durable=durable, retries=retries)
    task = (await lives.send("x")).head.id
    await lives.life()
    await answer(lives, task, ticket=7)
    await lives.life(die_at)
    await lives.recover()
    await lives.life()
    found = await lives.task(task)
    cut_off = die_at in (4, 5)
    state = TaskState.FAILED if cut_off and not (retries or durable) else TaskState.COMPLETED
    assert found.status.state is state
    assert last(found)[1] == {"ticket": 7}
    assert lives.done["check"] == (2 if die_at == 2 else 1)
    assert lives.done[state.name] == (2 if die_at == 8 else 1)
    if not durable:
        # once the end is in the log, the handler does not run again
        assert lives.done["work"] == (2 if cut_off and retries else 1)
    if state is TaskState.COMPLETED:
        assert texts(found) == ["one, two"]


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
async def test_a_cancel_while_the_gate_asks(store: Store, durable: bool) -> None:
    async def handler(turn: Turn) -> None:
        raise AssertionError("not reached")

    lives = gated(handler, store, durable=durable)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.ask_to_cancel(task, undo=True)
    await lives.life()
    assert (await lives.task(task)).status.state is TaskState.CANCELED


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
async def test_a_cancel_of_the_work_gets_what_the_gate_adds(store: Store, durable: bool) -> None:
    started = asyncio.Event()

    async def handler(turn: Turn) -> None:
        started.set()
        await asyncio.sleep(60)

    lives = gated(handler, store, durable=durable)
    task = (await lives.send()).head.id
    await lives.life()
    await answer(lives, task, ticket=7)
    worker = lives.worker()
    run = worker.begin(await lives.claim(worker))
    await started.wait()
    await lives.ask_to_cancel(task, undo=True)
    run.stop("cancel")
    await run.task
    found = await lives.task(task)
    assert found.status.state is TaskState.CANCELED
    assert last(found) == ("You had a ticket", {"ticket": 7}, (URI,))
    assert lives.done == {"check": 1, "CANCELED": 1}


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
async def test_a_worker_that_gives_the_task_away_ends_nothing(store: Store, durable: bool) -> None:
    started = asyncio.Event()

    async def handler(turn: Turn) -> str:
        if not started.is_set():
            started.set()
            await asyncio.sleep(60)
        return "done"

    lives = gated(handler, store, durable=durable, retries=1)
    task = (await lives.send()).head.id
    await lives.life()
    await answer(lives, task, ticket=7)
    worker = lives.worker()
    run = worker.begin(await lives.claim(worker))
    await started.wait()
    run.stop("drain")
    await run.task
    assert lives.done == {"check": 1}
    await lives.life()
    found = await lives.task(task)
    assert (found.status.state, texts(found)) == (TaskState.COMPLETED, ["done"])
    assert lives.done == {"check": 1, "COMPLETED": 1}


async def test_the_deadline_of_the_work(store: Store) -> None:
    async def handler(turn: Turn) -> None:
        await asyncio.sleep(60)

    lives = gated(handler, store, durable=False, timeout=0.3)
    task = (await lives.send()).head.id
    await lives.life()
    await answer(lives, task, ticket=7)
    async with lives.working():
        found = await lives.ended(task)
    assert found.status.state is TaskState.FAILED
    assert last(found)[0].startswith("The agent did not finish")
    assert last(found)[1] == {"ticket": 7}
    assert lives.done == {"check": 1, "FAILED": 1}


def test_the_card_requires_an_extension_only_if_all_skills_do() -> None:
    agent = Agent("A", description="A.")
    ticket = Ticket()
    agent.skill(id="a", gate=ticket)(echo)
    (found,) = [one for one in agent.extensions if one.uri == URI]
    assert found.required
    agent.skill(id="b", gate=ticket)(echo)
    (found,) = [one for one in agent.extensions if one.uri == URI]
    assert (found.required, found.params) == (True, {"price": {"a": 1, "b": 1}})
    agent.skill(id="c")(echo)
    (found,) = [one for one in agent.extensions if one.uri == URI]
    assert not found.required


def test_a_gate_is_checked() -> None:
    agent = Agent("A", description="A.")
    with pytest.raises(TypeError, match="`extensions` and `enter`"):
        agent.skill(gate=print)(echo)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="handler with a gate always has a task"):
        agent.skill(gate=Ticket(), reply=True)(echo)


# ---- output that is held back ---------------------------------------------------------------


class Till:
    """Shows the output when it was paid for, which is at the end."""

    lives: Lives
    holds_output = True
    timeout: float | None = None
    pays = True

    def extensions(self, skill: str) -> Sequence[AgentExtension]:
        return ()

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        await self.lives.point()
        end = await work.run(self.timeout)
        assert end is not None
        await self.lives.point()
        self.lives.seen = texts(await self.lives.task(turn.task.id))  # type: ignore[attr-defined]
        await turn.step("pay", self.lives.effect, end.status.state.name)
        if self.pays:
            work.publish()


def held(handler: Any, store: Store, **options: Any) -> tuple[Till, Lives]:
    till = Till()
    retries = options.pop("retries", 0)
    lives = till.lives = Lives(handler, store, gate=till, durable=False, **options)
    lives.agent.retries = retries
    return till, lives


async def says_much(turn: Turn) -> str:
    await turn.emit(turn.artifact("one", name="first"))
    await turn.emit(turn.working("half of it"))
    await asyncio.sleep(0)
    return "two"


@pytest.mark.parametrize("die_at", range(5))
async def test_output_is_held_back_until_the_gate_returns(store: Store, die_at: int) -> None:
    _, lives = held(says_much, store, retries=1)
    task = (await lives.send("x")).head.id
    await lives.life(die_at)
    if die_at:
        assert texts(await lives.task(task)) == []
        await lives.recover()
        await lives.life()
    found = await lives.task(task)
    assert lives.seen == []  # type: ignore[attr-defined]
    assert (found.status.state, texts(found)) == (TaskState.COMPLETED, ["one", "two"])
    assert [one.text for one in found.history if one.role is Role.AGENT] == ["half of it"]
    assert lives.done["COMPLETED"] == (2 if die_at == 4 else 1)  # between an effect and its entry


async def test_output_that_is_not_published(store: Store) -> None:
    till, lives = held(says_much, store)
    till.pays = False
    task = (await lives.send("x")).head.id
    await lives.life()
    found = await lives.task(task)
    assert (found.status.state, texts(found), found.history[1:]) == (TaskState.COMPLETED, [], ())
    shown = [e.event for e in await lives.log(task) if not isinstance(e.event, Private)]
    assert "half of it" not in repr(shown)


@pytest.mark.parametrize("die_at", [0, 2, 3])
async def test_work_that_takes_too_long(store: Store, die_at: int) -> None:
    began = []

    async def slow(turn: Turn) -> str:
        began.append(turn.attempt)
        await turn.emit(turn.artifact("one"))
        await asyncio.sleep(60)
        return "two"

    till, lives = held(slow, store, retries=3)
    till.timeout, till.pays = 0.02, False
    task = (await lives.send("x")).head.id
    await lives.life(die_at)
    if die_at:
        await lives.recover()
        await lives.life()
    found = await lives.task(task)
    assert (found.status.state, texts(found)) == (TaskState.FAILED, [])
    assert last(found)[0] == "The agent did not finish in the time it has"
    assert (lives.done["FAILED"] >= 1, len(began)) == (True, 1)


async def test_a_handler_whose_output_is_held_back_cannot_ask(store: Store) -> None:
    async def asks(turn: Turn) -> Any:
        return turn.ask("Which one?")

    _, lives = held(asks, store)
    task = (await lives.send("x")).head.id
    await lives.life()
    found = await lives.task(task)
    assert found.status.state is TaskState.FAILED
    assert "cannot ask its client" in str(last(found)[0])


async def test_held_output_has_limits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def much(turn: Turn) -> str:
        for _ in range(9):
            await turn.emit(turn.artifact("one"))
        return "two"

    _, lives = held(much, store)
    monkeypatch.setattr(Settings, "max_events", 5)
    task = (await lives.send("x")).head.id
    await lives.life()
    found = await lives.task(task)
    assert found.status.state is TaskState.FAILED
    assert "more than 5 events" in str(last(found)[0])


def test_handlers_whose_output_cannot_be_held_back() -> None:
    agent, till = Agent("Till", description="Sells."), Till()

    async def streams(turn: Turn) -> AsyncIterator[str]:
        yield "one"

    def yields(turn: Turn) -> Any:
        yield "one"

    async def fine(turn: Turn, city: str) -> str:
        return "one"

    wrong: list[tuple[Any, dict[str, Any]]] = [
        (streams, {}),
        (yields, {}),
        (fine, {"durable": True}),
        (fine, {"ask": True}),
    ]
    for handler, options in wrong:
        with pytest.raises(TypeError, match="its gate holds back the output"):
            agent.skill(gate=till, **options)(handler)
    till.holds_output = False
    agent.skill(gate=till)(streams)


# ---- the store of a gate --------------------------------------------------------------------


class Club:
    """Keeps a list of those who came, and removes those whose task has ended."""

    required = False

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.seen: dict[str, TaskState | None] = {}
        self.called = asyncio.Event()

    def extensions(self, skill: str) -> Sequence[AgentExtension]:
        return ()

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        async def note() -> None:
            for key in (turn.task.id, "gone"):
                await work.reserve("club", f"{work.agent}/{work.skill}/{key}", b"1", keep=None)
            work.report("club.came", task=turn.task.id)

        await turn.step("note", note)
        await work.run()

    async def maintain(self, store: GateStore) -> None:
        self.calls.append((store.agent, store.skill))
        for wrong in (
            store.release("dragoman.secret", "x"),
            store.reserve("dragoman.secret", "x", b"1", keep=None),
            anext(store.reservations("dragoman.secret")),
        ):
            with pytest.raises(ValueError, match="space must not begin with"):
                await wrong
        prefix = f"{store.agent}/{store.skill}/"
        async for one in store.reservations("club", prefix):
            task = one.key.removeprefix(prefix)
            state = await store.task_state(task)
            if state is not None and not state.terminal:
                continue
            assert await store.release("club", one.key)
            store.report("club.left", task=task)
            self.seen[task] = state
        self.called.set()
        if store.skill == "other":
            raise ValueError("broken")


async def test_a_gate_is_called_in_maintenance(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dragoman.server.gate_store.EVERY", 0.01)
    club, agent = Club(), Agent("Club", description="A club.")
    agent.skill(id="sit", gate=club)(echo)
    agent.skill(id="other", gate=club)(echo)
    agent.handler(gate=club)(echo)
    await store.close()
    app = App(agent, store=store, audit=True, metrics=0, push=False)
    with caplog.at_level("INFO", "dragoman.audit"):
        async with asyncio.timeout(20), app, Client.connect(app=app) as client:
            task = (await client.send("hello", skill="sit")).task
            assert task is not None
            while task.id not in club.seen:
                club.called.clear()
                await club.called.wait()
            assert app.monitoring is not None
            page = (await app.monitoring.page()).decode()
    await store.open()
    assert club.seen == {task.id: TaskState.COMPLETED, "gone": None}
    assert set(club.calls) == {("club", "sit"), ("club", "other"), ("club", "")}
    # one whose maintenance fails is called again
    assert club.calls.count(("club", "other")) > 1 and "of agent 'club' failed" in caplog.text
    assert 'dragoman_gate_events_total{agent="club",event="club.came"} 1' in page
    assert 'dragoman_gate_events_total{agent="club",event="club.left"} 2' in page
    entries = [json.loads(one.message) for one in caplog.records if one.name == "dragoman.audit"]
    came, *left = [one for one in entries if one["event"].startswith("club.")]
    assert (came["event"], came["task"], came["agent"]) == ("club.came", task.id, "club")
    assert {one["task"] for one in left} == {task.id, "gone"}
