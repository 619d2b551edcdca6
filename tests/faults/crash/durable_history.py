"""The history of one durable task over several lives of its server, and whether all is well."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman import Settings
from dragoman.model.caller import Scope
from dragoman.model.events import Private
from dragoman.stores import connect
from tests.faults.crash.checker import ENDS, Breach
from tests.faults.crash.durable_agent import FOLDER, KILL, NAP, SAID, STORE, TEXT
from tests.faults.crash.load import Down
from tests.faults.crash.server_process import GONE, Served
from tests.harness.forks import COMMAND, ROOT, SERVERS

AGENT = "tests.faults.crash.durable_agent:agent"
STEPS = ("quote", "bed", "left", "right")
ASKS = "TASK_STATE_INPUT_REQUIRED"
WITHIN = 30.0
LEASE = 0.4


class History(Served):
    """One server after the other, and a client that does not give up."""

    within = WITHIN
    """How many seconds a life may take."""

    def __init__(self, folder: Path, url: str = "", *, broken: str = "") -> None:
        self.store = url or f"sqlite:///{folder / 'tasks.db'}"
        super().__init__(
            folder,
            agent=AGENT,
            broken=broken,
            **{FOLDER: str(folder), STORE: "postgres" if url else "sqlite"},
        )
        self.task = ""
        self.pid = 0

    def command(self) -> list[str]:
        """See `Served.command`."""
        command = ["serve", self.agent, "--port", str(self.port), "--store", self.store]
        return [*command, "--set", "poll=0.05", "--set", f"lease={LEASE}"]

    @property
    def log(self) -> str:
        """See `Served.log`."""
        return (self.folder / "log").read_text()

    async def start(self, kill: str = "") -> None:
        """Begin a life that ends at this point."""
        with (self.folder / "log").open("a") as log:
            process = await asyncio.to_thread(
                SERVERS.start,
                *(COMMAND, *self.command()),
                folder=ROOT,
                environment={**self._environment, KILL: kill},
                stdout=log.fileno(),
                stderr=log.fileno(),
            )
        self.pid = process.pid
        self._dead = asyncio.create_task(process.ended())

    async def end(self) -> int:
        """End the server, if it has not ended; its exit status."""
        if not self._dead.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        return await self._dead

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        if self.pid:
            await self.end()

    async def life(self, kill: str = "") -> Any:
        """Serve until the process ends by itself at this point, and return None; or until the task
        has ended, and return it."""
        await self.start(kill)
        async with asyncio.timeout(self.within):
            while not self._dead.done():
                try:
                    if (found := await self._ask()) is not None:
                        await self.end()
                        return found
                except (Down, *GONE):
                    pass
                await asyncio.sleep(0.01)
        assert await self._dead == -signal.SIGKILL, self.log
        return None

    async def _ask(self) -> Any:
        """Bring the task a bit further; the task once it has ended."""
        if not self.task:
            found = await self._say("buy", {"returnImmediately": True})
            self.task = found["task"]["id"]
        task = await self.get(f"/tasks/{self.task}")
        state = task["status"]["state"]
        if state == ASKS:
            await self._say("yes", {"returnImmediately": True}, taskId=self.task)
        return task if state in ENDS else None

    async def _say(self, text: str, configuration: Any, **more: str) -> Any:
        message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}], **more}
        body = {"message": message, "configuration": configuration}
        status, _, found = await self.post("/message:send", body, **{"Idempotency-Key": text})
        if status == 503:
            raise Down
        assert status == 200, found
        return found


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def points(folder: Path) -> list[str]:
    """The points that all lives have passed."""
    return _lines(folder / "points")


def kills(folder: Path) -> list[Any]:
    """How each life ended."""
    return [json.loads(line) for line in _lines(folder / "kills")]


def check(folder: Path, task: Any) -> list[Breach]:
    """Every promise that was broken."""
    return [*_effects(folder), *_output(task)]


def _effects(folder: Path) -> list[Breach]:
    found = [line.split() for line in _lines(folder / "effects")]
    times = Counter(name for name, _ in found)
    certain = Counter(name for kill in kills(folder) for name in kill["made"])
    possible = certain + Counter(name for kill in kills(folder) for name in kill["sent"])
    breaches = []
    for step in STEPS:
        text = f"{step} took place {times[step]} times, and was under way at {possible[step]} kills"
        if times[step] > 1 + possible[step]:
            breaches.append(Breach("step-twice", text))
        if times[step] < 1 + certain[step]:
            breaches.append(Breach("step-lost", text))
    if times["pay"] > 1:
        breaches.append(Breach("once-twice", f"pay took place {times['pay']} times"))
    if times["pay"] + times["look"] < 1:
        breaches.append(Breach("step-lost", "neither pay nor look took place"))
    slept = [float(at) for name, at in found if name == "bed"]
    awake = [float(at) for name, at in found if name in ("left", "right")]
    if awake and min(awake) - max(slept) < NAP:
        breaches.append(Breach("sleep", f"{min(awake) - max(slept):.3f} s instead of {NAP}"))
    return breaches


def _output(task: Any) -> list[Breach]:
    if task is None or task["status"]["state"] != "TASK_STATE_COMPLETED":
        return [Breach("failed", str(task))]
    breaches = []
    texts = ["".join(part["text"] for part in a["parts"]) for a in task.get("artifacts", ())]
    if texts != [TEXT]:
        breaches.append(Breach("text", str(texts)))
    messages = task["history"]
    said = [m["parts"][0]["text"] for m in messages if m["role"] == "ROLE_AGENT"]
    if said != SAID:
        breaches.append(Breach("said", str(said)))
    if len({m["messageId"] for m in messages}) < len(messages):
        breaches.append(Breach("ids", str([m["messageId"] for m in messages])))
    return breaches


async def private(url: str, agent: str, task: str) -> Counter[str]:
    """How often each private entry is in the log: its kind, and its name if it has one."""
    async with asyncio.timeout(WITHIN):
        store = connect(Settings(store=url))
        await store.open()
        try:
            found = await store.private(Scope(agent), task)
        finally:
            await store.close()
    events = (entry.event for entry in found)
    return Counter(f"{e.kind} {e.name}".strip() for e in events if isinstance(e, Private))
