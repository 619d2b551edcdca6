"""MCP both ways: agents as tools of an MCP server, and MCP servers as agents.

content             parts of A2A as content of MCP, and back
elicitation_schema  which questions a form can carry, and what its answer means
server/             agents as tools

It needs the extra `mcp`. `import dragoman.mcp` itself loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.mcp.server.application import McpApp, mounts
    from dragoman.mcp.server.stdio import serve_stdio

__all__ = ["McpApp", "mounts", "serve_stdio"]

_PLACES = {
    "McpApp": "server.application",
    "mounts": "server.application",
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
