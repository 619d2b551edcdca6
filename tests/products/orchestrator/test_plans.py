"""Plans over agents in the orchestrator's process: order, references, changes, ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, TaskArtifactUpdateEvent, TaskState, Turn
from dragoman.cli import main
from dragoman.orchestrator import Orchestrator, Plan, Ref, Step
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


async def test_output_is_passed_on_as_it_comes() -> None:
    """With its source, and not only when the step is done."""
    clerk, gate = Agent("Clerk", description="Writes."), asyncio.Event()

    @clerk.skill
    async def write(turn: Turn) -> AsyncIterator[Any]:
        """Writes a line, and waits."""
        yield turn.write("first ", name="letter")
        await gate.wait()
        yield turn.write("second", name="letter")

    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("out", "clerk", "write", input="go")]

    travel = Orchestrator("Travel Desk", agents=[clerk], plan=plan)
    async with office(travel) as client, client.stream("go") as stream:
        async for event in stream:
            if isinstance(event, TaskArtifactUpdateEvent):
                assert event.artifact.metadata is not None
                source = event.artifact.metadata["urn:dragoman:source:v1"]
                assert source == {"agent": "Clerk", "host": "in this process", "step": "out"}
                gate.set()
        assert texts(stream.result) == {"letter": "first second"}


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


async def test_a_large_result_of_an_agent_that_may_not_be_used_any_more(
    flight: Worker, hotel: Worker
) -> None:
    """It is asked for nothing, not even for what it has made before."""
    allowed = {"flight", "hotel"}

    def plan(turn: Turn, members: Any, plan: Plan) -> list[Step]:
        if not plan.steps:
            return [Step("big", "flight", input="large")]
        allowed.discard("flight")
        return [] if len(plan.steps) > 1 else [Step("code", "hotel", input=Ref("big", "code"))]

    def may(caller: Any, member: Any) -> bool:
        return member.name in allowed

    async with office(planning([flight, hotel], plan, eligible=may)) as client:
        result = await client.send("go")
    assert sources(result) == {"big": "done", "code": "failed"}
    assert "the result of 'big' is not available any more" in said(result)
    assert hotel.heard == []


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
        {"first": "failed", "then": "waiting"},
        {"first": "failed", "again": "done"},
    ]
    assert result.state is DONE
    assert said(result) == "A train, then."
    assert hotel.heard == ["instead"]


async def test_the_planner_changes_what_has_not_begun(flight: Worker, hotel: Worker) -> None:
    """What needs a failed step waits for the planner; the new plan takes its place."""

    def plan(turn: Turn, members: Any, plan: Plan) -> Any:
        if not plan.steps:
            return [
                Step("seat", "flight", input="fail"),
                Step("room", "hotel", input="a room"),
                Step("letter", "hotel", input=Ref("seat", "text")),
                Step("stamp", "hotel", needs=("letter",)),
            ]
        if plan.version == 1:
            assert plan.named("waiting") == (plan["letter"], plan["stamp"])
            assert plan.pending == ()
            return [Step("letter", "hotel", input="no seat")]
        return None

    async with office(planning([flight, hotel], plan)) as client:
        result = await client.send("go")
    assert sources(result) == {"seat": "failed", "room": "done", "letter": "done"}
    assert sorted(hotel.heard) == ["a room", "no seat"]


async def test_a_refused_plan_comes_back_with_the_reason(flight: Worker) -> None:
    refusals: list[str] = []

    def plan(turn: Turn, members: Any, plan: Plan) -> Any:
        if plan.steps:
            assert plan.refused == ""
            return None
        refusals.append(plan.refused)
        agent = "flight" if len(refusals) == 3 else "nobody"
        return [Step("a", agent, input="x")]

    async with office(planning([flight], plan)) as client:
        result = await client.send("go")
    assert result.state is DONE, said(result)
    why = "step 'a': there is no agent 'nobody'; the agents are: flight"
    assert refusals == ["", why, why]


async def test_the_third_refusal_ends_the_task(flight: Worker) -> None:
    asked: list[str] = []

    def plan(turn: Turn, members: Any, plan: Plan) -> Any:
        asked.append(plan.refused)
        return [Step("a", "nobody")]

    async with office(planning([flight], plan)) as client:
        result = await client.send("go")
    assert result.state is FAILED
    assert len(asked) == 3
    assert flight.heard == []


async def test_a_step_that_takes_longer_than_it_may(flight: Worker, hotel: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [
            Step("slow", "flight", input="gate", seconds=0.3),
            Step("quick", "hotel", input="x", seconds=60),
            Step("after", "hotel", input="y", needs=("slow",)),
        ]

    travel = planning([flight, hotel], plan)
    async with office(travel) as client:
        result = await client.send("go")
        assert sources(result) == {"slow": "failed", "quick": "done", "after": "skipped"}
        assert "slow (flight, in this process): failed: it has taken longer than its 0.3 s" in said(
            result
        )
        await flight.canceled.wait()
    assert hotel.heard == ["x"]


async def test_an_answer_that_comes_too_late_for_its_step(flight: Worker) -> None:
    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("out", "flight", input="ask", seconds=0.3)]

    async with office(planning([flight], plan)) as client:
        asked = await client.send("go")
        assert asked.task is not None
        await asyncio.sleep(0.35)
        result = await client.task(asked.task.id).reply("Monday")
    assert result.state is FAILED
    assert "it has taken longer" in said(result)
    assert flight.heard == ["ask"]


async def test_what_a_step_has_cost_is_in_the_plan(flight: Worker) -> None:
    plans: list[Plan] = []

    def plan(turn: Turn, members: Any, plan: Plan) -> Any:
        plans.append(plan)
        return None if plan.steps else [Step("out", "flight", input="ask")]

    async with office(planning([flight], plan)) as client:
        asked = await client.send("go")
        assert asked.task is not None
        await asyncio.sleep(0.2)
        await client.task(asked.task.id).reply("Monday")
    step = plans[-1]["out"]
    assert (step.messages, step.asked) == (2, 1)
    assert 0.2 < step.took < 20


async def test_operators_see_the_plan(
    flight: Worker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    plan = [Step("out", "flight", input="data"), Step("after", "flight", needs=("out",))]
    async with office(planning([flight], lambda turn, members: plan), store=store) as client:
        task = (await client.send("go")).task
    assert task is not None
    assert main(["db", "show", task.id, "--store", store, "--json"]) == 0
    saved = json.loads(capsys.readouterr().out)["saved"]
    assert saved["version"] == 1
    assert [(each["name"], each["state"]) for each in saved["steps"]] == [
        ("out", "done"),
        ("after", "done"),
    ]
    assert saved["steps"][0]["outcome"]["data"]["reference"] == "FL-1"
    assert main(["db", "show", task.id, "--store", store]) == 0
    assert '"reference": "FL-1"' in capsys.readouterr().out


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
async def test_a_time_that_is_none(flight: Worker, seconds: float) -> None:
    plan = [Step("out", "flight", input="x", seconds=seconds)]
    async with office(planning([flight], lambda turn, members: plan)) as client:
        result = await client.send("go")
    assert result.state is FAILED
    assert flight.heard == []


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
