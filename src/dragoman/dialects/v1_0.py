"""A2A 1.0: our values are its objects, so this is little more than JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.dialects.protojson import convert as convert
from dragoman.dialects.protojson import decode as decode
from dragoman.dialects.protojson import parse as parse
from dragoman.events import RESUME, Entry, Reply
from dragoman.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

encode = msgspec.json.Encoder().encode


def streamed(entry: Entry) -> bytes | None:
    """The entry as a `StreamResponse`, encoded once; None if it is not for clients."""
    if entry.wire is None:
        entry.wire = _response(entry.event)
    return entry.wire or None


def placed(entry: Entry, *, reset: bool = False) -> bytes | None:
    """The same with its place in the metadata, for readers that activated our extension."""
    event = entry.event
    place: dict[str, Any] = {"place": entry.number}
    if reset:
        place["reset"] = True
    if isinstance(event, Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent):
        return _response(replace(event, metadata={**(event.metadata or {}), RESUME: place}))
    return streamed(entry)


def _response(event: object) -> bytes:
    match event:
        case TaskArtifactUpdateEvent():
            return b'{"artifactUpdate":%b}' % encode(event)
        case TaskStatusUpdateEvent():
            return b'{"statusUpdate":%b}' % encode(event)
        case Task():
            return b'{"task":%b}' % encode(event)
        case Reply(message=message):
            return b'{"message":%b}' % encode(message)
        case _:
            return b""
