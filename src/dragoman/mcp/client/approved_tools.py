"""Which definitions of tools are approved.

Without a file, the definitions that a server gives first are approved for as long as this process
runs. With a file, only those in the file are: it is written for the first time when there is none,
and again when the operator approves. A tool that its server describes in another way is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dragoman.mcp.client.tool_definitions import ToolDefinition, differences

logger = logging.getLogger("dragoman")

Tools = dict[str, dict[str, ToolDefinition]]
"""Definitions by the name of the server and that of the tool."""


class ApprovedTools:
    """The approved definitions, and what has changed since."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._tools: Tools = read(path) if path is not None and path.exists() else {}
        self._changed: dict[tuple[str, str], str] = {}
        """Why a tool is refused, by server and tool."""

    def of(self, server: str) -> dict[str, ToolDefinition]:
        """The approved tools of a server."""
        return dict(self._tools.get(server, {}))

    def known(self, server: str) -> bool:
        """Whether any tools of a server are approved."""
        return server in self._tools

    def compare(self, server: str, now: Mapping[str, ToolDefinition]) -> None:
        """Take note of how a server describes its tools now."""
        known = self._tools.get(server)
        if known is None:
            self._tools[server] = dict(now)
            if self._path is not None:
                write(self._path, self._tools)
                logger.info("%s: its tools are approved in %s", server, self._path)
            return
        for name, new in now.items():
            if name in known:
                self._note(server, name, known[name], new)
            elif self._path is None:
                known[name] = new
            else:
                self._tell(server, name, "is not approved")
        for name in known:
            if name not in now:
                self._tell(server, name, "is not offered any more")

    def refusal(self, tool: ToolDefinition) -> str:
        """Why a tool must not be called; empty if it may."""
        why = self._changed.get((tool.server, tool.name))
        return f"The tool {tool.name} {why}" if why else ""

    def _note(self, server: str, name: str, old: ToolDefinition, new: ToolDefinition) -> None:
        if old.digest == new.digest:
            self._changed.pop((server, name), None)
            return
        what = ", ".join(differences(old, new))
        self._tell(
            server,
            name,
            f"has changed since it was approved ({what}); the operator of this agent must approve "
            "it again",
        )

    def _tell(self, server: str, name: str, why: str) -> None:
        if self._changed.get((server, name)) != why:
            logger.warning("%s: the tool %r %s", server, name[:100], why)
        self._changed[server, name] = why


def read(path: Path) -> Tools:
    """Read the approved definitions. Raises ValueError if the file is not valid."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Tools)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def write(path: Path, tools: Tools) -> None:
    """Write the approved definitions."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tools), indent=2) + b"\n")
