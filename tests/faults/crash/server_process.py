"""`dragoman serve` as a process that is killed and started again on the same port and file."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from dragoman.model.events import RESUME
from tests.faults.crash.agent import BROKEN, EFFECTS
from tests.faults.crash.checker import Ack, Frame, Send
from tests.faults.crash.load import Down
from tests.harness.forked_server import ForkedServer, forked_server
from tests.harness.services import free

HERE = Path(__file__).parents[3]
GONE = (aiohttp.ClientError, ConnectionError, TimeoutError)
READY = 20.0


class Served:
    """One server after the other on one file."""

    ready = READY
    """How many seconds its start may take."""

    def __init__(
        self,
        folder: Path,
        *settings: str,
        agent: str = "tests.faults.crash.agent:agent",
        broken: str = "",
        seed: int = 0,
        **environment: str,
    ) -> None:
        self.folder = folder
        self.file = folder / "tasks.db"
        self.effects = folder / "effects"
        self.agent = agent
        self.settings = settings
        self.lines: list[str] = []
        """What it has logged."""
        self.chance = random.Random(seed)
        self.port = free()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | ForkedServer | None = None
        self._up = asyncio.Event()
        known = {key: value for key, value in os.environ.items() if not key.startswith("DRAGOMAN_")}
        self._environment = known | {EFFECTS: str(self.effects), BROKEN: broken} | environment

    async def start(self) -> None:
        """Serve, and wait until it does."""
        command = self.command()
        for setting in self.settings:
            command += ["--set", setting]
        if "LD_PRELOAD" in self._environment:  # for a new interpreter only
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "dragoman", *command),
                cwd=HERE,
                env=self._environment,
                stderr=asyncio.subprocess.PIPE,
            )
        else:
            self.process = await forked_server(*command, environment=self._environment)
        self._listening = asyncio.create_task(self._listen(self.process))
        try:
            async with asyncio.timeout(self.ready):
                await self._up.wait()
        except TimeoutError:
            raise RuntimeError(f"the server is not ready: {self.log[-20:]}") from None
        assert not self._listening.done(), self.log

    def command(self) -> list[str]:
        """What it is told, but for the settings."""
        return ["serve", self.agent, "--port", str(self.port), "--store", f"sqlite:///{self.file}"]

    @property
    def log(self) -> str:
        """What it has logged, in one."""
        return "\n".join(self.lines)

    async def _listen(self, process: asyncio.subprocess.Process | ForkedServer) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.lines.append(line.decode().rstrip())
            if "press Ctrl-C to stop" in self.lines[-1]:
                self._up.set()
        self._up.clear() if self._up.is_set() else self._up.set()  # it ended before it served

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End it, by default as the kernel does."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(READY):
            status = await self.process.wait()
            await self._listening
        self._up.clear()
        return status

    async def __aenter__(self) -> Served:
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=30),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        if self.process is not None:
            await self.kill()

    def rss(self, what: str = "VmHWM") -> int:
        """The memory that it has now (VmRSS), or has had at most."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    # -- as clients reach it

    async def up(self) -> None:
        """See `Reach.up`."""
        await asyncio.sleep(0.01)  # it may not have been noticed yet that it is down
        await self._up.wait()

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
        """Ask, and read the answer: its status, headers and content."""
        try:
            async with self.http.post(self.url + path, json=body, headers=headers) as response:
                return response.status, response.headers, await response.json(content_type=None)
        except GONE as error:
            raise Down from error

    async def get(self, path: str) -> Any:
        """What is there."""
        async with self.http.get(self.url + path) as response:
            return await response.json()

    async def send(self, send: Send) -> Ack:
        """See `Reach.send`."""
        status, _, found = await self.post(
            "/message:send", _body(send), **{"Idempotency-Key": send.key}
        )
        if status == 503:
            raise Down
        assert status == 200, found
        return Ack(found["task"]["id"], found["task"]["status"]["state"])

    async def stream(
        self, send: Send, task: str, after: int | None
    ) -> AsyncIterator[tuple[str, Frame]]:
        """See `Reach.stream`."""
        headers = {"A2A-Extensions": RESUME}
        if after is not None:
            headers["Last-Event-ID"] = f"{task}:{after}"
        if after is not None and self.chance.random() < 0.5:
            asking = self.http.get(f"{self.url}/tasks/{task}:subscribe", headers=headers)
        else:
            headers["Idempotency-Key"] = send.key
            asking = self.http.post(f"{self.url}/message:stream", json=_body(send), headers=headers)
        try:
            async with asking as response:
                if response.status == 503:
                    raise Down
                assert response.status == 200, await response.text()
                async for name, event in frames(response.content):
                    task, _, number = name.rpartition(":")
                    yield task, Frame(int(number), event)
        except GONE as error:
            raise Down from error

    async def settled(self, within: float) -> bool:
        """Wait until no task is in work."""
        deadline = asyncio.get_running_loop().time() + within
        while asyncio.get_running_loop().time() < deadline:
            pages = [
                await self.get(f"/tasks?pageSize=1&status=TASK_STATE_{state}")
                for state in ("SUBMITTED", "WORKING")
            ]
            if not any(page["totalSize"] for page in pages):
                return True
            await asyncio.sleep(0.05)
        return False


async def frames(content: aiohttp.StreamReader) -> AsyncIterator[tuple[str, Any]]:
    """The events of a stream: id and data."""
    name = ""
    while line := await content.readuntil(b"\n"):
        if not line.endswith(b"\n"):
            raise Down  # cut off in the middle
        key, _, value = line.rstrip(b"\n").partition(b": ")
        if key == b"id":
            name = value.decode()
        elif key == b"data":
            yield name, json.loads(value)


def _body(send: Send) -> Any:
    message = {"messageId": send.key, "role": "ROLE_USER", "parts": [{"text": send.text}]}
    return {"message": message, "configuration": {"returnImmediately": not send.blocking}}
