"""Two agents: one books flights, one books hotels."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from dragoman import Agent, Turn
from dragoman.events import Event

flight = Agent(
    "Flight Booking Agent",
    description="Books round-trip flights.",
    version="1.0.0",
    key="flight",
    retries=1,  # a turn that was cut off may be run again
)
hotel = Agent("Hotel Booking Agent", description="Books hotel rooms.", version="1.0.0", key="hotel")

DATES = re.compile(r"\d{4}-\d\d-\d\d")


@flight.skill(tags=["travel"], examples=["Book me a flight from 2026-08-10 to 2026-08-15"])
async def book_flight(turn: Turn) -> AsyncIterator[Event]:
    """Books a round trip; asks for the dates if there are none."""
    said = " ".join(message.text for message in turn.history)
    dates = DATES.findall(said)
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
    """What the hotel agent wants to know."""

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
