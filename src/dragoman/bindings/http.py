"""HTTP+JSON: a path for each operation."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman import dialects
from dragoman.bindings import pipeline
from dragoman.bindings.endpoint import Endpoint
from dragoman.bindings.http_request import (
    A2A,
    JSON,
    SLASH,
    HTTPRequest,
    extension_headers,
    headers_of,
)
from dragoman.bindings.sse import SSEResponse
from dragoman.dialects import Paths, client_quirks, v1_0
from dragoman.dialects.v0_3 import proto as v0_3
from dragoman.model.caller import Call
from dragoman.model.errors import A2AError, InvalidParams, MethodNotAllowed, MethodNotFound
from dragoman.model.operations import OPERATIONS, Operation
from dragoman.model.types import WireStruct
from dragoman.security.budget import SMALL
from dragoman.server.reader import LogStream


class Route(Struct, frozen=True):
    """A path of an operation in one of the versions."""

    operation: Operation
    pattern: re.Pattern[str]
    version: str = "1.0"


class Found(Struct, frozen=True):
    """What a request's path says."""

    operation: Operation
    version: str
    fields: dict[str, str]


def _pattern(path: str) -> re.Pattern[str]:
    """A route as a pattern; `{name=tasks/*}` is a field of that shape."""

    def field(match: re.Match[str]) -> str:
        shape = (match[2] or "*").replace("*", "[^/]+")
        return f"(?P<{match[1]}>{shape})"

    return re.compile(re.sub(r"\{(\w+)(?:=([^}]*))?\}", field, path))


# The longer one first: `/tasks/{id}:cancel` before `/tasks/{id}`.
ROUTES = [
    *(
        Route(operation, _pattern(operation.path))
        for operation in sorted(OPERATIONS, key=lambda o: len(o.path), reverse=True)
    ),
    *(
        Route(operation, _pattern(operation.former.path), "0.3")
        for operation in sorted(OPERATIONS, key=lambda o: len(o.former.path), reverse=True)
    ),
]


def serve(endpoint: Endpoint, incoming: HTTPRequest, path: str) -> Awaitable[None]:
    """Answer one request."""
    return pipeline.serve(endpoint, incoming, HTTPCodec(endpoint, incoming, path))


class HTTPCodec:
    """Reads one request of HTTP+JSON and writes its answer; see `pipeline.Codec`."""

    __slots__ = ("_endpoint", "_found", "_headers", "_incoming", "_path", "_version", "operation")

    operation: Operation

    def __init__(self, endpoint: Endpoint, incoming: HTTPRequest, path: str) -> None:
        self._endpoint = endpoint
        self._incoming = incoming
        self._path = path
        older = path.startswith("/v1/") and dialects.older(incoming.version())
        self._version = "0.3" if older else "1.0"
        self._headers: list[tuple[bytes, bytes]] = []

    def route(self) -> str:
        """The version, by the path."""
        self._found = found = _find(self._incoming.method, self._path)
        self.operation = found.operation
        agree = pipeline.agree
        self._version = agree(self._endpoint, self._incoming, found.operation, (found.version,))
        return self._version

    async def open(self) -> str:
        """The path has said it."""
        return self._version

    async def decode(self, call: Call) -> tuple[WireStruct, Call]:
        """The request, from path, query and body."""
        return await _request(self._found, self._incoming), call

    async def activate(self, call: Call) -> None:
        """The answer has the header."""
        self._headers = extension_headers(call)

    def other_version(self) -> str:
        """A path is of one version."""
        return ""

    async def encode(self, answer: Any, call: Call) -> bytes:
        """The body; an empty object if there is nothing to say."""
        incoming = self._incoming
        if incoming.bodies.large:
            await incoming.in_turn(call)
        body = b"{}" if answer is None else _form(self._version, incoming).encode(answer)
        if len(body) > SMALL:
            incoming.reserve(len(body), call)
        return body

    def send(self, body: bytes) -> Awaitable[None]:
        """Send an answer."""
        headers = self._headers
        if self._incoming.method == "GET":
            headers.append(PRIVATE)
        return self._incoming.respond(200, body, KINDS[self._version], headers)

    async def stream(self, stream: LogStream, call: Call) -> None:
        """Send a stream as Server-Sent Events."""
        version = self._version
        response = SSEResponse(self._incoming, stream, call, dialect=_form(version, self._incoming))
        await response.run(
            self._endpoint.streams,
            self._headers,
            lambda error: b"event: error\ndata: %b\n\n" % _error(error, version),
        )

    async def fail(self, error: A2AError) -> None:
        """Send an error in the version of the request."""
        await fail(self._incoming, error, self._version)


def _form(version: str, incoming: HTTPRequest) -> Paths:
    if version == "1.0":
        return v1_0
    javascript = client_quirks.is_javascript_sdk(incoming.header(b"user-agent"))
    return v0_3.BARE if javascript else v0_3.JSON


KINDS = {"1.0": A2A, "0.3": JSON}
PRIVATE = (b"cache-control", b"no-store")
"""With what a cache might keep: answers to GET, and errors."""


async def fail(incoming: HTTPRequest, error: A2AError, version: str = "1.0") -> None:
    """Answer with an error."""
    incoming.failed(error)
    body = _error(error, version)
    headers = (PRIVATE, *headers_of(error.headers))
    await incoming.respond(error.http, body, KINDS[version], headers)


def _error(error: A2AError, version: str) -> bytes:
    return v1_0.encode(error.to_http() if version == "1.0" else v0_3.problem(error))


def _find(method: str, path: str) -> Found:
    """The operation of a path, which may begin with a tenant, and the fields in the path."""
    found = _match(method, path)
    if found is not None:
        return found
    tenant, slash, rest = path[1:].partition("/")
    if slash and tenant and tenant not in ("tasks", "v1"):
        found = _match(method, f"/{rest}")
        if found is not None and found.version == "1.0":
            return replace(found, fields={**found.fields, "tenant": tenant})
    raise MethodNotFound(f"Nothing is served at {path[:128]!r}")


def _match(method: str, path: str) -> Found | None:
    allowed: dict[str, None] = {}
    for route in ROUTES:
        match = route.pattern.fullmatch(path)
        if match is None:
            continue
        operation = route.operation
        if method in operation.verbs:
            fields = {k: v.replace(SLASH, "/") for k, v in match.groupdict().items()}
            return Found(operation, route.version, fields)
        allowed |= dict.fromkeys(operation.verbs)
        if ":" in operation.path:
            break  # an action is not also the name of a task
    if not allowed:
        return None
    verbs = ", ".join(allowed)
    raise MethodNotAllowed(f"{path[:128]} requires {verbs}, not {method}", headers={"allow": verbs})


async def _request(found: Found, incoming: HTTPRequest) -> WireStruct:
    kind, fields = found.operation.request, found.fields
    convert = _form(found.version, incoming).convert
    query = incoming.query() if incoming.scope.get("query_string") else {}
    query.pop("A2A-Version", None)
    if incoming.method != "POST":
        return convert(kind, _merged(query, fields), text=True)
    body = await incoming.body()
    if fields.keys() <= {"tenant"} and body and found.version == "1.0":
        request = v1_0.decode(kind, body)
        if not fields:
            return request
        _agree(getattr(request, "tenant", ""), fields["tenant"], "tenant")
        return replace(request, **fields)
    document = v1_0.parse(body) if body.strip() else {}
    if not isinstance(document, dict):
        raise InvalidParams.at("body", "expected an object")
    return convert(kind, _merged({**query, **document}, fields))


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
