"""A task whose handler streams is working, from the first piece on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.model.events import Entry, Event, Reply
from dragoman.model.types import TaskStatusUpdateEvent
from dragoman.stores.memory import MemoryStore
from dragoman.stores.store import Claim
from dragoman.testing import run_handler
from tests.harness.workers import WorkerHarness


class Noting(MemoryStore):
    """Notes what is appended together."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[list[str]] = []

    def append(
        self, claim: Claim, entries: Sequence[Entry], *, release: bool = False
    ) -> asyncio.Future[bool]:
        """Note it."""
        self.appends.append(named(entry.event for entry in entries))  # type: ignore[misc]
        return super().append(claim, entries, release=release)


def named(events: Any) -> list[str]:
    """A word for each event."""
    return [word(event) for event in events]


def word(event: Event) -> str:
    """What it is."""
    if isinstance(event, TaskStatusUpdateEvent):
        return event.status.state.name.lower()
    return "reply" if isinstance(event, Reply) else "artifact"


async def streams(turn: Turn) -> AsyncIterator[Any]:
    """An async generator."""
    yield turn.write("a")
    await asyncio.sleep(0)
    yield "b"


def streams_in_a_thread(turn: Turn) -> Iterator[Any]:
    """A generator."""
    yield turn.write("a")
    yield turn.write("b")


async def emits(turn: Turn) -> None:
    """A coroutine."""
    await turn.emit("a")
    await turn.emit(turn.write("b"))


@pytest.mark.parametrize("handler", [streams, streams_in_a_thread, emits])
async def test_working_is_written_before_the_first_piece_and_with_it(handler: Any) -> None:
    store = Noting()
    harness = WorkerHarness(handler, store=store)
    task = (await harness.send()).head.id
    await harness.run()
    assert store.appends[0][:2] == ["working", "artifact"]
    found = [name for append in store.appends for name in append]
    assert found == ["working", "artifact", "artifact", "completed"]
    times = [
        entry.event.status.timestamp or ""
        for entry in await harness.log(task)
        if isinstance(entry.event, TaskStatusUpdateEvent)
    ]
    assert times == sorted(times)
    assert all(len(time) == 24 for time in times)


async def returns(turn: Turn) -> str:
    """Only returns."""
    return "done"


def returns_from_a_thread(turn: Turn) -> list[int]:
    """Only returns."""
    return [1]


async def says_so(turn: Turn) -> AsyncIterator[Any]:
    """Says itself that it works."""
    yield turn.working("on it")
    yield "done"


async def asks(turn: Turn) -> AsyncIterator[Any]:
    """A question is not content."""
    yield turn.ask("Which?")
    yield turn.write("a hint")


async def waits(turn: Turn) -> AsyncIterator[Any]:
    """Says itself what it waits for, and goes on."""
    yield turn.require_auth("Log in")
    yield "a"
    yield "b"


async def replies(turn: Turn) -> AsyncIterator[Any]:
    """A reply is not content."""
    yield turn.reply("hi")


@pytest.mark.parametrize(
    ("handler", "events"),
    [
        (returns, ["artifact", "completed"]),
        (returns_from_a_thread, ["artifact", "completed"]),
        (says_so, ["working", "artifact", "completed"]),
        (asks, ["input_required", "artifact"]),
        (waits, ["auth_required", "artifact", "artifact", "completed"]),
        (replies, ["completed"]),
    ],
)
async def test_nothing_is_written_that_need_not_be(handler: Any, events: list[str]) -> None:
    agent = Agent("Test", description="For tests.")
    agent.handler(handler)
    assert named((await run_handler(agent)).events) == events


async def test_the_turn_that_a_question_was_answered_with_works_too() -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        if turn.text:
            yield "a"
            yield "b"
        else:
            yield turn.ask("Which?")

    agent = Agent("Test", description="For tests.")
    agent.handler(handler)
    told = await run_handler(agent, "", "this")
    events = ["input_required", "working", "artifact", "artifact", "completed"]
    assert named(told.events) == events


@pytest.mark.parametrize("reply", [False, True])
async def test_one_that_may_reply_is_born_working(reply: bool) -> None:
    agent = Agent("Test", description="For tests.")
    agent.skill(reply=reply)(streams)
    told = await run_handler(agent)
    assert named(told.events) == ["working", "artifact", "artifact", "completed"]


async def test_it_counts_for_no_limit(constants: Callable[..., None]) -> None:
    constants(max_events=2)
    agent = Agent("Test", description="For tests.")
    agent.handler(streams)
    assert named((await run_handler(agent)).events)[-1] == "completed"
