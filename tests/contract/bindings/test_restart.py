"""What a new server does with the store of a killed one.

The files are copied while the first server uses them, which equals what a kill leaves; the second
server starts with the copy.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Message, Turn
from dragoman.model.events import RESUME
from tests.contract.bindings.conftest import identify, user
from tests.contract.bindings.test_send import ended, until
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, HttpJson, JsonRpc
from tests.harness.server import serving
from tests.harness.trust import NOBODY

Start = Callable[..., Any]
pytestmark = pytest.mark.needs("json")  # the disk is behind all bindings: two will do


def workshop(*, retries: int = 0) -> Agent:
    """An agent that counts, asks and answers, and notes down every run."""
    agent = Agent("Workshop", description="Counts.", retries=retries)
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]
    agent.runs = []  # type: ignore[attr-defined]

    @agent.handler
    async def work(turn: Turn) -> AsyncIterator[Any]:
        """Do what the text says."""
        agent.runs.append((turn.idempotency_key, turn.attempt))  # type: ignore[attr-defined]
        yield turn.working(f"attempt {turn.attempt}")
        if turn.text == "ask":
            yield turn.ask("Which?")
            return
        for number in range(5):
            yield turn.write(f"{number}")
        await asyncio.sleep(0)
        gate: asyncio.Event = agent.gate  # type: ignore[attr-defined]
        if turn.text == "gate":
            await gate.wait()
        while turn.text == "stubborn" and not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()
        yield turn.write("end")

    @agent.skill(reply=True)
    async def talk(turn: Turn) -> Message | str:
        """Answer without a task."""
        agent.runs.append((turn.idempotency_key, turn.attempt))  # type: ignore[attr-defined]
        return f"you said {turn.text}"

    return agent


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a server on a copy of the file of another, or on a new one."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=20, verify=NOBODY))
        count = 0

        async def start(
            before: RunningApp | None = None, retries: int = 0, **settings: Any
        ) -> RunningApp:
            nonlocal count
            count += 1
            path = tmp_path / f"{count}.db"
            if before is not None:
                old = before.app.store.path  # type: ignore[attr-defined]
                for end in ("", "-wal"):
                    shutil.copy(f"{old}{end}", f"{path}{end}")
            agent = workshop(retries=retries)
            settings = {"cancel_grace": 0.3, "drain_timeout": 0.0, "poll": 0.02, **settings}
            app = App(agent, store=f"sqlite:///{path}", identify=identify, **settings)
            url = await stack.enter_async_context(serving(app))
            stack.callback(agent.gate.set)  # type: ignore[attr-defined]
            return RunningApp(app, url, http)

        yield start


def runs(server: RunningApp) -> list[tuple[str, int]]:
    """Which turns ran there."""
    found: list[tuple[str, int]] = server.agent.runs  # type: ignore[attr-defined]
    return found


async def at_the_gate(server: RunningApp, kind: type[Binding], text: str = "gate") -> str:
    """A task that is in the middle of its work."""
    async with server.client(kind).open("SendStreamingMessage", message=user(text)) as events:
        async for seen in events:
            update = seen.event.get("artifactUpdate")
            if update and update["artifact"]["parts"][0]["text"] == "4":
                return str(update["taskId"])
    raise AssertionError("it ended")


async def test_what_was_there_is_there(begin: Start, kind: type[Binding]) -> None:
    first = await begin()
    client = first.client(kind)
    done = (await client.call("SendMessage", message=user("hi")))["task"]
    asked = (await client.call("SendMessage", message=user("ask")))["task"]
    second = await begin(first)
    client = second.client(kind)
    assert await client.call("GetTask", id=done["id"]) == done
    assert await client.call("GetTask", id=asked["id"]) == asked
    assert (await client.call("ListTasks"))["totalSize"] == 2
    assert runs(second) == []
    again = await client.call("SendMessage", message=user("now", taskId=asked["id"]))
    assert again["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert [m["parts"][0]["text"] for m in again["task"]["history"]] == [
        *("ask", "attempt 1", "Which?", "now", "attempt 1"),
    ]


async def test_a_turn_that_may_be_repeated_is(begin: Start, kind: type[Binding]) -> None:
    first = await begin()
    task = await at_the_gate(first, kind)
    second = await begin(first, retries=1)
    second.gate.set()
    found = await ended(second.client(kind), task)
    assert found["status"]["state"] == "TASK_STATE_COMPLETED"
    assert runs(first) == [(f"{task}:1", 1)]
    assert runs(second) == [(f"{task}:1", 2)]
    # the second attempt replaces what the first one wrote
    (artifact,) = found["artifacts"]
    assert artifact["parts"] == [{"text": "01234end"}]


async def test_a_turn_that_may_not_be_repeated_fails(begin: Start, kind: type[Binding]) -> None:
    first = await begin()
    task = await at_the_gate(first, kind)
    second = await begin(first)
    found = await ended(second.client(kind), task)
    assert found["status"]["state"] == "TASK_STATE_FAILED"
    assert "worker stopped" in found["status"]["message"]["parts"][0]["text"]
    assert runs(second) == []


async def test_a_poisonous_task_ends_after_its_attempts(begin: Start, kind: type[Binding]) -> None:
    server = await begin(retries=2)
    task = await at_the_gate(server, kind)
    for attempt in (2, 3):
        server = await begin(server, retries=2)
        await until_runs(server, [(f"{task}:1", attempt)])
        await until_state(server, task, "attempt " + str(attempt))
    server = await begin(server, retries=2)
    found = await ended(server.client(kind), task)
    assert found["status"]["state"] == "TASK_STATE_FAILED"
    assert "attempt 3" in found["status"]["message"]["parts"][0]["text"]
    assert runs(server) == []


async def until_runs(server: RunningApp, expected: list[tuple[str, int]]) -> None:
    """Until these turns have begun."""
    async with asyncio.timeout(10):
        while runs(server) != expected:
            await asyncio.sleep(0.005)


async def until_state(server: RunningApp, task: str, text: str) -> None:
    """Until the task's status says this: it is on disk, then."""
    client = server.client(HttpJson)
    async with asyncio.timeout(10):
        while True:
            found = await client.call("GetTask", id=task)
            message = found["status"].get("message")
            if message and message["parts"][0]["text"] == text:
                return
            await asyncio.sleep(0.005)


async def test_a_pending_cancel_beats_another_attempt(begin: Start, kind: type[Binding]) -> None:
    first = await begin(cancel_grace=30.0)
    task = await at_the_gate(first, kind, "stubborn")
    asked = asyncio.create_task(first.client(kind).call("CancelTask", id=task))
    async with asyncio.timeout(10):
        while not (await _head(first, task)).canceling:
            await asyncio.sleep(0.005)
    second = await begin(first, retries=5)
    found = await ended(second.client(kind), task)
    assert found["status"]["state"] == "TASK_STATE_CANCELED"
    assert runs(second) == []
    first.gate.set()
    await asyncio.gather(asked, return_exceptions=True)


async def _head(server: RunningApp, task: str) -> Any:
    service = next(iter(server.app.endpoints.values())).service
    head = await server.app.store.head(service.scopes.anybody, task)
    assert head is not None
    return head


async def test_a_stream_goes_on_where_it_was(begin: Start, kind: type[Binding]) -> None:
    first = await begin()
    task = await at_the_gate(first, kind)
    first.gate.set()
    whole = await first.client(kind, A2A_Extensions=RESUME, Last_Event_ID=f"{task}:1").stream(
        "SubscribeToTask", id=task
    )
    second = await begin(first)
    for place in range(1, len(whole) + 2):
        client = second.client(kind, A2A_Extensions=RESUME, Last_Event_ID=f"{task}:{place}")
        assert await client.stream("SubscribeToTask", id=task) == whole[place - 1 :]


@pytest.mark.parametrize("message", [user("hi"), user("hi", metadata={"skill": "talk"})])
async def test_a_repeated_send_is_recognised(
    begin: Start, kind: type[Binding], message: dict[str, Any]
) -> None:
    first = await begin()
    client = first.client(kind, Idempotency_Key="k")
    answer = await client.call("SendMessage", message=message)
    second = await begin(first)
    for other in (JsonRpc, HttpJson):  # the binding does not matter
        client = second.client(other, Idempotency_Key="k")
        assert await client.call("SendMessage", message=message) == answer
    assert runs(second) == []
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=user("another"))
    assert failed.value.fields == ["Idempotency-Key"]


@pytest.mark.clause("cancel.idempotent", "cancel.terminal-task")
@pytest.mark.parametrize("text", ["ask", "gate"])
async def test_a_repeated_cancel_is_recognised(
    begin: Start, kind: type[Binding], text: str
) -> None:
    """Of a task that is in work, and of one that is not."""
    first = await begin()
    if text == "gate":
        task = await at_the_gate(first, kind)
    else:
        sent = await first.client(kind).call("SendMessage", message=user(text))
        task = sent["task"]["id"]
    client = first.client(kind, Idempotency_Key="k")
    found = await asyncio.gather(*(client.call("CancelTask", id=task) for _ in range(5)))
    assert found == [found[0]] * 5
    assert found[0]["status"]["state"] == "TASK_STATE_CANCELED"
    second = await begin(first)
    for other in (JsonRpc, HttpJson):  # the binding does not matter
        client = second.client(other, Idempotency_Key="k")
        assert await client.call("CancelTask", id=task) == found[0]
        for headers in ({}, {"Idempotency_Key": "another"}):
            with pytest.raises(Failed) as failed:
                await second.client(other, **headers).call("CancelTask", id=task)
            assert failed.value.reason == "TASK_NOT_CANCELABLE"
        for call in (
            client.call("CancelTask", id=task, metadata={"why": "because"}),
            client.call("SendMessage", message=user("hi")),
        ):
            with pytest.raises(Failed) as failed:
                await call
            assert failed.value.fields == ["Idempotency-Key"]


async def test_a_hundred_at_once_are_one(begin: Start, kind: type[Binding]) -> None:
    server = await begin()
    client = server.client(kind, Idempotency_Key="k")
    plain = server.client(kind)
    asked = (await plain.call("SendMessage", message=user("ask")))["task"]["id"]
    for message in (user("hi"), user("hi", metadata={"skill": "talk"}), user("x", taskId=asked)):
        client = server.client(kind, Idempotency_Key=f"k{len(runs(server))}")
        first, *rest = await asyncio.gather(
            *(client.call("SendMessage", message=message) for _ in range(100))
        )
        assert all(answer == first for answer in rest)
    assert len(runs(server)) == 4


async def test_an_identical_message_of_a_known_caller(begin: Start, kind: type[Binding]) -> None:
    first = await begin()
    one = await first.client(kind, X_User="ann").call("SendMessage", message=user("hi"))
    second = await begin(first)
    two = await second.client(kind, X_User="ann").call("SendMessage", message=user("hi"))
    assert one == two
    assert runs(second) == []
    await second.client(kind, X_User="bob").call("SendMessage", message=user("hi"))
    assert len(runs(second)) == 1


async def test_what_waits_in_the_queue_is_worked_on(begin: Start, kind: type[Binding]) -> None:
    first = await begin(max_running=1)
    task = await at_the_gate(first, kind)
    immediately = {"returnImmediately": True}
    waiting = []
    for _ in range(5):
        answer = await first.client(kind).call(
            "SendMessage", message=user("hi"), configuration=immediately
        )
        waiting.append(answer["task"]["id"])
    second = await begin(first, max_running=1)
    for each in waiting:
        assert (await ended(second.client(kind), each))["status"]["state"].endswith("COMPLETED")
    assert [key for key, _ in runs(second)] == [f"{each}:1" for each in waiting]
    await until(second.client(kind), task, "FAILED")
