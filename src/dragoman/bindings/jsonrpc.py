"""JSON-RPC 2.0, posted to the agent's address."""

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
from dragoman.server.reader import LogStream


class Method(Struct, frozen=True):
    """What a method's name means: the operation, and the versions that have it, likeliest first."""

    operation: Operation
    versions: tuple[str, ...]
    other: str = ""
    """The version to try if there is no task of an id, since clients choose the ids there."""


def _methods() -> dict[str, Method]:
    found: dict[str, Method] = {}
    for version in VERSIONS:
        for name, call in version.methods.items():
            known = found.get(name)
            names = (*(known.versions if known else ()), version.name, *version.shared_with)
            other = version.name if known and version.chosen_ids else ""
            found[name] = Method(BY_CALL[call], tuple(dict.fromkeys(names)), other)
    return found


METHODS = _methods()
RECEIVE = {version.name: version.receive for version in VERSIONS}
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
        *("_dialect", "_endpoint", "_id", "_incoming", "_params", "_streams"),
        *("operation", "other_version", "versions"),
    )

    operation: Operation
    versions: tuple[str, ...]

    def __init__(self, endpoint: Endpoint, incoming: HTTPRequest) -> None:
        self._endpoint = endpoint
        self._incoming = incoming
        self._id: bytes | None = b"null"
        """As JSON; None if no answer is wanted."""
        self._dialect: Dialect = v1_0
        self._streams = False
        """Whether errors are events, too."""

    def route(self) -> bool:
        """The body names the method."""
        return False

    def read(self) -> Awaitable[bytes]:
        """Read the body."""
        return self._incoming.body()

    def open(self, body: bytes) -> None:
        """Open the envelope, which names the method."""
        try:
            envelope = _envelope.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = v1_0.parse(body)  # ParseError if it is not even JSON
            self._id = _salvaged(document)
            raise _no_envelope(document) from None
        id = None if envelope.id is UNSET else v1_0.encode(envelope.id)
        if id is not None and len(id) > LONGEST_ID:  # it is repeated in every event of a stream
            raise _too_long()
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
        """The request in its version, which the answer is in as well."""
        kind, params, receive = self.operation.request, self._params, RECEIVE[call.caller.version]
        if not self.other_version:
            self._params = b""  # what may be large is kept no longer than it is needed
        if receive is None:
            return v1_0.decode(kind, params), call
        agent = self._endpoint.service.agent.key
        self._dialect, request, call = receive(agent, kind, params, call)
        return request, call

    def encode(self, answer: Any) -> bytes:
        """The result in its envelope."""
        result = b"null" if answer is None else self._dialect.encode(answer)
        if self._id is None:
            return b""
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._id, result)

    def send(self, body: bytes, call: Call) -> Awaitable[None]:
        """Send an answer; none to a notification."""
        if self._id is None:
            return self._incoming.nothing()
        return self._incoming.respond(200, body, headers=extension_headers(call))

    async def stream(self, stream: LogStream, call: Call) -> None:
        """Send a stream as Server-Sent Events; nothing to a notification."""
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
