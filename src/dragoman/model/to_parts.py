"""Converts what authors and clients pass as content to parts."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from dragoman.model.types import Artifact, Message, Part, WireStruct

W = TypeVar("W", bound=WireStruct)


def parts(value: Any) -> tuple[Part, ...]:
    """Convert a value to parts. Raises TypeError if it cannot be sent."""
    if isinstance(value, str):
        return (Part(text=value),)
    if isinstance(value, Part):
        return (valid(value),)
    if isinstance(value, Message | Artifact):
        return valid(value).parts
    if isinstance(value, bytes | bytearray | memoryview):
        return (Part(raw=bytes(value), media_type="application/octet-stream"),)
    if isinstance(value, list | tuple) and value and all(isinstance(v, Part) for v in value):
        return tuple(valid(part) for part in value)
    return (Part(data=plain(value)),)


def valid(value: W) -> W:
    """Return the value, or raise TypeError if the protocol does not allow it: constructors do not
    check."""
    try:
        return msgspec.convert(msgspec.to_builtins(value, builtin_types=(bytes,)), type(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"this {type(value).__name__} cannot be sent: {error}") from error


def plain(value: Any) -> Any:
    """Convert a dict, dataclass, pydantic model, msgspec struct, list or scalar to JSON."""
    try:
        if hasattr(value, "model_dump"):  # pydantic, without an import
            return value.model_dump(mode="json")
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_inner)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a value of type {_kind(value)} cannot be sent: {error}") from error


def whole(value: Any) -> Any:
    """Convert 2.0 to 2, also inside: protobuf writes every number as a double."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value


def _inner(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a value of type {_kind(value)} is not valid JSON")


def _kind(value: Any) -> str:
    return type(value).__name__
