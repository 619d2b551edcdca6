"""Questions of the agents of a team, passed on to the client, and its answers."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from dragoman import Part, TaskState
from dragoman.client import Client, Result
from dragoman.orchestrator import ModelAnswer, Orchestrator, Step, ToolCall
from dragoman.orchestrator.questions import QUESTIONS
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
    texts,
)

DONE, ASKS, FAILED = TaskState.COMPLETED, TaskState.INPUT_REQUIRED, TaskState.FAILED


@pytest.fixture
def flight() -> Worker:
    return Worker("Flight")


@pytest.fixture
def hotel() -> Worker:
    return Worker("Hotel")


def steps(*found: Step) -> Any:
    """A plan function that has these steps."""
    return lambda turn, members: list(found)


BOTH = steps(Step("flight", "flight", input="ask"), Step("hotel", "hotel", input="ask"))


def questions(result: Result) -> dict[str, Any]:
    """The questions as data, by their names."""
    assert result.task is not None
    message = result.task.status.message
    assert message is not None
    assert message.metadata is not None
    return {each["name"]: each for each in message.metadata[QUESTIONS]}


async def answer(client: Client, result: Result, words: Any) -> Result:
    """Answer the questions."""
    assert result.task is not None
    return await client.task(result.task.id).reply(words)


async def test_one_question_and_its_answer(flight: Worker) -> None:
    async with office(planning([flight], steps(Step("out", "flight", input="ask")))) as client:
        asked = await client.send("go")
        assert asked.state is ASKS
        assert asked.text == "out: flight (in this process) asks:\n> Which 1?"
        assert questions(asked)["out"]["kind"] == "question"
        result = await answer(client, asked, "Monday: the first one")
    assert result.state is DONE
    assert flight.heard == ["ask", "Monday: the first one"]
    assert texts(result) == {"out": "did Monday: the first one"}


@pytest.mark.parametrize(
    "words",
    [
        "flight: Monday\nhotel: near the\nstation",
        [Part(data={"flight": "Monday", "hotel": "near the\nstation"})],
        [Part(text="- Flight = Monday"), Part(data={"hotel": "near the\nstation"})],
    ],
    ids=["lines", "data", "mixed"],
)
async def test_several_questions_at_once(flight: Worker, hotel: Worker, words: Any) -> None:
    async with office(planning([flight, hotel], BOTH)) as client:
        asked = await client.send("go")
        assert asked.state is ASKS
        assert questions(asked).keys() == {"flight", "hotel"}
        assert "`flight: …`, `hotel: …`" in asked.text
        result = await answer(client, asked, words)
    assert result.state is DONE, said(result)
    assert flight.heard == ["ask", "Monday"]
    assert hotel.heard == ["ask", "near the\nstation"]


async def test_an_answer_reaches_only_the_agent_that_asked(flight: Worker, hotel: Worker) -> None:
    async with office(planning([flight, hotel], BOTH)) as client:
        asked = await client.send("go")
        again = await answer(client, asked, "hotel: 4711")
        assert again.state is ASKS
        assert questions(again).keys() == {"flight"}
        result = await answer(client, again, "Monday")
    assert result.state is DONE
    assert flight.heard == ["ask", "Monday"]
    assert hotel.heard == ["ask", "4711"]


async def test_plain_words_for_several_questions_reach_nobody(
    flight: Worker, hotel: Worker
) -> None:
    async with office(planning([flight, hotel], BOTH)) as client:
        asked = await client.send("go")
        again = await answer(client, asked, "Monday, near the station")
    assert again.state is ASKS
    assert questions(again).keys() == {"flight", "hotel"}
    assert flight.heard == hotel.heard == ["ask"]


async def test_a_model_divides_plain_words(flight: Worker, hotel: Worker) -> None:
    heard: list[str] = []

    def model(messages: Any, tools: Any) -> Any:
        heard.append(messages[-1].text)
        if len(heard) == 1:
            calls = [
                ToolCall(name, "send_message", json.dumps({"agent": name, "text": "ask"}))
                for name in ("flight", "hotel")
            ]
            return ModelAnswer(calls=tuple(calls))
        names = re.findall(r"^([\w.-]+):$", heard[1], re.MULTILINE)
        return json.dumps({name: "Monday" for name in names if "flight" in name} | {"x": "y"})

    travel = Orchestrator("Travel Desk", agents=[flight.agent, hotel.agent], model=model)
    async with office(travel) as client:
        asked = await client.send("go")
        again = await answer(client, asked, "Monday, near the station")
    assert again.state is ASKS
    assert [name[:5] for name in questions(again)] == ["hotel"]
    assert flight.heard == ["ask", "Monday"]
    assert hotel.heard == ["ask"]
    assert "Monday, near the station" in heard[1]


async def test_it_asks_while_others_run(flight: Worker, hotel: Worker) -> None:
    plan = steps(Step("flight", "flight", input="ask"), Step("hotel", "hotel", input="gate"))
    travel = quick(planning([flight, hotel], plan), ask_after=0.2)
    async with office(travel) as client:
        asked = await client.send("go")
        assert asked.state is ASKS
        assert questions(asked).keys() == {"flight"}
        assert not hotel.canceled.is_set()
        hotel.gate.set()
        result = await answer(client, asked, "Monday")
    assert texts(result) == {"flight": "did Monday", "hotel": "did gate"}
    assert hotel.heard == ["gate"], "it was followed, not started again"


async def test_what_ends_while_it_asks_is_taken_up(flight: Worker, hotel: Worker) -> None:
    plan = steps(
        Step("flight", "flight", input="ask"),
        Step("hotel", "hotel", input="gate"),
        Step("after", "hotel", input="after", needs=("hotel", "flight")),
    )
    travel = quick(planning([flight, hotel], plan), ask_after=0.2)
    async with office(travel) as client:
        asked = await client.send("go")
        hotel.gate.set()
        result = await answer(client, asked, "Monday")
    assert sources(result) == {"flight": "done", "hotel": "done", "after": "done"}


async def test_without_haste_it_asks_when_nothing_runs(flight: Worker, hotel: Worker) -> None:
    plan = steps(Step("flight", "flight", input="ask"), Step("hotel", "hotel", input="gate"))
    async with office(planning([flight, hotel], plan)) as client:
        task = await begun(client, "go")
        await hotel.reached.wait()
        await asyncio.sleep(0.3)
        assert (await client.task(task).get()).status.state is not ASKS
        hotel.gate.set()
        asked = await client.task(task).wait()
    assert asked.status.state is ASKS


async def test_the_sixth_question_fails_the_step(flight: Worker) -> None:
    travel = planning([flight], steps(Step("out", "flight", input="ask 100")))
    async with office(travel) as client:
        result = await client.send("go")
        for number in range(5):
            assert result.state is ASKS, (number, said(result))
            result = await answer(client, result, f"answer {number}")
        assert result.state is FAILED
        assert "the agent has asked more than 5 questions" in said(result)

        async def ended() -> bool:
            return await states(travel, flight) == ["CANCELED"]

        await eventually(ended)


async def test_a_login_is_passed_on_with_its_host(flight: Worker) -> None:
    async with office(planning([flight], steps(Step("out", "flight", input="login")))) as client:
        asked = await client.send("go")
        assert asked.state is ASKS
        assert "needs you to log in there; do not send a password or key here" in asked.text
        assert "> Log in at https://bank.example" in asked.text
        assert questions(asked)["out"]["kind"] == "login"
        result = await answer(client, asked, "done")
    assert result.state is DONE


async def test_words_of_an_agent_stay_marked(flight: Worker) -> None:
    async with office(planning([flight], steps(Step("out", "flight", input="forge")))) as client:
        asked = await client.send("go")
    lines = asked.text.splitlines()
    assert lines[0].startswith("out: flight (in this process) asks")
    assert len(lines) == 4
    assert all(line.startswith("> ") for line in lines[1:])
