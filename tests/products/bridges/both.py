"""The same executor on both servers: a2a-sdk's own, and dragoman. The reference's client asks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from a2a.client import Client, ClientConfig, create_client
from a2a.helpers import new_text_message
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
)
from google.protobuf.json_format import MessageToDict

from tests.harness.forks import ROOT
from tests.products.bridges.desk import PATIENCE, Desk, Framework, forks

DESKS = Path(__file__).parent / "desks"
IDS = ("id", "messageId", "artifactId")
DROPPED = ("timestamp", "taskId", "contextId")
CARD = "/.well-known/agent-card.json"


class Original(Desk):
    """The desk on a2a-sdk's own server."""

    def start(self) -> None:
        """See `Desk.start`."""
        named = self.framework.environment
        paths = (ROOT / "src", DESKS, ROOT, self.folder)
        served = f"{self.framework.module}:{self.framework.served}"
        with (self.folder / "original.log").open("a") as log:
            self._process = forks(named).start(
                *(str(DESKS / "sdk_server.py"), served, str(self._port)),
                folder=self.folder,
                environment={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(str, paths)),
                    "EFFECTS": str(self.folder / "effects"),
                },
                stdout=log.fileno(),
                stderr=log.fileno(),
            )
        until = time.monotonic() + PATIENCE
        while True:
            if self._process.poll() is not None or time.monotonic() > until:
                log_text = (self.folder / "original.log").read_text()
                raise RuntimeError(f"it did not start: {log_text}")
            try:
                if httpx.get(f"{self.url}{CARD}").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)


@contextmanager
def both(framework: Framework, folder: Path) -> Iterator[tuple[Desk, Desk]]:
    """The executor on a2a-sdk's own server, and on dragoman, each with a folder of its own."""
    desks: list[Desk] = []
    try:
        for kind in (Original, Desk):
            place = folder / kind.__name__
            place.mkdir(exist_ok=True)
            for file in folder.glob("*.py"):
                (place / file.name).write_text(file.read_text())
            desks.append(kind(framework, place))
            desks[-1].start()
        yield desks[0], desks[1]
    finally:
        for desk in desks:
            desk.stop()


class Talk:
    """A conversation of the reference's client with one server."""

    def __init__(self, client: Client, desk: Desk) -> None:
        self.client = client
        self.desk = desk
        self.task = ""
        self.context = ""
        self.events: list[dict[str, Any]] = []
        """What the server has said."""

    async def say(self, said: str | list[Part], *, context: str = "") -> list[dict[str, Any]]:
        """Send a message in the task, and return what came."""
        message = new_text_message(said if isinstance(said, str) else "", role=Role.ROLE_USER)
        if not isinstance(said, str):
            del message.parts[:]
            message.parts.extend(said)
        message.task_id, message.context_id = self.task, context or self.context
        found = []
        async for response in self.client.send_message(SendMessageRequest(message=message)):
            found.append(self._took(response))
        return found

    def _took(self, response: StreamResponse) -> dict[str, Any]:
        event = MessageToDict(response)
        ((kind, value),) = event.items()
        if kind != "message":
            self.task = value.get("id") or value["taskId"]
            self.context = value["contextId"]
        self.events.append(event)
        return event

    async def get(self) -> dict[str, Any]:
        """Return the task."""
        return MessageToDict(await self.client.get_task(GetTaskRequest(id=self.task)))

    async def cancel(self) -> dict[str, Any]:
        """Cancel the task."""
        return MessageToDict(await self.client.cancel_task(CancelTaskRequest(id=self.task)))

    async def at_work(self) -> None:
        """Wait until the server has said that the task is working."""
        async with asyncio.timeout(PATIENCE):
            while not any("TASK_STATE_WORKING" in str(event) for event in self.events):
                await asyncio.sleep(0.02)

    async def done(self, what: str, *, after: int = 0) -> None:
        """Wait until the executor has done something, after so many other things."""
        async with asyncio.timeout(PATIENCE):
            while what not in self.desk.done[after:]:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def talk(desk: Desk, *, streaming: bool = True) -> AsyncIterator[Talk]:
    """A conversation with a server."""
    config = ClientConfig(streaming=streaming)
    async with (
        asyncio.timeout(2 * PATIENCE),
        await create_client(desk.url, client_config=config) as client,
    ):
        yield Talk(client, desk)


def plain(found: Any) -> Any:
    """What was said, without times and the ids of the task, and with ids that only tell what is the
    same."""
    return _plain(found, {})


def _plain(found: Any, names: dict[str, str]) -> Any:
    if isinstance(found, list):
        return [_plain(each, names) for each in found]
    if not isinstance(found, dict):
        return found
    made = {}
    for key, value in sorted(found.items()):
        if key in IDS and isinstance(value, str):
            made[key] = names.setdefault(value, f"id {len(names)}")
        elif key not in DROPPED:
            made[key] = _plain(value, names)
    if "parts" in made:
        made["parts"] = _joined(made["parts"])
        if made["parts"] == [{"text": ""}]:
            del made["parts"]  # dragoman sends no message without a part
    return made


def _joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts, with text that follows text as one: dragoman joins the text of chunks."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if found and set(part) == {"text"} == set(found[-1]):
            found[-1] = {"text": found[-1]["text"] + part["text"]}
        else:
            found.append(part)
    return found


def told(events: list[dict[str, Any]]) -> list[Any]:
    """The events that both servers must show. Dragoman reports `submitted` once, and begins each
    stream with the task; the other server does so if the executor does."""
    rest = [event for event in events if "task" not in event and not _submitted(event)]
    found: list[Any] = plain(rest)
    return found


def _submitted(event: dict[str, Any]) -> bool:
    status = event.get("statusUpdate", {}).get("status", {})
    return bool(status.get("state") == "TASK_STATE_SUBMITTED")
