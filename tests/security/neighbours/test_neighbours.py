"""While an attacker is as expensive as it can be, a well-behaved caller notices nothing.

The table of attacks is in `attacks.py`: a new endpoint or limit gets a row there. `make soak` runs
each of them for 20 seconds, with and without credentials; `make test` for a moment. With
`ATTACKS="slow readers;cookies"` in the environment only those are run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.harness.command import ServerProcess, environment, server_process
from tests.harness.scale import SCALE, SOAK
from tests.harness.services import Postgres, free
from tests.security.neighbours.attacks import ATTACKS

SECONDS = 20 * SCALE if SOAK else 0.1
P99 = 0.25 if SOAK else 4.0
"""The slowest of a hundred sends; a short run has too few of them, beside other tests, for less."""
MEMORY = 512 * 1024 * 1024
"""The most that the server may take above what it takes when idle."""
PACE = 0.04
"""The neighbour's pause between two sends."""
SETTINGS = """
quota_tasks = 100000
max_running = 200
lease = 10
push = true
egress_allow = ["127.0.0.0/8"]

[[auth]]
scheme = "token"
realm = "people"
tokens = { ann = "ann-secret", mallory = "mallory-secret" }

[[auth]]
scheme = "key"
realm = "keys"
cookie = "session"
keys = { eve = "eve-secret" }

[[auth]]
scheme = "anonymous"
"""
ONLY = [name for name in os.environ.get("ATTACKS", "").split(";") if name]
"""The attacks that are wanted; all without it."""
STORES = ["sqlite", "postgres"] if SOAK else ["sqlite"]


@dataclass
class Neighbour:
    """Sends steadily, and puts down how long each took."""

    url: str
    took: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    stopped: bool = False

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Send until stopped."""
        number = 0
        while not self.stopped:
            number += 1
            began = time.perf_counter()
            fault = await self.send(http, f"hello {number}")
            self.took.append(time.perf_counter() - began)
            if fault:
                self.faults.append(fault)
            await asyncio.sleep(PACE)

    async def send(self, http: aiohttp.ClientSession, text: str) -> str:
        """One message; what was wrong with the answer."""
        message = {"messageId": f"{time.time_ns()}", "role": "ROLE_USER", "parts": [{"text": text}]}
        try:
            async with http.post(
                f"{self.url}/message:send", json={"message": message}, headers=ANN
            ) as answer:
                body = await answer.json(content_type=None)
                if answer.status != 200:
                    return f"{answer.status} {body}"
                state = body["task"]["status"]["state"]
                return "" if state == "TASK_STATE_COMPLETED" else f"{state} {body}"
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return repr(error)


ANN = {"authorization": "Bearer ann-secret"}


@contextlib.contextmanager
def server(here: Path, store: str, port: int) -> Iterator[ServerProcess]:
    """`dragoman serve` with the agent of this folder."""
    (here / "dragoman.toml").write_text(SETTINGS)
    agent = "tests.security.neighbours.agent:agent"
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join((root, str(Path(root, "src"))))
    with server_process(
        here, agent, "--grpc-port", str(port), "--store", store, anew=True, PYTHONPATH=path
    ) as found:
        yield found


def resident(pid: int) -> int:
    """The bytes of memory that a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.asynccontextmanager
async def attacker(url: str, port: int, token: str, *names: str) -> AsyncIterator[Any]:
    """The attacks, in a process of their own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.security.neighbours.attacks"),
        *(url, str(port), token, str(SECONDS), *names),
        env=environment(GRPC_VERBOSITY="NONE"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        yield process
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("token", ["mallory-secret", ""] if SOAK else ["mallory-secret"])
@pytest.mark.parametrize("store", STORES)
async def test_neighbours(
    tmp_path: Path, store: str, token: str, request: pytest.FixtureRequest
) -> None:
    where = f"sqlite:///{tmp_path}/tasks.db"
    if store == "postgres":
        found: Postgres = request.getfixturevalue("postgres")
        where = found.create()
    port = free()
    problems: list[str] = []
    with server(tmp_path, where, port) as server_process:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as http:
            idle = resident(server_process.process.pid)
            assert await Neighbour(server_process.url).send(http, "hello") == ""  # it is warm
            async with attacker(server_process.url, port, token, *ONLY) as process:
                async for line in process.stdout:
                    begin, _, name = line.decode().strip().partition(" ")
                    assert begin == "begin", line
                    neighbour = Neighbour(server_process.url)
                    turn = asyncio.create_task(neighbour.send(http, f"wait {SECONDS / 2}"))
                    sends = asyncio.create_task(neighbour.run(http))
                    most = 0
                    ending = asyncio.create_task(process.stdout.readline())
                    while not ending.done():
                        most = max(most, resident(server_process.process.pid) - idle)
                        await asyncio.wait([ending], timeout=0.05)
                    neighbour.stopped = True
                    await sends
                    if fault := await turn:
                        problems.append(f"{name}: a turn of another ended: {fault}")
                    counts = ending.result().decode().strip().removeprefix(f"end {name} ")
                    slow = sorted(neighbour.took)[int(len(neighbour.took) * 0.99)]
                    print(  # noqa: T201 - shown by `make soak`
                        f"{name:28} {len(neighbour.took):5} sends, p99 {slow * 1e3:5.0f} ms, "
                        f"{most >> 20:4} MiB; the attacker: {counts}"
                    )
                    if neighbour.faults:
                        faults = neighbour.faults
                        problems.append(f"{name}: {len(faults)} sends failed: {faults[0]}")
                    if slow > P99:
                        problems.append(f"{name}: p99 is {slow * 1e3:.0f} ms")
                    if most > MEMORY:
                        problems.append(f"{name}: {most >> 20} MiB of memory")
    assert not problems, "\n".join(problems)


def test_every_attack_has_a_name_of_its_own() -> None:
    assert len({name.lower() for name in ATTACKS}) == len(ATTACKS)
