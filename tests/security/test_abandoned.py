"""One caller begins things and leaves them: tasks that wait for an answer, streams that nobody
reads, streams whose reader is gone. The others are served, and nothing is held for what waits."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman import App
from dragoman.security import ApiKey
from tests.harness import agents
from tests.harness.raw_http import Client, Connection, connect, request
from tests.harness.scale import SOAK
from tests.harness.server import serving
from tests.security.test_ownership import message

TASKS = 10_000 if SOAK else 400
STREAMS = 2_000 if SOAK else 100
LANES = 8
ENOUGH = 3
"""So many answers show that somebody is served, however slow the machine is."""
MOST = 16 * 1024
"""The bytes that a waiting task may take in this process, whatever the store."""
stores = pytest.mark.parametrize("store", ["memory", "sqlite"])


def head(who: str) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of a caller."""
    return ((b"x-key", f"{who}-key".encode()), (b"content-type", b"application/json"))


def body(text: str, number: int = 0, **more: Any) -> bytes:
    """A message."""
    return json.dumps({"message": message(text, messageId=f"{text}-{number}", **more)}).encode()


class Other:
    """Somebody else, who goes on working all the time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.statuses: list[int] = []
        self._task = asyncio.create_task(self._work())
        self._over = False

    async def _work(self) -> None:
        async with Client(self.url) as client:
            while not self._over or len(self.statuses) < ENOUGH:
                said = body("hello", len(self.statuses))
                answer = await client.ask("POST", "/message:send", said, head("b"))
                assert answer is not None
                assert b"TASK_STATE_COMPLETED" in answer.body
                self.statuses.append(answer.status)

    async def end(self) -> None:
        """Stop, and say that all went well."""
        self._over = True
        await self._task
        assert set(self.statuses) == {200}


@asynccontextmanager
async def serving_(store: str, folder: Path) -> AsyncIterator[tuple[App, str]]:
    """A server for two. Its end is part of what is shown: it does not wait for what waits."""
    app = App(
        agents.make(),
        auth=ApiKey(header="X-Key", keys={"alice": "a-key", "bob": "b-key"}),
        store="memory:" if store == "memory" else f"sqlite:///{folder}/x.db",
        quota_tasks=0,  # which would end it, see test_limits.py: this is what holds without
        drain_timeout=1.0,
    )
    stack = AsyncExitStack()
    url = await stack.enter_async_context(serving(app))
    try:
        yield app, url
    finally:
        async with asyncio.timeout(30):
            await stack.aclose()


def listeners(app: App) -> int:
    """How many wait for something to happen."""
    return sum(map(len, app.bell.listeners._by_topic.values()))


async def quiet(app: App) -> None:
    """Until no turn runs and no stream is open."""
    assert app._worker is not None
    async with asyncio.timeout(30):
        while app._worker.runs or app.streams.open:
            await asyncio.sleep(0.01)


@stores
async def test_tasks_that_wait(store: str, tmp_path: Path) -> None:
    async with serving_(store, tmp_path) as (app, url):
        ids: list[str] = []

        async def lane(numbers: range) -> None:
            async with Client(url) as client:
                for number in numbers:
                    said = body("ask", number)
                    answer = await client.ask("POST", "/message:send", said, head("a"))
                    assert answer is not None
                    task = answer.json()["task"]
                    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
                    ids.append(task["id"])

        async def begun(numbers: range) -> None:
            await asyncio.gather(*(lane(numbers[place::LANES]) for place in range(LANES)))
            await quiet(app)
            gc.collect()

        await begun(range(-200, 0))  # what is taken once for all is taken then
        tasks, waiting = len(asyncio.all_tasks()), listeners(app)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            other = Other(url)
            await begun(range(TASKS))
            await other.end()
            await quiet(app)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(set(ids)) == TASKS + 200
        each = (after - before) / (TASKS + len(other.statuses))
        assert each < MOST, f"{each:.0f} bytes for each"
        # nobody waits for them: no turn, no listener, no coroutine
        assert listeners(app) == waiting
        assert len(asyncio.all_tasks()) <= tasks + 2
        async with Client(url) as client:
            for id in (ids[0], ids[-1]):
                said = body("enough", taskId=id)
                answer = await client.ask("POST", "/message:send", said, head("a"))
                assert answer is not None
                assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@stores
async def test_streams_that_are_left(store: str, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, max(soft, 2 * STREAMS + 500))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    async with serving_(store, tmp_path) as (app, url), AsyncExitStack() as stack:
        async with Client(url) as client:
            answer = await client.ask("POST", "/message:send", body("ask"), head("a"))
        assert answer is not None
        task = answer.json()["task"]["id"]
        waiting = listeners(app)
        other = Other(url)

        async def opened() -> Connection:
            found = await stack.enter_async_context(connect(url))
            await found.send(request("GET", f"/tasks/{task}:subscribe", None, head("a")))
            answer = await found.answer(whole=False)
            assert answer is not None
            assert answer.status == 200
            return found

        connections = []
        for _ in range(0, STREAMS, 100):
            connections += await asyncio.gather(*(opened() for _ in range(100)))
        assert len(app.streams.open) == STREAMS
        # half of them hang up without a word; the others stay, and read nothing
        for connection in connections[::2]:
            connection.writer.transport.abort()
        async with asyncio.timeout(30):
            while len(app.streams.open) > STREAMS // 2:
                await asyncio.sleep(0.02)
        assert listeners(app) - waiting <= STREAMS // 2 + 2
        await other.end()
        # and now the server ends, although half of them are still there


@stores
async def test_bodies_that_never_come(store: str, tmp_path: Path) -> None:
    async with serving_(store, tmp_path) as (app, url), AsyncExitStack() as stack:
        other = Other(url)
        for _ in range(STREAMS):
            found = await stack.enter_async_context(connect(url))
            whole = request("POST", "/message:send", body("hello"), head("a"))
            await found.send(whole[:-1])
        async with asyncio.timeout(30):
            while len(app.bodies._arriving) < STREAMS:
                await asyncio.sleep(0.01)
        await other.end()
