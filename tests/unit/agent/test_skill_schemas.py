"""What the card says of the parameters and the result of a skill."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pydantic
import pytest
from msgspec import Meta
from pydantic import Field

from dragoman import Agent, Artifact, JsonSchema, Message, Part, Turn
from dragoman.model.errors import InvalidParams
from dragoman.model.json_schema import DIALECT
from dragoman.model.skill_extension import SKILL_SCHEMA, FileParameter, SkillSchema, schemas
from dragoman.testing import message, run_handler


class Board(Enum):
    """What is eaten."""

    HALF = "half"


class Guest(pydantic.BaseModel):
    """A guest."""

    model_config = pydantic.ConfigDict(populate_by_name=True)
    name: str = Field(alias="fullName")


@dataclass
class Booking:
    """A booking."""

    reference: str
    nights: int = 1
    next: Booking | None = None


def card_of(target: Any, **options: Any) -> Any:
    """The card of an agent with this skill."""
    agent = Agent("Test", description="For tests.")
    agent.skill(**options)(target)
    return agent.card("https://agent.example")


def schema_of(target: Any, **options: Any) -> SkillSchema:
    """What the card says of a skill; its schemas are valid."""
    found = schemas(card_of(target, **options)).get(options.get("id", target.__name__))
    assert found is not None
    for schema in (found.input, found.output):
        if schema is not None:
            assert schema["$schema"] == DIALECT
            jsonschema.Draft202012Validator.check_schema(schema)
    return found


async def book(
    city: str,
    nights: Annotated[int, Meta(ge=1, description="How many nights")] = 2,
    board: Board = Board.HALF,
    guests: list[Guest] | None = None,
    limit: Annotated[int, Field(le=9, description="At most")] = 3,
) -> Booking:
    """Books a room.

    Asks nothing.

    Args:
        city: Where to,
            in words.
        nights: Never shown, the annotation counts.

    Returns:
        The booking.
    """
    return Booking(city)


def test_fields_with_types_defaults_and_descriptions() -> None:
    found = schema_of(book)
    assert found.input == {
        "$schema": DIALECT,
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where to, in words."},
            "nights": {
                "type": "integer",
                "minimum": 1,
                "description": "How many nights",
                "default": 2,
            },
            "board": {"$ref": "#/$defs/Board", "default": "half"},
            "guests": {
                "anyOf": [
                    {"type": "array", "items": {"$ref": "#/$defs/Guest"}},
                    {"type": "null"},
                ],
                "default": None,
            },
            "limit": {"type": "integer", "maximum": 9, "description": "At most", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {
            "Board": {"title": "Board", "description": "What is eaten.", "enum": ["half"]},
            "Guest": {
                "title": "Guest",
                "description": "A guest.",
                "type": "object",
                "properties": {"fullName": {"title": "Fullname", "type": "string"}},
                "required": ["fullName"],
            },
        },
    }
    assert found.output is not None
    assert found.output["required"] == ["reference"]
    assert found.output["$defs"]["Booking"]["title"] == "Booking"  # it mentions itself
    assert not found.wrapped


def test_the_docstring_without_its_sections_is_the_description() -> None:
    (skill,) = card_of(book).skills
    assert skill.description == "Books a room.\n\nAsks nothing."


def test_an_annotation_of_msgspec_describes_a_model() -> None:
    async def handle(guest: Annotated[Guest, Meta(description="Who sleeps")], nights: int) -> None:
        """Takes both."""

    schema: Any = schema_of(handle).input
    assert schema["properties"]["guest"]["description"] == "Who sleeps"


async def documented(a: int, b: str) -> None:
    """Does it.

    :param a: the first
        of two
    :param str b: the second
    :returns: nothing
    """


def test_descriptions_in_the_form_of_sphinx() -> None:
    schema: Any = schema_of(documented).input
    assert schema["properties"]["a"]["description"] == "the first of two"
    assert schema["properties"]["b"]["description"] == "the second"
    assert card_of(documented).skills[0].description == "Does it."


async def whole(guest: Guest, turn: Turn) -> list[Guest]:
    """Takes an object."""
    return [guest]


def test_one_structured_parameter_is_the_schema_itself() -> None:
    found = schema_of(whole)
    assert found.input is not None
    assert found.input["properties"] == {"fullName": {"title": "Fullname", "type": "string"}}
    assert "$ref" not in found.input
    assert found.wrapped
    assert found.output is not None
    assert found.output["required"] == ["result"]
    assert found.output["$defs"]["Guest"]["required"] == ["name"]  # as it is sent


async def greet(name: str) -> str:
    """Greets."""
    return name


def test_one_str_may_be_the_text() -> None:
    found = schema_of(greet)
    assert found.text == "name"
    assert found.input is not None
    assert found.input["required"] == ["name"]
    assert "additionalProperties" not in found.input
    assert found.output is None


async def look(
    photo: Annotated[Part, Meta(description="A face")], mask: bytes | None = None
) -> bool:
    """Looks.

    Args:
        mask: What to leave out.
    """
    return True


def test_file_parameters() -> None:
    found = schema_of(look, ask=True)
    assert found.input is None
    assert found.files == {
        "photo": FileParameter("A face"),
        "mask": FileParameter("What to leave out.", required=False),
    }
    assert found.ask
    assert card_of(look).skills[0].input_modes == ("text/plain", "application/json", "*/*")
    own = card_of(look, input_modes=["image/*"]).skills[0]
    assert own.input_modes == ("image/*",)


async def plain(turn: Turn) -> Any:
    """Takes a turn."""


async def yields(turn: Turn) -> AsyncIterator[Booking]:
    """Yields."""
    yield Booking("x")


async def talks(message: Message) -> Message:
    """Answers."""
    return message


async def mixed(turn: Turn) -> Booking | str:
    """Returns one or the other."""
    return "x"


async def parts(turn: Turn) -> list[Part]:
    """Returns parts."""
    return []


async def artifact(turn: Turn) -> Artifact | None:
    """Returns an artifact, or not."""
    return None


@pytest.mark.parametrize(
    "target", [plain, yields, talks, mixed, parts, artifact], ids=lambda kind: kind.__name__
)
def test_a_skill_without_types_of_data_has_no_schema(target: Any) -> None:
    card = card_of(target)
    assert SKILL_SCHEMA not in [item.uri for item in card.capabilities.extensions]


RESULTS: list[tuple[Any, Any]] = [
    (int, {"type": "integer"}),
    (Literal["a", "b"], {"enum": ["a", "b"]}),
    (list[str], {"type": "array", "items": {"type": "string"}}),
    (int | None, {"type": "integer"}),
]


@pytest.mark.parametrize(("kind", "schema"), RESULTS, ids=str)
def test_a_result_that_is_no_object_is_a_field(kind: Any, schema: Any) -> None:
    async def handle(turn: Turn) -> Any:
        """Returns it."""

    handle.__annotations__["return"] = kind
    found = schema_of(handle)
    assert found.wrapped
    assert found.output is not None
    assert found.output["properties"] == {"result": schema}


def test_a_dict_of_objects_is_any_object() -> None:
    async def handle(turn: Turn) -> dict[str, object]:
        """Returns it."""
        return {}

    found = schema_of(handle)
    assert (found.output, found.wrapped) == ({"$schema": DIALECT, "type": "object"}, False)


def test_json_is_among_the_modes() -> None:
    agent = Agent(
        "Test", description="For tests.", input_modes=["text/plain"], output_modes=["text/plain"]
    )
    agent.skill(book)
    agent.skill(input_modes=["image/*"], output_modes=["text/html"])(whole)
    agent.skill(input_modes=["*/*"])(greet)
    agent.skill(plain)
    agent.handler(talks)
    card = agent.card("https://agent.example")
    assert card.default_input_modes == ("text/plain",)
    assert [skill.input_modes for skill in card.skills] == [
        ("text/plain", "application/json"),
        ("image/*", "application/json"),
        ("*/*",),
        ("text/plain",),
    ]
    assert [skill.output_modes for skill in card.skills] == [
        ("text/plain", "application/json"),
        ("text/html", "application/json"),
        ("text/plain",),
        ("text/plain",),
    ]
    agent.admit(message([Part(data={}, media_type="application/json")]), "whole")


def test_two_types_of_one_name_stay_apart() -> None:
    class Inner(msgspec.Struct):
        """One."""

        a: int

    first = Inner

    class Inner(pydantic.BaseModel):  # type: ignore[no-redef]
        """The other."""

        b: int

    second = Inner

    async def handle(one: Any, two: Any, three: Any) -> None:
        """Takes both."""

    handle.__annotations__.update(one=first, two=second, three=list[first])  # type: ignore[valid-type]
    schema: Any = schema_of(handle).input
    wrong = {"one": {"a": 1}, "two": {"b": 1}, "three": [{"b": 1}]}
    validator = jsonschema.Draft202012Validator(schema)
    assert [list(error.path) for error in validator.iter_errors(wrong)] == [["three", 0]]


def test_a_card_with_entries_that_cannot_be_read() -> None:
    card = card_of(greet)
    *others, own = card.capabilities.extensions
    odd = own.replace(params={"a": 5, "b": {"input": []}, "c": {"input": {}, "more": 1}})
    card = card.replace(capabilities=card.capabilities.replace(extensions=(*others, odd)))
    assert schemas(card) == {"c": SkillSchema(input={})}


# ---- schemas that are known only at run time -------------------------------------------------

GIVEN = {
    "type": "object",
    "properties": {"day": {"$ref": "#/$defs/Day"}, "seats": {"type": "integer", "minimum": 1}},
    "required": ["day"],
    "$defs": {"Day": {"type": "string", "enum": ["Monday"]}},
}


def given() -> Agent:
    agent = Agent("Desk", description="Books.")

    async def book(turn: Turn, arguments: Any) -> Any:
        return {"said": arguments}

    book.__annotations__ = {
        "turn": Turn,
        "arguments": Annotated[dict[str, Any], JsonSchema(GIVEN)],
        "return": Annotated[dict[str, Any], JsonSchema({"type": "object", "title": "Said"})],
    }
    agent.skill(book)
    return agent


def test_a_given_schema_stands_on_the_card() -> None:
    schema = given().skills["book"].schema
    assert schema is not None
    assert schema.input == {"$schema": DIALECT, **GIVEN}
    assert schema.output == {"$schema": DIALECT, "type": "object", "title": "Said"}
    assert not schema.wrapped


async def test_data_are_checked_against_a_given_schema() -> None:
    found = await run_handler(given(), {"day": "Monday", "seats": 2.0})
    assert found.task is not None
    (part,) = found.task.artifacts[0].parts
    assert part.data == {"said": {"day": "Monday", "seats": 2}}
    with pytest.raises(InvalidParams, match=r"seats: must be at least 1") as error:
        await run_handler(given(), {"seats": 0})
    assert "day: is required" in error.value.message
