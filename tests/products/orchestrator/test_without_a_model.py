"""Without a model and without a plan: which skill a message means."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman import Agent, Part, TaskState, Turn
from dragoman.client import Client, Result
from dragoman.orchestrator import Orchestrator
from tests.products.orchestrator.office import office, said, sources

DONE, ASKS, FAILED = TaskState.COMPLETED, TaskState.INPUT_REQUIRED, TaskState.FAILED

flight = Agent("Flight", description="Books flights.")
hotel = Agent("Hotel", description="Books rooms.")
train = Agent("Train", description="Knows trains.")
stay = Agent("Stay", description="Rents flats.")


@flight.skill(tags=["travel"], examples=["Fly me to Rome"])
async def book_flight(turn: Turn) -> str:
    """Books a flight between two airports."""
    return f"flight: {turn.text}"


@hotel.skill(tags=["travel"], examples=["A room for two nights"])
async def book_hotel(turn: Turn, city: str, nights: int) -> str:
    """Books a room in a hotel."""
    return f"hotel: {city}, {nights}"


@train.skill(tags=["travel"], examples=["When does the next train leave?"])
async def timetable(turn: Turn) -> str:
    """Tells when trains leave."""
    return f"train: {turn.text}"


@stay.skill(tags=["travel"])
async def rent(turn: Turn, city: str, months: int) -> str:
    """Rents a flat."""
    return f"flat: {city}, {months}"


@stay.skill(tags=["travel"])
async def lodge(turn: Turn, city: str, months: int) -> str:
    """Finds a lodging with a family."""
    return f"lodging: {city}, {months}"


@stay.handler
async def other(turn: Turn) -> str:
    """Whatever else."""
    return "nothing"


@pytest.fixture
async def desk() -> AsyncIterator[Client]:
    """A client of an orchestrator with all of them."""
    async with office(Orchestrator("Desk", agents=[flight, hotel, train, stay])) as client:
        yield client


def data(**fields: Any) -> list[Part]:
    """A message that is data."""
    return [Part(data=fields)]


def result_of(found: Result) -> str:
    """What the one artifact says."""
    assert found.state is DONE, said(found)
    (artifact,) = found.artifacts
    (part,) = artifact.parts
    return part.text or str(part.data["result"])


async def answered(client: Client, asked: Result, words: Any) -> Result:
    """Answer the question which skill is meant."""
    assert asked.state is ASKS, said(asked)
    assert asked.task is not None
    return await client.task(asked.task.id).reply(words)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("book_flight LIS to FCO", "flight: book_flight LIS to FCO"),
        ("train/timetable for Rome", "train: train/timetable for Rome"),
        (data(skill="book_hotel", city="Rome", nights=2), "hotel: Rome, 2"),
        (data(skill="stay/lodge", city="Rome", months=2), "lodging: Rome, 2"),
    ],
    ids=["id in words", "agent and id in words", "id in data", "agent and id in data"],
)
async def test_a_skill_that_is_named(desk: Client, message: Any, expected: str) -> None:
    assert result_of(await desk.send(message)) == expected


async def test_the_only_skill_that_takes_the_data(desk: Client) -> None:
    result = await desk.send(data(city="Rome", nights=2))
    assert result_of(result) == "hotel: Rome, 2"
    assert sources(result) == {"book-hotel": "done"}


async def test_data_that_two_skills_take(desk: Client) -> None:
    asked = await desk.send(data(city="Rome", months=3))
    assert said(asked).splitlines() == [
        "Several skills take this data. Which one do you mean? Answer with its name.",
        "- stay/rent: Rents a flat.",
        "- stay/lodge: Finds a lodging with a family.",
    ]
    result = await answered(desk, asked, "stay/lodge")
    assert result_of(result) == "lodging: Rome, 3"


async def test_words_that_clearly_fit_one_skill(desk: Client) -> None:
    result = await desk.send("When does the train to Lisbon leave?")
    assert result_of(result) == "train: When does the train to Lisbon leave?"


async def test_words_that_fit_several(desk: Client) -> None:
    """The message itself goes to the skill that the answer names."""
    asked = await desk.send("book something")
    assert said(asked).startswith("Several skills fit. Which one do you mean?")
    assert {"- flight/book_flight", "- hotel/book_hotel"} <= {
        line.partition(":")[0] for line in said(asked).splitlines()
    }
    assert result_of(await answered(desk, asked, "book_flight")) == "flight: book something"


async def test_words_that_fit_nothing(desk: Client) -> None:
    asked = await desk.send("xyzzy")
    assert said(asked).startswith("No skill fits this. Which one do you mean?")
    assert len(said(asked).splitlines()) == 1 + 5
    result = await answered(desk, asked, "the one about trains that leave")
    assert result_of(result) == "train: xyzzy"


async def test_answers_that_name_nothing_end_the_task(desk: Client) -> None:
    result = await desk.send("xyzzy")
    for _ in range(4):
        result = await answered(desk, result, "xyzzy")
    result = await answered(desk, result, "xyzzy") if result.state is ASKS else result
    assert result.state is FAILED
    assert said(result) == "It is not clear which skill is meant"


async def test_data_that_does_not_fit_the_named_skill(desk: Client) -> None:
    result = await desk.send(data(skill="book_hotel", city="Rome", nights="many"))
    assert result.state is FAILED
    assert "book-hotel (hotel, in this process): failed" in said(result)
    assert "nights" in said(result)


async def test_a_skill_of_an_agent_that_is_not_eligible() -> None:
    desk = Orchestrator(
        "Desk", agents=[flight, train], eligible=lambda caller, member: member.name != "flight"
    )
    async with office(desk) as client:
        asked = await client.send("book_flight LIS to FCO")
        assert said(asked).splitlines() == [
            "No skill fits this. Which one do you mean? Answer with its name.",
            "- train/timetable: Tells when trains leave.",
        ], "the only one that is left is not meant"
        assert result_of(await answered(client, asked, "timetable")).startswith("train: book_")


async def test_the_only_skill_of_the_team() -> None:
    """It is meant by everything, unless somebody is absent who could be meant."""
    async with office(Orchestrator("Desk", agents=[train])) as client:
        assert result_of(await client.send("xyzzy")) == "train: xyzzy"
    away = "http://127.0.0.1:1"
    async with office(Orchestrator("Desk", agents=[train, away])) as client:
        asked = await client.send("xyzzy")
        assert said(asked).startswith("No skill fits this")
        assert result_of(await client.send("When do trains leave?")).startswith("train: When")


async def test_nobody_is_there() -> None:
    allowed: list[str] = []
    desk = Orchestrator("Desk", agents=[flight], eligible=lambda caller, member: bool(allowed))
    async with office(desk) as client:
        asked = await client.send("LIS to FCO")
        assert said(asked) == "No agent is available now. Send any message to try again."
        allowed.append("all")
        assert result_of(await answered(client, asked, "again")) == "flight: LIS to FCO"
