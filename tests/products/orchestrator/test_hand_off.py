"""A member takes the conversation over, until its task ends or the user comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dragoman import TaskState, Turn
from tests.products.orchestrator.chat_server import Call, say
from tests.products.orchestrator.desk import Peer, artifacts, desk, send_message, sources, then

DONE, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED
OVER = Call("hand_off", {"agent": "flights"})
QUESTIONS = 7
"""More than an agent may ask that does not talk with the user directly."""


async def chatty(turn: Turn) -> AsyncIterator[Any]:
    """Asks often, and books."""
    said = [each.text for each in turn.task.history if each.role.name == "USER"]
    if len(said) <= QUESTIONS:
        yield turn.ask(f"Question {len(said)}?")
    else:
        yield turn.artifact(f"booked after {said[-1]}")


async def test_it_talks_until_it_is_done() -> None:
    flights = Peer("Flights", chatty)
    async with desk(then(say(None, OVER), "Flights has booked."), flights) as office:
        result = await office.send("let me talk to Flights")
        for number in range(1, QUESTIONS + 1):
            assert result.state is ASKS
            assert f"> Question {number}?" in result.text
            assert result.text.endswith("(/back ends the talk with this agent)")
            assert result.task is not None
            result = await office.send(f"answer {number}", task=result.task.id)
        assert len(office.prompts) == 2, "the model reads nothing of the talk but its end"
    assert result.state is DONE
    assert flights.heard == ["let me talk to Flights", *(f"answer {n}" for n in range(1, 8))]
    assert artifacts(result)["answer"] == "Flights has booked."
    assert "booked after answer 7" in office.prompts[1].results[0]


async def test_the_user_comes_back() -> None:
    flights = Peer("Flights", chatty)
    async with desk(then(say(None, OVER), "Here I am again."), flights) as office:
        asked = await office.send("let me talk to Flights")
        assert asked.task is not None
        result = await office.send(" /BACK ", task=asked.task.id)
        async with asyncio.timeout(10):
            await flights.canceled.wait()
    assert flights.heard == ["let me talk to Flights"]
    assert artifacts(result)["answer"] == "Here I am again."
    assert "the user has come back" in office.prompts[1].results[0]
    assert [each["state"] for each in sources(result)] == ["failed"]


async def test_words_for_the_way_back_reach_the_agent_where_nobody_took_over() -> None:
    """`/back` is a word like any other for an agent that was called and has asked."""
    flights = Peer("Flights", chatty)
    script = then(say(None, send_message("flights", "LIS")), "It has asked too much.")
    async with desk(script, flights) as office:
        asked = await office.send("a flight")
        assert asked.task is not None
        await office.send("/back", task=asked.task.id)
    assert flights.heard == ["LIS", "/back"]


async def test_others_are_called_before_it_takes_over() -> None:
    flights, hotels = Peer("Flights", "FL-1"), Peer("Hotels", "HT-1")
    script = then(say(None, OVER, send_message("hotels", "LIS")), "Done.")
    async with desk(script, flights, hotels) as office:
        result = await office.send("a trip")
    assert result.state is DONE
    assert (flights.heard, hotels.heard) == (["a trip"], ["LIS"])
    over, called = office.prompts[1].results
    assert "FL-1" in over
    assert "HT-1" in called
