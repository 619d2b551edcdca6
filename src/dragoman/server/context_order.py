"""Turns of a context that run one at a time, in the order of their messages.

A turn looks at the others of its context after it was claimed. It releases its claim if an
earlier one has not ended; it waits if a later one runs that began before this message came.
If two turns see each other, the later one releases its claim, so they never run at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from dragoman.agent.agent import Agent
from dragoman.bells.bell import Bell
from dragoman.model.conversation import MessagePlace
from dragoman.stores.store import Head, Store, Unreadable

PAGE = 32
"""How many messages are read at once. If that many turns in a row have ended, all turns
before them have ended, too; at most a few, whose messages came at the same time, run in another
order."""
LOOKS, PAUSE = 50, 0.02
"""How often, and with which pauses in seconds, a turn looks again while a later one runs: that one
may be about to release its claim."""
FIRST_DELAY, LONGEST_DELAY = 2.0, 60.0
"""Seconds until a turn is tried again that must wait. Most are woken before, by the end of the one
that they wait for."""
_LAST = MessagePlace("", 0, "9999-12-31T23:59:59.999Z")


async def delay(store: Store, agent: Agent, head: Head, place: MessagePlace) -> float:
    """After how many seconds the turn of a message is to be tried again; 0 if it may run."""
    for look in range(LOOKS):
        if look:
            await asyncio.sleep(PAUSE)
        earlier, later = await _others(store, agent, head, place)
        if earlier:
            return min(FIRST_DELAY * earlier, LONGEST_DELAY)
        if not later:
            return 0.0
    return FIRST_DELAY


async def _others(store: Store, agent: Agent, head: Head, mine: MessagePlace) -> tuple[int, bool]:
    """How many earlier turns of the context have not ended, and whether a later one runs."""
    earlier, running, reached = 0, False, False
    async for place, other, ended in _turns(store, agent, head):
        if place == mine:
            reached = True
        elif other.id == head.id:
            continue  # a task has one turn at a time
        elif not reached:
            running = running or bool(other.holder)
        elif not ended:
            earlier += 1
    return earlier, running


async def wake_next(store: Store, bell: Bell, agent: Agent, head: Head) -> None:
    """A turn has ended: have the next one of its context run."""
    first: MessagePlace | None = None
    async for place, _, ended in _turns(store, agent, head):
        if not ended:
            first = place
    if first is not None:
        for woken in await store.wake_now([first.task]):
            bell.ring(f"work:{woken}")


async def _turns(
    store: Store, agent: Agent, head: Head
) -> AsyncIterator[tuple[MessagePlace, Head, bool]]:
    """The messages of a context for handlers that run one at a time, the latest first; the heads of
    their tasks, and whether their turns have ended."""
    before, in_a_row = _LAST, 0
    while places := await store.messages(head.scope, head.context, before, PAGE):
        tasks = list(dict.fromkeys(place.task for place in places))
        found = await asyncio.gather(*(_head(store, head, task) for task in tasks))
        heads = dict(zip(tasks, found, strict=True))
        for place in places:
            other = heads[place.task]
            if other is None or not agent.handler_of(other.skill).one_at_a_time:
                continue
            ended = _ended(other, place.number)
            in_a_row = in_a_row + 1 if ended else 0
            yield place, other, ended
            if in_a_row >= PAGE:
                return
        if len(places) < PAGE:
            return
        before = places[-1]


async def _head(store: Store, head: Head, task: str) -> Head | None:
    try:
        return await store.head(head.scope, task)
    except Unreadable:  # which has been logged; nobody can run it
        return None


def _ended(head: Head, number: int) -> bool:
    """Whether the turn of a message has ended, or asks its client."""
    if head.over:
        return True
    if head.holder and head.turn == number:
        return False
    if head.began and number >= head.began:  # its handler is suspended
        return head.settled >= number
    return head.settled >= number or head.turn > number
