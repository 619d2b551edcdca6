"""Counts the elements of a protobuf message without parsing it, because a parser would first create
an object for each of them."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from dragoman.model.errors import InvalidRequest

Fields: TypeAlias = "dict[int, Descriptor]"


def count(body: bytes, descriptor: Descriptor, limit: int) -> None:
    """Raise InvalidRequest if a message has more fields and list items than `limit`. It does not
    report malformed messages; the parser does."""
    place = found = 0
    open = [(_messages(descriptor), len(body))]
    try:
        while open:
            messages, end = open[-1]
            if place >= end:
                open.pop()
                continue
            found += 1
            if found > limit:
                raise InvalidRequest(
                    f"The message has more than {limit} elements; send large data as a file"
                )
            tag, place = _varint(body, place)
            kind = tag & 7
            if kind == 0:
                _, place = _varint(body, place)
            elif kind == 1:
                place += 8
            elif kind == 5:
                place += 4
            elif kind == 2:
                size, place = _varint(body, place)
                inner = messages.get(tag >> 3)
                if inner is None:
                    place += size
                else:
                    open.append((_messages(inner), place + size))
    except IndexError:
        return


def _varint(body: bytes, place: int) -> tuple[int, int]:
    byte = body[place]
    if byte < 128:
        return byte, place + 1
    found = shift = 0
    while byte >= 128:
        found |= (byte & 127) << shift
        shift += 7
        place += 1
        byte = body[place]
    return found | byte << shift, place + 1


@cache
def _messages(descriptor: Descriptor) -> Fields:
    """Return the fields that hold messages, by number."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.type == FieldDescriptor.TYPE_MESSAGE
    }
