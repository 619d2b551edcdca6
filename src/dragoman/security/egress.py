"""Egress: sends requests to addresses that a caller chose, safe against SSRF. Nothing else may do
so.

    EgressRefused      the address is forbidden, now and later
    EgressUnreachable  no valid response; a retry may succeed
    ├── Late     the DNS lookup took too long
    └── Busy     nothing was sent: all places of the host or owner are in use

`admit` parses a URL once, and the request is built from the result. The addresses of a name are
checked when a connection is made, and the connection goes to a checked address, so DNS rebinding
gains nothing. Lookups have a deadline, and each owner has a share of them: names that hang delay
only their own owner.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import socket
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from ipaddress import ip_address
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from dragoman.security.address_policy import (
    Address,
    EgressRefused,
    Rule,
    Target,
    check,
    denied,
    parse,
)
from dragoman.security.fair_shares import Shares

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from aiohttp.abc import AbstractResolver

Resolve = Callable[[str], Awaitable[Sequence[str]]]

LOOKUPS = 64  # the most at once
DEADLINE = 5.0  # seconds for a lookup
PATIENCE = 3.0  # shorter, because a caller waits; the address is checked again later
KEEP = 4.0  # many servers close after 5 s, and a request at that moment would fail
# aiohttp tries n dead addresses n * (n + 1) / 2 times, so a name must not have many.
MAX_ADDRESSES = 4
LARGE = 1 << 20  # aiohttp warns about larger bodies in one piece

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OURS = {"host", "connection", "content-length", "transfer-encoding", "expect", "upgrade"}


class EgressUnreachable(Exception):
    """There is no valid response; a retry may succeed. The text is a short reason."""


class Late(EgressUnreachable):
    """The DNS lookup took too long."""


class Busy(EgressUnreachable):
    """All places were in use for too long, so nothing was sent."""


class EgressResponse(Struct, frozen=True):
    """The response, with any status."""

    status: int
    headers: Mapping[str, str]
    """Header names are in lower case."""
    body: bytes
    cut: bool = False
    """The body was too long; this is its beginning."""


class Slot(Struct, frozen=True):
    """The right to send requests to a host, one after the other; see `Egress.place`."""

    host: str
    waited: bool
    """Whether the caller had to wait for it."""


_OWNER: ContextVar[Hashable] = ContextVar("dragoman_owner", default="")
"""The owner of the URL that is dialled."""


@contextmanager
def _owned(owner: Hashable) -> Iterator[None]:
    before = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(before)


class Lookup:
    """Resolves names in its own threads, with the system's resolver or another one. A lookup that
    hangs cannot be stopped: it keeps its thread, each owner has a share of the threads, and the
    caller continues at the deadline. Concurrent lookups of one name by one owner are shared."""

    def __init__(self, resolve: Resolve | None = None) -> None:
        self._resolve = resolve
        self._threads = ThreadPoolExecutor(LOOKUPS, "dragoman-lookup")
        self._shares = Shares(LOOKUPS)
        self._asked: dict[tuple[Hashable, str], asyncio.Future[Sequence[str]]] = {}

    async def __call__(
        self, host: str, owner: Hashable = "", deadline: float = DEADLINE
    ) -> Sequence[str]:
        """The addresses of a name. Raises OSError, Late, or Busy if the lookup was not started."""
        key = (owner, host)
        begun = False
        try:
            async with asyncio.timeout(deadline):
                if key not in self._asked:
                    await self._shares.acquire(owner)
                    if key not in self._asked:
                        self._begin(key)
                    else:  # another lookup was faster
                        self._shares.release(owner)
                begun = True
                return await asyncio.shield(self._asked[key])
        except TimeoutError:
            if begun:
                raise Late(f"the name of the host was not resolved within {deadline:g} s") from None
            raise Busy("too many DNS look-ups of one owner are in progress") from None

    def _begin(self, key: tuple[Hashable, str]) -> None:
        asked: asyncio.Future[Sequence[str]]
        if self._resolve is not None:
            asked = asyncio.ensure_future(self._resolve(key[1]))
        else:
            asked = asyncio.wrap_future(self._threads.submit(_lookup, key[1]))
        self._asked[key] = asked
        asked.add_done_callback(partial(self._end, key))

    def _end(self, key: tuple[Hashable, str], asked: asyncio.Future[Sequence[str]]) -> None:
        del self._asked[key]
        self._shares.release(key[0])
        if not asked.cancelled():
            asked.exception()  # the caller may be gone

    def close(self) -> None:
        """Stop lookups."""
        for asked in self._asked.values():
            asked.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


class Egress:
    """Sends requests to URLs from callers: https to public addresses, and whatever the allow list
    allows.

    It follows no redirects, uses no proxies, cookies or credentials of the environment, and
    decompresses nothing. Time, sizes and connections are limited: at most `per_host` concurrent
    requests to one host and `total` to all, with fair shares for owners. `resolve` replaces DNS,
    `ssl` the system's certificate authorities.
    """

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        timeout: float = 15.0,
        max_response: int = 64 * 1024,
        per_host: int = 8,
        total: int = 256,
        resolve: Resolve | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        self._rules = [Rule.parse(entry) for entry in allow]
        self.timeout = timeout
        """The most seconds of a request, and before that of the wait for its place."""
        self._max_response = max_response
        self.per_host = per_host
        self._lines: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()
        self._places = Shares(total)
        # Limits the hosts so that idle connections are not more than busy ones may be.
        self._max_warm = max(1, total // per_host)
        self._warm: dict[str, float] = {}
        self._lookup = Lookup(resolve)
        self._given = resolve is not None
        self._ssl = ssl
        self._sessions: tuple[ClientSession, ClientSession] | None = None
        self._closed = False

    async def __aenter__(self) -> Egress:
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def open(self) -> None:
        """Load the HTTP transport; otherwise the first request does. Needs a running loop."""
        if self._closed:
            raise EgressUnreachable("the HTTP client is closed")
        if self._sessions is None:
            self._sessions = (self._session(keep=False), self._session(keep=True))

    async def close(self) -> None:
        """Close all connections. All requests must have ended."""
        self._closed = True
        self._lookup.close()
        for session in self._sessions or ():
            await session.close()

    def admit(self, url: str) -> Target:
        """Parse a URL and check what needs no DNS: syntax, scheme, port, literal addresses."""
        target = parse(url)
        if not self._free(target.named, target.port):
            check(target.scheme, target.named, target.port)
        return target

    async def check(self, url: str, *, owner: Hashable = "") -> None:
        """Raise EgressRefused if a request would be refused now. A name without an address is
        accepted, because it may get one later. Raises Late or Busy if the lookup failed."""
        target = self.admit(url)
        if not target.literal and not self._free(target.host, target.port):
            with _owned(owner):
                try:
                    await self._addresses(target.host, target.port, PATIENCE)
                except (Late, Busy):
                    raise
                except EgressUnreachable:
                    return

    async def post(
        self,
        url: str,
        body: bytes,
        *,
        headers: Mapping[str, str] = {},
        owner: Hashable = "",
        place: Slot | None = None,
    ) -> EgressResponse:
        """`request` with POST."""
        return await self.request("POST", url, headers=headers, body=body, owner=owner, place=place)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},
        body: bytes = b"",
        owner: Hashable = "",
        place: Slot | None = None,
    ) -> EgressResponse:
        """Send one request to a URL from a caller, and return the response. Raises EgressRefused or
        EgressUnreachable. Without a `place` it waits for one, and may raise Busy."""
        target = self.admit(url)
        fields = _fields(headers)
        self.open()
        if place is None:
            async with self.place(target.host, owner) as place:
                return await self.request(
                    method, url, headers=headers, body=body, owner=owner, place=place
                )
        if place.host != target.host:
            raise ValueError(f"the place is for {place.host!r}, not for {target.host!r}")
        try:
            async with asyncio.timeout(self.timeout):
                with _owned(owner):
                    return await self._exchange(method, target, fields, body)
        except TimeoutError:
            raise EgressUnreachable(f"no answer within {self.timeout:g} s") from None

    async def fetch(self, url: str) -> AsyncIterator[bytes]:
        """Yield the content of a URL in pieces, of any length. Raises EgressRefused, or
        EgressUnreachable, also when the next piece takes longer than the timeout."""
        target = self.admit(url)
        self.open()
        from aiohttp import ClientError, ClientTimeout

        assert self._sessions is not None
        limit = ClientTimeout(total=None, sock_connect=self.timeout, sock_read=self.timeout)
        try:
            async with (
                self.place(target.host),
                self._sessions[False].get(
                    target.url(), allow_redirects=False, timeout=limit
                ) as response,
            ):
                if response.status != 200:
                    raise EgressUnreachable(f"the response is HTTP {response.status}")
                async for chunk in response.content.iter_any():
                    yield chunk
        except TimeoutError:
            raise EgressUnreachable(f"nothing came for {self.timeout:g} s") from None
        except (ClientError, OSError, RuntimeError) as error:
            raise EgressUnreachable(_reason(error)) from error

    async def _exchange(
        self, method: str, target: Target, headers: dict[str, str], body: bytes
    ) -> EgressResponse:
        from aiohttp import ClientError

        assert self._sessions is not None
        session = self._sessions[self._keeps(f"{target.scheme}://{target.authority}")]
        data = io.BytesIO(body) if len(body) > LARGE else body
        found = bytearray()
        try:
            async with session.request(
                method, target.url(), headers=headers, data=data, allow_redirects=False
            ) as response:
                async for chunk in response.content.iter_any():
                    found += chunk
                    if len(found) > self._max_response:
                        response.close()
                        break
        except (ClientError, OSError, RuntimeError) as error:  # uvloop raises RuntimeError, too
            raise EgressUnreachable(_reason(error)) from error
        cut = len(found) > self._max_response
        head = _joined(response.raw_headers)
        return EgressResponse(response.status, head, bytes(found[: self._max_response]), cut)

    async def _addresses(self, host: str, port: int, deadline: float = DEADLINE) -> list[str]:
        """The addresses of a name, all checked."""
        named = self._free(host, port)
        texts: Sequence[str]
        try:
            # The trailing dot prevents the use of our network's search list.
            name = host if named or self._given else f"{host}."
            texts = await self._lookup(name, _OWNER.get(), min(deadline, self.timeout))
        except (OSError, UnicodeError):
            texts = ()
        if not texts:
            raise EgressUnreachable("the host does not resolve")
        found = [ip_address(text) for text in texts]
        # A forbidden address among allowed ones is no accident.
        if not named and any(denied(item) and not self._free(item, port) for item in found):
            raise EgressRefused("the host resolves to an address that is not public")
        return [str(item) for item in found[:MAX_ADDRESSES]]

    def _free(self, host: str | Address, port: int) -> bool:
        """Whether it is on the allow list."""
        return any(rule.matches(host, port) for rule in self._rules)

    @asynccontextmanager
    async def place(self, host: str, owner: Hashable = "") -> AsyncIterator[Slot]:
        """Wait for a place to send to a host: first one of the host's places, so that waiting for
        them takes none from other hosts, then one of the owner's share. Raises Busy at the
        timeout."""
        line = self._lines.setdefault(host, asyncio.Semaphore(self.per_host))
        self._users[host] += 1
        place = Slot(host, waited=line.locked() or self._places.full(owner))
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(self.timeout):
                        await stack.enter_async_context(line)
                        await stack.enter_async_context(self._places.place(owner))
                except TimeoutError:
                    raise Busy("all places were taken") from None
                yield place
        finally:
            self._users[host] -= 1
            if not self._users[host]:
                del self._users[host], self._lines[host]

    def _keeps(self, origin: str) -> bool:
        """Whether a connection may stay open for the next request. The number of such origins is
        limited, because a caller with many names could use up our sockets."""
        now = time.monotonic()
        self._warm = {name: until for name, until in self._warm.items() if until > now}
        if origin not in self._warm and len(self._warm) >= self._max_warm:
            return False
        self._warm[origin] = now + self.timeout + KEEP
        return True

    def _session(self, *, keep: bool) -> ClientSession:
        try:
            import aiohttp
        except ImportError:
            raise ModuleNotFoundError(
                "webhooks need an HTTP client that is not installed; run `pip install "
                "'dragoman[push]'`",
                name="aiohttp",
            ) from None
        connector = aiohttp.TCPConnector(
            # Called once for each new connection, except for literal addresses, which `admit`
            # checks.
            resolver=cast("AbstractResolver", Checked(self._addresses)),
            use_dns_cache=False,
            ssl=self._ssl or True,
            limit=0,
            **({"keepalive_timeout": KEEP} if keep else {"force_close": True}),
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("Content-Type",),
            headers={"User-Agent": "dragoman", "Accept-Encoding": "identity"},
        )


class Checked:
    """aiohttp's resolver: it returns only checked addresses."""

    def __init__(self, addresses: Callable[[str, int], Awaitable[list[str]]]) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        """Return the addresses to dial."""
        rest = {"hostname": host, "port": port, "family": family, "proto": 0, "flags": 0}
        return [{**rest, "host": address} for address in await self._addresses(host, port)]

    async def close(self) -> None:
        """Do nothing."""


def _lookup(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def _fields(headers: Mapping[str, str]) -> dict[str, str]:
    """Check that the headers cannot change where the request goes or ends."""
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
            raise EgressRefused(f"header {name!r} cannot be set")
        if not _VALUE.fullmatch(value):
            raise EgressRefused(f"header {name} has characters that are not allowed")
    return dict(headers)


def _joined(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw, value in headers:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _reason(error: Exception) -> str:
    """A short reason without an address."""
    import aiohttp

    match error:
        case aiohttp.ClientConnectorCertificateError():
            return "the certificate is not valid for the host"
        case aiohttp.ClientSSLError():
            return "the TLS handshake failed"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno  # its own text contains the address
            return f"no connection: {os.strerror(number).lower()}" if number else "no connection"
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return "the response is not valid HTTP"
        case _:
            return "the connection was lost"
