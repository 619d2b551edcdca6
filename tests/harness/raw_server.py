"""Raw servers, which can send what no correct server sends, and certificates that only a test
trusts."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Talk = Callable[["Visit"], Awaitable[None]]


class Visit:
    """One connection as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[str, dict[str, str], bytes]:
        """Read the next request: first line, headers by lower-case name, body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in pairs}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return first, headers, body

    async def send(self, data: bytes) -> None:
        """Write raw bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def over(self) -> None:
        """Wait until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass


class Listener:
    """A loopback server that runs a function for each connection, and records the connections."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.port = 0
        self.visits = 0
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self._came = asyncio.Condition()
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            async with self._came:
                self.visits += 1
                self._came.notify_all()
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await self.talk(Visit(reader, writer))
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def came(self, visits: int) -> None:
        """Wait for this many connections."""
        async with self._came:
            await self._came.wait_for(lambda: self.visits >= visits)

    async def unseen(self) -> None:
        """Check that there was no connection. It opens one, which must be the first to arrive."""
        before = self.visits
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        await self.came(before + 1)
        writer.transport.abort()
        assert (before, self.visits) == (0, 1), f"{self.visits - 1} connections reached the canary"
        self.visits = 0

    def close(self) -> None:
        for task in self._open:
            task.cancel()


def answer(data: bytes) -> Callable[[Listener], Talk]:
    """A function that reads requests and sends the same response to each."""

    def of(listener: Listener) -> Talk:
        async def talk(visit: Visit) -> None:
            while True:
                listener.requests.append(await visit.request())
                await visit.send(data)

        return talk

    return of


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextlib.asynccontextmanager
async def listening(
    talk: Talk | bytes = OK,
    *,
    tls: ssl.SSLContext | None = None,
    both: bool = False,
    port: int = 0,
) -> AsyncIterator[Listener]:
    """Run a server on 127.0.0.1; with `both`, also on ::1 with the same port, if IPv6 works."""

    async def silent(visit: Visit) -> None:
        await visit.over()

    listener = Listener(silent)
    listener.talk = answer(talk)(listener) if isinstance(talk, bytes) else talk
    server = await asyncio.start_server(listener.serve, "127.0.0.1", port, ssl=tls)
    listener.port = server.sockets[0].getsockname()[1]
    servers = [server]
    if both and ipv6():
        servers.append(await asyncio.start_server(listener.serve, "::1", listener.port, ssl=tls))
    try:
        yield listener
    finally:
        for server in servers:
            server.close()
        listener.close()
        for server in servers:
            await server.wait_closed()


def ipv6() -> bool:
    """Whether this machine can listen on ::1."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class Certificate:
    """A self-signed certificate for these names and addresses."""

    def __init__(self, folder: Path, *names: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
        now = datetime.datetime.now(datetime.UTC)
        entries = [_entry(name) for name in names]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(entries), critical=False)
            .sign(key, hashes.SHA256())
        )
        self.file = folder / "test.pem"
        self.file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        self.asked: list[str | None] = []
        """The names that clients sent by SNI."""

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file)
        context.sni_callback = lambda _socket, name, _context: self.asked.append(name)
        return context

    def client(self) -> ssl.SSLContext:
        """A context that trusts this certificate and checks names."""
        return ssl.create_default_context(cafile=str(self.file))


def _entry(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
