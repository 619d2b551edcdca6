"""uvicorn, drained before it is stopped."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dragoman.app import App
from dragoman.telemetry import logger


class Cork:
    """A transport that sends the head of an answer together with the first of its body."""

    __slots__ = ("_held", "_transport")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._held = b""

    def write(self, data: bytes) -> None:
        """Hold a head until its body comes; an empty one lets it go, too."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.writelines((held, data))
        elif data.startswith(b"HTTP/1.1 2"):
            self._held = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Hold nothing back."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def close(self) -> None:
        """Close, when all is written."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's HTTP, with one write for a short answer instead of two."""

    def connection_made(self, transport: Any) -> None:
        """A connection with a cork in it."""
        super().connection_made(Cork(transport))


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
        if endpoint.grpc:
            tls = " (TLS)" if settings.grpc_cert else ""
            told = f", announced as {settings.grpc_url}" if settings.grpc_url else ""
            logger.info("  gRPC %s:%d%s%s", host, endpoint.grpc, tls, told)
    if settings.store.startswith("memory:"):
        logger.info("tasks are kept in memory: they end with this process")
    elif settings.store.startswith("sqlite:"):
        logger.info("tasks are kept in %s", settings.store.removeprefix("sqlite:///"))
    gates = [endpoint.gate for endpoint in app.endpoints.values() if endpoint.gate]
    if any(gate.open for gate in gates) or not any(
        endpoint.identify for endpoint in app.endpoints.values()
    ):
        more = ", and the secrets of every webhook" if settings.push else ""
        logger.info("callers are anonymous: each of them sees every task%s", more)
        if settings.host not in ("127.0.0.1", "localhost", "::1"):
            logger.warning("anybody who reaches %s can use these agents", base)
    if settings.push:
        logger.info(
            "webhooks are delivered, %s; their secrets are %s",
            "signed" if settings.push_keys else "not signed",
            "sealed" if settings.seal_keys else "not sealed",
        )
    logger.info("Ctrl-C stops")


def leave(how: str) -> None:
    """End the process without those who would never let it go."""
    logger.warning("stopped %s", how)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
