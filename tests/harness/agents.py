"""The agent of the contract tests. The text of a message selects what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dragoman import Agent, AgentExtension, Message, Part, Turn

REQUIRED = "urn:example:required"


@dataclass
class Booking:
    """The input of the `book` skill."""

    city: str
    nights: int = 1


def make(*, required: bool = False, streaming: bool = True, extended: bool = False) -> Agent:
    """Create an agent; tests share nothing."""
    agent = Agent(
        "Contract",
        description="Does what the text says.",
        version="2.0.0",
        streaming=streaming,
        extended=extended,
        input_modes=["text/plain", "application/json"],
        extensions=[AgentExtension(uri=REQUIRED, required=True)] if required else [],
    )
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]

    @agent.handler
    async def anything(turn: Turn) -> AsyncIterator[Any]:
        """Do what the first word of the text names, else echo the text."""
        gate: asyncio.Event = agent.gate  # type: ignore[attr-defined]
        verb = turn.text.partition(" ")[0]
        yield turn.working(f"working on {turn.text}")
        if verb == "ask":
            yield turn.ask("Which dates?")
        elif verb == "reject":
            yield turn.reject("I will not")
        elif verb == "fail":
            yield turn.fail("I could not")
        elif verb == "raise":
            raise ValueError("secret inside")
        elif verb == "auth":
            yield turn.require_auth("Log in first")
            await gate.wait()
            yield turn.working()
            yield turn.artifact("after login")
        elif verb == "gate":
            await gate.wait()
            yield turn.artifact("through the gate")
        elif verb == "relay":
            await gate.wait()
            for number in range(20):
                yield turn.write(f"{number} ", name="counted")
        elif verb == "stubborn":
            while not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await gate.wait()
        elif verb == "finishing":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                yield turn.complete("done all the same")
        elif verb == "chunks":
            for number in range(int(turn.text.split()[1])):
                yield turn.write(f"{number} ", name="counted")
        else:
            yield turn.artifact(turn.text, name="echo")

    @agent.skill(reply=True, tags=["talk"])
    async def talk(turn: Turn) -> Message | str:
        """Reply without a task."""
        return f"you said {turn.text}"

    @agent.skill(tags=["travel"], input_modes=["image/*"])
    async def book(turn: Turn, booking: Booking) -> dict[str, Any]:
        """Book something."""
        return {"city": booking.city, "nights": booking.nights}

    @agent.skill(tags=["files"])
    async def files(turn: Turn) -> list[Part]:
        """Send the parts back."""
        return list(turn.message.parts)

    return agent
