"""Clients that have connected by a handshake, so that they get notifications of changes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress

from anyio import BrokenResourceError, ClosedResourceError
from mcp import MCPError
from mcp.server.session import ServerSession

from dragoman.mcp.server.exchange import Context

MOST = 1000
"""How many clients are remembered; the oldest is forgotten first."""
PATIENCE = 5.0
"""Seconds that a client has to take a notification."""


class ConnectedClients:
    """The sessions of clients that speak a protocol before 2026-07-28."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()

    def add(self, context: Context) -> None:
        """Remember the client that has sent this notification."""
        headers = getattr(context.request, "headers", None) or {}
        self._sessions[str(headers.get("mcp-session-id", ""))] = context.session
        if len(self._sessions) > MOST:
            self._sessions.popitem(last=False)

    async def tools_changed(self) -> None:
        """Tell all of them that the tools have changed. Who has gone is forgotten."""
        await asyncio.gather(*(self._tell(id, each) for id, each in [*self._sessions.items()]))

    async def _tell(self, id: str, session: ServerSession) -> None:
        with suppress(MCPError):
            try:
                async with asyncio.timeout(PATIENCE):
                    await session.send_tool_list_changed()
                    await session.send_prompt_list_changed()
            except (BrokenResourceError, ClosedResourceError, TimeoutError):
                self._sessions.pop(id, None)
