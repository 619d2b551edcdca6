"""An MCP server for remote agents on standard input and output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mcp.server.stdio import stdio_server

from dragoman.client import Client
from dragoman.mcp.server.application import follow_cards
from dragoman.mcp.server.exchange import PATIENCE, ServerState
from dragoman.mcp.server.exposed_agents import RemoteAgents
from dragoman.mcp.server.protocol_server import AgentServer
from dragoman.mcp.server.task_ids import RemoteIds


async def serve_stdio(
    urls: Sequence[str],
    connect: Callable[[str], Client],
    *,
    secret: bytes,
    patience: float = PATIENCE,
) -> None:
    """Serve the skills of the agents at these URLs as tools until standard input ends. `connect`
    makes a client for each URL; `secret` signs what the client carries between its requests."""
    agents = RemoteAgents(urls, connect, RemoteIds(secret))
    state = ServerState(agents, patience=patience)
    server = AgentServer(state, secret)
    looking = asyncio.create_task(follow_cards(server))
    try:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        looking.cancel()
        await state.close()
        await agents.close()
