"""A process that has imported everything and forks a server for each order: a life costs a tenth
of a second instead of one.

On its standard input it reads the environment, the arguments and the log file of a server; it
prints the process id, and when that process has ended its exit status.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys

PRELOAD = (
    *("asyncpg", "httptools", "uvicorn.protocols.http.httptools_impl", "uvloop"),
    *("dragoman.cli.serve", "dragoman.server.app", "dragoman.stores.postgres"),
    *("dragoman.stores.sqlite", "dragoman.bells.postgres", "tests.faults.crash.broken_promises"),
)
DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2): a server does not outlive this process."""


def serve(environment: dict[str, str], arguments: list[str], log: str) -> None:
    """Be a server."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["dragoman", *arguments]
    sys.exit(importlib.import_module("dragoman.cli").main())


def say(number: int) -> None:
    """Answer with a line."""
    os.write(1, f"{number}\n".encode())


def main() -> None:
    """Fork one server after the other."""
    for name in PRELOAD:
        importlib.import_module(name)
    for line in sys.stdin:
        environment, arguments, log = json.loads(line)
        pid = os.fork()
        if not pid:
            serve(environment, arguments, log)
        say(pid)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
