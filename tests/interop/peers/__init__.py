"""Servers that others wrote, started as they would be: in environments and processes of their own.

All of them run one agent, the desk, which does what the text of a message says:

    ask         asks "Which?", and takes the next message for the answer
    wait        works until it is canceled
    count N     writes the numbers below N, a chunk each, with small pauses
    say TEXT    answers with a message instead of a task, where that can be done
    fail        ends as failed, and says why
    crash       raises an exception
    (else)      gives back the parts of the message
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from tests.interop.peers import environments
from tests.interop.peers.environments import Absent as Absent
from tests.interop.peers.table import OFFERS

HERE = Path(__file__).resolve().parent
PATIENCE = 30.0
"""What takes more seconds has failed."""
FULL = os.environ.get("INTEROP") == "full"


class Peer(NamedTuple):
    """One foreign server over one binding."""

    name: str
    binding: str

    def __str__(self) -> str:
        return f"{self.name}-{self.binding}"

    def offers(self, what: str) -> bool:
        """Whether the table says yes."""
        return OFFERS[what][self.name] is True

    def meets(self, what: str) -> contextlib.AbstractContextManager[Any]:
        """A block that must raise what the table says; if that is no error, it goes through."""
        offer = OFFERS[what][self.name]
        return contextlib.nullcontext() if isinstance(offer, bool) else pytest.raises(offer)


EVERY = (
    Peer("reference", "JSONRPC"),
    Peer("reference", "HTTP+JSON"),
    Peer("javascript", "JSONRPC"),
    Peer("javascript", "HTTP+JSON"),
    Peer("fasta2a", "JSONRPC"),
)
WHOLE = EVERY if FULL else EVERY[:2]
"""Those that the whole matrix is for."""


@contextlib.contextmanager
def serving(name: str, *, port: int = 0, public: str = "") -> Iterator[str]:
    """The URL of a peer that listens on 127.0.0.1 until the block ends; Absent if there is none.
    With `public`, its card says that URL, for whoever puts something in between."""
    command, folder = _command(name)
    command += [str(port), *(["--public", public] if public else [])]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield _address(process, log)
        finally:
            process.kill()


def _command(name: str) -> tuple[list[str], Path]:
    if name == "reference":
        return [sys.executable, str(HERE / "reference.py")], HERE
    if name == "fasta2a":
        return [str(environments.python()), str(HERE / "fasta.py")], HERE
    return ["node", str(HERE / "desk.mjs")], environments.node()


def _address(process: subprocess.Popen[str], log: IO[str]) -> str:
    """The first line that a server prints, once it listens."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    if ready and (url := process.stdout.readline().strip()):
        return url
    log.seek(0)
    raise RuntimeError(f"the server did not start:\n{log.read()}")
