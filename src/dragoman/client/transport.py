"""Transports: how requests reach an agent, over sockets or directly into an ASGI application.

A transport sends a `TransportRequest` and returns a `TransportResponse`. Tests put their own in its
place.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from ssl import SSLContext, SSLError
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from dragoman.client.address_rules import (
    DIALLING,
    Allow,
    Dial,
    Dialled,
    private_literal,
    rules_for,
)
from dragoman.client.limits import DEFAULT, TooLarge
from dragoman.security.client_network import loopback

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

    from dragoman.client.grpc import Calls

CONNECT = 10.0
"""Seconds until a connection must be open."""


Trace = Callable[[bool, bytes], None]
"""Receives the bytes of a connection: whether they are outgoing, and the bytes."""


class Unreachable(ConnectionError):
    """The agent did not respond, or the response broke off. The same request may succeed later."""


class Silent(Unreachable):
    """The stream was silent for too long. The agent may still be working on the request."""


class Broken(Unreachable):
    """The response had started and broke off."""


class Body(Protocol):
    """A request body that is generated in pieces. A retry generates it again."""

    size: int

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the whole body, from the beginning."""


class TransportRequest(Struct, frozen=True):
    """One HTTP request."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | Body = b""
    patience: float | None = None
    """Seconds without any byte after which the response counts as broken."""
    longest: int = DEFAULT.answer
    """The most bytes of one message of the response, for transports that need it (gRPC)."""
    allow: Allow | None = None
    """Allow only public addresses and those that these rules allow. None allows any address."""
    tls: SSLContext | None = None
    """A client certificate for this request, if it differs from the transport's."""


class TransportResponse(Protocol):
    """Status and headers of a response, and its body as it arrives. Close it after use."""

    status: int
    headers: Mapping[str, str]
    """Header names are in lower case."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces. Raises Unreachable if it breaks off. (Responses over sockets
        also have `public`: whether the body came, or may have come, from a public address.)"""

    async def close(self) -> None:
        """Stop reading."""


class Transport(Protocol):
    """Sends requests."""

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Send a request and return the response once its headers have arrived. Raises
        Unreachable."""

    async def close(self) -> None:
        """Close all connections."""


def origin(url: str) -> str:
    """Return scheme, host and port of a URL in normal form; empty if it has none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if not parts.scheme or not host:
        return ""
    host = f"[{host}]" if ":" in host else host
    shown = "" if port in (None, {"http": 80, "https": 443}.get(parts.scheme)) else f":{port}"
    return f"{parts.scheme}://{host}{shown}"


async def read_all(response: TransportResponse, most: int, limit: str = "") -> bytes:
    """Read the whole body and close the response. Raises TooLarge if it is longer than `most`
    bytes. `limit` is the field of `Limits` to name in the error."""
    found = bytearray()
    try:
        async for chunk in response.chunks():
            found += chunk
            if len(found) > most:
                words = f"the answer is longer than {most} bytes"
                raise TooLarge.of(words, limit, most) if limit else TooLarge(words, value=most)
    finally:
        await response.close()
    return bytes(found)


# ---- sockets -------------------------------------------------------------------------------


class HTTPTransport:
    """HTTP over the network, and gRPC if it is installed. It follows no redirects, because the card
    says where the agent is."""

    grpc = True
    """Whether it may send gRPC requests. A transport that wraps another one says so, too."""

    def __init__(self, *, ssl: SSLContext | None = None, trace: Trace | None = None) -> None:
        self._ssl = ssl
        self._trace = trace
        self._session: ClientSession | None = None
        self._apart: ClientSession | None = None
        """For requests that must not reuse a connection of the other session."""
        self._dialled = Dialled()
        self._proxies: dict[str, str] = {}
        self._calls: Calls | None = None

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        if request.url.startswith("grpc"):
            if self._calls is None:
                from dragoman.client.grpc import Calls

                self._calls = Calls(self._ssl, self._trace)
            return await self._calls.send(request)
        session = self._session or self._open()
        where, allow = origin(request.url), rules_for(request.url, request.allow)
        if allow is not None and where in self._dialled.other:
            # An open connection may lead to an address that is not public.
            session = self._apart = self._apart or self._made()
        import aiohttp

        body = request.body
        headers: Mapping[str, str] = request.headers
        if not isinstance(body, bytes):
            headers = {**headers, "content-length": str(body.size)}
        options: dict[str, Any] = {}
        if request.patience:
            options["timeout"] = aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT, sock_read=request.patience
            )
        if request.tls is not None:
            options["ssl"] = request.tls
        dial = Dial(where, allow)
        proxy = self._proxy(request.url) if self._proxies else None
        if proxy is not None:
            options["proxy"] = proxy
            if allow is not None and private_literal(request.url):
                dial.admits(ip_address(urlsplit(request.url).hostname or ""), 0)
                raise dial.error() or AssertionError
        before = DIALLING.set(None if proxy is not None else dial)
        try:
            response = await session.request(
                request.method,
                request.url,
                headers=headers,
                data=(body or None) if isinstance(body, bytes) else body.pieces(),
                allow_redirects=False,
                **options,
            )
        except aiohttp.InvalidURL:
            raise ValueError(f"{request.url} is not a URL") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if refusal := dial.error():
                raise refusal from None
            kind = Silent if isinstance(error, aiohttp.SocketTimeoutError) else Unreachable
            raise kind(f"{origin(request.url)}: {_reason(error)}") from error
        finally:
            DIALLING.reset(before)
        # The proxy resolves the address, so we must assume that it is public.
        public = (
            where in self._dialled.public if proxy is None else not private_literal(request.url)
        )
        return _Received(response, request.patience, public)

    def _open(self) -> ClientSession:
        self._session = self._made()
        from urllib.request import getproxies

        self._proxies = getproxies()
        return self._session

    def _made(self) -> ClientSession:
        try:
            import aiohttp
        except ImportError:
            raise ModuleNotFoundError(
                "the client needs aiohttp, which is not installed; run `pip install "
                "'dragoman[client]'`",
                name="aiohttp",
            ) from None
        connector = aiohttp.TCPConnector(
            limit=0, ssl=self._ssl or True, socket_factory=self._dialled.socket
        )
        if self._trace is not None:
            from dragoman.client.wire_trace import attach

            attach(connector, self._trace)
        # asyncio allocates 256 KiB for each read, and glibc maps and unmaps memory for each of them
        # until something larger has been freed.
        bytes(1 << 20)
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT),
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=1 << 18,
            headers={"User-Agent": "dragoman"},
        )

    def _proxy(self, url: str) -> str | None:
        from urllib.request import proxy_bypass

        parts = urlsplit(url)
        if loopback(parts.hostname or "") or proxy_bypass(parts.netloc):
            return None  # no proxy for local addresses
        return self._proxies.get(parts.scheme)

    async def close(self) -> None:
        """See `Transport.close`."""
        sessions = self._session, self._apart
        self._session = self._apart = None
        for session in sessions:
            if session is not None:
                await session.close()
        calls, self._calls = self._calls, None
        if calls is not None:
            await calls.close()


class _Received:
    def __init__(self, response: ClientResponse, patience: float | None, public: bool) -> None:
        self._response = response
        self.public = public
        self._patience = patience
        self._last = 0.0
        self._late = False
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None
        self.status = response.status
        self.headers: Mapping[str, str] = {
            name.lower(): value for name, value in response.headers.items()
        }

    async def chunks(self) -> AsyncIterator[bytes]:
        import aiohttp
        from aiohttp.http import HttpProcessingError

        self._check_silence()
        try:
            async for chunk in self._response.content.iter_any():
                self._last = self._loop.time()
                yield chunk
        except (aiohttp.ClientError, HttpProcessingError, OSError, TimeoutError) as error:
            late = self._late or isinstance(error, TimeoutError)
            raise (Silent if late else Broken)(_reason(error)) from error
        finally:
            if self._watch is not None:
                self._watch.cancel()

    def _check_silence(self) -> None:
        """Close the connection after too long a silence. (aiohttp's own timer stops while the
        received bytes are incomplete, and one timer for a stream costs less than one for each
        piece.)"""
        if not self._patience:
            return
        now = self._loop.time()
        self._last = self._last or now
        if now - self._last >= self._patience:
            self._late = True
            self._response.close()
        else:
            self._watch = self._loop.call_at(self._last + self._patience, self._check_silence)

    async def close(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL reports when the server does not use TLS."""
UNTRUSTED = (
    "CERTIFICATE_VERIFY_FAILED",
    "unable to get local issuer",
    "self-signed",
    "self signed",
)
OTHERWISE = ("Hostname mismatch", "IP address mismatch", "expired", "not yet valid")
"""Certificate errors that another CA bundle would not solve."""


def tls_reason(
    text: str, why: str = "", *, plain: str = "the server uses http on this port, not https"
) -> str:
    """Explain a TLS error and say what to do. `why` is the reason why the certificate was refused,
    if known; `plain` is the text for a server without TLS."""
    if any(word in text for word in NO_TLS):
        return plain
    if any(word in text for word in UNTRUSTED):
        found = why.rstrip(".") or "no trusted authority signed it"
        if any(word in found for word in OTHERWISE):
            return f"its certificate is not valid: {found}"
        return (
            f"its certificate is not trusted: {found}; trust it with --ca FILE, or in "
            "Python with transport=HTTPTransport(ssl=…)"
        )
    return text


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time"
    inner = getattr(error, "os_error", error)
    if isinstance(inner, SSLError):  # its errno is not a system error
        return tls_reason(str(inner), getattr(inner, "verify_message", ""))
    if isinstance(inner, OSError) and inner.errno and inner.errno > 0:
        return os.strerror(inner.errno)  # asyncio's message hides it
    return str(inner) or type(error).__name__


# ---- straight into an application ----------------------------------------------------------


class ASGITransport:
    """Calls an ASGI application in this process, without a socket."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._running: set[asyncio.Task[None]] = set()

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        exchange = _Exchange(request)
        task = asyncio.create_task(exchange.run(self._app))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        exchange.task = task
        await exchange.begun.wait()
        if not exchange.status:
            raise Unreachable("the application sent no response") from exchange.error
        return exchange

    async def close(self) -> None:
        """See `Transport.close`."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class _Exchange:
    """One request: the application's side and the client's side."""

    task: asyncio.Task[None]

    def __init__(self, request: TransportRequest) -> None:
        self.request = request
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.begun = asyncio.Event()
        self.error: BaseException | None = None
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(64)
        self._gone = asyncio.Event()
        self._body = _pieces(request.body)
        self._asked = False

    async def run(self, app: Any) -> None:
        parts = urlsplit(self.request.url)
        headers = {"host": parts.netloc, **self.request.headers}
        body = self.request.body
        if size := len(body) if isinstance(body, bytes) else body.size:
            headers["content-length"] = str(size)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.request.method,
            "scheme": parts.scheme or "http",
            "path": unquote(parts.path) or "/",
            "raw_path": parts.path.encode() or b"/",
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()],
            "client": ("127.0.0.1", 0),
            "server": (parts.hostname or "localhost", parts.port or 80),
        }
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - a server would answer 500
            self.error = error
        finally:
            self.begun.set()
            with suppress(asyncio.QueueFull):
                self._pieces.put_nowait(None)

    async def _receive(self) -> dict[str, Any]:
        try:
            async for piece in self._body:
                return {"type": "http.request", "body": piece, "more_body": True}
        except OSError as error:  # for the application, the client is gone
            self.error = error
            return {"type": "http.disconnect"}
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in message.get("headers", ())
            }
            self.begun.set()
        elif not self._gone.is_set():
            if body := message.get("body", b""):
                await self._pieces.put(body)
            if not message.get("more_body", False):
                await self._pieces.put(None)

    async def chunks(self) -> AsyncIterator[bytes]:
        # If the application failed, the queue may have had no room for the end marker.
        while not (self._pieces.empty() and self.task.done()):
            if (piece := await self._pieces.get()) is None:
                break
            yield piece
        if self.error is not None:
            raise Unreachable("the application ended the response early") from self.error

    async def close(self) -> None:
        self._gone.set()
        while not self._pieces.empty():  # unblocks a waiting put
            self._pieces.get_nowait()


async def _pieces(body: bytes | Body) -> AsyncIterator[bytes]:
    if not isinstance(body, bytes):
        async for piece in body.pieces():
            yield piece
    elif body:
        yield body
