"""Which requests are let in at all: by their headers, the host that they name, and from which
pages."""

from __future__ import annotations

import re

from dragoman.bindings import card, http
from dragoman.bindings.endpoint import METADATA, origin
from dragoman.bindings.exchange import Exchange
from dragoman.bindings.headers import check_single
from dragoman.bindings.hosts import Hosts
from dragoman.errors import A2AError, Forbidden, Misdirected
from dragoman.security.limits import Limits
from dragoman.settings import Settings
from dragoman.telemetry import audit

HEALTH = ("/healthz", "/readyz")
METHODS = b"GET, POST, DELETE"
EXPOSED = b"A2A-Extensions, X-A2A-Extensions, Retry-After, WWW-Authenticate, ETag"
KNOWN = 256
"""The most host headers that are remembered as good."""
LONGEST = 256
"""The most characters of a header in an audit line."""
_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~, -]{0,1024}")


class Door:
    """Looks at each request before anything else does. `single` are the headers that must not be
    repeated."""

    def __init__(
        self,
        settings: Settings,
        hosts: Hosts,
        *,
        single: frozenset[bytes],
        limits: Limits | None = None,
    ) -> None:
        self._hosts = hosts
        self._single = single
        self._limits = limits
        self._audit = settings.audit
        self._remembers = not settings.forwarded
        self._origins = frozenset(origin.rstrip("/").encode() for origin in settings.cors)
        self._good: set[bytes | None] = set()

    def passes(self, exchange: Exchange) -> bool:
        """Whether there is nothing to look at: the usual request, at next to no cost."""
        headers = exchange.headers
        return (
            b"origin" not in headers
            and not self._origins
            and len(headers) == len(exchange.scope["headers"])
            and (headers.get(b"host") in self._good or self._hosts.any(exchange))
        )

    async def stops(self, exchange: Exchange) -> bool:
        """Whether the request has been answered here."""
        try:
            self._check(exchange)
        except A2AError as error:
            await http.fail(exchange, error)
            return True
        if not self._origins:
            return False
        # a cache must not show one page what was allowed to another; the card is for all of them
        if not exchange.path.endswith(card.PUBLIC):
            exchange.always = (*exchange.always, (b"vary", b"Origin"))
        origin = exchange.headers.get(b"origin")
        if origin is None or not self._lists(origin):
            return False
        allowed = (b"access-control-allow-origin", b"*" if b"*" in self._origins else origin)
        asked = exchange.headers.get(b"access-control-request-method")
        if exchange.method == "OPTIONS" and asked is not None:
            await exchange.nothing(204, [allowed, *self._preflight(exchange)])
            return True
        if not exchange.path.endswith(card.PUBLIC):
            exchange.always = (
                *(*exchange.always, allowed),
                (b"access-control-expose-headers", EXPOSED),
            )
        return False

    def _check(self, exchange: Exchange) -> None:
        """AmbiguousRequest, Misdirected or Forbidden if the request is not let in."""
        try:
            check_single((name for name, _ in exchange.scope["headers"]), self._single)
        except A2AError as error:
            self._note("headers", exchange, error)
            raise
        # those who ask for the health know an address, but no name
        if exchange.path in HEALTH:
            return
        host = exchange.headers.get(b"host")
        if not self._hosts.accepts(exchange):
            wrong = Misdirected(
                "This host is not served here; the server's settings `hosts` and `url` say which"
                " hosts are"
            )
            self._note("host", exchange, wrong, host=exchange.header(b"host")[:LONGEST])
            raise wrong
        if self._remembers and not self._hosts.any(exchange):
            if len(self._good) >= KNOWN:
                self._good.clear()
            self._good.add(host)
        origin = exchange.headers.get(b"origin")
        if origin is not None and not (
            self._lists(origin) or self._own(exchange) or _public(exchange)
        ):
            foreign = Forbidden(
                "Pages of this Origin may not call; the server's setting `cors` lists those that"
                " may, and `url` is its own address"
            )
            self._note("origin", exchange, foreign, origin=exchange.header(b"origin")[:LONGEST])
            raise foreign

    def _lists(self, origin: bytes) -> bool:
        return b"*" in self._origins or origin in self._origins

    def _own(self, exchange: Exchange) -> bool:
        """Whether it is the server's own page that calls."""
        return exchange.header(b"origin").lower() in self._hosts.origins(exchange)

    def _note(self, event: str, exchange: Exchange, error: A2AError, **about: str) -> None:
        if not self._audit:
            return
        client = origin(exchange, self._limits)
        audit(event, result=error.reason, client=client, path=exchange.scope["path"], **about)

    def _preflight(self, exchange: Exchange) -> list[tuple[bytes, bytes]]:
        found = [
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", b"600"),
        ]
        # whatever a scheme calls its header: the page is trusted to send it
        names = exchange.headers.get(b"access-control-request-headers", b"")
        if names and _NAMES.fullmatch(names):
            found.append((b"access-control-allow-headers", names))
        return found


def _public(exchange: Exchange) -> bool:
    """Whether it asks for what any page may read."""
    path = exchange.path
    return exchange.method in ("GET", "HEAD") and (path.endswith(card.PUBLIC) or METADATA in path)
