"""Runs the `dragoman` command to its end in a forked process; see `tests.harness.forks`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.harness.forks import COMMAND, SERVERS

PATIENCE = 30.0


async def forked(
    *arguments: str, stdin: str = "", environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """Run the command in the current folder to its end, and return status, output and errors."""
    return await asyncio.to_thread(_run, arguments, stdin, environment)


def _run(
    arguments: Sequence[str], stdin: str, environment: Mapping[str, str]
) -> tuple[int, str, str]:
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+b")) for _ in range(3)]
        files[0].write(stdin.encode())
        files[0].seek(0)
        fds = dict(zip(("stdin", "stdout", "stderr"), (f.fileno() for f in files), strict=True))
        process = SERVERS.start(
            COMMAND, *arguments, folder=Path.cwd(), environment=environment, **fds
        )
        try:
            status = process.wait(PATIENCE)
        except TimeoutError:
            process.kill()
            raise
        for file in files:
            file.seek(0)
        return status, files[1].read().decode(), files[2].read().decode()
