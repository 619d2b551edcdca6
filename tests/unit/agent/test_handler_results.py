"""What becomes of what a handler returns, yields and replies."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from dragoman import Agent, Artifact, Message, Part, Role, TaskState, Turn
from dragoman.model.errors import InvalidAgentResponse
from dragoman.model.types import (
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.testing import HandlerRun, run_handler


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: int


class Pair(msgspec.Struct):
    """A struct."""

    left: str
    right: Point


class Pixel(pydantic.BaseModel):
    """A pydantic model."""

    color: str
    at: datetime


class Mood(enum.Enum):
    """An enum."""

    GOOD = "good"


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
UNIQUE = UUID("12345678-1234-5678-1234-567812345678")
ONE = Artifact(artifact_id="one", name="One", parts=(Part(text="1"), Part(data=1)))
TWO = Artifact(artifact_id="two", parts=(Part(url="https://example.com/2"),), metadata={"m": 1})


def data(value: Any) -> list[list[Part]]:
    """One artifact with this data."""
    return [[Part(data=value)]]


def raw(value: bytes) -> list[list[Part]]:
    """One artifact with these bytes."""
    return [[Part(raw=value, media_type="application/octet-stream")]]


VALUES: list[tuple[Any, list[list[Part]]]] = [
    ("text", [[Part(text="text")]]),
    ("", [[Part(text="")]]),
    (b"\x00\xff", raw(b"\x00\xff")),
    (b"", raw(b"")),
    (bytearray(b"array"), raw(b"array")),
    (memoryview(b"view"), raw(b"view")),
    ({"a": {"b": [1, None]}}, data({"a": {"b": [1, None]}})),
    ({}, data({})),
    ({1: "one"}, data({"1": "one"})),
    (Point(1, 2), data({"x": 1, "y": 2})),
    (Pair("l", Point(1, 2)), data({"left": "l", "right": {"x": 1, "y": 2}})),
    (Pixel(color="red", at=NOON), data({"color": "red", "at": "2026-01-31T12:00:00Z"})),
    (0, data(0)),
    (42, data(42)),
    (-1.5, data(-1.5)),
    (True, data(True)),
    (False, data(False)),
    (NOON, data("2026-01-31T12:00:00Z")),
    (UNIQUE, data(str(UNIQUE))),
    (Decimal("1.50"), data("1.50")),
    (Mood.GOOD, data("good")),
    ([], data([])),
    (["a", 1, None], data(["a", 1, None])),
    ((1, 2), data([1, 2])),
    ([Point(1, 2), Pixel(color="red", at=NOON)], None),  # type: ignore[list-item]
    ({"deep": [Pixel(color="red", at=NOON)]}, None),  # type: ignore[list-item]
    (Part(text="t", metadata={"k": 1}), [[Part(text="t", metadata={"k": 1})]]),
    (Part(url="https://example.com"), [[Part(url="https://example.com")]]),
    (Part(data=None), data(None)),
    ([Part(text="a"), Part(raw=b"b")], [[Part(text="a"), Part(raw=b"b")]]),
    ((Part(text="a"),), [[Part(text="a")]]),
    (ONE, [list(ONE.parts)]),
    ([ONE, TWO], [list(ONE.parts), list(TWO.parts)]),
    ((TWO, ONE), [list(TWO.parts), list(ONE.parts)]),
    (None, []),
]
PIXEL = {"color": "red", "at": "2026-01-31T12:00:00Z"}
NESTED = iter([data([{"x": 1, "y": 2}, PIXEL]), data({"deep": [PIXEL]})])
TABLE = [(value, next(NESTED) if expected is None else expected) for value, expected in VALUES]


def case(value: Any) -> str:
    """What a row of the table is called, in every process alike."""
    return type(value).__name__ if isinstance(value, memoryview) else repr(value)[:40]


def agent_of(target: Any, **options: Any) -> Agent:
    """An agent with this one skill."""
    agent = Agent("Test", description="For tests.")
    agent.skill(**options)(target)
    return agent


async def run(target: Any, *values: Any, reply: bool | None = None, **options: Any) -> HandlerRun:
    """What a handler does with messages; it must come to an end."""
    async with asyncio.timeout(10):
        return await run_handler(agent_of(target, reply=reply), *values, **options)


def returning(value: Any) -> Callable[[Turn], Any]:
    """A coroutine that returns this."""

    async def returns(turn: Turn) -> Any:
        return value

    return returns


def returning_plainly(value: Any) -> Callable[[Turn], Any]:
    """A plain function that returns this."""

    def returns_plainly(turn: Turn) -> Any:
        return value

    return returns_plainly


def yielding(*values: Any) -> Callable[[Turn], Any]:
    """An async generator of these."""

    async def yields(turn: Turn) -> AsyncIterator[Any]:
        for value in values:
            yield value(turn) if callable(value) else value

    return yields


def yielding_plainly(*values: Any) -> Callable[[Turn], Any]:
    """A plain generator of these."""

    def yields_plainly(turn: Turn) -> Iterator[Any]:
        for value in values:
            yield value(turn) if callable(value) else value

    return yields_plainly


def emitting(*values: Any) -> Callable[[Turn], Any]:
    """A coroutine that emits these."""

    async def emits(turn: Turn) -> None:
        for value in values:
            await turn.emit(value(turn) if callable(value) else value)

    return emits


WAYS = [yielding, yielding_plainly, emitting]


def parts(found: HandlerRun) -> list[list[Part]]:
    """The parts of each artifact."""
    return [list(artifact.parts) for artifact in task(found).artifacts]


def task(found: HandlerRun) -> Task:
    """The task that there is."""
    assert found.task is not None
    # what a client would get is what the protocol allows
    return msgspec.json.decode(msgspec.json.encode(found.task), type=Task)


def told(found: HandlerRun) -> list[str]:
    """The text of every status that had one."""
    return [
        event.status.message.text
        for event in found.events
        if isinstance(event, TaskStatusUpdateEvent) and event.status.message
    ]


# ---- returned ------------------------------------------------------------------------------


@pytest.mark.clause("results.in-artifacts", "artifact.required-fields", "part.one-content")
@pytest.mark.parametrize("way", [returning, returning_plainly])
@pytest.mark.parametrize(("value", "expected"), TABLE, ids=case)
async def test_what_is_returned_is_an_artifact(way: Any, value: Any, expected: Any) -> None:
    found = await run(way(value))
    assert found.state is TaskState.COMPLETED
    assert parts(found) == expected
    assert len({artifact.artifact_id for artifact in task(found).artifacts}) == len(expected)
    assert [type(event) for event in found.events] == [
        *[TaskArtifactUpdateEvent] * len(expected),
        TaskStatusUpdateEvent,
    ]
    assert all(event.last_chunk for event in found.events[:-1])  # type: ignore[union-attr]


async def test_artifacts_keep_what_they_are() -> None:
    found = await run(returning([ONE, TWO]))
    assert task(found).artifacts == (ONE, TWO)


@pytest.mark.parametrize("way", [returning, returning_plainly])
async def test_a_returned_message_is_that_of_the_end(way: Any) -> None:
    said = Message(
        message_id="mine",
        role=Role.USER,
        task_id="elsewhere",
        context_id="elsewhere",
        parts=(Part(text="done"), Part(data=1)),
        metadata={"k": 1},
        extensions=("urn:x",),
    )
    found = await run(way(said))
    assert (found.state, parts(found)) == (TaskState.COMPLETED, [])
    own = task(found).status.message
    assert own is not None
    assert (own.message_id, own.parts) == ("mine", said.parts)
    assert (own.metadata, own.extensions) == ({"k": 1}, ("urn:x",))
    assert (own.role, own.task_id) == (Role.AGENT, task(found).id)
    assert own.context_id == task(found).context_id


@pytest.mark.parametrize("word", ["working", "ask", "require_auth", "complete", "reject", "fail"])
async def test_a_returned_event_is_said(word: str) -> None:
    async def handler(turn: Turn) -> Any:
        return getattr(turn, word)("so")

    found = await run(handler)
    states = {
        "working": TaskState.COMPLETED,
        "ask": TaskState.INPUT_REQUIRED,
        "require_auth": TaskState.AUTH_REQUIRED,
        "complete": TaskState.COMPLETED,
        "reject": TaskState.REJECTED,
        "fail": TaskState.FAILED,
    }
    assert found.state is states[word]
    assert told(found) == ["so"]
    assert len(found.events) == (2 if word == "working" else 1)


# ---- yielded -------------------------------------------------------------------------------


@pytest.mark.clause("results.in-artifacts", "artifact.required-fields", "part.one-content")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("value", "expected"), TABLE, ids=case)
async def test_what_is_yielded_is_an_artifact(way: Any, value: Any, expected: Any) -> None:
    found = await run(way(value))
    assert found.state is TaskState.COMPLETED
    assert parts(found) == expected


@pytest.mark.clause("artifact-update.append", "artifact-update.last-chunk")
@pytest.mark.parametrize("way", WAYS)
async def test_yielded_texts_are_chunks_of_one_artifact(way: Any) -> None:
    found = await run(way("a", "b", "", "c"))
    assert parts(found) == [[Part(text="abc")]]
    chunks = [event for event in found.events if isinstance(event, TaskArtifactUpdateEvent)]
    assert [chunk.text for chunk in chunks] == ["a", "b", "", "c"]
    assert [chunk.append for chunk in chunks] == [False, True, True, True]
    assert len({chunk.artifact.artifact_id for chunk in chunks}) == 1


@pytest.mark.clause("artifact.unique-id")
@pytest.mark.parametrize("way", WAYS)
async def test_everything_else_is_an_artifact_of_its_own(way: Any) -> None:
    found = await run(way("a", {"n": 1}, "b", {"n": 2}, b"c", [Part(text="x")], ONE, None, "d"))
    assert parts(found) == [
        [Part(text="abd")],
        [Part(data={"n": 1})],
        [Part(data={"n": 2})],
        *raw(b"c"),
        [Part(text="x")],
        list(ONE.parts),
    ]
    ids = [artifact.artifact_id for artifact in task(found).artifacts]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("way", WAYS)
async def test_a_yielded_message_is_that_of_the_end(way: Any) -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="done"),))
    found = await run(way("a", message))
    assert found.state is TaskState.COMPLETED
    assert (told(found), parts(found)) == (["done"], [[Part(text="a")]])


@pytest.mark.parametrize("way", WAYS)
async def test_a_generator_that_just_ends(way: Any) -> None:
    found = await run(way())
    assert found.state is TaskState.COMPLETED
    assert (parts(found), len(found.events)) == ([], 1)


@pytest.mark.parametrize("way", WAYS)
async def test_the_last_question_stands(way: Any) -> None:
    found = await run(way(lambda turn: turn.ask("when?")))
    assert found.state is TaskState.INPUT_REQUIRED
    found = await run(way(lambda turn: turn.ask("when?"), lambda turn: turn.working("or now")))
    assert found.state is TaskState.COMPLETED
    assert told(found) == ["when?", "or now"]


@pytest.mark.parametrize("way", WAYS)
async def test_work_after_authorization_ends_in_completion(way: Any) -> None:
    found = await run(way(lambda turn: turn.require_auth("log in"), "here it is"))
    assert found.state is TaskState.COMPLETED
    assert parts(found) == [[Part(text="here it is")]]


# ---- replies -------------------------------------------------------------------------------

REPLIES: list[tuple[Any, tuple[Part, ...]]] = [
    ("hi", (Part(text="hi"),)),
    ("", (Part(text=""),)),
    ({"a": 1}, (Part(data={"a": 1}),)),
    (0, (Part(data=0),)),
    (Point(1, 2), (Part(data={"x": 1, "y": 2}),)),
    (b"x", (Part(raw=b"x", media_type="application/octet-stream"),)),
    ([Part(text="a"), Part(text="b")], (Part(text="a"), Part(text="b"))),
    (
        Message(message_id="m", role=Role.USER, task_id="t", parts=(Part(text="own"),)),
        (Part(text="own"),),
    ),
]


@pytest.mark.clause("message.agent-ids", "message.required-fields", "send.task-or-message")
@pytest.mark.parametrize("way", [returning, returning_plainly])
@pytest.mark.parametrize(("value", "expected"), REPLIES, ids=case)
async def test_a_direct_reply(way: Any, value: Any, expected: Any) -> None:
    found = await run(way(value), reply=True)
    assert (found.task, found.state) == (None, None)
    assert found.message is not None
    assert found.message.parts == expected
    assert (found.message.role, found.message.task_id) == (Role.AGENT, "")
    assert found.message.context_id
    assert found.message.message_id
    assert len(found.events) == 1


async def annotated(turn: Turn) -> Message:
    """Says by its type that it may reply."""
    return Message(message_id="m", role=Role.AGENT, parts=(Part(text=turn.text),))


async def test_a_handler_that_returns_messages_replies() -> None:
    found = await run(annotated, "hi")
    assert (found.task, found.text) == (None, "hi")
    found = await run(annotated, "hi", reply=False)
    assert (found.state, told(found)) == (TaskState.COMPLETED, ["hi"])


@pytest.mark.parametrize("way", WAYS)
async def test_a_generator_can_reply(way: Any) -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="hi"),))
    for first in (message, lambda turn: turn.reply("hi"), lambda turn: turn.reply(message)):
        found = await run(way(first), reply=True)
        assert (found.task, found.text) == (None, "hi")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "first", ["chunk", {"a": 1}, lambda turn: turn.working()], ids=["text", "data", "status"]
)
async def test_a_task_event_first_makes_a_task(way: Any, first: Any) -> None:
    found = await run(way(first, lambda turn: turn.reply("the end")), reply=True)
    assert found.message is None
    assert (found.state, told(found)) == (TaskState.COMPLETED, ["the end"])


async def test_a_result_after_birth_is_an_artifact() -> None:
    async def handler(turn: Turn) -> str:
        await turn.emit(turn.working())
        return "result"

    found = await run(handler, reply=True)
    assert (found.state, parts(found)) == (TaskState.COMPLETED, [[Part(text="result")]])


async def test_nothing_at_all_makes_a_completed_task() -> None:
    for way in (returning(None), yielding(), yielding(None)):
        found = await run(way, reply=True)
        assert (found.message, found.state) == (None, TaskState.COMPLETED)


async def test_a_failure_before_a_reply_makes_a_failed_task() -> None:
    async def handler(turn: Turn) -> str:
        raise LookupError("secret")

    found = await run(handler, reply=True)
    assert (found.message, found.state) == (None, TaskState.FAILED)
    assert "LookupError" in found.text
    assert "secret" not in found.text


async def test_a_reply_in_a_later_turn_ends_the_task() -> None:
    async def handler(turn: Turn) -> Any:
        return turn.ask("which?") if turn.text == "first" else turn.reply("that one")

    found = await run(handler, "first", "second", reply=True)
    assert (found.message, found.state) == (None, TaskState.COMPLETED)
    assert told(found) == ["which?", "that one"]


async def test_without_the_declaration_a_reply_is_the_end_of_a_task() -> None:
    found = await run(yielding(lambda turn: turn.reply("hi")))
    assert (found.message, found.state) == (None, TaskState.COMPLETED)
    assert told(found) == ["hi"]


# ---- what cannot be sent -------------------------------------------------------------------


def cyclic() -> Any:
    """A dict that holds itself."""
    found: dict[str, Any] = {}
    found["self"] = found
    return found


def deep() -> Any:
    """A list that is nested too deeply."""
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


class Stubborn(pydantic.BaseModel):
    """A model that has no JSON form."""

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    inside: object = object()


UNSENDABLE: dict[str, Callable[[], Any]] = {
    "an object": object,
    "a class": lambda: Point,
    "a function": lambda: cyclic,
    "an object inside": lambda: {"a": [object()]},
    "a lone surrogate": lambda: "a\ud800b",
    "a lone surrogate inside": lambda: {"a": "\udfff"},
    "a lone surrogate in a key": lambda: {"\udfff": 1},
    "a part with a lone surrogate": lambda: Part(text="\ud800"),
    "a part with an object": lambda: Part(data=object()),
    "a part with a cycle": lambda: Part(data=cyclic()),
    "a cycle": cyclic,
    "a deep nest": deep,
    "a model without JSON": Stubborn,
    "a list with such a model": lambda: [Stubborn()],
    "parts and others": lambda: [Part(text="a"), object()],
    "an exception": lambda: ValueError("secret"),
    "a message with a lone surrogate": lambda: Message(
        message_id="m", role=Role.AGENT, parts=(Part(text="\ud800"),)
    ),
}

FORBIDDEN: dict[str, Callable[[], Any]] = {
    "an artifact without parts": lambda: Artifact(artifact_id="a", parts=()),
    "an artifact without an id": lambda: Artifact(artifact_id="", parts=(Part(text="x"),)),
    "a message without parts": lambda: Message(message_id="m", role=Role.AGENT, parts=()),
    "a message without an id": lambda: Message(
        message_id="", role=Role.AGENT, parts=(Part(text="x"),)
    ),
    "a part of a wrong type": lambda: Part(text=5),  # type: ignore[arg-type]
}
"""What can be written as JSON, and is against the protocol."""


def refused(found: HandlerRun) -> None:
    """The task has failed, and says that it was the agent's answer."""
    assert found.state is TaskState.FAILED
    assert reason(found).startswith(f"{InvalidAgentResponse.text}: ")
    assert "secret" not in reason(found)


def reason(found: HandlerRun) -> str:
    """What the last status says."""
    said = task(found).status.message
    return said.text if said else ""


@pytest.mark.clause("errors.invalid-agent-response")
@pytest.mark.parametrize("way", [returning, returning_plainly, *WAYS])
@pytest.mark.parametrize("name", UNSENDABLE)
async def test_what_cannot_be_sent_fails_the_task(way: Any, name: str) -> None:
    value = UNSENDABLE[name]()
    if way in (returning, returning_plainly):
        found = await run(way(value))
    else:
        found = await run(way(lambda turn: value))
    refused(found)
    assert parts(found) == []


@pytest.mark.clause(
    "errors.invalid-agent-response", "artifact.required-fields", "message.required-fields"
)
@pytest.mark.parametrize("name", FORBIDDEN)
async def test_what_the_protocol_forbids_is_not_sent(name: str) -> None:
    async def returns(turn: Turn) -> Any:
        return FORBIDDEN[name]()

    async def yields(turn: Turn) -> AsyncIterator[Any]:
        yield FORBIDDEN[name]()

    for handler in (returns, yields):
        found = await run(handler)
        assert found.state in (TaskState.FAILED, TaskState.COMPLETED)  # refused, or mended
        for event in found.events:
            msgspec.json.decode(msgspec.json.encode(event), type=type(event))


@pytest.mark.clause("errors.invalid-agent-response")
@pytest.mark.parametrize("word", ["working", "ask", "require_auth", "complete", "reject", "fail"])
@pytest.mark.parametrize("name", UNSENDABLE)
async def test_what_cannot_be_said_with_a_status_fails_the_task(word: str, name: str) -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield getattr(turn, word)(UNSENDABLE[name]())

    refused(await run(handler))


@pytest.mark.clause("errors.invalid-agent-response")
@pytest.mark.parametrize("way", [returning, returning_plainly])
@pytest.mark.parametrize("name", UNSENDABLE)
async def test_what_cannot_be_replied_makes_a_failed_task(way: Any, name: str) -> None:
    found = await run(way(UNSENDABLE[name]()), reply=True)
    assert found.message is None
    refused(found)


@pytest.mark.parametrize("word", ["working", "complete"])
async def test_metadata_that_cannot_be_sent(word: str) -> None:
    for bad in ({"a": object()}, cyclic(), {"a": "\ud800"}):
        found = await run(yielding(lambda turn, bad=bad: getattr(turn, word)("x", metadata=bad)))
        refused(found)


async def test_what_was_said_before_is_kept() -> None:
    found = await run(yielding(lambda turn: turn.working("busy"), "a", "b", object()))
    refused(found)
    assert parts(found) == [[Part(text="ab")]]
    assert told(found)[0] == "busy"


def appended(turn: Turn, artifact: str) -> TaskArtifactUpdateEvent:
    """More of an artifact."""
    return TaskArtifactUpdateEvent(
        task_id=turn.task.id,
        context_id=turn.context_id,
        artifact=Artifact(artifact_id=artifact, parts=(Part(text="more"),)),
        append=True,
    )


def status(turn: Turn, state: TaskState, task: str = "") -> TaskStatusUpdateEvent:
    """A status made by hand."""
    return TaskStatusUpdateEvent(
        task_id=task or turn.task.id, context_id=turn.context_id, status=TaskStatus(state=state)
    )


@pytest.mark.clause("errors.invalid-agent-response", "artifact-update.append")
@pytest.mark.parametrize("way", WAYS)
async def test_events_that_cannot_follow(way: Any) -> None:
    for value, words in (
        (lambda turn: appended(turn, "nothing"), "artifact that does not exist: nothing"),
        (lambda turn: status(turn, TaskState.WORKING, "another"), "belongs to another task"),
        (lambda turn: status(turn, TaskState.SUBMITTED), "back from working to submitted"),
    ):
        found = await run(way(lambda turn: turn.working(), value))
        refused(found)
        assert words in reason(found)


@pytest.mark.clause("artifact-update.append")
async def test_an_append_to_what_an_earlier_turn_wrote() -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        if turn.text == "first":
            yield turn.artifact("a", id="mine")
            yield turn.ask("more?")
        else:
            yield appended(turn, "mine")

    found = await run(handler, "first", "second")
    assert found.state is TaskState.COMPLETED
    assert parts(found) == [[Part(text="amore")]]


async def test_a_status_without_a_time_gets_one() -> None:
    found = await run(yielding(lambda turn: status(turn, TaskState.COMPLETED)))
    assert task(found).status.timestamp


# ---- limits --------------------------------------------------------------------------------


@pytest.mark.clause("limits.sizes")
@pytest.mark.parametrize("way", WAYS)
async def test_no_more_events_than_the_limit(way: Any, constants: Callable[..., None]) -> None:
    constants(max_events=5)
    found = await run(way(*"abcdefghij"))
    refused(found)
    assert "5 events" in reason(found)
    assert len(parts(found)[0]) <= 5


@pytest.mark.clause("limits.sizes")
@pytest.mark.parametrize("way", [*WAYS, lambda *values: returning({"all": values})])
async def test_no_more_bytes_than_the_limit(way: Any) -> None:
    found = await run(way(*["x" * 300] * 10), max_task_bytes=8000)
    refused(found)
    assert "2000 bytes" in reason(found)


@pytest.mark.parametrize("way", WAYS)
async def test_as_much_as_the_limit_is_not_too_much(
    way: Any, constants: Callable[..., None]
) -> None:
    constants(max_events=5)
    found = await run(way(*"abcde"))
    assert found.state is TaskState.COMPLETED
    assert found.text == "abcde"
    assert len(found.events) == 7  # run_handler adds the task's state and the end


async def test_the_end_may_be_what_is_too_much() -> None:
    found = await run(yielding(lambda turn: turn.complete("x" * 5000)), max_task_bytes=8000)
    refused(found)
