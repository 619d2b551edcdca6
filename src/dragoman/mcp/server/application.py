"""An MCP server over streamable HTTP: an ASGI application that an App mounts."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from dragoman import Agent, App, Caller
from dragoman.client import Client
from dragoman.mcp.server.exchange import CALLER, PATIENCE, ServerState
from dragoman.mcp.server.exposed_agents import ExposedAgents, OwnAgents, RemoteAgents
from dragoman.mcp.server.protocol_server import AgentServer
from dragoman.mcp.server.task_ids import RemoteIds

logger = logging.getLogger("dragoman.mcp")

SECRET = "mcp"
"""The name of the App's secret that signs what clients carry."""
LOOK = 60.0
"""Seconds after which the cards of remote agents are fetched again."""
LINGER = 1.0
"""Seconds in which calls are answered when the server ends."""


class McpApp:
    """An MCP server for the agents of the App that mounts it, or for one of them (`agent`, its
    key): `App(agent, mounts={"/mcp": McpApp()})`.

    With `connect`, it serves the remote agents at `urls` instead; `connect` makes a client for each
    URL, with credentials of the server. A call that lasts longer than `patience` seconds is
    answered with the id of its task."""

    def __init__(
        self,
        *,
        agent: str = "",
        patience: float = PATIENCE,
        urls: tuple[str, ...] = (),
        connect: Callable[[str], Client] | None = None,
    ) -> None:
        if patience <= 0:
            raise ValueError("patience: must be greater than 0")
        self._agent = agent
        self._patience = patience
        self._urls, self._connect = urls, connect
        self._sessions: StreamableHTTPSessionManager | None = None
        """None before the start, and while the App drains."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one ASGI connection scope."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if CALLER not in scope:
            raise RuntimeError("McpApp: mount it in an App, which authenticates the callers")
        if self._sessions is None:
            await _refuse(send)
        else:
            await self._sessions.handle_request(_owned(scope), receive, send)

    async def _lifespan(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        ended = asyncio.Event()
        app: App = scope["dragoman.app"]
        # A task of its own: the SDK's task group must be left by the task that entered it.
        started = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(self._run(app, started, ended))
        try:
            await started
        except Exception as error:  # noqa: BLE001 - the App reports it
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        ended.set()
        await running
        await send({"type": "lifespan.shutdown.complete"})

    async def _run(self, app: App, started: asyncio.Future[None], ended: asyncio.Event) -> None:
        try:
            async with AsyncExitStack() as stack:
                secret = await app.secret(SECRET)
                agents = self._agents(app, secret)
                if isinstance(agents, RemoteAgents):
                    stack.push_async_callback(agents.close)
                state = ServerState(agents, patience=self._patience)
                stack.push_async_callback(state.close)
                name = app.agents[self._agent].name if self._agent in app.agents else "dragoman"
                server = AgentServer(state, secret, name=name)
                self._sessions = StreamableHTTPSessionManager(
                    server, max_request_body_size=max(app.settings.max_body, 1)
                )
                await stack.enter_async_context(self._sessions.run())
                started.set_result(None)
                await self._until_drain(app, server, ended)
                self._sessions = None
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
                return
            raise

    def _agents(self, app: App, secret: bytes) -> ExposedAgents:
        if self._connect is not None:
            return RemoteAgents(self._urls, self._connect, RemoteIds(secret))
        if self._agent and self._agent not in app.agents:
            raise ValueError(f"McpApp: the App has no agent {self._agent!r}")
        return OwnAgents(app, self._agent)

    async def _until_drain(self, app: App, server: AgentServer, ended: asyncio.Event) -> None:
        """Announce changes until the App drains; then answer calls and end all streams."""
        looking = asyncio.create_task(follow_cards(server))
        draining = asyncio.create_task(app.until_drain())
        ending = asyncio.create_task(ended.wait())
        try:
            await asyncio.wait({draining, ending}, return_when=asyncio.FIRST_COMPLETED)
            server.state.closing.set()
            server.end_subscriptions()
            await asyncio.wait({ending}, timeout=LINGER)
        finally:
            for task in (looking, draining, ending):
                task.cancel()
            await asyncio.gather(looking, draining, ending, return_exceptions=True)


async def follow_cards(server: AgentServer) -> None:
    """Announce changes of the agents' cards, until canceled."""
    while True:
        await asyncio.sleep(LOOK)
        try:
            changed = await server.state.agents.changed()
        except Exception:
            logger.exception("the cards could not be fetched")
            continue
        if changed:
            await server.announce()


def mounts(*agents: Agent, patience: float = PATIENCE) -> dict[str, McpApp]:
    """The MCP servers of an App with these agents, by path: all agents at `/mcp`, and with several
    agents each one at `/{key}/mcp`. `App(agent, mounts=mounts(agent))`."""
    found = {"/mcp": McpApp(patience=patience)}
    if len(agents) > 1:
        found |= {f"/{each.key}/mcp": McpApp(agent=each.key, patience=patience) for each in agents}
    return found


def _owned(scope: Any) -> dict[str, Any]:
    """The scope with the caller as the SDK knows callers, so that a session belongs to the caller
    who began it."""
    caller: Caller = scope[CALLER]
    if not caller.identity:
        return dict(scope)
    said = f"{caller.tenant}\0{caller.qualified}".encode("utf-8", "surrogatepass")
    token = AccessToken(
        token="", client_id=hashlib.sha256(said).hexdigest(), scopes=sorted(caller.scopes)
    )
    return {**scope, "user": AuthenticatedUser(token)}


async def _refuse(send: Any) -> None:
    """Answer that the server is about to end; another replica may answer."""
    headers = [(b"content-type", b"text/plain"), (b"retry-after", b"5")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b"The server is about to stop"})
