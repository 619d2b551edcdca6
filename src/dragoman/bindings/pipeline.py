"""The steps of one request, in the same order for every binding: route, caller, read, version,
decode, limits, operate, encode, send or fail. Each binding is a codec that implements the steps
that depend on its format."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeAlias

from dragoman.bindings.agent_endpoint import ANONYMOUS, Endpoint
from dragoman.bindings.http_request import Gone, RequestInfo
from dragoman.dialects import versions
from dragoman.model.caller import Call
from dragoman.model.errors import A2AError, InternalError, TaskNotFound
from dragoman.model.operations import Operation
from dragoman.model.types import WireStruct
from dragoman.security.byte_budget import SMALL
from dragoman.server.reader import LogStream
from dragoman.telemetry.logs import logger

Decoded: TypeAlias = tuple[WireStruct, Call]


class Codec(Protocol):
    """Reads one request of a binding and writes its response."""

    operation: Operation
    """The operation that the request calls. `route` or `open` sets it."""
    versions: tuple[str, ...]
    """The versions that the request may use, most likely first."""
    other_version: str
    """A second version to decode the request in, if the task that it names does not exist."""

    def route(self) -> bool:
        """Find the operation by the path and headers. Returns False if the body names it."""

    def read(self) -> Awaitable[bytes]:
        """Read the body."""

    def open(self, body: bytes) -> None:
        """Store the body, and find the operation in it if `route` did not."""

    def decode(self, call: Call) -> Decoded | Awaitable[Decoded]:
        """Return the request, and the call with what the request adds to it. A codec may decode a
        large request in a thread and return an awaitable."""

    def encode(self, answer: Any) -> bytes | Awaitable[bytes]:
        """Return the body of a response that is not a stream. A codec may encode a large response
        in a thread and return an awaitable."""

    def send(self, body: bytes, call: Call) -> Awaitable[Any]:
        """Send a response."""

    async def stream(self, stream: LogStream, call: Call) -> Any:
        """Send a stream to its end, and the error if it fails."""

    async def fail(self, error: A2AError) -> Any:
        """Send an error."""


async def serve(endpoint: Endpoint, incoming: RequestInfo, codec: Codec) -> Any:
    """Answer one request. Returns what the codec returns when it sends the response."""
    request: WireStruct | None = None
    try:
        version = _version(endpoint, incoming, codec) if codec.route() else ""
        plain = endpoint.plain(incoming)
        caller = ANONYMOUS["1.0"].caller if plain else await endpoint.caller(incoming)
        codec.open(await codec.read())
        version = version or _version(endpoint, incoming, codec)
        while True:
            call = ANONYMOUS[version] if plain else endpoint.call(incoming, caller, version)
            decoded = codec.decode(call)
            request, call = decoded if isinstance(decoded, tuple) else await decoded
            del decoded
            if codec.operation.streams:
                endpoint.may_stream(call, incoming)
            answering = endpoint.operate(codec.operation, request, call, incoming)
            request = None  # it may be large, so free it before the wait
            try:
                answer = await answering
                break
            except TaskNotFound:
                if codec.other_version in ("", version):
                    raise
                version = codec.other_version
        if not isinstance(answer, LogStream):
            if endpoint.bodies.large:
                await incoming.in_turn(call)
            answer = codec.encode(answer)
            if not isinstance(answer, bytes):
                answer = await answer
            if len(answer) > SMALL:
                incoming.reserve(len(answer), call)
    except A2AError as error:
        endpoint.refused(error, incoming)
        failure = without_traceback(error)
    except Gone:
        raise
    except Exception as error:
        logger.exception("internal error")
        endpoint.refused(error, incoming)
        failure = InternalError.of(error)
    else:
        if isinstance(answer, LogStream):
            return await codec.stream(answer, call)
        return await codec.send(answer, call)
    request = answer = None
    return await codec.fail(failure)


def _version(endpoint: Endpoint, incoming: RequestInfo, codec: Codec) -> str:
    """Return the version of a request whose operation is known, and record the operation for the
    access log."""
    if incoming.line is not None:
        incoming.line.begins(endpoint.service.agent.key, codec.operation.name, incoming.binding)
    return versions.agreed(incoming.version(), codec.versions)


def without_traceback(error: A2AError) -> A2AError:
    """Remove the traceback from an error. Its frames refer to large objects such as a message,
    which would stay in memory while the error is sent, and with gRPC even longer."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
