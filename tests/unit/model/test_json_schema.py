"""The check of values against schemas, also of schemas that nobody should trust."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dragoman.model.json_schema import kind_of, problems

ROOM = {"type": "object", "properties": {"beds": {"type": "integer"}}, "required": ["beds"]}
STAY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 5},
        "nights": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
        "price": {"type": "number", "exclusiveMinimum": 0, "maximum": 9.5},
        "board": {"enum": ["half", 1]},
        "kind": {"const": "stay"},
        "late": {"type": ["boolean", "null"]},
        "rooms": {"type": "array", "items": {"$ref": "#/$defs/Room"}, "maxItems": 2},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        "guest": {"anyOf": [{"$ref": "#/$defs/Room"}, {"type": "null"}]},
        "both": {"allOf": [{"type": "string"}, {"minLength": 2}]},
        "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Room": ROOM},
}


@pytest.mark.parametrize(
    "value",
    [
        {"city": "Rome"},
        {"city": "Rome", "nights": 2, "price": 1, "board": "half", "kind": "stay"},
        {"city": "Rome", "nights": 2.0, "late": None, "rooms": [{"beds": 1}], "pair": ["a"]},
        {"city": "Rome", "guest": None, "both": "ab", "extra": {"a": 1}, "board": 1},
        {"city": "Rome", "guest": {"beds": 1}, "late": True},
    ],
)
def test_what_fits(value: Any) -> None:
    assert problems(STAY, value) == []


@pytest.mark.parametrize(
    ("value", "path", "what"),
    [
        ([], "", "expected an object, got array"),
        ({}, ".city", "is required"),
        ({"city": 5}, ".city", "expected a string, got integer"),
        ({"city": ""}, ".city", "must have at least 1 character"),
        ({"city": "London"}, ".city", "must have at most 5 characters"),
        ({"city": "R", "nights": True}, ".nights", "expected an integer, got boolean"),
        ({"city": "R", "nights": 1.5}, ".nights", "expected an integer, got number"),
        ({"city": "R", "nights": 0}, ".nights", "must be at least 1"),
        ({"city": "R", "nights": 10}, ".nights", "must be less than 10"),
        ({"city": "R", "price": 0}, ".price", "must be greater than 0"),
        ({"city": "R", "price": 10}, ".price", "must be at most 9.5"),
        ({"city": "R", "board": True}, ".board", "must be one of half, 1"),
        ({"city": "R", "kind": "trip"}, ".kind", "must be stay"),
        ({"city": "R", "late": "x"}, ".late", "expected a boolean or null, got string"),
        ({"city": "R", "rooms": [{"beds": 1}, {}]}, ".rooms[1].beds", "is required"),
        ({"city": "R", "rooms": [{"beds": 1}] * 3}, ".rooms", "must have at most 2 elements"),
        ({"city": "R", "pair": ["a", "b"]}, ".pair[1]", "is not allowed"),
        ({"city": "R", "guest": {"beds": "x"}}, ".guest.beds", "expected an integer, got string"),
        ({"city": "R", "guest": 5}, ".guest", "expected an object, got integer"),
        ({"city": "R", "both": "a"}, ".both", "must have at least 2 characters"),
        ({"city": "R", "extra": {"a": "b"}}, ".extra.a", "expected an integer, got string"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(value: Any, path: str, what: str) -> None:
    assert problems(STAY, value) == [(path, what)]


def test_what_is_unknown_is_named_with_what_is_known() -> None:
    ((path, what),) = problems(STAY, {"city": "R", "ctiy": 1})
    assert path == ".ctiy"
    assert what.startswith("is unknown; the fields are: city, nights, ")


def nested(depth: int, leaf: Any = None) -> Any:
    """A list in a list in a list."""
    for _ in range(depth):
        leaf = [leaf]
    return leaf


BOTH = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": BOTH}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": BOTH}}},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://elsewhere.example/schema"},
        {"$ref": 5, "type": "array"},
        {"type": "array", "pattern": "(a+)+$", "items": "x", "minItems": "y", "required": 3},
        {"properties": [], "anyOf": {}, "enum": "x", "type": 5, "prefixItems": 4},
        {"type": "array", "items": {"type": "unheard-of"}},
    ],
    ids=str,
)
def test_a_schema_that_makes_no_sense_takes_no_time(schema: Any) -> None:
    began = time.process_time()
    assert isinstance(problems(schema, nested(200)), list)
    assert isinstance(problems(schema, nested(40, leaf=5)), list)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["integer", "null"]}, "integer"),
        ({"enum": ["a", "b"]}, "string"),
        ({"enum": ["a", 1]}, ""),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "boolean"),
        ({"anyOf": [{"type": "boolean"}, {"type": "string"}]}, ""),
        ({}, ""),
    ],
    ids=str,
)
def test_the_kind_of_a_value(schema: Any, kind: str) -> None:
    assert kind_of(schema, schema) == kind
