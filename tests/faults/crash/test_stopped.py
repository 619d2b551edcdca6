"""SIGSTOP: a process that is stopped for longer than its lease begins no step when it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.crash.server_process import Served
from tests.faults.crash.slow_agent import STEPS
from tests.harness.scale import SOAK
from tests.harness.services import Postgres

AGENT = "tests.faults.crash.slow_agent:agent"
MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}


class Replica(Served):
    """`dragoman serve` beside another one."""

    store = ""

    def command(self) -> list[str]:
        """See `Served.command`."""
        return ["serve", self.agent, "--port", str(self.port), "--store", self.store]


@pytest.mark.soak
@pytest.mark.parametrize("broken", ["", "beginning"] if SOAK else [""])
async def test_a_stopped_process_begins_no_step(
    tmp_path: Path, postgres: Postgres, broken: str
) -> None:
    async with replicas(tmp_path, postgres, broken) as pair, asyncio.timeout(40):
        body = {"message": MESSAGE, "configuration": {"returnImmediately": True}}
        _, _, sent = await pair[0].post("/message:send", body)
        task = sent["task"]["id"]
        while not (found := effects(tmp_path)):
            await asyncio.sleep(0.005)
        ((_, stopped),) = found
        other, late = pair if stopped != str(pid(pair[0])) else pair[::-1]
        os.kill(pid(late), signal.SIGSTOP)
        try:
            while (await other.get(f"/tasks/{task}"))["status"]["state"] != "TASK_STATE_COMPLETED":
                await asyncio.sleep(0.02)
        finally:
            os.kill(pid(late), signal.SIGCONT)
        while "claim expired before" not in late.log and "was taken over" not in late.log:
            await asyncio.sleep(0.02)
    done = effects(tmp_path)
    assert [name for name, process in done if process != stopped] == list(STEPS[1:])
    late_steps = [name for name, process in done if process == stopped]
    assert late_steps == (["first", "second"] if broken else ["first"])


def pid(replica: Replica) -> int:
    """Its process."""
    assert replica.process is not None
    return replica.process.pid


def effects(folder: Path) -> list[tuple[str, str]]:
    """The steps, and which process did them."""
    file = folder / "effects"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(name, process) for name, process in map(str.split, lines)]


@asynccontextmanager
async def replicas(folder: Path, postgres: Postgres, broken: str) -> AsyncIterator[list[Replica]]:
    """Two servers with one database."""
    url = postgres.create()
    async with AsyncExitStack() as stack:
        pair = []
        for _ in range(2):
            replica = Replica(folder, "poll=0.1", "lease=0.6", agent=AGENT, broken=broken)
            replica.store = url
            pair.append(replica)
            await stack.enter_async_context(replica)
        await asyncio.gather(*(replica.start() for replica in pair))
        yield pair
