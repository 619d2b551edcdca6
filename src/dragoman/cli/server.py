"""The HTTP server of `dragoman serve`: uvicorn with limits on connections, a graceful shutdown and
reloading of certificates."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from types import FrameType

import uvicorn

from dragoman.bindings.card_interfaces import grpc_address
from dragoman.cli import browser_pages, tls
from dragoman.cli.connection_limits import ConnectionLimits, accept_pending, files
from dragoman.cli.registry_announcement import Announced
from dragoman.cli.serve import hang_up, leave
from dragoman.cli.served_connection import HTTP, Protocol
from dragoman.model.errors import A2AError
from dragoman.security.client_network import loopback
from dragoman.server.app import App
from dragoman.server.settings import SettingsError
from dragoman.telemetry.logs import logger

LINGER = 1.0
"""Seconds for which open connections may still send a request during the shutdown."""


class Server(uvicorn.Server):
    """A uvicorn server that drains turns and streams before it waits for connections to close,
    because open streams would delay that."""

    limits: ConnectionLimits
    """Counts and limits the open connections."""
    announced: Announced | None = None
    """Where the agents are announced after the start."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain; a second signal stops the process at once. uvicorn's own method would
        raise the signal again at the end, as if the process had failed."""
        self.force_exit = self.force_exit or self.should_exit
        self.should_exit = True

    def reload(self) -> None:
        """Read the certificates again, for new connections. Logs an error, and keeps the old
        certificate, if a new one is not usable."""
        app: App = self.config.loaded_app
        settings = app.settings
        if not settings.cert:
            logger.info("SIGHUP: there is no certificate to reload")
            return
        try:
            secured = tls.context(settings)
        except SettingsError as error:
            logger.error(
                "SIGHUP: the new certificate cannot be used, the old one stays in use: %s", error
            )
        else:
            for server in self.servers:
                if isinstance(server, tls.TLSAcceptor) and secured is not None:
                    server.secured = secured
                    logger.info("SIGHUP: reloaded the certificate %s", settings.cert)
        for port in app.ports:
            try:
                port.reload()
            except (A2AError, ValueError) as error:
                logger.error(
                    "SIGHUP: the new certificate of gRPC cannot be used, the old one stays in "
                    "use: %s",
                    error,
                )
            else:
                logger.info("SIGHUP: reloaded the certificate %s of gRPC", settings.cert)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, and log the addresses."""
        await super().startup([])  # without sockets, which are opened here with their limits
        app = self.config.loaded_app
        if not self.started or not isinstance(app, App):
            return
        self.started = False
        settings = app.settings
        self.limits = ConnectionLimits(settings, files())
        secured = tls.context(settings)
        loop = asyncio.get_running_loop()
        for listener in sockets or ():
            app.hosts.address = listener.getsockname()[0]
            if secured is not None:
                acceptor = tls.TLSAcceptor(
                    *(listener, secured, self.limits, self._protocol, settings.header_timeout),
                    audited=settings.audit,
                )
                acceptor.open(self.config.backlog)
                self.servers.append(acceptor)  # type: ignore[arg-type]
            else:
                self.servers.append(
                    await loop.create_server(
                        self._protocol, sock=listener, backlog=self.config.backlog
                    )
                )
        self.started = True
        hang_up(self.reload)
        if sockets:
            port = sockets[0].getsockname()[1]
            announce(app, port)
            browser_pages.offer(app, address(app, port))
            if self.announced is not None:
                self.announced.begin(app, port)
            if self.limits.most < settings.max_connections:
                logger.info("the limit of open files allows only %d connections", self.limits.most)

    def _protocol(self, network: str = "") -> Protocol:
        app: App = self.config.loaded_app
        return HTTP(
            *(self.config, self.server_state, self.lifespan.state),
            limits=self.limits,
            budget=app.bodies.budget,
            settings=app.settings,
            network=network,
        )

    async def on_tick(self, counter: int) -> bool:
        """Check the deadlines of all connections."""
        app: App = self.config.loaded_app
        pause = min(1.0, app.settings.header_timeout / 4, app.settings.stall / 4)
        if counter % max(1, round(pause * 10)) == 0:
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Protocol):
                    connection.look(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running turns, then end streams, then close connections."""
        app = self.config.loaded_app
        assert isinstance(app, App)
        if self.announced is not None:
            await self.announced.end()
        # clients close their connection after the next response, and use another replica
        self.server_state.default_headers = [
            *self.server_state.default_headers,
            (b"connection", b"close"),
        ]
        if not self.force_exit:
            logger.info(
                "draining: running turns have %g s; Ctrl-C again to stop now",
                app.settings.drain_timeout,
            )
            drain = asyncio.ensure_future(app.drain())
            while not drain.done() and not self.force_exit:
                await asyncio.wait([drain], timeout=0.1)
            drain.cancel()
        await self._accept_last(sockets or ())
        for connection in list(self.server_state.connections):
            if isinstance(connection, Protocol) and connection.unfinished():
                connection.refuse()
        await super().shutdown(sockets)
        await asyncio.sleep(0)
        if self.force_exit:
            leave("at once")
        if app.stuck:
            leave(
                f"without waiting for handler {', '.join(app.stuck)}, which ignores its "
                "cancellation"
            )

    async def _accept_last(self, sockets: Sequence[socket.socket]) -> None:
        """Stop listening, and give open connections a second to send their request."""
        loop = asyncio.get_running_loop()
        waiting = []
        for server, listener in zip(self.servers, sockets, strict=False):
            if not isinstance(server, tls.TLSAcceptor):
                waiting += accept_pending(listener)
            server.close()
        await asyncio.gather(
            *(loop.connect_accepted_socket(self._protocol, peer) for peer, _ in waiting),
            return_exceptions=True,  # some clients have disconnected
        )
        until = time.monotonic() + LINGER
        while self._due():
            if self.force_exit or time.monotonic() > until:
                return
            await asyncio.sleep(0.02)

    def _due(self) -> bool:
        """Whether a connection has not sent its request, or not all of it."""
        return any(
            isinstance(connection, Protocol) and (connection.due() or connection.unfinished())
            for connection in self.server_state.connections
        ) or any(isinstance(server, tls.TLSAcceptor) and server.busy for server in self.servers)


def address(app: App, port: int) -> str:
    """The URL of the application: from the setting `url`, else where it listens."""
    settings = app.settings
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "https" if settings.cert else "http"
    return settings.url.rstrip("/") or f"{scheme}://{host}:{port}"


def announce(app: App, port: int) -> None:
    """Log the addresses and the main settings of the server."""
    settings = app.settings
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    base = address(app, port)
    if settings.url:
        logger.info("listening on %s:%d%s", host, port, " (TLS)" if settings.cert else "")
    for endpoint in app.endpoints.values():
        logger.info("%s at %s%s/", endpoint.service.agent.name, base, endpoint.prefix)
        logger.info("  card %s%s/.well-known/agent-card.json", base, endpoint.prefix)
        if endpoint.grpc:
            secured = " (TLS)" if settings.cert else ""
            note = ", not on the card: `bindings` does not name GRPC"
            if endpoint.lists_grpc:
                announced = grpc_address(settings.bindings)
                note = f", announced as {announced}" if announced else ""
            logger.info("  gRPC %s:%d%s%s", host, endpoint.grpc, secured, note)
    for mount in app.mounts:
        logger.info("%s at %s%s", type(mount.app).__name__, base, mount.path)
    if app.agents:
        logger.info("tasks are kept in %s", app.store.name)
    if settings.serve_only:
        logger.info("this server runs no turns: `dragoman worker` with the same store runs them")
    if not loopback(settings.host):
        warn(app, base)
    if settings.push and app.agents:
        logger.info(
            "webhooks are enabled; deliveries are %s, their stored secrets are %s",
            "signed" if settings.push_keys else "not signed",
            "encrypted" if settings.encryption_keys else "not encrypted",
        )
    logger.info("press Ctrl-C to stop")


def warn(app: App, base: str) -> None:
    """Log warnings about a server that other machines can reach without authentication or TLS."""
    settings = app.settings
    if app.unguarded and not app.agents:
        logger.warning(
            "NO AUTHENTICATION: anyone who can connect to %s can call it. Configure callers with "
            '[[auth]] in dragoman.toml; or listen on 127.0.0.1; or set scheme = "anonymous" to '
            "confirm that this is intended",
            base,
        )
        return
    if app.unguarded:
        more = ", and make it call webhooks" if settings.push else ""
        logger.warning(
            "NO AUTHENTICATION: anyone who can connect to %s can run these agents, read "
            "every task and its files, cancel it%s. Configure callers with [[auth]] in "
            "dragoman.toml, or with App(agent, auth=...), which `dragoman serve "
            'module:app` serves; or listen on 127.0.0.1; or set scheme = "anonymous" to '
            "confirm that this is intended",
            *(base, more),
        )
        return
    if app.access.authenticator and app.access.authenticator.only:
        return  # clients send no secret
    if not settings.cert and not settings.url.startswith("https:"):
        logger.warning(
            "NO TLS: clients send credentials to %s unencrypted; anyone on the network "
            "path can read and use them. Set cert and key; or, if a proxy terminates "
            "https, set url",
            base,
        )
