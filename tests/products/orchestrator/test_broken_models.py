"""Models that do everything wrong: each ends in a bounded, honest result."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dragoman import TaskState, Turn
from dragoman.client import Result
from dragoman.orchestrator import Budget, chat_model
from tests.products.orchestrator.chat_server import (
    Call,
    Request,
    call,
    cut,
    drop,
    endless,
    hang,
    html,
    huge,
    say,
    status,
)
from tests.products.orchestrator.desk import (
    Peer,
    artifacts,
    desk,
    make_plan,
    send_message,
    sources,
    then,
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_model, "FIRST", 0.01)


def last(result: Result) -> str:
    """The text of the final status."""
    assert result.task is not None and result.task.status.message is not None
    return result.task.status.message.text


BROKEN = {
    "nothing": "The model gave an empty answer.",
    "blank": "The model gave an empty answer.",
    "busy": "The model's server is busy.",
    "failing": "The model's server failed.",
    "refused": "The model's server refused the request.",
    "cut": "The connection to the model's server broke.",
    "dropped": "The model's server cannot be reached.",
    "page": "The model's server sent something that is not an answer of a model.",
    "huge": "The model's answer is longer than 4 MiB.",
    "big-call": "The model called a tool with arguments of more than 256 KiB.",
    "many-calls": "The model called more than 128 tools at once.",
    "hang": "The model did not answer within 1 s.",
    "endless": "The model did not answer within 1 s.",
}
STEPS: dict[str, Any] = {
    "nothing": say(None),
    "blank": say("  \n "),
    "busy": status(429),
    "failing": status(500),
    "refused": status(400),
    "cut": cut("Half of an"),
    "dropped": drop(),
    "page": html(),
    "huge": huge(5 << 20),
    "big-call": say(None, send_message("flights", "x" * 300_000), size=9999),
    "many-calls": say(None, *(send_message("flights", str(n)) for n in range(129))),
    "hang": hang(),
    "endless": endless(pause=0.05),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_model_that_gives_no_answer(kind: str) -> None:
    flights = Peer("Flights")
    async with desk(then(STEPS[kind]), flights, model={"timeout": 1.0}) as office:
        result = await office.send("a flight")
    assert result.state is TaskState.FAILED
    assert BROKEN[kind] in last(result)
    assert 1 <= len(office.prompts) <= 6
    assert flights.heard == []


@pytest.mark.parametrize("kind", ["nothing", "busy", "cut", "hang", "page"])
async def test_a_model_that_breaks_after_a_result(kind: str) -> None:
    """What was done is named, and what the agents have brought is there."""
    flights = Peer("Flights", "FL-1")
    script = then(say(None, send_message("flights", "LIS")), STEPS[kind])
    async with desk(script, flights, model={"timeout": 1.0}) as office:
        result = await office.send("a flight")
    assert result.state is TaskState.FAILED
    assert BROKEN[kind] in last(result)
    assert "flights-1.1 (flights, 127.0.0.1:" in last(result) and "): done" in last(result)
    assert [each["state"] for each in sources(result)] == ["done"]
    assert artifacts(result)["flights-1.1"] == "FL-1"


async def test_a_model_that_recovers() -> None:
    script = [say(None), status(429), cut(), "Hello."]
    async with desk(script, Peer("Flights")) as office:
        result = await office.send("hello")
    assert artifacts(result)["answer"] == "Hello."


WRONG: dict[str, tuple[Call, str]] = {
    "not-json": (Call("send_message", '{"agent": "flights", "text": "L'), "are not JSON"),
    "no-object": (Call("send_message", "[1, 2]"), "must be an object"),
    "a-string": (Call("send_message", '"flights"'), "must be an object"),
    "nothing": (Call("send_message", ""), "there is no agent"),
    "no-agent": (Call("send_message", {"text": "LIS"}), "there is no agent"),
    "unknown-agent": (send_message("trains", "LIS"), "the agents are: flights"),
    "agent-is-list": (Call("send_message", {"agent": ["flights"], "text": "x"}), "is no agent"),
    "agent-is-address": (send_message("http://127.0.0.1:1/", "LIS"), "there is no agent"),
    "no-text": (Call("send_message", {"agent": "flights"}), "give text, or data"),
    "text-is-number": (Call("send_message", {"agent": "flights", "text": 7}), "give text"),
    "unknown-tool": (Call("http_get", {"url": "http://127.0.0.1:1/"}), "there is no tool"),
    "deep": (
        Call("send_message", '{"agent": "flights", "data": ' + '{"a":' * 900 + "1" + "}" * 901),
        "nested more than",
    ),
    "deepest": (Call("send_message", '{"a": ' + "[" * 100_000), "must be an object"),
    "surrogate": (Call("send_message", '{"agent": "\\ud800", "text": "x"}'), "Error"),
    "plan-without-steps": (Call("make_plan", {}), "at least one step"),
    "plan-of-words": (Call("make_plan", {"steps": ["fly"]}), "each step is an object"),
    "plan-needs-words": (
        make_plan({"name": "a", "agent": "flights", "text": "x", "needs": "b"}),
        "expected a list",
    ),
    "plan-of-unknown": (make_plan({"name": "a", "agent": "trains"}), "there is no agent"),
    "plan-of-unknown-skill": (
        make_plan({"name": "a", "agent": "flights", "skill": "swim"}),
        "has no skill",
    ),
    "plan-names-a-line": (
        make_plan({"name": "a: b\nhotels: yes", "agent": "flights", "text": "x"}),
        "a name has",
    ),
    "plan-same-names": (
        make_plan(
            {"name": "Book", "agent": "flights", "text": "x"},
            {"name": "book", "agent": "flights", "text": "y"},
        ),
        "another step has this name",
    ),
    "cycle": (
        make_plan(
            {"name": "a", "agent": "flights", "text": "x", "needs": ["b"]},
            {"name": "b", "agent": "flights", "data": {"x": {"$from": "a"}}},
        ),
        "need each other",
    ),
    "itself": (
        make_plan({"name": "a", "agent": "flights", "data": {"$from": "a/x"}}),
        "need each other",
    ),
    "needs-nobody": (
        make_plan({"name": "a", "agent": "flights", "text": "x", "needs": ["z"]}),
        "which is no step",
    ),
    "eight-hundred": (
        make_plan(*({"name": f"s{n}", "agent": "flights"} for n in range(800))),
        "at most 50 steps",
    ),
    "hand-off-to-nobody": (Call("hand_off", {"agent": "bank"}), "there is no agent"),
}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_call_that_is_wrong(kind: str) -> None:
    """The model is told what is wrong, nothing is done, and it can go on."""
    wrong, why = WRONG[kind]
    flights = Peer("Flights")
    async with desk([say(None, wrong), "I cannot."], flights) as office:
        result = await office.send("a flight")
    (told,) = office.prompts[1].results
    assert told.startswith("Error") and why in told
    assert len(told) < 2000
    assert flights.heard == []
    assert artifacts(result)["answer"] == "I cannot."


def packed(steps: int) -> Call:
    """A plan of so many steps, as short as it can be."""
    listed = [{"name": f"s{n}", "agent": "f"} for n in range(steps)]
    return Call("make_plan", json.dumps({"steps": listed}, separators=(",", ":")))


async def test_ten_thousand_steps() -> None:
    """So many do not fit into the arguments of a call."""
    async with desk(then(say(None, packed(10_000), size=9999)), Peer("F")) as office:
        result = await office.send("a flight")
    assert "arguments of more than 256 KiB" in last(result)


@pytest.mark.parametrize("text", ["x" * 150_000, "\x01" * 30_000, "ü" * 30_000])
async def test_arguments_that_the_log_cannot_keep(text: str) -> None:
    flights = Peer("Flights")
    large = Call("send_message", {"agent": "flights", "text": text})
    async with desk([say("Wait.", large, size=9999), "I cannot."], flights) as office:
        result = await office.send("a flight")
    (told,) = office.prompts[1].results
    assert told == "Error: the calls are too large; make fewer, or shorter ones"
    assert flights.heard == []
    assert artifacts(result)["answer"] == "I cannot."


async def test_a_large_answer() -> None:
    """It is streamed, and not kept a second time."""
    text = "All that there is to know about Lisbon. " * 20_000
    async with desk([say(text, size=9999)], Peer("Flights")) as office:
        result = await office.send("tell me")
    assert result.state is TaskState.COMPLETED
    assert artifacts(result)["answer"] == text


@pytest.mark.parametrize("kind", ["cycle", "plan-of-unknown", "plan-names-a-line"])
async def test_a_refused_plan_goes_back_twice(kind: str) -> None:
    flights = Peer("Flights")
    async with desk(then(say(None, WRONG[kind][0])), flights) as office:
        result = await office.send("a flight")
    assert len(office.prompts) == 3
    assert result.state is TaskState.FAILED
    assert last(result).startswith("The model made no plan that can be done: ")
    assert WRONG[kind][1] in last(result)
    assert flights.heard == []


async def test_a_plan_that_is_mended_is_carried_out() -> None:
    flights = Peer("Flights", "FL-1")
    script = [
        say(None, WRONG["cycle"][0]),
        say(None, make_plan({"name": "a", "agent": "flights", "text": "LIS"})),
        "FL-1",
    ]
    async with desk(script, flights) as office:
        result = await office.send("a flight")
    assert flights.heard == ["LIS"]
    assert artifacts(result)["answer"] == "FL-1"


async def test_a_hundred_calls_at_once() -> None:
    """Those that the budget allows are made; the model is told about the others."""
    flights = Peer("Flights", "FL-1")
    crowd = say(None, *(send_message("flights", f"day {n}") for n in range(100)))
    async with desk([crowd, "Half of it."], flights, budget=Budget(steps=20)) as office:
        result = await office.send("every day")
    assert len(flights.heard) == 20
    told = office.prompts[1].results
    assert sum("FL-1" in each for each in told) == 20
    assert sum("at most 20 steps" in each for each in told) == 80
    assert artifacts(result)["answer"] == "Half of it."


async def test_the_same_call_again_and_again() -> None:
    flights = Peer("Flights", "FL-1")
    script = then(say(None, send_message("flights", "LIS")))
    async with desk(script, flights, budget=Budget(calls=5)) as office:
        result = await office.send("a flight")
    assert len(flights.heard) == 5
    assert "the budget of 5 calls of agents is used up" in last(result)
    assert result.state is TaskState.COMPLETED  # it ends with what it has
    assert last(result).count(": done") == 5


async def test_calls_without_end() -> None:
    """Calls that do nothing are bounded, too."""
    script = then(call("no_such_tool", {}))
    async with desk(script, Peer("Flights"), budget=Budget(model_calls=4)) as office:
        result = await office.send("a flight")
    assert len(office.prompts) == 4
    assert result.state is TaskState.FAILED
    assert last(result) == "Stopped: the budget of 4 calls of the model is used up."


async def test_a_model_that_finds_agents_for_ever() -> None:
    crowd = [Peer(f"Crowd {n}", about="Does much. " * 200).agent for n in range(30)]
    script = then(call("find_agents", {"query": "much"}))
    async with desk(script, *crowd, budget=Budget(model_calls=3)) as office:
        result = await office.send("much")
    assert len(office.prompts) == 3
    assert "calls of the model" in last(result)


async def test_plans_without_end() -> None:
    flights = Peer("Flights", "FL-1")

    def script(request: Request) -> Any:
        name = f"step{len(office.prompts)}"
        return say(None, make_plan({"name": name, "agent": "flights", "text": "LIS"}))

    async with desk(script, flights) as office:
        result = await office.send("a flight")
    assert len(flights.heard) == 9  # the first, and eight changes
    assert "the plan was changed 8 times" in last(result)


async def test_calls_with_the_same_ids() -> None:
    script = [
        say(None, send_message("flights", "A", "x"), send_message("flights", "B", "x")),
        "Done.",
    ]
    echo = Peer("Flights", lambda turn: turn.artifact(f"got {turn.text}"))
    async with desk(script, echo) as office:
        await office.send("a flight")
    sent, *tools = office.prompts[1].messages[2:]
    ids = [each["id"] for each in sent["tool_calls"]]
    assert len(set(ids)) == 2
    assert [each["tool_call_id"] for each in tools] == ids
    assert "got A" in tools[0]["content"] and "got B" in tools[1]["content"]


async def test_a_model_that_hangs_until_the_time_is_over() -> None:
    """The time of the task ends it, also when the model's own would be longer."""
    script = then(say(None, send_message("flights", "LIS")), hang())
    budget = Budget(seconds=1.5)
    async with desk(script, Peer("Flights", "FL-1"), budget=budget) as office:
        result = await office.send("a flight")
    assert result.state is TaskState.FAILED
    assert "The time is over" in last(result)
    assert ": done" in last(result)


async def test_an_agent_that_hangs_until_the_time_is_over() -> None:
    """Its task is canceled, and what the others have brought is there."""
    gone = asyncio.Event()

    async def wait(turn: Turn) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    script = [say(None, send_message("flights", "LIS"), send_message("hotels", "LIS")), "never"]
    budget = Budget(seconds=1.5)
    team = Peer("Flights", wait), Peer("Hotels", "H-2")
    async with desk(script, *team, budget=budget) as office:
        result = await office.send("a trip")
        async with asyncio.timeout(10):
            await gone.wait()
    assert result.state is TaskState.COMPLETED
    assert "the time is over" in last(result)
    assert {each["agent"]: each["state"] for each in sources(result)} == {
        "flights": "failed",
        "hotels": "done",
    }
    assert len(office.prompts) == 1


async def test_tasks_end_that_go_on_when_the_model_breaks() -> None:
    """An agent that was given up goes on working; it is canceled also if the model fails then."""

    def asking(turn: Turn) -> Any:
        return turn.ask("And what else?")

    script = then(say(None, send_message("flights", "LIS")), status(400))
    flights = Peer("Flights", asking)
    async with desk(script, flights) as office:
        result = await office.send("a flight")
        assert result.task is not None
        for number in range(5):
            assert result.state is TaskState.INPUT_REQUIRED
            result = await office.send(f"this {number}", task=result.task.id)
        assert result.state is TaskState.FAILED
        assert "more than 5 questions" in last(result)
        async with asyncio.timeout(10):
            await flights.canceled.wait()
