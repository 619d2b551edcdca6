"""Builds the functions that read a struct from a protobuf message and write it as one. Each is
built once for a pair of struct and message, and cached."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, get_args

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo

from dragoman.dialects.protobuf import wellknown
from dragoman.dialects.protobuf.wellknown import Refused, framed, varint

Read: TypeAlias = Callable[[Any], Any]
Write: TypeAlias = Callable[[Any], bytes]


# ---- reading -------------------------------------------------------------------------------


@cache
def reader(kind: type[Struct], descriptor: Descriptor) -> Read:
    """Return the function that turns a message into a document for `msgspec.convert`."""
    table: dict[FieldDescriptor, tuple[str, Read | None]] = {}
    # Protobuf omits empty fields, so required fields get their empty value first.
    given: dict[str, Any] = {}
    for item, field in _matched(kind, descriptor):
        table[field] = item.encode_name, _change(field, item.type)
        if item.required and not field.has_presence and field.enum_type is None:
            empty = {} if _entry(field) else [] if _repeated(field) else field.default_value
            if _accepted(empty, item.type):
                given[item.encode_name] = empty
    unknown = [field for field in descriptor.fields if field not in table]
    table.update((field, ("", None)) for field in unknown)

    def read(message: Any) -> dict[str, Any]:
        found = given.copy()
        name = ""
        try:
            for field, value in message.ListFields():
                name, change = table[field]
                found[name] = value if change is None else change(value)
        except Refused as error:
            raise error.within(f".{name}") from None
        if unknown:
            found.pop("", None)
        return found

    return read


def _change(field: FieldDescriptor, kind: Any) -> Read | None:
    """Return the function that converts a field's value; None if it needs no conversion."""
    if entry := _entry(field):
        inner = _change(entry.fields_by_name["value"], kind)
        return _values(inner) if inner else dict
    change: Read | None = None
    if field.enum_type is not None:
        change = _name({value.number: value.name for value in field.enum_type.values})
    elif field.message_type is not None:
        change = wellknown.READERS.get(field.message_type.full_name) or reader(
            _struct(kind, field), field.message_type
        )
    if not _repeated(field):
        return change
    return _each(change) if change else list


def _name(names: dict[int, str]) -> Read:
    # msgspec rejects a number without a name.
    return lambda number: names.get(number) or str(number)


def _each(change: Read) -> Read:
    def changed(items: Any) -> list[Any]:
        found: list[Any] = []
        try:
            for item in items:
                found.append(change(item))
        except Refused as error:
            raise error.within(f"[{len(found)}]") from None
        return found

    return changed


def _values(change: Read) -> Read:
    return lambda items: {key: change(items[key]) for key in items}


# ---- writing -------------------------------------------------------------------------------


@cache
def writer(kind: type[Struct], descriptor: Descriptor) -> Write:
    """Return the function that encodes a struct as a message."""
    plan = [
        (item.name, item.default, _put(field, item)) for item, field in _matched(kind, descriptor)
    ]

    def write(value: Any) -> bytes:
        if type(value) is not kind:
            raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
        found = b""
        for name, default, put in plan:
            item = getattr(value, name)
            # Compared by identity, for speed: a default that is written anyway has no effect.
            if item is not default:
                found += put(item)
        return found

    return write


def _put(field: FieldDescriptor, item: FieldInfo) -> Write:
    """Return the function that encodes a field with its tag."""
    if entry := _entry(field):
        tag = _tag(field)
        key = _single(entry.fields_by_name["key"], str)
        value = _single(entry.fields_by_name["value"], item.type)
        return lambda items: b"".join(
            [framed(tag, key(name) + value(inner)) for name, inner in items.items()]
        )
    put = _single(field, item.type)
    if _repeated(field):
        return lambda items: b"".join(map(put, items))
    if item.default_factory is not NODEFAULT:  # each value is new, so identity does not help
        return lambda value: put(value) if value else b""
    return put


def _single(field: FieldDescriptor, kind: Any) -> Write:
    if field.message_type is not None:
        write = wellknown.WRITERS.get(field.message_type.full_name) or writer(
            _struct(kind, field), field.message_type
        )
        return _framed(field, write)
    if field.type == field.TYPE_STRING:
        return _framed(field, str.encode)
    if field.type == field.TYPE_BYTES:
        return _framed(field, b"".__add__)  # raises TypeError for other types
    tag = _tag(field)
    if field.enum_type is not None:
        codes = {value.name: tag + varint(value.number) for value in field.enum_type.values}
        return lambda value: codes[getattr(value, "_value_", value)]
    if field.type == field.TYPE_BOOL:
        return lambda value: tag + (b"\1" if value else b"\0")
    if field.type == field.TYPE_INT32:
        return lambda value: tag + varint(wellknown.int32(value))
    raise TypeError(f"{field.full_name} is of a type that no A2A message has")


def _framed(field: FieldDescriptor, write: Write) -> Write:
    tag = _tag(field)
    heads = [tag + varint(size) for size in range(128)]

    def put(value: Any) -> bytes:
        body = write(value)
        size = len(body)
        return heads[size] + body if size < 128 else tag + varint(size) + body

    return put


def _tag(field: FieldDescriptor) -> bytes:
    scalar = field.type in (field.TYPE_BOOL, field.TYPE_INT32, field.TYPE_ENUM)
    return varint(field.number << 3 | (0 if scalar else 2))


# ---- both ----------------------------------------------------------------------------------


def _matched(kind: type[Struct], descriptor: Descriptor) -> list[tuple[FieldInfo, FieldDescriptor]]:
    """Pair each field of a struct with the field of the message."""
    by_name = {field.json_name: field for field in descriptor.fields}
    try:
        return [(item, by_name[item.encode_name]) for item in msgspec.structs.fields(kind)]
    except KeyError as error:
        raise TypeError(f"{descriptor.full_name} has no field {error}") from None


def _struct(kind: Any, field: FieldDescriptor) -> type[Struct]:
    """Return the struct in an annotation such as `tuple[Part, ...]`."""
    if found := _structs(kind):
        return found[0]
    raise TypeError(f"{field.full_name} is a message, and {kind} is no struct")


def _structs(kind: Any) -> list[type[Struct]]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return [kind]
    return [found for inner in get_args(kind) for found in _structs(inner)]


def _accepted(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _repeated(field: FieldDescriptor) -> bool:
    if hasattr(field, "is_repeated"):  # older versions of protobuf do not have it
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def _entry(field: FieldDescriptor) -> Descriptor | None:
    """Return the message type of the entries if the field is a map, else None."""
    entry = field.message_type
    return entry if entry is not None and entry.GetOptions().map_entry else None
