"""A mixture of 0.3 and 1.0, which fasta2a's client speaks."""

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
    """For fasta2a's client, which uses the methods of 0.3 with the objects of 1.0, and wants
    answers wrapped. It says no `kind`; what it is answered is both."""

    FORM = "0.3 mixed"

    def decode(self, kind: type[W], body: bytes) -> W:
        """What is asked."""
        return rpc.decode(kind, body)

    def encode(self, answer: Any) -> bytes:
        """What is answered."""
        if not isinstance(answer, types.SendMessageResponse):
            return rpc.encode(answer)
        return _both("task" if answer.message is None else "message", rpc.old(answer))

    def response(self, event: Any, last: bool = False) -> bytes:
        """An event of a stream; empty if it is not for clients."""
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
        return protojson.unbroken(wire)

    def problem(self, error: A2AError) -> dict[str, Any]:
        """An error."""
        return rpc.problem(error)


def _both(name: str, value: Any) -> bytes:
    """The object, with itself inside, where files are also what they are in 1.0."""
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
    """A request in 0.3 or 0.2, and how it is answered: to fasta2a's client, in the mixture."""
    mixes = kind is types.SendMessageRequest and client_quirks.is_fasta2a(params)
    dialect: Dialect = MIXED if mixes else rpc
    return dialect, dialect.decode(kind, params), call
