"""Decodes ProtoJSON, which allows several spellings of the same value.

A reader must accept snake_case names, enum values by number, base64 of either alphabet with or
without padding, integers as strings, times in any zone, and `null` as absent. msgspec is strict, so
`decode` tries msgspec first, and normalises the document only if that fails.
"""

from __future__ import annotations

import base64
import binascii
import re
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import UnsetType

from dragoman.model import clock
from dragoman.model.errors import InvalidParams, InvalidRequest, ParseError
from dragoman.model.types import ENUM_NUMBERS, WireStruct

W = TypeVar("W", bound=WireStruct)
Tidy = Callable[[Any], Any]

ABSENT = object()
MOST = 10_000
"""The maximum number of objects in one list that are normalised, because each of them is slow."""
_WHERE = re.compile(r"(?s)(.*?)(?: - at `\$(.*)`)?")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_ZONELESS = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?", re.ASCII)
_SNAKE = re.compile(r"(?<=[a-z0-9])([A-Z])")


def decode(kind: type[W], body: bytes) -> W:
    """Decode a JSON document. Raises InvalidParams, which names the wrong field."""
    try:
        value: W = decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return convert(kind, parse(body))
    return value


def parse(body: bytes) -> Any:
    """Parse any JSON document. Raises ParseError."""
    try:
        return _any.decode(body)
    except UnicodeDecodeError as error:
        raise ParseError(f"Body is not valid UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise ParseError("Body is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise ParseError(f"Body is not valid JSON: {error}") from None


def convert(kind: type[W], document: Any, *, text: bool = False) -> W:
    """Decode a parsed document. With `text`, booleans may be text, as in a query."""
    try:
        return msgspec.convert(tidier(kind, text)(document), kind)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except RecursionError:
        raise ParseError("Body is nested too deeply") from None


def invalid(error: msgspec.ValidationError) -> InvalidParams:
    """Convert an error of msgspec to InvalidParams."""
    field, what = explain(error)
    return InvalidParams.at(field.removeprefix(".") or "params", what)


def explain(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return the path of the wrong field, such as `.parts[0].text`, and what is wrong with it."""
    match = _WHERE.fullmatch(str(error))
    what, where = (match[1], match[2] or "") if match else (str(error), "")
    if missing := _MISSING.fullmatch(what):
        return f"{where}.{missing[1]}", "is required"
    text = what[:1].lower() + what[1:].replace("`", "").replace(" | null", "")
    if text == "expected str of length >= 1":
        text = "must not be empty"
    elif text == "expected array of length >= 1":
        text = "must have at least one element"
    elif "matching regex" in text:
        text = "expected an RFC 3339 time such as 2026-01-31T12:00:00Z"
    return where, text


_any = msgspec.json.Decoder()


@cache
def decoder(kind: type[W]) -> msgspec.json.Decoder[W]:
    """Return the strict decoder of a type."""
    return msgspec.json.Decoder(kind)


def escape_line_ends(wire: bytes) -> bytes:
    """Escape the characters that many readers of event streams take for the end of a line."""
    if b"\xe2\x80" in wire or b"\xc2\x85" in wire:
        for mark, escape in _LINE_ENDS:
            wire = wire.replace(mark, escape)
    return wire


_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


# ---- normalisation -------------------------------------------------------------------------


@cache
def tidier(kind: Any, text: bool = False) -> Tidy:
    """Return the function that normalises a document of this type. It leaves values that it does
    not recognise, so that msgspec reports them. It raises InvalidRequest only for long lists."""
    if get_origin(kind) is Annotated:
        for note in kind.__metadata__:
            if extra := getattr(note, "extra", None):
                return _lenient_time if extra["timestamp"] == "lenient" else _time
        return tidier(kind.__origin__, text)
    if get_origin(kind) in (Union, types.UnionType):
        inner = [a for a in get_args(kind) if a not in (type(None), UnsetType)]
        return tidier(inner[0], text) if len(inner) == 1 else _same
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        most = MOST if isinstance(item, type) and issubclass(item, WireStruct) else 0
        return _each(tidier(item, text), most)
    if get_origin(kind) is dict:
        return _values(tidier(get_args(kind)[1], text))
    if isinstance(kind, type) and issubclass(kind, WireStruct):
        return _struct(kind, text)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if kind is bool and text:
        return lambda value: {"true": True, "false": False}.get(value, value)
    return {bytes: _base64, int: _integer}.get(kind, _same)


def _struct(kind: type[WireStruct], text: bool) -> Tidy:
    names: dict[str, tuple[str, Any]] = {}
    for item in msgspec.structs.fields(kind):
        names[item.encode_name] = names[_SNAKE.sub(r"_\1", item.encode_name).lower()] = (
            item.encode_name,
            item.type,
        )

    def tidy(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        found = {}
        for key, item in value.items():
            name, inner = names.get(key, ("", None))
            if not name:
                continue
            if item is None and not _nullable(inner):
                continue
            if (item := tidier(inner, text)(item)) is not ABSENT:
                found[name] = item
        return found

    return tidy


def _nullable(kind: Any) -> bool:
    return kind is Any or Any in get_args(kind)


def _each(tidy: Tidy, most: int) -> Tidy:
    def each(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if most and len(value) > most:
            raise InvalidRequest(f"A list has more than {most} objects")
        return [tidy(item) for item in value]

    return each


def _values(tidy: Tidy) -> Tidy:
    return lambda value: (
        {key: tidy(item) for key, item in value.items()} if isinstance(value, dict) else value
    )


def _enum(kind: type[Enum]) -> Tidy:
    known = next(iter(kind))
    unspecified = known.value.removesuffix(known.name) + "UNSPECIFIED"
    numbers = ENUM_NUMBERS.get(kind, {})

    def tidy(value: Any) -> Any:
        if value == unspecified:
            return ABSENT
        number = _integer(value)
        if type(number) is int:
            if number == 0:
                return ABSENT
            if number in numbers:
                return numbers[number].value
        return value

    return tidy


def _base64(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return value


def _integer(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _time(value: Any) -> Any:
    try:
        return clock.utc(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _lenient_time(value: Any) -> Any:
    return ABSENT if isinstance(value, str) and _ZONELESS.fullmatch(value) else _time(value)


def _same(value: Any) -> Any:
    return value
