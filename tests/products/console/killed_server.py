"""A server with a console in a process of its own, which tests kill and start again:
`python -m tests.products.console.killed_server FOLDER PORT`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dragoman import Agent, App, Turn
from tests.products.console.parts import consoled, stored

WORDS = 40
"""How many chunks a story has."""


MIDDLE = 19
"""The chunk at which it waits until it is killed."""
END = "end"
"""The file in the folder that lets it go on."""


def story(folder: Path) -> Agent:
    """An agent that tells half of a story, and after a crash again from its beginning."""
    agent = Agent("Story", description="Tells stories.", version="1", key="story", retries=20)

    @agent.skill
    async def tell(turn: Turn) -> AsyncIterator[Any]:
        """Tell a story."""
        if turn.text == "ask":
            yield turn.ask("Which one?")
            return
        for index in range(WORDS):
            yield turn.write(f"word{index} ", name="story")
            if index == MIDDLE and not (folder / END).exists():
                await asyncio.Event().wait()

    return agent


async def main(folder: Path, port: int) -> None:
    """Serve until the process is killed."""
    app = App(story(folder), store=stored(folder), lease=0.6, poll=0.2)
    async with consoled(app, port=port) as running:
        print(running.fresh(), flush=True)  # noqa: T201
        await asyncio.Event().wait()


class KilledServer:
    """Starts such a server, kills it with SIGKILL, and starts it again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.url = self.address = ""

    async def start(self) -> None:
        """Start it. `address` then has a token that works once."""
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", __name__, str(self._folder), port]
        self._process = await asyncio.create_subprocess_exec(*command, stdout=-1)
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            self.address = (await self._process.stdout.readline()).decode().strip()
        assert self.address, "the server did not start"
        self.url = self.address.partition("/console/")[0]

    async def kill(self) -> None:
        """End it without a chance to do anything."""
        assert self._process is not None
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def killed_server(folder: Path) -> AsyncIterator[KilledServer]:
    """Such a server, started."""
    server = KilledServer(folder)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
