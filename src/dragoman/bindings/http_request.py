"""One HTTP request and its response, over plain ASGI."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from dragoman.bindings.access_log import AccessLine
from dragoman.bindings.request_body import LARGE, Arriving, BodyReader, Headers
from dragoman.model.caller import Call, Caller, Request
from dragoman.model.errors import A2AError, BodyTooLarge, MediaTypeNotAccepted
from dragoman.model.operator import OperatorAccess
from dragoman.model.protocol import HTTP_JSON
from dragoman.security.byte_budget import SMALL

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SLASH = "\ue000"
"""Replaces a percent-encoded slash in a path, because that slash does not separate segments."""
JSON = b"application/json"
A2A = b"application/a2a+json"

_SLASHES = re.compile(r"/{2,}")
_HOST = re.compile(r"(?:[\w.~-]+|\[[\da-fA-F:.]+\])(?::\d{1,5})?", re.ASCII)


class Gone(Exception):
    """The client disconnected before its request had arrived."""


class RequestInfo(Protocol):
    """The metadata of a request that the endpoint reads, the same for every binding."""

    counted: bool
    """Whether the metrics have counted the request."""
    line: AccessLine | None
    """The line of the request in the access log; None if the access log is off."""
    caller: Caller | None
    """The caller, if code of this process has named it; see `App.for_caller`."""
    operator: OperatorAccess | None
    """Set if that caller acts as an operator; see `App.for_operator`."""

    @property
    def binding(self) -> str:
        """The binding that received the request: jsonrpc, http or grpc."""

    @property
    def headers(self) -> Iterable[bytes]:
        """The names of the headers in lower case."""

    def header(self, name: bytes) -> str:
        """Return the value of a header; empty if it is missing."""

    def every(self, name: bytes) -> str:
        """Return all values of a list header, joined by commas."""

    def version(self) -> str:
        """Return the protocol version that the request names; empty if it names none."""

    def request(self) -> Request:
        """Return the request as `identify` receives it."""

    def called(self, base: str) -> str:
        """Return the URL that the client called, below the application's URL `base`; for gRPC, the
        path."""

    async def in_turn(self, call: Call) -> None:
        """Wait until a response may be encoded, if this caller recently got a large one."""

    def reserve(self, size: int, call: Call) -> None:
        """Count the bytes of a large response until it is sent. Raises A2AError if too many bytes
        are in flight."""

    @property
    def peer(self) -> str:
        """The address at the other end of the connection, which may be a proxy."""

    @property
    def base(self) -> tuple[str, str, str]:
        """The scheme, host and path under which the caller reached the application."""


class HTTPRequest:
    """An HTTP request that reads its parts on demand, with methods that send a response."""

    __slots__ = (
        *("always", "binding", "bodies", "counted", "headers", "line"),
        *("path", "receive", "reserved", "root", "scope", "send", "settings"),
    )

    caller: Caller | None = None
    operator: OperatorAccess | None = None

    def __init__(self, scope: Scope, receive: Receive, send: Send, bodies: BodyReader) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.bodies = bodies
        self.settings = bodies.settings
        self.binding, self.counted = HTTP_JSON.label, False
        self.line: AccessLine | None = None
        self.reserved = 0
        """The bytes of the response that are counted as in flight."""
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.always = bodies.always
        """The headers of every response."""
        if self.settings.hsts and self._is_https():
            self.always = bodies.secure
        self.root: str = scope.get("root_path", "").rstrip("/")
        path = self._raw_path()
        if "//" in path:  # some clients append a path to a URL that ends with a slash
            path = _SLASHES.sub("/", path)
        self.path = path
        """The path below the place where the application is mounted, without empty segments."""

    def _raw_path(self) -> str:
        """Return the path below the mount point as the client wrote it."""
        path: str = self.scope["path"]
        if b"%2" in self.scope.get("raw_path", b"") and SLASH not in path:
            path = _mark_slashes(self.scope["raw_path"])
        if self.root and (path == self.root or path.startswith(f"{self.root}/")):
            path = path[len(self.root) :]
        return path or "/"

    def follow(self, client: str) -> AccessLine:
        """Start the access log line of this request. `client` is the client's address behind the
        trusted proxies."""
        # The path stays encoded: a decoded one can contain spaces and imitate other fields.
        raw = self.scope.get("raw_path") or quote(self.scope["path"]).encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        line, send = AccessLine(self.method, path, client), self.send

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                line.status = message["status"]
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                line.complete = True

        self.line, self.send = line, recorded
        return line

    def failed(self, error: A2AError) -> None:
        """Record for the access log that the response is this error."""
        if self.line is not None:
            self.line.outcome = error.reason

    def _is_https(self) -> bool:
        """Whether the client used https, as far as the server and trusted proxies know."""
        scheme = self.scope.get("scheme", "http")
        if self.settings.trust_forwarded:
            forwarded = self.header(b"x-forwarded-proto").partition(",")[0]
            scheme = forwarded.strip() if forwarded else scheme
        return bool(scheme == "https")

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.scope["method"]  # type: ignore[no-any-return]

    def header(self, name: bytes) -> str:
        """See `RequestInfo.header`."""
        return self.headers.get(name, b"").decode("latin-1").strip()

    def every(self, name: bytes) -> str:
        """See `RequestInfo.every`."""
        return ",".join(v.decode("latin-1") for k, v in self.scope["headers"] if k == name)

    @property
    def peer(self) -> str:
        """See `RequestInfo.peer`."""
        return str((self.scope.get("client") or ("",))[0])

    @property
    def base(self) -> tuple[str, str, str]:
        """See `RequestInfo.base`."""
        host = named(self.header(b"host"))
        if not host:
            server = self.scope.get("server") or ("127.0.0.1", None)
            host = f"{server[0]}:{server[1]}" if server[1] else str(server[0])
        return self.scope.get("scheme", "http"), host, self.root

    def version(self) -> str:
        """See `RequestInfo.version`."""
        header = self.headers.get(b"a2a-version")
        if header == b"1.0":
            return "1.0"
        if header is not None and (version := header.decode("latin-1").strip()):
            return version
        return self.query().get("A2A-Version", "") if self.scope.get("query_string") else ""

    def query(self) -> dict[str, str]:
        """Return the query parameters; for a repeated name, the last value."""
        text = self.scope.get("query_string", b"").decode("latin-1")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=None))

    def request(self) -> Request:
        """See `RequestInfo.request`."""
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in self.scope["headers"]}
        if b"cookie" in self.headers:  # HTTP/2 may split the cookie header
            lines = [v for k, v in self.scope["headers"] if k == b"cookie"]
            headers["cookie"] = b"; ".join(lines).decode("latin-1")
        return Request(
            method=self.method,
            path=self.scope["path"],
            query=self.scope.get("query_string", b"").decode("latin-1"),
            headers=headers,
            client=self.peer,
            certificate=self._certificate(),
            scope=self.scope,
        )

    def _certificate(self) -> str:
        """Return the client certificate that the server verified, if it reports one."""
        tls = (self.scope.get("extensions") or {}).get("tls")
        if not tls or tls.get("client_cert_error"):
            return ""
        return next(iter(tls.get("client_cert_chain") or ()), "")

    def called(self, base: str) -> str:
        """See `RequestInfo.called`."""
        return base + quote(self._raw_path().replace(SLASH, "/"))

    async def body(self) -> bytes:
        """Read the whole body within the limits on size, time, elements and depth, and check that
        its type is JSON. The caller must decode it before its next await."""
        kind = self.headers.get(b"content-type")
        if kind != JSON:
            self._check_type(kind or b"")
        return await self.content(json=True)

    async def content(self, *, json: bool = False) -> bytes:
        """Read the whole body, of any type, within the limits on size and time, and for JSON also
        on elements and depth."""
        settings = self.settings
        if self._declared() > settings.max_body:
            raise _too_large(settings.max_body)
        arriving = Arriving()
        try:
            message = await self.bodies.wait(self.receive(), arriving)
            found: bytes = message.get("body", b"")
            if message.get("more_body") or not 0 < len(found) <= self.bodies.uncounted:
                rest = self._read(message, settings.max_body, arriving)
                found = await self.bodies.wait(rest, arriving)
            if json and not self.bodies.light(found):
                await self.bodies.admit(found)
        finally:
            if arriving.counted:
                self.bodies.decoded(arriving)
        return found

    def _check_type(self, kind: bytes) -> None:
        # A browser sends other types, or none, to another site without a CORS preflight.
        bare = kind.partition(b";")[0].strip().lower()
        if bare in (JSON, A2A) or bare.endswith(b"+json"):
            return
        if kind.strip():
            text = bare.decode("latin-1")[:64]
            raise MediaTypeNotAccepted(f"Content-Type must be application/json, not {text!r}")
        if b"origin" in self.headers or self.header(b"sec-fetch-site") == "cross-site":
            raise MediaTypeNotAccepted("Content-Type is missing; it must be application/json")

    async def _read(self, message: Any, limit: int, arriving: Arriving) -> bytes:
        """Read the rest of the body after this first message, and return it all."""
        chunks: list[bytes] = []
        while True:
            if message["type"] == "http.disconnect":
                raise Gone
            chunk: bytes = message.get("body", b"")
            if arriving.size + len(chunk) > limit:
                raise _too_large(limit)
            more = message.get("more_body", False)
            if more or len(chunk) > SMALL:
                self.bodies.came(arriving, len(chunk), self)
            if not more:
                return b"".join((*chunks, chunk)) if chunks else chunk
            chunks.append(chunk)
            message = await self.receive()

    def _declared(self) -> int:
        length = self.headers.get(b"content-length", b"0")
        return int(length) if length.isdigit() and len(length) < 19 else 0

    async def in_turn(self, call: Call) -> None:
        """See `RequestInfo.in_turn`."""
        if self._caller_key(call) in self.bodies.large:
            await self.bodies.pace.next()

    def reserve(self, size: int, call: Call | None = None) -> None:
        """See `RequestInfo.reserve`."""
        address = self.bodies.address(self)
        self.bodies.budget.take(address, size)
        self.reserved += size
        if call is not None and size > LARGE:
            self.bodies.remember(self._caller_key(call))

    def _caller_key(self, call: Call) -> str:
        return call.caller.owner or self.bodies.address(self)

    def release(self) -> None:
        """Stop counting the reserved bytes, once they are sent."""
        if self.reserved:
            self.bodies.budget.give(self.bodies.address(self), self.reserved)
            self.reserved = 0

    async def respond(
        self, status: int, body: bytes, kind: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Send a response with a complete body. A large body goes out in pieces, so that the
        server waits for a slow reader."""
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", kind),
                    (b"content-length", b"%d" % len(body)),
                    *self.always,
                    *headers,
                ],
            }
        )
        if len(body) > SMALL:
            for start in range(0, len(body) - SMALL, SMALL):
                piece = body[start : start + SMALL]
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
            body = body[(len(body) - 1) // SMALL * SMALL :]
        await self.send({"type": "http.response.body", "body": body})

    async def nothing(self, status: int = 204, headers: Headers = ()) -> None:
        """Send a response without a body."""
        found = [*self.always, *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": found})
        await self.send({"type": "http.response.body", "body": b""})

    async def begin(self, kind: bytes, headers: Headers = ()) -> None:
        """Send the head of a streamed response."""
        await self.send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", kind), *self.always, *headers],
            }
        )
        # a server may delay the head until the first body message, which can take long
        await self.send({"type": "http.response.body", "body": b"", "more_body": True})


def named(text: str) -> str:
    """Return the host, with an optional port, that a header names; empty if it is not valid."""
    try:
        _ = urlsplit(f"//{text}").port
    except ValueError:
        return ""
    return text if _HOST.fullmatch(text) else ""


def _mark_slashes(raw: bytes) -> str:
    """Decode a path, and write each percent-encoded slash as SLASH."""
    return "/".join(unquote(part).replace("/", SLASH) for part in raw.decode("latin-1").split("/"))


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limit} bytes")


def headers_of(values: dict[str, str]) -> Headers:
    """Return headers in the form that ASGI requires."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in values.items()]


def extension_headers(call: Call) -> list[tuple[bytes, bytes]]:
    """Return the header that lists the active extensions, if there are any."""
    if not call.caller.extensions:
        return []
    name, active = extensions_of(call)
    return [(name.encode(), active.encode("latin-1"))]


def extensions_of(call: Call) -> tuple[str, str]:
    """Return the name and value of the header that lists the active extensions."""
    name = "a2a-extensions" if call.caller.version == "1.0" else "x-a2a-extensions"
    return name, ", ".join(call.caller.extensions)
