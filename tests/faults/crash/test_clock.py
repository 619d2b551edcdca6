"""Clocks that jump: leases count by another clock, and nothing else depends on one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Turn
from dragoman.model import clock
from dragoman.model.caller import Call, Caller, Scope
from dragoman.model.events import Received
from dragoman.model.types import (
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Draft, Webhook
from dragoman.testing import message
from tests.faults.crash import checker
from tests.faults.crash.agent import make
from tests.faults.crash.checker import Ack, Send
from tests.faults.crash.in_process import _request

CALL = Call(Caller())
JUMPS = [600.0, -600.0]


class Clock:
    """The wall's clock, which somebody sets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.off = 0.0
        real, nanoseconds = time.time, time.time_ns
        patch.setattr(time, "time", lambda: real() + self.off)
        patch.setattr(time, "time_ns", lambda: nanoseconds() + int(self.off * 1e9))


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock to be set."""
    return Clock(monkeypatch)


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_jump_ends_no_turn_and_begins_none(
    tmp_path: Path, wall: Clock, jump: float
) -> None:
    file, effects = tmp_path / "tasks.db", tmp_path / "effects"
    sends = [Send(f"s{n}", 30, 0.02) for n in range(8)]
    app = App(make(effects), store=SqliteStore(file), lease=0.3, poll=0.05)
    async with app:
        service = next(iter(app.endpoints.values())).service

        async def ask(send: Send) -> None:
            answer = (await service.send(_request(send), Call(Caller(), send.key))).task
            assert answer is not None
            send.acks.append(Ack(answer.id, answer.status.state.value))

        early = [asyncio.create_task(ask(send)) for send in sends[:4]]
        while len(checker.effects(effects)) < 4:
            await asyncio.sleep(0.01)
        for times in range(1, 15):  # longer than any lease, while the turns are at work
            wall.off = times * jump
            await asyncio.sleep(0.02)
        async with asyncio.timeout(20):
            await asyncio.gather(*early, *map(ask, sends[4:]))
        # the listing goes by the times that were written: each task is there, and once
        pages, token = [], ""
        while True:
            page = await service.list(ListTasksRequest(page_size=3, page_token=token), CALL)
            pages += page.tasks
            token = page.next_page_token
            if not token:
                break
        assert sorted(task.id for task in pages) == sorted(send.acks[0].task for send in sends)
        stamps = [task.status.timestamp for task in pages]
        assert stamps == sorted(stamps, reverse=True)
        assert page.total_size == len(sends)
    found, breaches = checker.logs(file)
    done = checker.effects(effects)
    assert not [*breaches, *checker.check(sends, found, done)]
    assert [effect.attempt for effect in done] == [1] * len(sends)


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_jump_shifts_a_delivery_at_most(tmp_path: Path, wall: Clock, jump: float) -> None:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    scope = Scope("agent")
    said = Message(
        message_id="m", task_id="t", context_id="c", role=Role.USER, parts=(Part(text=""),)
    )
    hook = Webhook(TaskPushNotificationConfig(task_id="t", id="w", url="http://127.0.0.1/"))
    received = Received(message=said, caller=Caller(), at=clock.now())
    await store.accept(scope, Draft(task="t", received=received, new=True, webhook=hook))
    await store.accept(scope, Draft(task="t", received=received, new=False))  # something to deliver
    (line,) = await store.dispatch(["agent"], 9, 30)
    wall.off = jump
    assert await store.dispatched(line, line.cursor, wait=5, failed="no answer")
    assert await store.dispatch(["agent"], 9, 30) == ()  # not before its time
    wall.off = jump + 6
    (line,) = await store.dispatch(["agent"], 9, 30)
    wall.off = 0  # set right again, with the lease of a taker who died
    wall.off = jump + 6 + 600
    (again,) = await store.dispatch(["agent"], 9, 30)
    assert again.cursor == line.cursor and again.ticket > line.ticket
    assert not await store.dispatched(line, 2)  # the one before comes too late
    assert await store.dispatched(again, 2)
    assert await store.dispatch(["agent"], 9, 30) == ()
    await store.close()


async def test_a_turn_whose_claim_ran_out_is_stopped_when_its_own_worker_takes_it_again(
    tmp_path: Path,
) -> None:
    """As after a process was suspended: the maintenance reaps, and the worker beside it claims."""
    agent = Agent("Sleeper", description="Sleeps too long.", retries=1)
    begun, stopped, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @agent.handler
    async def sleep(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working()
        if turn.attempt > 1:
            return
        begun.set()
        try:
            await never.wait()
        finally:
            stopped.set()

    async with App(
        agent, store=SqliteStore(tmp_path / "tasks.db"), poll=0.05, drain_timeout=0.2
    ) as app:
        service = app.endpoints[agent.key].service
        request = SendMessageRequest(
            message=message("x"), configuration=SendMessageConfiguration(return_immediately=True)
        )
        task = (await service.send(request, CALL)).task
        assert task is not None
        await begun.wait()
        head = await app.store.head(Scope(agent.key), task.id)
        assert head is not None
        await app.store.revoke(head, None)  # as `Keeper.reap`, whose ring for the holder is lost
        app.bell.ring(f"work:{agent.key}")
        await service.reader.until(lambda head: head.state.terminal, Scope(agent.key), task.id, 5)
        try:
            async with asyncio.timeout(1):
                await stopped.wait()
        finally:
            runs = [
                run
                for run in asyncio.all_tasks()
                if getattr(run.get_coro(), "__qualname__", "") == "Run.perform"
            ]
            for run in runs:
                run.cancel()
            if runs:
                await asyncio.wait(runs, timeout=5)
