"""Which addresses a request may go to: how a URL is parsed, which networks are not public, and the
entries of an allow list."""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from yarl import URL

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Our own table, because the private ranges in `ipaddress` differ between Python versions.
DENIED: dict[str, tuple[str, ...]] = {
    "unspecified": ("0.0.0.0/8", "::/128"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
    "shared": ("100.64.0.0/10",),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    # These contain another address, to which a gateway translates them.
    "translated": (
        *("192.88.99.0/24", "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96"),
        *("64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"),
    ),
    "documentation": ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": (
        *("192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4"),
        *("100::/64", "2001::/23", "3fff::/20", "5f00::/16"),
    ),
    # Public by its number, but inside Azure it is the host of the machine.
    "metadata": ("168.63.129.16/32",),
}
_DENIED = [(ip_network(text), what) for what, texts in DENIED.items() for text in texts]
_GLOBAL = IPv6Network("2000::/3")  # no other part of IPv6 is assigned
_NAT64 = IPv6Network("64:ff9b::/96")
LOCAL = (".localhost", ".localdomain", ".local", ".internal", ".home.arpa")

PORTS = {"https": 443, "http": 80}
MAX_URL = 2048

_LEGAL = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?")
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::([1-9][0-9]{0,4}))?")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class EgressRefused(ValueError):
    """The address is forbidden. The text names the rule and may be shown to the caller who gave the
    URL."""


class Target(Struct, frozen=True):
    """A parsed URL. The host is in canonical form."""

    scheme: str
    host: str
    port: int
    path: str
    query: str
    literal: bool
    """The host is an IP address."""

    @property
    def named(self) -> str | Address:
        """The host as an address or a name, the form that rules use."""
        return ip_address(self.host) if self.literal else self.host

    @property
    def bracketed(self) -> str:
        """The host as it is written before a port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def authority(self) -> str:
        """Host and port as in the `Host` header."""
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return self.bracketed + port

    def url(self) -> URL:
        """The URL for the transport, which does not parse or quote it again."""
        from yarl import URL

        return URL.build(
            scheme=self.scheme,
            authority=self.authority,
            path=self.path,
            query_string=self.query,
            encoded=True,
        )


class Rule(Struct, frozen=True):
    """An entry of the allow list: a name, all names under one, or a network; optionally with a
    port."""

    name: str = ""
    network: Network | None = None
    port: int = 0
    """0 means any."""

    @classmethod
    def parse(cls, entry: str) -> Rule:
        """Parse an entry such as `*.intra.example:8443`, `10.0.0.0/8` or `[::1]:80`."""
        text = entry.strip().lower()
        with suppress(ValueError):
            return cls(network=ip_network(text))
        wild = text.startswith("*.")
        try:
            host, port = _split(text[2:] if wild else text)
            if wild and not isinstance(host, str):
                raise EgressRefused("a wildcard must be followed by a name")
        except EgressRefused as error:
            raise ValueError(f"{entry!r} cannot be allowed: {error}") from None
        if isinstance(host, str):
            return cls(name=f".{host}" if wild else host, port=port)
        return cls(network=ip_network(host), port=port)

    def matches(self, host: str | Address, port: int) -> bool:
        """Whether the name matches, or the address is in the network."""
        if self.port not in (0, port):
            return False
        if not isinstance(host, str):
            return self.network is not None and host in self.network
        return host == self.name or (self.name[:1] == "." and host.endswith(self.name))


def denied(address: Address) -> str:
    """Why requests to this address are forbidden; empty if they are not."""
    for network, what in _DENIED:
        if address in network:
            return what
    if isinstance(address, IPv6Address) and (address not in _GLOBAL or address.scope_id):
        return "reserved"
    return ""


def public(address: Address) -> bool:
    """Whether an address is public. For NAT64, which translates all of IPv4, the address inside
    counts."""
    if isinstance(address, IPv6Address) and address in _NAT64 and not address.scope_id:
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    return not denied(address)


def parse(url: str) -> Target:
    """Parse a URL. Raises EgressRefused if it is not http or https, or if it is ambiguous."""
    if len(url) > MAX_URL:
        raise EgressRefused(f"the URL is longer than {MAX_URL} characters")
    if not _LEGAL.fullmatch(url):
        raise EgressRefused("the URL has characters that must be percent-encoded")
    match = _URL.fullmatch(url)
    if match is None:
        raise EgressRefused("the URL is not of the form https://host/path")
    scheme = match[1].lower()
    if scheme not in PORTS:
        raise EgressRefused("the URL is not https")
    host, port = _split(match[2].lower())
    literal = not isinstance(host, str)
    return Target(
        scheme, str(host), port or PORTS[scheme], match[3] or "/", match[4] or "", literal
    )


def check(scheme: str, host: str | Address, port: int) -> None:
    """Apply the rules for everything that is not on the allow list."""
    if scheme != "https":
        raise EgressRefused("the URL is not https")
    if port < 1024 and port not in PORTS.values():
        raise EgressRefused(f"port {port} is not allowed")
    if isinstance(host, str):
        if "." not in host or host.endswith(LOCAL):
            raise EgressRefused("the host is a local name")
    elif what := denied(host):
        raise EgressRefused(f"the address is not public ({what})")


def _split(authority: str) -> tuple[str | Address, int]:
    """Parse host and port (or 0) of an authority in lower case. Only canonical forms are accepted:
    a form that others might read as another host is refused."""
    if "@" in authority:
        raise EgressRefused("credentials in the URL are not allowed")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise EgressRefused("the host or its port is not valid")
    port = int(match[3] or 0)
    if port > 65535:
        raise EgressRefused(f"port {port} is not allowed")
    try:
        if match[1]:
            return IPv6Address(match[1]), port
        if _NUMBER.fullmatch(match[2].rpartition(".")[2]):
            return IPv4Address(match[2]), port
    except ValueError:
        raise EgressRefused("the host is not a canonical IP address") from None
    if len(match[2]) > 253 or not _NAME.fullmatch(match[2]):
        raise EgressRefused("the host is not a valid name")
    return match[2], port
