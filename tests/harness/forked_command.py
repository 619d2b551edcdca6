"""Runs the `dragoman` command in processes that are forked from one which has imported it: each
takes a tenth of the CPU time of a new interpreter.

It is for tests of what a command does. Tests of how it starts, of signals and of terminals use
`tests.harness.command` and `tests.cli.terminal`.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PRELOAD = ("aiohttp", "dragoman.cli", "dragoman.client")
"""What each command that calls an agent imports. grpc is left out, because it does not survive a
fork."""
PATIENCE = 30.0
_orders: list[socket.socket] = []
"""To the process that forks, once there is one."""


async def forked(
    *arguments: str, stdin: str = "", environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """Run the command in the current folder to its end, and return status, output and errors."""
    return await asyncio.to_thread(_run, arguments, stdin, environment)


def _run(
    arguments: Sequence[str], stdin: str, environment: Mapping[str, str]
) -> tuple[int, str, str]:
    order = json.dumps([dict(environment), str(Path.cwd()), arguments])
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+b")) for _ in range(4)]
        for file, text in zip(files, (order, stdin), strict=False):
            file.write(text.encode())
            file.seek(0)
        ours, theirs = map(stack.enter_context, socket.socketpair())
        fds = [file.fileno() for file in (*files, theirs)]
        socket.send_fds(_server(), [b"!"], fds)
        theirs.close()
        ours.settimeout(PATIENCE)
        pid = int(_line(ours))
        try:
            status = int(_line(ours))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        for file in files:
            file.seek(0)
        return status, files[2].read().decode(), files[3].read().decode()


def _line(of: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        piece = of.recv(1)
        assert piece, "the process that forks has ended"
        found += piece
    return found


def _server() -> socket.socket:
    if not _orders:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
        )
        theirs.close()
        atexit.register(process.wait)
        atexit.register(ours.close)  # before: it ends when nobody can order anything more
        _orders.append(ours)
    return _orders[0]


# ---- the process that forks ------------------------------------------------------------------


def main(orders: socket.socket) -> None:
    """Fork for each order."""
    for name in PRELOAD:
        importlib.import_module(name)
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
    for pid in waiting:
        os.waitpid(pid, 0)


def wait(fds: list[int]) -> None:
    """Start the command, and tell its process id and then its status."""
    answers = socket.socket(fileno=fds[4])
    pid = os.fork()
    if not pid:
        answers.close()
        command(fds)
    answers.sendall(f"{pid}\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    answers.sendall(f"{status}\n".encode())
    os._exit(0)


def command(fds: list[int]) -> Any:
    """Be the command."""
    with os.fdopen(fds[0], "rb") as order:
        environment, folder, arguments = json.loads(order.read())
    for number in (1, 2, 3):
        os.dup2(fds[number], number - 1)
        os.close(fds[number])
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["dragoman", *arguments]
    sys.exit(importlib.import_module("dragoman.cli").main())


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
