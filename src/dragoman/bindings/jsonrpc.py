"""The JSON-RPC 2.0 binding: every request is a POST to the agent's URL."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from dragoman.bindings import pipeline
from dragoman.bindings.agent_endpoint import Endpoint
from dragoman.bindings.http_request import JSON, HTTPRequest, extension_headers, headers_of
from dragoman.bindings.sse import EVENT_STREAM, SSEResponse
from dragoman.dialects import Dialect, v1_0
from dragoman.dialects.v0_3 import rpc as v0_3
from dragoman.dialects.versions import VERSIONS, older
from dragoman.model.caller import Call
from dragoman.model.errors import A2AError, InvalidRequest, MethodNotFound
from dragoman.model.operations import BY_CALL, Operation
from dragoman.model.protocol import JSONRPC
from dragoman.server.reader import LogStream


class Method(Struct, frozen=True):
    """What a method name means: the operation, and the versions that have it, most likely first."""

    operation: Operation
    versions: tuple[str, ...]
    other: str = ""
    """A version to try if the task does not exist, because clients choose the task ids there."""


def _methods() -> dict[str, Method]:
    found: dict[str, Method] = {}
    for version in VERSIONS:
        for name, call in version.methods.items():
            known = found.get(name)
            names = (*(known.versions if known else ()), version.name, *version.shared_with)
            other = version.name if known and version.id_prefix else ""
            found[name] = Method(BY_CALL[call], tuple(dict.fromkeys(names)), other)
    return found


METHODS = _methods()
RECEIVE = {version.name: version.receive for version in VERSIONS}
PATHS = frozenset(f"/{name}" for name, found in METHODS.items() if found.versions[0] != "1.0")
"""Some 0.1 clients post to a path that is the method name."""


class Envelope(Struct, gc=False):
    """A JSON-RPC request object. Without an id it is a notification."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | float | UnsetType | None = UNSET
    params: Raw = Raw(b"{}")


NOTHING = (b"", b"null")
LONGEST_ID = 1024
"""The maximum size of a request id in bytes of JSON."""
_envelope = msgspec.json.Decoder(Envelope)


def serve(endpoint: Endpoint, incoming: HTTPRequest) -> Awaitable[None]:
    """Answer one request."""
    incoming.binding = JSONRPC.label
    return pipeline.serve(endpoint, incoming, JSONRPCCodec(endpoint, incoming))


class JSONRPCCodec:
    """Reads one JSON-RPC request and writes its response; see `pipeline.Codec`."""

    __slots__ = (
        *("_dialect", "_endpoint", "_id", "_incoming", "_params", "_streams"),
        *("operation", "other_version", "versions"),
    )

    operation: Operation
    versions: tuple[str, ...]

    def __init__(self, endpoint: Endpoint, incoming: HTTPRequest) -> None:
        self._endpoint = endpoint
        self._incoming = incoming
        self._id: bytes | None = b"null"
        """The request id as JSON; None for a notification, which gets no response."""
        self._dialect: Dialect = v1_0
        self._streams = False
        """Whether to send an error as an event of a stream."""

    def route(self) -> bool:
        """Return False, because the body names the method."""
        return False

    def read(self) -> Awaitable[bytes]:
        """Read the body."""
        return self._incoming.body()

    def open(self, body: bytes) -> None:
        """Decode the envelope, which names the method."""
        try:
            envelope = _envelope.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = v1_0.parse(body)  # ParseError if it is not even JSON
            self._id = _id_of(document)
            raise _invalid_envelope(document) from None
        id = None if envelope.id is UNSET else v1_0.encode(envelope.id)
        if id is not None and len(id) > LONGEST_ID:  # every event of a stream repeats the id
            raise _id_too_long()
        self._id = id
        method = METHODS.get(envelope.method)
        if method is None:
            raise MethodNotFound(f"Unknown method {envelope.method[:64]!r}")
        self.operation, self.versions = method.operation, method.versions
        self.other_version = method.other
        if method.versions[0] != "1.0":
            named = self._incoming.version()
            if named:
                self.other_version = ""
            if older(named):
                self._dialect, self._streams = v0_3, method.operation.streams
        params = bytes(envelope.params)
        self._params = b"{}" if params in NOTHING else params

    def decode(self, call: Call) -> pipeline.Decoded:
        """Decode the request in its version, which the response uses, too."""
        kind, params, receive = self.operation.request, self._params, RECEIVE[call.caller.version]
        if not self.other_version:
            self._params = b""  # they may be large, so free them early
        if receive is None:
            return v1_0.decode(kind, params), call
        agent = self._endpoint.service.agent.key
        self._dialect, request, call = receive(agent, kind, params, call)
        return request, call

    def encode(self, answer: Any) -> bytes:
        """Return the result in a JSON-RPC envelope."""
        result = b"null" if answer is None else self._dialect.encode(answer)
        if self._id is None:
            return b""
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._id, result)

    def send(self, body: bytes, call: Call) -> Awaitable[None]:
        """Send a response; a notification gets status 204."""
        if self._id is None:
            return self._incoming.nothing()
        return self._incoming.respond(200, body, headers=extension_headers(call))

    async def stream(self, stream: LogStream, call: Call) -> None:
        """Send a stream as server-sent events; a notification gets status 204."""
        if self._id is None:
            stream.close()
            return await self._incoming.nothing()
        before = b'{"jsonrpc":"2.0","id":%b,"result":' % self._id
        response = SSEResponse(self._incoming, stream, call, self._dialect, before, b"}")
        return await response.run(
            self._endpoint.streams,
            lambda error: b"data: %b\n\n" % _error(error, self._id, self._dialect),
        )

    async def fail(self, error: A2AError) -> None:
        """Send an error; a notification gets status 204 unless the error belongs to HTTP."""
        if self._id is None and not error.transport:
            self._incoming.failed(error)
            return await self._incoming.respond(204, b"")
        body = _error(error, self._id, self._dialect)
        if self._streams:  # clients before 1.0 accept only events as the response to a stream call
            return await _fail(self._incoming, error, b"data: %b\n\n" % body, EVENT_STREAM)
        return await _fail(self._incoming, error, body)


async def fail(incoming: HTTPRequest, error: A2AError) -> None:
    """Send an error before the body of the request was read."""
    await _fail(incoming, error, _error(error, b"null", v1_0))


async def _fail(
    incoming: HTTPRequest, error: A2AError, body: bytes, media_type: bytes = JSON
) -> None:
    incoming.failed(error)
    status = error.http if error.transport else 200
    await incoming.respond(status, body, media_type, headers_of(error.headers))


def _error(error: A2AError, id: bytes | None, dialect: Dialect) -> bytes:
    encoded = v1_0.encode(dialect.problem(error))
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id or b"null", encoded)


def _invalid_envelope(document: Any) -> InvalidRequest:
    """The error for a JSON document that is not a JSON-RPC request."""
    if isinstance(document, list):
        return InvalidRequest("Batch requests are not supported; send one request at a time")
    if not isinstance(document, dict):
        return InvalidRequest("A request must be a JSON object")
    if document.get("jsonrpc") != "2.0":
        return InvalidRequest('jsonrpc: must be "2.0"', violations=[("jsonrpc", 'must be "2.0"')])
    if not isinstance(document.get("method"), str):
        return InvalidRequest("method: must be a string", violations=[("method", "is required")])
    return InvalidRequest("id: must be a string, a number or null")


def _id_of(document: Any) -> bytes:
    """Return the id, as JSON, of a document that is not a valid request."""
    id = document.get("id") if isinstance(document, dict) else None
    known = isinstance(id, str | int | float) and not isinstance(id, bool)
    found = v1_0.encode(id) if known else b"null"
    return found if len(found) <= LONGEST_ID else b"null"


def _id_too_long() -> InvalidRequest:
    what = f"is longer than {LONGEST_ID} bytes"
    return InvalidRequest(f"id: {what}", violations=[("id", what)])
