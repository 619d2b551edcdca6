"""A2A 1.0: our values are its objects, so this is little more than JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.dialects.protojson import convert as convert
from dragoman.dialects.protojson import decode as decode
from dragoman.dialects.protojson import decoder as decoder
from dragoman.dialects.protojson import parse as parse
from dragoman.dialects.protojson import unbroken
from dragoman.model.errors import A2AError
from dragoman.model.events import RESUME, Entry, Reply
from dragoman.model.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

FORM = "1.0"

encode = msgspec.json.Encoder().encode


_RESUME = RESUME.encode()
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


def response(event: object, last: bool = False) -> bytes:
    """An event as a `StreamResponse`; empty if it is not for clients."""
    name = _NAMES.get(type(event))
    if name is not None:
        wire = b'{"%b":%b}' % (name, encode(event))
    elif isinstance(event, Reply):
        wire = b'{"message":%b}' % encode(event.message)
    else:
        return b""
    return unbroken(wire)


def with_place(entry: Entry) -> bytes | None:
    """The entry as a `StreamResponse` that tells its place, made of the bytes that all readers
    share; None if it has metadata, which must be encoded with the place."""
    event, wire = entry.event, streamed(entry)
    if not isinstance(event, Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent):
        return wire
    if event.metadata is not None or not wire.endswith(b"}}"):
        return None
    return b'%b,"metadata":{"%b":{"place":%d}}}}' % (wire[:-2], _RESUME, entry.number)


def problem(error: A2AError) -> dict[str, Any]:
    """The error of a JSON-RPC answer."""
    return error.to_rpc()
