"""Periodic maintenance on every replica: wake readers, reclaim expired leases, delete old tasks.

It wakes readers whose bell stayed silent, ends or hands on the turns of workers that died, and
has old tasks forgotten.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping

from dragoman.agent.agent import Agent
from dragoman.bells.bell import Bell
from dragoman.model.errors import Unavailable
from dragoman.model.types import TaskState, TaskStatusUpdateEvent
from dragoman.server.settings import Settings
from dragoman.stores.store import GIVEN_UP, Head, Store
from dragoman.telemetry.logs import logger

REAP = 1000
"""The most claims that are taken at one look."""
LATE = 0.5
"""How many seconds later than at its time a look may be answered, at least, and still be in time;
a look may always be late by one interval."""
LOOKS_IN_TIME = 2
"""In how many looks in a row, all of them in time, an expired claim is seen before it is taken."""
LOOKS = 5
"""In how many looks it is seen before it is taken even if none of them was in time."""


class Maintenance:
    """Runs beside the service until cancelled."""

    def __init__(
        self, agents: Mapping[str, Agent], store: Store, bell: Bell, settings: Settings
    ) -> None:
        self.agents = agents
        self.store = store
        self.bell = bell
        self.settings = settings
        self._answered = -math.inf
        """When the store answered the last look; long ago if it failed since."""
        self._seen: dict[tuple[str, int, float], tuple[int, int]] = {}
        """The claims that the last look found expired: in how many looks in time, and in how many
        at all."""

    async def run(self) -> None:
        """Look after things for ever; a failing store is looked after again later."""
        while True:  # at once: a killed server may have left something behind
            try:
                await self.wake()
                await self.reap()
                while await self.store.prune():
                    pass
            except Unavailable as error:
                self._answered = -math.inf
                logger.error("maintenance of the store failed; retrying: %s", error)
            except Exception:
                logger.exception("maintenance of the store failed; retrying")
            await asyncio.sleep(self.settings.poll)

    async def wake(self) -> None:
        """Wake the readers of logs that moved on, and those whose time is up."""
        self.bell.listeners.sweep(time.monotonic())
        places = self.bell.listeners.places()
        if places:
            for task in await self.store.moved(places):
                self.bell.listeners.wake(task)

    async def reap(self) -> None:
        """Look for expired claims, and take those from their workers that could have been renewed.

        While this process or the store stood still, nobody could renew. So a look that is
        answered late takes nothing: live workers get the time until the next ones. A store that
        is always late still has dead workers' claims taken, after more looks.
        """
        found = await self.store.expired(self.agents, REAP)
        now, poll = time.monotonic(), self.settings.poll
        in_time = now - self._answered <= poll + max(poll, LATE)
        self._answered = now
        seen, taken = self._seen, []
        self._seen = {}
        for head in found:
            # one that is to be canceled has a grace, which a live worker's renewals do not prolong
            key = (head.id, head.epoch, 0.0 if head.canceling else head.lease)
            timely, looks = seen.get(key, (0, 0))
            timely, looks = timely + 1 if in_time else 0, looks + 1
            if timely >= LOOKS_IN_TIME or looks >= LOOKS or head.lease == GIVEN_UP:
                taken.append(head)
            self._seen[key] = timely, looks
        # (with their exceptions: one that is raised at once can make a cancel be forgotten)
        for error in await asyncio.gather(*map(self._take, taken), return_exceptions=True):
            if isinstance(error, BaseException):
                raise error

    async def _take(self, head: Head) -> None:
        if await self.store.revoke(head, self._verdict(head), expired=True) is None:
            return
        event = self._verdict(head)
        how = "it will run again" if event is None else f"it is {event.status.state.name.lower()}"
        logger.warning(
            "a worker stopped in the middle of a turn (attempt %d); %s",
            head.attempt,
            how,
            extra={"task": head.id},
        )
        self.bell.ring(head.id)
        self.bell.ring(head.holder)
        self.bell.ring(f"work:{head.scope.agent}")

    def _verdict(self, head: Head) -> TaskStatusUpdateEvent | None:
        """How an orphaned task ends; None if it may be run again."""
        if head.canceling:
            return head.ending(TaskState.CANCELED)
        retries = self.agents[head.scope.agent].retries
        if head.attempt <= retries:
            return None
        times = "" if head.attempt == 1 else f" (attempt {head.attempt})"
        return head.ending(TaskState.FAILED, f"The worker stopped before the agent finished{times}")
