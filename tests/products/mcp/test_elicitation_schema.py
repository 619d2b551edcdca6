"""Questions as forms."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.server.elicitation import render_elicitation_schema
from pydantic import BaseModel

from dragoman.mcp.elicitation_schema import FIELD, answer, form, schema_of

TEXT = {"type": "string"}
FLAT: dict[str, dict[str, Any]] = {
    "text": {"type": "string", "minLength": 1, "title": "Name", "description": "Whose"},
    "date": {"type": "string", "format": "date"},
    "whole number": {"type": "integer", "minimum": 1, "maximum": 9, "default": 2},
    "number": {"type": "number"},
    "yes or no": {"type": "boolean", "default": False},
    "choice": {"type": "string", "enum": ["aisle", "window"], "default": "aisle"},
    "titled choice": {"type": "string", "oneOf": [{"const": "a", "title": "Aisle"}]},
    "several": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 2},
}
NESTED: dict[str, dict[str, Any]] = {
    "object": {"type": "object", "properties": {"a": TEXT}},
    "list": {"type": "array", "items": TEXT},
    "reference": {"$ref": "#/$defs/Seat"},
    "alternatives": {"anyOf": [TEXT, {"type": "integer"}]},
    "choice of numbers": {"enum": [1, 2]},
    "two types": {"type": ["string", "integer"]},
    "anything": {},
}


def asked(field: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    return {"type": "object", "properties": {"it": field}, "required": ["it"] if required else []}


@pytest.mark.parametrize("name", FLAT)
def test_simple_fields_are_fields_of_the_form(name: str) -> None:
    found = form("Which?", asked(FLAT[name]))
    assert (found.message, found.whole) == ("Which?", True)
    assert found.schema["properties"]["it"] == FLAT[name]
    assert found.schema["required"] == ["it"]


@pytest.mark.parametrize("name", NESTED)
def test_anything_else_is_one_text_with_the_schema_in_the_message(name: str) -> None:
    found = form("Which?", asked(NESTED[name]))
    assert not found.whole
    assert list(found.schema["properties"]) == [FIELD]
    assert found.message.startswith("Which?\n\nAnswer with JSON of this schema:\n{")


def test_the_form_is_one_that_the_sdk_accepts() -> None:
    fields = {name.replace(" ", "_"): schema for name, schema in FLAT.items()}
    found = form("Which?", {"type": "object", "properties": fields})

    class Asked(BaseModel):
        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return found.schema

    assert render_elicitation_schema(Asked) == found.schema  # it raises for what is not allowed


@pytest.mark.parametrize(
    "field",
    [
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "title": "Rows"},
        {"type": ["integer", "null"], "title": "Rows"},
    ],
)
def test_a_field_that_may_be_null_is_not_required(field: dict[str, Any]) -> None:
    found = form("", asked(field))
    assert found.schema["properties"]["it"] == {"type": "integer", "title": "Rows"}
    assert found.schema["required"] == []


def test_words_of_the_schema_that_a_form_does_not_know_are_left_out() -> None:
    found = form("", asked({**TEXT, "format": "uuid", "pattern": "^(a+)+$", "x-secret": 1}))
    assert found.schema["properties"]["it"] == TEXT


def test_the_answer_of_a_form_is_data_without_what_was_left_open() -> None:
    assert answer(form("", asked(FLAT["number"])), {"it": 2.5, "more": None}) == {"it": 2.5}


@pytest.mark.parametrize(
    ("text", "meant"),
    [('{"it": [1]}', {"it": [1]}), ("12A", "12A"), ("12", "12"), ("{broken", "{broken")],
)
def test_the_answer_in_a_text_is_json_or_words(text: str, meant: Any) -> None:
    assert answer(form("Which?", asked(NESTED["list"])), {FIELD: text}) == meant


def test_a_question_in_words_is_one_text() -> None:
    found = form("Which dates?")
    assert (found.message, found.schema["required"]) == ("Which dates?", [FIELD])
    assert answer(found, {FIELD: "In May"}) == "In May"


def test_a_large_schema_is_cut() -> None:
    many = {f"field{number}": NESTED["list"] for number in range(1000)}
    assert len(form("", {"type": "object", "properties": many}).message) < 5000


@pytest.mark.parametrize(
    ("data", "found"),
    [(asked(TEXT), True), ({"seat": "12A"}, False), ([1], False), ({"type": "object"}, False)],
)
def test_a_schema_is_told_from_other_data(data: Any, found: bool) -> None:
    assert (schema_of(data) is not None) is found
