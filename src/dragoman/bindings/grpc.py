"""The gRPC binding, which has its own port. It needs the extra `grpc`."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dragoman.bindings import pipeline
from dragoman.bindings.access_log import GONE, AccessLine
from dragoman.bindings.agent_endpoint import Endpoint
from dragoman.bindings.authentication import origin
from dragoman.bindings.card_interfaces import grpc_address
from dragoman.bindings.http_request import extensions_of
from dragoman.bindings.pipeline import Decoded
from dragoman.bindings.repeated_headers import check_single
from dragoman.bindings.request_body import Arriving, BodyReader, bulk
from dragoman.bindings.sse import asking, current, formed, fresh_start, wrote
from dragoman.dialects import client_quirks, protobuf, v1_0
from dragoman.dialects.protobuf.package_codec import OLDER, PACKAGES, RAW_FILES, PackageCodec
from dragoman.model.caller import Call, Caller, Request
from dragoman.model.errors import (
    A2AError,
    AmbiguousRequest,
    InternalError,
    InvalidRequest,
    Unavailable,
)
from dragoman.model.events import RESUME, Entry
from dragoman.model.operations import Operation
from dragoman.model.operator import OperatorAccess
from dragoman.model.protocol import GRPC
from dragoman.server.reader import LogStream
from dragoman.server.settings import Settings
from dragoman.telemetry.logs import logger
from dragoman.telemetry.metrics import Metrics

Context: TypeAlias = Any  # grpc has no types
ERRORS = {code.name: code for code in grpc.StatusCode}
DETAILS = "grpc-status-details-bin"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SMALL = 16 * 1024
"""Larger messages are decoded and encoded in a thread, because the protobuf codec is slow."""
SOME = 32
"""The number of events that are encoded before they are sent. One at a time costs more, and all of
them would stay in memory for a slow reader."""


class Port:
    """A gRPC server for one agent: `async with Port(…) as port: port.number`."""

    def __init__(self, endpoint: Endpoint, settings: Settings, port: int) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.number = port
        """The open port; before the start, the requested one, where 0 means any."""
        self._fresh: Any = None
        """Reloaded certificates that gRPC has not fetched yet."""

    async def __aenter__(self) -> Port:
        settings = self.settings
        self._server = server = grpc.aio.server(options=_options(settings))
        names = []
        for package in PACKAGES:
            handlers = {
                name: _handler(self.endpoint, package, operation)
                for name, operation in package.methods.items()
            }
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(package.service, handlers)]
            )
            names.append(package.service)
        self._names = ("", *names, health.SERVICE_NAME)
        self._ready = True
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for name in self._names:
            await self._health.set(name, SERVING)
        names.append(health.SERVICE_NAME)
        names.append(reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server, pool=Pools())
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{self.number}"
        credentials = self._credentials()
        _free(settings.host, self.number)
        try:
            self.number = (
                server.add_secure_port(address, credentials)
                if credentials
                else server.add_insecure_port(address)
            )
        except RuntimeError:
            what = "cert, key: are no certificate and its key" if credentials else ""
            raise Unavailable(what or f"grpc_port: cannot listen on {address}") from None
        await server.start()
        self.endpoint.grpc = self.number
        return self

    async def set_ready(self, ready: bool) -> None:
        """Set the status of the health service; after `drain` it stays NOT_SERVING."""
        if ready is not self._ready:
            self._ready = ready
            for name in self._names:
                await self._health.set(name, SERVING if ready else NOT_SERVING)

    async def drain(self) -> None:
        """Set the status of the health service to NOT_SERVING for good."""
        await self._health.enter_graceful_shutdown()

    async def __aexit__(self, *_: object) -> None:
        self.endpoint.grpc = 0
        await self._server.stop(1.0)

    def _credentials(self) -> grpc.ServerCredentials | None:
        found = self._certificates()
        if found is None:
            return None
        required = bool(_authority(self.settings))
        return grpc.dynamic_ssl_server_credentials(found, self._fetch, required)

    def _certificates(self) -> Any:
        """Read the certificates of HTTP. gRPC uses TLS whenever HTTP does."""
        settings = self.settings
        if not settings.cert:
            return None
        cert = _file("cert", settings.cert)
        key = _file("key", settings.key) if settings.key else cert
        authority = _authority(settings)
        ca = _file("ca", authority) if authority else None
        return grpc.ssl_server_certificate_configuration([(key, cert)], ca)

    def reload(self) -> None:
        """Read the certificate files again and use them for new connections. Raises ValueError if
        they are not usable."""
        found = self._certificates()
        if found is None:
            return
        settings = self.settings
        authority = _authority(settings)
        # gRPC itself would check them only at the next connection
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            trial.load_cert_chain(settings.cert, settings.key or None, lambda: "")
            if authority:
                trial.load_verify_locations(authority)
        except ssl.SSLError as error:
            files = ", ".join(filter(None, (settings.cert, settings.key, authority)))
            raise ValueError(f"{files}: {error.reason or error}") from None
        self._fresh = found

    def _fetch(self) -> Any:
        """Return the certificates if they have changed, else None. gRPC calls this for each
        connection and keeps what it got."""
        fresh, self._fresh = self._fresh, None
        return fresh


def _authority(settings: Settings) -> str:
    """Return the CA bundle for client certificates; empty if they are not required."""
    # gRPC can require client certificates or ignore them, but not request them optionally
    return "" if settings.ca_optional else settings.ca


def _file(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Unavailable(f"{name}: {path}: {error.strerror}") from None


def _options(settings: Settings) -> list[tuple[str, int]]:
    """Return the limits as gRPC channel options."""
    stall, begin = int(settings.stall * 1000), int(settings.header_timeout * 1000)
    return [
        ("grpc.max_receive_message_length", settings.max_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # a second server on the same port must fail to start
        ("grpc.keepalive_time_ms", stall // 2),
        ("grpc.keepalive_timeout_ms", stall // 2),
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.max_connection_idle_ms", stall),
        ("grpc.server_handshake_timeout_ms", begin),
        ("grpc.http2.settings_timeout", begin),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.max_concurrent_streams", settings.grpc_calls),
        # between the soft and the hard limit gRPC rejects at random
        ("grpc.max_metadata_size", settings.max_head),
        ("grpc.absolute_max_metadata_size", settings.max_head),
    ]


def _free(host: str, port: int) -> None:
    """Raise Unavailable with the reason if the port is not free; gRPC writes the reason only to
    stderr."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Unavailable(f"grpc_port: cannot listen on {host}:{port}: {error}") from None


class Pools:
    """The descriptor pools for reflection: dragoman's, and those of health and reflection."""

    def __init__(self) -> None:
        self._pools = (protobuf.pool(), descriptor_pool.Default())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def find(*arguments: Any) -> Any:
            first, second = (getattr(pool, name) for pool in self._pools)
            try:
                return first(*arguments)
            except KeyError:
                return second(*arguments)

        return find


class GrpcRequestInfo:
    """The metadata of one gRPC call as a `RequestInfo`."""

    __slots__ = ("bodies", "context", "counted", "headers", "line", "method", "settings")

    binding = GRPC.label
    caller: Caller | None = None
    operator: OperatorAccess | None = None

    def __init__(self, context: Context, method: str, bodies: BodyReader) -> None:
        self.context = context
        self.method = method
        self.bodies = bodies
        self.settings = bodies.settings
        self.counted = False
        self.line: AccessLine | None = None
        self.headers = {name.encode(): value for name, value in context.invocation_metadata() or ()}

    def check_single(self, endpoint: Endpoint) -> None:
        """Raise AmbiguousRequest if metadata that must appear once are repeated."""
        pairs = self.context.invocation_metadata() or ()
        if len(self.headers) < len(pairs):
            try:
                check_single((name.encode() for name, _ in pairs), endpoint.access.single)
            except AmbiguousRequest as error:
                endpoint.note_refusal("headers", self, error)
                raise

    def header(self, name: bytes) -> str:
        """See `RequestInfo`."""
        return _text(self.headers.get(name, "")).strip()

    def every(self, name: bytes) -> str:
        """See `RequestInfo`."""
        pairs = self.context.invocation_metadata() or ()
        return ",".join(_text(value) for key, value in pairs if key.encode() == name)

    def version(self) -> str:
        """See `RequestInfo`."""
        return self.header(b"a2a-version")

    def request(self) -> Request:
        """See `RequestInfo`."""
        return Request(
            method="POST",
            path=self.method,
            query="",
            headers={name.decode(): _text(value) for name, value in self.headers.items()},
            client=self.peer,
            certificate=self._certificate(),
        )

    def _certificate(self) -> bytes:
        if not _authority(self.settings):  # gRPC did not request one
            return b""
        shown = self.context.auth_context().get("x509_pem_cert") or (b"",)
        return bytes(shown[0])

    async def in_turn(self, call: Call) -> None:
        """See `RequestInfo`. It does not wait, because gRPC encodes large responses in a thread."""

    def reserve(self, size: int, call: Call) -> None:
        """See `RequestInfo`."""
        bodies, address = self.bodies, self.bodies.address(self)
        bodies.budget.take(address, size)
        self.context.add_done_callback(lambda _: bodies.budget.give(address, size))

    def called(self, base: str) -> str:
        """See `RequestInfo`. Only the host of the address is known, and only from the settings."""
        url = grpc_address(self.settings.bindings) or self.settings.url
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
        return f"//[{host}]{self.method}" if ":" in host else f"{host and '//'}{host}{self.method}"

    @property
    def peer(self) -> str:
        """See `RequestInfo`."""
        address = unquote(self.context.peer()).partition(":")[2].rpartition(":")[0]
        return address.strip("[]")

    @property
    def base(self) -> tuple[str, str, str]:
        """See `RequestInfo`. It comes from the settings, because a gRPC call names no URL."""
        scheme = "https" if self.settings.cert else "http"
        return scheme, f"{self.settings.host}:{self.settings.port}", ""


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _handler(
    endpoint: Endpoint, package: PackageCodec, operation: Operation
) -> grpc.RpcMethodHandler:
    name = next(name for name, found in package.methods.items() if found is operation)
    path = f"/{package.service}/{name}"

    async def serve(_: object, context: Context) -> Any:
        info = GrpcRequestInfo(context, path, endpoint.bodies)
        if endpoint.settings.access_log:
            info.line = line = AccessLine("POST", path, origin(info, endpoint.limits))
            context.add_done_callback(lambda _: _ended(line))
        return await pipeline.serve(endpoint, info, GrpcCodec(endpoint, info, package, operation))

    # On the wire, a request stream of one message equals a single request message.
    if operation.streams:
        return grpc.stream_stream_rpc_method_handler(serve)
    return grpc.stream_unary_rpc_method_handler(serve)


class GrpcCodec:
    """Reads one gRPC call and writes its response; see `pipeline.Codec`."""

    __slots__ = ("_body", "_endpoint", "_info", "_package", "operation", "versions")

    other_version = ""

    def __init__(
        self, endpoint: Endpoint, info: GrpcRequestInfo, package: PackageCodec, operation: Operation
    ) -> None:
        self._endpoint = endpoint
        self._info = info
        older = package is OLDER and client_quirks.is_javascript_sdk(info.header(b"user-agent"))
        self._package = RAW_FILES if older else package
        self.operation = operation
        self.versions: tuple[str, ...] = (package.version,)

    def route(self) -> bool:
        """Return True, because the method names the operation."""
        self._info.check_single(self._endpoint)
        return True

    async def read(self) -> bytes:
        """Read the message. gRPC does not read it first, because it would accept any number of
        large messages before their callers are authenticated."""
        bodies, arriving = self._info.bodies, Arriving()
        arriving.hidden = self._info  # gRPC does not say how much of a message has come
        try:
            body = await bodies.wait(self._info.context.read(), arriving)
        finally:
            if arriving.counted:
                bodies.decoded(arriving)
        if not isinstance(body, bytes):
            raise InvalidRequest("The call contains no message")
        return body

    def open(self, body: bytes) -> None:
        """Store the message."""
        self._body = body

    def decode(self, call: Call) -> Decoded | Awaitable[Decoded]:
        """Decode the request, in a thread if it is large."""
        body, self._body = self._body, b""
        if len(body) > SMALL:
            return self._decode_large(body, call)
        return self._package.decode(self.operation.request, body), call

    async def _decode_large(self, body: bytes, call: Call) -> Decoded:
        bodies, kind = self._info.bodies, self.operation.request
        address, max_elements = bodies.address(self._info), self._info.settings.max_elements
        bodies.budget.take(address, len(body))
        try:
            return await bodies.aside(self._package.decode, kind, body, max_elements), call
        finally:
            bodies.budget.give(address, len(body))

    def encode(self, answer: Any) -> bytes | Awaitable[bytes]:
        """Encode the response, in a thread if it is large."""
        encode = self._package.encode
        return encode(answer) if bulk(answer) <= SMALL else self._info.bodies.aside(encode, answer)

    async def send(self, body: bytes, call: Call) -> bytes:
        """Return the message, which gRPC then sends."""
        await _begin(self._info.context, call)
        if self._info.line is not None:
            self._info.line.complete = True
        return body

    async def stream(self, stream: LogStream, call: Call) -> None:
        """Send a stream to its end, and the error if it fails."""
        info = self._info
        try:
            await GrpcStream(info.context, stream, self._package, call).run(self._endpoint)
            if info.line is not None:
                info.line.complete = True
            return
        except A2AError as error:
            failure = pipeline.without_traceback(error)
        except Exception as error:
            logger.exception("internal error in a stream")
            failure = InternalError.of(error)
        await self.fail(failure)

    async def fail(self, error: A2AError) -> Any:
        """End the call with an error."""
        info = self._info
        if info.line is not None:
            info.line.outcome, info.line.grpc_status = error.reason, error.grpc
        trailers: list[tuple[str, str | bytes]] = [(DETAILS, protobuf.status(error))]
        trailers += [(name, value) for name, value in error.headers.items() if name != "connection"]
        await info.context.abort(
            ERRORS[error.grpc], self._package.words(error), trailing_metadata=tuple(trailers)
        )


async def _begin(context: Context, call: Call) -> None:
    """Send the metadata that list the active extensions, if there are any."""
    if call.caller.extensions:
        await context.send_initial_metadata((extensions_of(call),))


class GrpcStream:
    """Sends one stream to one client."""

    def __init__(
        self, context: Context, stream: LogStream, package: PackageCodec, call: Call
    ) -> None:
        self.context = context
        self.stream = stream
        self.package = package
        self.sending = 0.0
        """See `OpenStream.sending`."""
        self.sent = time.monotonic()
        self.owner = call.caller.owner
        self.expires = call.caller.expires
        self._call = call
        self._places = RESUME in call.caller.extensions
        self._cut = False
        self._metrics: Metrics | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Do nothing, because gRPC cancels the call when the client disconnects."""

    def beat(self) -> None:
        """Only note the time, because gRPC sends its own pings."""
        self.sent = time.monotonic()

    def expire(self) -> None:
        """End the stream with UNAUTHENTICATED."""
        self.stream.nudge()

    def cut(self) -> None:
        """End a stream whose client does not read; the client can resume it."""
        if self._task is not None and not self._cut:
            self._cut = True
            self._task.cancel()

    async def run(self, endpoint: Endpoint) -> None:
        """Send the stream to its end."""
        self._task = asyncio.current_task()
        self._metrics = endpoint.streams.metrics
        self._bodies = endpoint.bodies
        endpoint.streams.add(self)
        try:
            await _begin(self.context, self._call)
            await self._send_events()
        except asyncio.CancelledError:
            if not self._cut or self._task is None or self._task.uncancel():
                raise
            raise Unavailable("The client has read nothing for too long") from None
        finally:
            endpoint.streams.remove(self)
            self.stream.close()

    async def _send_events(self) -> None:
        write = self.context.write
        asked: Entry | None = None
        while (entries := await self.stream.next()) is not None:
            current(self.expires)
            final = entries[-1] if self.stream.over and entries else None
            if self.package.version != "1.0" and entries:
                asked = asking(entries[-1], final)
            for start in range(0, len(entries), SOME):
                for wire in await self._wires(entries[start : start + SOME], final):
                    if wire:
                        self.sending = time.monotonic()
                        await write(wire)
            self.sent, self.sending = time.monotonic(), 0.0
            if self._metrics is not None:
                wrote(self._metrics, self.stream, entries)
        if asked is not None:
            await write(self._wire(asked, last=True))

    async def _wires(self, entries: Sequence[Entry], final: Entry | None) -> list[bytes]:
        def encode() -> list[bytes]:
            return [self._wire(entry, entry is final) for entry in entries]

        if all(len(v1_0.streamed(entry)) <= SMALL for entry in entries):
            return encode()
        return await self._bodies.aside(encode)

    def _wire(self, entry: Entry, last: bool) -> bytes:
        if self._places and self.stream.reset:
            self.stream.reset = False
            return fresh_start(self.package, entry, last)
        return formed(self.package, entry, last, places=self._places)


def _ended(line: AccessLine) -> None:
    """Write the access log line of a call that has ended."""
    if not line.outcome:
        line.outcome, line.grpc_status = ("ok", "OK") if line.complete else (GONE, "CANCELLED")
    line.write()
