"""An orchestrator with a model: behind a real server, with agents over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dragoman import Part, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent, Turn
from dragoman.client import Result
from dragoman.orchestrator import Budget, agent_team
from tests.products.orchestrator.chat_server import Call, Request, call, say
from tests.products.orchestrator.desk import (
    Peer,
    artifacts,
    desk,
    make_plan,
    metadata,
    send_message,
    sources,
    system,
    then,
)


async def test_calls_run_side_by_side_and_come_back_as_answers_of_the_tools() -> None:
    both = asyncio.Barrier(2)

    async def met(turn: Turn) -> Any:
        await both.wait()
        return turn.artifact(f"booked {turn.text}")

    async def free(turn: Turn) -> Any:
        await both.wait()
        return turn.artifact({"reference": "H-2"})

    flights, hotels = Peer("Flights", met), Peer("Hotels", free)
    script = [
        say(None, send_message("flights", "LIS", "a"), send_message("hotels", "LIS", "b")),
        "Booked.",
    ]
    async with desk(script, flights, hotels) as office:
        result = await office.send("a trip to Lisbon")
    assert result.state is TaskState.COMPLETED
    first, second = office.prompts
    assert first.messages[-1] == {"role": "user", "content": "a trip to Lisbon"}
    assert [each["role"] for each in second.messages[2:]] == ["assistant", "tool", "tool"]
    assert [each["tool_call_id"] for each in second.messages[3:]] == ["a", "b"]
    assert "booked LIS" in second.results[0] and "agent flights" in second.results[0]
    assert json.loads(second.results[1].splitlines()[1]) == {"reference": "H-2"}
    assert artifacts(result)["answer"] == "Booked."
    assert (flights.heard, hotels.heard) == (["LIS"], ["LIS"])


async def test_only_the_answer_is_streamed_as_an_artifact() -> None:
    answer = "The flight FL-1 to Lisbon, says Flights. " * 10
    script = [say("Let me ask Flights.", send_message("flights", "LIS")), say(answer)]
    async with (
        desk(script, Peer("Flights", "FL-1")) as office,
        office.client.stream("a flight") as stream,
    ):
        events = [event async for event in stream]
    said = [
        event.status.message.text
        for event in events
        if isinstance(event, TaskStatusUpdateEvent) and event.status.message
    ]
    pieces = [
        event.artifact.text
        for event in events
        if isinstance(event, TaskArtifactUpdateEvent) and event.artifact.artifact_id == "answer/2"
    ]
    assert said == ["Let me ask Flights."]
    assert len(pieces) > 10
    assert "".join(pieces) == answer
    assert "Let me" not in "".join(artifacts(stream.result).values())
    # the result of the agent came before the answer, with its source
    passed = next(event for event in events if isinstance(event, TaskArtifactUpdateEvent))
    assert passed.artifact.text == "FL-1"
    source = (passed.artifact.metadata or {})["urn:dragoman:source:v1"]
    assert (source["agent"], source["step"]) == ("Flights", "flights-1.1")


async def test_an_answer_after_a_long_thought_stands_alone() -> None:
    """A long text is shown before it is clear that tools follow; it stays apart from the answer."""
    thought = "First I shall look at all the flights of the day. " * 10
    script = [say(thought, send_message("flights", "LIS")), "FL-1, says Flights."]
    async with desk(script, Peer("Flights", "FL-1")) as office:
        result = await office.send("a flight")
    last = [each.text for each in result.artifacts if each.name == "answer"][-1]
    assert last == "FL-1, says Flights."


async def test_a_plan_with_references() -> None:
    flights = Peer("Flights", {"reference": "FL-1", "seats": ["12A", "12B"]})
    notes = Peer("Notes", lambda turn: turn.artifact(f"noted {turn.text}"))
    script = [
        say(
            None,
            make_plan(
                {"name": "note", "agent": "notes", "data": {"$from": "flight/seats/1"}},
                {"name": "flight", "agent": "flights", "text": "LIS"},
                {"name": "last", "agent": "notes", "text": "end", "needs": ["note"]},
            ),
        ),
        "Noted.",
    ]
    async with desk(script, flights, notes) as office:
        result = await office.send("book and note it")
    assert result.state is TaskState.COMPLETED
    assert notes.heard == ["12B", "end"]
    answered = office.prompts[1].results[0]
    assert all(name in answered for name in ("note: ", "flight: ", "last: ", "noted 12B"))
    assert [each["step"] for each in sources(result)] == ["note", "flight", "last"]


async def test_a_plan_and_a_call_in_one_answer() -> None:
    """The plan does not take the place of the call beside it, nor of another plan."""
    flights, hotels = Peer("Flights", "FL-1"), Peer("Hotels", "H-2")
    script = [
        say(
            None,
            send_message("flights", "LIS"),
            make_plan({"name": "hotel", "agent": "hotels", "text": "one night"}),
            make_plan({"name": "spare", "agent": "hotels", "text": "two nights"}),
        ),
        "Done.",
    ]
    async with desk(script, flights, hotels) as office:
        result = await office.send("book")
    assert result.state is TaskState.COMPLETED
    assert flights.heard == ["LIS"]
    assert sorted(hotels.heard) == ["one night", "two nights"]
    assert ["FL-1" in office.prompts[1].results[0], "H-2" in office.prompts[1].results[1]] == [
        True,
        True,
    ]


async def test_many_rounds_of_calls_are_no_changes_of_a_plan() -> None:
    """A model may go on calling agents one after the other, as far as its budget goes."""
    flights = Peer("Flights", "FL-1")
    script = [*(say(None, send_message("flights", f"day {n}")) for n in range(12)), "Done."]
    async with desk(script, flights) as office:
        result = await office.send("look at each day")
    assert artifacts(result)["answer"] == "Done."
    assert len(flights.heard) == 12


async def test_agents_that_the_prompt_has_no_room_for_are_found_by_words() -> None:
    about = "Does many useful things for people who travel far. " * 60
    crowd = [Peer(f"Crowd {n}", about=about).agent for n in range(24)]
    tailor = Peer("Tailor", "a suit", about=about + "Sews suits.", examples=["sew me a suit"])

    def script(request: Request) -> Any:
        number = len(office.prompts)
        if number == 1:
            return call("find_agents", {"query": "sew a suit"})
        if number == 2:
            return say(None, send_message("tailor", "a blue suit"))
        return "A suit."

    async with desk(script, *crowd, tailor) as office:
        result = await office.send("something nice")
    first, second, _ = office.prompts
    assert "find_agents" in first.tools
    assert "more agents; use find_agents" in system(first)
    assert "card of tailor" not in system(first)
    assert len(system(first)) < 30_000
    assert second.results[0].startswith("agent tailor:")
    assert tailor.heard == ["a blue suit"]
    assert result.state is TaskState.COMPLETED


async def test_no_find_agents_while_all_cards_fit() -> None:
    async with desk(["Hello."], Peer("Flights")) as office:
        await office.send("hello")
    assert office.prompts[0].tools == ["send_message", "make_plan", "hand_off"]


async def test_a_typed_skill_is_a_tool() -> None:
    flights = Peer("Flights")
    heard = []

    @flights.agent.skill
    async def book(city: str, seats: int = 1) -> dict[str, Any]:
        """Books a flight."""
        heard.append((city, seats))
        return {"city": city, "seats": seats}

    script = [
        say(
            None,
            Call("flights__book", {"city": "LIS", "seats": 2}),
            Call("flights__book", {"city": "LIS", "seats": "many"}),
        ),
        "Booked.",
    ]
    async with desk(script, flights) as office:
        result = await office.send("book")
    (tool,) = [
        each["function"]
        for each in office.prompts[0].body["tools"]
        if each["function"]["name"] == "flights__book"
    ]
    assert tool["parameters"]["properties"]["city"]["type"] == "string"
    assert "Books a flight." in tool["description"]
    assert heard == [("LIS", 2)]
    good, bad = office.prompts[1].results
    assert json.loads(good.splitlines()[1]) == {"city": "LIS", "seats": 2}
    assert bad.startswith("Error:") and "seats" in bad
    assert result.state is TaskState.COMPLETED


def asking(question: str) -> Any:
    """Work that asks first, and says what it was told."""

    async def work(turn: Turn) -> Any:
        if len([each for each in turn.task.history if each.role.name == "USER"]) < 2:
            return turn.ask(question)
        return turn.artifact(f"got {turn.text}")

    return work


async def test_a_model_divides_one_answer_to_several_questions() -> None:
    flights = Peer("Flights", asking("Which day?"))
    hotels = Peer("Hotels", asking("How many nights?"))
    script = [
        say(None, send_message("flights", "LIS"), send_message("hotels", "LIS")),
        say('```json\n{"flights-1.1": "on Friday", "hotels-1.2": "two nights"}\n```'),
        "Done.",
    ]
    async with desk(script, flights, hotels) as office:
        asked = await office.send("a trip")
        assert asked.state is TaskState.INPUT_REQUIRED
        assert "> Which day?" in asked.text and "> How many nights?" in asked.text
        assert asked.task is not None
        result = await office.send("on Friday please, and two nights", task=asked.task.id)
    assert result.state is TaskState.COMPLETED
    assert flights.heard == ["LIS", "on Friday"]
    assert hotels.heard == ["LIS", "two nights"]
    division = office.prompts[1]
    assert division.tools == []
    assert "Which day?" in division.last and "on Friday please" in division.last


async def test_a_part_of_an_answer_goes_to_one_agent_only() -> None:
    flights = Peer("Flights", asking("Which day?"))
    hotels = Peer("Hotels", asking("Which day?"))
    script = [
        say(None, send_message("flights", "LIS"), send_message("hotels", "LIS")),
        say('{"flights-1.1": "on Friday", "hotels-1.2": "on Friday"}'),
        "Done.",
    ]
    async with desk(script, flights, hotels) as office:
        asked = await office.send("a trip")
        assert asked.task is not None
        again = await office.send("the flight on Friday", task=asked.task.id)
        assert again.state is TaskState.INPUT_REQUIRED and "flights-1.1" not in again.text
        result = await office.send("on Monday", task=asked.task.id)
    assert result.state is TaskState.COMPLETED
    assert flights.heard == ["LIS", "on Friday"]
    assert hotels.heard == ["LIS", "on Monday"]


async def test_what_a_model_cannot_divide_is_asked_again() -> None:
    flights = Peer("Flights", asking("Which day?"))
    hotels = Peer("Hotels", asking("How many nights?"))
    script = [
        say(None, send_message("flights", "LIS"), send_message("hotels", "LIS")),
        "I have no idea.",
        "Done.",
    ]
    async with desk(script, flights, hotels) as office:
        asked = await office.send("a trip")
        assert asked.task is not None
        again = await office.send("well", task=asked.task.id)
        assert again.state is TaskState.INPUT_REQUIRED
        said = {"flights-1.1": "Friday", "hotels-1.2": 2}
        result = await office.send(said, task=asked.task.id)
    assert result.state is TaskState.COMPLETED
    assert flights.heard == ["LIS", "Friday"]
    assert hotels.heard == ["LIS", 2]


async def test_earlier_turns_of_the_conversation_are_shown() -> None:
    script = [say(None, send_message("flights", "LIS")), "FL-1, says Flights.", "As I said: FL-1."]
    async with desk(script, Peer("Flights", "seat 12A")) as office:
        first = await office.send("a flight")
        assert first.task is not None
        await office.send("which one?", context=first.task.context_id)
    told = office.prompts[-1].messages
    assert told[1] == {"role": "user", "content": "a flight"}
    assert {"role": "assistant", "content": "FL-1, says Flights."} in told
    assert told[-1] == {"role": "user", "content": "which one?"}
    # the words of the agent are in the history, too, and still marked as those of a stranger
    (old,) = [each["content"] for each in told if "seat 12A" in str(each["content"])]
    assert old.startswith("⟦untrusted")


async def test_the_final_status_names_the_sources() -> None:
    script = [
        say(None, send_message("flights", "LIS"), send_message("hotels", "LIS")),
        "Only the flight.",
    ]
    flights = Peer("Flights", "FL-1")
    hotels = Peer("Hotels", lambda turn: turn.fail("no rooms"))
    async with desk(script, flights, hotels) as office:
        result = await office.send("a trip")
    assert result.state is TaskState.COMPLETED
    flight, hotel = sources(result)
    assert (flight["agent"], flight["state"]) == ("flights", "done")
    assert f"http://{flight['host']}" == flights.url
    assert (hotel["agent"], hotel["state"]) == ("hotels", "failed")
    assert "no rooms" in office.prompts[1].results[1]


async def test_tokens_are_counted() -> None:
    script = then(say(None, send_message("flights", "LIS"), usage=(40, 20)))
    async with desk(script, Peer("Flights"), budget=Budget(tokens=100)) as office:
        result = await office.send("a trip")
    assert len(office.prompts) == 2
    assert "the budget of 100 tokens is used up" in result.task.status.message.text  # type: ignore[union-attr]
    assert len(sources(result)) == 2


async def test_tokens_of_a_division_are_counted() -> None:
    flights = Peer("Flights", asking("Which day?"))
    hotels = Peer("Hotels", asking("How many nights?"))
    script = [
        say(None, send_message("flights", "LIS"), send_message("hotels", "LIS"), usage=(1, 1)),
        say('{"flights-1.1": "Friday", "hotels-1.2": "two"}', usage=(90, 90)),
        "never",
    ]
    async with desk(script, flights, hotels, budget=Budget(tokens=100)) as office:
        asked = await office.send("a trip")
        assert asked.task is not None
        result = await office.send("Friday, two", task=asked.task.id)
    assert len(office.prompts) == 2
    assert "the budget of 100 tokens is used up" in _last(result)


async def test_a_result_that_is_a_file_is_named() -> None:
    script = [say(None, send_message("flights", "LIS")), "A ticket."]

    def ticket(turn: Turn) -> Any:
        return turn.artifact(Part(raw=b"pixels", filename="t.png", media_type="image/png"))

    async with desk(script, Peer("Flights", ticket)) as office:
        result = await office.send("a trip")
    assert "[1 files]" in office.prompts[1].results[0]
    assert [part.raw for part in result.files] == [b"pixels"]


async def test_without_agents_the_model_gets_no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_team, "ATTEMPTS", 1)
    async with desk(["There is nobody."], "http://127.0.0.1:9") as office:
        result = await office.send("a trip")
    assert office.prompts[0].tools == []
    assert artifacts(result)["answer"] == "There is nobody."
    assert "urn:dragoman:sources:v1" not in metadata(result)


def _last(result: Result) -> str:
    assert result.task is not None and result.task.status.message is not None
    return result.task.status.message.text
