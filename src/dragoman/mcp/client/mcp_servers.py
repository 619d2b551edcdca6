"""Which MCP server: a command that is run here, or a URL."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.security.address_policy import EgressRefused, Rule, parse
from dragoman.security.client_network import loopback

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),  # which authorities are trusted
)
"""The variables that a server gets from the environment of this process. All others must be
given."""
RUNNERS = ("uvx", "npx", "bunx", "pipx", "uv", "python", "python3", "node", "run", "tool")
"""Words of a command that say how a server is run, and not which one."""
SUFFIXES = (".py", ".js", ".mjs", ".ts")


class StdioServer(Struct, frozen=True, kw_only=True):
    """A server that runs as a child process and speaks over its standard input and output."""

    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    """Variables that the server gets besides the few that every server inherits, such as PATH."""
    cwd: str | None = None
    name: str = ""
    """By default, made of the command."""
    older: bool = False
    """Speak protocol 2025-11-25 or an older one, although the server may know a newer one: for
    servers whose tools ask during a call, as they did before 2026-07-28."""

    def environment(self) -> dict[str, str]:
        """All variables that the server gets."""
        own = {name: os.environ[name] for name in INHERITED if name in os.environ}
        return {**own, **self.env}


class HTTPServer(Struct, frozen=True, kw_only=True):
    """A server that is reached over HTTP (streamable HTTP)."""

    url: str
    headers: Mapping[str, str] = {}
    """Sent with each request, such as `Authorization`. What callers send is never passed on."""
    allow: tuple[str, ...] = ()
    """Hosts that may be reached by plain `http`; see `egress_allow`."""
    name: str = ""
    """By default, the host."""
    older: bool = False
    """See `StdioServer.older`."""

    def check(self) -> None:
        """Raise ValueError if the address must not be used: it has credentials or is ambiguous, or
        it would be read by anyone on the network path."""
        try:
            target = parse(self.url)
        except EgressRefused as error:
            raise ValueError(f"{self.url}: {error}") from None
        rules = [Rule.parse(entry) for entry in self.allow]
        listed = any(rule.matches(target.named, target.port) for rule in rules)
        if target.scheme != "https" and not (loopback(target.host) or listed):
            raise ValueError(
                f"{self.url}: the URL is not https; to permit that, allow the host {target.host}"
            )


MCPServer: TypeAlias = StdioServer | HTTPServer


def parse_server(server: str | MCPServer) -> MCPServer:
    """The server of a text, which is a URL or a command; each has a name. Raises ValueError."""
    if isinstance(server, str):
        if server.startswith(("http://", "https://")):
            server = HTTPServer(url=server)
        else:
            server = StdioServer(command=tuple(shlex.split(server)))
    if isinstance(server, HTTPServer):
        server.check()
        return server if server.name else _with_name(server, urlsplit(server.url).hostname or "")
    if not server.command:
        raise ValueError("an MCP server needs a command or a URL")
    return server if server.name else _with_name(server, _program(server.command))


def _with_name(server: MCPServer, name: str) -> MCPServer:
    from msgspec.structs import replace

    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
    return replace(server, name=plain or "mcp-server")


def _program(command: tuple[str, ...]) -> str:
    """The last part of the first word that says which server it is."""
    for word in command:
        last = PurePath(word).name
        for suffix in SUFFIXES:
            last = last.removesuffix(suffix)
        plain = re.sub(r"[0-9.]+$", "", last)
        if not word.startswith("-") and plain and plain not in RUNNERS:
            return last.partition("@")[0] or last
    return PurePath(command[0]).name
