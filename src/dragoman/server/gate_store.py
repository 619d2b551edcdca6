"""The store, as the gate of a skill sees it, and the regular calls of gates that maintain something
there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from dragoman.agent.agent import Agent
from dragoman.agent.gate import MaintainedGate
from dragoman.model.types import TaskState
from dragoman.server.settings import Settings
from dragoman.stores.reservations import PAGE, Reservation, check_reservation, check_space
from dragoman.telemetry.logs import audit, logger

if TYPE_CHECKING:
    from dragoman.stores.store import Store

EVERY = 60.0
"""How many seconds pass between two calls of `maintain`."""

Count = Callable[[str, str], None]
"""Counts an event of a gate: it gets the agent and the event."""


class StoreOfGate:
    """See `dragoman.GateStore`."""

    def __init__(
        self, store: Store, agent: str, skill: str, count: Count | None, *, audits: bool
    ) -> None:
        self.agent, self.skill = agent, skill
        self._store, self._count, self._audits = store, count, audits

    async def reserve(self, space: str, key: str, value: bytes, *, keep: float | None) -> bytes:
        """See `GateStore.reserve`."""
        check_reservation(space, key, value, keep)
        check_space(space)
        return await self._store.reserve(space, key, value, keep)

    async def release(self, space: str, key: str) -> bool:
        """See `GateStore.release`."""
        check_space(space)
        return await self._store.release(space, key)

    async def reservations(self, space: str, prefix: str = "") -> AsyncIterator[Reservation]:
        """See `GateStore.reservations`."""
        check_space(space)
        after = ""
        while found := await self._store.reservations(space, prefix, after, PAGE):
            for one in found:
                yield one
            if len(found) < PAGE:
                return
            after = found[-1].key

    async def task_state(self, task: str) -> TaskState | None:
        """See `GateStore.task_state`."""
        head = await self._store.find(self.agent, task)
        return None if head is None else head.state

    def report(self, event: str, result: str = "ok", **about: str) -> None:
        """See `GateStore.report`."""
        if self._count is not None:
            self._count(self.agent, event)
        if self._audits:
            self._audit(event, result, **about)

    def _audit(self, event: str, result: str, **about: str) -> None:
        audit(event, result=result, agent=self.agent, **about)


def maintained(agents: Mapping[str, Agent]) -> list[tuple[str, str, MaintainedGate]]:
    """The gates that maintain something: each with the key of its agent, and its skill."""
    found = []
    for key, agent in agents.items():
        gates: dict[str, object] = {
            skill: each.handler.gate for skill, each in agent.skills.items()
        }
        if agent.default is not None:
            gates[""] = agent.default.gate
        for skill, gate in gates.items():
            if isinstance(gate, MaintainedGate):
                found.append((key, skill, gate))
    return found


async def maintain(
    gates: list[tuple[str, str, MaintainedGate]],
    store: Store,
    settings: Settings,
    count: Count | None,
) -> None:
    """Call the gates again and again, until canceled."""
    while True:  # at once: what a process before this one has left waits already
        await asyncio.gather(
            *(
                _maintain(gate, StoreOfGate(store, agent, skill, count, audits=settings.audit))
                for agent, skill, gate in gates
            )
        )
        await asyncio.sleep(EVERY)


async def _maintain(gate: Any, store: StoreOfGate) -> None:
    try:
        await gate.maintain(store)
    except Exception:
        words = "the gate of the skill %r of agent %r failed in maintenance; it is called again"
        logger.exception(words, store.skill, store.agent)
