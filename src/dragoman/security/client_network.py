"""Network addresses: which are loopback, and which count as one client."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

CLIENT_BITS = 64
"""The leading bits of an IPv6 address that identify one client: a host may use any address behind
them."""
LONGEST = 64
"""The most characters of a text that is not an address."""


def loopback(host: str | IPv4Address | IPv6Address) -> bool:
    """Whether a name or an address always means this machine."""
    try:
        address = ip_address(host.strip("[]")) if isinstance(host, str) else host
    except ValueError:
        name = str(host).lower().rstrip(".")
        return name == "localhost" or name.endswith(".localhost")
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def client_network(address: str) -> str:
    """The key of a client for limits: an IPv4 address, or the network of an IPv6 address."""
    if ":" not in address:
        return address[:LONGEST]
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address[:LONGEST]
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, CLIENT_BITS), strict=False))
