"""TLS for `dragoman serve`: creates the context, accepts connections and performs handshakes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.connection_limits import ConnectionLimits, accept_pending
from dragoman.security.client_network import client_network
from dragoman.server.settings import Settings, SettingsError
from dragoman.telemetry.logs import audit, logger

if TYPE_CHECKING:
    from dragoman.cli.served_connection import Protocol

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The TLS 1.2 ciphers with forward secrecy. TLS 1.3 has no others."""
VERSIONS = {"TLSv1.2": 0x0303, "TLSv1.3": 0x0304}


_PEER: ContextVar[socket.socket | None] = ContextVar("peer", default=None)
"""The connection whose handshake starts."""


class Handshake(ssl.SSLObject):
    """Sends the TLS alert when a handshake fails, because event loops close the connection without
    sending it."""

    peer: socket.socket | None = None
    outgoing: ssl.MemoryBIO | None = None

    def do_handshake(self) -> None:
        """See `ssl.SSLObject`."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.peer is not None and self.outgoing is not None:
                with suppress(OSError):
                    self.peer.send(self.outgoing.read())
            raise
        self.peer = self.outgoing = None


class Context(ssl.SSLContext):
    """A context whose failed handshakes send an alert."""

    sslobject_class = Handshake

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *arguments: Any, **named: Any
    ) -> ssl.SSLObject:
        """See `ssl.SSLContext`."""
        made = super().wrap_bio(incoming, outgoing, *arguments, **named)
        assert isinstance(made, Handshake)
        made.peer, made.outgoing = _PEER.get(), outgoing
        return made


def context(settings: Settings) -> ssl.SSLContext | None:
    """Create the TLS context from the settings; None without a certificate. Raises SettingsError,
    which names the wrong setting."""
    for name in ("key", "ca"):
        if getattr(settings, name) and not settings.cert:
            raise SettingsError(f"{name}: needs cert; without cert there is no TLS")
    if not settings.cert:
        return None
    for name in ("cert", "key", "ca"):
        if path := getattr(settings, name):
            _read(name, path)
    made = Context(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_ciphers(CIPHERS)
    made.set_alpn_protocols(["http/1.1"])
    made.options |= ssl.OP_NO_RENEGOTIATION
    _load_certificate(made, settings)
    if settings.ca:
        try:
            made.load_verify_locations(settings.ca)
        except ssl.SSLError:
            raise SettingsError(f"ca: {settings.ca}: contains no PEM certificate") from None
        made.verify_mode = ssl.CERT_OPTIONAL if settings.ca_optional else ssl.CERT_REQUIRED
    return made


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"{name}: {path}: {error.strerror}") from None


def _load_certificate(made: ssl.SSLContext, settings: Settings) -> None:
    """Load the certificate and its key."""
    locked = False

    def password() -> str:  # without this function, OpenSSL would prompt on the terminal
        nonlocal locked
        locked = True
        return settings.key_password

    name, path = ("key", settings.key) if settings.key else ("cert", settings.cert)
    try:
        made.load_cert_chain(settings.cert, settings.key or None, password)
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            text = f"{name}: {path}: is not the key of {settings.cert}"
        elif locked:
            text = f"key_password: cannot decrypt {path}"
        elif b"-----BEGIN CERTIFICATE-----" not in _read("cert", settings.cert):
            text = f"cert: {settings.cert}: contains no PEM certificate"
        else:
            text = f"{name}: {path}: contains no PEM key, or a certificate is damaged"
        raise SettingsError(text) from None


def about(transport: Any) -> dict[str, Any] | None:
    """Return the data of the ASGI extension `tls` for a connection; None without TLS. Of the
    client's chain it contains only the client certificate."""
    found = transport.get_extra_info("ssl_object")
    if found is None:
        return None
    shown = found.getpeercert(binary_form=True)
    return {
        "server_cert": None,
        "client_cert_chain": [ssl.DER_cert_to_PEM_cert(shown)] if shown else [],
        "client_cert_name": None,
        "client_cert_error": None,
        "tls_version": VERSIONS.get(found.version()),
        "cipher_suite": None,
    }


class TLSAcceptor:
    """Accepts connections and performs their handshakes, as one of uvicorn's servers. It does this
    itself so that connections count, and have a deadline, from before their handshake."""

    def __init__(
        self,
        listener: socket.socket,
        secured: ssl.SSLContext,
        limits: ConnectionLimits,
        make: Callable[[str], Protocol],
        timeout: float,
        *,
        audited: bool = False,
    ) -> None:
        self._audited = audited
        self._listener = listener
        self.secured = secured
        """The TLS context for new connections."""
        self._limits = limits
        self._make = make
        self._timeout = timeout
        self._tasks: set[asyncio.Task[None]] = set()
        """The running handshakes."""
        self._accepting: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a handshake is running."""
        return bool(self._tasks)

    def open(self, backlog: int) -> None:
        """Start to listen."""
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting connections. Pending ones are accepted first, and open ones continue."""
        if self._accepting is not None and self._listener.fileno() >= 0:
            self._accepting.cancel()
            for peer, address in accept_pending(self._listener):
                self._enter(peer, address)
            self._listener.close()

    async def wait_closed(self) -> None:
        """Cancel the handshakes that are still running, and wait for them to end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, job: Any) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, address = await loop.sock_accept(self._listener)
            except OSError as error:  # the client disconnected, or too many files are open
                logger.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            self._enter(peer, address)

    def _enter(self, peer: socket.socket, address: Any) -> None:
        network = client_network(address[0])
        if self._limits.enter(network, address[0]):
            self._keep(self._handshake(peer, network, str(address[0])))
        else:
            peer.close()

    async def _handshake(self, peer: socket.socket, network: str, client: str) -> None:
        protocol = self._make(network)
        _PEER.set(peer)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                peer,
                ssl=self.secured,
                ssl_handshake_timeout=self._timeout,
                ssl_shutdown_timeout=self._timeout,
            )
        except ssl.SSLError as error:
            self._refused(error, client)
        except OSError:
            pass  # the client disconnected, or the handshake took too long
        finally:
            if protocol.transport is None:
                self._limits.leave(network)
                peer.close()

    def _refused(self, error: ssl.SSLError, client: str) -> None:
        """Write a wrong or missing client certificate to the audit log; other failures are not
        recorded."""
        if not self._audited:
            return
        if isinstance(error, ssl.SSLCertVerificationError):
            audit("certificate", result="UNAUTHENTICATED", client=client, why=error.verify_message)
        elif error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            audit("certificate", result="UNAUTHENTICATED", client=client, why="no certificate")
