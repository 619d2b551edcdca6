"""How bytes get to an agent and back: over sockets, or straight into an application.

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

from dragoman.client.address_rules import DIALLING, Allow, Dial, Dialled, local, narrowed
from dragoman.client.limits import DEFAULT, TooLarge
from dragoman.security.addresses import loopback

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

    from dragoman.client.grpc import Calls

CONNECT = 10.0
"""How long a connection may take to be made."""


Tap = Callable[[bool, bytes], None]
"""Is shown the bytes of a connection: whether they go out, and which they are."""


class Unreachable(ConnectionError):
    """The agent did not answer, or broke off. The same request may succeed later."""


class Silent(Unreachable):
    """Nothing came for as long as one was patient. What was asked for may still be in work."""


class Broken(Unreachable):
    """The answer had begun, and broke off."""


class Body(Protocol):
    """A body that is made piece by piece. It may be asked for again."""

    size: int

    def pieces(self) -> AsyncIterator[bytes]:
        """The whole of it, from the beginning."""


class TransportRequest(Struct, frozen=True):
    """One HTTP request."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | Body = b""
    patience: float | None = None
    """How long the answer may bring no byte at all before it counts as broken."""
    longest: int = DEFAULT.answer
    """The most bytes of one message of the answer, where the transport must know that (gRPC)."""
    allow: Allow | None = None
    """Only public addresses may be dialled, and what these rules allow; None is any address."""
    tls: SSLContext | None = None
    """What to show the server of oneself, where that is not what the transport shows everybody."""


class TransportResponse(Protocol):
    """The head of an answer, and its body as it comes. Close it after use."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces; Unreachable if it breaks off. (What came over sockets also has
        `public`: whether it came, or may have come, from a public address.)"""

    async def close(self) -> None:
        """Read no more."""


class Transport(Protocol):
    """Sends requests."""

    async def send(self, request: TransportRequest) -> TransportResponse:
        """The answer, once its head is here; Unreachable."""

    async def close(self) -> None:
        """Let go of all connections."""


def origin(url: str) -> str:
    """Scheme, host and port of a URL, in one form; empty if it has none."""
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


async def whole(response: TransportResponse, most: int, limit: str = "") -> bytes:
    """The body of an answer, which is closed then; TooLarge if it has more bytes than that.
    `limit` is the field of `Limits` that says so."""
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
    """HTTP over the network, and gRPC where it is installed. No redirect is followed: a card says
    where its agent is."""

    def __init__(self, *, ssl: SSLContext | None = None, tap: Tap | None = None) -> None:
        self._ssl = ssl
        self._tap = tap
        self._session: ClientSession | None = None
        self._apart: ClientSession | None = None
        """For requests that must not use some connections of the other."""
        self._dialled = Dialled()
        self._proxies: dict[str, str] = {}
        self._calls: Calls | None = None

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        if request.url.startswith("grpc"):
            if self._calls is None:
                from dragoman.client.grpc import Calls

                self._calls = Calls(self._ssl, self._tap)
            return await self._calls.send(request)
        session = self._session or self._open()
        where, allow = origin(request.url), narrowed(request.url, request.allow)
        if allow is not None and where in self._dialled.other:
            # one that is open may lead to an address that is not public
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
            if allow is not None and local(request.url):
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
        # of what a proxy fetches the address is not known: it may be public
        public = where in self._dialled.public if proxy is None else not local(request.url)
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
        if self._tap is not None:
            from dragoman.client.wire_trace import attach

            attach(connector, self._tap)
        # asyncio asks for 256 KiB at each read, and glibc maps and unmaps memory for each of them
        # until something larger has been freed
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
            return None  # what is for this machine must not leave it
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

        self._look()
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

    def _look(self) -> None:
        """Hang up when nothing has come for too long. (aiohttp's own clock stands still when it
        cannot make sense of what came; and one timer a stream costs less than one a piece.)"""
        if not self._patience:
            return
        now = self._loop.time()
        self._last = self._last or now
        if now - self._last >= self._patience:
            self._late = True
            self._response.close()
        else:
            self._watch = self._loop.call_at(self._last + self._patience, self._look)

    async def close(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL says of an answer that is none of TLS."""
UNTRUSTED = (
    "CERTIFICATE_VERIFY_FAILED",
    "unable to get local issuer",
    "self-signed",
    "self signed",
)
OTHERWISE = ("Hostname mismatch", "IP address mismatch", "expired", "not yet valid")
"""What is wrong with certificates that no authority would make right."""


def reason_of_tls(
    text: str, why: str = "", *, plain: str = "the server uses http on this port, not https"
) -> str:
    """What went wrong with TLS, in words that say what to do. `why` is what is wrong with the
    certificate, where that is known; `plain` is what to say of a server without TLS."""
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
    if isinstance(inner, SSLError):  # its number is not one of the system's
        return reason_of_tls(str(inner), getattr(inner, "verify_message", ""))
    if isinstance(inner, OSError) and inner.errno and inner.errno > 0:
        return os.strerror(inner.errno)  # asyncio's own words hide it
    return str(inner) or type(error).__name__


# ---- straight into an application ----------------------------------------------------------


class ASGITransport:
    """Requests to an ASGI application in this process, without a socket."""

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
    """One request inside: the application's side, and ours."""

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
        except Exception as error:  # noqa: BLE001 - it is what a server would answer 500 to
            self.error = error
        finally:
            self.begun.set()
            with suppress(asyncio.QueueFull):
                self._pieces.put_nowait(None)

    async def _receive(self) -> dict[str, Any]:
        try:
            async for piece in self._body:
                return {"type": "http.request", "body": piece, "more_body": True}
        except OSError as error:  # as the application sees it, the client is gone
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
        # one that broke off may have left no room for the end
        while not (self._pieces.empty() and self.task.done()):
            if (piece := await self._pieces.get()) is None:
                break
            yield piece
        if self.error is not None:
            raise Unreachable("the application ended the response early") from self.error

    async def close(self) -> None:
        self._gone.set()
        while not self._pieces.empty():  # whoever waits to put may go on
            self._pieces.get_nowait()


async def _pieces(body: bytes | Body) -> AsyncIterator[bytes]:
    if not isinstance(body, bytes):
        async for piece in body.pieces():
            yield piece
    elif body:
        yield body
