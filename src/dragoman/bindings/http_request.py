"""One HTTP request and its response, on plain ASGI."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from dragoman.bindings.access_log import AccessLine
from dragoman.bindings.request_body import LARGE, Arriving, BodyReader, Headers
from dragoman.model.caller import Call, Request
from dragoman.model.errors import A2AError, MediaTypeNotAccepted, TooLarge
from dragoman.security.byte_budget import SMALL

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SLASH = "\ue000"
"""Stands in a path for a slash that was percent-encoded, and so separates nothing."""
JSON = b"application/json"
A2A = b"application/a2a+json"

_SLASHES = re.compile(r"/{2,}")
_HOST = re.compile(r"(?:[\w.~-]+|\[[\da-fA-F:.]+\])(?::\d{1,5})?", re.ASCII)


class Gone(Exception):
    """The client went away before its request had arrived."""


class RequestInfo(Protocol):
    """What the endpoint needs to know of a request, over whatever it came."""

    counted: bool
    """Whether it has been put down for the figures."""
    line: AccessLine | None
    """What the access log says of it, if there is one."""

    @property
    def binding(self) -> str:
        """Over what it came: jsonrpc, http, grpc."""

    @property
    def headers(self) -> Iterable[bytes]:
        """The names of its headers, in lower case."""

    def header(self, name: bytes) -> str:
        """A header's text, or nothing."""

    def every(self, name: bytes) -> str:
        """All lines of a list header, as one."""

    def version(self) -> str:
        """The version of the protocol that it names, if it does."""

    def request(self) -> Request:
        """What `identify` is shown."""

    def called(self, base: str) -> str:
        """The URL that was called, where this is that of the application; of gRPC its path."""

    async def in_turn(self, call: Call) -> None:
        """Wait until an answer may be encoded, if this caller has had a large one lately."""

    def reserve(self, size: int, call: Call) -> None:
        """Count the bytes of a large answer until it is sent; errors if too many are counted."""

    @property
    def peer(self) -> str:
        """The address that it came from, which may be a proxy's."""

    @property
    def base(self) -> tuple[str, str, str]:
        """Scheme, host and path at which the caller has reached the application."""


class HTTPRequest:
    """The request's parts as they are needed, and ways to answer."""

    __slots__ = (
        *("always", "binding", "bodies", "counted", "headers", "line"),
        *("path", "receive", "reserved", "root", "scope", "send", "settings"),
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, bodies: BodyReader) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.bodies = bodies
        self.settings = bodies.settings
        self.binding, self.counted = "http", False
        self.line: AccessLine | None = None
        self.reserved = 0
        """The bytes of its answer that count as under way."""
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.always = bodies.always
        """The headers of its answer, whatever that is."""
        if self.settings.hsts and self._safe():
            self.always = bodies.secure
        self.root: str = scope.get("root_path", "").rstrip("/")
        path = self._asked()
        if "//" in path:  # clients append paths to an address that ends with a slash
            path = _SLASHES.sub("/", path)
        self.path = path
        """The path below the place where the application is mounted, without empty segments."""

    def _asked(self) -> str:
        """The same as the client wrote it."""
        path: str = self.scope["path"]
        if b"%2" in self.scope.get("raw_path", b"") and SLASH not in path:
            path = _apart(self.scope["raw_path"])
        if self.root and (path == self.root or path.startswith(f"{self.root}/")):
            path = path[len(self.root) :]
        return path or "/"

    def follow(self, client: str) -> AccessLine:
        """Note for the access log what is answered; the client is whoever proxies say it is."""
        # as it was sent: a decoded path can have spaces, and so look like other fields
        raw = self.scope.get("raw_path") or quote(self.scope["path"]).encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        line, send = AccessLine(self.method, path, client), self.send

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                line.status = message["status"]
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                line.complete = True

        self.line, self.send = line, noted
        return line

    def failed(self, error: A2AError) -> None:
        """Note for the access log that the answer is this error."""
        if self.line is not None:
            self.line.outcome = error.reason

    def _safe(self) -> bool:
        """Whether the request came over https, as far as is known here."""
        told = self.settings.trust_forwarded and self.header(b"x-forwarded-proto").partition(",")[0]
        return (told.strip() if told else self.scope.get("scheme", "http")) == "https"

    @property
    def method(self) -> str:
        """The verb."""
        return self.scope["method"]  # type: ignore[no-any-return]

    def header(self, name: bytes) -> str:
        """A header's text, or nothing."""
        return self.headers.get(name, b"").decode("latin-1").strip()

    def every(self, name: bytes) -> str:
        """All lines of a list header, as one."""
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
        told = self.headers.get(b"a2a-version")
        if told == b"1.0":
            return "1.0"
        if told is not None and (version := told.decode("latin-1").strip()):
            return version
        return self.query().get("A2A-Version", "") if self.scope.get("query_string") else ""

    def query(self) -> dict[str, str]:
        """The query parameters; the last of several with one name."""
        text = self.scope.get("query_string", b"").decode("latin-1")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=None))

    def request(self) -> Request:
        """What `identify` is shown."""
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in self.scope["headers"]}
        if b"cookie" in self.headers:  # HTTP/2 may split it
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
        """What the caller has shown below HTTP, if the server says so and has found it good."""
        tls = (self.scope.get("extensions") or {}).get("tls")
        if not tls or tls.get("client_cert_error"):
            return ""
        return next(iter(tls.get("client_cert_chain") or ()), "")

    def called(self, base: str) -> str:
        """See `RequestInfo.called`."""
        return base + quote(self._asked().replace(SLASH, "/"))

    async def body(self) -> bytes:
        """The whole body: bounded in size and time, declared as JSON, with a bounded number of
        elements and levels. It is to be decoded before anything else is waited for."""
        kind = self.headers.get(b"content-type")
        if kind != JSON:
            self._check_type(kind or b"")
        settings = self.settings
        if self._declared() > settings.max_body:
            raise _too_large(settings.max_body)
        arriving = Arriving()
        try:
            message = await self.bodies.wait(self.receive(), arriving)
            found: bytes = message.get("body", b"")
            if message.get("more_body") or not 0 < len(found) <= self.bodies.whole:
                rest = self._read(message, settings.max_body, arriving)
                found = await self.bodies.wait(rest, arriving)
            if not self.bodies.light(found):
                await self.bodies.admit(found)
        finally:
            if arriving.counted:
                self.bodies.decoded(arriving)
        return found

    def _check_type(self, kind: bytes) -> None:
        # A browser may send other types, or none, across sites without asking first.
        bare = kind.partition(b";")[0].strip().lower()
        if bare in (JSON, A2A) or bare.endswith(b"+json"):
            return
        if kind.strip():
            text = bare.decode("latin-1")[:64]
            raise MediaTypeNotAccepted(f"Content-Type must be application/json, not {text!r}")
        if b"origin" in self.headers or self.header(b"sec-fetch-site") == "cross-site":
            raise MediaTypeNotAccepted("Content-Type is missing; it must be application/json")

    async def _read(self, message: Any, limit: int, arriving: Arriving) -> bytes:
        """The body of which this message is the first."""
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
        if self._who(call) in self.bodies.large:
            await self.bodies.pace.next()

    def reserve(self, size: int, call: Call | None = None) -> None:
        """See `RequestInfo.reserve`."""
        address = self.bodies.address(self)
        self.bodies.budget.take(address, size)
        self.reserved += size
        if call is not None and size > LARGE:
            self.bodies.remember(self._who(call))

    def _who(self, call: Call) -> str:
        return call.caller.owner or self.bodies.address(self)

    def release(self) -> None:
        """They are sent."""
        if self.reserved:
            self.bodies.budget.give(self.bodies.address(self), self.reserved)
            self.reserved = 0

    async def respond(
        self, status: int, body: bytes, kind: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Answer with a whole body; a large one in pieces, which the reader takes one by one."""
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
        """Answer that there is nothing to say."""
        found = [*self.always, *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": found})
        await self.send({"type": "http.response.body", "body": b""})

    async def begin(self, kind: bytes, headers: Headers = ()) -> None:
        """Begin an answer whose body comes in pieces."""
        await self.send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", kind), *self.always, *headers],
            }
        )
        # a server may hold the head back until there is a body, which may take its time
        await self.send({"type": "http.response.body", "body": b"", "more_body": True})


def named(text: str) -> str:
    """The host, and perhaps port, that a header names; nothing if it names none."""
    try:
        _ = urlsplit(f"//{text}").port
    except ValueError:
        return ""
    return text if _HOST.fullmatch(text) else ""


def _apart(raw: bytes) -> str:
    """The path with the slashes that belong to a name marked."""
    return "/".join(unquote(part).replace("/", SLASH) for part in raw.decode("latin-1").split("/"))


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes")


def headers_of(values: dict[str, str]) -> Headers:
    """Header values as ASGI wants them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in values.items()]


def extension_headers(call: Call) -> list[tuple[bytes, bytes]]:
    """The header that repeats which extensions are active, if there are any."""
    if not call.caller.extensions:
        return []
    name, active = extensions_of(call)
    return [(name.encode(), active.encode("latin-1"))]


def extensions_of(call: Call) -> tuple[str, str]:
    """The name of the header of active extensions, and its value."""
    name = "a2a-extensions" if call.caller.version == "1.0" else "x-a2a-extensions"
    return name, ", ".join(call.caller.extensions)
