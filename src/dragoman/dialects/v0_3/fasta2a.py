"""The dialect of fasta2a's client, which mixes 0.3 and 1.0."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from dragoman.dialects import Dialect, Received, client_quirks, protojson
from dragoman.dialects.v0_3 import common, rpc
from dragoman.dialects.v0_3.rpc import CHUNK, MESSAGE, TASK, UPDATE, Part
from dragoman.model import types
from dragoman.model.caller import Call
from dragoman.model.errors import A2AError
from dragoman.model.events import Reply
from dragoman.model.types import WireStruct

W = TypeVar("W", bound=WireStruct)

_encode = msgspec.json.Encoder().encode


class Mixed:
    """For fasta2a's client. It uses the methods of 0.3 with the objects of 1.0, sends no `kind`,
    and expects wrapped responses. The responses contain the fields of both versions."""

    FORM = "0.3 mixed"

    def decode(self, kind: type[W], body: bytes) -> W:
        """See `Dialect.decode`."""
        return rpc.decode(kind, body)

    def encode(self, answer: Any) -> bytes:
        """See `Dialect.encode`."""
        if not isinstance(answer, types.SendMessageResponse):
            return rpc.encode(answer)
        return _both("task" if answer.message is None else "message", rpc.old(answer))

    def response(self, event: Any, last: bool = False) -> bytes:
        """See `Dialect.response`."""
        if isinstance(event, types.TaskArtifactUpdateEvent):
            wire = _both("artifactUpdate", CHUNK.old(event))
        elif isinstance(event, types.TaskStatusUpdateEvent):
            wire = _both("statusUpdate", UPDATE.old(event, final=last))
        elif isinstance(event, types.Task):
            wire = _both("task", TASK.old(event))
        elif isinstance(event, Reply):
            wire = _both("message", MESSAGE.old(event.message))
        else:
            return b""
        return protojson.escape_line_ends(wire)

    def problem(self, error: A2AError) -> dict[str, Any]:
        """See `Dialect.problem`."""
        return rpc.problem(error)


def _both(name: str, value: Any) -> bytes:
    """Encode an object of 0.3, and nest a copy of it under `name`, in which files also have the
    fields of 1.0."""
    inner = _encode(common.mapped(value, Part, _newer))
    return b'%b,"%b":%b}' % (_encode(value)[:-1], name.encode(), inner)


def _newer(part: Part) -> Part:
    file = part.file
    if file is None:
        return part
    names = {"filename": file.name, "media_type": file.mime_type}
    return msgspec.structs.replace(part, raw=file.raw, url=file.uri, **names)


MIXED = Mixed()


def receive(_: str, kind: type[WireStruct], params: bytes, call: Call) -> Received:
    """Decode a request in 0.3 or 0.2, and return the dialect of the response, too: `MIXED` for
    fasta2a's client."""
    mixed = kind is types.SendMessageRequest and client_quirks.is_fasta2a(params)
    dialect: Dialect = MIXED if mixed else rpc
    return dialect, dialect.decode(kind, params), call
