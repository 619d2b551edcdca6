"""MCP both ways: agents as tools of an MCP server, and MCP servers as agents.

content             parts of A2A as content of MCP, and back
elicitation_schema  which questions a form can carry, and what its answer means
server/             agents as tools
client/             MCP servers as agents

It needs the extra `mcp`. `import dragoman.mcp` itself loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.mcp.client.connection import ServerUnavailable
    from dragoman.mcp.client.mcp_agent import AgentOptions, agent, approve
    from dragoman.mcp.client.mcp_servers import HTTPServer, StdioServer, parse_server
    from dragoman.mcp.server.application import McpApp, mounts
    from dragoman.mcp.server.stdio import serve_stdio

__all__ = [
    "AgentOptions",
    "HTTPServer",
    "McpApp",
    "ServerUnavailable",
    "StdioServer",
    "agent",
    "approve",
    "mounts",
    "parse_server",
    "serve_stdio",
]

_PLACES = {
    "AgentOptions": "client.mcp_agent",
    "HTTPServer": "client.mcp_servers",
    "McpApp": "server.application",
    "ServerUnavailable": "client.connection",
    "StdioServer": "client.mcp_servers",
    "agent": "client.mcp_agent",
    "approve": "client.mcp_agent",
    "mounts": "server.application",
    "parse_server": "client.mcp_servers",
    "serve_stdio": "server.stdio",
}
"""The public names, and the modules that have them."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used. Raises ImportError if the extra is missing."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from dragoman.security.extras import need

    need("mcp", "mcp", "dragoman.mcp")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
