"""JSON-RPC 2.0, posted to the agent's address."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from dragoman import dialects
from dragoman.bindings import pipeline
from dragoman.bindings.endpoint import Endpoint
from dragoman.bindings.http_request import JSON, HTTPRequest, extension_headers, headers_of
from dragoman.bindings.sse import EVENT_STREAM, SSEResponse
from dragoman.dialects import Dialect, client_quirks, v0_1, v1_0
from dragoman.dialects.v0_3 import mixed
from dragoman.dialects.v0_3 import rpc as v0_3
from dragoman.model.caller import Call
from dragoman.model.errors import A2AError, InvalidRequest, MethodNotFound
from dragoman.model.operations import BY_CALL, OPERATIONS, Operation
from dragoman.model.types import SendMessageRequest, WireStruct
from dragoman.security.budget import SMALL
from dragoman.server.reader import LogStream


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


NOTHING = (b"", b"null")
LONGEST_ID = 1024
"""The most bytes of a request's id, as JSON."""
_envelope = msgspec.json.Decoder(Envelope)


def serve(endpoint: Endpoint, incoming: HTTPRequest) -> Awaitable[None]:
    """Answer one request."""
    incoming.binding = "jsonrpc"
    return pipeline.serve(endpoint, incoming, JSONRPCCodec(endpoint, incoming))


class JSONRPCCodec:
    """Reads one request of JSON-RPC and writes its answer; see `pipeline.Codec`."""

    __slots__ = (
        *("_dialect", "_endpoint", "_headers", "_id", "_incoming"),
        *("_params", "_streams", "_versions", "operation"),
    )

    operation: Operation

    def __init__(self, endpoint: Endpoint, incoming: HTTPRequest) -> None:
        self._endpoint = endpoint
        self._incoming = incoming
        self._id: bytes | None = b"null"
        """As JSON; None if no answer is wanted."""
        self._dialect: Dialect = v1_0
        self._streams = False
        """Whether errors are events, too."""
        self._headers: list[tuple[bytes, bytes]] = []

    def route(self) -> str:
        """The body says what is asked for."""
        return ""

    async def open(self) -> str:
        """The version, by the name of the method."""
        incoming = self._incoming
        envelope = self._envelope(await incoming.body())
        id = None if envelope.id is UNSET else v1_0.encode(envelope.id)
        if id is not None and len(id) > LONGEST_ID:  # it is repeated in every event of a stream
            raise _too_long()
        self._id = id
        method = METHODS.get(envelope.method)
        if method is None:
            raise MethodNotFound(f"Unknown method {envelope.method[:64]!r}")
        self._versions, self.operation = method.versions, method.operation
        if method.versions[0] != "1.0" and dialects.older(incoming.version()):
            self._dialect, self._streams = v0_3, method.operation.streams
        params = bytes(envelope.params)
        self._params = b"{}" if params in NOTHING else params
        version = pipeline.agree(self._endpoint, incoming, method.operation, method.versions)
        if version == "0.1" and client_quirks.is_0_2_by_its_params(self._params):
            return "0.2"
        return version

    def _envelope(self, body: bytes) -> Envelope:
        try:
            return _envelope.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = v1_0.parse(body)  # ParseError if it is not even JSON
        self._id = _salvaged(document)
        raise _no_envelope(document)

    async def decode(self, call: Call) -> tuple[WireStruct, Call]:
        """The request in the dialect of its version, which the answer is in as well."""
        version, kind, params = call.caller.version, self.operation.request, self._params
        if version == "0.1":
            self._dialect = v0_1.V01Codec(self._endpoint.scope(call))
        elif version != "1.0":
            mixes = kind is SendMessageRequest and client_quirks.is_fasta2a(params)
            self._dialect = mixed.MIXED if mixes else v0_3
        if version == "0.1" or "0.1" not in self._versions[1:]:
            self._params = b""  # it may be large, and is of no more use here
        request = self._dialect.decode(kind, params)
        if version == "0.1" and isinstance(request, SendMessageRequest):
            call = replace(call, name=request.message.task_id)
        return request, call

    async def activate(self, call: Call) -> None:
        """The answer has the header."""
        self._headers = extension_headers(call)

    def other_version(self) -> str:
        """0.1, if the method's name is also one of 0.1, where tasks have the ids that their owners
        chose."""
        return "0.1" if self._params and not self._incoming.version() else ""

    async def encode(self, answer: Any, call: Call) -> bytes:
        """The result in its envelope."""
        incoming = self._incoming
        if incoming.bodies.large:
            await incoming.in_turn(call)
        result = b"null" if answer is None else self._dialect.encode(answer)
        if len(result) > SMALL:
            incoming.reserve(len(result), call)
        if self._id is None:
            return b""
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._id, result)

    def send(self, body: bytes) -> Awaitable[None]:
        """Send an answer; none to a notification."""
        if self._id is None:
            return self._incoming.nothing()
        return self._incoming.respond(200, body, headers=self._headers)

    async def stream(self, stream: LogStream, call: Call) -> None:
        """Send a stream as Server-Sent Events; nothing to a notification."""
        if self._id is None:
            stream.close()
            return await self._incoming.nothing()
        response = SSEResponse(
            self._incoming,
            stream,
            call,
            dialect=self._dialect,
            before=b'{"jsonrpc":"2.0","id":%b,"result":' % self._id,
            after=b"}",
        )
        await response.run(
            self._endpoint.streams,
            self._headers,
            lambda error: b"data: %b\n\n" % _error(error, self._id, self._dialect),
        )
        return None

    async def fail(self, error: A2AError) -> None:
        """Send an error; none to a notification, unless it has to do with HTTP."""
        if self._id is None and not error.transport:
            self._incoming.failed(error)
            return await self._incoming.respond(204, b"")
        body = _error(error, self._id, self._dialect)
        if self._streams:  # clients before 1.0 take nothing but events where they asked for some
            return await _fail(self._incoming, error, b"data: %b\n\n" % body, EVENT_STREAM)
        return await _fail(self._incoming, error, body)


async def fail(incoming: HTTPRequest, error: A2AError) -> None:
    """Answer a request with an error before anything of it was read."""
    await _fail(incoming, error, _error(error, b"null", v1_0))


async def _fail(
    incoming: HTTPRequest, error: A2AError, body: bytes, media_type: bytes = JSON
) -> None:
    incoming.failed(error)
    status = error.http if error.transport else 200
    await incoming.respond(status, body, media_type, headers_of(error.headers))


def _error(error: A2AError, id: bytes | None, dialect: Dialect) -> bytes:
    problem = v1_0.encode(dialect.problem(error))
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id or b"null", problem)


def _no_envelope(document: Any) -> InvalidRequest:
    """What is wrong with a document that is no request."""
    if isinstance(document, list):
        return InvalidRequest("Batch requests are not supported; send one request at a time")
    if not isinstance(document, dict):
        return InvalidRequest("A request must be a JSON object")
    if document.get("jsonrpc") != "2.0":
        return InvalidRequest('jsonrpc: must be "2.0"', violations=[("jsonrpc", 'must be "2.0"')])
    if not isinstance(document.get("method"), str):
        return InvalidRequest("method: must be a string", violations=[("method", "is required")])
    return InvalidRequest("id: must be a string, a number or null")


def _salvaged(document: Any) -> bytes:
    """The id of what is no request otherwise."""
    id = document.get("id") if isinstance(document, dict) else None
    known = isinstance(id, str | int | float) and not isinstance(id, bool)
    found = v1_0.encode(id) if known else b"null"
    return found if len(found) <= LONGEST_ID else b"null"


def _too_long() -> InvalidRequest:
    what = f"is longer than {LONGEST_ID} bytes"
    return InvalidRequest(f"id: {what}", violations=[("id", what)])
