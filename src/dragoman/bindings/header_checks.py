"""Admits or rejects requests by their repeated headers, Host and Origin, and answers CORS
preflights."""

from __future__ import annotations

import re

from dragoman.bindings import card, http
from dragoman.bindings.authentication import METADATA, origin
from dragoman.bindings.http_request import HTTPRequest
from dragoman.bindings.repeated_headers import check_single
from dragoman.bindings.trusted_hosts import TrustedHosts
from dragoman.model.errors import A2AError, Forbidden, Misdirected
from dragoman.security.limits import Limits
from dragoman.server.settings import Settings
from dragoman.telemetry.logs import audit

HEALTH = ("/healthz", "/readyz")
METHODS = b"GET, POST, DELETE"
EXPOSED = b"A2A-Extensions, X-A2A-Extensions, Retry-After, WWW-Authenticate, ETag"
KNOWN = 256
"""The maximum number of accepted Host headers in the cache."""
LONGEST = 256
"""The maximum number of characters of a header in an audit line."""
_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~, -]{0,1024}")


class HeaderChecks:
    """Checks each request before routing and authentication. `single` are the headers that must
    not be repeated."""

    def __init__(
        self,
        settings: Settings,
        hosts: TrustedHosts,
        *,
        single: frozenset[bytes],
        limits: Limits | None = None,
    ) -> None:
        self._hosts = hosts
        self._single = single
        self._limits = limits
        self._audit = settings.audit
        self._remembers = not settings.trust_forwarded
        self._origins = frozenset(origin.rstrip("/").encode() for origin in settings.cors)
        self._good: set[bytes | None] = set()

    def passes(self, incoming: HTTPRequest) -> bool:
        """Whether the request needs no further check. This is the cheap path for most requests."""
        headers = incoming.headers
        return (
            b"origin" not in headers
            and not self._origins
            and len(headers) == len(incoming.scope["headers"])
            and (headers.get(b"host") in self._good or self._hosts.any(incoming))
        )

    async def stops(self, incoming: HTTPRequest) -> bool:
        """Check the request. Returns True if it has been answered here."""
        try:
            self._check(incoming)
        except A2AError as error:
            await http.fail(incoming, error)
            return True
        if not self._origins:
            return False
        # A cache must not give one origin's response to another. The card is public, so it may.
        if not incoming.path.endswith(card.PUBLIC):
            incoming.always = (*incoming.always, (b"vary", b"Origin"))
        origin = incoming.headers.get(b"origin")
        if origin is None or not self._lists(origin):
            return False
        allowed = (b"access-control-allow-origin", b"*" if b"*" in self._origins else origin)
        method = incoming.headers.get(b"access-control-request-method")
        if incoming.method == "OPTIONS" and method is not None:
            await incoming.nothing(204, [allowed, *self._preflight(incoming)])
            return True
        if not incoming.path.endswith(card.PUBLIC):
            incoming.always = (
                *(*incoming.always, allowed),
                (b"access-control-expose-headers", EXPOSED),
            )
        return False

    def _check(self, incoming: HTTPRequest) -> None:
        """Raise AmbiguousRequest, Misdirected or Forbidden if the request is not admitted."""
        try:
            check_single((name for name, _ in incoming.scope["headers"]), self._single)
        except A2AError as error:
            self._note("headers", incoming, error)
            raise
        # health probes use an IP address, not a host name
        if incoming.path in HEALTH:
            return
        host = incoming.headers.get(b"host")
        if not self._hosts.accepts(incoming):
            wrong = Misdirected(
                "This host is not served here; the server's settings `trusted_hosts` and `url` say"
                " which hosts are"
            )
            self._note("host", incoming, wrong, host=incoming.header(b"host")[:LONGEST])
            raise wrong
        if self._remembers and not self._hosts.any(incoming):
            if len(self._good) >= KNOWN:
                self._good.clear()
            self._good.add(host)
        origin = incoming.headers.get(b"origin")
        if origin is not None and not (
            self._lists(origin) or self._own(incoming) or _public(incoming)
        ):
            foreign = Forbidden(
                "Pages of this origin may not call this server; see its settings `cors` and `url`"
            )
            self._note("origin", incoming, foreign, origin=incoming.header(b"origin")[:LONGEST])
            raise foreign

    def _lists(self, origin: bytes) -> bool:
        return b"*" in self._origins or origin in self._origins

    def _own(self, incoming: HTTPRequest) -> bool:
        """Whether the Origin is the server itself."""
        return incoming.header(b"origin").lower() in self._hosts.origins(incoming)

    def _note(self, event: str, incoming: HTTPRequest, error: A2AError, **about: str) -> None:
        if not self._audit:
            return
        client = origin(incoming, self._limits)
        audit(event, result=error.reason, client=client, path=incoming.scope["path"], **about)

    def _preflight(self, incoming: HTTPRequest) -> list[tuple[bytes, bytes]]:
        found = [
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", b"600"),
        ]
        # a security scheme may use any header, and the origin is trusted
        names = incoming.headers.get(b"access-control-request-headers", b"")
        if names and _NAMES.fullmatch(names):
            found.append((b"access-control-allow-headers", names))
        return found


def _public(incoming: HTTPRequest) -> bool:
    """Whether the request reads a document that every origin may read."""
    path = incoming.path
    return incoming.method in ("GET", "HEAD") and (path.endswith(card.PUBLIC) or METADATA in path)
