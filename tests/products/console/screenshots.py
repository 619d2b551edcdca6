"""Takes the pictures of docs/console.md: `python -m tests.products.console.screenshots docs/images`
(without a folder, into a temporary one)."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from dragoman import Agent, App, Turn
from tests.products.console.browser import browser, watched
from tests.products.console.parts import Running, consoled, stored

if TYPE_CHECKING:
    from playwright.async_api import Browser

SIZES = {"wide": (1280, 800), "phone": (360, 760)}
THEMES = ("light", "dark")
REPORT = """# Booking confirmed

| leg | date | seat |
|---|---|---|
| Lisbon to Rome | 10 August | **12A** |
| Rome to Lisbon | 15 August | **14C** |

Check in at [the desk](https://flights.example/check-in).
"""


def flights() -> Agent:
    """An agent that books, asks, fails and works for long."""
    agent = Agent(
        "Flight Booking Agent",
        description="Books round-trip flights.",
        version="1.4.0",
        key="flights",
    )

    @agent.skill(tags=["travel"], examples=["Book a flight to Rome", "What does Oslo cost?"])
    async def book_flight(turn: Turn) -> AsyncIterator[Any]:
        """Book a round trip."""
        yield turn.working("Looking for seats")
        if "Oslo" in turn.text:
            yield turn.ask("Which dates?")
        elif "Mars" in turn.text:
            raise ConnectionError("the reservation system does not answer")
        elif "around the world" in turn.text:
            await asyncio.sleep(3600)
        else:
            yield turn.artifact(REPORT, name="confirmation")
            yield turn.artifact({"reference": "FL-0427", "price": 412.5}, name="booking")

    return agent


def hotels() -> Agent:
    """An agent with a typed skill."""
    agent = Agent("Hotel Agent", description="Finds rooms.", version="0.9.0", key="hotels")

    @agent.skill(tags=["travel"])
    def find_room(
        city: Annotated[str, Meta(description="Where to stay")],
        nights: Annotated[int, Meta(ge=1, le=30)] = 2,
        board: Literal["none", "breakfast", "full"] = "breakfast",
    ) -> dict[str, Any]:
        """Find a room."""
        return {"city": city, "nights": nights, "board": board, "price": 80 * nights}

    return agent


def trips() -> Agent:
    """An agent that asks the others of this server."""
    agent = Agent("Trip Agent", description="Plans trips.", version="2.0.1", key="trips")

    @agent.handler
    async def plan(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working("Asking for flights and rooms")
        async with turn.connect(f"{HERE['url']}/flights", insecure=True) as flights:
            await flights.send("Book a flight to Rome in August")
            await flights.send("What does Oslo cost?")
        async with turn.connect(f"{HERE['url']}/hotels", insecure=True) as hotels:
            await hotels.send({"city": "Rome", "nights": 5}, skill="find_room")
        for day in ("Monday: the old town.", "Tuesday: the sea.", "Wednesday: home again."):
            yield turn.write(f"- {day}\n", name="plan")

    return agent


HERE = {"url": ""}
"""Where the agents are served."""


def agents() -> tuple[Agent, ...]:
    """All of them."""
    return flights(), hotels(), trips()


async def screens(running: Running) -> dict[str, str]:
    """The address of each screen, with tasks to show."""
    HERE["url"] = running.url
    asked = await running.send("What does Oslo cost?", "/flights")
    booked = await running.send("Book a flight to Rome in August", "/flights")
    failed = await running.send("Fly me to Mars", "/flights")
    trip = await running.send("Plan a week in Rome", "/trips")
    return {
        "tasks": "#/tasks",
        "task": f"#/task/{trip['id']}",
        "failed": f"#/task/{failed['id']}",
        "question": f"#/task/{asked['id']}",
        "chat": f"#/chat/flights?context={booked['contextId']}",
        "form": "#/chat/hotels",
        "agents": "#/agents",
        "webhooks": "#/webhooks",
        "fleet": "#/fleet",
        "log": "#/log",
        "page": "",
    }


async def take(chromium: Browser, running: Running, folder: Path) -> list[Path]:
    """Take a picture of each screen, in each size and theme."""
    for text in ("Book a flight to Rome", "Book a flight to Cairo"):
        await running.send(text, "/flights")
    found = []
    shown = await screens(running)
    for theme in THEMES:
        for size, (width, height) in SIZES.items():
            options = {"viewport": {"width": width, "height": height}, "color_scheme": theme}
            async with watched(chromium, **options) as seen:
                await seen.page.goto(running.fresh())
                for name, place in shown.items():
                    await open_screen(seen.page, running, name, place)
                    file = folder / f"console-{name}-{size}-{theme}.png"
                    await seen.page.screenshot(path=file)
                    found.append(file)
                assert seen.errors == []
    return found


async def open_screen(page: Any, running: Running, name: str, place: str) -> None:
    """Show a screen, and wait until it is there."""
    if name == "page":
        await page.goto(f"{running.url}/flights/")
        return
    await page.goto(f"{running.url}/console/{place}")
    ready = {
        "tasks": ".row >> nth=1",
        "task": "[aria-label=Delegation] .place-line >> nth=3",
        "failed": ".entry.attempt",
        "question": ".ask input",
        "chat": ".bubble.artifact >> nth=1",
        "form": ".skill select option >> nth=1",
        "agents": ".skills >> nth=1",
        "webhooks": "[aria-label=Webhooks]",
        "fleet": "[aria-label=Fleet]",
        "log": ".attach",
    }[name]
    await page.wait_for_selector(ready, state="attached")
    if name == "form":
        await page.select_option(".skill select", "find_room")
        await page.wait_for_selector("form.schema")
    if name == "chat" and (page.viewport_size or {}).get("width", 0) > 1000:
        await page.click(".talk-head >> text=Wire")
        await page.wait_for_selector(".wire .fold.line")
        await page.click(".wire .fold.line >> nth=0")
    await page.wait_for_timeout(400)  # fonts and scrolling settle


async def main(folder: Path) -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as path:
        app = App(*agents(), store=stored(Path(path)), fleet=True)
        async with browser() as chromium, consoled(app) as running:
            for file in await take(chromium, running, folder):
                print(file, file.stat().st_size)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())))
