"""gRPC calls for the transport: a request is one message, a response is one message per piece.

It needs the extra `grpc`. The response looks like HTTP: a status, the trailers as headers, and the
details of an error as the body.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import grpc

from dragoman.client import tls
from dragoman.client.address_rules import (
    Allow,
    Dial,
    NotAllowed,
    addresses,
    host_and_port,
    rules_for,
)
from dragoman.client.transport import (
    Broken,
    Silent,
    Trace,
    TransportRequest,
    TransportResponse,
    Unreachable,
    origin,
    tls_reason,
)

FRESH = 10.0
"""Seconds for which a checked address is reused."""
DETAILS = "grpc-status-details-bin"
STATUSES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
}
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # the client retries
    ("grpc.primary_user_agent", "dragoman"),
    # The client decides how often to retry, so a server that is back must be found soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class Calls:
    """Channels by address. Each connects when it is first needed."""

    def __init__(self, context: ssl.SSLContext | None = None, trace: Trace | None = None) -> None:
        self._context = context
        self._trace = trace
        self._channels: dict[tuple[str, str, ssl.SSLContext | None, int], Any] = {}
        self._resolved: dict[tuple[str, Allow], tuple[str, float]] = {}
        """The targets of checked addresses, and when each of them expires."""

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`. The response to a stream is ready with its first message."""
        assert isinstance(request.body, bytes)
        parts = urlsplit(request.url)
        target = await self._target(request, parts.netloc)
        channel = self._channel(parts.scheme, parts.netloc, target, request.tls, request.longest)
        metadata = [(name.lower(), value) for name, value in request.headers.items()]
        if self._trace is not None:
            lines = [f"gRPC {parts.path} ({len(request.body)} bytes)"]
            lines += [f"{name}: {value}" for name, value in metadata]
            self._trace(True, "\r\n".join([*lines, "", ""]).encode())
        call = channel.unary_stream(parts.path)(request.body, metadata=tuple(metadata))
        answer = GrpcResponse(call, origin(request.url), request.patience)
        await answer.begin()
        if self._trace is not None:
            self._trace(False, f"gRPC {answer.name}\r\n\r\n".encode())
        return answer

    async def _target(self, request: TransportRequest, netloc: str) -> str:
        """The target for gRPC: the name, or its addresses after a check."""
        allow = rules_for(request.url, request.allow)
        if allow is None:
            return f"dns:///{netloc}"  # otherwise gRPC reads some names as schemes
        where = origin(request.url)
        target, until = self._resolved.get((where, allow), ("", 0.0))
        if time.monotonic() < until:
            return target
        try:
            found = await addresses(Dial(where, allow))
        except NotAllowed:
            raise
        except OSError as error:
            raise Unreachable(f"{where}: {error.strerror or error}") from error
        port = host_and_port(where)[1]
        six = ":" in found[0]  # a target has addresses of one kind
        hosts = [text for text in found if (":" in text) == six]
        target = f"ipv{6 if six else 4}:" + ",".join(
            f"[{host}]:{port}" if six else f"{host}:{port}" for host in hosts
        )
        self._resolved[where, allow] = target, time.monotonic() + FRESH
        return target

    def _channel(
        self, scheme: str, netloc: str, target: str, tls: ssl.SSLContext | None, longest: int
    ) -> Any:
        context = tls or self._context
        key = netloc, target, context if scheme == "grpcs" else None, longest
        channel = self._channels.get(key)
        if channel is None:
            options: tuple[tuple[str, Any], ...]
            options = (*OPTIONS, ("grpc.max_receive_message_length", longest))
            if not target.startswith("dns:"):  # for the certificate and the server
                options = (*options, ("grpc.default_authority", netloc))
            if scheme == "grpcs":
                credentials = _credentials(context)
                channel = grpc.aio.secure_channel(target, credentials, options)
            else:
                channel = grpc.aio.insecure_channel(target, options)
            self._channels[key] = channel
        return channel

    async def close(self) -> None:
        """See `Transport.close`."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel in channels.values()))


def _credentials(context: ssl.SSLContext | None) -> Any:
    """Make gRPC credentials from a TLS context."""
    if context is None:
        return grpc.ssl_channel_credentials()
    found = tls.papers(context)
    return grpc.ssl_channel_credentials(
        found.trusted or None,
        private_key=found.key or None,
        certificate_chain=found.certificate or None,
    )


class GrpcResponse:
    """See `TransportResponse`."""

    def __init__(self, call: Any, where: str, patience: float | None) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = {}
        self.name = "OK"
        """gRPC's name of the status."""
        self._call = call
        self._where = where
        self._patience = patience
        self._first: bytes | None = None
        self._details = b""

    async def begin(self) -> None:
        """Wait for the first message, or for the end of the call."""
        try:
            async with asyncio.timeout(self._patience):
                message = await self._call.read()
            if message is grpc.aio.EOF:
                self._end(await self._call.code(), await self._call.details())
                if self.status != 200:
                    await self._trailers()
            else:
                self._first = message
        except grpc.aio.AioRpcError as error:
            self._end(error.code(), error.details(), error)
            await self._trailers()
        except TimeoutError:
            self._call.cancel()
            raise Silent(f"{self._where}: no data within the time limit") from None
        except asyncio.CancelledError:
            self._call.cancel()
            raise

    async def chunks(self) -> AsyncIterator[bytes]:
        """See `TransportResponse.chunks`: each piece is one message."""
        if self.status != 200:
            if self._details:
                yield self._details
            return
        message = self._first
        try:
            while message is not None and message is not grpc.aio.EOF:
                yield message
                async with asyncio.timeout(self._patience):
                    message = await self._call.read()
            if message is not None and (code := await self._call.code()).name != "OK":
                raise Failed(code.name, await self._call.details(), await self._found())
        except TimeoutError:
            raise Silent(f"{self._where}: no data within the time limit") from None
        except grpc.aio.AioRpcError as error:
            details = await self._found()
            if _lost(error.code().name, details):
                raise Broken(f"{self._where}: {error.details()}") from error
            raise Failed(error.code().name, error.details(), details) from error

    async def close(self) -> None:
        """See `TransportResponse.close`."""
        self._call.cancel()

    def _end(self, code: Any, words: str, error: BaseException | None = None) -> None:
        self.name = code.name
        if code.name == "OK":
            return
        self.status = STATUSES.get(code.name, 500)
        self.headers = {"grpc-status": code.name, "grpc-message": words or ""}

    async def _trailers(self) -> None:
        self._details = await self._found()
        if _lost(self.name, self._details):
            words = tls_reason(
                self.headers["grpc-message"], plain="the server does not use TLS on this port"
            )
            raise Unreachable(f"{self._where}: {words}")
        pairs = await self._call.trailing_metadata() or ()
        trailers = {name: value for name, value in pairs if isinstance(value, str)}
        self.headers = {**trailers, **self.headers}

    async def _found(self) -> bytes:
        for name, value in await self._call.trailing_metadata() or ():
            if name == DETAILS:
                return bytes(value)
        return b""


class Failed(Exception):
    """A stream failed after it had started."""

    def __init__(self, name: str, words: str, details: bytes) -> None:
        super().__init__(words)
        self.name, self.words, self.details = name, words, details


def _lost(code: str, details: bytes) -> bool:
    """Whether the network ended the call: an agent would send details."""
    return not details and code in ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED")
