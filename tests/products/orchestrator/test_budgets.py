"""Each budget ends a task with what there is, and says which it was."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dragoman import TaskState, Turn
from dragoman.orchestrator import (
    Budget,
    ModelAnswer,
    Orchestrator,
    Plan,
    Step,
    ToolCall,
    Usage,
)
from dragoman.orchestrator.orchestrator import LINEAGE
from tests.products.orchestrator.office import (
    Worker,
    eventually,
    office,
    planning,
    said,
    sources,
    states,
    texts,
)

DONE, FAILED = TaskState.COMPLETED, TaskState.FAILED


@pytest.fixture
def flight() -> Worker:
    return Worker("Flight")


def three(turn: Turn, members: Any) -> list[Step]:
    """Three steps, one after the other."""
    return [
        Step("a", "flight", input="A"),
        Step("b", "flight", input="B", needs=("a",)),
        Step("c", "flight", input="C", needs=("b",)),
    ]


async def test_calls(flight: Worker) -> None:
    async with office(planning([flight], three, budget=Budget(calls=2))) as client:
        result = await client.send("go")
    assert result.state is DONE, "it has brought something"
    assert "Stopped: the budget of 2 calls of agents is used up" in said(result)
    assert sources(result) == {"a": "done", "b": "done", "c": "skipped"}
    assert texts(result) == {"a": "did A", "b": "did B"}


async def test_calls_side_by_side(flight: Worker) -> None:
    """As many steps begin as the budget has calls for."""

    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step(name, "flight", input=name.upper()) for name in ("a", "b", "c")]

    async with office(planning([flight], plan, budget=Budget(calls=2))) as client:
        result = await client.send("go")
    assert sorted(flight.heard) == ["A", "B"]
    assert sources(result) == {"a": "done", "b": "done", "c": "skipped"}
    assert "Stopped: the budget of 2 calls of agents is used up" in said(result)


async def test_just_enough_calls_are_enough(flight: Worker) -> None:
    async with office(planning([flight], three, budget=Budget(calls=3))) as client:
        result = await client.send("go")
    assert result.state is DONE
    assert "Stopped" not in said(result)
    assert sources(result) == {"a": "done", "b": "done", "c": "done"}


async def test_answers_are_calls(flight: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("a", "flight", input="ask"), Step("b", "flight", input="B", needs=("a",))]

    async with office(planning([flight], plan, budget=Budget(calls=2))) as client:
        asked = await client.send("go")
        assert asked.task is not None
        result = await client.task(asked.task.id).reply("Monday")
    assert sources(result) == {"a": "done", "b": "skipped"}


async def test_seconds(flight: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [
            Step("a", "flight", input="A"),
            Step("b", "flight", input="gate"),
            Step("c", "flight", input="C", needs=("b",)),
        ]

    travel = planning([flight], plan, budget=Budget(seconds=1.0))
    async with office(travel) as client:
        result = await client.send("go")
        assert result.state is DONE
        assert "Stopped: the time is over" in said(result)
        assert sources(result) == {"a": "done", "b": "failed", "c": "skipped"}

        async def canceled() -> bool:
            return "CANCELED" in await states(travel, flight)

        await eventually(canceled)
    assert flight.canceled.is_set()


async def test_seconds_that_pass_while_the_client_is_asked(flight: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("a", "flight", input="A"), Step("b", "flight", input="ask")]

    travel = planning([flight], plan, budget=Budget(seconds=1.0))
    async with office(travel) as client:
        asked = await client.send("go")
        assert asked.state is TaskState.INPUT_REQUIRED
        assert asked.task is not None
        await asyncio.sleep(1.0)
        result = await client.task(asked.task.id).reply("Monday")
        assert "Stopped: the time is over" in said(result)
        assert sources(result) == {"a": "done", "b": "failed"}

        async def canceled() -> bool:
            return "CANCELED" in await states(travel, flight)

        await eventually(canceled)
    assert flight.heard == ["A", "ask"]


async def test_steps(flight: Worker, caplog: pytest.LogCaptureFixture) -> None:
    async with office(planning([flight], three, budget=Budget(steps=2))) as client:
        result = await client.send("go")
    assert result.state is FAILED
    assert flight.heard == []
    assert "a plan has at most 2 steps; this one has 3" in caplog.text


async def test_rounds(flight: Worker) -> None:
    rounds: list[int] = []

    def plan(turn: Turn, members: Any, plan: Plan) -> list[Step]:
        rounds.append(plan.version)
        return [Step(f"s{len(plan.steps)}", "flight", input=f"{len(plan.steps)}")]

    async with office(planning([flight], plan, budget=Budget(rounds=3))) as client:
        result = await client.send("go")
    assert "Stopped: the plan was changed 3 times" in said(result)
    assert flight.heard == ["0", "1", "2", "3"], "the plan, and three changes"


async def test_depth(flight: Worker) -> None:
    path = [{"agent": f"A{n}", "task": str(n), "origin": ""} for n in range(3)]
    async with office(planning([flight], three, budget=Budget(depth=2))) as client:
        result = await client.send("go", metadata={LINEAGE: {"path": path}})
        assert result.state is TaskState.REJECTED
        assert "passed on 3 times" in result.text
        fine = await client.send("go", metadata={LINEAGE: {"path": path[:2]}})
    assert fine.state is DONE


def calling(text: str, tokens: int = 0) -> ModelAnswer:
    """An answer that calls the flight agent."""
    call = ToolCall("1", "send_message", json.dumps({"agent": "flight", "text": text}))
    return ModelAnswer(calls=(call,), usage=Usage(tokens, 0))


@pytest.mark.parametrize(
    ("budget", "why", "times"),
    [
        (Budget(tokens=25), "the budget of 25 tokens is used up", 3),
        (Budget(model_calls=2), "the budget of 2 calls of the model is used up", 2),
        (Budget(calls=2), "the budget of 2 calls of agents is used up", 2),
    ],
    ids=["tokens", "model calls", "calls"],
)
async def test_budgets_with_a_model(flight: Worker, budget: Budget, why: str, times: int) -> None:
    asked: list[int] = []

    def model(messages: Any, tools: Any) -> ModelAnswer:
        asked.append(1)
        return calling(f"again {len(asked)}", 10)

    travel = Orchestrator("Travel Desk", agents=[flight.agent], model=model, budget=budget)
    async with office(travel) as client:
        result = await client.send("go")
    assert f"Stopped: {why}" in said(result)
    assert "again 1" in result.text
    assert len(flight.heard) <= times


async def test_a_model_answers_when_just_enough_calls_are_used(flight: Worker) -> None:
    def model(messages: Any, tools: Any) -> Any:
        return calling("once") if messages[-1].role == "user" else "Enough."

    async with office(
        Orchestrator("Travel Desk", agents=[flight.agent], model=model, budget=Budget(calls=1))
    ) as client:
        result = await client.send("go")
    assert "Enough." in result.text


async def test_calls_side_by_side_change_no_plan(flight: Worker) -> None:
    """A model that calls agents ten times has changed nothing that was planned."""
    asked: list[int] = []

    def model(messages: Any, tools: Any) -> Any:
        asked.append(1)
        return calling(f"again {len(asked)}") if len(asked) <= 10 else "Enough."

    async with office(
        Orchestrator("Travel Desk", agents=[flight.agent], model=model, budget=Budget(rounds=2))
    ) as client:
        result = await client.send("go")
    assert result.state is DONE
    assert len(flight.heard) == 10
    assert "Enough." in result.text
