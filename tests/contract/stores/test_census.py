"""The counts that a store reports."""

from __future__ import annotations

import time

from dragoman.model import clock
from dragoman.model.caller import Scope
from dragoman.model.types import TaskState
from dragoman.stores.store import Census, Store
from tests.harness.stores import (
    SCOPE,
    accept,
    cancel,
    claim,
    ended,
    followed,
    one,
    park,
    reply,
    say,
    waiting,
    write,
)

ELSEWHERE = Scope("agent", "another", "somebody else")


async def census(store: Store) -> Census:
    """That of the one agent."""
    found = await store.census(["agent"])
    assert list(found) == ["agent"]
    return found["agent"]


def tasks(found: Census) -> dict[TaskState, int]:
    """The states that some task is in."""
    return {state: number for state, number in found.tasks.items() if number}


async def test_of_nothing(store: Store) -> None:
    found = (await store.census(["agent", "other"]))["other"]
    assert (tasks(found), found.ready, found.oldest) == ({}, 0, 0.0)
    assert (found.behind, found.parked) == (0, 0)


async def test_it_is_over_all_owners_and_by_agent(store: Store) -> None:
    await ended(store, "a")
    await waiting(store, "b")
    await accept(store, "c", scope=ELSEWHERE)
    await accept(store, "d", scope=Scope("other"))
    found = await store.census(["agent", "other"])
    assert tasks(found["agent"]) == {
        TaskState.COMPLETED: 1,
        TaskState.INPUT_REQUIRED: 1,
        TaskState.SUBMITTED: 1,
    }
    assert tasks(found["other"]) == {TaskState.SUBMITTED: 1}
    assert (found["agent"].ready, found["other"].ready) == (1, 1)


async def test_what_is_not_born_waits_but_is_no_task(store: Store) -> None:
    await accept(store, born=False)
    assert (tasks(await census(store)), (await census(store)).ready) == ({}, 1)
    await write(store, await claim(store), reply("t"), release=True)
    assert (tasks(await census(store)), (await census(store)).ready) == ({}, 0)


async def test_the_queue_and_how_long_its_first_has_waited(store: Store) -> None:
    for name, ago in (("a", 300), ("b", 200), ("c", 100)):
        await accept(store, name, at=clock.stamp(time.time() - ago))
    found = await census(store)
    assert found.ready == 3
    assert 299 < found.oldest < 310
    held = await claim(store)
    found = await census(store)
    assert found.ready == 2
    assert 199 < found.oldest < 210
    # a second message of a task in work waits for the first, not for a worker
    await accept(store, "a", "m2", new=False, at=clock.stamp(time.time() - 150))
    assert (await census(store)).ready == 2
    await say(store, held, TaskState.WORKING, release=True)
    found = await census(store)
    assert found.ready == 3
    assert 199 < found.oldest < 210, "it is behind those that were there before"
    await claim(store)
    await claim(store)
    assert 149 < (await census(store)).oldest < 160, "of its unread message, not its first"


async def test_one_that_was_canceled_waits_no_more(store: Store) -> None:
    await accept(store)
    await cancel(store)
    found = await census(store)
    assert (tasks(found), found.ready, found.oldest) == ({TaskState.CANCELED: 1}, 0, 0.0)


async def test_lines(store: Store) -> None:
    await followed(store, "a")
    await followed(store, "b", scope=ELSEWHERE)
    await followed(store, "c", scope=Scope("other"))
    await followed(store, "d", scope=SCOPE)
    taken = await store.dispatch(["agent"], 9, 60.0)
    assert [(await census(store)).behind, len(taken)] == [3, 3], "what is taken is behind as well"
    assert await store.dispatched(taken[0], 2)
    await park(store, taken[1])
    found = await census(store)
    assert (found.behind, found.parked) == (1, 1)
    await store.redrive()
    assert (await census(store)).parked == 0
    assert (await one(store)).parked is False
