"""Three agents: one books flights, one books hotels, and one plans trips with the two others."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import date

from dragoman import Agent, Turn
from dragoman.model.events import Event

flight = Agent(
    "Flight Booking Agent",
    description="Books round-trip flights.",
    version="1.0.0",
    key="flight",
    retries=1,  # a turn that was interrupted may run again
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


@flight.skill(tags=["travel"], examples=["Book me a flight from 2026-08-10 to 2026-08-15"])
async def book_flight(turn: Turn) -> AsyncIterator[Event]:
    """Books a round trip; asks for the dates if there are none."""
    said = " ".join(message.text for message in turn.history)
    dates = DATE.findall(said)
    yield turn.working("Looking for seats")
    await asyncio.sleep(0.4)
    if len(dates) < 2:
        yield turn.ask("Which dates? Tell me the day out and the day back.")
        return
    for line in (f"Out:  {dates[0]} 09:40\n", f"Back: {dates[1]} 18:15\n", "Seats 12A, 12B\n"):
        yield turn.write(line, name="itinerary")
        await asyncio.sleep(0.3)
    yield turn.artifact("Booking reference: FL-0427", name="confirmation")


@dataclass
class Stay:
    """The data that the hotel agent needs."""

    city: str
    nights: int
    guests: int = 1


@hotel.skill(tags=["travel"])
async def book_hotel(turn: Turn, stay: Stay) -> dict[str, object]:
    """Books a room. Takes structured data: city, nights, guests."""
    await turn.emit(turn.working(f"Asking hotels in {stay.city}"))
    await asyncio.sleep(0.4)
    price = 90 * stay.nights * stay.guests
    return {"reference": "HT-1138", "city": stay.city, "nights": stay.nights, "total": price}


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
            stay = Stay(city[1] if city else "town", (back - out).days)
            group.create_task(turn.relay(hotel_agent.stream(asdict(stay)), by="hotel"))
    booked = booking.result()
    if booked.task and booked.state and booked.state.interrupted:
        return turn.ask(booked.text, metadata={"flight": booked.task.id})
    if not booked.ok:
        return turn.fail(f"No flight: {booked.text}")
    return None
