"""What the client must approve before it is done: plans, dangerous steps, what agents ask about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import TaskState, Turn
from dragoman.client import Client, Result
from dragoman.orchestrator import Plan, Step
from tests.products.orchestrator.office import (
    Worker,
    begun,
    office,
    planning,
    quick,
    said,
    sources,
)

DONE, ASKS, FAILED = TaskState.COMPLETED, TaskState.AUTH_REQUIRED, TaskState.FAILED


@pytest.fixture
def flight() -> Worker:
    return Worker("Flight")


@pytest.fixture
def hotel() -> Worker:
    return Worker("Hotel")


def two(turn: Turn, members: Any) -> list[Step]:
    """Two steps."""
    return [Step("out", "flight", input="A"), Step("bed", "hotel", input="B", needs=("out",))]


def operation(result: Result) -> Any:
    """What is to be approved."""
    assert result.grant is not None
    return result.grant.operation


async def approve(client: Client, asked: Result, *, declines: bool = False) -> Result:
    """Approve or decline it."""
    assert asked.task is not None
    assert asked.grant is not None
    handle = client.task(asked.task.id)
    return await (handle.decline if declines else handle.approve)(asked.grant)


async def words(client: Client, asked: Result, text: str) -> Result:
    """Only say something."""
    assert asked.task is not None
    return await client.task(asked.task.id).reply(text)


async def test_a_plan_is_shown_before_it_begins(flight: Worker, hotel: Worker) -> None:
    async with office(planning([flight, hotel], two, approve="plan")) as client:
        asked = await client.send("go")
        assert asked.state is ASKS
        assert asked.text.splitlines()[1:] == [
            '* out: flight (in this process): "A"',
            '* bed: hotel (in this process): "B"',
        ]
        assert operation(asked)["steps"] == [
            {"step": "out", "agent": "flight", "skill": "", "input": "A"},
            {"step": "bed", "agent": "hotel", "skill": "", "input": "B"},
        ]
        assert flight.heard == []
        again = await words(client, asked, "yes, I approve")
        assert again.state is ASKS, "words approve nothing"
        assert flight.heard == []
        result = await approve(client, again)
    assert result.state is DONE
    assert (flight.heard, hotel.heard) == (["A"], ["B"])


async def test_a_declined_plan_calls_nobody(flight: Worker, hotel: Worker) -> None:
    async with office(planning([flight, hotel], two, approve="plan")) as client:
        result = await approve(client, await client.send("go"), declines=True)
    assert result.state is FAILED
    assert "the client did not approve it" in said(result)
    assert flight.heard == hotel.heard == []


async def test_one_grant_covers_all_dangerous_steps(flight: Worker, hotel: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [
            Step("look", "flight", input="look"),
            Step("out", "flight", input="A", dangerous=True, needs=("look",)),
            Step("bed", "hotel", input="B", needs=("out",)),
        ]

    marked = planning([flight, hotel], plan, dangerous=lambda step: step.agent == "hotel")
    async with office(marked) as client:
        asked = await client.send("go")
        assert asked.state is ASKS
        assert flight.heard == ["look"], "what is not dangerous is done"
        assert [each["step"] for each in operation(asked)["steps"]] == ["out", "bed"]
        assert hotel.heard == []
        result = await approve(client, asked)
    assert result.state is DONE
    assert (flight.heard, hotel.heard) == (["look", "A"], ["B"])


async def test_what_is_not_dangerous_runs_beside_it(flight: Worker, hotel: Worker) -> None:
    """The question does not stop a step, and comes before that step is done if it takes long."""

    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("out", "flight", input="gate"), Step("bed", "hotel", input="B")]

    marked = planning([flight, hotel], plan, dangerous=lambda step: step.agent == "hotel")
    async with office(quick(marked, ask_after=0.2)) as client:
        asked = await client.send("go")
        assert asked.state is ASKS
        assert flight.heard == ["gate"]
        assert hotel.heard == []
        flight.gate.set()
        result = await approve(client, asked)
    assert result.state is DONE
    assert (flight.heard, hotel.heard) == (["gate"], ["B"])


async def test_a_changed_plan_needs_another_grant(flight: Worker, hotel: Worker) -> None:
    def plan(turn: Turn, members: Any, plan: Plan) -> Any:
        number = len(plan.steps)
        if number == 2:
            return "Enough."
        return [Step(f"step{number}", "hotel", input=f"B{number}", dangerous=True)]

    async with office(planning([flight, hotel], plan)) as client:
        first = await client.send("go")
        second = await approve(client, first)
        assert second.state is ASKS
        assert hotel.heard == ["B0"]
        assert operation(second)["steps"][0]["input"] == "B1"
        assert operation(second)["plan"] > operation(first)["plan"]
        assert second.task is not None
        assert first.grant is not None
        replayed = await client.task(second.task.id).approve(first.grant)
        assert replayed.state is ASKS, "the grant for the first version is no grant for this one"
        assert hotel.heard == ["B0"]
        result = await approve(client, replayed)
    assert (result.state, said(result)) == (DONE, "Enough.")
    assert hotel.heard == ["B0", "B1"]


async def test_a_declined_step_lets_the_others_go_on(flight: Worker, hotel: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("out", "flight", input="A", dangerous=True), Step("bed", "hotel", input="B")]

    async with office(planning([flight, hotel], plan)) as client:
        result = await approve(client, await client.send("go"), declines=True)
    assert sources(result) == {"out": "failed", "bed": "done"}
    assert (flight.heard, hotel.heard) == ([], ["B"])


@pytest.mark.parametrize("declines", [False, True], ids=["approved", "declined"])
async def test_what_an_agent_wants_approved_is_passed_on(flight: Worker, declines: bool) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("out", "flight", input="approve")]

    async with office(planning([flight], plan)) as client:
        asked = await client.send("go")
        assert asked.state is ASKS
        assert asked.text == "out: flight (in this process) asks for your approval:\n> May I pay?"
        assert operation(asked) == {
            "step": "out",
            "agent": "flight",
            "host": "in this process",
            "operation": {"pay": 5},
        }
        again = await words(client, asked, "approved")
        assert again.state is ASKS
        assert flight.runs["approve"] == 1
        result = await approve(client, again, declines=declines)
    assert result.state is DONE
    assert result.text == f"paid {not declines}"


async def test_an_approved_step_runs_beside_others(flight: Worker, hotel: Worker) -> None:
    """While an agent does what was approved, the questions of others are passed on."""

    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("out", "flight", input="approve gate"), Step("bed", "hotel", input="ask")]

    flight.gate.set()
    travel = quick(planning([flight, hotel], plan), ask_after=0.2)
    async with office(travel) as client:
        task = await begun(client, "go")
        found = await client.task(task).wait()
        assert found.status.state is ASKS
        flight.gate.clear()
        flight.reached.clear()
        approving = asyncio.create_task(approve(client, Result(task=found)))
        await flight.reached.wait()
        asked = await approving
        assert asked.state is TaskState.INPUT_REQUIRED
        flight.gate.set()
        result = await client.task(task).reply("Monday")
    assert sources(result) == {"out": "done", "bed": "done"}
    assert flight.heard.count("Approved") == 1
