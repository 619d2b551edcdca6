"""Typed parameters: where each value comes from, and what is refused."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from msgspec import UNSET, Meta
from pydantic import Field

from dragoman import Agent, Caller, Message, Part, TaskState, Turn
from dragoman.model.errors import InvalidParams
from dragoman.model.skill_extension import SKILL_SCHEMA
from dragoman.testing import HandlerRun, local_client, message, run_handler

DATA = "message.parts[0].data"


class Board(Enum):
    """What is eaten."""

    NONE = "none"
    HALF = "half"


class Room(msgspec.Struct):
    """A room."""

    beds: int
    view: str = "yard"


class Guest(pydantic.BaseModel):
    """A guest."""

    name: str
    age: int = 30


@dataclass
class Stay:
    """A stay."""

    city: str
    nights: int = 1


class Wish(TypedDict):
    """A wish."""

    what: str
    how: NotRequired[str]


def agent_of(target: Any, **options: Any) -> Agent:
    """An agent with this one skill."""
    agent = Agent("Test", description="For tests.")
    agent.skill(**options)(target)
    return agent


async def run(target: Any, *values: Any, **options: Any) -> HandlerRun:
    """What a handler does with messages."""
    async with asyncio.timeout(10):
        return await run_handler(agent_of(target, **options), *values, strict=True)


async def refused(target: Any, *values: Any, **options: Any) -> list[tuple[str, str]]:
    """The violations of a message that is refused."""
    with pytest.raises(InvalidParams) as error:
        await run(target, *values, **options)
    return list(error.value.violations)


# ---- where values come from ------------------------------------------------------------------


async def several(city: str, nights: int = 2, turn: Turn | None = None) -> str:
    """Would have two turns."""
    return city


async def book(turn: Turn, city: str, nights: Annotated[int, Meta(ge=1)] = 2) -> str:
    """Takes fields."""
    return f"{city} {nights} {turn.text}"


async def test_each_of_several_parameters_is_a_field() -> None:
    assert (await run(book, {"city": "Rome", "nights": 3})).text == "Rome 3 "
    assert (await run(book, {"city": "Rome", "nights": 3.0})).text == "Rome 3 "
    assert (await run(book, [Part(text="please"), Part(data={"city": "Rome"})])).text == (
        "Rome 2 please"
    )


async def test_a_str_among_others_is_never_the_text() -> None:
    assert await refused(book, "Rome") == [("message.parts.data.city", "is required")]


async def greet(name: str, turn: Turn) -> str:
    """Takes one text."""
    return f"{name} {type(turn).__name__}"


async def test_one_str_is_the_field_of_its_name_else_the_text() -> None:
    assert (await run(greet, "Ann")).text == "Ann Turn"
    assert (await run(greet, {"name": "Bob"})).text == "Bob Turn"
    assert (await run(greet, [Part(text="Ann"), Part(data={"name": "Bob"})])).text == "Bob Turn"
    assert (await run(greet, [Part(text="Ann"), Part(data={"other": 1})])).text == "Ann Turn"
    assert await refused(greet, {"other": 1}) == [
        ("message.parts", "expected a text, or a data part with the field name")
    ]
    assert await refused(greet, {"name": 5}) == [(f"{DATA}.name", "expected str, got int")]


City = NewType("City", str)


async def visit(city: City | None = None) -> str:
    """Takes a text of a type of its own."""
    return f"{city}"


async def test_one_str_under_another_name() -> None:
    assert (await run(visit, "Rome")).text == "Rome"
    assert (await run(visit, {"city": "Bonn"})).text == "Bonn"
    assert (await run(visit, {})).text == "None"


async def short(word: Annotated[str, Meta(max_length=3)] = "hi") -> str:
    """Takes a short text."""
    return word


async def test_one_str_with_a_constraint_and_a_default() -> None:
    assert (await run(short, "abc")).text == "abc"
    assert (await run(short, {})).text == "hi"
    assert await refused(short, "abcd") == [("message.parts", "expected str of length <= 3")]


async def whole_struct(room: Room) -> str:
    """Takes the object."""
    return f"{room.beds} {room.view}"


async def whole_model(guest: Guest | None = None) -> str:
    """Takes the object, or nothing."""
    return f"{guest.name} {guest.age}" if guest else "nobody"


async def whole_dict(room: dict[str, int]) -> str:
    """Takes any object."""
    return str(room)


async def test_one_structured_parameter_takes_the_whole_object() -> None:
    assert (await run(whole_struct, {"beds": 2})).text == "2 yard"
    assert (await run(whole_model, {"name": "Ann"})).text == "Ann 30"
    assert (await run(whole_model, "hello")).text == "nobody"
    assert (await run(whole_dict, {"a": 1})).text == "{'a': 1}"


async def kinds(
    room: Room,
    guest: Guest,
    stay: Stay,
    wish: Wish,
    board: Board,
    bed: Literal["soft", "hard"],
    day: date,
    tags: list[str],
    limit: Annotated[int, Field(le=9, description="At most")] = 3,
    *,
    late: bool = False,
) -> str:
    """Takes one of each kind."""
    assert isinstance(room, Room)
    assert isinstance(guest, Guest)
    assert isinstance(stay, Stay)
    assert isinstance(board, Board)
    assert isinstance(day, date)
    return f"{room.beds} {guest.name} {stay.city} {wish['what']} {board.name} {bed} {tags} {late}"


ALL = {
    "room": {"beds": 2},
    "guest": {"name": "Ann"},
    "stay": {"city": "Rome"},
    "wish": {"what": "quiet"},
    "board": "half",
    "bed": "soft",
    "day": "2026-08-10",
    "tags": ["a"],
}


async def test_types_of_every_kind() -> None:
    found = await run(kinds, {**ALL, "late": True})
    assert found.text == "2 Ann Rome quiet HALF soft ['a'] True"


async def test_one_violation_for_each_parameter_and_all_inside_a_model() -> None:
    wrong = {
        **ALL,
        "room": {"beds": "x", "view": 5},
        "guest": {"age": "old"},
        "board": "full",
        "day": "tomorrow",
        "tags": ["a", 2],
        "limit": "9",
        "color": "red",
    }
    del wrong["bed"]
    found = dict(await refused(kinds, wrong))
    assert list(found) == [
        f"{DATA}.room.beds",
        f"{DATA}.guest.name",
        f"{DATA}.guest.age",
        f"{DATA}.board",
        f"{DATA}.bed",
        f"{DATA}.day",
        f"{DATA}.tags[1]",
        f"{DATA}.limit",
        f"{DATA}.color",
    ]
    assert found[f"{DATA}.bed"] == found[f"{DATA}.guest.name"] == "is required"
    assert found[f"{DATA}.color"].startswith("is unknown; the parameters are: room, guest")


async def test_data_that_is_no_object() -> None:
    assert await refused(book, Part(data=[1])) == [
        (DATA, "expected an object with a field for each parameter"),
        (f"{DATA}.city", "is required"),
    ]


async def test_many_unknown_fields_are_not_all_named() -> None:
    assert len(await refused(book, {f"f{n}": n for n in range(1000)})) == 50


def deep(levels: int) -> Any:
    """An object in an object in an object."""
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


LEVELS = 900 if sys.version_info < (3, 12) else 1300
"""More than a model or a struct is read with, and less than JSON is written with."""


async def anything(one: dict[str, Any], two: Annotated[Any, Field(description="x")] = None) -> str:
    """Takes anything."""
    return "x"


@pytest.mark.parametrize("name", ["one", "two"])
async def test_data_that_is_nested_too_deeply(name: str) -> None:
    found = await refused(anything, {"one": {}, name: deep(LEVELS)})
    assert found == [(f"{DATA}.{name}", "is nested too deeply")]


async def test_long_names_and_values_are_cut() -> None:
    found = await refused(rooms, {"city": "R", "nights": 1, "board": "x" * 9000, "y" * 9000: 1})
    assert len(found) == 2
    assert all(len(field) <= 500 and len(what) <= 500 for field, what in found)


async def test_a_pattern_is_named() -> None:
    async def code(code: Annotated[str, Meta(pattern="^[A-Z]+$")], number: int) -> str:
        return code

    assert await refused(code, {"code": "a", "number": 1}) == [
        (f"{DATA}.code", "expected a text that matches '^[A-Z]+$'")
    ]


class Suite(msgspec.Struct):
    """A struct with a model in it."""

    guest: Guest
    beds: int = 1


async def test_a_model_inside_a_struct() -> None:
    async def handle(suite: Suite) -> str:
        return f"{suite.guest.name} {suite.beds}"

    assert (await run(handle, {"guest": {"name": "Ann"}})).text == "Ann 1"
    assert [field for field, _ in await refused(handle, {"guest": {"age": "x"}})] == [
        f"{DATA}.guest.name",
        f"{DATA}.guest.age",
    ]


async def loose(turn: Turn, *rest: Any, flag: bool = True, own=None, **more: Any) -> str:  # type: ignore[no-untyped-def]
    """A keyword is filled, an author's own is not."""
    return f"{rest} {flag} {own} {more}"


async def test_keywords_are_filled_and_the_rest_is_left() -> None:
    assert (await run(loose, "x")).text == "() True None {}"
    assert (await run(loose, {"flag": False})).text == "() False None {}"
    assert [field for field, _ in await refused(loose, {"own": 1})] == [f"{DATA}.own"]


async def test_what_a_partial_has_bound_is_no_parameter() -> None:
    async def handle(text: str, *, secret: str) -> str:
        return f"{text} {secret}"

    found = await run(functools.partial(handle, secret="s"), [Part(text="a"), Part(data={})])
    assert found.text == "a s"
    bound = functools.partial(handle, secret="s")
    assert (await run(bound, {"text": "a", "secret": "stolen"})).text == "a s"


# ---- files -------------------------------------------------------------------------------------


def file(content: bytes = b"x", parameter: str = "", url: str = "") -> Part:
    """A file part."""
    metadata = {"parameter": parameter} if parameter else None
    if url:
        return Part(url=url, metadata=metadata)
    return Part(raw=content, media_type="image/png", metadata=metadata)


async def scan(photo: Part, note: str = "none") -> str:
    """Takes a file and a text."""
    return f"{photo.raw!r} {note}"


async def compare(before: bytes, after: bytes | None = None, limit: int = 5) -> str:
    """Takes two files."""
    return f"{before!r} {after!r} {limit}"


async def test_one_file_parameter_takes_the_only_file() -> None:
    assert (await run(scan, [file(b"a")])).text == "b'a' none"
    assert (await run(scan, [Part(text="hello"), file(b"a")])).text == "b'a' hello"
    assert (await run(scan, [file(b"a", "photo")])).text == "b'a' none"
    assert await refused(scan, "hello") == [
        ("message.parts", "expected a file for the parameter photo")
    ]
    assert await refused(scan, [file(), file()]) == [
        ("message.parts[1]", "is one file too many for the parameter photo")
    ]


async def test_several_files_name_their_parameters() -> None:
    both = [file(b"2", "after"), file(b"1", "before"), Part(data={"limit": 7})]
    assert (await run(compare, both)).text == "b'1' b'2' 7"
    assert (await run(compare, [file(b"1", "before")])).text == "b'1' None 5"
    assert await refused(compare, [file(b"1"), file(b"2", "other")]) == [
        (
            "message.parts[0].metadata.parameter",
            "is required; the file parameters are: before, after",
        ),
        (
            "message.parts[1].metadata.parameter",
            "'other' is unknown; the file parameters are: before, after",
        ),
        ("message.parts", "expected a file for the parameter before"),
    ]
    assert await refused(compare, [file(url="https://x/y", parameter="before")]) == [
        ("message.parts[0]", "expected the content of the file, not a URL")
    ]


async def test_a_url_is_a_file() -> None:
    async def link(photo: Part) -> str:
        return photo.url or ""

    assert (await run(link, [file(url="https://x/y")])).text == "https://x/y"


# ---- follow-ups --------------------------------------------------------------------------------


async def stays(turn: Turn, city: str, nights: int = 1) -> Any:
    """Asks once more, then tells."""
    if turn.text != "go":
        return turn.ask("Go?")
    return turn.artifact(f"{city} {nights}")


async def test_a_task_keeps_its_parameters() -> None:
    assert (await run(stays, {"city": "Rome"}, "go")).text == "Rome 1"
    assert (await run(stays, {"city": "Rome"}, {"nights": 3}, "go")).text == "Rome 3"
    later = [Part(text="go"), Part(data={"city": "Bonn"})]
    assert (await run(stays, {"city": "Rome", "nights": 2}, later)).text == "Bonn 2"
    assert await refused(stays, {"city": "Rome"}, {"nights": "x"}) == [
        (f"{DATA}.nights", "expected int, got str")
    ]


async def test_queued_messages_do_not_count_yet() -> None:
    seen: list[tuple[str, int]] = []
    first = asyncio.Event()

    async def slow(turn: Turn, city: str, nights: int = 1) -> None:
        seen.append((city, nights))
        await first.wait()

    async with local_client(agent_of(slow)) as client:
        begun = await client.send({"city": "Rome"}, wait=False)
        assert begun.task is not None
        task = client.task(begun.task.id)
        async with asyncio.timeout(10):
            for data in ({"nights": 2}, {"nights": 3}, {"city": "Bonn"}):
                await task.reply(data, wait=False)
            first.set()
            await task.wait()
    assert seen == [("Rome", 1), ("Rome", 2), ("Rome", 3), ("Bonn", 3)]


async def test_what_a_durable_handler_asked_for_is_no_parameter() -> None:
    seen: list[tuple[str, int, Any]] = []

    async def slow(turn: Turn, city: str, nights: int = 1) -> Any:
        answer = await turn.ask_for("Sure?") if turn.data else None
        seen.append((city, nights, answer.parts[0].data if answer else None))
        return turn.ask("What else?")

    async with local_client(agent_of(slow, durable=True)) as client, asyncio.timeout(20):
        begun = await client.send({"city": "Rome"})
        assert begun.task is not None
        task = client.task(begun.task.id)
        assert (await task.reply({"sure": True})).text == "What else?"
        assert (await task.reply("nothing")).text == "What else?"
    assert seen == [("Rome", 1, {"sure": True}), ("Rome", 1, None)]


async def whole_stay(turn: Turn, stay: Stay) -> Any:
    """The same with an object."""
    return await stays(turn, stay.city, stay.nights)


async def test_later_fields_replace_those_of_an_object() -> None:
    assert (await run(whole_stay, {"city": "Rome"}, {"nights": 3}, "go")).text == "Rome 3"
    assert await refused(whole_stay, {"city": "Rome"}, {"nights": "x"}) == [
        (f"{DATA}.nights", "expected int, got str")
    ]


class Wishes(msgspec.Struct):
    """All of it has defaults."""

    quiet: bool = True


async def wishes(turn: Turn, given: Wishes) -> Any:
    """Asks once."""
    return turn.artifact(str(given.quiet)) if turn.text == "go" else turn.ask("Go?")


async def test_an_object_without_fields_is_kept_too() -> None:
    assert (await run(wishes, {}, "go")).text == "True"


async def looks(turn: Turn, photo: bytes) -> Any:
    """The same with a file."""
    return turn.artifact(photo.decode()) if turn.text == "go" else turn.ask("Go?")


async def test_a_task_keeps_its_files() -> None:
    assert (await run(looks, [file(b"a")], "go")).text == "a"
    assert (await run(looks, [file(b"a")], [file(b"b")], "go")).text == "b"


async def echoes(turn: Turn, text: str) -> Any:
    """Ask once, then tell."""
    return turn.artifact(text) if len(turn.history) > 1 else turn.ask("More?")


async def test_one_str_is_the_text_of_this_message_unless_a_field_was_given() -> None:
    assert (await run(echoes, "a", "b")).text == "b"
    assert (await run(echoes, {"text": "a"}, "b")).text == "a"
    assert (await run(echoes, "a", [Part(raw=b"x")])).text == "a"


async def test_another_skill_starts_anew() -> None:
    agent = Agent("Two", description="Has two skills.")
    agent.handler(stays)
    agent.skill(id="other")(stays)
    first, later = {"city": "Rome"}, message("go", skill="other")
    with pytest.raises(InvalidParams, match="city: is required"):
        await run_handler(agent, first, later)
    found = await run_handler(agent, first, message({"city": "Bonn"}, skill="other"), later)
    assert found.text == "Bonn 1"
    alone = Agent("One", description="Has one skill.")
    alone.skill(id="other")(stays)
    assert (await run_handler(alone, first, later)).text == "Rome 1"


# ---- asking ------------------------------------------------------------------------------------


async def rooms(
    city: Annotated[str, Meta(description="Where to")],
    nights: int,
    board: Board = Board.NONE,
    breakfast: bool = False,
) -> str:
    """Takes fields."""
    return f"{city} {nights} {board.value} {breakfast}"


async def test_what_is_missing_is_asked_for() -> None:
    asked = await run(rooms, "A room please", ask=True)
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.task is not None
    question = asked.task.status.message
    assert question is not None
    assert question.parts[0].text == (
        "Please give these parameters, as data or as lines of the form `name: value`:\n"
        "city (text): Where to\n"
        "nights (whole number)"
    )
    schema: Any = question.parts[1].data
    assert schema["required"] == ["city", "nights"]
    assert schema["properties"]["city"] == {"type": "string", "description": "Where to"}
    assert question.metadata == {SKILL_SCHEMA: {"asks": ["city", "nights"]}}
    assert question.extensions == ()
    active = Caller(extensions=(SKILL_SCHEMA,))
    again = await run_handler(agent_of(rooms, ask=True), "A room please", caller=active)
    assert again.task is not None
    assert again.task.status.message is not None
    assert again.task.status.message.extensions == (SKILL_SCHEMA,)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([{"city": "Rome", "nights": 2}], "Rome 2 none False"),
        (["city: Rome\nnights: 2"], "Rome 2 none False"),
        (["City = Rome, Italy", "- nights: 2"], "Rome, Italy 2 none False"),
        (["well", {"city": "Rome"}, "nights: 2"], "Rome 2 none False"),
    ],
)
async def test_an_answer_goes_on(answers: list[Any], text: str) -> None:
    assert (await run(rooms, "A room please", *answers, ask=True)).text == text


async def test_only_what_was_asked_is_read_from_lines() -> None:
    found = await run(rooms, {"city": "Rome"}, "city: Bonn\nnights: 2", ask=True)
    assert found.text == "Rome 2 none False"
    assert (await run(rooms, "city: Rome", ask=True)).state is TaskState.INPUT_REQUIRED


async def test_a_wrong_type_is_refused_all_the_same() -> None:
    assert await refused(rooms, {"nights": "x"}, ask=True) == [
        (f"{DATA}.nights", "expected int, got str")
    ]
    assert await refused(rooms, "A room please", "nights: many", ask=True) == [
        ("message.parts[0].text", "nights: expected int, got str")
    ]
    assert await refused(rooms, "A room please", {"nigths": 2}, ask=True) == [
        (f"{DATA}.nigths", "is unknown; the parameters are: city, nights, board, breakfast")
    ]


async def whole_guest(guest: Guest) -> str:
    """Takes an object."""
    return f"{guest.name} {guest.age}"


async def test_the_fields_of_an_object_are_asked_for() -> None:
    asked = await run(whole_guest, {"age": 4}, ask=True)
    assert asked.state is TaskState.INPUT_REQUIRED
    assert (await run(whole_guest, {"age": 4}, "name: Ann", ask=True)).text == "Ann 4"
    assert (await run(whole_guest, "hello", {"name": "Ann"}, ask=True)).text == "Ann 30"
    assert await refused(whole_guest, {"age": "old"}, ask=True) == [
        (f"{DATA}.age", "expected an integer, got string")
    ]


async def test_a_file_is_asked_for() -> None:
    async def look(photo: Annotated[Part, Meta(description="Your face")]) -> str:
        return str(photo.raw)

    asked = await run(look, "hello", ask=True)
    assert asked.text.endswith("\nphoto (a file): Your face")
    assert (await run(look, "hello", [file(b"a")], ask=True)).text == "b'a'"


async def test_a_durable_handler_asks_before_it_begins() -> None:
    async def order(turn: Turn, item: str, count: int) -> Any:
        answer = await turn.ask_for(f"{count} of {item}: sure?")
        return turn.artifact(f"{count} {item} {answer.text}")

    agent = agent_of(order, durable=True, ask=True)
    async with local_client(agent) as client, asyncio.timeout(20):
        begun = await client.send({"item": "tea"})
        assert begun.text.endswith("count (whole number)")
        assert begun.task is not None
        task = client.task(begun.task.id)
        with pytest.raises(InvalidParams):
            await task.reply("count: many")
        assert (await task.reply("count: 3")).text == "3 of tea: sure?"
        assert (await task.reply("yes")).text == "3 tea yes"


def test_there_must_be_something_to_ask_for() -> None:
    async def nothing(turn: Turn) -> None:
        """Needs nothing."""

    with pytest.raises(TypeError, match="nothing: ask=True, but there is no parameter to ask for"):
        agent_of(nothing, ask=True)


# ---- refused at registration -------------------------------------------------------------------


class Opaque:
    """No data can be this."""


class Holder(msgspec.Struct):
    """Has something inside that no data can be."""

    inner: list[Opaque]


async def holds(turn: Turn, holder: Holder) -> None:
    """Wants what no message can hold."""


async def listed(turn: Turn, files: list[Part]) -> None:
    """Wants parts as data."""


async def untyped(turn: Turn, limit=5) -> None:  # type: ignore[no-untyped-def]
    """Does not say what it wants."""


async def wanted(turn: Turn, *, opaque: Opaque) -> None:
    """Wants it by keyword."""


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (holds, "holds: parameter holder: a value of type Opaque cannot be created from data"),
        (listed, "listed: parameter files: a value of type Part cannot be created from data"),
        (untyped, "untyped: parameter limit needs a type: Turn, Message, Part, bytes, str, or"),
        (wanted, "wanted: parameter opaque: a value of type Opaque cannot be created from data"),
        (several, "several: parameter turn: a value of type Turn cannot be created from data"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_filled_is_refused_with_the_reason(target: Any, reason: str) -> None:
    with pytest.raises(TypeError) as error:
        agent_of(target)
    assert reason in str(error.value)


def test_a_skill_without_parentheses() -> None:
    agent = Agent("Test", description="For tests.")
    assert agent.skill(book) is book
    assert agent.skill()(stays) is stays
    assert list(agent.skills) == ["book", "stays"]


def test_pydantic_is_not_needed() -> None:
    code = """
import asyncio, sys
sys.modules["pydantic"] = None
from dataclasses import dataclass
from dragoman import Agent
from dragoman.testing import run_handler
agent = Agent("Test", description="For tests.")
@dataclass
class Stay:
    city: str
@agent.skill
async def book(stay: Stay, nights: int = 2) -> list[int]:
    return [nights]
print(asyncio.run(run_handler(agent, {"stay": {"city": "Rome"}})).task.artifacts[0].parts[0].data)
print(len(agent.extensions))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("{'result': [2]}\n2\n", "")


# ---- when the code has changed since -----------------------------------------------------------


async def test_a_message_that_no_longer_fits_fails_its_task_with_the_reason() -> None:
    agent = agent_of(book)
    agent.skills["book"].handler.parameters.check = lambda *_, **__: None  # type: ignore[method-assign]
    found = await run_handler(agent, {"city": 5})
    assert found.state is TaskState.FAILED
    assert found.text == f"{DATA}.city: expected str, got int"


# ---- results -----------------------------------------------------------------------------------


async def numbers() -> list[int]:
    """Returns no object."""
    return [1, 2]


async def stay() -> Stay:
    """Returns an object."""
    return Stay("Rome")


async def maybe() -> int | None:
    """Returns nothing."""
    return None


async def words() -> list[Any]:
    """Returns parts."""
    return [Part(text="a"), Part(text="b")]


def inside() -> Any:
    """Returns a number, later."""
    return asyncio.sleep(0, 5)


inside.__annotations__["return"] = int


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (numbers, {"result": [1, 2]}),
        (stay, {"city": "Rome", "nights": 1}),
        (inside, {"result": 5}),
        (maybe, UNSET),
        (words, UNSET),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_result_that_is_no_object_is_one(target: Any, expected: Any) -> None:
    found = await run(target, "x")
    assert found.state is TaskState.COMPLETED
    assert found.task is not None
    parts = [part for artifact in found.task.artifacts for part in artifact.parts]
    assert next((part.data for part in parts if part.data is not UNSET), UNSET) == expected


async def test_the_default_handler_returns_what_it_returns() -> None:
    agent = Agent("Test", description="For tests.")
    agent.handler(numbers)
    found = await run_handler(agent, "x")
    assert found.task is not None
    assert found.task.artifacts[0].parts == (Part(data=[1, 2]),)


async def test_the_message_can_be_a_parameter_too() -> None:
    async def both(message: Message, city: str, nights: int) -> str:
        return f"{len(message.parts)} {city} {nights}"

    assert (await run(both, {"city": "Rome", "nights": 1})).text == "1 Rome 1"
