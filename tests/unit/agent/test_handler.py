"""Handlers of every kind, and what their parameters are given."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypedDict

import msgspec
import pydantic
import pytest

from dragoman import Agent, Message, Part, TaskState, Turn
from dragoman.agent.handler import SMALL, Handler
from dragoman.model.errors import InvalidParams
from dragoman.model.parameter_types import DataType
from dragoman.model.types import TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.server.loop_pacing import Pace
from dragoman.telemetry.logs import TASK
from dragoman.testing import HandlerRun, message, run_handler

if TYPE_CHECKING:
    from decimal import Decimal as Money


def agent_of(target: Any, **options: Any) -> Agent:
    """An agent with this one skill."""
    agent = Agent("Test", description="For tests.")
    agent.skill(**options)(target)
    return agent


async def run(target: Any, *values: Any, **options: Any) -> HandlerRun:
    """What a handler does with messages; it must come to an end."""
    async with asyncio.timeout(10):
        return await run_handler(agent_of(target), *values, **options)


# ---- kinds ---------------------------------------------------------------------------------


async def agenerator(turn: Turn) -> AsyncIterator[Any]:
    """An async generator."""
    yield turn.working("busy")
    await asyncio.sleep(0)
    yield turn.artifact(turn.text)


async def coroutine(turn: Turn) -> str:
    """A coroutine."""
    await asyncio.sleep(0)
    await turn.emit(turn.working("busy"))
    return turn.text


def function(turn: Turn) -> str:
    """A plain function."""
    return turn.text


def generator(turn: Turn) -> Iterator[Any]:
    """A plain generator."""
    yield turn.working("busy")
    yield turn.artifact(turn.text)


def returns_agenerator(turn: Turn) -> AsyncIterator[Any]:
    """A function that returns an async generator."""
    return agenerator(turn)


def returns_generator(turn: Turn) -> Iterator[Any]:
    """A function that returns a generator."""
    return generator(turn)


def returns_coroutine(turn: Turn) -> Any:
    """A function that returns something to await."""
    return coroutine(turn)


async def awaits_agenerator(turn: Turn) -> AsyncIterator[Any]:
    """A coroutine that returns an async generator."""
    return agenerator(turn)


async def awaits_generator(turn: Turn) -> Iterator[Any]:
    """A coroutine that returns a generator."""
    return generator(turn)


KINDS: list[Callable[..., Any]] = [
    agenerator,
    coroutine,
    function,
    generator,
    returns_agenerator,
    returns_generator,
    returns_coroutine,
    awaits_agenerator,
    awaits_generator,
]


def shape(events: Any) -> list[str]:
    """The kinds of events, statuses by their state."""
    return [
        event.status.state.name if isinstance(event, TaskStatusUpdateEvent) else "artifact"
        for event in events
    ]


async def says_much(turn: Turn) -> None:
    """A coroutine that says it itself."""
    await turn.emit(turn.artifact(turn.text))


@pytest.mark.parametrize("kind", [agenerator, coroutine, function, generator, says_much])
async def test_large_outputs_are_encoded_one_at_a_time(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Pace] = []
    following = Pace.next

    async def next_one(pace: Pace, *share: int) -> None:
        waited.append(pace)
        await following(pace, *share)

    monkeypatch.setattr(Pace, "next", next_one)
    for size, count in ((SMALL, 0), (SMALL + 1, 1)):
        found = await run(kind, "a" * size)
        assert (found.text, len(waited)) == ("a" * size, count)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_every_kind_of_function(kind: Callable[..., Any]) -> None:
    found = await run(kind, "hello")
    assert found.state is TaskState.COMPLETED
    assert found.text == "hello"
    expected = ["artifact", "COMPLETED"]
    assert shape(found.events) == (expected if kind is function else ["WORKING", *expected])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("instance", [False, True], ids=["class", "instance"])
async def test_every_kind_of_method(kind: Callable[..., Any], instance: bool) -> None:
    target: Any = type("Thing", (), {"run": staticmethod(kind)})
    found = await run(target() if instance else target, "hello")
    assert found.state is TaskState.COMPLETED
    assert found.text == "hello"


async def test_a_class_is_made_once_and_keeps_its_own() -> None:
    made: list[Any] = []

    class Counter:
        def __init__(self) -> None:
            made.append(self)
            self.count = 0

        async def run(self, turn: Turn) -> Any:
            self.count += 1
            return turn.ask(f"{self.count}?") if self.count < 3 else str(self.count)

    found = await run(Counter, "a", "b", "c")
    assert found.text == "3"
    assert len(made) == 1


async def test_objects_that_can_be_called() -> None:
    class Plain:
        def __call__(self, turn: Turn) -> str:
            return f"plain {turn.text}"

    class Awaited:
        async def __call__(self, turn: Turn) -> str:
            return f"awaited {turn.text}"

    class Streamed:
        async def __call__(self, turn: Turn) -> AsyncIterator[str]:
            yield "streamed "
            yield turn.text

    for target in (Plain(), Awaited(), Streamed()):
        name = type(target).__name__.lower()
        assert (await run(target, "x")).text == f"{name} x"
    part = functools.partial(lambda turn, more: turn.text + more, more="!")
    assert (await run(part, "x")).text == "x!"


# ---- threads -------------------------------------------------------------------------------


def blocking(turn: Turn) -> str:
    """Waits, without awaiting, for what only the loop can do."""
    done = threading.Event()
    turn.state.loop.call_soon_threadsafe(done.set)
    assert done.wait(5), "the loop is blocked"
    return f"{threading.get_ident() != turn.state.thread} {TASK.get() == turn.task.id}"


def blocking_generator(turn: Turn) -> Iterator[str]:
    """The same, between two values."""
    yield blocking(turn)
    yield " "
    yield blocking(turn)


class Here:
    """The loop and thread of the test."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()


async def test_a_plain_function_runs_in_a_thread() -> None:
    assert (await run(blocking, state=Here())).text == "True True"


@pytest.mark.parametrize("direct", [True, False])
async def test_a_plain_generator_runs_in_a_thread(direct: bool) -> None:
    target = blocking_generator if direct else lambda turn: blocking_generator(turn)
    assert (await run(target, state=Here())).text == "True True True True"


@pytest.mark.parametrize("kind", [agenerator, coroutine], ids=lambda kind: kind.__name__)
async def test_what_awaits_runs_in_the_loop(kind: Callable[..., Any]) -> None:
    seen: list[int] = []

    async def where(turn: Turn) -> str:
        seen.append(threading.get_ident())
        return turn.text

    async def where_streamed(turn: Turn) -> AsyncIterator[str]:
        seen.append(threading.get_ident())
        yield turn.text

    await run(where if kind is coroutine else where_streamed, "x")
    assert seen == [threading.get_ident()]


async def test_a_long_plain_generator_keeps_its_order() -> None:
    def count(turn: Turn) -> Iterator[str]:
        for number in range(1000):
            yield f"{number} "

    found = await run(count)
    assert found.text == "".join(f"{number} " for number in range(1000))
    assert found.state is TaskState.COMPLETED


async def test_a_plain_generator_stops_at_the_value_that_was_refused() -> None:
    ended = threading.Event()

    def endless(turn: Turn) -> Iterator[Any]:
        try:
            yield object()
            while True:
                yield "more"
        finally:
            ended.set()

    found = await run(endless)
    assert found.state is TaskState.FAILED
    assert found.text.startswith("Invalid agent response")
    assert await asyncio.to_thread(ended.wait, 2)


async def test_an_async_generator_is_closed_at_the_value_that_was_refused() -> None:
    ended = asyncio.Event()

    async def endless(turn: Turn) -> AsyncIterator[Any]:
        try:
            yield object()
            while True:
                yield "more"
        finally:
            await asyncio.sleep(0)
            ended.set()

    found = await run(endless)
    assert found.state is TaskState.FAILED
    async with asyncio.timeout(2):
        await ended.wait()


# ---- emit ----------------------------------------------------------------------------------


async def test_a_coroutine_says_things_on_its_way() -> None:
    async def talker(turn: Turn) -> str:
        await turn.emit(turn.working("one"))
        await turn.emit("chunk ")
        await turn.emit("chunk")
        await turn.emit({"a": 1})
        await turn.emit(None)
        await turn.emit(Part(url="https://example.com"))
        return "end"

    found = await run(talker)
    assert shape(found.events) == ["WORKING", *["artifact"] * 5, "COMPLETED"]
    assert found.task is not None
    assert [artifact.parts for artifact in found.task.artifacts] == [
        (Part(text="chunk chunk"),),
        (Part(data={"a": 1}),),
        (Part(url="https://example.com"),),
        (Part(text="end"),),
    ]


async def test_what_is_emitted_is_there_before_the_end() -> None:
    async def early(turn: Turn) -> None:
        for number in range(500):
            await turn.emit(f"{number} ")
        assert turn._run is not None
        await asyncio.sleep(0)
        (own,) = await turn._run.related([turn.task.id])
        assert own.artifacts[0].text == "".join(f"{number} " for number in range(500))
        assert own.status.state is TaskState.WORKING

    assert (await run(early)).state is TaskState.COMPLETED


async def test_a_coroutine_can_handle_the_refusal_of_what_it_emits() -> None:
    async def careful(turn: Turn) -> str:
        with pytest.raises(Exception, match=r"^a value of type object cannot be sent"):
            await turn.emit(object())
        return "all the same"

    found = await run(careful)
    assert (found.state, found.text) == (TaskState.COMPLETED, "all the same")


# ---- parameters ----------------------------------------------------------------------------


@dataclass
class Booking:
    """As a dataclass."""

    city: str
    nights: int = 1
    rooms: list[Room] = field(default_factory=list)


@dataclass
class Room:
    """Nested."""

    beds: int


class BookingStruct(msgspec.Struct):
    """As a struct."""

    city: str
    nights: int = 1
    rooms: list[RoomStruct] = []


class RoomStruct(msgspec.Struct):
    """Nested."""

    beds: int


class RoomDict(TypedDict):
    """Nested."""

    beds: int


class BookingDict(TypedDict, total=False):
    """As a typed dict."""

    city: str
    nights: int
    rooms: list[RoomDict]


class RoomModel(pydantic.BaseModel):
    """Nested."""

    beds: int


class BookingModel(pydantic.BaseModel):
    """As a pydantic model."""

    city: str
    nights: int = 1
    rooms: list[RoomModel] = []


async def as_dataclass(booking: Booking) -> str:
    """Takes a dataclass."""
    return f"{type(booking).__name__} {booking.city} {booking.nights!r} {len(booking.rooms)}"


async def as_struct(booking: BookingStruct) -> str:
    """Takes a struct."""
    return f"{type(booking).__name__} {booking.city} {booking.nights!r} {len(booking.rooms)}"


async def as_dict(booking: BookingDict) -> str:
    """Takes a typed dict."""
    rooms = booking.get("rooms", [])
    return f"{type(booking).__name__} {booking['city']} {booking.get('nights', 1)!r} {len(rooms)}"


async def as_model(booking: BookingModel) -> str:
    """Takes a pydantic model."""
    return f"{type(booking).__name__} {booking.city} {booking.nights!r} {len(booking.rooms)}"


STRUCTURED = {
    as_dataclass: "Booking",
    as_struct: "BookingStruct",
    as_dict: "dict",
    as_model: "BookingModel",
}


@pytest.mark.parametrize("kind", STRUCTURED, ids=lambda kind: kind.__name__)
async def test_structured_parameters(kind: Any) -> None:
    name = STRUCTURED[kind]
    assert (await run(kind, {"city": "Rome"})).text == f"{name} Rome 1 0"
    found = await run(kind, {"city": "Rome", "nights": 3, "rooms": [{"beds": 2}]})
    assert found.text == f"{name} Rome 3 1"
    # clients on protobuf write every number as a double
    assert (await run(kind, {"city": "Rome", "nights": 3.0})).text == f"{name} Rome 3 0"
    parts = [Part(text="book this"), Part(data={"city": "Oslo"}), Part(data={"city": "Bonn"})]
    assert (await run(kind, parts)).text == f"{name} Oslo 1 0"


@pytest.mark.clause("errors.field-violations", "errors.validate-first")
@pytest.mark.parametrize("kind", STRUCTURED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"city": "Rome", "nights": "two"}, "message.parts[0].data.nights"),
        ({"city": "Rome", "nights": 1.5}, "message.parts[0].data.nights"),
        ({"city": 5}, "message.parts[0].data.city"),
        ({"city": "Rome", "rooms": [{"beds": 1}, {"beds": "x"}]}, "data.rooms[1].beds"),
        ({"city": "Rome", "rooms": 1}, "message.parts[0].data.rooms"),
        (["city"], "message.parts[0].data"),
        ([Part(text="x"), Part(data={"city": None})], "message.parts[1].data.city"),
        ("only text", "message.parts"),
    ],
)
async def test_bad_data_is_named_by_its_path(kind: Any, value: Any, field: str) -> None:
    if value == ["city"]:
        value = Part(data=value)
    with pytest.raises(InvalidParams) as error:
        await run(kind, value)
    assert [name for name, _ in error.value.violations if name.endswith(field)]
    assert field in error.value.message


@pytest.mark.clause("errors.field-violations")
@pytest.mark.parametrize("kind", [as_dataclass, as_struct, as_model], ids=lambda k: k.__name__)
async def test_what_is_missing_is_named_by_its_path(kind: Any) -> None:
    with pytest.raises(InvalidParams) as error:
        await run(kind, {"nights": 1})
    assert [name for name, _ in error.value.violations] == ["message.parts[0].data.city"]


async def test_every_wrong_field_of_a_model_is_named() -> None:
    with pytest.raises(InvalidParams) as error:
        await run(as_model, {"nights": "x", "rooms": [{}]})
    assert [name for name, _ in error.value.violations] == [
        "message.parts[0].data.city",
        "message.parts[0].data.nights",
        "message.parts[0].data.rooms[0].beds",
    ]


async def test_a_message_without_the_data_says_what_was_expected() -> None:
    with pytest.raises(InvalidParams, match="expected a data part of type Booking"):
        await run(as_dataclass, "to Rome, please")


async def every(turn: Turn, message: Message, booking: Booking) -> str:
    """Takes all there is."""
    return f"{turn.message is message} {message.text} {booking.city}"


async def turned(booking: Booking, message: Message, turn: Turn) -> str:
    """Takes it in another order."""
    return await every(turn, message, booking)


async def bare(anything) -> str:  # type: ignore[no-untyped-def]
    """Takes a turn, without saying so."""
    return f"{isinstance(anything, Turn)} {anything.text}"


async def nothing() -> str:
    """Takes nothing."""
    return "nothing needed"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (every, "True hello Rome"),
        (turned, "True hello Rome"),
        (bare, "True hello"),
        (nothing, "nothing needed"),
    ],
)
async def test_parameters_are_given_by_their_type(target: Any, text: str) -> None:
    found = await run(target, [Part(text="hello"), Part(data={"city": "Rome"})])
    assert found.text == text


async def optional(turn: Turn, booking: Booking | None = None) -> str:
    """Takes it or leaves it."""
    return booking.city if booking else "none"


async def older(turn: Turn, booking: Optional[Booking] = None) -> str:  # noqa: UP045
    """The same in the older spelling."""
    return booking.city if booking else "none"


async def modelled(turn: Turn, booking: BookingModel | None = None) -> str:
    """The same with a model."""
    return booking.city if booking else "none"


async def defaulted(turn: Turn, booking: Booking = Booking("Bonn")) -> str:  # noqa: B008
    """Has one of its own."""
    return booking.city


@pytest.mark.parametrize("target", [optional, older, modelled, defaulted])
async def test_optional_parameters(target: Any) -> None:
    assert (await run(target, {"city": "Rome"})).text == "Rome"
    expected = "Bonn" if target is defaulted else "none"
    assert (await run(target, "no data")).text == expected
    with pytest.raises(InvalidParams) as error:
        await run(target, {"city": 5})
    assert error.value.violations[0][0] == "message.parts[0].data.city"


@pytest.mark.parametrize("kind", [Booking | None, BookingModel | None])
def test_an_optional_parameter_takes_null(kind: Any) -> None:
    assert DataType(kind).convert(None) is None


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, Any], {"a": 1}, {"a": 1}),
        (list[int], [1, 2.0], [1, 2]),
        (list[Booking], [{"city": "Rome"}], [Booking("Rome")]),
        (list[BookingModel], [{"city": "Rome"}], [BookingModel(city="Rome")]),
        (dict[str, BookingModel], {"a": {"city": "R"}}, {"a": BookingModel(city="R")}),
        (int, 5, 5),
        (float, 5, 5.0),
        (bool, True, True),
        (Booking | list[str], ["Rome"], ["Rome"]),
    ],
    ids=str,
)
def test_types_of_any_shape(kind: Any, value: Any, expected: Any) -> None:
    found = DataType(kind).convert(value)
    assert found == expected
    assert type(found) is type(expected)


async def few(turn: Turn, count: Annotated[int, msgspec.Meta(ge=1, le=3)]) -> str:
    """Takes a small number."""
    return str(count)


async def test_what_an_annotation_demands_is_checked() -> None:
    assert (await run(few, {"count": 2})).text == "2"
    with pytest.raises(InvalidParams):
        await run(few, {"count": 9})


@dataclass
class Checked:
    """Looks after itself."""

    city: str

    def __post_init__(self) -> None:
        if self.city == "Atlantis":
            raise ValueError("no flights there")


async def checked(turn: Turn, booking: Checked) -> str:
    """Takes what checks itself."""
    return booking.city


async def test_what_a_type_says_of_its_values() -> None:
    with pytest.raises(InvalidParams, match="no flights there"):
        await run(checked, {"city": "Atlantis"})


# ---- wrong things --------------------------------------------------------------------------


async def unknown(turn: Turn, price: Money) -> str:
    """Has a type that only a type checker sees."""
    return str(price)


async def twice(turn, other) -> str:  # type: ignore[no-untyped-def]
    """Has two parameters without a type."""
    return "x"


class Plain:
    """No type that JSON could become."""


async def impossible(turn: Turn, plain: Plain) -> str:
    """Wants what no message can hold."""
    return "x"


async def ambiguous(turn: Turn, either: BookingStruct | RoomStruct) -> str:
    """Wants one of two that cannot be told apart."""
    return "x"


@pytest.mark.parametrize(
    ("target", "parameter"),
    [
        (unknown, "price"),
        (twice, "other"),
        (impossible, "plain"),
        (ambiguous, "either"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_wrong_parameter_is_named_when_the_agent_is_made(target: Any, parameter: str) -> None:
    with pytest.raises(TypeError) as error:
        agent_of(target)
    assert target.__name__ in str(error.value)
    assert parameter in str(error.value)


async def paid(text: str, message: Message) -> Money:
    """Has a return type that only a type checker sees."""
    return f"{text} {message.text}"  # type: ignore[return-value]


async def test_a_type_of_the_result_need_not_be_known() -> None:
    assert (await run(paid, "x")).text == "x x"


@pytest.mark.parametrize("target", [5, "text", object(), None])
def test_what_is_no_handler(target: Any) -> None:
    with pytest.raises(TypeError, match="a handler must be a function, or have a method `run`"):
        Handler(target)


def test_a_run_that_is_no_method() -> None:
    with pytest.raises(TypeError, match="Thing: a handler must be a function"):
        Handler(type("Thing", (), {"run": 5}))


# ---- whether it may answer without a task --------------------------------------------------


async def answers(turn: Turn) -> Message:
    """Answers directly."""
    return message("x")


async def may_answer(turn: Turn) -> Message | str:
    """May."""
    return "x"


@pytest.mark.parametrize(
    ("target", "given", "expected"),
    [
        (answers, None, True),
        (answers, False, False),
        (may_answer, None, False),
        (may_answer, True, True),
        (coroutine, None, False),
        (bare, None, False),
    ],
)
def test_reply(target: Any, given: bool | None, expected: bool) -> None:
    assert Handler(target, reply=given).reply is expected


# ---- cancel --------------------------------------------------------------------------------


def test_the_authors_cancel_is_found() -> None:
    class Both:
        def run(self, turn: Turn) -> None:
            """Run."""

        def cancel(self, turn: Turn) -> None:
            """Cancel."""

    assert Handler(Both).cancel is not None
    assert Handler(Both()).cancel is not None
    assert Handler(coroutine).cancel is None


async def test_an_artifact_event_passes_as_it_is() -> None:
    async def streams(turn: Turn) -> AsyncIterator[Any]:
        event = turn.artifact("x", name="a", description="b", metadata={"c": 1})
        assert isinstance(event, TaskArtifactUpdateEvent)
        yield event

    found = await run(streams)
    assert found.task is not None
    (artifact,) = found.task.artifacts
    assert (artifact.name, artifact.description, artifact.metadata) == ("a", "b", {"c": 1})


def in_a_thread(turn: Turn) -> str:
    return "x"


async def replying(turn: Turn) -> Message:
    raise NotImplementedError


async def waiting(turn: Turn) -> None: ...


@pytest.mark.parametrize(
    ("target", "options", "reason"),
    [
        (in_a_thread, {}, "must be an `async def`; a blocking function can be called in a step"),
        (replying, {}, "a durable handler always has a task; leave out reply"),
        (waiting, {"reply": True}, "a durable handler always has a task; leave out reply"),
    ],
)
def test_what_cannot_be_durable_is_refused(
    target: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        agent_of(target, durable=True, **options)
