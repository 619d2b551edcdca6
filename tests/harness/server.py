"""Starts servers for tests: an application under uvicorn on a free port, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from dragoman.cli import serve
from dragoman.cli.server import Server
from dragoman.server.app import App

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
"""The value of the setting `bindings` that lists all bindings."""

# `access_log=False` takes the handlers from this logger; pytest gives it one again.
logging.getLogger("uvicorn.access").disabled = True


class Quiet(uvicorn.Server):
    """A server that leaves signals to the test runner and stops without pauses, which would be
    most of the time that thousands of tests take."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield

    async def main_loop(self) -> None:
        """Run until `told` is set."""
        await self.on_tick(0)
        self.told = asyncio.Event()
        await self.told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Like uvicorn's shutdown, without its pauses."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        state = self.server_state
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:
                    await asyncio.sleep(0.002)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


class Served(Server):
    """The server of `dragoman serve`, with the same changes."""

    url = ""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def served(app: App, **options: Any) -> AsyncIterator[Served]:
    """Run the server of `dragoman serve` with this application, on a free port, in this process."""
    listener = serve.bind("127.0.0.1", 0)
    server = Served(serve._config(uvicorn, app, app.settings, **options))
    server.url = (
        f"{'https' if app.settings.cert else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if task.done():
            await task
            raise RuntimeError("the server did not start")
        await asyncio.sleep(0.005)
    try:
        yield server
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def serving(app: Any, *, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """Serve an application until the block ends, and return its URL."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan=options.pop("lifespan", "on"),
        timeout_graceful_shutdown=1,
        **options,
    )
    server = Quiet(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if task.done():
            await task
            raise RuntimeError("the server did not start")
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        if hasattr(app, "drain"):
            await app.drain()  # as `dragoman serve` does, so that open streams end
        server.told.set()
        await task
