"""The checker finds what is broken on purpose, by its name; and nothing when nothing is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Turn
from dragoman.model.caller import Call, Caller, Scope
from dragoman.model.types import SendMessageConfiguration, SendMessageRequest
from dragoman.stores.sqlite import SqliteStore
from dragoman.testing import message
from tests.faults.crash import broken_promises, checker
from tests.faults.crash.load import Load
from tests.faults.crash.lossy_disk import Keep
from tests.faults.crash.server_process import Served
from tests.faults.crash.test_power import Outages
from tests.harness.scale import seeded

TRIES = 5
"""A breach that needs luck is given some."""


@pytest.mark.parametrize(
    ("switch", "expected", "keep"),
    [
        ("fsync", "accepted-lost", "none"),
        ("showing", "accepted-lost", "all"),
        ("receipts", "duplicate-task", "all"),
        ("order", "order", "all"),
        ("writing", "order", "all"),
        ("numbers", "gap", "all"),
        ("skipping", "resume-gap", "all"),
        ("repeating", "resume-duplicate", "all"),
        ("attempts", "ran-twice", "all"),
        ("replacing", "output", "all"),
        ("reaping", "stuck", "all"),
    ],
)
async def test_a_broken_promise_is_named(
    tmp_path: Path, switch: str, expected: str, keep: Keep
) -> None:
    chance = seeded(switch)
    found: set[str] = set()
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        load = Load(chance, sends=60, streams=6, chunks=20, pause=0.004)
        with broken_promises.promise(switch):
            breaches = await Outages(folder, chance, load, keep=keep).run(3, 2)
        found |= checker.names(breaches)
        if expected in found:
            return
    pytest.fail(f"{expected} was not found, but {found}")


@pytest.mark.parametrize(("switch", "expected"), [("", set()), ("epochs", {"stale-write"})])
async def test_a_writer_that_wakes_up_late(tmp_path: Path, switch: str, expected: set[str]) -> None:
    """The first attempt loses its claim, and speaks on when the second one has begun."""
    agent = Agent("Sleeper", description="Sleeps too long.", retries=1)
    gates = {1: asyncio.Event(), 2: asyncio.Event()}
    begun = {1: asyncio.Event(), 2: asyncio.Event()}
    late = asyncio.Event()
    runs: dict[int, Any] = {}

    @agent.handler
    async def sleep(turn: Turn) -> AsyncIterator[Any]:
        runs[turn.attempt] = turn._run
        yield turn.write(f"x/{turn.attempt}/0")
        await asyncio.sleep(0)
        begun[turn.attempt].set()
        while not gates[turn.attempt].is_set():
            with suppress(asyncio.CancelledError):
                await gates[turn.attempt].wait()
        yield turn.write(f"x/{turn.attempt}/1")
        await asyncio.sleep(0)
        if turn.attempt == 1:
            late.set()
            await asyncio.Event().wait()

    file = tmp_path / "tasks.db"
    with broken_promises.promise(switch):
        async with (
            asyncio.timeout(20),
            App(agent, store=SqliteStore(file), drain_timeout=0, cancel_grace=0) as app,
        ):
            service = app.endpoints[agent.key].service
            asked = SendMessageRequest(
                message=message("x"),
                configuration=SendMessageConfiguration(return_immediately=True),
            )
            task = (await service.send(asked, Call(Caller()))).task
            assert task is not None
            await begun[1].wait()
            scope = Scope(agent.key)
            while (head := await app.store.head(scope, task.id)) and head.last < 2:
                await asyncio.sleep(0.01)
            assert head is not None
            await app.store.revoke(head, None)  # as the maintenance does when the lease has run out
            app.bell.ring(f"work:{agent.key}")
            await begun[2].wait()
            while (head := await app.store.head(scope, task.id)) and head.last < 3:
                await asyncio.sleep(0.01)
            assert runs[1].lost
            runs[1].lost = False  # as in another process, which has not heard of it
            gates[1].set()
            await late.wait()
            gates[2].set()
            await service.reader.until(lambda head: head.state.terminal, scope, task.id, 5)
            runs[1].task.cancel()
    found, breaches = checker.logs(file)
    assert checker.names([*breaches, *checker.check([], found, [])]) == expected


@pytest.mark.parametrize(
    ("switch", "expected"),
    [("", ""), ("showing", "accepted-lost"), ("receipts", "duplicate-task")],
)
async def test_a_broken_server_is_found_out(tmp_path: Path, switch: str, expected: str) -> None:
    chance = seeded(switch or "nothing")
    load = Load(chance, sends=200, streams=5, chunks=20)
    async with Served(tmp_path, "poll=0.1", broken=switch) as served:
        await served.start()
        running = asyncio.create_task(load.run(served, 10))
        try:
            async with asyncio.timeout(10):
                await load.reached(100)
            await served.kill()
            if not switch:
                await served.start()
                assert await running
                assert await served.settled(10)
                await served.kill()
        finally:
            running.cancel()
            await asyncio.wait([running])
    found, breaches = checker.logs(served.file)
    done = checker.effects(served.effects)
    breaches += checker.check(load.all, found, done, ended=not switch)
    assert expected in checker.names(breaches) if switch else not breaches, breaches[:20]
