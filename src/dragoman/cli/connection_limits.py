"""Limits on the connections of `dragoman serve`: in all, and for each address."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

from dragoman.security.limits import Proxies
from dragoman.server.settings import Settings
from dragoman.telemetry.logs import logger

RESERVE = 64
"""The files that are kept for other things than connections."""
PAUSE = 60.0
"""So long it is not said again that connections are refused."""


class ConnectionLimits:
    """The open connections: so many in all, and half of them of one address that is no trusted
    proxy."""

    def __init__(self, settings: Settings, files: int | None = None) -> None:
        self.most = settings.max_connections
        if files is not None:
            self.most = max(1, min(self.most, files - RESERVE))
        self.each = max(1, self.most // 2)
        self._proxies = Proxies(settings.trusted_proxies)
        self.count = 0
        self._of: dict[str, int] = {}
        self._told = -PAUSE

    def enter(self, who: str, address: str) -> bool:
        """Whether there is room for one more of them, which comes from this address; it has been
        taken, then."""
        held = self._of.get(who, 0)
        if self.count >= self.most or (held >= self.each and not self._proxies.trusts(address)):
            self._tell(who, held)
            return False
        self.count += 1
        self._of[who] = held + 1
        return True

    def leave(self, who: str) -> None:
        """One of them is gone."""
        self.count -= 1
        self._of[who] -= 1
        if not self._of[who]:
            del self._of[who]

    def _tell(self, who: str, held: int) -> None:
        now = time.monotonic()
        if now - self._told < PAUSE:
            return
        self._told = now
        logger.warning(
            "refusing new connections: %d are open, %d of them from %s; max_connections allows %d, "
            "and %d from one address",
            *(self.count, held, who or "nowhere", self.most, self.each),
        )


def files() -> int | None:
    """How many files the process may have open, where that is known."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def taken(listener: socket.socket) -> list[tuple[socket.socket, Any]]:
    """Whoever waits at a listener that is about to be closed, which would send them away."""
    found = []
    listener.setblocking(False)
    with suppress(OSError):  # there is nobody else
        while True:
            found.append(listener.accept())
    for peer, _ in found:
        peer.setblocking(False)
    return found
