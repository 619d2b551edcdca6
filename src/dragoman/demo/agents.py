"""Three agents. One books flights, one books hotels, and one plans trips with agents that it finds
in a registry."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from dragoman import Agent, Turn
from dragoman.model.events import Event
from dragoman.orchestrator import Member, Orchestrator, Step
from dragoman.registry import Registry

flight = Agent(
    "Flight Booking Agent", description="Books round-trip flights.", version="1.0.0", key="flight"
)
hotel = Agent("Hotel Booking Agent", description="Books hotel rooms.", version="1.0.0", key="hotel")
REGISTRY = "http://127.0.0.1:8900"
DATE = re.compile(r"\d{4}-\d\d-\d\d")
CITY = re.compile(r"\bto ([A-Z]\w+)")
NIGHTS = re.compile(r"\b(\d+) nights?\b")


async def reserve(out: str, back: str) -> list[str]:
    """Reserves seats: a step, so it is done once, whatever happens to the process."""
    await asyncio.sleep(0.4)
    return [f"Out:  {out} 09:40\n", f"Back: {back} 18:15\n", "Seats 12A, 12B\n"]


@flight.skill(
    durable=True,  # it continues where it was after a crash or a question
    tags=["travel"],
    examples=["Book me a flight from 2026-08-10 to 2026-08-15"],
)
async def book_flight(turn: Turn) -> AsyncIterator[Event]:
    """Books a round trip; asks for the dates if there are none."""
    dates = DATE.findall(turn.text)
    yield turn.working("Looking for seats")
    while len(dates) < 2:
        answer = await turn.ask_for("Which dates? Tell me the day out and the day back.")
        dates = DATE.findall(answer.text)
    for line in await turn.step("reserve", reserve, *dates[:2]):
        yield turn.write(line, name="itinerary")
        await asyncio.sleep(0.3)
    yield turn.artifact("Booking reference: FL-0427", name="confirmation")


@dataclass
class Room:
    """What the hotel agent has booked."""

    reference: str
    city: str
    nights: int
    total: int


@hotel.skill(tags=["travel"])
async def book_hotel(
    turn: Turn,
    city: str,
    nights: Annotated[int, Meta(ge=1, description="How many nights")],
    guests: int = 1,
) -> Room:
    """Books a room."""
    await turn.emit(turn.working(f"Asking hotels in {city}"))
    await asyncio.sleep(0.4)
    return Room("HT-1138", city, nights, total=90 * nights * guests)


def plan_trip(turn: Turn, members: Mapping[str, Member]) -> list[Step]:
    """Books flight and hotel at once. A model could plan this, too: `Orchestrator(…, model=…)`."""
    city, nights = CITY.search(turn.text), NIGHTS.search(turn.text)
    stay = {"city": city[1] if city else "town", "nights": int(nights[1]) if nights else 1}
    return [
        Step("flight", skill="book_flight", input=turn.text),
        Step("hotel", skill="book_hotel", input=stay),
    ]


travel = Orchestrator(
    "Travel Agent",
    description="Plans a trip: has other agents book the flight and the hotel.",
    key="travel",
    agents=[Registry(os.environ.get("DEMO_REGISTRY", REGISTRY)).query(tags=["travel"])],
    plan=plan_trip,
    tags=["travel"],
    examples=["Plan a trip to Lisbon for 5 nights"],
)
