"""Documents in which required fields are missing: ProtoJSON leaves out what is empty."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from dragoman.dialects.protojson import explain, tidier
from dragoman.model.errors import InvalidParams, ParseError
from dragoman.model.types import WireStruct

W = TypeVar("W", bound=WireStruct)


def partial(kind: type[W], document: Any) -> tuple[W, list[str]]:
    """The value in a parsed document, with an empty value for each required field that it lacks,
    and the paths of these fields; InvalidParams names a field that is of a wrong type."""
    missing: list[str] = []
    try:
        found: W = _made(kind, tidier(kind)(document), "", missing)
    except RecursionError:
        raise ParseError("Body is nested too deeply") from None
    return found, [path.removeprefix(".") for path in missing]


def _made(kind: Any, value: Any, path: str, missing: list[str]) -> Any:
    origin = get_origin(kind)
    if origin is Annotated:
        if getattr(kind.__metadata__[0], "min_length", None) is None:
            return _checked(kind, value, path)
        if not value and isinstance(value, str | list):
            missing.append(path)
        return _made(kind.__origin__, value, path, missing)
    if origin in (Union, types.UnionType):
        inner = [each for each in get_args(kind) if each is not type(None)]
        return None if value is None else _made(inner[0], value, path, missing)
    if origin is tuple:
        item = get_args(kind)[0]
        items = _checked(list, value, path)
        return tuple(_made(item, each, f"{path}[{n}]", missing) for n, each in enumerate(items))
    if origin is dict:
        item = get_args(kind)[1]
        pairs = _checked(dict, value, path).items()
        return {name: _made(item, each, at(path, name), missing) for name, each in pairs}
    if isinstance(kind, type) and issubclass(kind, WireStruct):
        return _struct(kind, value, path, missing)
    return _checked(kind, value, path)


def _struct(kind: type[WireStruct], value: Any, path: str, missing: list[str]) -> WireStruct:
    given: Mapping[str, Any] = _checked(dict, value, path)
    found: dict[str, Any] = {}
    for item in msgspec.structs.fields(kind):
        place = f"{path}.{item.encode_name}"
        if item.encode_name in given:
            found[item.name] = _made(item.type, given[item.encode_name], place, missing)
        elif item.required:
            missing.append(place)
            found[item.name] = _empty(item.type)
    return kind(**found)


def _empty(kind: Any) -> Any:
    """What a field of this type holds if it holds nothing."""
    bare = kind.__origin__ if get_origin(kind) is Annotated else kind
    if isinstance(bare, type) and issubclass(bare, WireStruct):
        return _made(bare, {}, "", [])
    return (get_origin(bare) or bare)()


def _checked(kind: Any, value: Any, path: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        where, what = explain(error)
        raise InvalidParams.at((path + where).removeprefix(".") or "params", what) from None


def at(path: str, name: str) -> str:
    """The path of an entry of the map at this path."""
    word = re.fullmatch(r"[\w-]+", name, re.ASCII)
    return f"{path}.{name}" if word else f"{path}[{json.dumps(name)}]"
