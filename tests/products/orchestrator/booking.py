"""The booking story as processes: flight, hotel, and an orchestrator, which finds them in a
registry. It kills itself where its environment says so, see `tests/faults/crash/durable_agent.py`.
Each booking is a line of a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman import Agent, Turn
from dragoman.orchestrator import ChatModel, Member, Orchestrator, Ref, Step
from dragoman.registry import Registry
from tests.faults.crash import durable_agent  # noqa: F401 - it watches the store, if told so

BOOKED, REGISTRY, CAR, MODEL = "TEST_BOOKED", "TEST_REGISTRY", "TEST_CAR", "TEST_MODEL"
PAUSE, REPEATABLE = "TEST_PAUSE", "TEST_REPEATABLE"
DATE = re.compile(r"\d{4}-\d\d-\d\d")
DATES = "2026-08-10 to 2026-08-15"


def book(what: str) -> str:
    """Write a booking down."""
    with Path(os.environ[BOOKED]).open("a") as file:
        file.write(f"{what}\n")
    return f"booked {what}"


flight = Agent("Flight", description="Books flights.")
hotel = Agent("Hotel", description="Books hotels.")
letters = Agent("Letters", description="Writes letters. It is in the orchestrator's process.")


@flight.skill(durable=True, tags=["travel"])
async def book_flight(turn: Turn) -> str:
    """Books a flight; asks for the dates."""
    dates = DATE.findall(turn.text)
    await turn.emit(turn.working("Looking for seats"))
    while len(dates) < 2:
        dates = DATE.findall((await turn.ask_for("Which dates?")).text)
    await turn.sleep(float(os.environ.get(PAUSE, "0")))
    return str(await turn.step("book", book, f"flight {' '.join(dates[:2])}"))


@hotel.skill(durable=True, tags=["travel"])
async def book_hotel(turn: Turn, city: str, nights: int) -> dict[str, str]:
    """Books a room."""
    await turn.emit(turn.working(f"Asking hotels in {city}"))
    await turn.sleep(float(os.environ.get(PAUSE, "0")))
    await turn.step("book", book, f"hotel {city} {nights}")
    return {"reference": "HT-1"}


@letters.skill(durable=True, tags=["letter"])
async def write_letter(turn: Turn, flight: str, hotel: str) -> str:
    """Writes a letter."""
    return f"letter: {flight}, {hotel}"


def plan(turn: Turn, members: Mapping[str, Member]) -> list[Step]:
    """Flight, hotel and car side by side, then a letter."""
    stay: dict[str, Any] = {"city": "Rome", "nights": 2}
    letter = {"flight": Ref("flight", "text"), "hotel": Ref("hotel", "reference")}
    car = [Step("car", "remote", input="car")] if os.environ.get(CAR) else []
    return [
        Step("flight", skill="book_flight", input="Rome"),
        Step("hotel", skill="book_hotel", input=stay),
        *car,
        Step("letter", skill="write_letter", input=letter),
    ]


def desk() -> Orchestrator:
    """The orchestrator: with a model if the environment names one."""
    team: list[Any] = [Registry(os.environ[REGISTRY]).query(tags=["travel"])]
    team += [os.environ[CAR]] if os.environ.get(CAR) else []
    url = os.environ.get(MODEL)
    way: dict[str, Any] = {"model": ChatModel(url, "m")} if url else {"plan": plan}
    again = os.environ.get(REPEATABLE, "")
    return Orchestrator(
        "Travel Desk", agents=[*team, letters], repeatable=lambda step: step.name == again, **way
    )


if REGISTRY in os.environ:
    travel = desk()
