"""Workers and maintenance: leases and epochs, second attempts, cancels, and bells that fail."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from dragoman import Agent, Caller, Task, TaskState, Turn
from dragoman.bells import bell as bell_module
from dragoman.model.caller import Call, Scope
from dragoman.model.errors import Unavailable
from dragoman.model.events import Entry
from dragoman.model.types import (
    CancelTaskRequest,
    SendMessageRequest,
    SendMessageResponse,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.server.run import Run
from dragoman.server.service import Service
from dragoman.stores.memory import MemoryStore
from dragoman.stores.store import Claim, Head, Renewal, Stale
from dragoman.telemetry.logs import logger
from dragoman.testing import SilentBell, message
from tests.harness.gate import Gate
from tests.harness.workers import AT, CALL, OVER, WorkerHarness, echo


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """What was logged, whatever an earlier test did to the loggers."""
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level("INFO", "dragoman")
    return caplog


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """Looking for what was left behind need not look at everything."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is open after the test."""
    found = Gate()
    yield found
    found.release()


def words(task: Task) -> str:
    """What the status says."""
    return task.status.message.text if task.status.message else ""


# ---- workers that die ----------------------------------------------------------------------


async def test_a_claim_that_ran_out_fails_the_task(log: pytest.LogCaptureFixture) -> None:
    harness = WorkerHarness(echo)
    claim = await harness.orphan()
    await harness.reap()
    task = await harness.task(claim.head.id)
    assert task.status.state is TaskState.FAILED
    assert words(task) == "The worker stopped before the agent finished"
    head = await harness.head(task.id)
    assert (head.holder, head.unread) == ("", False)
    assert head.epoch > claim.epoch
    assert "in the middle of a turn" in log.text
    assert not await harness.store.claim(harness.agents, "another", 30.0, 1)


async def test_a_claim_that_has_not_run_out_is_left_alone() -> None:
    harness = WorkerHarness(echo, retries=3)
    await harness.send()
    claim = await harness.claim(harness.worker())
    await harness.reap()
    assert await harness.head(claim.head.id) == claim.head


async def test_a_turn_that_may_be_repeated_is_run_again() -> None:
    seen: list[tuple[int, str]] = []

    async def handler(turn: Turn) -> str:
        seen.append((turn.attempt, turn.idempotency_key))
        return f"attempt {turn.attempt}"

    harness = WorkerHarness(handler, retries=1)
    claim = await harness.orphan()
    first = Run(harness.worker(), claim)
    await harness.reap()
    head = await harness.head(claim.head.id)
    assert (head.state, head.unread, head.holder) == (TaskState.SUBMITTED, True, "")
    run = await harness.run()
    assert run.claim.epoch > claim.epoch
    task = await harness.task(claim.head.id)
    assert task.status.state is TaskState.COMPLETED
    assert task.artifacts[0].parts[0].text == "attempt 2"
    assert seen == [(2, first.turn.idempotency_key)]
    assert len(task.history) == 1


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_it_stops_after_its_attempts(retries: int) -> None:
    harness = WorkerHarness(echo, retries=retries)
    task = (await harness.send()).head.id
    for attempt in range(1, retries + 2):
        claim = await harness.claim(harness.worker(), OVER)
        assert claim.attempt == attempt
        assert not (await harness.head(task)).state.terminal
        await harness.reap()
    assert (await harness.task(task)).status.state is TaskState.FAILED
    expected = f"(attempt {retries + 1})" if retries else "finished"
    assert words(await harness.task(task)).endswith(expected)
    assert not await harness.store.claim(harness.agents, "another", 30.0, 1)


async def test_the_next_message_has_its_own_attempts() -> None:
    async def asking(turn: Turn) -> Any:
        return turn.ask("and?")

    harness = WorkerHarness(asking, retries=1)
    claim = await harness.orphan()
    await harness.reap()
    await harness.run()
    sent = await harness.send("more", claim.head.id)
    again = await harness.claim(harness.worker(), OVER)
    assert (again.attempt, again.turn) == (1, sent.number)
    await harness.reap()
    assert (await harness.run()).claim.attempt == 2


async def test_many_orphans_are_reaped_at_once() -> None:
    harness = WorkerHarness(echo)
    tasks = [(await harness.orphan()).head.id for _ in range(40)]
    await harness.reap()
    await harness.reap()
    for task in tasks:
        assert (await harness.task(task)).status.state is TaskState.FAILED


async def test_a_worker_that_dies_before_a_reply_leaves_a_failed_task() -> None:
    harness = WorkerHarness(echo, reply=True)
    claim = await harness.orphan()
    assert await harness.store.load(harness.scope, claim.head.id) is None
    await harness.reap()
    assert (await harness.task(claim.head.id)).status.state is TaskState.FAILED


async def test_those_who_wait_learn_of_it() -> None:
    harness = WorkerHarness(echo)
    sending = asyncio.create_task(
        harness.service.send(SendMessageRequest(message=message("x")), CALL)
    )
    await asyncio.sleep(0)
    await harness.claim(harness.worker(), OVER)
    await harness.reap()
    async with asyncio.timeout(30):
        answer = await sending
    assert answer.task is not None
    assert answer.task.status.state is TaskState.FAILED


async def test_another_worker_takes_over_by_itself() -> None:
    harness = WorkerHarness(echo, retries=1)
    claim = await harness.orphan("hello")
    async with harness.working(keeping=True):
        task = await harness.ended(claim.head.id)
    assert task.artifacts[0].parts[0].text == "hello"


# ---- those who wake up late ----------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1])
async def test_late_writes_change_nothing(retries: int, gate: Gate) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield f"from attempt {turn.attempt}"
        if turn.attempt == 1:
            await gate.wait_stubbornly()
            yield " and more"
            yield turn.complete("too late")

    harness = WorkerHarness(handler, retries=retries)
    task = (await harness.send()).head.id
    worker = harness.worker()
    run = worker.begin(await harness.claim(worker, OVER))
    await gate.came.wait()
    await harness.reap()
    if retries:
        await harness.run()
    before = [entry.event for entry in await harness.log(task)]
    head = await harness.head(task)
    gate.release()
    await asyncio.wait([run.task])
    assert [entry.event for entry in await harness.log(task)] == before
    assert await harness.head(task) == head
    found = await harness.task(task)
    assert found.status.state is (TaskState.COMPLETED if retries else TaskState.FAILED)
    texts = [part.text for part in found.artifacts[0].parts]
    assert texts == [f"from attempt {1 + retries}"]
    assert run.lost
    assert not worker.runs
    assert not worker.stuck


@pytest.mark.parametrize("release", [False, True])
async def test_appends_of_an_old_epoch_are_stale(release: bool) -> None:
    harness = WorkerHarness(echo, retries=1)
    claim = await harness.orphan()
    run = Run(harness.worker(), claim)
    await harness.reap()
    for state in ("released", "claimed again", "ended"):
        if state == "claimed again":
            again = await harness.claim(harness.worker(), OVER)
        if state == "ended":
            await harness.reap()
        before = await harness.head(claim.head.id)
        for entries in ([], [Entry(0, run.turn.working("late"), claim.turn)]):
            if not entries and not release:
                continue
            with pytest.raises(Stale):
                await harness.store.append(claim, entries, release=release)
        assert await harness.head(claim.head.id) == before
    with pytest.raises(Stale):
        await harness.store.append(again, [Entry(0, run.turn.complete(), claim.turn)], release=True)


async def test_renewing_tells_what_was_lost() -> None:
    harness = WorkerHarness(echo, retries=5)
    old = await harness.orphan()
    await harness.reap()
    new = await harness.claim(harness.worker())
    found = await harness.store.renew([old], 30.0)
    assert list(found.lost) == [old.head.id]
    found = await harness.store.renew([new], 30.0)
    assert not found.lost


async def test_a_worker_that_lost_its_claim_stops_the_handler(
    gate: Gate, log: pytest.LogCaptureFixture
) -> None:
    stopped = asyncio.Event()

    async def patient(turn: Turn) -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    harness = WorkerHarness(patient)
    async with harness.working() as worker:
        task = (await harness.send()).head.id
        await gate.came.wait()
        await harness.store.revoke(await harness.head(task), failed(await harness.head(task)))
        await stopped.wait()
        await harness.until(lambda: not worker.runs and not worker.stuck)
    assert "patient" in log.text
    assert (await harness.task(task)).status.state is TaskState.FAILED


def failed(head: Head) -> TaskStatusUpdateEvent:
    """The end of a task."""
    status = TaskStatus(state=TaskState.FAILED, timestamp=AT)
    return TaskStatusUpdateEvent(task_id=head.id, context_id=head.context, status=status)


@pytest.mark.parametrize("kind", ["function", "generator"])
async def test_a_thread_that_lost_its_claim_is_told(kind: str, gate: Gate) -> None:
    ended = threading.Event()

    def function(turn: Turn) -> None:
        """Looks up now and then, as code that cannot be interrupted should."""
        gate_came()
        while not turn.canceled and not gate.thread.wait(0.005):
            pass
        if turn.canceled:
            ended.set()

    def generator(turn: Turn) -> Iterator[str]:
        gate_came()
        try:
            while not gate.thread.wait(0.005):
                yield "more"
        finally:
            if turn.canceled:
                ended.set()

    loop = asyncio.get_running_loop()

    def gate_came() -> None:
        loop.call_soon_threadsafe(gate.came.set)

    harness = WorkerHarness(function if kind == "function" else generator)
    async with harness.working():
        task = (await harness.send()).head.id
        await gate.came.wait()
        await harness.store.revoke(await harness.head(task), failed(await harness.head(task)))
        told = await asyncio.to_thread(ended.wait, 2)
        gate.release()
        assert told


# ---- attempts do not double ----------------------------------------------------------------


async def test_a_second_attempt_does_not_double_what_the_first_wrote(gate: Gate) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield turn.artifact({"whole": turn.attempt})
        yield f"a{turn.attempt} "
        yield f"b{turn.attempt} "
        yield turn.write(f"named{turn.attempt}", name="n")
        yield turn.write(f"own{turn.attempt}", id="own")
        if turn.attempt == 1:
            await gate.wait()
        yield f"c{turn.attempt}"

    harness = WorkerHarness(handler, retries=1)
    task = (await harness.send()).head.id
    worker = harness.worker()
    run = worker.begin(await harness.claim(worker, OVER))
    await gate.came.wait()
    assert len((await harness.task(task)).artifacts) == 4
    await harness.reap()
    await harness.run()
    run.task.cancel()
    await asyncio.wait([run.task])
    found = await harness.task(task)
    assert found.status.state is TaskState.COMPLETED
    contents = [[part.text or part.data for part in a.parts] for a in found.artifacts]
    assert contents == [[{"whole": 2}], ["a2 b2 c2"], ["named2"], ["own2"]]


# ---- cancels -------------------------------------------------------------------------------


async def test_a_cancel_beats_another_attempt() -> None:
    harness = WorkerHarness(echo, retries=5)
    claim = await harness.orphan()
    await harness.ask_to_cancel(claim.head.id)
    await harness.reap()
    task = await harness.task(claim.head.id)
    assert task.status.state is TaskState.CANCELED
    assert not await harness.store.claim(harness.agents, "another", 30.0, 1)
    with pytest.raises(Stale):
        await harness.store.append(claim, [], release=True)


async def test_a_cancel_whose_time_is_up_needs_no_worker_and_no_caller() -> None:
    harness = WorkerHarness(echo)
    await harness.send()
    claim = await harness.claim(harness.worker())  # and its lease is long
    await harness.ask_to_cancel(claim.head.id, grace=OVER)
    await harness.reap()
    assert (await harness.task(claim.head.id)).status.state is TaskState.CANCELED


async def test_a_worker_learns_of_a_cancel_without_a_bell(gate: Gate) -> None:
    async def handler(turn: Turn) -> None:
        await gate.wait()

    harness = WorkerHarness(handler, bell=SilentBell())
    async with harness.working():
        task = (await harness.send()).head.id
        await gate.came.wait()
        await harness.ask_to_cancel(task)
        assert (await harness.ended(task)).status.state is TaskState.CANCELED


class Careful:
    """Has its own way to stop."""

    def __init__(self, gate: Gate, how: str) -> None:
        self.gate = gate
        self.how = how
        self.stopping = asyncio.Event()

    async def run(self, turn: Turn) -> AsyncIterator[Any]:
        """Waits."""
        await self.gate.wait()
        yield "went on"

    async def cancel(self, turn: Turn) -> Any:
        """Stops in one way or the other."""
        self.stopping.set()
        assert turn.canceled
        if self.how == "word":
            return turn.working("putting things away")
        if self.how == "end":
            return turn.complete("it was done already")
        if self.how == "raise":
            raise LookupError("secret")
        if self.how == "quit":
            raise Quit("secret")
        if self.how == "hang":
            await asyncio.Event().wait()
        return None


class Quit(BaseException):
    """What `except Exception` does not see."""


@pytest.mark.parametrize(
    ("how", "state", "said"),
    [
        ("nothing", TaskState.CANCELED, []),
        ("word", TaskState.CANCELED, ["putting things away"]),
        ("end", TaskState.COMPLETED, ["it was done already"]),
        ("raise", TaskState.CANCELED, []),
        ("quit", TaskState.CANCELED, []),
        ("hang", TaskState.CANCELED, []),
    ],
)
async def test_an_authors_cancel(
    how: str, state: TaskState, said: list[str], gate: Gate, log: pytest.LogCaptureFixture
) -> None:
    target = Careful(gate, how)
    harness = WorkerHarness(target, cancel_grace=0.05 if how == "hang" else 5.0)
    async with harness.working() as worker:
        task = (await harness.send()).head.id
        await gate.came.wait()
        with suppress(Exception):  # the end that was quicker makes it an error
            await harness.service.cancel(CancelTaskRequest(id=task), CALL)
        found = await harness.ended(task)
        assert found.status.state is state
        told = [
            entry.event.status.message.text
            for entry in await harness.log(task)
            if isinstance(entry.event, TaskStatusUpdateEvent) and entry.event.status.message
        ]
        assert told == said
        assert target.stopping.is_set()
        assert not found.artifacts
        await harness.until(lambda: not worker.runs and not worker.stuck)
    if how in ("raise", "quit", "hang"):
        assert "Careful" in log.text
    if how in ("raise", "quit"):
        assert "Careful: cancel failed" in log.text


async def cancel_coroutine(self: Any, turn: Turn) -> Any:
    return turn.working("stopping")


async def cancel_agenerator(self: Any, turn: Turn) -> Any:
    yield turn.working("stopping")


def cancel_function(self: Any, turn: Turn) -> Any:
    return turn.working("stopping")


def cancel_generator(self: Any, turn: Turn) -> Any:
    yield turn.working("stopping")


@pytest.mark.parametrize(
    "kind",
    [cancel_coroutine, cancel_agenerator, cancel_function, cancel_generator],
    ids=lambda kind: kind.__name__,
)
async def test_every_kind_of_cancel(kind: Any, gate: Gate) -> None:
    async def run(self: Any, turn: Turn) -> None:
        await gate.wait()

    harness = WorkerHarness(type("Thing", (), {"run": run, "cancel": kind}))
    async with harness.working():
        task = (await harness.send()).head.id
        await gate.came.wait()
        found = await harness.service.cancel(CancelTaskRequest(id=task), CALL)
    assert found.status.state is TaskState.CANCELED
    assert [m.text for m in found.history] == ["x", "stopping"]


async def test_the_authors_cancel_is_not_for_deadlines(gate: Gate) -> None:
    target = Careful(gate, "end")
    harness = WorkerHarness(target, turn_timeout=0.02)
    async with harness.working():
        task = (await harness.send()).head.id
        assert (await harness.ended(task)).status.state is TaskState.FAILED
    assert not target.stopping.is_set()


# ---- the ends of turns ---------------------------------------------------------------------


async def test_a_follow_up_is_worked_on_after_an_early_end(gate: Gate) -> None:
    seen: list[str] = []

    async def early(turn: Turn) -> AsyncIterator[Any]:
        seen.append(turn.text)
        if turn.text == "first":
            await gate.wait()
            yield turn.complete("done")
            for _ in range(5):
                await asyncio.sleep(0)  # it goes on for a while
        else:
            yield turn.artifact(turn.text)

    harness = WorkerHarness(early, lease=0.1)
    async with harness.working(keeping=True):
        task = (await harness.send("first")).head.id
        await gate.came.wait()
        await harness.send("second", task)
        gate.release()
        found = await harness.ended(task)
    assert seen == ["first", "second"]
    assert found.status.state is TaskState.COMPLETED
    assert [artifact.parts[0].text for artifact in found.artifacts] == ["second"]


async def test_a_turn_that_takes_longer_than_its_lease_keeps_it(gate: Gate) -> None:
    renewed = asyncio.Event()

    class Counting(MemoryStore):
        count = 0

        async def renew(self, claims: Collection[Claim], lease: float) -> Renewal:
            self.count += 1
            if self.count == 20:
                renewed.set()
            return await super().renew(claims, lease)

    async def slow(turn: Turn) -> str:
        await renewed.wait()
        return "in the end"

    harness = WorkerHarness(slow, store=Counting(), lease=0.1, poll=0.01)
    async with harness.working(keeping=True):
        task = (await harness.send()).head.id
        found = await harness.ended(task)
    assert found.status.state is TaskState.COMPLETED


async def test_a_turn_has_a_deadline(gate: Gate) -> None:
    async def endless(turn: Turn) -> None:
        await gate.wait()

    harness = WorkerHarness(endless, turn_timeout=0.02)
    async with harness.working() as worker:
        found = await harness.ended((await harness.send()).head.id)
        await harness.until(lambda: not worker.runs)
    assert found.status.state is TaskState.FAILED
    assert words(found) == "The agent did not finish within 0.02 seconds"


async def test_no_more_turns_at_once_than_may_run(gate: Gate) -> None:
    running: list[int] = [0, 0]

    async def counted(turn: Turn) -> None:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0)
        running[0] -= 1

    harness = WorkerHarness(counted, max_running=3)
    async with harness.working():
        tasks = [(await harness.send()).head.id for _ in range(20)]
        for task in tasks:
            assert (await harness.ended(task)).status.state is TaskState.COMPLETED
    assert running[1] <= 3


async def test_a_skill_that_is_no_more(log: pytest.LogCaptureFixture) -> None:
    async def later(turn: Turn) -> str:
        return "fine"

    harness = WorkerHarness(echo)
    old = (await harness.send("for a skill that is gone")).head.id
    agent = Agent("Test", description="The next version.")
    agent.skill(later)
    harness.agents[agent.key] = agent
    harness.service = Service(agent, harness.store, harness.bell, harness.settings, harness.closing)
    async with harness.working():
        new = (await harness.send()).head.id
        assert (await harness.ended(new)).status.state is TaskState.COMPLETED
        found = await harness.ended(old)
    assert found.status.state is TaskState.FAILED
    assert words(found)
    assert "echo" in log.text


# ---- what one owner may have ---------------------------------------------------------------


class Busy:
    """A worker whose turns go on until they are let go; callers are named by a letter."""

    def __init__(self, max_running: int) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.running: list[str] = []
        self.begun: list[str] = []
        self.most = 0
        """The most that one owner had while others waited."""
        self.harness = WorkerHarness(self.handler, max_running=max_running)

    async def handler(self, turn: Turn) -> str:
        """Goes on until it is let go."""
        name = turn.text
        self.running.append(name)
        self.begun.append(name)
        if any(other[0] != name[0] for other in self.gates.keys() - set(self.begun)):
            self.most = max(self.most, self.count(name[0]))
        await self.gates[name].wait()
        self.running.remove(name)
        return name

    def count(self, owner: str) -> int:
        """How many turns of one owner run."""
        return sum(1 for name in self.running if name[0] == owner)

    async def send(self, *names: str) -> None:
        """Accept messages, and wait for nothing."""
        for name in names:
            self.gates[name] = asyncio.Event()
            scope = Scope(self.harness.agent.key, "", name[0])
            asked = SendMessageRequest(message=message(name))
            await self.harness.service._accept(asked, scope, Call(Caller(identity=name[0])))

    async def end(self, name: str) -> None:
        """Let a turn end, and wait for who comes next."""
        before = len(self.running)
        self.gates[name].set()
        await self.harness.until(lambda: name not in self.running and len(self.running) == before)


async def test_an_owner_has_at_most_half_while_others_wait() -> None:
    busy = Busy(4)
    await busy.send(*(f"a{n}" for n in range(20)))
    await busy.send(*(f"b{n}" for n in range(6)))
    async with busy.harness.working():
        await busy.harness.until(lambda: len(busy.running) == 4)
        for _ in range(10):
            await busy.end(busy.running[-1])
        assert busy.most == 2
        for gate in busy.gates.values():
            gate.set()
        await busy.harness.until(lambda: not busy.running)


async def test_an_owner_alone_has_all_and_another_gets_the_next() -> None:
    busy = Busy(4)
    async with busy.harness.working():
        await busy.send(*(f"a{n}" for n in range(40)))
        await busy.harness.until(lambda: len(busy.running) == 4)
        await busy.send("b0", "b1", "b2")
        await busy.end("a0")
        assert busy.count("b") == 1, "nobody is kept waiting by those who are many"
        await busy.end("a1")
        assert (busy.count("a"), busy.count("b")) == (2, 2)
        await busy.end("b0")
        assert (busy.count("a"), busy.count("b")) == (2, 2)
        for gate in busy.gates.values():
            gate.set()
        await busy.harness.until(lambda: not busy.running)


async def test_a_tenth_is_never_one_owner_s_alone() -> None:
    busy = Busy(20)
    async with busy.harness.working():
        await busy.send(*(f"a{n}" for n in range(60)))
        await busy.harness.until(lambda: len(busy.running) == 18)
        await busy.send("b0", "b1", "b2")  # nothing has to end for the first two
        await busy.harness.until(lambda: busy.count("b") == 2)
        assert busy.count("a") == 18
        await busy.end("a0")
        assert (busy.count("a"), busy.count("b")) == (17, 3)
        for gate in busy.gates.values():
            gate.set()
        await busy.harness.until(lambda: not busy.running)


async def test_of_a_single_slot_owners_take_turns() -> None:
    busy = Busy(1)
    seen = []
    async with busy.harness.working():
        await busy.send(*(f"a{n}" for n in range(6)))
        await busy.send(*(f"b{n}" for n in range(3)))
        for _ in range(6):
            await busy.harness.until(lambda: busy.running)
            (name,) = busy.running
            seen.append(name)
            await busy.end(name)
        for gate in busy.gates.values():
            gate.set()
        await busy.harness.until(lambda: not busy.running)
    assert seen == ["a0", "a1", "b0", "a2", "b1", "a3"]  # the first two were there before


# ---- answers that are lost -----------------------------------------------------------------


class Forgetful(MemoryStore):
    """The answer to the first claim is lost; `away`, it can do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = asyncio.Event()
        self.away = False

    def claim(self, *arguments: Any) -> asyncio.Future[Sequence[Claim]]:
        """Claim, and perhaps tell nobody."""
        claims = super().claim(*arguments)
        if claims.result() and not self.lost.is_set():
            self.lost.set()
            claims = asyncio.get_running_loop().create_future()
            claims.set_exception(Unavailable("The store is not available"))
        return claims

    async def revoke(self, *arguments: Any, **named: Any) -> Head | None:
        """Revoke, if it can."""
        if self.away:
            raise Unavailable("The store is not available")
        return await super().revoke(*arguments, **named)


async def test_what_was_claimed_without_an_answer_is_run() -> None:
    """It costs nothing: it was never begun."""
    ran: list[str] = []

    async def handler(turn: Turn) -> str:
        ran.append(f"{turn.task.id} {turn.attempt}")
        return "done"

    harness = WorkerHarness(handler, store=Forgetful())
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    task = (await harness.send()).head.id
    worker.look()
    async with asyncio.timeout(30):
        while (await harness.task(task)).status.state is not TaskState.COMPLETED:
            await asyncio.sleep(0.01)
    assert ran == [f"{task} 1"]
    await worker.drain(0)
    await running


async def test_who_goes_lets_go_of_it_first() -> None:
    harness = WorkerHarness(lambda turn: "done", store=Forgetful(), poll=60.0)
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    task = (await harness.send()).head.id
    worker.look()
    await worker.drain(0)
    await running
    head = await harness.head(task)
    assert (head.holder, head.attempt, head.unread) == ("", 0, True)


async def test_what_was_begun_is_not_taken_for_that(gate: Gate) -> None:
    """It could not be handed back; it may have done something, and is not run again."""
    ran: list[str] = []

    async def handler(turn: Turn) -> None:
        ran.append(turn.text)
        await gate.wait()

    store = Forgetful()
    store.lost.set()
    harness = WorkerHarness(handler, store=store)
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    task = (await harness.send()).head.id
    worker.look()
    await gate.came.wait()
    store.away = True
    worker.give_back(worker.runs[task])
    await harness.until(lambda: not worker._returned)
    store.away = False
    store.lost.clear()
    other = (await harness.send("other")).head.id
    worker.look()  # the answer to which is lost
    await harness.until(lambda: ran.count("other") == 1)
    assert len(ran) == 2
    assert [head.id for head in await store.held(worker.id)] == [task, other]
    gate.release()
    await worker.drain(0)
    await running


# ---- shutting down -------------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("retries", [0, 1])
async def test_draining_hands_running_turns_back(
    retries: int, stubborn: bool, gate: Gate, log: pytest.LogCaptureFixture
) -> None:
    async def handler(turn: Turn) -> str:
        if turn.attempt == 1:
            await (gate.wait_stubbornly() if stubborn else gate.wait())
        return f"attempt {turn.attempt}"

    harness = WorkerHarness(handler, retries=retries, cancel_grace=0.02)
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    task = (await harness.send()).head.id
    worker.look()
    await gate.came.wait()
    rung: list[None] = []
    with harness.bell.listeners.on_ring(lambda: rung.append(None), f"work:{harness.agent.key}"):
        await worker.drain(0.02)
        await running
    head = await harness.head(task)
    assert bool(rung) is bool(retries), "others are to take it at once"
    if retries:
        assert (head.state, head.holder, head.unread) == (TaskState.SUBMITTED, "", True)
        await harness.run()
        found = await harness.task(task)
        assert found.status.state is TaskState.COMPLETED
        assert found.artifacts[0].parts[0].text == "attempt 2"
    else:
        assert head.state is TaskState.FAILED
        assert "shut down" in words(await harness.task(task))
    assert worker.stuck == (["handler"] if stubborn else [])
    assert ("continues after its task was taken" in log.text) is stubborn
    gate.release()
    await harness.until(lambda: not worker.stuck)


async def test_draining_does_not_wait_for_a_store_that_hangs() -> None:
    class Hanging(MemoryStore):
        async def revoke(self, *_: Any, **__: Any) -> Head | None:
            await asyncio.Event().wait()
            return None

    async def handler(turn: Turn) -> None:
        await asyncio.Event().wait()

    harness = WorkerHarness(handler, store=Hanging(), cancel_grace=0.05)
    worker = harness.worker()
    for _ in range(3):
        await harness.send()
        worker.begin(await harness.claim(worker))
    async with asyncio.timeout(2):
        await worker.drain(0.0)
    assert not worker.runs


async def test_whose_store_was_away_may_renew_before_claims_are_taken(
    log: pytest.LogCaptureFixture,
) -> None:
    class Away(MemoryStore):
        away, kept = True, False

        async def expired(self, *arguments: Any) -> Sequence[Head]:
            if self.away:
                raise Unavailable("away")
            return await super().expired(*arguments)

        async def prune(self) -> int:
            self.kept = True  # which comes last
            return await super().prune()

    async def handler(turn: Turn) -> None: ...

    store = Away()
    harness = WorkerHarness(handler, store=store, poll=0.2)
    claim = await harness.orphan()
    keeping = asyncio.create_task(harness.maintenance.run())
    try:
        async with asyncio.timeout(30):
            await harness.until(lambda: "maintenance of the store failed" in log.text)
            store.away = False
            await harness.until(lambda: store.kept)
            assert not (await store.renew([claim], 0.3)).lost
            while (await harness.head(claim.head.id)).epoch == claim.epoch:  # it dies after all
                await asyncio.sleep(0.01)
    finally:
        keeping.cancel()


async def test_draining_waits_for_what_ends_in_time(gate: Gate) -> None:
    async def handler(turn: Turn) -> str:
        await gate.wait()
        return "in time"

    harness = WorkerHarness(handler)
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    task = (await harness.send()).head.id
    worker.look()
    await gate.came.wait()
    draining = asyncio.create_task(worker.drain(5.0))
    await asyncio.sleep(0)
    later = (await harness.send()).head.id
    gate.release()
    await draining
    await running
    assert (await harness.task(task)).status.state is TaskState.COMPLETED
    assert (await harness.head(later)).unread  # and nothing new was begun


# ---- bells that nobody hears ---------------------------------------------------------------


async def test_a_worker_finds_its_work_without_a_bell() -> None:
    harness = WorkerHarness(echo, bell=SilentBell())
    async with harness.working():
        await asyncio.sleep(0.02)
        task = (await harness.send("hello")).head.id
        assert (await harness.ended(task)).artifacts[0].parts[0].text == "hello"


async def waiting(harness: WorkerHarness, wait: Any) -> asyncio.Task[Any]:
    """A reader that has read, and waits."""
    found = asyncio.create_task(wait)
    await harness.until(lambda: harness.bell.listeners.places())
    return found


async def test_maintenance_wakes_a_sender() -> None:
    harness = WorkerHarness(echo, bell=SilentBell())
    send = harness.service.send(SendMessageRequest(message=message("hello")), CALL)
    sending = await waiting(harness, send)
    await harness.run()
    await asyncio.sleep(0.01)
    assert not sending.done()  # nobody has told it
    await harness.maintenance.wake()
    async with asyncio.timeout(30):
        answer: SendMessageResponse = await sending
    assert answer.task is not None
    assert answer.task.status.state is TaskState.COMPLETED


async def test_maintenance_wakes_a_stream(gate: Gate) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield "a"
        await gate.wait()
        yield "b"

    harness = WorkerHarness(handler, bell=SilentBell())
    stream = await harness.service.stream(SendMessageRequest(message=message("x")), CALL)
    assert [entry.number for entry in await stream.next() or ()] == [1]
    following = await waiting(harness, stream.next())
    worker = harness.worker()
    run = worker.begin(await harness.claim(worker))
    await gate.came.wait()
    await asyncio.sleep(0.01)
    assert not following.done()
    await harness.maintenance.wake()
    async with asyncio.timeout(30):
        assert [entry.number for entry in await following] == [2, 3]
    following = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    gate.release()
    await run.task
    async with asyncio.timeout(30):
        while not following.done():
            await harness.maintenance.wake()
            await asyncio.sleep(0)
    assert [entry.number for entry in await following] == [4, 5]
    assert await stream.next() is None
    stream.close()
    assert not harness.bell.listeners.places()


async def test_maintenance_leaves_those_asleep_for_whom_nothing_happened() -> None:
    harness = WorkerHarness(echo, bell=SilentBell())
    send = harness.service.send(SendMessageRequest(message=message("x")), CALL)
    sending = await waiting(harness, send)
    reads = 0
    head = harness.store.head

    async def counted(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        return await head(*args)

    harness.store.head = counted  # type: ignore[method-assign]
    for _ in range(10):
        await harness.maintenance.wake()
        await asyncio.sleep(0)
    assert reads == 0
    sending.cancel()
    await asyncio.wait([sending])


@pytest.mark.clause("send.blocking")
async def test_the_blocking_limit_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell_module, "SWEPT", 0.0)  # no wait has a timer of its own
    harness = WorkerHarness(echo, bell=SilentBell(), blocking_timeout=0.05)
    send = harness.service.send(SendMessageRequest(message=message("x")), CALL)
    sending = await waiting(harness, send)
    await asyncio.sleep(0.1)
    assert not sending.done()  # until somebody sweeps
    await harness.maintenance.wake()
    async with asyncio.timeout(30):
        answer: SendMessageResponse = await sending
    assert answer.task is not None
    assert answer.task.status.state is TaskState.SUBMITTED


async def test_a_sweep_ends_no_wait_before_its_time() -> None:
    harness = WorkerHarness(echo, blocking_timeout=60.0)
    send = harness.service.send(SendMessageRequest(message=message("x")), CALL)
    sending = await waiting(harness, send)
    await harness.maintenance.wake()
    harness.bell.listeners.sweep(asyncio.get_running_loop().time() + 3600)  # it looks, and waits on
    await asyncio.sleep(0.01)
    assert not sending.done()
    sending.cancel()
    await asyncio.wait([sending])


# ---- stores that fail ----------------------------------------------------------------------


class Broken(MemoryStore):
    """Fails where it is told to, as often as it is told to."""

    def __init__(self, **failures: int) -> None:
        super().__init__()
        self.failures = failures

    def broken(self, name: str) -> bool:
        """Whether this call fails."""
        self.failures[name] = self.failures.get(name, 0) - 1
        return self.failures[name] >= 0

    def claim(self, *arguments: Any) -> asyncio.Future[Sequence[Claim]]:
        """Perhaps fails."""
        if self.broken("claim"):
            return _failed()
        return super().claim(*arguments)

    def append(
        self, claim: Claim, entries: Sequence[Entry], *, release: bool = False
    ) -> asyncio.Future[bool]:
        """Perhaps fails."""
        if self.broken("append"):
            return _failed()
        return super().append(claim, entries, release=release)

    async def renew(self, claims: Collection[Claim], lease: float) -> Renewal:
        """Perhaps fails."""
        if self.broken("renew"):
            raise OSError("the disk is gone")
        return await super().renew(claims, lease)

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """Perhaps fails."""
        if self.broken("expired"):
            raise OSError("the disk is gone")
        return await super().expired(agents, limit)


def _failed() -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(OSError("the disk is gone"))
    return future


async def test_a_claim_that_fails_is_tried_again(log: pytest.LogCaptureFixture) -> None:
    harness = WorkerHarness(echo, store=Broken(claim=3))
    async with harness.working():
        task = (await harness.send()).head.id
        assert (await harness.ended(task)).status.state is TaskState.COMPLETED
    assert "cannot claim tasks" in log.text


async def test_a_renewal_that_fails_is_tried_again(
    gate: Gate, log: pytest.LogCaptureFixture
) -> None:
    async def handler(turn: Turn) -> None:
        await gate.wait()

    store = Broken(renew=3)
    harness = WorkerHarness(handler, store=store)
    async with harness.working():
        task = (await harness.send()).head.id
        await harness.until(lambda: store.failures["renew"] < -1)
        gate.release()
        assert (await harness.ended(task)).status.state is TaskState.COMPLETED
    assert "cannot renew claims" in log.text


async def test_a_keeper_goes_on_when_the_store_fails(log: pytest.LogCaptureFixture) -> None:
    harness = WorkerHarness(echo, store=Broken(expired=3))
    claim = await harness.orphan()
    async with harness.working(keeping=True):
        assert (await harness.ended(claim.head.id)).status.state is TaskState.FAILED
    assert "retrying" in log.text


@pytest.mark.parametrize("retries", [0, 1])
async def test_an_append_that_fails_is_not_lost_in_silence(
    retries: int, log: pytest.LogCaptureFixture
) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working()
        await asyncio.sleep(0)
        yield f"attempt {turn.attempt}"

    harness = WorkerHarness(handler, retries=retries, store=Broken(append=1), lease=0.05)
    async with harness.working(keeping=True):
        task = (await harness.send()).head.id
        found = await harness.ended(task)
    assert "append failed" in log.text
    if retries:
        assert found.status.state is TaskState.COMPLETED
        assert found.artifacts[0].parts[0].text == "attempt 2"
    else:
        assert found.status.state is TaskState.FAILED


@pytest.mark.parametrize(
    "say",
    [
        lambda turn: turn.artifact("x", name=5),
        lambda turn: turn.artifact("x", metadata=["a"]),
        lambda turn: TaskStatusUpdateEvent(
            task_id=turn.task.id,
            context_id=turn.context_id,
            status=TaskStatus(state=TaskState.WORKING, message="hello"),  # type: ignore[arg-type]
        ),
    ],
)
async def test_what_cannot_be_read_back_is_not_written(say: Callable[[Turn], Any]) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield say(turn)
        yield turn.ask("and now?")

    harness = WorkerHarness(handler)
    async with harness.working():
        found = await harness.ended((await harness.send()).head.id)
    assert found.status.state is TaskState.FAILED
    assert found.status.message is not None
    assert (
        "not valid" in found.status.message.text or "expected" in found.status.message.text.lower()
    )
