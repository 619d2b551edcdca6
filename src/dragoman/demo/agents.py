"""Three agents: one books flights, one books hotels, and one plans trips with the two others."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated

from msgspec import Meta

from dragoman import Agent, Turn
from dragoman.model.events import Event

flight = Agent(
    "Flight Booking Agent", description="Books round-trip flights.", version="1.0.0", key="flight"
)
hotel = Agent("Hotel Booking Agent", description="Books hotel rooms.", version="1.0.0", key="hotel")
travel = Agent(
    "Travel Agent",
    description="Plans a trip: asks other agents to book the flight and the hotel.",
    version="1.0.0",
    key="travel",
    retries=1,
)

DATE = re.compile(r"\d{4}-\d\d-\d\d")
CITY = re.compile(r"\bto ([A-Z]\w+)")


async def reserve(out: str, back: str) -> list[str]:
    """Reserves seats: a step, so it is done once, whatever happens to the process."""
    await asyncio.sleep(0.4)
    return [f"Out:  {out} 09:40\n", f"Back: {back} 18:15\n", "Seats 12A, 12B\n"]


@flight.skill(
    durable=True,  # it goes on where it was after a crash or a question
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


@travel.skill(tags=["travel"], examples=["Plan a trip to Lisbon from 2026-08-10 to 2026-08-15"])
async def plan_trip(turn: Turn) -> Event | None:
    """Books flight and hotel at once. Passes on the questions of the flight agent."""
    said = " ".join(message.text for message in turn.history)
    dates, city = DATE.findall(said), CITY.search(said)
    flights, hotels = os.environ["DEMO_FLIGHT"], os.environ["DEMO_HOTEL"]
    # The flight agent's task, if it has asked a question before.
    begun = (turn.task.metadata or {}).get("flight", "")
    async with (
        turn.connect(flights, attempts=20) as flight_agent,
        turn.connect(hotels, attempts=20) as hotel_agent,
        asyncio.TaskGroup() as group,
    ):
        stream = flight_agent.stream(turn.text, task=begun)
        booking = group.create_task(turn.relay(stream, by="flight"))
        if len(dates) >= 2:
            out, back = (date.fromisoformat(text) for text in dates[:2])
            stay = {"city": city[1] if city else "town", "nights": (back - out).days}
            group.create_task(turn.relay(hotel_agent.stream(stay), by="hotel"))
    booked = booking.result()
    if booked.task and booked.state and booked.state.interrupted:
        return turn.ask(booked.text, metadata={"flight": booked.task.id})
    if not booked.ok:
        return turn.fail(f"No flight: {booked.text}")
    return None
