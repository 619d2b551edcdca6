"""Converts the well-known protobuf types: Struct and Value to JSON values, Timestamp to text."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any

import msgspec

from dragoman.model import clock

LEVELS = 90
"""The maximum depth of a Struct in messages. Parsers stop at 100 levels, and the messages around a
Struct take a few. A nested object takes three levels, a nested list two."""

_EPOCH = datetime(1970, 1, 1)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", re.ASCII)
_SIZES = [bytes([number]) for number in range(128)]
_double = struct.Struct("<cd").pack


class Refused(Exception):
    """A value that protobuf can represent and JSON cannot."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path = ""
        """The path of the wrong field, such as `.message.parts[0].data`."""

    def within(self, place: str) -> Refused:
        """Prefix the path with that of the enclosing field."""
        self.path = place + self.path
        return self


# ---- bytes ---------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """Encode an integer of up to 64 bits as a varint, a negative one as two's complement."""
    if 0 <= number < 128:
        return _SIZES[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    found = []
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def framed(tag: bytes, body: bytes) -> bytes:
    """Encode a length-delimited field."""
    size = len(body)
    return tag + (_SIZES[size] if size < 128 else varint(size)) + body


def int32(number: int) -> int:
    """Return the number if it fits in 32 bits, else raise ValueError."""
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} does not fit in 32 bits")
    return number


# ---- JSON ----------------------------------------------------------------------------------


def read_struct(message: Any) -> dict[str, Any]:
    """Convert a Struct to a JSON object."""
    fields = message.fields
    return {key: read_value(fields[key]) for key in fields}


def read_value(message: Any) -> Any:
    """Convert a Value to a JSON value. Whole numbers become integers, as in a JSON document."""
    kind = message.WhichOneof("kind")
    if kind == "string_value":
        return message.string_value
    if kind == "number_value":
        number = message.number_value
        if number.is_integer() and -(2**53) < number < 2**53:
            return int(number)
        if not isfinite(number):
            raise Refused(f"{number} is not a valid JSON number")
        return number
    if kind == "bool_value":
        return message.bool_value
    if kind == "struct_value":
        return read_struct(message.struct_value)
    if kind == "list_value":
        return [read_value(item) for item in message.list_value.values]
    return None


def write_struct(value: Any, levels: int = LEVELS) -> bytes:
    """Encode a JSON object as a Struct."""
    if type(value) is not dict:
        value = msgspec.to_builtins(value, str_keys=True)
    if levels < 0:
        raise ValueError("nested too deeply")
    found = []
    for key, item in value.items():
        if not isinstance(key, str):
            return write_struct(msgspec.to_builtins(value, str_keys=True), levels)
        entry = framed(b"\x0a", key.encode()) + framed(b"\x12", write_value(item, levels - 3))
        found.append(framed(b"\x0a", entry))
    return b"".join(found)


def write_value(value: Any, levels: int = LEVELS) -> bytes:
    """Encode a JSON value as a Value. Other types become what msgspec writes for them in JSON: NaN
    becomes null, a UUID text."""
    kind = type(value)
    if kind is str:
        return framed(b"\x1a", value.encode())
    if kind is bool:
        return b"\x20\x01" if value else b"\x20\x00"
    if kind is int or (kind is float and isfinite(value)):
        return _double(b"\x11", float(value))
    if value is None or kind is float:
        return b"\x08\x00"
    if kind is dict:
        return framed(b"\x2a", write_struct(value, levels))
    if kind is list or kind is tuple:
        if levels < 0:
            raise ValueError("nested too deeply")
        items = [framed(b"\x0a", write_value(item, levels - 2)) for item in value]
        return framed(b"\x32", b"".join(items))
    plain = msgspec.to_builtins(value, str_keys=True)
    if type(plain) is kind:
        raise TypeError(f"{kind.__name__} is not valid JSON")
    return write_value(plain, levels)


# ---- time ----------------------------------------------------------------------------------


def read_time(message: Any) -> str:
    """Convert a Timestamp to text in the form of `clock.now`, with nine digits instead of three
    only if the time needs them."""
    nanos = message.nanos
    if not 0 <= nanos < 1_000_000_000:
        raise Refused("time is out of range")
    milli, rest = divmod(nanos, 1_000_000)
    return f"{_moment(message.seconds)}.{f'{nanos:09d}' if rest else f'{milli:03d}'}Z"


def write_time(text: str) -> bytes:
    """Encode an RFC 3339 time as a Timestamp."""
    match = _TIME.fullmatch(text) or _TIME.fullmatch(clock.utc(text))
    assert match is not None
    return _seconds(match[1]) + _nanos(match[2])


# Many events share a second, and times have milliseconds, so these caches hit often.
@lru_cache(maxsize=256)
def _moment(seconds: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        raise Refused("time is out of range") from None


@lru_cache(maxsize=256)
def _seconds(moment: str) -> bytes:
    return b"\x08" + varint(int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()))


@lru_cache(maxsize=1024)
def _nanos(fraction: str | None) -> bytes:
    return b"\x10" + varint(int(fraction.ljust(9, "0"))) if fraction else b""


READERS: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.Struct": read_struct,
    "google.protobuf.Value": read_value,
    "google.protobuf.Timestamp": read_time,
}
WRITERS: dict[str, Callable[[Any], bytes]] = {
    "google.protobuf.Struct": write_struct,
    "google.protobuf.Value": write_value,
    "google.protobuf.Timestamp": write_time,
}
