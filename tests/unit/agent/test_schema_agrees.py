"""The schema on the card, the client's check and the server's check say the same of any data."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from dragoman import Agent, Message, Part, Role
from dragoman.client.skills import RemoteSkill
from dragoman.model.errors import InvalidParams


class Board(Enum):
    """What is eaten."""

    HALF = "half"
    FULL = "full"


class Room(msgspec.Struct, forbid_unknown_fields=True):
    """A room."""

    beds: Annotated[int, Meta(ge=1)]
    view: str | None = None


class Stay(msgspec.Struct):
    """A stay."""

    city: str
    rooms: list[Room] = []


async def fields(
    city: Annotated[str, Meta(min_length=1, max_length=4)],
    nights: Annotated[int, Meta(ge=1, lt=10)],
    room: Room,
    board: Board = Board.HALF,
    bed: Literal["soft", "hard", 3] | None = None,
    price: float = 1.0,
    late: bool = False,
    tags: Annotated[list[str], Meta(max_length=2)] = [],  # noqa: B006
    pair: tuple[int, str] | None = None,
    more: dict[str, int] | None = None,
) -> None:
    """Takes fields."""


async def whole(stay: Stay) -> None:
    """Takes an object."""


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 3, 10, -1, 1.0, 1.5, 1e300]),
    st.sampled_from(["", "Rome", "Lisbon", "half", "full", "soft", "none"]),
    st.sampled_from([[], ["a"], ["a", "b"], ["a", "b", "c"], [1], [1, "a"], [1, "a", 2]]),
    st.sampled_from([{}, {"a": 1}, {"a": "b"}]),
    st.fixed_dictionaries(
        {"beds": st.sampled_from([1, 0, "x"])}, optional={"view": st.sampled_from(["sea", None, 1])}
    ),
    st.lists(st.fixed_dictionaries({"beds": st.sampled_from([1, 2, 0, None])}), max_size=2),
)
GOOD: dict[str, Any] = {"city": "Rome", "nights": 2, "room": {"beds": 1}}
NAMES = (
    *("city", "nights", "room", "board", "bed", "price", "late", "tags", "pair", "more", "rooms"),
    "other",
)


def skill_of(target: Any) -> tuple[Any, RemoteSkill]:
    """The parameters of a handler, and what a client knows of them."""
    agent = Agent("Test", description="For tests.")
    agent.skill(target)
    skill = agent.skills[target.__name__]
    assert skill.schema is not None
    seen = RemoteSkill(id="x", name="x", description="x", input=skill.schema.input)
    return skill.handler.parameters, seen


@pytest.mark.parametrize("target", [fields, whole], ids=lambda target: target.__name__)
@given(changes=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3), base=st.booleans())
def test_all_three_agree(target: Any, changes: dict[str, Any], base: bool) -> None:
    parameters, seen = skill_of(target)
    data = {**(GOOD if base else {}), **changes}
    if target is whole:
        data.pop("room", None)
        data.pop("nights", None)
    message = Message(message_id="m", role=Role.USER, parts=(Part(data=data),))
    assert seen.input is not None
    fits = jsonschema.Draft202012Validator(seen.input).is_valid(data)
    assert accepted(lambda: seen.check(data)) is fits
    assert accepted(lambda: parameters.check(message)) is fits


def accepted(check: Any) -> bool:
    """Whether a check finds nothing; it may only raise InvalidParams."""
    try:
        check()
    except InvalidParams as error:
        assert error.violations
        return False
    return True
