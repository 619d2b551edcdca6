"""Rules for the addresses that a card may name. A card from a public address may not point to a
private address unless the caller allows it. The rules check the address that is dialled, not the
host name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from dragoman.security.address_policy import Address, Rule, denied, public

PORTS = {"http": 80, "https": 443, "grpc": 443, "grpcs": 443}

Allow = tuple[Rule, ...]


class NotAllowed(PermissionError):
    """The card points to an address that is not public. The text says how to allow it."""


class Dial:
    """The addresses that one request may dial, and those that it tried."""

    def __init__(self, url: str, allow: Allow | None) -> None:
        self.url = url
        self.allow = allow
        """None allows any address. Otherwise only public addresses and those that these rules
        allow."""
        self.refused: Address | None = None
        self.dialled = False

    def admits(self, address: Address, port: int) -> bool:
        """Return whether this address may be dialled, and record the decision."""
        if self.allow is None or public(address) or _matches(self.allow, address, port):
            self.dialled = True
            return True
        self.refused = address
        return False

    def error(self) -> NotAllowed | None:
        """The error to raise if no address was left to dial."""
        if self.refused is None or self.dialled:
            return None
        return NotAllowed(
            f"the card comes from a public address, but names {self.url} at {self.refused}, "
            f"which is not public ({denied(self.refused)}); to permit it, use "
            f'allow=["{self.refused}"] (--allow {self.refused})'
        )


DIALLING: ContextVar[Dial | None] = ContextVar("dialling", default=None)
"""The request for which the next connection is opened; None where its address is not checked."""


class Dialled:
    """The addresses that a transport has dialled, by origin."""

    def __init__(self) -> None:
        self.public: set[str] = set()
        """Origins with a dialled address that is public."""
        self.other: set[str] = set()
        """Origins with a dialled address that is not public."""

    def socket(self, info: Any) -> socket.socket:
        """Make the socket for an address. Raises NotAllowed."""
        family, kind, protocol, _, where = info
        dial = DIALLING.get()
        if dial is not None:
            address = ip_address(where[0])
            if not dial.admits(address, where[1]):
                raise dial.error() or NotAllowed(f"{address} is not public")
            (self.public if public(address) else self.other).add(dial.url)
        return socket.socket(family, kind, protocol)


def rules_for(url: str, allow: Allow | None) -> Allow | None:
    """The rules that apply to a URL: None if one of them names its host."""
    if allow is None:
        return None
    host, port = host_and_port(url)
    return None if _matches(allow, parse_host(host), port) else allow


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and port of a URL."""
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or PORTS.get(parts.scheme, 0)


def parse_host(host: str) -> str | Address:
    """Return a host as an IP address if it is one, else as a name, the form that rules use."""
    try:
        return ip_address(host)
    except ValueError:
        return host


def private_literal(url: str) -> bool:
    """Whether the URL itself names an address that is not public."""
    host = parse_host(host_and_port(url)[0])
    return not isinstance(host, str) and not public(host)


async def addresses(dial: Dial) -> Sequence[str]:
    """Resolve a URL to the addresses that may be dialled, for callers that dial themselves (gRPC).
    Raises OSError or NotAllowed."""
    host, port = host_and_port(dial.url)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    texts = list(dict.fromkeys(str(item[4][0]) for item in found))
    taken = [text for text in texts if dial.admits(ip_address(text), port)]
    if error := dial.error():
        raise error
    return taken


def _matches(rules: Allow, host: str | Address, port: int) -> bool:
    return any(rule.matches(host, port) for rule in rules)
