"""Limits on the connections of `dragoman serve`: in total, and for each client network."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

from dragoman.security.limits import Proxies
from dragoman.server.settings import Settings
from dragoman.telemetry.logs import logger

RESERVE = 64
"""The number of file descriptors that are not used for connections."""
PAUSE = 60.0
"""Seconds between two warnings about refused connections."""


class ConnectionLimits:
    """Counts open connections and limits them: in total, and to half of that for one client network
    unless it is a trusted proxy."""

    def __init__(self, settings: Settings, files: int | None = None) -> None:
        self.most = settings.max_connections
        if files is not None:
            self.most = max(1, min(self.most, files - RESERVE))
        self.each = max(1, self.most // 2)
        self._proxies = Proxies(settings.trusted_proxies)
        self.count = 0
        self._by_network: dict[str, int] = {}
        self._warned_at = -PAUSE

    def enter(self, network: str, address: str) -> bool:
        """Count a new connection from this address. Returns False, without counting it, if the
        limit is reached."""
        held = self._by_network.get(network, 0)
        if self.count >= self.most or (held >= self.each and not self._proxies.trusts(address)):
            self._warn(network, held)
            return False
        self.count += 1
        self._by_network[network] = held + 1
        return True

    def leave(self, network: str) -> None:
        """Stop counting a closed connection."""
        self.count -= 1
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]

    def _warn(self, network: str, held: int) -> None:
        now = time.monotonic()
        if now - self._warned_at < PAUSE:
            return
        self._warned_at = now
        logger.warning(
            "refusing new connections: %d are open, %d of them from %s; max_connections allows %d, "
            "and %d from one address",
            *(self.count, held, network or "nowhere", self.most, self.each),
        )


def files() -> int | None:
    """Return how many files the process may have open; None if unknown or unlimited."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def accept_pending(listener: socket.socket) -> list[tuple[socket.socket, Any]]:
    """Accept all pending connections of a listener; closing it would reset them."""
    found = []
    listener.setblocking(False)
    with suppress(OSError):  # raised when no connection is pending
        while True:
            found.append(listener.accept())
    for peer, _ in found:
        peer.setblocking(False)
    return found
