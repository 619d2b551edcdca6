"""Encodes and decodes gRPC messages in the proto packages of 1.0 and 0.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from dragoman.dialects import Form
from dragoman.dialects.protobuf import V0_3, V1, Schema, words
from dragoman.dialects.v0_3 import proto as v0_3
from dragoman.model.errors import A2AError, InvalidAgentResponse
from dragoman.model.events import Reply
from dragoman.model.operations import OPERATIONS, Operation
from dragoman.model.types import (
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
    WireStruct,
)

W = TypeVar("W", bound=WireStruct)


class PackageCodec(Form, Protocol):
    """Encodes and decodes the messages of one proto package, for server and client."""

    @property
    def version(self) -> str:
        """The protocol version."""

    @property
    def service(self) -> str:
        """The full name of the gRPC service."""

    @property
    def methods(self) -> Mapping[str, Operation]:
        """The operations by their method names."""

    def decode(self, kind: type[W], body: bytes, elements: int = 0) -> W:
        """Decode a request, for the server. Raises InvalidParams, which names the wrong field, and
        InvalidRequest if it has more than `elements` elements; 0 means no limit."""

    def words(self, error: A2AError) -> str:
        """Return the text of an error."""

    def encode_request(self, request: WireStruct) -> bytes:
        """Encode a request, for the client."""

    def decode_response(self, kind: type[W], body: bytes) -> W:
        """Decode a response, for the client."""


class V1Codec:
    """The package of 1.0. The types of `model` are its messages."""

    FORM = "1.0 protobuf"
    version = "1.0"
    service = "lf.a2a.v1.A2AService"
    methods: ClassVar = {operation.name: operation for operation in OPERATIONS}

    def decode(self, kind: type[W], body: bytes, elements: int = 0) -> W:
        """See `PackageCodec.decode`."""
        return V1.decode(kind, body, elements=elements)

    def encode(self, answer: Any) -> bytes:
        """See `PackageCodec.encode`."""
        return b"" if answer is None else _encoded(V1, answer)

    def response(self, event: Any, last: bool = False) -> bytes:
        """See `PackageCodec.response`."""
        found = _event(event)
        return b"" if found is None else _encoded(V1, found)

    def words(self, error: A2AError) -> str:
        """See `PackageCodec.words`."""
        return words(error)

    def encode_request(self, request: WireStruct) -> bytes:
        """See `PackageCodec.encode_request`."""
        return V1.encode(request)

    def decode_response(self, kind: type[W], body: bytes) -> W:
        """See `PackageCodec.decode_response`."""
        return V1.decode(kind, body)


class V03Codec:
    """The package of 0.3, whose messages are the structs of `v0_3.proto_structs`."""

    version = "0.3"
    service = "a2a.v1.A2AService"
    methods: ClassVar = {
        operation.legacy.name: operation for operation in OPERATIONS if operation.legacy.name
    }

    def __init__(self, form: str, files: v0_3.FileEncoding = v0_3.BASE64) -> None:
        self.FORM = form
        self._files = files

    def decode(self, kind: type[W], body: bytes, elements: int = 0) -> W:
        """See `PackageCodec.decode`."""
        shape, new, _ = v0_3.REQUESTS[kind]
        found: W = new(self._files.read(V0_3.decode(shape, body, elements=elements)))
        return found

    def encode(self, answer: Any) -> bytes:
        """See `PackageCodec.encode`."""
        return b"" if answer is None else self._written(v0_3.RESPONSES[type(answer)][2](answer))

    def response(self, event: Any, last: bool = False) -> bytes:
        """See `PackageCodec.response`."""
        found = v0_3.event(event, last)
        return b"" if found is None else self._written(found)

    def _written(self, value: Any) -> bytes:
        return _encoded(V0_3, self._files.write(value))

    def words(self, error: A2AError) -> str:
        """See `PackageCodec.words`."""
        return f"{error.legacy}: {words(error)}"

    def encode_request(self, request: WireStruct) -> bytes:
        """See `PackageCodec.encode_request`."""
        return V0_3.encode(v0_3.REQUESTS[type(request)][2](request))

    def decode_response(self, kind: type[W], body: bytes) -> W:
        """See `PackageCodec.decode_response`."""
        shape, new, _ = v0_3.RESPONSES[kind]
        found: W = new(V0_3.decode(shape, body))
        return found


def _encoded(schema: Schema, value: WireStruct) -> bytes:
    try:
        return schema.encode(value)
    except ValueError as error:  # protobuf allows less than JSON, such as less nesting
        raise InvalidAgentResponse(str(error)) from error


def _event(event: Any) -> StreamResponse | None:
    """Return an event as a StreamResponse; None if it is not for clients."""
    if isinstance(event, TaskArtifactUpdateEvent):
        return StreamResponse(artifact_update=event)
    if isinstance(event, TaskStatusUpdateEvent):
        return StreamResponse(status_update=event)
    if isinstance(event, Task):
        return StreamResponse(task=event)
    if isinstance(event, Reply):
        return StreamResponse(message=event.message)
    return None


OLDER = V03Codec("0.3 protobuf")
RAW_FILES = V03Codec("0.3 protobuf bare", v0_3.RAW)
"""For clients that write the bytes of a file, not base64 text."""
PACKAGES: tuple[PackageCodec, ...] = (V1Codec(), OLDER)
BY_VERSION: dict[str, PackageCodec] = {package.version: package for package in PACKAGES}
