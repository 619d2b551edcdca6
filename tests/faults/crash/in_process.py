"""A server in this process, on a disk whose power is cut: crashes in milliseconds."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from dragoman import App
from dragoman.dialects import v1_0
from dragoman.model.caller import Call, Caller
from dragoman.model.errors import A2AError, Unavailable
from dragoman.model.events import RESUME, placed
from dragoman.model.types import (
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from dragoman.server.service import Service
from dragoman.stores.sqlite import SqliteStore
from tests.faults.crash import agent
from tests.faults.crash.checker import Ack, Frame, Send
from tests.faults.crash.load import Down
from tests.faults.crash.lossy_disk import Disk, Keep

T = TypeVar("T")
CALLER = Caller(extensions=(RESUME,))


class Inside:
    """One server after the other over what is left of the file of the one before."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.effects = folder / "effects"
        self.lives = 0
        self.file = folder / "0" / "tasks.db"
        self.file.parent.mkdir()
        self._up = asyncio.Event()
        self._dark = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Serve what is there."""
        self.disk = Disk()
        store = SqliteStore(self.file, driver=self.disk.driver)
        self.agent = agent.make(self.effects)
        self.app = App(self.agent, store=store, drain_timeout=0, poll=0.05, cancel_grace=0.1)
        await self.app.start()
        self.service: Service = next(iter(self.app.endpoints.values())).service
        self._dark.clear()
        self._up.set()

    def snap(self, syncs: int) -> None:
        """Cut the power at the so-manyth sync from now, wherever the writer then is."""
        last = self.disk.syncs + syncs

        def trap(number: int) -> bool:
            if number < last:
                return False
            self._loop.call_soon_threadsafe(self._dark.set)
            return True

        self.disk.trap = trap

    async def dark(self) -> None:
        """Wait until the power is gone."""
        await self._dark.wait()

    async def cut(self, keep: Keep) -> None:
        """Cut the power; `start` then finds what is left of the file."""
        self.disk.cut()
        self._up.clear()
        self._dark.set()
        worker = self.app._worker
        assert worker is not None
        worker._draining = True  # the dead claim nothing more, and hand nothing back
        for run in list(worker.runs.values()):
            worker.abandon(run)
        await self.app.stop()
        self.lives += 1
        left = self.folder / str(self.lives)
        self.disk.survive(left, keep, self.chance)
        self.disk.close()
        self.file = left / self.file.name

    async def stop(self) -> None:
        """End in order."""
        await self.app.stop()
        self.disk.close()

    # -- as clients reach it

    async def up(self) -> None:
        """See `Reach.up`."""
        await asyncio.sleep(0)
        await self._up.wait()

    async def send(self, send: Send) -> Ack:
        """See `Reach.send`."""
        answer = await self._powered(self.service.send(_request(send), Call(CALLER, send.key)))
        assert answer.task is not None
        return Ack(answer.task.id, answer.task.status.state.value)

    async def stream(
        self, send: Send, task: str, after: int | None
    ) -> AsyncIterator[tuple[str, Frame]]:
        """See `Reach.stream`."""
        place = "" if after is None else f"{task}:{after}"
        if place and self.chance.random() < 0.5:
            begin = self.service.subscribe(SubscribeToTaskRequest(id=task), Call(CALLER, "", place))
        else:
            begin = self.service.stream(_request(send), Call(CALLER, send.key, place))
        stream = await self._powered(begin)
        try:
            while (entries := await self._powered(stream.next())) is not None:
                for entry in entries:
                    if wire := v1_0.response(placed(entry, reset=stream.reset)):
                        stream.reset = False
                        yield stream.task, Frame(entry.number, json.loads(wire))
        finally:
            stream.close()

    async def _powered(self, doing: Coroutine[Any, Any, T]) -> T:
        """Do it, unless the power goes first."""
        if self._dark.is_set():
            doing.close()
            raise Down
        work = asyncio.ensure_future(doing)
        end = asyncio.ensure_future(self._dark.wait())
        try:
            await asyncio.wait((work, end), return_when=asyncio.FIRST_COMPLETED)
            # what was answered in the dark, such as that the server goes away, reached nobody
            if work.done() and not end.done():
                return work.result()
            raise Down
        except A2AError as error:
            if isinstance(error, Unavailable):
                raise Down from error
            raise
        finally:
            for task in (work, end):
                task.cancel()
            await asyncio.wait((work, end))
            if not work.cancelled():
                work.exception()


def _request(send: Send) -> SendMessageRequest:
    parts = (Part(text=send.text),)
    return SendMessageRequest(
        message=Message(message_id=send.key, role=Role.USER, parts=parts),
        configuration=SendMessageConfiguration(return_immediately=not send.blocking),
    )
