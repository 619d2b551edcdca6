"""uvicorn, drained before it is stopped."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import uvicorn

from dragoman.app import App
from dragoman.telemetry import logger


class Server(uvicorn.Server):
    """Drains before it waits for connections: open streams would keep it waiting."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and say where."""
        await super().startup(sockets)
        app = self.config.loaded_app
        if self.started and isinstance(app, App) and sockets:
            announce(app, sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running turns end, then streams, then connections."""
        app = self.config.loaded_app
        assert isinstance(app, App)
        if not self.force_exit:
            logger.info(
                "draining: running turns have %g s; Ctrl-C again to stop now", app.settings.drain
            )
            drain = asyncio.ensure_future(app.drain())
            while not drain.done() and not self.force_exit:
                await asyncio.wait([drain], timeout=0.1)
            drain.cancel()
        await super().shutdown(sockets)
        await asyncio.sleep(0)
        if self.force_exit:
            leave("at once")
        # An interrupt that was obeyed is no failure: uvicorn would raise it once more.
        getattr(self, "_captured_signals", []).clear()
        if app.stuck:
            leave(f"without handler {', '.join(app.stuck)}, which ignores its cancellation")


def announce(app: App, port: int) -> None:
    """Say where everything is."""
    settings = app.settings
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    base = settings.url.rstrip("/") or f"http://{host}:{port}"
    if settings.url:
        logger.info("listening on %s:%d", host, port)
    for endpoint in app.endpoints.values():
        logger.info("%s at %s%s/", endpoint.service.agent.name, base, endpoint.prefix)
        logger.info("  card %s%s/.well-known/agent-card.json", base, endpoint.prefix)
    if settings.store.startswith("memory:"):
        logger.info("tasks are kept in memory: they end with this process")
    if all(endpoint.identify is None for endpoint in app.endpoints.values()):
        logger.info("callers are anonymous: each of them sees every task")
        if settings.host not in ("127.0.0.1", "localhost", "::1"):
            logger.warning("anybody who reaches %s can use these agents", base)
    logger.info("Ctrl-C stops")


def leave(how: str) -> None:
    """End the process without those who would never let it go."""
    logger.warning("stopped %s", how)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
