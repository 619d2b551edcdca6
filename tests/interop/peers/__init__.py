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

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from dragoman.client import Client, TaskHandle
from dragoman.model.types import Task
from tests.interop.peers import environments
from tests.interop.peers.environments import Absent as Absent
from tests.interop.peers.table import OFFERS, Offer

HERE = Path(__file__).resolve().parent
PATIENCE = 30.0
"""What takes more seconds has failed."""
BRIEF = 3.0
"""What never ends is not waited for any longer."""
FULL = os.environ.get("INTEROP") == "full"


FILES = {
    "reference": "reference.py",
    "reference-0.3": "older.py",
    "reference-0.2": "older.py",
    "javascript": "desk.mjs",
    "javascript-0.3": "older.mjs",
    "fasta2a": "fasta.py",
    "python-a2a": "pythona2a.py",
    "executors-adk": "adk.py",  # no desk: it gives back what it is told
}


class Peer(NamedTuple):
    """One foreign server over one binding, and the version of A2A that it speaks."""

    name: str
    binding: str
    version: str = "1.0"

    def __str__(self) -> str:
        return f"{self.name}-{self.binding}"

    def offers(self, what: str) -> bool:
        """Whether the table says yes."""
        return self._offer(what) is True

    def meets(self, what: str) -> contextlib.AbstractContextManager[Any]:
        """A block that must raise what the table says; if that is no error, it goes through."""
        offer = self._offer(what)
        return contextlib.nullcontext() if isinstance(offer, bool) else pytest.raises(offer)

    def limit(self, what: str) -> asyncio.Timeout:
        """A block that may take as long as the table makes one expect."""
        return asyncio.timeout(BRIEF if self._offer(what) is TimeoutError else PATIENCE)

    @contextlib.asynccontextmanager
    async def begun(self, client: Client, said: str) -> AsyncIterator[TaskHandle]:
        """A task at work. One that a send would wait for, and that ends unheard, is listened to."""
        if self.offers("answers at once"):
            result = await client.send(said, wait=False)
            assert result.task is not None
            yield client.task(result.task.id)
        else:
            async with client.stream(said) as stream:
                first = await anext(aiter(stream))
                assert isinstance(first, Task)
                yield client.task(first.id)

    def _offer(self, what: str) -> Offer:
        offers = OFFERS[what]
        return offers.get(str(self), offers[self.name])


EVERY = (
    Peer("reference", "JSONRPC"),
    Peer("reference", "HTTP+JSON"),
    Peer("reference", "GRPC"),
    Peer("javascript", "JSONRPC"),
    Peer("javascript", "HTTP+JSON"),
    Peer("javascript", "GRPC"),
    Peer("fasta2a", "JSONRPC"),
    Peer("reference-0.3", "JSONRPC", "0.3"),
    Peer("reference-0.3", "HTTP+JSON", "0.3"),
    Peer("reference-0.3", "GRPC", "0.3"),
    Peer("javascript-0.3", "JSONRPC", "0.3"),
    Peer("javascript-0.3", "HTTP+JSON", "0.3"),
    Peer("javascript-0.3", "GRPC", "0.3"),
    Peer("reference-0.2", "JSONRPC", "0.2"),
)
"""python-a2a is not among them: the address in its card answers no JSON-RPC, in any version."""
WHOLE = EVERY if FULL else EVERY[:3]
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
    script = str(HERE / FILES[name])
    if name in environments.NODE:
        return ["node", script], environments.node(name)
    own = name in environments.PYTHON or name in environments.OTHERS
    python = environments.python(name) if own else sys.executable
    return [str(python), script], HERE


def _address(process: subprocess.Popen[str], log: IO[str]) -> str:
    """The first line that a server prints, once it listens."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    if poll.poll(PATIENCE * 1000) and (url := process.stdout.readline().strip()):
        return url
    log.seek(0)
    raise RuntimeError(f"the server did not start:\n{log.read()}")
