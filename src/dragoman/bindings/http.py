"""HTTP+JSON: a path for each operation."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from dragoman import dialects
from dragoman.bindings.endpoint import Endpoint
from dragoman.bindings.exchange import A2A, SLASH, Exchange, Gone, headers_of
from dragoman.bindings.jsonrpc import activated
from dragoman.bindings.sse import Pour
from dragoman.caller import Call
from dragoman.dialects import v1_0
from dragoman.errors import (
    A2AError,
    InternalError,
    InvalidParams,
    MethodNotAllowed,
    MethodNotFound,
)
from dragoman.events import RESUME
from dragoman.operations import OPERATIONS, Operation
from dragoman.reader import Stream
from dragoman.telemetry import logger
from dragoman.types import Wire


def _route(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))


# The longer one first: `/tasks/{id}:cancel` before `/tasks/{id}`.
ROUTES = [
    (_route(operation.path), operation)
    for operation in sorted(OPERATIONS, key=lambda o: len(o.path), reverse=True)
]


async def serve(endpoint: Endpoint, exchange: Exchange, path: str) -> None:
    """Answer one request."""
    try:
        operation, fields = _find(exchange.method, path)
        query = exchange.query() if exchange.scope.get("query_string") else {}
        caller = await endpoint.caller(exchange)
        call = endpoint.call(exchange, caller, query.pop("A2A-Version", ""))
        request = await _request(operation, fields, query, exchange)
        if operation.streams:
            endpoint.streams.check()
        answer = await endpoint.operate(operation, request, call, exchange)
        streaming = isinstance(answer, Stream)
        body = b"{}" if answer is None or streaming else v1_0.encode(answer)
    except A2AError as error:
        return await fail(exchange, error)
    except Gone:
        raise
    except Exception as error:
        logger.exception("internal error")
        return await fail(exchange, InternalError.of(error))
    if isinstance(answer, Stream):
        return await _stream(endpoint, exchange, answer, call)
    await exchange.respond(200, body, A2A, activated(call))
    return None


async def fail(exchange: Exchange, error: A2AError) -> None:
    """Answer with an error."""
    await exchange.respond(error.http, v1_0.encode(error.to_http()), A2A, headers_of(error.headers))


def _find(method: str, path: str) -> tuple[Operation, dict[str, str]]:
    """The operation of a path, which may begin with a tenant, and the fields in the path."""
    found = _match(method, path)
    if found is not None:
        return found
    if path == "/v1" or path.startswith("/v1/"):
        raise dialects.unsupported("0.3")
    tenant, slash, rest = path[1:].partition("/")
    if slash and tenant and tenant != "tasks":
        found = _match(method, f"/{rest}")
        if found is not None:
            return found[0], {**found[1], "tenant": tenant}
    raise MethodNotFound(f"There is nothing at {path[:128]!r}")


def _match(method: str, path: str) -> tuple[Operation, dict[str, str]] | None:
    allowed: dict[str, None] = {}
    for pattern, operation in ROUTES:
        match = pattern.fullmatch(path)
        if match is None:
            continue
        if method in operation.verbs:
            return operation, {k: v.replace(SLASH, "/") for k, v in match.groupdict().items()}
        allowed |= dict.fromkeys(operation.verbs)
        if ":" in operation.path:
            break  # an action is not also the name of a task
    if not allowed:
        return None
    verbs = ", ".join(allowed)
    raise MethodNotAllowed(f"{path[:128]} takes {verbs}, not {method}", headers={"allow": verbs})


async def _request(
    operation: Operation, fields: dict[str, str], query: dict[str, str], exchange: Exchange
) -> Wire:
    if exchange.method != "POST":
        return v1_0.convert(operation.request, _merged(query, fields), text=True)
    body = await exchange.body()
    if fields.keys() <= {"tenant"} and body:
        request = v1_0.decode(operation.request, body)
        if not fields:
            return request
        _agree(getattr(request, "tenant", ""), fields["tenant"], "tenant")
        return replace(request, **fields)
    document = v1_0.parse(body) if body.strip() else {}
    if not isinstance(document, dict):
        raise InvalidParams.at("body", "expected an object")
    return v1_0.convert(operation.request, _merged({**query, **document}, fields))


def _merged(found: dict[str, Any], fields: dict[str, str]) -> dict[str, Any]:
    """What the body or query says, and what the path says; they must not contradict."""
    for name, value in fields.items():
        snake = re.sub(r"([A-Z])", r"_\1", name).lower()
        for known in (name, snake):
            _agree(found.pop(known, None), value, name)
        found[name] = value
    return found


def _agree(said: Any, path: str, name: str) -> None:
    if said not in (None, "", path):
        raise InvalidParams.at(name, "differs from the one in the path")


async def _stream(endpoint: Endpoint, exchange: Exchange, stream: Stream, call: Call) -> None:
    pour = Pour(exchange, stream, places=RESUME in call.caller.extensions)
    await pour.run(
        endpoint.streams,
        activated(call),
        lambda error: b"event: error\ndata: %b\n\n" % v1_0.encode(error.to_http()),
    )
