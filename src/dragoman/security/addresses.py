"""Network addresses: which mean this machine, and which count as one client."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

CLIENT_BITS = 64
"""The leading bits of an IPv6 address that one client has: a host has as many addresses as it
likes behind them."""
LONGEST = 64
"""The most characters of a text that is no address."""


def loopback(host: str | IPv4Address | IPv6Address) -> bool:
    """Whether a name or an address always means this machine."""
    try:
        address = ip_address(host.strip("[]")) if isinstance(host, str) else host
    except ValueError:
        name = str(host).lower().rstrip(".")
        return name == "localhost" or name.endswith(".localhost")
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def client_network(address: str) -> str:
    """What limits count for an address: of IPv4 the address, of IPv6 the network."""
    if ":" not in address:
        return address[:LONGEST]
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address[:LONGEST]
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, CLIENT_BITS), strict=False))
