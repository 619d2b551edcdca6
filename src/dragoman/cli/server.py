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
        if app.stuck:
            leave(f"without handler {', '.join(app.stuck)}, which ignores its cancellation")


def leave(how: str) -> None:
    """End the process without those who would never let it go."""
    logger.warning("stopped %s", how)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
