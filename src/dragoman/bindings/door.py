"""Which requests are let in at all: by the host that they name, and from which pages."""

from __future__ import annotations

import re

from dragoman.bindings import card, http
from dragoman.bindings.exchange import Exchange
from dragoman.errors import Misdirected
from dragoman.settings import Settings

HEALTH = ("/healthz", "/readyz")
METHODS = b"GET, POST, DELETE"
EXPOSED = b"A2A-Extensions, X-A2A-Extensions, Retry-After, WWW-Authenticate, ETag"
_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~, -]{0,1024}")


class Door:
    """Looks at each request before anything else does; only there if there is something to do."""

    def __init__(self, settings: Settings) -> None:
        hosts = [host.lower() for host in settings.hosts]
        self._any = not hosts
        self._hosts = frozenset(host for host in hosts if not host.startswith("*."))
        self._under = tuple(host[1:] for host in hosts if host.startswith("*."))
        self._forwarded = settings.forwarded
        self._origins = frozenset(origin.rstrip("/").encode() for origin in settings.cors)

    @staticmethod
    def needed(settings: Settings) -> bool:
        """Whether there is anything to look at."""
        return bool(settings.hosts or settings.cors)

    async def stops(self, exchange: Exchange) -> bool:
        """Whether the request has been answered here."""
        # those who ask for the health know an address, but no name
        if not self._any and exchange.path not in HEALTH and not self._known(exchange):
            await http.fail(exchange, Misdirected())
            return True
        if not self._origins:
            return False
        # a cache must not show one page what was allowed to another; the card is for all of them
        if not exchange.path.endswith(card.PUBLIC):
            exchange.always = (*exchange.always, (b"vary", b"Origin"))
        origin = exchange.headers.get(b"origin")
        if origin is None or not (b"*" in self._origins or origin in self._origins):
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

    def _known(self, exchange: Exchange) -> bool:
        host = exchange.header(b"host")
        if self._forwarded and (told := exchange.header(b"x-forwarded-host")):
            host = told.partition(",")[0].strip()
        name = re.sub(r":\d*$", "", host.lower())
        return name in self._hosts or bool(self._under and name.endswith(self._under))

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
