"""The HTTP+JSON binding: each operation has its own path."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.bindings import pipeline
from dragoman.bindings.agent_endpoint import Endpoint
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
from dragoman.dialects.versions import older
from dragoman.model.caller import Call
from dragoman.model.errors import A2AError, InvalidParams, MethodNotAllowed, MethodNotFound
from dragoman.model.operations import OPERATIONS, Operation
from dragoman.model.reserved_path_names import reserved
from dragoman.server.reader import LogStream


class Route(Struct, frozen=True):
    """The path of an operation in one version."""

    operation: Operation
    pattern: re.Pattern[str]
    version: str = "1.0"


Found = tuple[Operation, tuple[str, ...], dict[str, str]]
"""What a path names: the operation, its version, and fields of the request."""


def _pattern(path: str) -> re.Pattern[str]:
    """Compile a path template; `{name=tasks/*}` is a field that matches `tasks/*`."""

    def field(match: re.Match[str]) -> str:
        shape = (match[2] or "*").replace("*", "[^/]+")
        return f"(?P<{match[1]}>{shape})"

    return re.compile(re.sub(r"\{(\w+)(?:=([^}]*))?\}", field, path))


# Longer templates first: `/tasks/{id}:cancel` must match before `/tasks/{id}`.
ROUTES = [
    *(
        Route(operation, _pattern(operation.path))
        for operation in sorted(OPERATIONS, key=lambda o: len(o.path), reverse=True)
    ),
    *(
        Route(operation, _pattern(operation.legacy.path), "0.3")
        for operation in sorted(OPERATIONS, key=lambda o: len(o.legacy.path), reverse=True)
    ),
]


def serve(endpoint: Endpoint, incoming: HTTPRequest, path: str) -> Awaitable[None]:
    """Answer one request."""
    return pipeline.serve(endpoint, incoming, HTTPCodec(endpoint, incoming, path))


class HTTPCodec:
    """Reads one HTTP+JSON request and writes its response; see `pipeline.Codec`."""

    __slots__ = (
        *("_body", "_dialect", "_endpoint", "_fields", "_incoming", "_path"),
        *("operation", "versions"),
    )

    operation: Operation
    versions: tuple[str, ...]
    other_version = ""

    def __init__(self, endpoint: Endpoint, incoming: HTTPRequest, path: str) -> None:
        self._endpoint = endpoint
        self._incoming = incoming
        self._path = path
        self._dialect: Paths = v1_0
        if path.startswith("/v1/") and older(incoming.version()):
            javascript = client_quirks.is_javascript_sdk(incoming.header(b"user-agent"))
            self._dialect = v0_3.RAW_FILES if javascript else v0_3.JSON

    def route(self) -> bool:
        """Find the operation by the path."""
        found = _find(self._incoming.method, self._path)
        self.operation, self.versions, self._fields = found
        return True

    async def read(self) -> bytes:
        """Read the body of a POST; other methods have none."""
        return await self._incoming.body() if self._incoming.method == "POST" else b""

    def open(self, body: bytes) -> None:
        """Store the body."""
        self._body = body

    def decode(self, call: Call) -> pipeline.Decoded:
        """Build the request from path, query and body."""
        kind, incoming, dialect = self.operation.request, self._incoming, self._dialect
        fields, body, self._body = self._fields, self._body, b""
        query = incoming.query() if incoming.scope.get("query_string") else {}
        query.pop("A2A-Version", None)
        if incoming.method != "POST":
            return dialect.convert(kind, _merged(query, fields), text=True), call
        if fields.keys() <= {"tenant"} and body and dialect is v1_0:
            request = v1_0.decode(kind, body)
            if fields:
                _agree(getattr(request, "tenant", ""), fields["tenant"], "tenant")
                request = replace(request, **fields)
            return request, call
        document = v1_0.parse(body) if body.strip() else {}
        if not isinstance(document, dict):
            raise InvalidParams.at("body", "expected an object")
        return dialect.convert(kind, _merged({**query, **document}, fields)), call

    def encode(self, answer: Any) -> bytes:
        """Return the body; an empty object if the operation returns nothing."""
        return b"{}" if answer is None else self._dialect.encode(answer)

    def send(self, body: bytes, call: Call) -> Awaitable[None]:
        """Send a response."""
        headers = extension_headers(call)
        if self._incoming.method == "GET":
            headers.append(PRIVATE)
        return self._incoming.respond(200, body, _media_type(self._dialect), headers)

    async def stream(self, stream: LogStream, call: Call) -> None:
        """Send a stream as server-sent events."""
        await SSEResponse(self._incoming, stream, call, self._dialect).run(
            self._endpoint.streams,
            lambda error: b"event: error\ndata: %b\n\n" % _error(error, self._dialect),
        )

    async def fail(self, error: A2AError) -> None:
        """Send an error in the version of the request."""
        await fail(self._incoming, error, self._dialect)


PRIVATE = (b"cache-control", b"no-store")
"""Keeps responses to GET, and errors, out of caches."""


async def fail(incoming: HTTPRequest, error: A2AError, dialect: Paths = v1_0) -> None:
    """Send an error."""
    incoming.failed(error)
    headers = (PRIVATE, *headers_of(error.headers))
    await incoming.respond(error.http, _error(error, dialect), _media_type(dialect), headers)


def _error(error: A2AError, dialect: Paths) -> bytes:
    return v1_0.encode(error.to_http() if dialect is v1_0 else v0_3.problem(error))


def _media_type(dialect: Paths) -> bytes:
    return A2A if dialect is v1_0 else JSON


def _find(method: str, path: str) -> Found:
    """Return the operation of a path, which may begin with a tenant."""
    found = _match(method, path)
    if found is not None:
        return found
    tenant, slash, rest = path[1:].partition("/")
    why = reserved(tenant) if slash else ""
    if slash and tenant and not why:
        found = _match(method, f"/{rest}")
        if found is not None and found[1] == ("1.0",):
            found[2]["tenant"] = tenant
            return found
    more = f"; the tenant {why}" if why else ""
    raise MethodNotFound(f"Nothing is served at {path[:128]!r}{more}")


def _match(method: str, path: str) -> Found | None:
    allowed: dict[str, None] = {}
    for route in ROUTES:
        match = route.pattern.fullmatch(path)
        if match is None:
            continue
        operation = route.operation
        if method in operation.verbs:
            fields = {k: v.replace(SLASH, "/") for k, v in match.groupdict().items()}
            return operation, (route.version,), fields
        allowed |= dict.fromkeys(operation.verbs)
        if ":" in operation.path:
            break  # a later template would read `id:cancel` as a task id
    if not allowed:
        return None
    verbs = ", ".join(allowed)
    raise MethodNotAllowed(f"{path[:128]} requires {verbs}, not {method}", headers={"allow": verbs})


def _merged(found: dict[str, Any], fields: dict[str, str]) -> dict[str, Any]:
    """Add the fields of the path to those of the body or query; they must not differ."""
    for name, value in fields.items():
        snake = re.sub(r"([A-Z])", r"_\1", name).lower()
        for known in (name, snake):
            _agree(found.pop(known, None), value, name)
        found[name] = value
    return found


def _agree(value: Any, path: str, name: str) -> None:
    if value not in (None, "", path):
        raise InvalidParams.at(name, "differs from the one in the path")
