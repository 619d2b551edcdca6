"""Agents that misbehave: the server goes on, the task says what happened, the log says who."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Artifact, Caller, Part, Turn, UserError
from dragoman.model.caller import Call
from dragoman.model.types import (
    CancelTaskRequest,
    Message,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.telemetry.logs import logger
from dragoman.testing import message, run_handler
from tests.harness.app import RunningApp
from tests.harness.clients import Failed, JsonRpc
from tests.harness.gate import Gate
from tests.harness.server import serving
from tests.harness.trust import NOBODY

SOON = 3.0
"""Long enough for what takes a tenth of a second."""
ENDS = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")


class MisbehavingAgent(RunningApp):
    """An agent that misbehaves, a server around it, and a client of that."""

    def __init__(self, app: App, url: str, http: httpx.AsyncClient) -> None:
        super().__init__(app, url, http)
        self.rpc = self.client(JsonRpc)

    async def send(self, text: str = "x", skill: str = "", **more: Any) -> dict[str, Any]:
        """Send a message; the task that came of it."""
        asked = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
        if skill:
            asked["metadata"] = {"skill": skill}
        found: dict[str, Any] = await self.rpc.call("SendMessage", message=asked, **more)
        task: dict[str, Any] = found["task"]
        return task

    async def begin(self, text: str = "x") -> str:
        """Send a message and wait for nothing."""
        task = await self.send(text, configuration={"returnImmediately": True})
        found: str = task["id"]
        return found

    async def get(self, task: str) -> dict[str, Any]:
        """The task as it is now."""
        found: dict[str, Any] = await self.rpc.call("GetTask", id=task)
        return found

    async def until(self, task: str, *states: str) -> dict[str, Any]:
        """The task once it is in one of these states."""
        async with asyncio.timeout(SOON):
            while not (found := await self.get(task))["status"]["state"].endswith(states):
                await asyncio.sleep(0.005)
        return found

    async def alive(self) -> None:
        """The server answers, and still does its work."""
        async with asyncio.timeout(SOON):
            health = await self.http.get(f"{self.url}/healthz")
            assert (health.status_code, health.json()) == (200, {"status": "ok"})
            task = await self.send("still there?", skill="echo")
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert task["artifacts"][0]["parts"] == [{"text": "still there?"}]

    async def calm(self) -> None:
        """No handler is left behind."""
        async with asyncio.timeout(SOON):
            while self.app.stuck or (self.app._worker and self.app._worker.runs):
                await asyncio.sleep(0.005)


@asynccontextmanager
async def misbehaving(
    handler: Any, gate: Gate | None = None, **settings: Any
) -> AsyncIterator[MisbehavingAgent]:
    """Serve a handler; whoever still hangs at the gate is let go at the end."""
    agent = Agent("Faulty", description="Misbehaves.")
    agent.handler(handler)

    @agent.skill
    async def echo(turn: Turn) -> str:
        """Behaves."""
        return turn.text

    defaults = {"cancel_grace": 0.1, "drain_timeout": 0.1, "poll": 0.02}
    app = App(agent, **{**defaults, **settings})
    unseen: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unseen.append(context["message"]))
    async with serving(app) as url, httpx.AsyncClient(timeout=10, verify=NOBODY) as http:
        try:
            found = MisbehavingAgent(app, url, http)
            yield found
            await found.alive()
            gc.collect()
            assert not unseen  # no exception that nobody has looked at
        finally:
            if gate:
                gate.release()


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """Looking for what was left behind need not look at everything."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    """A gate that is open after the test."""
    found = Gate()
    yield found
    found.release()


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """What was logged, whatever an earlier test did to the loggers."""
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level(logging.INFO, "dragoman")
    return caplog


def logged(log: pytest.LogCaptureFixture, *words: str) -> bool:
    """Whether one line has all of these words."""
    return any(all(word in record.getMessage() for word in words) for record in log.records)


def state(task: dict[str, Any]) -> str:
    """The state of a task, in short."""
    found: str = task["status"]["state"]
    return found.removeprefix("TASK_STATE_").lower()


def words(task: dict[str, Any]) -> str:
    """What the status says."""
    found: str = task["status"]["message"]["parts"][0]["text"]
    return found


# ---- raising -------------------------------------------------------------------------------


class Quit(BaseException):
    """What `except Exception` does not see."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("secret"),
    "SystemExit": lambda: SystemExit("secret"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("secret"),
    "StopIteration": lambda: StopIteration("secret"),
    "StopAsyncIteration": lambda: StopAsyncIteration("secret"),
    "GeneratorExit": lambda: GeneratorExit("secret"),
    "CancelledError": lambda: asyncio.CancelledError("secret"),
    "TimeoutError": lambda: TimeoutError("secret"),
    "RecursionError": lambda: RecursionError("secret"),
    "MemoryError": lambda: MemoryError("secret"),
    "Quit": lambda: Quit("secret"),
    "ExceptionGroup": lambda: ExceptionGroup("secret", [ValueError("secret")]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("secret", [SystemExit("secret")]),
}


async def coroutine(turn: Turn) -> None:
    """Raises at once."""
    raise ERRORS[turn.text]()


async def late_coroutine(turn: Turn) -> None:
    """Raises after it has said something."""
    await turn.emit("so far so good")
    await asyncio.sleep(0)
    raise ERRORS[turn.text]()


async def agenerator(turn: Turn) -> AsyncIterator[Any]:
    """Raises after it has said something."""
    yield turn.working()
    yield "so far so good"
    raise ERRORS[turn.text]()


def function(turn: Turn) -> None:
    """Raises in a thread."""
    raise ERRORS[turn.text]()


def generator(turn: Turn) -> Iterator[Any]:
    """Raises in a thread after it has said something."""
    yield "so far so good"
    raise ERRORS[turn.text]()


def returned(turn: Turn) -> Any:
    """Raises in what it returns."""
    return coroutine(turn)


@pytest.mark.clause("errors.logged", "state.terminal-final")
@pytest.mark.parametrize(
    "kind", [coroutine, late_coroutine, agenerator, function, generator, returned]
)
async def test_whatever_is_raised_fails_the_task(kind: Any, log: pytest.LogCaptureFixture) -> None:
    async with misbehaving(kind) as found:
        for name in ERRORS:
            log.clear()
            task = await found.send(name)
            assert state(task) == "failed", name
            said = words(task)
            if name in (
                "StopIteration",
                "StopAsyncIteration",
                "GeneratorExit",
                "KeyboardInterrupt",
            ):
                # Python itself makes a RuntimeError of some of these, and so do threads
                assert name in said or "RuntimeError" in said
            else:
                assert f"({name})" in said
            assert "correlation id" in said
            assert "secret" not in said
            assert logged(log, f"handler {kind.__name__} raised"), name
            (record,) = [r for r in log.records if "raised" in r.getMessage()]
            assert record.exc_info
            if name != "CancelledError":
                assert "secret" in record.exc_text
            if kind not in (coroutine, function, returned):
                assert task["artifacts"][0]["parts"] == [{"text": "so far so good"}]
        await found.calm()


async def test_the_log_tells_where_a_cancellation_came_from(log: pytest.LogCaptureFixture) -> None:
    async with misbehaving(coroutine) as found:
        await found.send("CancelledError")
    (record,) = [r for r in log.records if "raised" in r.getMessage()]
    assert "in coroutine" in (record.exc_text or "")


async def test_a_failing_agent_harms_no_other_task(gate: Gate) -> None:
    async def handler(turn: Turn) -> str:
        if turn.text == "wait":
            await gate.wait()
            return "done"
        raise ERRORS[turn.text]()

    async with misbehaving(handler, gate) as found:
        task = await found.begin("wait")
        await gate.came.wait()
        failures = await asyncio.gather(*(found.send(name) for name in ERRORS))
        assert {state(task) for task in failures} == {"failed"}
        assert state(await found.get(task)) == "submitted"
        gate.release()
        assert state(await found.until(task, *ENDS)) == "completed"


async def test_the_last_word_stands_though_the_handler_fails_after_it(
    log: pytest.LogCaptureFixture,
) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield turn.complete("all done")
        raise ValueError("secret")

    async with misbehaving(handler) as found:
        task = await found.send()
        assert (state(task), words(task)) == ("completed", "all done")
        assert logged(log, "handler handler raised ValueError")


class NoSeats(UserError):
    """One of an author's own."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text or "No seats on that day")


class Wordless(UserError):
    """One whose author forgot the text."""

    def __init__(self) -> None:
        pass


USER_ERRORS: dict[str, tuple[Callable[[], UserError], str]] = {
    "plain": (lambda: UserError("No seats on that day"), "No seats on that day"),
    "own": (NoSeats, "No seats on that day"),
    "long": (lambda: UserError("x" * 100_000), "x" * 1999 + "…"),
    "surrogate": (lambda: UserError("a \ud800 b"), "a ? b"),
    "empty": (lambda: UserError(" "), "The agent could not do this"),
    "wordless": (Wordless, "The agent could not do this"),
}


@pytest.mark.parametrize("kind", ["coroutine", "agenerator", "function", "reply"])
async def test_the_client_sees_the_text_of_a_user_error_and_not_its_cause(
    kind: str, log: pytest.LogCaptureFixture
) -> None:
    def function(turn: Turn) -> None:
        try:
            raise ValueError("secret")
        except ValueError as error:
            raise USER_ERRORS[turn.text][0]() from error

    async def coroutine(turn: Turn) -> None:
        function(turn)

    async def reply(turn: Turn) -> Message:
        function(turn)
        return Message(message_id="m", role=Role.AGENT)

    async def agenerator(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working()
        function(turn)

    handlers = {"coroutine": coroutine, "agenerator": agenerator, "function": function}
    async with misbehaving({**handlers, "reply": reply}[kind]) as found:
        for name, (_, text) in USER_ERRORS.items():
            log.clear()
            task = await found.send(name)
            assert (state(task), words(task)) == ("failed", text), name
            assert "secret" not in str(await found.get(task["id"]))
            (record,) = [r for r in log.records if "raised" in r.getMessage()]
            assert record.levelno == logging.INFO
            assert "secret" in str(record.exc_text)  # the log has the cause


async def test_a_user_error_is_an_answer_even_in_a_strict_test() -> None:
    async def handler(turn: Turn) -> None:
        raise UserError("No seats on that day")

    agent = Agent("Faulty", description="Misbehaves.")
    agent.handler(handler)
    told = await run_handler(agent, "x", strict=True)
    assert isinstance(told.error, UserError)
    assert told.task is not None
    assert told.task.status.message is not None
    assert told.task.status.message.text == "No seats on that day"


def test_a_user_error_is_a_text() -> None:
    with pytest.raises(TypeError, match="UserError: expected a text, got ValueError"):
        UserError(ValueError("secret"))  # type: ignore[arg-type]


# ---- hanging -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "agenerator", "function", "generator"])
async def test_one_that_hangs_is_ended_at_its_deadline(
    kind: str, gate: Gate, log: pytest.LogCaptureFixture
) -> None:
    async def coroutine(turn: Turn) -> str:
        await gate.wait()
        return "too late"

    async def agenerator(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working("hm")
        await gate.wait()
        yield "too late"

    def function(turn: Turn) -> str:
        gate.block()
        return "too late"

    def generator(turn: Turn) -> Iterator[Any]:
        yield turn.working("hm")
        gate.block()
        yield "too late"

    async with misbehaving(locals()[kind], gate, turn_timeout=0.1) as found:
        async with asyncio.timeout(SOON):
            task = await found.send()
        assert state(task) == "failed"
        assert words(task) == "The agent did not finish within 0.1 seconds"
        await found.alive()
        gate.release()
        await found.calm()
        again = await found.get(task["id"])
        assert again == task
        assert "artifacts" not in again
    assert logged(log, kind)


async def test_one_that_hangs_and_swallows_its_cancellation(
    gate: Gate, log: pytest.LogCaptureFixture
) -> None:
    async def stubborn(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working("hm")
        await gate.wait_stubbornly()
        yield turn.complete("too late")

    async with misbehaving(stubborn, gate, turn_timeout=0.1) as found:
        async with asyncio.timeout(SOON):
            task = await found.send()
        assert state(task) == "failed"
        assert words(task) == "The agent did not finish within 0.1 seconds"
        assert logged(log, "stubborn", "continues")
        assert found.app.stuck == ["stubborn"]
        await found.alive()
        gate.release()
        await found.calm()
        assert await found.get(task["id"]) == task


async def test_many_that_hang_leave_room_for_others(gate: Gate) -> None:
    async def stubborn(turn: Turn) -> None:
        await gate.wait_stubbornly()

    async with misbehaving(stubborn, gate, turn_timeout=0.1, max_running=4) as found:
        async with asyncio.timeout(2 * SOON):
            tasks = await asyncio.gather(*(found.send() for _ in range(8)))
        assert {state(task) for task in tasks} == {"failed"}
        await found.alive()
        gate.release()
        await found.calm()


async def test_threads_that_never_return_leave_room_for_others(gate: Gate) -> None:
    def blocking(turn: Turn) -> str:
        if turn.text == "hang":
            gate.block()
        return "free"

    async with misbehaving(blocking, gate, turn_timeout=0.2, threads=2) as found:
        async with asyncio.timeout(SOON):
            tasks = await asyncio.gather(*(found.send("hang") for _ in range(2)))
        assert {state(task) for task in tasks} == {"failed"}
        async with asyncio.timeout(SOON):
            assert state(await found.send("go on")) == "completed"


async def test_a_client_that_waits_no_longer_gets_the_task_as_it_is(gate: Gate) -> None:
    async def patient(turn: Turn) -> str:
        await gate.wait()
        return "at last"

    async with misbehaving(patient, gate, blocking_timeout=0.05) as found:
        task = await found.send()
        assert state(task) == "submitted"
        gate.release()
        assert state(await found.until(task["id"], *ENDS)) == "completed"


# ---- flooding ------------------------------------------------------------------------------

ENDLESS = 300_000
"""More than any of these is allowed; a true flood would never let the tests fail."""


async def flood(turn: Turn) -> AsyncIterator[Any]:
    """Says more than anybody wants to hear, without ever pausing."""
    for _ in range(ENDLESS):
        yield "all work and no play "


async def emitted_flood(turn: Turn) -> None:
    """The same by a coroutine."""
    for _ in range(ENDLESS):
        await turn.emit("all work and no play ")


def plain_flood(turn: Turn) -> Iterator[Any]:
    """The same in a thread."""
    for _ in range(ENDLESS):
        yield "all work and no play "


async def status_flood(turn: Turn) -> AsyncIterator[Any]:
    """The same with statuses."""
    for _ in range(ENDLESS):
        yield turn.working("all work and no play ")


FLOODS = [flood, emitted_flood, plain_flood, status_flood]


@pytest.mark.clause("limits.sizes", "errors.invalid-agent-response")
@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.parametrize(
    ("limit", "said"),
    [({"max_events": 300}, "300 events"), ({"max_output": 50_000}, "50000 bytes")],
)
async def test_a_flood_is_ended_at_its_limit(
    kind: Any,
    limit: dict[str, int],
    said: str,
    log: pytest.LogCaptureFixture,
    constants: Callable[..., None],
) -> None:
    constants(**limit)
    async with misbehaving(kind) as found:
        async with asyncio.timeout(SOON):
            task = await found.send()
        assert state(task) == "failed"
        assert words(task).startswith("Invalid agent response")
        assert said in words(task)
        assert logged(log, f"handler {kind.__name__}", said)
        await found.calm()


async def test_one_answer_that_is_too_large(log: pytest.LogCaptureFixture) -> None:
    async def large(turn: Turn) -> str:
        return "x" * 100_000

    async with misbehaving(large, max_task_bytes=200_000) as found:
        async with asyncio.timeout(SOON):
            task = await found.send()
        assert state(task) == "failed"
        assert "50000 bytes" in words(task)
        assert "artifacts" not in task
        assert logged(log, "handler large", "50000 bytes")


@pytest.mark.parametrize("kind", FLOODS)
async def test_others_are_answered_during_a_flood(
    kind: Any, log: pytest.LogCaptureFixture, constants: Callable[..., None]
) -> None:
    constants(max_events=10**9, max_output=10**12)
    async with misbehaving(kind) as found:
        task = await found.begin()
        for _ in range(3):
            await found.alive()
            assert (await found.get(task))["status"]["state"] not in ENDS
        canceled = await found.rpc.call("CancelTask", id=task)
        assert state(canceled) == "canceled"
        await found.calm()


async def test_what_a_flood_holds_open_is_closed_when_it_is_canceled(
    constants: Callable[..., None],
) -> None:
    constants(max_events=10**9, max_output=10**12)
    closed = asyncio.Event()

    async def careful_flood(turn: Turn) -> AsyncIterator[Any]:
        try:
            for _ in range(ENDLESS):
                yield "all work and no play "
        finally:
            await asyncio.sleep(0)
            closed.set()

    async with misbehaving(careful_flood) as found:
        task = await found.begin()
        await found.alive()
        await found.rpc.call("CancelTask", id=task)
        async with asyncio.timeout(2):
            await closed.wait()


@pytest.mark.clause("cancel.updated-task")
async def test_a_flood_that_has_more_to_say_when_it_is_canceled(
    constants: Callable[..., None],
) -> None:
    constants(max_events=10**9, max_output=10**12)

    async def talkative_flood(turn: Turn) -> AsyncIterator[Any]:
        try:
            for _ in range(ENDLESS):
                yield "all work and no play "
        finally:
            yield turn.working("one more thing")

    async with misbehaving(talkative_flood) as found:
        task = await found.begin()
        await found.alive()
        assert state(await found.rpc.call("CancelTask", id=task)) == "canceled"
        await found.calm()


# ---- after the end -------------------------------------------------------------------------


@pytest.mark.clause("state.terminal-final")
@pytest.mark.parametrize("end", ["complete", "fail", "reject"])
async def test_what_is_said_after_the_end_is_dropped(
    end: str, log: pytest.LogCaptureFixture
) -> None:
    async def talkative(turn: Turn) -> AsyncIterator[Any]:
        yield "in time"
        yield getattr(turn, end)("the end")
        yield turn.working("late")
        yield "too late"
        await asyncio.sleep(0.02)
        yield turn.artifact("much too late")
        yield turn.complete("no, this is the end")

    async with misbehaving(talkative) as found:
        task = await found.send()
        assert words(task) == "the end"
        await found.calm()
        task = await found.get(task["id"])
        assert words(task) == "the end"
        assert task["artifacts"] == [{"artifactId": task["artifacts"][0]["artifactId"],
                                      "parts": [{"text": "in time"}]}]  # fmt: skip
        assert logged(log, "handler talkative", "dropped", "TaskStatusUpdateEvent")


class Clock:
    """Counts the turns that others have; a handler that leaves none to them counts alone."""

    def __init__(self) -> None:
        self.ticks = 0
        self.left: int | None = None
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0)

    async def flood(self, turn: Turn) -> AsyncIterator[str]:
        """Go on until others had their turn, or long enough to know that they never will."""
        before, self.left = self.ticks, 5000
        while self.ticks < before + 3 and self.left:
            self.left -= 1
            yield "and on and on "

    async def stop(self) -> bool:
        """Whether others had their turn."""
        self._task.cancel()
        await asyncio.wait([self._task])
        return self.left is None or self.left > 0


@pytest.mark.parametrize("kind", ["agenerator", "coroutine"])
async def test_a_flood_after_the_end_stops_nobody_else(kind: str) -> None:
    async def agenerator(turn: Turn) -> AsyncIterator[Any]:
        yield turn.complete("the end")
        async for more in clock.flood(turn):
            yield more

    async def coroutine(turn: Turn) -> None:
        await turn.emit(turn.complete("the end"))
        async for more in clock.flood(turn):
            await turn.emit(more)

    async with misbehaving(locals()[kind]) as found:
        clock = Clock()
        task = await found.send()
        assert (state(task), words(task)) == ("completed", "the end")
        await found.calm()
        assert await clock.stop()


async def test_a_flood_after_the_turn_stops_nobody_else() -> None:
    background: list[asyncio.Task[None]] = []
    asked = asyncio.Event()

    async def restless(turn: Turn) -> Any:
        async def later() -> None:
            await asked.wait()
            async for more in clock.flood(turn):
                await turn.emit(more)

        background.append(asyncio.create_task(later()))
        return turn.ask("which?")

    async with misbehaving(restless) as found:
        clock = Clock()
        assert state(await found.send()) == "input_required"
        await found.calm()
        asked.set()
        await asyncio.gather(*background)
        assert await clock.stop()


async def test_a_flood_after_a_cancel_that_was_swallowed_stops_nobody_else(gate: Gate) -> None:
    async def stubborn(turn: Turn) -> None:
        await gate.wait_stubbornly()
        async for more in clock.flood(turn):
            with suppress(asyncio.CancelledError):
                await turn.emit(more)

    async with misbehaving(stubborn, gate) as found:
        clock = Clock()
        task = await found.begin()
        await gate.came.wait()
        assert state(await found.rpc.call("CancelTask", id=task)) == "canceled"
        gate.release()
        await found.calm()
        assert await clock.stop()


async def test_one_that_goes_on_after_it_asked(log: pytest.LogCaptureFixture) -> None:
    background: set[asyncio.Task[None]] = set()
    asked = asyncio.Event()

    async def restless(turn: Turn) -> AsyncIterator[Any]:
        async def later() -> None:
            await asked.wait()
            await turn.emit(turn.working("on my own"))
            await turn.emit("a present")

        background.add(asyncio.create_task(later()))
        yield turn.ask("which?")

    async with misbehaving(restless) as found:
        task = await found.send()
        assert state(task) == "input_required"
        await found.calm()
        asked.set()
        await asyncio.gather(*background)
        await asyncio.sleep(0.05)
        assert await found.get(task["id"]) == task
        assert logged(log, "handler restless", "dropped")


# ---- wrong answers -------------------------------------------------------------------------


def unknown_artifact(turn: Turn) -> Any:
    """More of what was never begun."""
    return TaskArtifactUpdateEvent(
        task_id=turn.task.id,
        context_id=turn.context_id,
        artifact=Artifact(artifact_id="nothing", parts=(Part(text="more"),)),
        append=True,
    )


def another_task(turn: Turn) -> Any:
    """A word about somebody else's task."""
    return TaskStatusUpdateEvent(
        task_id="another",
        context_id=turn.context_id,
        status=TaskStatus(state=TaskState.WORKING),
    )


def back_to_submitted(turn: Turn) -> Any:
    """A step back."""
    return TaskStatusUpdateEvent(
        task_id=turn.task.id,
        context_id=turn.context_id,
        status=TaskStatus(state=TaskState.SUBMITTED),
    )


WRONG: dict[str, tuple[Callable[[Turn], Any], str]] = {
    "an unknown artifact": (unknown_artifact, "does not exist: nothing"),
    "another task": (another_task, "another task"),
    "a step back": (back_to_submitted, "to submitted"),
    "an object": (lambda turn: object(), "object"),
    "a surrogate": (lambda turn: "\ud800", "surrogate"),
    "a surrogate at the end": (lambda turn: turn.complete("\ud800"), "surrogate"),
    "a cycle": (lambda turn: cyclic(), ""),
}


def cyclic() -> Any:
    """A dict that holds itself."""
    found: dict[str, Any] = {}
    found["self"] = found
    return found


@pytest.mark.clause("errors.invalid-agent-response")
@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_answer_fails_the_task(name: str, log: pytest.LogCaptureFixture) -> None:
    make, said = WRONG[name]

    async def mistaken(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working()
        yield make(turn)
        await asyncio.sleep(0)
        yield "never heard"

    async with misbehaving(mistaken) as found:
        async with asyncio.timeout(SOON):
            task = await found.send()
        assert state(task) == "failed"
        assert words(task).startswith("Invalid agent response: ")
        assert said in words(task)
        assert "artifacts" not in task
        assert logged(log, "handler mistaken", "invalid agent response", said)
        await found.calm()


@pytest.mark.clause("errors.invalid-agent-response", "send.task-or-message")
async def test_a_wrong_reply_is_answered_too(log: pytest.LogCaptureFixture) -> None:
    agent = Agent("Faulty", description="Misbehaves.")

    @agent.handler(reply=True)
    async def mistaken(turn: Turn) -> str:
        return "\ud800"

    async with httpx.AsyncClient(timeout=10) as http, serving(App(agent, drain_timeout=0.1)) as url:
        async with asyncio.timeout(SOON):
            task = await MisbehavingAgent(App(agent), url, http).send()
        assert state(task) == "failed"
        assert words(task).startswith("Invalid agent response: ")


# ---- cancels -------------------------------------------------------------------------------


@pytest.mark.clause("cancel.updated-task")
async def test_one_that_swallows_a_cancel(gate: Gate, log: pytest.LogCaptureFixture) -> None:
    async def stubborn(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working("hm")
        await gate.wait_stubbornly()
        yield "too late"
        yield turn.complete("no")

    async with misbehaving(stubborn, gate) as found:
        task = await found.begin()
        await gate.came.wait()
        async with asyncio.timeout(SOON):
            canceled = await found.rpc.call("CancelTask", id=task)
        assert state(canceled) == "canceled"
        await found.alive()
        async with asyncio.timeout(SOON):
            while not found.app.stuck:
                await asyncio.sleep(0.005)
        assert found.app.stuck == ["stubborn"]
        assert logged(log, "handler stubborn", "continues")
        gate.release()
        await found.calm()
        assert await found.get(task) == canceled


@pytest.mark.clause("cancel.updated-task")
@pytest.mark.parametrize("kind", ["function", "generator"])
async def test_a_thread_that_cannot_be_interrupted(
    kind: str, gate: Gate, log: pytest.LogCaptureFixture
) -> None:
    def function(turn: Turn) -> str:
        gate.block()
        return "too late"

    def generator(turn: Turn) -> Iterator[str]:
        yield "in time"
        gate.block()
        yield "too late"

    async with misbehaving(locals()[kind], gate) as found:
        task = await found.begin()
        await gate.came.wait()
        async with asyncio.timeout(SOON):
            canceled = await found.rpc.call("CancelTask", id=task)
        assert state(canceled) == "canceled"
        await found.alive()
        gate.release()
        await found.calm()
        await asyncio.sleep(0.02)
        assert await found.get(task) == canceled


class Careless:
    """Has a `cancel` that misbehaves."""

    def __init__(self, gate: Gate, how: Callable[[Gate], Any]) -> None:
        self.gate = gate
        self.how = how

    async def run(self, turn: Turn) -> None:
        """Hangs."""
        await self.gate.wait()

    async def cancel(self, turn: Turn) -> Any:
        """Does what it was told."""
        found = self.how(self.gate)
        return await found if asyncio.iscoroutine(found) else found


def raising(error: BaseException) -> Callable[[Gate], Any]:
    """What raises this."""

    def fail(gate: Gate) -> None:
        raise error

    return fail


CANCELS: dict[str, Callable[[Gate], Any]] = {
    "an exception": raising(ValueError("secret")),
    "an exit": raising(Quit("secret")),
    "a cancellation": raising(asyncio.CancelledError()),
    "a wrong answer": lambda gate: object(),
    "hanging": lambda gate: gate.wait(),
    "stubborn": lambda gate: gate.wait_stubbornly(),
}


@pytest.mark.clause("cancel.updated-task")
@pytest.mark.parametrize("name", CANCELS)
async def test_a_cancel_that_misbehaves(
    name: str, gate: Gate, log: pytest.LogCaptureFixture
) -> None:
    async with misbehaving(Careless(gate, CANCELS[name]), gate) as found:
        task = await found.begin()
        await gate.came.wait()
        async with asyncio.timeout(SOON):
            canceled = await found.rpc.call("CancelTask", id=task)
        assert state(canceled) == "canceled"
        await found.alive()
        if name == "stubborn":
            gate.release()
        await found.calm()
        with pytest.raises(Failed) as failed:
            await found.rpc.call("CancelTask", id=task)
        assert failed.value.reason == "TASK_NOT_CANCELABLE"
    if name != "a cancellation":
        assert logged(log, "Careless")


def test_a_cancel_that_exits_does_not_end_the_server() -> None:
    # In a loop of its own: what it lets through would end that of the other tests.
    async def scenario() -> None:
        gate = Gate()
        agent = Agent("Faulty", description="Misbehaves.")
        agent.handler(Careless(gate, raising(SystemExit(3))))
        async with App(agent, drain_timeout=0.0, poll=0.02, cancel_grace=0.5) as app:
            service = app.endpoints[agent.key].service
            call = Call(Caller())
            immediately = SendMessageConfiguration(return_immediately=True)
            asked = SendMessageRequest(message=message("x"), configuration=immediately)
            answer = await service.send(asked, call)
            assert answer.task is not None
            await gate.came.wait()
            task = await service.cancel(CancelTaskRequest(id=answer.task.id), call)
            assert task.status.state is TaskState.CANCELED

    try:
        asyncio.run(asyncio.wait_for(scenario(), SOON))
    except SystemExit:
        pytest.fail("the agent's exit is the server's")


# ---- blocking the loop ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "agenerator"])
async def test_one_that_blocks_the_loop_is_named_with_its_stack(
    kind: str, log: pytest.LogCaptureFixture, constants: Callable[..., None]
) -> None:
    constants(watchdog=0.1)

    def doze() -> None:
        time.sleep(0.5)

    async def coroutine(turn: Turn) -> str:
        await asyncio.sleep(0)
        doze()
        return "good morning"

    async def agenerator(turn: Turn) -> AsyncIterator[str]:
        yield "good "
        doze()
        yield "morning"

    async with misbehaving(locals()[kind]) as found:
        task = await found.send()
        assert state(task) == "completed"
        await found.alive()
    who = f"handler {kind} (task {task['id']}) has blocked the event loop"
    (report,) = [r.stack_info or "" for r in log.records if r.getMessage().startswith(who)]
    assert "in doze" in report
    assert "time.sleep(0.5)" in report


async def test_the_watchdog_says_nothing_of_one_in_a_thread(
    log: pytest.LogCaptureFixture, constants: Callable[..., None]
) -> None:
    constants(watchdog=0.1)

    def slow(turn: Turn) -> str:
        time.sleep(0.4)
        return "in a thread"

    async with misbehaving(slow) as found:
        assert state(await found.send()) == "completed"
    # (a machine that is busy may make the loop late, but no handler is to blame)
    assert not [r for r in log.records if r.getMessage().startswith("handler")]
