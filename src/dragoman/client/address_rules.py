"""Where a card may lead: one that was fetched from a public address leads to no address that is
not public, unless that is allowed. What counts is the address that is dialled, not its name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from dragoman.security.egress import Address, Rule, denied, public

PORTS = {"http": 80, "https": 443, "grpc": 443, "grpcs": 443}

Allow = tuple[Rule, ...]


class NotAllowed(PermissionError):
    """The card leads to an address that is not public; the text says what to do."""


class Dial:
    """The dialling for one request: where it goes, and what came of it."""

    def __init__(self, url: str, allow: Allow | None) -> None:
        self.url = url
        self.allow = allow
        """None is anywhere; else only public addresses, and what these rules allow."""
        self.refused: Address | None = None
        self.dialled = False

    def admits(self, address: Address, port: int) -> bool:
        """Whether this address may be dialled. It is noted, either way."""
        if self.allow is None or public(address) or _matches(self.allow, address, port):
            self.dialled = True
            return True
        self.refused = address
        return False

    def error(self) -> NotAllowed | None:
        """What to raise if nothing else was left to dial."""
        if self.refused is None or self.dialled:
            return None
        return NotAllowed(
            f"the card comes from a public address, but names {self.url} at {self.refused}, "
            f"which is not public ({denied(self.refused)}); to permit it, use "
            f'allow=["{self.refused}"] (--allow {self.refused})'
        )


DIALLING: ContextVar[Dial | None] = ContextVar("dialling", default=None)
"""The request that the next connection is made for; None where its address does not count."""


class Dialled:
    """The addresses that a transport has dialled, by their origin."""

    def __init__(self) -> None:
        self.public: set[str] = set()
        """Origins of which a public address was dialled."""
        self.other: set[str] = set()
        """Origins of which another one was."""

    def socket(self, info: Any) -> socket.socket:
        """The socket for an address that is about to be dialled; NotAllowed."""
        family, kind, protocol, _, where = info
        dial = DIALLING.get()
        if dial is not None:
            address = ip_address(where[0])
            if not dial.admits(address, where[1]):
                raise dial.error() or NotAllowed(f"{address} is not public")
            (self.public if public(address) else self.other).add(dial.url)
        return socket.socket(family, kind, protocol)


def narrowed(url: str, allow: Allow | None) -> Allow | None:
    """The rules that count for a URL: none if its host is named by one of them."""
    if allow is None:
        return None
    host, port = place(url)
    return None if _matches(allow, named(host), port) else allow


def place(url: str) -> tuple[str, int]:
    """Host and port of a URL."""
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or PORTS.get(parts.scheme, 0)


def named(host: str) -> str | Address:
    """A host as rules know it."""
    try:
        return ip_address(host)
    except ValueError:
        return host


def local(url: str) -> bool:
    """Whether a URL says by itself that it leads to an address that is not public."""
    host = named(place(url)[0])
    return not isinstance(host, str) and not public(host)


async def addresses(dial: Dial) -> Sequence[str]:
    """The addresses of a URL that may be dialled, for those who do not dial here; OSError,
    NotAllowed."""
    host, port = place(dial.url)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    texts = list(dict.fromkeys(str(item[4][0]) for item in found))
    taken = [text for text in texts if dial.admits(ip_address(text), port)]
    if error := dial.error():
        raise error
    return taken


def _matches(rules: Allow, host: str | Address, port: int) -> bool:
    return any(rule.matches(host, port) for rule in rules)
