"""Periodic maintenance on every replica: wake readers, reclaim expired leases, delete old tasks.

It wakes readers whose bell stayed silent, fails or requeues the turns of dead workers, and deletes
old tasks.
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
from dragoman.server.delegated_tasks import log_remaining
from dragoman.server.failed_turns import failed
from dragoman.server.settings import Settings
from dragoman.stores.store import GIVEN_UP, Head, Store
from dragoman.telemetry.logs import logger

REAP = 1000
"""The most claims to reclaim in one check."""
WAKE = 1000
"""The most suspended handlers that are woken at one look."""
ATTEMPTS = 5
"""How often a durable handler runs without finishing another step before its task fails."""
LONGEST_DELAY = 60.0
LOST = "the worker stopped in the middle of the turn: its lease expired"
LATE = 0.5
"""A check is in time if the store answers within this many seconds, or within one interval if that
is longer."""
LOOKS_IN_TIME = 2
"""An expired claim is reclaimed after this many consecutive checks in time have seen it."""
LOOKS = 5
"""It is reclaimed after this many checks even if none was in time."""


class Maintenance:
    """Runs beside the service until canceled."""

    def __init__(
        self, agents: Mapping[str, Agent], store: Store, bell: Bell, settings: Settings
    ) -> None:
        self.agents = agents
        self.store = store
        self.bell = bell
        self.settings = settings
        self._last_answer = -math.inf
        """When the store answered the last check; long ago if it has failed since."""
        self._seen: dict[tuple[str, int, float], tuple[int, int]] = {}
        """The claims that the last check found expired: in how many checks in time, and in how many
        checks at all."""

    async def run(self) -> None:
        """Run maintenance forever. If the store fails, try again later."""
        while True:  # at once: a killed server may have left claims
            try:
                await self.wake()
                await self.wake_tasks()
                await self.reap()
                while await self.store.prune():
                    pass
            except Unavailable as error:
                self._last_answer = -math.inf
                logger.error("maintenance of the store failed; retrying: %s", error)
            except Exception:
                logger.exception("maintenance of the store failed; retrying")
            await asyncio.sleep(self.settings.poll)

    def _durable(self, head: Head) -> bool:
        return bool(head.began) or self.agents[head.scope.agent].handler_of(head.skill).durable

    def _delay(self, head: Head) -> float:
        """How many seconds to wait before a durable handler runs again."""
        return min(2.0 ** (head.attempt - 2), LONGEST_DELAY) if self._durable(head) else 0.0

    async def wake_tasks(self) -> None:
        """Wake the handlers whose time has come; if there are very many, in several reads."""
        until = time.monotonic() + self.settings.poll / 2  # the rest of maintenance waits
        while woken := await self.store.wake(self.agents, WAKE):
            for agent in woken:
                self.bell.ring(f"work:{agent}")
            if sum(woken.values()) < WAKE or time.monotonic() > until:
                return

    async def wake(self) -> None:
        """Wake the readers of logs with new entries, and the listeners whose timeout is over."""
        self.bell.listeners.sweep(time.monotonic())
        places = self.bell.listeners.places()
        if places:
            for task in await self.store.moved(places):
                self.bell.listeners.wake(task)

    async def reap(self) -> None:
        """Check for expired claims, and reclaim those that their workers could have renewed.

        While this process or the store stood still, no worker could renew. So a check that is
        answered late reclaims nothing: live workers get time until the next checks. If the store is
        always late, the claims of dead workers are still reclaimed, after more checks.
        """
        found = await self.store.expired(self.agents, REAP)
        now, poll = time.monotonic(), self.settings.poll
        in_time = now - self._last_answer <= poll + max(poll, LATE)
        self._last_answer = now
        seen, taken = self._seen, []
        self._seen = {}
        for head in found:
            # The grace of a canceled task ends at a fixed time, which renewals do not prolong.
            key = (head.id, head.epoch, 0.0 if head.canceling else head.lease)
            timely, looks = seen.get(key, (0, 0))
            timely, looks = timely + 1 if in_time else 0, looks + 1
            if timely >= LOOKS_IN_TIME or looks >= LOOKS or head.lease == GIVEN_UP:
                taken.append(head)
            self._seen[key] = timely, looks
        # Collect the exceptions: one that is raised at once could cause a cancel to be lost.
        for error in await asyncio.gather(*map(self._take, taken), return_exceptions=True):
            if isinstance(error, BaseException):
                raise error

    async def _take(self, head: Head) -> None:
        event = self._final_status(head)
        delay = self._delay(head) if event is None else 0.0
        note = failed(head, "lost", LOST) if head.holder else None
        if await self.store.revoke(head, event, expired=True, delay=delay, note=note) is None:
            return
        if event is not None and head.canceling:
            await log_remaining(self.store, head)
        if event is not None and not head.holder:
            how = "canceled" if head.canceling else "failed: its time is up"
            logger.info("a task without a worker has %s", how, extra={"task": head.id})
            self.bell.ring(head.id)
            return
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

    def _final_status(self, head: Head) -> TaskStatusUpdateEvent | None:
        """The final status of an orphaned task; None if it may run again."""
        if head.canceling:
            return head.ending(TaskState.CANCELED)
        if not head.holder:
            return head.ending(TaskState.FAILED, "The agent did not finish in the time it has")
        if self._durable(head):
            if head.attempt < ATTEMPTS:
                return None
            words = f"The agent stopped {ATTEMPTS} times without finishing another step"
            return head.ending(TaskState.FAILED, words)
        retries = self.agents[head.scope.agent].retries
        if head.attempt <= retries:
            return None
        times = "" if head.attempt == 1 else f" (attempt {head.attempt})"
        return head.ending(TaskState.FAILED, f"The worker stopped before the agent finished{times}")
