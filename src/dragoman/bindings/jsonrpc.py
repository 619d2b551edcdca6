"""JSON-RPC 2.0, posted to the agent's address."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from dragoman import dialects
from dragoman.bindings.endpoint import ANONYMOUS, Endpoint
from dragoman.bindings.exchange import JSON, Exchange, Gone, headers_of
from dragoman.bindings.sse import Pour
from dragoman.caller import Call
from dragoman.dialects import v1_0
from dragoman.errors import (
    A2AError,
    InternalError,
    InvalidRequest,
    MethodNotFound,
)
from dragoman.events import RESUME
from dragoman.operations import OPERATIONS
from dragoman.reader import Stream
from dragoman.telemetry import logger

METHODS = {operation.name: operation for operation in OPERATIONS}


class Envelope(Struct, gc=False):
    """A request object. Without an id it is a notification."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | float | UnsetType | None = UNSET
    params: Raw = Raw(b"{}")


NOTHING = (b"", b"null")
_envelope = msgspec.json.Decoder(Envelope)


async def serve(endpoint: Endpoint, exchange: Exchange) -> None:
    """Answer one request."""
    id: bytes | None = b"null"
    call, body = ANONYMOUS, b""
    envelope: Envelope | None = None
    try:
        plain = endpoint.plain(exchange)
        caller = ANONYMOUS.caller if plain else await endpoint.caller(exchange)
        body = await exchange.body()
        envelope = _open(body)
        id = None if envelope.id is UNSET else v1_0.encode(envelope.id)
        operation = METHODS.get(envelope.method)
        if operation is None:
            raise _unknown(envelope.method)
        if not plain:
            call = endpoint.call(exchange, caller, exchange.query().get("A2A-Version", ""))
        params = bytes(envelope.params)
        request = v1_0.decode(operation.request, b"{}" if params in NOTHING else params)
        if operation.streams:
            endpoint.streams.check()
        answer = await endpoint.operate(operation, request, call, exchange)
        streaming = isinstance(answer, Stream)
        result = b"null" if answer is None or streaming else v1_0.encode(answer)
    except A2AError as error:
        return await fail(exchange, id if envelope else _salvaged(body), error)
    except Gone:
        raise
    except Exception as error:
        logger.exception("internal error")
        return await fail(exchange, id, InternalError.of(error))
    if id is None:
        if isinstance(answer, Stream):
            answer.close()
        return await exchange.nothing()
    if isinstance(answer, Stream):
        return await _stream(endpoint, exchange, answer, id, call)
    body = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result)
    await exchange.respond(200, body, headers=activated(call))
    return None


def activated(call: Call) -> list[tuple[bytes, bytes]]:
    """The header that repeats which extensions are active."""
    if not call.caller.extensions:
        return []
    return [(b"a2a-extensions", ", ".join(call.caller.extensions).encode("latin-1"))]


def _open(body: bytes) -> Envelope:
    try:
        return _envelope.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = v1_0.parse(body)  # ParseError if it is not even JSON
    if isinstance(document, list):
        raise InvalidRequest("Batch requests are not supported; send one request at a time")
    if not isinstance(document, dict):
        raise InvalidRequest("A request is a JSON object")
    if document.get("jsonrpc") != "2.0":
        raise InvalidRequest('jsonrpc: must be "2.0"', violations=[("jsonrpc", 'must be "2.0"')])
    if not isinstance(document.get("method"), str):
        raise InvalidRequest("method: must be a string", violations=[("method", "is required")])
    raise InvalidRequest("id: must be a string, a number or null")


def _salvaged(body: bytes) -> bytes:
    """The id of what is no request otherwise."""
    try:
        document = v1_0.parse(body)
    except A2AError:
        return b"null"
    id = document.get("id") if isinstance(document, dict) else None
    known = isinstance(id, str | int | float) and not isinstance(id, bool)
    return v1_0.encode(id) if known else b"null"


def _unknown(method: str) -> A2AError:
    if dialects.OLDER.fullmatch(method):
        return dialects.unsupported("0.3")
    return MethodNotFound(f"There is no method {method[:64]!r}")


async def fail(exchange: Exchange, id: bytes | None, error: A2AError) -> None:
    """Answer with an error; a notification is answered with nothing."""
    status = error.http if error.transport else 200
    if id is None and not error.transport:
        return await exchange.respond(204, b"")
    await exchange.respond(status, _error(id or b"null", error), JSON, headers_of(error.headers))
    return None


def _error(id: bytes, error: A2AError) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id, v1_0.encode(error.to_rpc()))


async def _stream(
    endpoint: Endpoint, exchange: Exchange, stream: Stream, id: bytes, call: Call
) -> None:
    pour = Pour(
        exchange,
        stream,
        before=b'{"jsonrpc":"2.0","id":%b,"result":' % id,
        after=b"}",
        places=RESUME in call.caller.extensions,
    )
    await pour.run(
        endpoint.streams,
        activated(call),
        lambda error: b"data: %b\n\n" % _error(id, error),
    )
