"""gRPC messages to operations and back, in the packages of 1.0 and 0.3."""

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
    """What the gRPC bindings need of a package."""

    @property
    def version(self) -> str:
        """The version of the protocol."""

    @property
    def service(self) -> str:
        """The service's full name."""

    @property
    def methods(self) -> Mapping[str, Operation]:
        """The operations by the names that the service has for them."""

    def decode(self, kind: type[W], body: bytes, elements: int = 0) -> W:
        """What is asked; InvalidParams names the field that is wrong. InvalidRequest if it has
        more than so many elements, where that is given."""

    def words(self, error: A2AError) -> str:
        """The message of an error."""

    def ask(self, request: WireStruct) -> bytes:
        """What is asked, by a client."""

    def told(self, kind: type[W], body: bytes) -> W:
        """What was answered, to a client."""


class V1Codec:
    """1.0: our values are its messages."""

    FORM = "1.0 protobuf"
    version = "1.0"
    service = "lf.a2a.v1.A2AService"
    methods: ClassVar = {operation.name: operation for operation in OPERATIONS}

    def decode(self, kind: type[W], body: bytes, elements: int = 0) -> W:
        """See `PackageCodec.decode`."""
        return V1.decode(kind, body, elements=elements)

    def encode(self, answer: Any) -> bytes:
        """See `PackageCodec.encode`."""
        return b"" if answer is None else _answered(V1, answer)

    def response(self, event: Any, last: bool = False) -> bytes:
        """See `PackageCodec.response`."""
        found = _event(event)
        return b"" if found is None else _answered(V1, found)

    def words(self, error: A2AError) -> str:
        """See `PackageCodec.words`."""
        return words(error)

    def ask(self, request: WireStruct) -> bytes:
        """See `PackageCodec.ask`."""
        return V1.encode(request)

    def told(self, kind: type[W], body: bytes) -> W:
        """See `PackageCodec.told`."""
        return V1.decode(kind, body)


class V03Codec:
    """0.3, by way of its proto's objects."""

    version = "0.3"
    service = "a2a.v1.A2AService"
    methods: ClassVar = {
        operation.former.name: operation for operation in OPERATIONS if operation.former.name
    }

    def __init__(self, form: str, accent: v0_3.Accent = v0_3.TEXT) -> None:
        self.FORM = form
        self._accent = accent

    def decode(self, kind: type[W], body: bytes, elements: int = 0) -> W:
        """See `PackageCodec.decode`."""
        shape, new, _ = v0_3.ASKED[kind]
        found: W = new(self._accent.heard(V0_3.decode(shape, body, elements=elements)))
        return found

    def encode(self, answer: Any) -> bytes:
        """See `PackageCodec.encode`."""
        return b"" if answer is None else self._written(v0_3.TOLD[type(answer)][2](answer))

    def response(self, event: Any, last: bool = False) -> bytes:
        """See `PackageCodec.response`."""
        found = v0_3.event(event, last)
        return b"" if found is None else self._written(found)

    def _written(self, value: Any) -> bytes:
        return _answered(V0_3, self._accent.said(value))

    def words(self, error: A2AError) -> str:
        """See `PackageCodec.words`."""
        return f"{error.former}: {words(error)}"

    def ask(self, request: WireStruct) -> bytes:
        """See `PackageCodec.ask`."""
        return V0_3.encode(v0_3.ASKED[type(request)][2](request))

    def told(self, kind: type[W], body: bytes) -> W:
        """See `PackageCodec.told`."""
        shape, new, _ = v0_3.TOLD[kind]
        found: W = new(V0_3.decode(shape, body))
        return found


def _answered(schema: Schema, value: WireStruct) -> bytes:
    try:
        return schema.encode(value)
    except ValueError as error:  # JSON carries more: deeper nesting, for one
        raise InvalidAgentResponse(str(error)) from error


def _event(event: Any) -> StreamResponse | None:
    """An event as one of a stream; None if it is not for clients."""
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
BARE = V03Codec("0.3 protobuf bare", v0_3.NAKED)
"""For those whose files are bare."""
PACKAGES: tuple[PackageCodec, ...] = (V1Codec(), OLDER)
BY_VERSION: dict[str, PackageCodec] = {package.version: package for package in PACKAGES}
