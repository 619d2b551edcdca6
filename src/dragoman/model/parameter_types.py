"""The types of parameters and results: converts JSON to them, and makes their JSON Schema.

msgspec handles them, pydantic only what mentions pydantic, which is imported when it is needed.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, Union

import msgspec

from dragoman.model.json_schema import alternatives, problems
from dragoman.model.skill_extension import JsonSchema
from dragoman.model.to_parts import whole
from dragoman.model.types import WireStruct

Problem = tuple[str, str]
_WHERE = re.compile(r"(?s)(.*?)(?: - at `\$(.*)`)?")
_MISSING = re.compile(r"Object missing required field `(.*)`")


class WrongData(ValueError):
    """A value does not fit a type. `problems` are pairs of a path and what is wrong."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{path}: {what}" for path, what in problems))
        self.problems = problems


class DataType:
    """A type that JSON data can be converted to. Raises TypeError if there is no way."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.name = getattr(bare(kind), "__name__", str(kind))
        self._adapter: Any = None
        self._strict = False
        self._given = _given_schema(kind)
        if self._given is not None:
            return
        if mentions_pydantic(kind):
            from pydantic import TypeAdapter
            from pydantic.errors import PydanticUserError

            try:
                self._adapter = TypeAdapter(kind)
            except PydanticUserError as error:
                raise TypeError(str(error).partition("\n")[0]) from None
            # A model converts as its author chose; a plain type is as strict as with msgspec.
            self._strict = not mentions_pydantic(kind, models=True)
            return
        info = msgspec.inspect.type_info(kind)
        msgspec.json.Decoder(kind)
        for cls in _custom_types(info):
            if issubclass(cls, WireStruct) or not hasattr(cls, "model_validate"):
                raise TypeError(f"a value of type {cls.__name__} cannot be created from data")

    def convert(self, value: Any) -> Any:
        """Convert a JSON value. Raises WrongData."""
        if self._adapter is not None:
            return self._validate(value)
        if self._given is not None:
            return self._checked(self._given, value)
        models = _Models()
        try:
            return msgspec.convert(whole(value), self.kind, dec_hook=models.convert)
        except msgspec.ValidationError as error:
            raise WrongData(_problems(error, models)) from None
        except RecursionError:
            raise WrongData([("", "is nested too deeply")]) from None

    def _checked(self, schema: dict[str, Any], value: Any) -> Any:
        value = whole(value)
        if found := problems(schema, value):
            raise WrongData(found)
        return value

    def _validate(self, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            if self._strict:
                return self._adapter.validate_json(msgspec.json.encode(whole(value)), strict=True)
            return self._adapter.validate_python(value)
        except ValidationError as error:
            raise WrongData(_located(error)) from None
        except RecursionError:
            raise WrongData([("", "is nested too deeply")]) from None

    def schema(self, *, result: bool = False) -> dict[str, Any]:
        """The JSON Schema of its values; with `result`, of values that are sent."""
        if self._given is not None:
            return hoisted(self._given)
        if self._adapter is not None:
            found: dict[str, Any] = self._adapter.json_schema(
                mode="serialization" if result else "validation", by_alias=not result
            )
        else:
            models = _Models(result)
            found = msgspec.json.schema(self.kind, schema_hook=models.schema)
        return hoisted(found)


class _Models:
    """Pydantic models inside types of msgspec."""

    def __init__(self, result: bool = False) -> None:
        self.problems: list[Problem] = []
        self._result = result

    def convert(self, kind: type, value: Any) -> Any:
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            self.problems = _located(error)
            raise ValueError("a model has problems") from None

    def schema(self, kind: type) -> dict[str, Any]:
        from pydantic import TypeAdapter

        return TypeAdapter(kind).json_schema(
            mode="serialization" if self._result else "validation", by_alias=not self._result
        )


def _problems(error: msgspec.ValidationError, models: _Models) -> list[Problem]:
    """What msgspec says, as a path and what is wrong there."""
    match = _WHERE.fullmatch(str(error))
    what, path = (match[1], match[2] or "") if match else (str(error), "")
    if models.problems:
        return [(path + inner, said) for inner, said in models.problems]
    if missing := _MISSING.fullmatch(what):
        return [(f"{path}.{missing[1]}", "is required")]
    what = what[:1].lower() + what[1:].replace("`", "").replace(" | null", "")
    return [(path, what.replace("expected str matching regex", "expected a text that matches"))]


def _located(error: Any) -> list[Problem]:
    """The problems that pydantic found."""
    return [
        (
            "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in item["loc"]),
            _words(item),
        )
        for item in error.errors()
    ]


def _words(item: Any) -> str:
    """A problem of pydantic, in the words of all others."""
    if item["type"] == "missing":
        return "is required"
    # it gets JSON that was decoded before: nothing else can be wrong with it
    return "is nested too deeply" if item["type"] == "json_invalid" else item["msg"]


# ---- looking at annotations ------------------------------------------------------------------


def bare(kind: Any) -> Any:
    """The type without `Annotated`, `NewType`, `type X = …` and `| None`."""
    while True:
        if typing.get_origin(kind) is Annotated:
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":  # of Python 3.12
            kind = kind.__value__
        elif typing.get_origin(kind) in (Union, types.UnionType):
            inner = [item for item in typing.get_args(kind) if item is not type(None)]
            if len(inner) != 1:
                return kind
            kind = inner[0]
        else:
            return kind


def _given_schema(kind: Any) -> dict[str, Any] | None:
    """The schema that an annotation gives; None if it gives none."""
    notes = getattr(kind, "__metadata__", ())
    return next((note.schema for note in notes if isinstance(note, JsonSchema)), None)


def without_none(kind: Any) -> Any:
    """The type without `| None`; annotations stay."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        inner = [item for item in typing.get_args(kind) if item is not type(None)]
        if len(inner) == 1:
            return inner[0]
    return kind


def mentions(kind: Any, wanted: Iterable[Any]) -> bool:
    """Whether a type is in this list, or has one of its types as an argument."""
    found = any(kind is item for item in wanted)
    return found or any(mentions(item, wanted) for item in typing.get_args(kind))


def mentions_pydantic(
    kind: Any, *, models: bool = False, seen: frozenset[Any] = frozenset()
) -> bool:
    """Whether pydantic must handle a type: it has a model in it or, unless only `models` count, an
    annotation of pydantic. Does not import pydantic."""
    if typing.get_origin(kind) is Annotated:
        if not models and any(_of_pydantic(note) for note in kind.__metadata__):
            return True
        kind = typing.get_args(kind)[0]
    if hasattr(kind, "model_validate") or hasattr(kind, "__pydantic_validator__"):
        return True
    inner = list(typing.get_args(kind))
    if isinstance(kind, type) and kind not in seen:
        seen |= {kind}
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            inner += field_types(kind)
    return any(mentions_pydantic(item, models=models, seen=seen) for item in inner)


def field_types(kind: Any) -> list[Any]:
    """The types of the fields of a dataclass or TypedDict; none if they cannot be resolved."""
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except (NameError, TypeError):
        return []


def _of_pydantic(note: Any) -> bool:
    return type(note).__module__.partition(".")[0] in ("pydantic", "annotated_types")


def _custom_types(info: Any) -> set[type]:
    """The types inside that msgspec does not know; wire values count, too."""
    found: set[type] = set()
    waiting, seen = [info], set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple | list):
            waiting += node
        elif isinstance(node, msgspec.Struct) and id(node) not in seen:
            seen.add(id(node))
            cls = getattr(node, "cls", None)
            if isinstance(node, msgspec.inspect.CustomType) or (
                isinstance(cls, type) and issubclass(cls, WireStruct)
            ):
                found.add(typing.cast(type, cls))
                continue
            waiting += [
                getattr(node, name)
                for name in node.__struct_fields__
                if name not in ("default", "default_factory", "extra", "extra_json_schema")
            ]
    return found


# ---- schemas ---------------------------------------------------------------------------------


def is_object(schema: dict[str, Any]) -> bool:
    """Whether every value that fits the schema is an object, or null."""
    found = alternatives(schema, schema)
    return bool(found) and all(item.get("type") == "object" for item in found)


def hoisted(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with all definitions at its top, where references look for them."""
    definitions: dict[str, Any] = {}
    top = _hoist(schema, definitions)
    return {**top, "$defs": definitions} if definitions else top


def _hoist(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_hoist(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    own = value.get("$defs")
    if isinstance(own, dict):
        value = {key: item for key, item in value.items() if key != "$defs"}
        names = {name: _free(name, item, definitions) for name, item in own.items()}
        value = renamed(value, names)
        for name, item in own.items():
            definitions[names[name]] = item
        for name, item in own.items():
            definitions[names[name]] = _hoist(renamed(item, names), definitions)
    return {key: _hoist(item, definitions) for key, item in value.items()}


def _free(name: str, item: Any, definitions: dict[str, Any]) -> str:
    """A name under which no other definition stands."""
    number, found = 1, name
    while found in definitions and definitions[found] != item:
        number += 1
        found = f"{name}_{number}"
    return found


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The schema with references to other names."""
    if all(name == other for name, other in names.items()):
        return value
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: renamed(item, names) for key, item in value.items()}
    name = found.get("$ref")
    if isinstance(name, str) and name.startswith("#/$defs/"):
        inner = name.removeprefix("#/$defs/")
        found["$ref"] = f"#/$defs/{names.get(inner, inner)}"
    return found


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with its properties at the top, and without null."""
    found = alternatives(schema, schema)
    if len(found) != 1:
        return schema
    top = {key: item for key, item in schema.items() if key not in ("$ref", "anyOf", "oneOf")}
    top = {**top, **{key: item for key, item in found[0].items() if key != "$defs"}}
    definitions = top.pop("$defs", {})
    used = _used(top, definitions)
    return {**top, "$defs": used} if used else top


def _used(value: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The definitions that a schema needs."""
    found: dict[str, Any] = {}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            name = item.get("$ref")
            if isinstance(name, str):
                name = name.removeprefix("#/$defs/")
                if name in definitions and name not in found:
                    found[name] = definitions[name]
                    waiting.append(definitions[name])
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return {name: found[name] for name in definitions if name in found}
