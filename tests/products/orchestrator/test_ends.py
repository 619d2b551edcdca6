"""How tasks end: by a cancel, a stop of the process, an agent that goes away; and what stays."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman import App, TaskState, Turn
from dragoman.client import Client, StaticToken
from dragoman.orchestrator import Orchestrator, Plan, Step
from dragoman.security import ApiKey, Token
from tests.harness.remote_agents import Reference, WithReceipts
from tests.harness.server import serving
from tests.products.orchestrator.office import (
    Worker,
    begun,
    eventually,
    office,
    planning,
    quick,
    said,
    sources,
    states,
)

CANCELED = TaskState.CANCELED


def steps(*found: Step) -> Any:
    """A plan function that has these steps."""
    return lambda turn, members: list(found)


@pytest.fixture
def flight() -> Worker:
    return Worker("Flight")


async def test_a_cancel_cancels_what_runs(flight: Worker) -> None:
    plan = steps(Step("done", "flight", input="A"), Step("out", "flight", input="gate"))
    travel = planning([flight], plan)
    async with office(travel) as client:
        task = await begun(client, "go")
        await flight.reached.wait()
        found = await client.task(task).cancel()
        assert found.status.state is CANCELED

        async def ended() -> bool:
            return sorted(await states(travel, flight)) == ["CANCELED", "COMPLETED"]

        await eventually(ended)
    assert flight.canceled.is_set()


async def test_what_is_given_up_is_canceled_with_our_credentials() -> None:
    """Those for this agent; without them it would refuse."""
    flight = Worker("Flight")
    flight.app = App(flight.agent, auth=Token({"desk": "a-key"}), drain_timeout=0.0, poll=0.02)
    async with asyncio.timeout(20), serving(flight) as url:
        travel = Orchestrator(
            "Desk",
            agents=[url],
            plan=steps(Step("out", "flight", input="gate", seconds=0.5)),
            connections={url: {"auth": StaticToken("a-key")}},
        )
        async with office(travel) as client:
            assert "longer than its 0.5 seconds" in said(await client.send("go"))
            await flight.canceled.wait()


async def test_a_cancel_while_it_asks(flight: Worker) -> None:
    travel = planning([flight], steps(Step("out", "flight", input="ask")))
    async with office(travel) as client:
        asked = await client.send("go")
        assert asked.task is not None
        found = await client.task(asked.task.id).cancel()
        assert found.status.state is CANCELED

        async def ended() -> bool:
            return await states(travel, flight) == ["CANCELED"]

        await eventually(ended)


@pytest.mark.parametrize("how", ["raises", "is refused"])
async def test_what_goes_on_is_canceled_when_the_planner_fails(flight: Worker, how: str) -> None:
    def plan(turn: Turn, members: Any, plan: Plan) -> list[Step]:
        if not plan.steps:
            return [Step("late", "flight", input="gate", seconds=0.2)]
        if how == "raises":
            raise RuntimeError("a bug")
        return [Step("x", "nobody")]

    travel = planning([flight], plan)
    async with office(travel) as client:
        result = await client.send("go")
        assert result.state is TaskState.FAILED

        async def ended() -> bool:
            return await states(travel, flight) == ["CANCELED"]

        await eventually(ended)


async def test_who_waits_for_long_sleeps(flight: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds no worker meanwhile, looks again less and less often, and calls nobody twice."""
    slept: list[float] = []
    sleep = Turn.sleep

    async def sleeping(turn: Turn, seconds: float) -> None:
        if seconds not in slept:  # or it is run again, and has slept
            slept.append(seconds)
        if len(slept) == 3:
            flight.gate.set()
        await sleep(turn, 0.01)

    monkeypatch.setattr(Turn, "sleep", sleeping)
    travel = quick(planning([flight], steps(Step("out", "flight", input="gate"))), hold=0.05)
    async with office(travel) as client:
        result = await client.send("go")
    assert result.state is TaskState.COMPLETED
    assert slept[:3] == [10.0, 20.0, 40.0]
    assert flight.heard == ["gate"]


async def test_a_stopped_process_cancels_nothing(flight: Worker, tmp_path: Path) -> None:
    """A deployment stops the process: what runs elsewhere goes on, and is taken up again."""
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    settings = {"drain_timeout": 0.2, "poll": 0.02, "store": store}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(20))
        url = await stack.enter_async_context(serving(flight))

        def travel() -> Orchestrator:
            plan = steps(Step("out", "flight", input="gate"))
            return Orchestrator("Desk", agents=[url], plan=plan)

        async with App(travel(), **settings) as app, Client.connect(app=app) as client:
            task = await begun(client, "go")
            await flight.reached.wait()
            await asyncio.sleep(0.1)
        async with Client.connect(app=flight.app) as own:
            assert [one.status.state.name async for one in own.list()] == ["WORKING"]
            async with App(travel(), **settings) as app, Client.connect(app=app) as client:
                flight.gate.set()
                found = await client.task(task).wait()
            assert [one.status.state.name async for one in own.list()] == ["COMPLETED"]
    assert found.status.state is TaskState.COMPLETED
    assert flight.heard == ["gate"]
    assert not flight.canceled.is_set()


async def test_an_agent_that_is_down_is_canceled_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel is durable: it goes on over a restart of the orchestrator."""
    monkeypatch.setattr("dragoman.orchestrator.cancel_remote_tasks.FIRST_PAUSE", 0.2)
    monkeypatch.setattr("dragoman.orchestrator.cancel_remote_tasks.LIMIT", 1.0)
    flight = Worker("Flight")
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    down = asyncio.Event()

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(30))
        url = await stack.enter_async_context(serving(flight))

        def travel() -> Orchestrator:
            plan = steps(Step("out", "flight", input="gate"))
            return Orchestrator("Desk", agents=[url], plan=plan)

        app = flight.app

        async def reached(scope: Any, receive: Any, send: Any) -> None:
            if down.is_set() and scope["type"] == "http":
                raise ConnectionError("the line is dead")
            await app(scope, receive, send)

        async with office(travel(), store=store) as client:
            task = await begun(client, "go")
            await flight.reached.wait()
            await asyncio.sleep(0.1)
            flight.app = reached  # type: ignore[assignment]
            down.set()
            assert (await client.task(task).cancel()).status.state is CANCELED
        assert not flight.canceled.is_set()
        down.clear()
        flight.app = app
        async with office(travel(), store=store):
            await flight.canceled.wait()


async def test_the_tasks_of_a_context_run_one_after_the_other(flight: Worker) -> None:
    """They share the remote conversations."""

    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("out", "flight", input=turn.text)]

    async with office(planning([flight], plan)) as client:
        first = await begun(client, "gate", context="one")
        await flight.reached.wait()
        second = await begun(client, "B", context="one")
        await client.send("C", context="other")
        assert flight.heard == ["gate", "C"]
        flight.gate.set()
        for task in (first, second):
            assert (await client.task(task).wait()).status.state is TaskState.COMPLETED
    assert flight.heard == ["gate", "C", "B"]
    one, other, again = flight.contexts
    assert one == again != other


async def test_a_task_of_one_context_continues_the_remote_context(flight: Worker) -> None:
    plan = steps(Step("out", "flight", input="A"))
    async with office(planning([flight], plan)) as client:
        first = await client.send("go")
        assert first.task is not None
        await client.send("go", context=first.task.context_id)
        await client.send("go")
    one, two, three = flight.contexts
    assert one == two != three
    assert one != first.task.context_id, "the agent does not learn our context"


@pytest.mark.parametrize("remote", [WithReceipts, Reference])
async def test_contexts_at_remote_agents(remote: Any) -> None:
    async with remote().serving() as there, Client.connect(there.url) as own:
        plan = steps(Step("out", "remote", input="A"))
        async with office(Orchestrator("Desk", agents=[there.url], plan=plan)) as client:
            first = await client.send("go")
            assert first.task is not None
            await client.send("go", context=first.task.context_id)
            await client.send("go")
        contexts = [task.context_id async for task in own.list()]
    assert len(contexts) == 3
    assert len(set(contexts)) == 2


async def test_a_stranger_cannot_use_the_context_of_another(flight: Worker) -> None:
    plan = steps(Step("out", "flight", input="A"))
    keys = {name: name * 32 for name in ("a", "b")}
    auth = [ApiKey(header="x-api-key", keys=keys)]
    async with (
        App(planning([flight], plan), drain_timeout=0.0, poll=0.02, auth=auth) as app,
        Client.connect(app=app, headers={"x-api-key": "a" * 32}) as one,
        Client.connect(app=app, headers={"x-api-key": "b" * 32}) as two,
    ):
        first = await one.send("go", context="7d9bf8c5-4f2c-4c14-9d3a-0ad4cb5c4a51")
        second = await two.send("go", context="7d9bf8c5-4f2c-4c14-9d3a-0ad4cb5c4a51")
    assert first.ok, said(first)
    assert second.ok, said(second)
    assert len(set(flight.contexts)) == 2


async def test_the_results_name_their_sources(flight: Worker) -> None:
    async with office(planning([flight], steps(Step("out", "flight", input="A")))) as client:
        result = await client.send("go")
    (artifact,) = result.artifacts
    assert artifact.metadata is not None
    source = artifact.metadata["urn:dragoman:source:v1"]
    assert source == {"agent": "Flight", "host": "in this process", "step": "out"}
    assert sources(result) == {"out": "done"}
