"""Turns among the owners whose webhooks are due.

A lane is what an owner has waiting at one agent. Lanes are walked in the order of an index, a
bounded stretch at a time, and each walk goes on where the last one ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TypeAlias

WALK = 1000
"""The most lanes of an agent that are looked at in one walk."""
START = -(1 << 63)

Lane: TypeAlias = tuple[str, int]
"""An agent and one of its owners."""
Walk: TypeAlias = Callable[[int, int], Awaitable[Sequence[tuple[int, bool]]]]
"""The lanes after a place, so many at most, and whether something is due in each."""


class DeliveryOrder:
    """Where the last walk ended, for each agent."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    async def due(
        self, agent: str, walk: Walk, limit: int, skipped: Container[int]
    ) -> Sequence[Lane]:
        """The next lanes in which something is due, but for those that are skipped."""
        start = self._places.get(agent, START)
        seen = [*await walk(start, WALK)]
        if len(seen) < WALK and start > START:  # round to where it began
            seen += [each for each in await walk(START, WALK - len(seen)) if each[0] <= start]
        found: list[Lane] = []
        for lane, due in seen:
            if len(found) == limit:
                break
            self._places[agent] = lane
            if due and lane not in skipped:
                found.append((agent, lane))
        return found
