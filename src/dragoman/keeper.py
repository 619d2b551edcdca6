"""The keeper: what every serving replica does for the whole, at a stated interval.

It wakes readers whose bell stayed silent, ends or hands on the turns of workers that died, and
has old tasks forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from dragoman.agent import Agent
from dragoman.bell import Bell
from dragoman.errors import Unavailable
from dragoman.settings import Settings
from dragoman.store import Head, Store
from dragoman.telemetry import logger
from dragoman.types import TaskState, TaskStatusUpdateEvent

REAP = 32


class Keeper:
    """Runs beside the service until cancelled."""

    def __init__(
        self, agents: Mapping[str, Agent], store: Store, bell: Bell, settings: Settings
    ) -> None:
        self.agents = agents
        self.store = store
        self.bell = bell
        self.settings = settings
        self._patience = 0.0
        """Until then nobody's claim is taken."""

    async def run(self) -> None:
        """Look after things for ever; a failing store is looked after again later."""
        while True:  # at once: a killed server may have left something behind
            try:
                await self.wake()
                await self.reap()
                while await self.store.prune():
                    pass
            except Unavailable as error:
                # its workers could not renew their claims, either: they are to have the chance
                self._patience = time.monotonic() + 2 * self.settings.poll
                logger.error("the store could not be looked after; trying again: %s", error)
            except Exception:
                logger.exception("the store could not be looked after; trying again")
            await asyncio.sleep(self.settings.poll)

    async def wake(self) -> None:
        """Wake the readers of logs that moved on, and those whose time is up."""
        self.bell.ears.sweep(time.monotonic())
        places = self.bell.ears.places()
        if places:
            for task in await self.store.moved(places):
                self.bell.ears.wake(task)

    async def reap(self) -> None:
        """Take expired claims from their workers."""
        if time.monotonic() < self._patience:
            return
        while found := await self.store.expired(self.agents, REAP):
            # (with their exceptions: one that is raised at once can make a cancel be forgotten)
            taken = await asyncio.gather(*map(self._take, found), return_exceptions=True)
            for error in taken:
                if isinstance(error, BaseException):
                    raise error
            if not any(taken):
                return

    async def _take(self, head: Head) -> bool:
        if await self.store.revoke(head, self._verdict(head), expired=True) is None:
            return False
        event = self._verdict(head)
        how = "it is run again" if event is None else f"it is {event.status.state.name.lower()}"
        logger.warning(
            "a turn was cut off, since its worker stopped (attempt %d); %s",
            head.attempt,
            how,
            extra={"task": head.id},
        )
        self.bell.ring(head.id)
        self.bell.ring(head.holder)
        self.bell.ring(f"work:{head.scope.agent}")
        return True

    def _verdict(self, head: Head) -> TaskStatusUpdateEvent | None:
        """How an orphaned task ends; None if it may be run again."""
        if head.canceling:
            return head.ending(TaskState.CANCELED)
        retries = self.agents[head.scope.agent].retries
        if head.attempt <= retries:
            return None
        times = "" if head.attempt == 1 else f" (attempt {head.attempt})"
        return head.ending(
            TaskState.FAILED, f"The worker stopped before the agent had finished{times}"
        )
