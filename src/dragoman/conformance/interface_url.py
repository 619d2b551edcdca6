"""Checks the URL of an interface: whether it is valid, and who can reach it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

from dragoman.client.transport import origin
from dragoman.conformance.card_shape import Finding, Level
from dragoman.security.client_network import loopback

LOCAL = (".local", ".internal", ".localdomain", ".home.arpa", ".lan")
REACH = ("nobody", "loopback", "private", "public")
"""Who can reach a host, from fewest to most."""

_LEGAL = re.compile(r"[!-~]+")
_OTHER = re.compile(r"(?!https?:)([a-z][a-z0-9+.-]*):/", re.IGNORECASE)


def split(text: str) -> SplitResult:
    """Split an absolute URL. Raises ValueError, which says why it is not valid and what to do."""
    if not _LEGAL.fullmatch(text):
        raise ValueError("contains characters that are not allowed in a URL; percent-encode them")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}; correct it") from None
    if not host or not parts.scheme:
        raise ValueError("is not absolute; write https:// and the host before it")
    if parts.username is not None:
        raise ValueError("shows credentials to everyone; remove them, and change them")
    return parts


def reach(host: str) -> str:
    """Who can reach a host, judged by its name; a value of `REACH`."""
    if loopback(host):
        return "loopback"
    host = host.lower().rstrip(".")
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return "private" if host.endswith(LOCAL) or "." not in host else "public"
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    if found.is_unspecified:
        return "nobody"
    return "public" if found.is_global else "private"


def site(path: str, interface: Mapping[str, Any], url: str) -> Iterator[Finding]:
    """Check an interface's URL, in a card that was found at `url`."""
    text, grpc = interface.get("url", ""), interface.get("protocolBinding") == "GRPC"
    if not text:
        return
    if other := _OTHER.match(text):
        way = "host:port" if grpc else "https://"
        yield Finding("error", path, f"is {other[1]}:, which clients do not support; write {way}")
        return
    bare = grpc and "://" not in text
    try:
        parts = split(f"https://{text}" if bare else text)
    except ValueError as error:
        yield Finding("error", path, str(error))
        return
    if bare and not parts.port:
        yield Finding("warning", path, "has no port; write host:port")
    if grpc and parts.path.strip("/"):
        yield Finding("note", path, "has a path, which gRPC does not support; write host:port")
    if parts.query or parts.fragment:
        text = "has a query or fragment, so clients cannot append paths; remove it"
        yield Finding("warning", path, text)
    yield from _reached(path, parts, url, grpc=grpc)


def _reached(path: str, parts: SplitResult, url: str, *, grpc: bool) -> Iterator[Finding]:
    host = parts.hostname or ""
    who, home = reach(host), origin(url)
    if who == "nobody":
        text = f"names {host}, an address to listen on that clients cannot call; name the host"
        yield Finding("error", path, text)
        return
    if parts.scheme == "http" and who != "loopback":
        yield Finding("warning", path, "is plain http, which others can read; use https://")
    if not home.startswith("http"):
        return
    card = urlsplit(home).hostname or ""
    if REACH.index(who) < REACH.index(reach(card)):
        level: Level = "error" if who == "loopback" else "warning"
        text = (
            f"is a {who} address, but the card is at {home}; use an address that callers can reach"
        )
        yield Finding(level, path, text)
    elif host != card if grpc else origin(parts.geturl()) != home:
        text = f"is not at the card's origin {home}, so clients do not send credentials; "
        yield Finding(
            "warning", path, f"{text}serve both from one origin, or ask callers to trust it"
        )
