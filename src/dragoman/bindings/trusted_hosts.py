"""The Host values that the server accepts: the configured ones, or the names of this machine."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from dragoman.bindings.http_request import HTTPRequest
from dragoman.security.client_network import loopback
from dragoman.server.settings import Settings

_PORT = re.compile(r":\d*$")
_USUAL = {"http": ":80", "https": ":443"}
_REMEMBERED = 256


class TrustedHosts:
    """Decides which hosts a request may name.

    The setting `trusted_hosts` lists them. Without it, a server that listens on a loopback address
    accepts only the names of this machine and the host of `url`, because a web page can make any
    other name resolve to that address (DNS rebinding). A server that listens elsewhere, or has
    `trust_forwarded` for a proxy in front of it, accepts any name, but does not trust it."""

    def __init__(self, settings: Settings) -> None:
        names = [host.lower() for host in settings.trusted_hosts]
        self._listed = bool(names)
        self._names = frozenset(name for name in names if not name.startswith("*."))
        self._under = tuple(name[1:] for name in names if name.startswith("*."))
        self._forwarded = settings.trust_forwarded
        self._host = settings.host
        url = urlsplit(settings.url)
        self._url = (url.hostname or "").lower()
        self._origin = _origin(url.scheme, url.netloc) if self._url else ""
        self.address = ""
        """The address that the server listens on; if empty, the ASGI scope names it."""
        self._loopback: dict[str, bool] = {}

    def any(self, incoming: HTTPRequest) -> bool:
        """Whether a request may name any host."""
        return not self._listed and (self._forwarded or not self._local(incoming))

    def accepts(self, incoming: HTTPRequest) -> bool:
        """Whether the host that a request names is accepted."""
        if self.any(incoming):
            return True
        name = self._named(incoming)
        if self._listed:
            return self._lists(name)
        return not name or loopback(name) or name == self._url

    def own(self, incoming: HTTPRequest) -> bool:
        """Whether the address that the request names is known to be this server's, by `url` or a
        trusted host. Only such an address may be published."""
        if self._url:
            return True
        name = self._named(incoming)
        if self._listed:
            return self._lists(name)
        return self._local(incoming) and (not name or loopback(name))

    def signs(self, name: str) -> bool:
        """Whether a signed card may name this host (IPv6 without brackets): the host of `url`, one
        of `trusted_hosts`, or this machine. Otherwise a request could name an attacker's host and
        get a signed card that points to it."""
        if name == self._url or self._lists(name) or self._lists(f"[{name}]"):
            return True
        return not self._listed and (name == self._host or loopback(name))

    def origins(self, incoming: HTTPRequest) -> tuple[str, str]:
        """Return the server's own origins: from `url`, and as the request names it."""
        scheme, host = incoming.scope.get("scheme", "http"), incoming.header(b"host")
        if self._forwarded:
            forwarded = _first(incoming.header(b"x-forwarded-proto")).lower()
            scheme = forwarded if forwarded in _USUAL else scheme
            host = _first(incoming.header(b"x-forwarded-host")) or host
        return self._origin, _origin(scheme, host)

    def _lists(self, name: str) -> bool:
        return name in self._names or bool(self._under and name.endswith(self._under))

    def _local(self, incoming: HTTPRequest) -> bool:
        """Whether the server listens on a loopback address."""
        address = self.address
        if not address:
            server = incoming.scope.get("server")
            address = server[0] if server else ""
        known = self._loopback.get(address)
        if known is None:
            if len(self._loopback) >= _REMEMBERED:
                self._loopback.clear()
            known = self._loopback[address] = loopback(address)
        return known

    def _named(self, incoming: HTTPRequest) -> str:
        """Return the host that a request names, without its port, in lower case."""
        host = incoming.header(b"host")
        if self._forwarded and (forwarded := _first(incoming.header(b"x-forwarded-host"))):
            host = forwarded
        return _PORT.sub("", host.lower())


def _origin(scheme: str, host: str) -> str:
    """Return an origin in the form that browsers send."""
    host = host.lower()
    usual = _USUAL.get(scheme, "")
    return f"{scheme}://{host.removesuffix(usual) if usual else host}"


def _first(text: str) -> str:
    return text.partition(",")[0].strip()
