"""Disks that are full, broken or read-only for a while: nothing is promised that is not kept."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Turn
from dragoman.model.caller import Call, Caller
from dragoman.model.errors import Unavailable
from dragoman.model.types import SendMessageRequest
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.sqlite.driver import STANDARD, Driver
from dragoman.stores.sqlite.schema import Unusable
from dragoman.testing import message
from tests.faults.crash import checker
from tests.faults.crash.agent import make
from tests.faults.crash.checker import Send
from tests.faults.crash.load import Down
from tests.faults.crash.server_process import Served, _body
from tests.harness.server import serving


class Disk:
    """A disk that can be made to refuse, by what a connection may do."""

    def __init__(self) -> None:
        self.writers: list[Any] = []
        self.driver = Driver(self._connect, sqlite3.Error)

    def _connect(self, path: Path) -> Any:
        db = STANDARD.connect(path)
        self.writers.append(db)
        return db

    def full(self, on: bool) -> None:
        (pages,) = self.writers[0].execute("PRAGMA page_count").fetchone()
        limit = pages if on else 1 << 30
        self.writers[0].execute(f"PRAGMA max_page_count = {limit}").fetchone()

    def readonly(self, on: bool) -> None:
        self.writers[0].execute(f"PRAGMA query_only = {int(on)}").fetchone()


async def refused(ask: Callable[[Send], Any], sends: list[Send]) -> tuple[int, Any, Any]:
    """Send until it is refused."""
    async with asyncio.timeout(20):
        while True:
            send = Send(f"s{len(sends)}", 4, 0, blocking=False)
            sends.append(send)
            status, headers, found = await ask(send)
            if status != 200:
                return status, headers, found
            task = found["task"]
            send.acks.append(checker.Ack(task["id"], task["status"]["state"]))


def verdict(file: Path, effects: Path, sends: list[Send]) -> list[checker.Breach]:
    found, breaches = checker.logs(file)
    return breaches + checker.check(sends, found, checker.effects(effects))


@pytest.mark.parametrize("trouble", ["full", "readonly"])
async def test_a_disk_that_takes_nothing_for_a_while(tmp_path: Path, trouble: str) -> None:
    disk, file, effects = Disk(), tmp_path / "tasks.db", tmp_path / "effects"
    app = App(make(effects), store=SqliteStore(file, driver=disk.driver), poll=0.1)
    sends: list[Send] = []
    async with serving(app) as url, Served(tmp_path) as client:
        client.url = url
        client._up.set()

        def ask(send: Send) -> Any:
            return client.post("/message:send", _body(send), **{"Idempotency-Key": send.key})

        long = Send("long", 200, 0.01)
        stream = client.stream(long, "", None)
        frames = [await anext(stream)]
        getattr(disk, trouble)(True)
        status, headers, found = await refused(ask, sends)
        assert (status, headers["retry-after"]) == (503, "5"), found
        assert "not available" in found["error"]["message"], found
        task = (await client.get(f"/tasks/{frames[0][0]}"))["status"]["state"]
        assert task in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")  # it can be read all the time
        await asyncio.sleep(0.3)  # a few attempts to write in vain
        getattr(disk, trouble)(False)
        async with asyncio.timeout(20):
            frames += [frame async for frame in stream]
            sends[-1].acks.append(await client.send(sends[-1]))
            again = Send("again", 2, 0)
            again.acks.append(await client.send(again))
            assert again.acks[0].state == "TASK_STATE_COMPLETED"
            await client.settled(10)
    long.acks.append(checker.Ack(frames[0][0], "TASK_STATE_COMPLETED"))
    long.sights.append(checker.Sight(None, [frame for _, frame in frames], True))
    assert not verdict(file, effects, [*sends, long, again])
    done = checker.effects(effects)
    assert [effect.attempt for effect in done if effect.key == "long"] == [1]  # it has waited


async def test_a_disk_that_fails_under_a_served_process(tmp_path: Path) -> None:
    """The kernel refuses to let its files grow; that is a disk I/O error."""
    sends: list[Send] = []
    async with Served(tmp_path, "poll=0.1") as served:
        await served.start()
        assert served.process is not None
        pid = served.process.pid
        size = (tmp_path / "tasks.db-wal").stat().st_size
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 200_000, hard))

        def ask(send: Send) -> Any:
            return served.post("/message:send", _body(send), **{"Idempotency-Key": send.key})

        status, headers, found = await refused(ask, sends)
        assert (status, headers["retry-after"]) == (503, "5"), found
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        async with asyncio.timeout(20):
            while True:
                try:
                    sends[-1].acks.append(await served.send(sends[-1]))
                    break
                except Down:
                    await asyncio.sleep(0.05)
            assert await served.settled(15)
        await served.kill()
        assert "Traceback" not in served.log, served.log
    assert not verdict(served.file, served.effects, sends)


async def test_what_is_said_while_an_append_fails_is_written_behind_it(tmp_path: Path) -> None:
    effects, failing = tmp_path / "effects", asyncio.get_running_loop().create_future()

    class Shaky(SqliteStore):
        """A store whose first append fails when it is told to."""

        calls = 0

        def append(self, *arguments: Any, **more: Any) -> asyncio.Future[bool]:
            self.calls += 1
            return failing if self.calls == 1 else super().append(*arguments, **more)

    agent = Agent("Speaker", description="Speaks while the disk is away.")

    @agent.handler
    async def speak(turn: Turn) -> AsyncIterator[Any]:
        yield turn.write("x/1/0")
        while store.calls == 0:
            await asyncio.sleep(0)
        yield turn.write("x/1/1")
        failing.set_exception(Unavailable("The disk is full"))
        yield turn.write("x/1/2")

    store = Shaky(tmp_path / "tasks.db")
    async with App(agent, store=store) as app:
        service = app.endpoints[agent.key].service
        send = Send("x", 3, 0)
        answer = await service.send(SendMessageRequest(message=message("x")), Call(Caller()))
        assert answer.task is not None
    assert not verdict(store.path, effects, [send])


async def test_a_server_ends_in_order_though_its_disk_takes_nothing(tmp_path: Path) -> None:
    disk, file, effects = Disk(), tmp_path / "tasks.db", tmp_path / "effects"
    store = SqliteStore(file, driver=disk.driver)
    app = App(make(effects), store=store, poll=0.1, drain_timeout=0.2, cancel_grace=0.1)
    async with serving(app) as url, Served(tmp_path) as client:
        client.url = url
        for number in range(3):
            await client.send(Send(f"long{number}", 1000, 0.01, blocking=False))
        disk.readonly(True)
        try:
            await app.drain()
            assert app.closing.now
        finally:
            disk.readonly(False)


async def test_a_file_that_cannot_be_written_from_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    store = SqliteStore(file)
    await store.open()
    await store.close()

    def connect(path: Path) -> Any:
        return sqlite3.connect(
            f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )

    store = SqliteStore(file, driver=Driver(connect, sqlite3.Error))
    with pytest.raises(Unusable, match="cannot be written") as refusal:
        await store.open()
    assert str(file) in str(refusal.value)
    await SqliteStore(file).open()  # and the lock is free again
