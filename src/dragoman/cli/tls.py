"""TLS for `dragoman serve`: its context, its handshakes, and what an application is told of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.connection_limits import ConnectionLimits, taken
from dragoman.security.client_network import client_network
from dragoman.server.settings import Settings, SettingsError
from dragoman.telemetry.logs import audit, logger

if TYPE_CHECKING:
    from dragoman.cli.served_connection import Protocol

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2, those that keep what was said when the key gets lost. 1.3 has no others."""
VERSIONS = {"TLSv1.2": 0x0303, "TLSv1.3": 0x0304}


_PEER: ContextVar[socket.socket | None] = ContextVar("peer", default=None)
"""The connection whose handshake begins."""


class Handshake(ssl.SSLObject):
    """Tells the other side why a handshake fails: event loops close the connection without writing
    the alert."""

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
    """A context whose handshakes end with an alert if they fail."""

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
    """What connections are secured with, if they are; SettingsError names what is wrong."""
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
    _show(made, settings)
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


def _show(made: ssl.SSLContext, settings: Settings) -> None:
    """Load the certificate and its key."""
    locked = False

    def password() -> str:  # without it, OpenSSL would ask at the terminal
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
    """What ASGI's extension `tls` says of a connection; nothing of one that is not secured. Of a
    client's chain it has the certificate itself."""
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
    """Takes connections and shakes hands, as one of uvicorn's servers. It does so itself since who
    never ends a handshake must count as well, and must not take long."""

    def __init__(
        self,
        listener: socket.socket,
        secured: ssl.SSLContext,
        book: ConnectionLimits,
        make: Callable[[str], Protocol],
        timeout: float,
        *,
        audited: bool = False,
    ) -> None:
        self._audited = audited
        self._listener = listener
        self.secured = secured
        """What the next connections are secured with."""
        self._book = book
        self._make = make
        self._timeout = timeout
        self._tasks: set[asyncio.Task[None]] = set()
        """The handshakes."""
        self._accepting: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether somebody is still shaking hands."""
        return bool(self._tasks)

    def open(self, backlog: int) -> None:
        """Begin to listen."""
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Take no more of them; those that are taken go on."""
        if self._accepting is not None and self._listener.fileno() >= 0:
            self._accepting.cancel()
            for peer, address in taken(self._listener):
                self._enter(peer, address)
            self._listener.close()

    async def wait_closed(self) -> None:
        """Until nothing goes on here; who has not shaken hands by now does not."""
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
            except OSError as error:  # gone again, or there are too many files
                logger.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            self._enter(peer, address)

    def _enter(self, peer: socket.socket, address: Any) -> None:
        who = client_network(address[0])
        if self._book.enter(who, address[0]):
            self._keep(self._greet(peer, who, str(address[0])))
        else:
            peer.close()

    async def _greet(self, peer: socket.socket, who: str, client: str) -> None:
        protocol = self._make(who)
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
            pass  # it is gone, or took too long
        finally:
            if protocol.transport is None:
                self._book.leave(who)
                peer.close()

    def _refused(self, error: ssl.SSLError, client: str) -> None:
        """Put down a certificate that is wrong or missing; what else fails is noise."""
        if not self._audited:
            return
        if isinstance(error, ssl.SSLCertVerificationError):
            audit("certificate", result="UNAUTHENTICATED", client=client, why=error.verify_message)
        elif error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            audit("certificate", result="UNAUTHENTICATED", client=client, why="no certificate")
