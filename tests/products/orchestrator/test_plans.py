"""Plans over agents in the orchestrator's process: order, references, changes, ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import TaskState, Turn
from dragoman.orchestrator import Plan, Ref, Step
from tests.products.orchestrator.office import (
    Worker,
    office,
    planning,
    said,
    shown,
    sources,
    texts,
)

DONE, FAILED = TaskState.COMPLETED, TaskState.FAILED


@pytest.fixture
def flight() -> Worker:
    return Worker("Flight")


@pytest.fixture
def hotel() -> Worker:
    return Worker("Hotel")


async def test_steps_run_side_by_side(flight: Worker, hotel: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("a", "flight", input="gate a"), Step("b", "hotel", input="gate b")]

    async with office(planning([flight, hotel], plan)) as client:
        sending = asyncio.create_task(client.send("go"))
        await flight.reached.wait()
        await hotel.reached.wait()
        flight.gate.set(), hotel.gate.set()
        result = await sending
    assert result.state is DONE
    assert texts(result) == {"a": "did gate a", "b": "did gate b"}
    assert sources(result) == {"a": "done", "b": "done"}


async def test_a_step_gets_the_results_of_others(flight: Worker, hotel: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [
            Step("last", "hotel", input=Ref("first", "text")),
            Step("first", "flight", input="data"),
            Step("typed", "hotel", input={"seat": Ref("first", "seats/1"), "all": Ref("first")}),
            Step("words", "hotel", input="after", needs=("first",)),
        ]

    async with office(planning([flight, hotel], plan)) as client:
        result = await client.send("go")
    whole = {"reference": "FL-1", "seats": ["12A", "12B"]}
    assert result.state is DONE, said(result)
    assert {"seat": "12B", "all": whole} in hotel.heard
    assert "after" in hotel.heard
    assert flight.heard == ["data"]


async def test_a_place_that_a_result_does_not_have_fails_the_step(
    flight: Worker, hotel: Worker
) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [
            Step("first", "flight", input="data"),
            Step("second", "hotel", input={"x": Ref("first", "nowhere/3")}),
            Step("third", "hotel", input="x", needs=("second",)),
        ]

    async with office(planning([flight, hotel], plan)) as client:
        result = await client.send("go")
    assert sources(result) == {"first": "done", "second": "failed", "third": "skipped"}
    assert result.state is FAILED
    assert "the result of 'first' has no 'nowhere/3'" in said(result)
    assert hotel.heard == []


async def test_a_large_result_is_fetched_again_and_not_copied(
    flight: Worker, hotel: Worker
) -> None:
    plans: list[Plan] = []

    def plan(turn: Turn, members: Any, plan: Plan) -> list[Step]:
        plans.append(plan)
        if plan.steps:
            return []
        return [
            Step("big", "flight", input="large"),
            Step("code", "hotel", input={"code": Ref("big", "code")}),
            Step("whole", "hotel", input=Ref("big")),
        ]

    async with office(planning([flight, hotel], plan)) as client:
        result = await client.send("go")
    assert result.state is DONE, said(result)
    outcome = plans[-1]["big"].outcome
    assert outcome is not None
    assert outcome.large
    assert outcome.data is None
    assert {"code": "L1"} in hotel.heard
    assert {"big": "x" * 100_000, "code": "L1"} in hotel.heard


async def test_files_go_from_step_to_step(flight: Worker) -> None:
    files: list[Any] = []
    printer = Worker("Printer")

    def scan(part: Any, caller: Any) -> str | None:
        files.append(part.filename)
        return "a virus" if len(files) > 2 else None

    def plan(turn: Turn, members: Any) -> list[Step]:
        return [
            Step("picture", "flight", input="file"),
            Step("print", "printer", input=Ref("picture", "files")),
        ]

    async with office(planning([flight, printer], plan, scan=scan)) as client:
        result = await client.send("go")
        assert result.state is DONE, said(result)
        assert [part.raw for part in printer.parts] == [b"pixels"]
        assert files == ["a.png", "a.png"], "it is scanned for the client and for the next agent"
        refused = await client.send("go")
    assert "[the file a.png was refused]" in refused.text


async def test_the_planner_goes_on_after_a_failure(flight: Worker, hotel: Worker) -> None:
    seen: list[dict[str, str]] = []

    def plan(turn: Turn, members: Any, plan: Plan) -> Any:
        seen.append(shown(plan))
        if not plan.steps:
            return [
                Step("first", "flight", input="fail"),
                Step("then", "hotel", input="x", needs=("first",)),
            ]
        if "again" not in shown(plan):
            return [Step("again", "hotel", input="instead")]
        return "A train, then."

    async with office(planning([flight, hotel], plan)) as client:
        result = await client.send("go")
    assert seen == [
        {},
        {"first": "failed", "then": "skipped"},
        {"first": "failed", "then": "skipped", "again": "done"},
    ]
    assert result.state is DONE
    assert said(result) == "A train, then."
    assert hotel.heard == ["instead"]


async def test_a_failure_that_no_planner_mends_fails_the_task(flight: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("first", "flight", input="fail"), Step("second", "flight", input="x")]

    async with office(planning([flight], plan)) as client:
        result = await client.send("go")
    assert result.state is FAILED
    assert "first (flight, in this process): failed: the task is failed: no seats" in said(result)
    assert "second (flight, in this process): done" in said(result)


async def test_an_answer_without_steps(flight: Worker) -> None:
    async with office(planning([flight], lambda turn, members: "Nothing to do.")) as client:
        result = await client.send("go")
    assert (result.state, said(result)) == (DONE, "Nothing to do.")


@pytest.mark.parametrize(
    "steps",
    [
        [Step("a", "nobody")],
        [Step("a", "flight", needs=("b",))],
        [Step("a", "flight", skill="nothing")],
        ["not a step"],
    ],
    ids=["agent", "needs", "skill", "type"],
)
async def test_a_wrong_plan_fails_the_task_and_calls_nobody(
    flight: Worker, steps: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with office(planning([flight], lambda turn, members: steps)) as client:
        result = await client.send("go")
    assert result.state is FAILED
    assert flight.heard == []
    assert "nobody" not in said(result), "the client learns no internals"
    assert "InvalidPlan" in caplog.text
