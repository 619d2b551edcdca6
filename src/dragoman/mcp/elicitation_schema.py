"""Which questions a form of MCP can carry, and what its answer means.

A form has flat fields of simple values. A schema that asks for more becomes one text field, and the
message then says which JSON is expected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

FIELD = "answer"
"""The only field of a form whose question has no flat schema."""
FORMATS = ("date", "date-time", "email", "uri")
"""The formats of text that a form knows."""
SIMPLE = {
    "string": ("minLength", "maxLength", "default"),
    "integer": ("minimum", "maximum", "default"),
    "number": ("minimum", "maximum", "default"),
    "boolean": ("default",),
}
"""The types of a field, and the words of JSON Schema that a form keeps for each."""
WORDS = ("title", "description")
COMBINED = ("anyOf", "oneOf", "allOf", "$ref")
LONGEST_SCHEMA = 4000
"""The most characters of a schema in a message."""


class Form(Struct, frozen=True, kw_only=True):
    """A question as a form."""

    message: str
    schema: dict[str, Any]
    """The schema of the form: an object with flat fields."""
    whole: bool
    """Whether the form has a field for each field of the question, and not one text for all."""


def form(message: str, schema: Mapping[str, Any] | None = None) -> Form:
    """Make the form of a question. `schema` is the JSON Schema of its answer; None if it is
    words."""
    if schema is None:
        return Form(message=message, schema=_text("The answer."), whole=False)
    fields = _fields(schema)
    if fields is not None:
        return Form(message=message, schema=fields, whole=True)
    wanted = json.dumps(schema, ensure_ascii=False)
    if len(wanted) > LONGEST_SCHEMA:
        wanted = f"{wanted[:LONGEST_SCHEMA]} [cut]"
    said = f"{message}\n\nAnswer with JSON of this schema:\n{wanted}".lstrip()
    return Form(message=said, schema=_text("JSON of the schema in the message."), whole=False)


def answer(asked: Form, content: Mapping[str, Any]) -> Any:
    """Return what the content of an accepted form means: data, or words.

    The JSON in the text field of a nested question is decoded; text that is no JSON stays text."""
    if asked.whole:
        return {name: value for name, value in content.items() if value is not None}
    text = content.get(FIELD, "")
    if not isinstance(text, str):
        return text
    found = _decoded(text)
    return found if isinstance(found, dict | list) else text


def schema_of(data: Any) -> dict[str, Any] | None:
    """Return the data of a question's part if it is the JSON Schema of an answer; else None."""
    if not isinstance(data, Mapping) or data.get("type") != "object":
        return None
    fields = data.get("properties")
    return dict(data) if isinstance(fields, Mapping) and fields else None


def _text(description: str) -> dict[str, Any]:
    field = {"type": "string", "title": "Answer", "description": description}
    return {"type": "object", "properties": {FIELD: field}, "required": [FIELD]}


def _fields(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema of a form with the same fields; None if one of them is not simple."""
    given = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(given, Mapping) or not given:
        return None
    if any(word in schema for word in (*COMBINED, "patternProperties")):
        return None
    found: dict[str, Any] = {}
    required = [name for name in _list(schema.get("required")) if name in given]
    for name, inner in given.items():
        field, optional = _field(inner)
        if field is None:
            return None
        found[name] = field
        if optional and name in required:
            required.remove(name)
    return {"type": "object", "properties": found, "required": required}


def _field(schema: Any) -> tuple[dict[str, Any] | None, bool]:
    """A field of a form, and whether it may be left out because null is allowed; None if the
    schema is not simple."""
    if not isinstance(schema, Mapping):
        return None, False
    plain, optional = _without_null(schema)
    words = {word: plain[word] for word in WORDS if isinstance(plain.get(word), str)}
    if (choices := _choices(plain)) is not None:
        return {**choices, **words}, optional
    kind = plain.get("type")
    if kind == "array":
        inner = plain.get("items")
        items = _choices(inner) if isinstance(inner, Mapping) else None
        if items is None:
            return None, optional
        limits = {word: plain[word] for word in ("minItems", "maxItems") if word in plain}
        several = {"anyOf": items["oneOf"]} if "oneOf" in items else items
        return {"type": "array", "items": several, **limits, **words}, optional
    if not isinstance(kind, str) or kind not in SIMPLE or any(word in plain for word in COMBINED):
        return None, optional
    found = {"type": kind, **words}
    for word in SIMPLE[kind]:
        if plain.get(word) is not None:
            found[word] = plain[word]
    if kind == "string" and plain.get("format") in FORMATS:
        found["format"] = plain["format"]
    return found, optional


def _choices(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """A field with a choice of texts; None if the schema is none."""
    if "const" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        if not values or not all(isinstance(value, str) for value in values):
            return None
        found: dict[str, Any] = {"type": "string", "enum": list(values)}
        names = schema.get("enumNames")
        if isinstance(names, list) and len(names) == len(values):
            found["enumNames"] = [str(name) for name in names]
        if schema.get("default") in values:
            found["default"] = schema["default"]
        return found
    options = schema.get("oneOf", schema.get("anyOf"))
    if not isinstance(options, Sequence) or not options:
        return None
    titled = []
    for option in options:
        if not isinstance(option, Mapping) or not isinstance(option.get("const"), str):
            return None
        titled.append(
            {"const": option["const"], "title": str(option.get("title", option["const"]))}
        )
    return {"type": "string", "oneOf": titled}


def _without_null(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The schema of the values other than null, and whether null is allowed."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        others = [kind for kind in kinds if kind != "null"]
        if len(others) == 1:
            return {**schema, "type": others[0]}, len(others) < len(kinds)
        return schema, False
    for word in ("anyOf", "oneOf"):
        options = schema.get(word)
        if isinstance(options, list) and {"type": "null"} in options:
            rest = [option for option in options if option != {"type": "null"}]
            if len(rest) == 1 and isinstance(rest[0], Mapping):
                around = {key: value for key, value in schema.items() if key != word}
                return {**around, **rest[0]}, True
    return schema, False


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _decoded(text: str) -> Any | UnsetType:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNSET
