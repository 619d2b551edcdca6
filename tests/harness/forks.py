"""Processes that are forked from one that has imported much already: each of them takes a tenth of
the CPU time of a new interpreter.

It is for tests of what a process does. Tests of how it starts, of signals and of terminals use
`tests.harness.command` and `tests.cli.terminal`. What forks runs without the packages of tests, in
the interpreter of a framework, too: it imports only Python's library, and what it is told to.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "dragoman"
SERVES = (
    *("aiohttp", "asyncpg", "httptools", "uvicorn.protocols.http.httptools_impl", "uvloop"),
    *("dragoman.cli.serve", "dragoman.client", "dragoman.server.app"),
    *("dragoman.cli.agent_commands", "dragoman.cli.completion", "dragoman.cli.db_commands"),
    *("dragoman.cli.mcp_commands", "dragoman.cli.payments_commands", "dragoman.cli.wallet_command"),
    *("dragoman.cli.console_command", "dragoman.cli.registry_parser", "dragoman.stores.memory"),
    *("dragoman.stores.postgres.admin", "dragoman.stores.sqlite.admin"),
    *("dragoman.stores.postgres", "dragoman.stores.sqlite", "dragoman.bells.postgres"),
)
"""What a command that serves or calls imports; what is not installed is left out. grpc is never
among it: it does not survive a fork."""
PATIENCE = 60.0
DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2): no process outlives the one that has forked it."""


class Forked:
    """A process; it has the methods of `subprocess.Popen`."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self._rest = b""
        self.returncode: int | None = None
        self.pid = 0
        self.pid = int(self._line(PATIENCE) or 0)
        assert self.pid, "the process that forks has ended"

    def _line(self, within: float | None) -> bytes:
        """The next line; empty if nothing more comes. Raises TimeoutError."""
        self._answers.settimeout(within)
        while b"\n" not in self._rest:
            piece = self._answers.recv(64)
            if not piece:
                return b""
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        with contextlib.suppress(TimeoutError, BlockingIOError):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return the exit status. Raises TimeoutError."""
        if self.returncode is None:
            self.returncode = int(self._line(timeout) or -signal.SIGKILL)
            self._answers.close()
        return self.returncode

    async def ended(self) -> int:
        """Wait until it has ended, and return the exit status."""
        if self.returncode is not None:
            return self.returncode
        self._answers.setblocking(False)
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest and (piece := await loop.sock_recv(self._answers, 64)):
            self._rest += piece
        return self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Tell it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """A process that forks, in this interpreter or another one; it starts with the first order."""

    def __init__(
        self, preload: Sequence[str], *, python: str = sys.executable, path: Sequence[Path] = ()
    ) -> None:
        self._command = [python, "-W", "ignore", "-m", __name__]
        self._preload = preload
        self._path = path
        self._orders: socket.socket | None = None

    def start(
        self,
        what: str,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str],
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Forked:
        """Fork, and be the command, or a script; with these files, or those of this process."""
        order = json.dumps([dict(environment), str(folder), what, arguments])
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile("w+b"))
            file.write(order.encode())
            file.seek(0)
            ours, theirs = socket.socketpair()
            stack.callback(theirs.close)
            if stdin is None:
                null = os.open(os.devnull, os.O_RDONLY)
                stack.callback(os.close, null)
                stdin = null
            files = (stdin, 1 if stdout is None else stdout, 2 if stderr is None else stderr)
            fds = [file.fileno(), *files, theirs.fileno()]
            socket.send_fds(self._server(), [b"!"], fds)
        return Forked(ours)

    def _server(self) -> socket.socket:
        if self._orders is None:
            ours, theirs = socket.socketpair()
            path = os.pathsep.join(map(str, (*self._path, ROOT / "src", ROOT)))
            process = subprocess.Popen(
                [*self._command, str(theirs.fileno()), *self._preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
            )
            theirs.close()
            atexit.register(process.wait)
            atexit.register(ours.close)  # before: it ends when nobody can order anything more
            self._orders = ours
        return self._orders


SERVERS = Forks(SERVES)
"""Forks the command in this interpreter."""


# ---- the process that forks ------------------------------------------------------------------


def main(orders: socket.socket, preload: Sequence[str]) -> None:
    """Fork for each order."""
    for name in preload:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.freeze()  # or each process would look at all of it once more when it ends
    waiting: set[int] = set()
    while True:
        _, fds, _, _ = socket.recv_fds(orders, 1, 5)
        if not fds:
            break
        if not (pid := os.fork()):
            orders.close()
            wait(fds)
        for fd in fds:
            os.close(fd)
        waiting.add(pid)
        waiting -= {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0]}
    until = time.monotonic() + 1.0
    for pid in waiting:
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > until:  # and what it waits for ends with it
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def wait(fds: list[int]) -> None:
    """Start the process, and tell its id and then its status."""
    follow()
    answers = socket.socket(fileno=fds[4])
    pid = os.fork()
    if not pid:
        answers.close()
        follow()
        run(fds)
    for fd in fds[:4]:
        os.close(fd)
    answers.sendall(f"{pid}\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # nobody wants to know
        answers.sendall(f"{status}\n".encode())
    os._exit(0)


def follow() -> None:
    """End when the process that has forked this one does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, int(signal.SIGKILL))


def run(fds: list[int]) -> None:
    """Be what was ordered."""
    with os.fdopen(fds[0], "rb") as order:
        environment, folder, what, arguments = json.loads(order.read())
    for number in (1, 2, 3):
        os.dup2(fds[number], number - 1)
        os.close(fds[number])
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    first = folder if what == COMMAND else str(Path(what).parent)
    sys.path[:0] = [first, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = [what, *arguments]
    try:
        if what == COMMAND:
            sys.exit(importlib.import_module("dragoman.cli").main())
        runpy.run_path(what, run_name="__main__")
        sys.exit()
    except SystemExit as ended:
        leave(ended.code)


def leave(code: object) -> NoReturn:
    """End as an interpreter does, but leave the memory to the kernel."""
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # closed
            stream.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
