"""A2A 1.0. The types of `model` are its objects, so this module only encodes and decodes JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.dialects.protojson import convert as convert
from dragoman.dialects.protojson import decode as decode
from dragoman.dialects.protojson import decoder as decoder
from dragoman.dialects.protojson import escape_line_ends
from dragoman.dialects.protojson import parse as parse
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
    """Return the entry as a `StreamResponse`, encoded once; empty if it is not for clients."""
    if entry.wire is None:
        entry.wire = response(entry.event)
    return entry.wire


def response(event: object, last: bool = False) -> bytes:
    """Return an event as a `StreamResponse`; empty if it is not for clients."""
    name = _NAMES.get(type(event))
    if name is not None:
        wire = b'{"%b":%b}' % (name, encode(event))
    elif isinstance(event, Reply):
        wire = b'{"message":%b}' % encode(event.message)
    else:
        return b""
    return escape_line_ends(wire)


def with_place(entry: Entry) -> bytes | None:
    """Return the entry as a `StreamResponse` with its place in the log, made from the cached bytes.
    Returns None if the event has metadata, because the place must be merged into them."""
    event, wire = entry.event, streamed(entry)
    if not isinstance(event, Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent):
        return wire
    if event.metadata is not None or not wire.endswith(b"}}"):
        return None
    return b'%b,"metadata":{"%b":{"place":%d}}}}' % (wire[:-2], _RESUME, entry.number)


def problem(error: A2AError) -> dict[str, Any]:
    """Return the error object of a JSON-RPC response."""
    return error.to_rpc()
