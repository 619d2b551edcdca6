"""Starts server and client processes, and measures their CPU and memory."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.load import Broken
from tests.harness.services import Postgres

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "out"
# the way its users start it; the others have no command of their own
_DRAGOMAN = (
    *("-m", "dragoman", "serve", "benchmarks.servers.dragoman_echo:agent"),
    *("--store", "{store}", "--log-level", "warning"),
)
_EXECUTOR = tuple(word.replace("dragoman_echo:agent", "executor:Echo") for word in _DRAGOMAN)
_SDK = ("-m", "benchmarks.servers.sdk_echo", "{port}", "{store}")
_SDK_GRPC = ("-m", "benchmarks.servers.sdk_grpc", "{port}")
BARE = "grpcio"
"""gRPC with nothing on top: what no server on it can do without."""
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "http": {
        "dragoman": (*_DRAGOMAN, "--port", "{port}"),
        "a2a-sdk": _SDK,
        "a2a-sdk-untraced": _SDK,
        "fasta2a": ("-m", "benchmarks.servers.fasta_echo", "{port}"),
    },
    "older": {
        "dragoman": (*_DRAGOMAN, "--port", "{port}"),
        "a2a-sdk": (*_SDK, "older"),
        "a2a-sdk-untraced": (*_SDK, "older"),
    },
    "executor": {
        "dragoman": (*_EXECUTOR, "--port", "{port}"),
        "a2a-sdk": _SDK,
        "a2a-sdk-untraced": _SDK,
    },
    "grpc": {
        "dragoman": (*_DRAGOMAN, "--port", "0", "--set", "grpc_port={port}"),
        "a2a-sdk": _SDK_GRPC,
        "a2a-sdk-untraced": _SDK_GRPC,
        BARE: ("-m", "benchmarks.servers.grpc_bare", "{port}"),
    },
}
"""How each is started, by what it is to serve."""

CLIENTS = {
    "dragoman": "dragoman_client",
    "a2a-sdk": "sdk_client",
    "a2a-sdk-untraced": "sdk_client",
    "aiohttp": "aiohttp_bare",
    "httpx": "httpx_bare",
}
"""The clients by their modules, the last two without any A2A."""

VOLATILE = ("tmpfs", "ramfs")

# The SDK opens OpenTelemetry spans wherever OpenTelemetry can be imported.
ENVIRONMENT = {"a2a-sdk-untraced": {"OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": "false"}}


class NotServing(Exception):
    """A server that ended, or never answered."""


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


# Read once: after the load generator has been pinned it would see only its own core.
CORES = _cores()


def pin_server(pid: int) -> None:
    """Keep a server on the first core, where there are two."""
    if len(CORES) > 1:
        os.sched_setaffinity(pid, CORES[:1])


def pin_load() -> None:
    """Keep this process on the second core, where there are two."""
    if len(CORES) > 1:
        os.sched_setaffinity(0, CORES[1:2])


@dataclass
class Process:
    """One process that is measured."""

    peer: str
    process: subprocess.Popen[bytes]

    def cpu(self) -> float:
        """Seconds of CPU, user and system, that it and its children have used."""
        family = psutil.Process(self.process.pid)
        return sum(spent(member) for member in [family, *family.children(recursive=True)])

    def rss(self) -> int:
        """Bytes of memory that it and its children hold."""
        family = psutil.Process(self.process.pid)
        members = [family, *family.children(recursive=True)]
        return sum(int(member.memory_info().rss) for member in members)

    async def quiet(self, limit: float = 10) -> None:
        """Wait until it has stopped computing, so that all of its work is counted."""
        deadline = time.monotonic() + limit
        before = self.cpu()
        calm = 0
        while calm < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            now = self.cpu()
            calm = calm + 1 if now - before < 0.001 else 0
            before = now

    async def settled(self) -> int:
        """The memory it holds when nothing happens any more."""
        await self.quiet()
        await asyncio.sleep(0.5)
        return self.rss()

    def end(self) -> None:
        """End it, by force when it does not go."""
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


@dataclass
class Server(Process):
    """One running server."""

    port: int
    log: Path
    store: str = "memory"
    folder: Path | None = None
    """Where its store is, if that goes with it."""

    def wait(self, limit: float = 30, pause: float = 0.001) -> None:
        """Return as soon as it accepts connections."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(pause)
        tail = self.log.read_text(errors="replace")[-2000:]
        raise NotServing(f"{self.peer} does not serve:\n{tail}")

    def stop(self) -> None:
        """End it, and remove what it wrote."""
        self.end()
        self.log.unlink(missing_ok=True)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class Client(Process):
    """One running client, which does what it is told; see `clients/driver.py`."""

    async def tell(self, order: str, limit: float = 60) -> None:
        """Have it do something; Broken if an answer it gets is not what it must be."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then it does not answer either
            self.process.stdin.write(order.encode() + b"\n")
        async with asyncio.timeout(limit):
            said = (await asyncio.to_thread(self.process.stdout.readline)).decode().strip()
        if said != "done":
            raise Broken(f"{self.peer}, told {order!r}: {said or 'it ended'}")

    def end(self) -> None:
        """End it, and let go of it."""
        super().end()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def spent(process: psutil.Process) -> float:
    """Seconds of CPU that one process has used."""
    if sys.platform == "linux":
        # The CPU clock of another process, as clock_getcpuclockid(3) encodes it: nanoseconds
        # where the accounting in /proc counts in hundredths of a second.
        with contextlib.suppress(OSError):
            return time.clock_gettime((~process.pid << 3) | 2)
    times = process.cpu_times()
    return float(times.user + times.system)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def disk() -> Path:
    """A folder for stores, on a disk rather than in memory if one can be found."""
    OUT.mkdir(exist_ok=True)
    folders = (OUT, Path(tempfile.gettempdir()))
    return next((folder for folder in folders if filesystem(folder) not in VOLATILE), OUT)


def filesystem(folder: Path) -> str:
    """The kind of file system that a folder is on, as far as it is known."""
    mounts = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    above = (mounts[parent] for parent in (folder, *folder.parents) if parent in mounts)
    return next(above, "unknown")


def sync(folder: Path, times: int = 50) -> float:
    """The median of the seconds that a page takes to be on disk."""
    taken = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def environment(peer: str) -> dict[str, str]:
    """The variables of a process of ours."""
    # of this checkout, whichever one is installed
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    return {**os.environ, "PYTHONPATH": path, **ENVIRONMENT.get(peer, {})}


@functools.cache
def postgres() -> Postgres:
    """A PostgreSQL server for the whole run, which waits for the disk as it should."""
    # with the memory that it takes by itself; for tests it is started with less
    server = Postgres(shared_buffers="128MB", max_wal_size="1GB")
    server.start()
    atexit.register(server.close)
    return server


def database() -> str:
    """The URL of a new database in it."""
    return postgres().create()


def start(
    peer: str,
    store: str = "memory",
    file: Path | None = None,
    manner: str = "http",
    url: str = "",
) -> Server:
    """Start a server without waiting for it. Without a file, one with `sqlite` gets a new one;
    without a URL, one with `postgres` a new database."""
    folder = None
    if store == "sqlite" and file is None:
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=disk()))
        file = folder / "tasks.db"
    if store == "postgres":
        url = url or database()
    else:
        url = "memory:?max_tasks=1000000" if file is None else f"sqlite:///{file}"
    server = launch(peer, COMMANDS[manner][peer], url)
    pin_server(server.process.pid)
    server.store, server.folder = store, folder
    return server


def launch(peer: str, words: Sequence[str], url: str) -> Server:
    """Start a process with a store without waiting for it, on whichever core is free."""
    port = free_port()
    handle, name = tempfile.mkstemp(prefix="bench-", suffix=".log")
    with os.fdopen(handle, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, *(word.format(port=port, store=url) for word in words)],
            cwd=ROOT,
            env=environment(peer),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # An interrupt from the keyboard is for us; we then end the servers one by one.
            start_new_session=True,
        )
    return Server(peer, process, port, Path(name))


@contextlib.contextmanager
def serving(
    peers: Sequence[str], store: str = "memory", file: Path | None = None, manner: str = "http"
) -> Iterator[list[Server]]:
    """Servers that accept connections, ended whatever happens."""
    with contextlib.ExitStack() as stack:
        servers = []
        for peer in peers:
            server = start(peer, store, file, manner)
            stack.callback(server.stop)
            servers.append(server)
        for server in servers:
            server.wait(pause=0.01)
        yield servers


@contextlib.contextmanager
def talking(peers: Sequence[str], server: Server) -> Iterator[list[Client]]:
    """Clients of one server, ended whatever happens."""
    with contextlib.ExitStack() as stack:
        clients = []
        for peer in peers:
            module = f"benchmarks.clients.{CLIENTS[peer]}"
            process = subprocess.Popen(
                [sys.executable, "-m", module, f"http://127.0.0.1:{server.port}"],
                cwd=ROOT,
                env=environment(peer),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
            client = Client(peer, process)
            stack.callback(client.end)
            clients.append(client)
        yield clients
