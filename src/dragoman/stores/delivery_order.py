"""The order in which owners take turns with their webhooks that are due.

A lane is what waits for one owner at one agent. Lanes are read in the order of an index, a limited
number at a time, and each walk continues where the last one ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TypeAlias

WALK = 1000
"""The maximum number of lanes of an agent that one walk reads."""
START = -(1 << 63)

Lane: TypeAlias = tuple[str, int]
"""An agent and one of its owners."""
Walk: TypeAlias = Callable[[int, int], Awaitable[Sequence[tuple[int, bool]]]]
"""Returns the lanes after a position, at most this many, and whether something is due in each."""


class DeliveryOrder:
    """Where the last walk ended, for each agent."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    async def due(
        self, agent: str, walk: Walk, limit: int, skipped: Container[int]
    ) -> Sequence[Lane]:
        """Return the next lanes in which something is due, without those that are skipped."""
        start = self._places.get(agent, START)
        seen = [*await walk(start, WALK)]
        if len(seen) < WALK and start > START:  # continue at the beginning
            seen += [each for each in await walk(START, WALK - len(seen)) if each[0] <= start]
        found: list[Lane] = []
        for lane, due in seen:
            if len(found) == limit:
                break
            self._places[agent] = lane
            if due and lane not in skipped:
                found.append((agent, lane))
        return found
