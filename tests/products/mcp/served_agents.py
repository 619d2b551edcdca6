"""The agents that the tests of MCP serve, as files that a process can import."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Struct

from dragoman import Agent, Part, Turn

PAYMENT = {"amount": 5}
PNG = b"\x89PNG\r\n\x1a\n"
began, released = asyncio.Event(), asyncio.Event()
"""Set when a task of `wait` has begun, and when it was canceled."""

logged_in = asyncio.Event()


class Booking(Struct):
    """A booked flight."""

    reference: str
    seats: int


desk = Agent("Desk", description="Books flights.", version="1.0.0")


@desk.skill(tags=["travel"], examples=["Book a flight to Rome", "I want to fly to Oslo"])
async def book(
    city: Annotated[str, msgspec.Meta(description="Where to")], seats: int = 1
) -> Booking:
    """Book a flight."""
    return Booking(f"FL-{city}", seats)


@desk.skill(tags=["travel"], ask=True)
async def reserve(city: str, nights: int) -> Booking:
    """Reserve a hotel."""
    return Booking(f"HO-{city}", nights)


@desk.handler
@desk.skill(tags=["words"])
async def echo(turn: Turn) -> str:
    """Say it again."""
    return turn.text


@desk.skill(tags=["words"])
async def progress(turn: Turn):
    """Report what happens."""
    for word in ("searching", "comparing"):
        yield turn.working(word)
        await asyncio.sleep(0)
    yield turn.artifact("Found", name="result")


@desk.skill(tags=["words"])
async def chat(turn: Turn):
    """Ask for a date."""
    if turn.text.startswith("On "):
        yield turn.artifact(f"Booked {turn.text}", name="booking")
    else:
        yield turn.ask("Which date?")


@desk.skill(tags=["words"])
async def pay(turn: Turn):
    """Pay, if that is approved."""
    if await turn.granted(PAYMENT):
        yield turn.artifact("Paid")
    elif turn.approval is not None:
        yield turn.reject("It was declined")
    else:
        yield turn.require_auth("Pay 5 euros?", operation=PAYMENT)


@desk.skill(tags=["words"])
async def login(turn: Turn):
    """Need a login, and go on with the next message."""
    if turn.text == "Done":
        yield turn.artifact("Logged in")
    else:
        yield turn.require_auth("Log in at https://login.example/start?x=1.")


@desk.skill(tags=["words"])
async def login_meanwhile(turn: Turn):
    """Need a login, and wait for it."""
    yield turn.require_auth([Part(text="Log in"), Part(url="https://login.example/wait")])
    await logged_in.wait()
    yield turn.artifact("Logged in")


@desk.skill(tags=["words"])
async def wait(turn: Turn) -> str:
    """Never end."""
    began.set()
    try:
        await asyncio.Event().wait()
    finally:
        released.set()
    return ""


@desk.skill(tags=["words"])
async def fail(turn: Turn):
    """Fail."""
    yield turn.artifact("half", name="half")
    yield turn.fail("No seats are left")


@desk.skill(tags=["files"])
async def files(turn: Turn):
    """Give files."""
    yield turn.artifact(
        [
            Part(text="Here they are"),
            Part(raw=PNG, media_type="image/png", filename="seat.png"),
            Part(raw=b"%PDF", media_type="application/pdf", filename="ticket.pdf"),
            Part(url="https://a.example/terms.pdf", media_type="application/pdf"),
        ],
        name="documents",
    )


@desk.skill(tags=["files"])
async def size(document: bytes, name: str = "it") -> str:
    """Say how large a file is."""
    return f"{name} has {len(document)} bytes"


@desk.skill(tags=["files"])
async def large(bytes: int) -> Part:
    """Give a large file."""
    return Part(raw=b"\0" * bytes, filename="large.bin")


hotel = Agent("Hotel", description="Has rooms.", version="1.0.0", key="hotel")


@hotel.skill(tags=["travel"])
async def book_room(turn: Turn) -> str:
    """Book a room."""
    return f"room: {turn.text}"
