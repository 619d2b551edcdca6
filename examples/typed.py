"""A typed skill: its parameters and its result stand on the card; it asks for what is missing."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from dragoman import Agent, App
from dragoman.client import Client

agent = Agent("Hotels", description="Books hotel rooms.")


@dataclass
class Booking:
    """A room that is booked."""

    city: str
    nights: int
    total: int


@agent.skill(ask=True, tags=["travel"])
async def book_hotel(
    city: str,
    nights: Annotated[int, Meta(ge=1, description="How many nights")],
    board: Literal["none", "half", "full"] = "none",
) -> Booking:
    """Books a room."""
    price = {"none": 90, "half": 110, "full": 130}[board]
    return Booking(city, nights, nights * price)


async def main() -> None:
    """Call it, as another program would."""
    async with App(agent) as app, Client.connect(app=app) as client:
        booking = await client.call_skill("book_hotel", city="Rome", nights=3, returns=Booking)
        print(f"{booking.nights} nights in {booking.city}: {booking.total} EUR")
        asked = await client.send({"city": "Rome"}, skill="book_hotel")
        print(asked.text)
        assert asked.task is not None
        answer = await client.task(asked.task.id).reply("nights: 2")
        print(answer.data)


if __name__ == "__main__":
    asyncio.run(main())
