"""The schema of a skill for the card: from the handler's signature and docstring."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Union

from msgspec import UNSET

from dragoman.model import to_parts
from dragoman.model.events import Reply
from dragoman.model.json_schema import DIALECT
from dragoman.model.parameter_types import (
    DataType,
    bare,
    hoisted,
    inlined,
    is_object,
    mentions,
    without_none,
)
from dragoman.model.skill_extension import RESULT, FileParameter, SkillSchema
from dragoman.model.types import (
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)

if TYPE_CHECKING:
    from dragoman.agent.handler import Handler
    from dragoman.agent.parameters import Parameter

CONTENT = (Part, Artifact, Message, Task, Reply, TaskArtifactUpdateEvent, TaskStatusUpdateEvent)
BYTES = (bytes, bytearray, memoryview)
NOT_DATA = (str, *BYTES, *CONTENT, type(None), Any)
"""Results that do not become a data part, or may be anything."""
YIELDING = (
    *(collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator),
    *(collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator),
    *(collections.abc.Awaitable, collections.abc.Coroutine),
)


def skill_schema(handler: Handler) -> SkillSchema | None:
    """The schema of a skill; None if it takes any message and its result is not data."""
    parameters = handler.parameters
    found = SkillSchema(
        input=_stamped(described(parameters.schema, handler.about)) if parameters.data else None,
        output=None if handler.result is None else _stamped(result_schema(handler.result)),
        files=file_parameters(parameters.files, handler.about),
        text=parameters.text.name if parameters.text else "",
        ask=handler.ask,
        wrapped=handler.wraps,
    )
    return found if found.input or found.output or found.files else None


def _stamped(schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": DIALECT, **schema}


def fields_schema(parameters: Iterable[Parameter], *, open: bool = False) -> dict[str, Any]:
    """The schema of an object with a field for each parameter. `open` allows other fields."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for each in parameters:
        assert each.type is not None
        inner = each.type.schema()
        if about := _annotated(each.annotation):  # msgspec's, on a type of pydantic
            inner = {**inner, "description": about}
        if each.default is UNSET:
            required.append(each.name)
        else:
            with suppress(TypeError):  # it may be no JSON
                inner = {**inner, "default": to_parts.plain(each.default)}
        properties[each.name] = inner
    found: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if not open:
        found["additionalProperties"] = False
    return hoisted(found)


def described(schema: dict[str, Any], about: dict[str, str]) -> dict[str, Any]:
    """The schema with the descriptions of the docstring, where a field has none."""
    properties = schema.get("properties")
    if not about or not isinstance(properties, dict):
        return schema
    return {
        **schema,
        "properties": {
            name: item
            if not about.get(name) or "description" in item
            else {**item, "description": about[name]}
            for name, item in properties.items()
        },
    }


def file_parameters(
    parameters: Iterable[Parameter], about: dict[str, str]
) -> dict[str, FileParameter]:
    """The parameters that take files."""
    return {
        each.name: FileParameter(
            _annotated(each.annotation) or about.get(each.name, ""), each.default is UNSET
        )
        for each in parameters
    }


def _annotated(kind: Any) -> str:
    """The description in an annotation."""
    notes = [*getattr(kind, "__metadata__", ())]
    for item in typing.get_args(kind):
        notes += getattr(item, "__metadata__", ())
    return next((note.description for note in notes if getattr(note, "description", None)), "")


# ---- the result ------------------------------------------------------------------------------


def result_type(hint: Any) -> DataType | None:
    """The type of a result that becomes a data part; None if it is something else, or anything."""
    kind = without_none(hint)
    plain = bare(kind)
    if isinstance(kind, str) or plain in (inspect.Parameter.empty, object, *NOT_DATA):
        return None
    if plain in YIELDING or typing.get_origin(plain) in YIELDING or mentions(kind, CONTENT):
        return None
    union = typing.get_origin(plain) in (Union, types.UnionType)
    if union and any(item in NOT_DATA for item in typing.get_args(plain)):
        return None
    try:
        found = DataType(_loose(kind))
        found.schema(result=True)
    except (TypeError, ValueError):
        return None  # it may be sent all the same
    return found


def _loose(kind: Any) -> Any:
    """The type with Any for object, which type checkers prefer."""
    if kind is object:
        return Any
    origin = typing.get_origin(kind)
    if origin in (dict, list, tuple):
        return origin[tuple(_loose(item) for item in typing.get_args(kind))]
    return kind


def result_schema(kind: DataType) -> dict[str, Any]:
    """The schema of the data part with the result."""
    inner = kind.schema(result=True)
    if is_object(inner):
        return inlined(inner)
    return hoisted({"type": "object", "properties": {RESULT: inner}, "required": [RESULT]})


def wrapped(value: Any) -> Any:
    """A result that is not an object, as one. What does not become data stays as it is."""
    if value is None or isinstance(value, (*BYTES, *CONTENT)):
        return value
    several = isinstance(value, list | tuple) and bool(value)
    if several and all(isinstance(item, Part | Artifact) for item in value):
        return value
    return {RESULT: value}
