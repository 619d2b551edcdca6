"""The steps of one request, in the same order over each binding: version, caller, decode, limits,
operate, encode, errors."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from dragoman import dialects
from dragoman.bindings.endpoint import ANONYMOUS, Endpoint
from dragoman.bindings.http_request import Gone, RequestInfo
from dragoman.model.caller import Call
from dragoman.model.errors import A2AError, InternalError, TaskNotFound
from dragoman.model.operations import Operation
from dragoman.model.types import WireStruct
from dragoman.server.reader import LogStream
from dragoman.telemetry.logs import logger


class Codec(Protocol):
    """How a binding reads one request and writes its answer. The methods are called in this order;
    an error in one before `send` and `stream` is answered with `fail`."""

    operation: Operation
    """What is asked for, once `route` or `open` has returned a version."""

    def route(self) -> str:
        """The version, by the head of the request; empty if only the body says it."""

    async def open(self) -> str:
        """The version, by the body of a request whose head does not say it."""

    async def decode(self, call: Call) -> tuple[WireStruct, Call]:
        """The request, and the call with what the request adds to it."""

    async def activate(self, call: Call) -> None:
        """Tell the caller which extensions are active, now or with the answer."""

    def other_version(self) -> str:
        """Another version in which to decode a request that names an unknown task, if any."""

    async def encode(self, answer: Any, call: Call) -> bytes:
        """The body of an answer that is no stream; errors if too many bytes are under way."""

    def send(self, body: bytes) -> Awaitable[Any]:
        """Send an answer."""

    async def stream(self, stream: LogStream, call: Call) -> Any:
        """Send a stream, to its end."""

    async def fail(self, error: A2AError) -> Any:
        """Send an error."""


async def serve(endpoint: Endpoint, incoming: RequestInfo, codec: Codec) -> Any:
    """Answer one request; returns what the codec returns when it sends the answer."""
    try:
        answer, call = await _answer(endpoint, incoming, codec)
    except A2AError as error:
        endpoint.refused(error, incoming)
        failure = untraced(error)
    except Gone:
        raise
    except Exception as error:
        logger.exception("internal error")
        endpoint.refused(error, incoming)
        failure = InternalError.of(error)
    else:
        if isinstance(answer, LogStream):
            return await codec.stream(answer, call)
        return await codec.send(answer)
    return await codec.fail(failure)


async def _answer(
    endpoint: Endpoint, incoming: RequestInfo, codec: Codec
) -> tuple[bytes | LogStream, Call]:
    """The body of the answer, or the stream. It is a function of its own so that a large request
    or answer is not kept in memory while the body or the error is sent."""
    version = codec.route()
    plain = endpoint.plain(incoming)
    caller = ANONYMOUS["1.0"].caller if plain else await endpoint.caller(incoming)
    version = version or await codec.open()
    while True:
        call = ANONYMOUS[version] if plain else endpoint.call(incoming, caller, version)
        request, call = await codec.decode(call)
        if codec.operation.streams:
            endpoint.may_stream(call, incoming)
        if call.caller.extensions:
            # before there is a stream, which would stay open if the caller has gone
            await codec.activate(call)
        answering = endpoint.operate(codec.operation, request, call, incoming)
        del request  # it may be large, and is of no more use here
        try:
            answer = await answering
            break
        except TaskNotFound:
            version = codec.other_version()
            if not version:
                raise
    if isinstance(answer, LogStream):
        return answer, call
    return await codec.encode(answer, call), call


def untraced(error: A2AError) -> A2AError:
    """The error without where it was raised. Frames hold what may be large, such as a message;
    while an error is sent, and with gRPC also after that, they would be kept."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def agree(
    endpoint: Endpoint, incoming: RequestInfo, operation: Operation, versions: Sequence[str]
) -> str:
    """The version of a request for this operation that can be in these versions; the access log
    names the operation from now on."""
    if incoming.line is not None:
        incoming.line.begins(endpoint.service.agent.key, operation.name, incoming.binding)
    return dialects.agreed(incoming.version(), versions)
