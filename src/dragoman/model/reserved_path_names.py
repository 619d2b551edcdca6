"""Names with a meaning in paths, which no agent and no tenant may have."""

from __future__ import annotations

RESERVED = {
    "v1": "the paths of A2A 0.3 begin with it",
    "tasks": "paths of A2A begin with it",
    "healthz": "it is the path of a health check",
    "readyz": "it is the path of a health check",
    "mcp": "it is the path of an MCP server",
    "console": "it is the path of a console",
}
"""The names, with the reason."""
SERVED = frozenset(
    (
        *("v1", "tasks", "message", "agent", "healthz", "readyz"),
        *("handovers", "notifications"),
    )
)
"""The names that begin the paths which an agent itself serves."""


def reserved(name: str) -> str:
    """Why no agent and no tenant may have this name; empty if one may."""
    reason = RESERVED.get(name)
    return f"{name!r} is reserved: {reason}" if reason else ""
