"""A2A 1.0: our values are its objects, so this is little more than JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.dialects.protojson import convert as convert
from dragoman.dialects.protojson import decode as decode
from dragoman.dialects.protojson import decoder as decoder
from dragoman.dialects.protojson import parse as parse
from dragoman.events import RESUME, Entry, Reply
from dragoman.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

encode = msgspec.json.Encoder().encode


_NAMES: dict[type, bytes] = {
    TaskArtifactUpdateEvent: b"artifactUpdate",
    TaskStatusUpdateEvent: b"statusUpdate",
    Task: b"task",
}


def streamed(entry: Entry) -> bytes:
    """The entry as a `StreamResponse`, encoded once; empty if it is not for clients."""
    if entry.wire is None:
        entry.wire = response(entry.event)
    return entry.wire


def placed(entry: Entry, *, reset: bool = False) -> bytes:
    """The same with its place in the metadata, for readers that activated our extension."""
    event = entry.event
    place: dict[str, Any] = {"place": entry.number}
    if reset:
        place["reset"] = True
    if isinstance(event, Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent):
        return response(replace(event, metadata={**(event.metadata or {}), RESUME: place}))
    return streamed(entry)


def response(event: object) -> bytes:
    """An event as a `StreamResponse`; empty if it is not for clients."""
    name = _NAMES.get(type(event))
    if name is not None:
        wire = b'{"%b":%b}' % (name, encode(event))
    elif isinstance(event, Reply):
        wire = b'{"message":%b}' % encode(event.message)
    else:
        return b""
    if b"\xe2\x80" in wire or b"\xc2\x85" in wire:
        for mark, escape in _LINE_ENDS:
            wire = wire.replace(mark, escape)
    return wire


# Many readers of event streams take these for the end of a line, too.
_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
