"""JSON-RPC 2.0, posted to the agent's address."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from dragoman import dialects
from dragoman.bindings.endpoint import ANONYMOUS, Endpoint
from dragoman.bindings.http_request import JSON, Gone, HTTPRequest, headers_of
from dragoman.bindings.sse import EVENT_STREAM, SSEResponse
from dragoman.dialects import Dialect, v0_1, v1_0
from dragoman.dialects.v0_3 import mixed
from dragoman.dialects.v0_3 import rpc as v0_3
from dragoman.model.caller import Call
from dragoman.model.errors import (
    A2AError,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    TaskNotFound,
)
from dragoman.model.events import RESUME
from dragoman.model.operations import BY_CALL, OPERATIONS, Operation
from dragoman.model.types import SendMessageRequest
from dragoman.security.budget import SMALL
from dragoman.server.reader import LogStream
from dragoman.telemetry.logs import logger


class Method(Struct, frozen=True):
    """What a method's name means: the operation, and the versions that have it, likeliest first."""

    operation: Operation
    versions: tuple[str, ...] = ("1.0",)


METHODS = (
    {operation.name: Method(operation) for operation in OPERATIONS}
    | {
        operation.former.method: Method(operation, ("0.3", "0.2"))
        for operation in OPERATIONS
        if operation.former.method
    }
    | {
        name: Method(BY_CALL[call], ("0.3", "0.2", "0.1"))
        for name, call in (
            ("tasks/get", "get"),
            ("tasks/cancel", "cancel"),
            ("tasks/resubscribe", "subscribe"),
        )
    }
    | {
        name: Method(BY_CALL[call], ("0.1", "0.2", "0.3"))
        for name, call in (
            ("tasks/send", "send"),
            ("tasks/sendSubscribe", "stream"),
            ("tasks/stream", "stream"),
            ("tasks/pushNotification/set", "create_webhook"),
            ("tasks/pushNotification/get", "get_webhook"),
        )
    }
)


PATHS = frozenset(f"/{name}" for name, found in METHODS.items() if found.versions[0] != "1.0")
"""Some clients of 0.1 post to the method's name."""


class Envelope(Struct, gc=False):
    """A request object. Without an id it is a notification."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | float | UnsetType | None = UNSET
    params: Raw = Raw(b"{}")


class Asked(Struct, gc=False):
    """What is known of a request so far, for whoever has to answer it."""

    id: bytes | None = b"null"
    """As JSON; None if no answer is wanted."""
    dialect: Dialect = v1_0
    streams: bool = False

    def error(self, error: A2AError) -> bytes:
        """An answer that is an error."""
        problem = v1_0.encode(self.dialect.problem(error))
        return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (self.id or b"null", problem)


NOTHING = (b"", b"null")
LONGEST_ID = 1024
"""The most bytes of a request's id, as JSON."""
_envelope = msgspec.json.Decoder(Envelope)


async def serve(endpoint: Endpoint, incoming: HTTPRequest) -> None:
    """Answer one request."""
    asked = Asked()
    incoming.binding = "jsonrpc"
    try:
        plain = endpoint.plain(incoming)
        caller = ANONYMOUS["1.0"].caller if plain else await endpoint.caller(incoming)
        body = await incoming.body()
        envelope = _open(body, asked)
        id = None if envelope.id is UNSET else v1_0.encode(envelope.id)
        if id is not None and len(id) > LONGEST_ID:  # it is repeated in every event of a stream
            raise _too_long()
        asked.id = id
        method = _method(envelope.method, incoming, asked)
        if incoming.line is not None:
            incoming.line.begins(endpoint.service.agent.key, method.operation.name, "jsonrpc")
        params = bytes(envelope.params)
        del envelope, body  # what may be large is held by nobody while the answer is waited for
        if params in NOTHING:
            params = b"{}"
        version = _version(incoming, method, params)
        call = ANONYMOUS[version] if plain else endpoint.call(incoming, caller, version)
        if method.operation.streams:
            endpoint.may_stream(call, incoming)
        answering = _operate(endpoint, incoming, method, asked, params, call)
        if "0.1" not in method.versions[1:]:
            params = b""
        try:
            answer = await answering
        except TaskNotFound:
            if not params or incoming.version():
                raise
            # the name is also one of 0.1, where tasks have the ids that their owners chose
            call = endpoint.call(incoming, caller, "0.1")
            answer = await _operate(endpoint, incoming, method, asked, params, call)
        streaming = isinstance(answer, LogStream)
        if incoming.bodies.large:
            await incoming.in_turn(call)
        result = b"null" if answer is None or streaming else asked.dialect.encode(answer)
        if len(result) > SMALL:
            incoming.reserve(len(result), call)
    except A2AError as error:
        endpoint.refused(error, incoming)
        return await fail(incoming, error, asked)
    except Gone:
        raise
    except Exception as error:
        logger.exception("internal error")
        endpoint.refused(error, incoming)
        return await fail(incoming, InternalError.of(error), asked)
    if asked.id is None:
        if isinstance(answer, LogStream):
            answer.close()
        return await incoming.nothing()
    if isinstance(answer, LogStream):
        return await _stream(endpoint, incoming, answer, asked, call)
    body = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (asked.id, result)
    del answer, result  # a slow reader holds one copy, and not three
    await incoming.respond(200, body, headers=activated(call))
    return None


def activated(call: Call) -> list[tuple[bytes, bytes]]:
    """The header that repeats which extensions are active."""
    if not call.caller.extensions:
        return []
    name = b"a2a-extensions" if call.caller.version == "1.0" else b"x-a2a-extensions"
    return [(name, ", ".join(call.caller.extensions).encode("latin-1"))]


def _open(body: bytes, asked: Asked) -> Envelope:
    try:
        return _envelope.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = v1_0.parse(body)  # ParseError if it is not even JSON
    asked.id = _salvaged(document)
    if isinstance(document, list):
        raise InvalidRequest("Batch requests are not supported; send one request at a time")
    if not isinstance(document, dict):
        raise InvalidRequest("A request must be a JSON object")
    if document.get("jsonrpc") != "2.0":
        raise InvalidRequest('jsonrpc: must be "2.0"', violations=[("jsonrpc", 'must be "2.0"')])
    if not isinstance(document.get("method"), str):
        raise InvalidRequest("method: must be a string", violations=[("method", "is required")])
    raise InvalidRequest("id: must be a string, a number or null")


def _salvaged(document: Any) -> bytes:
    """The id of what is no request otherwise."""
    id = document.get("id") if isinstance(document, dict) else None
    known = isinstance(id, str | int | float) and not isinstance(id, bool)
    found = v1_0.encode(id) if known else b"null"
    return found if len(found) <= LONGEST_ID else b"null"


def _too_long() -> InvalidRequest:
    what = f"is longer than {LONGEST_ID} bytes"
    return InvalidRequest(f"id: {what}", violations=[("id", what)])


def _method(name: str, incoming: HTTPRequest, asked: Asked) -> Method:
    method = METHODS.get(name)
    if method is None:
        raise MethodNotFound(f"Unknown method {name[:64]!r}")
    if method.versions[0] != "1.0" and dialects.older(incoming.version()):
        asked.dialect, asked.streams = v0_3, method.operation.streams
    return method


def _version(incoming: HTTPRequest, method: Method, params: bytes) -> str:
    version = dialects.agreed(incoming.version(), method.versions)
    return "0.2" if version == "0.1" and v0_1.alias(params) else version


def _operate(
    endpoint: Endpoint,
    incoming: HTTPRequest,
    method: Method,
    asked: Asked,
    params: bytes,
    call: Call,
) -> Awaitable[Any]:
    version = call.caller.version
    if version == "0.1":
        asked.dialect = v0_1.V01Codec(endpoint.scope(call))
    elif version != "1.0":
        sends = method.operation.request is SendMessageRequest
        asked.dialect = mixed.MIXED if sends and mixed.Mixed.heard(params) else v0_3
    request = asked.dialect.decode(method.operation.request, params)
    if version == "0.1" and isinstance(request, SendMessageRequest):
        call = replace(call, name=request.message.task_id)
    return endpoint.operate(method.operation, request, call, incoming)


async def fail(incoming: HTTPRequest, error: A2AError, asked: Asked | None = None) -> None:
    """Answer with an error; a notification is answered with nothing."""
    incoming.failed(error)
    asked = asked or Asked()
    status = error.http if error.transport else 200
    if asked.id is None and not error.transport:
        return await incoming.respond(204, b"")
    body, kind = asked.error(error), JSON
    if asked.streams:  # clients before 1.0 take nothing but events where they asked for some
        body, kind = b"data: %b\n\n" % body, EVENT_STREAM
    await incoming.respond(status, body, kind, headers_of(error.headers))
    return None


async def _stream(
    endpoint: Endpoint, incoming: HTTPRequest, stream: LogStream, asked: Asked, call: Call
) -> None:
    pour = SSEResponse(
        incoming,
        stream,
        dialect=asked.dialect,
        before=b'{"jsonrpc":"2.0","id":%b,"result":' % (asked.id or b"null"),
        after=b"}",
        places=RESUME in call.caller.extensions,
        owner=call.caller.owner,
        expires=call.caller.expires,
    )
    await pour.run(
        endpoint.streams,
        activated(call),
        lambda error: b"data: %b\n\n" % asked.error(error),
    )
