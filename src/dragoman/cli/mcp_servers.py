"""`dragoman serve --mcp-server`: MCP servers, each served as an agent."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.cli import UsageError
from dragoman.telemetry.logs import secret

if TYPE_CHECKING:
    from dragoman import Agent
    from dragoman.mcp import HTTPServer, StdioServer


class MCPServers(Struct, frozen=True, kw_only=True):
    """The options, as they are given."""

    servers: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    token: str = ""
    approved: str = ""
    approve: bool = False
    per_caller: bool = False
    older: bool = False

    def agents(self) -> list[Agent]:
        """Make an agent of each server. Raises UsageError."""
        if not self.servers:
            return []
        from dragoman import mcp

        if self.approve:
            self._approve()
        more: mcp.AgentOptions = {"per_caller": self.per_caller}
        if self.approved:
            more["approved"] = self.approved
        try:
            return [mcp.agent(server, **more) for server in self._servers()]
        except ValueError as error:
            raise UsageError(f"--mcp-server: {error}") from None

    def _servers(self) -> list[StdioServer | HTTPServer]:
        from msgspec.structs import replace

        from dragoman.cli.connect_options import secret_text
        from dragoman.mcp import HTTPServer, parse_server

        token = secret_text(self.token)
        secret(token)
        env = dict(map(_variable, self.variables))
        found: list[StdioServer | HTTPServer] = []
        for text in self.servers:
            each = replace(parse_server(text), older=self.older)
            if isinstance(each, HTTPServer):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                found.append(replace(each, headers=headers))
            else:
                found.append(replace(each, env=env))
        return found

    def _approve(self) -> None:
        """Write the definitions of all tools to the file of approved definitions."""
        import asyncio

        from dragoman import mcp

        if not self.approved:
            raise UsageError("--mcp-approve: say with --mcp-approved in which file")
        try:
            asyncio.run(mcp.approve(self.approved, *self._servers()))
        except (ValueError, mcp.ServerUnavailable) as error:
            raise UsageError(f"--mcp-approve: {error}") from None


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--mcp-server",
        action="append",
        default=[],
        metavar="COMMAND|URL",
        help="serve the tools of this MCP server as an agent: a command that is run here, such as "
        "'uvx mcp-server-time', or a URL; can be repeated (default: none)",
    )
    parser.add_argument(
        "--mcp-env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="give the commands of --mcp-server this variable of the environment; can be repeated "
        "(default: PATH and a few others, nothing secret)",
    )
    parser.add_argument(
        "--mcp-token",
        default="",
        metavar="TOKEN",
        help="send this bearer token to the URLs of --mcp-server; @FILE reads it from a file "
        "(default: none)",
    )
    parser.add_argument(
        "--mcp-approved",
        default="",
        metavar="FILE",
        help="offer only tools whose definitions are in this file; it is written if there is none "
        "(default: the definitions at the start)",
    )
    parser.add_argument(
        "--mcp-approve",
        action="store_true",
        help="approve all tools as they are now, and write --mcp-approved",
    )
    parser.add_argument(
        "--mcp-per-caller",
        action="store_true",
        help="give each authenticated caller connections of its own, for MCP servers that keep "
        "state",
    )
    parser.add_argument(
        "--mcp-older",
        action="store_true",
        help="speak protocol 2025-11-25 or an older one with --mcp-server, for servers whose tools "
        "ask during a call",
    )


def given(arguments: argparse.Namespace) -> MCPServers:
    """The options of a command line."""
    found: Sequence[str] = arguments.mcp_server
    return MCPServers(
        servers=tuple(found),
        variables=tuple(arguments.mcp_env),
        token=arguments.mcp_token,
        approved=arguments.mcp_approved,
        approve=arguments.mcp_approve,
        per_caller=arguments.mcp_per_caller,
        older=arguments.mcp_older,
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        if name not in os.environ:
            raise UsageError(f"--mcp-env {name}: there is no such variable")
        value = os.environ[name]
    return name, value
