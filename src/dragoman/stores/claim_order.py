"""Ranks: the order in which ready logs are claimed, so that owners take turns.

An owner's waiting logs stand one level apart, beginning at the level of whoever is next: with any
number of one owner's waiting, another's first is next. Nothing counts them: a rank is made of the
lowest one that waits and of the owner's highest, both of which an index finds. A rank that is not
quite right, as when two replicas give one at the same time, costs a little fairness and nothing
else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from dragoman.model.caller import Scope
from dragoman.stores.store import NOBODY, Owner, owner_of
from dragoman.stores.task_head import TaskHead

R = TypeVar("R", bound=TaskHead)

AHEAD = 64
"""So many owners may, once each, go before those of the same level who have had a turn: more would
keep these waiting for as long as there are others."""
HIGHEST = 2**53
"""A rank beyond this was not given: it is damage, and no other is made of it."""
RANKED = f"ready IS NOT NULL AND ready BETWEEN 0 AND {HIGHEST}"
"""What is true in a database of a task that has a rank."""
WINDOW = 512
"""About so many rows are looked at to find those of owners who are not passed over."""


class Ranks:
    """Gives ranks, two to a level: the even one is for owners of whom nothing else waits."""

    def __init__(self) -> None:
        self._ahead: dict[str, tuple[int, set[Owner]]] = {}

    def give(self, scope: Scope, lowest: float | None, highest: float | None, base: int = 0) -> int:
        """The rank of a log that has become ready: after the lowest that waits for this agent, and
        the highest of the same owner; `base` if nothing waits."""
        if lowest is None:
            return base - base % 2
        level = int(lowest) // 2
        if highest is not None:
            return 2 * max(level, int(highest) // 2 + 1) + 1
        known, owners = self._ahead.get(scope.agent, (-1, set()))
        if known != level:
            owners = set()
            self._ahead[scope.agent] = (level, owners)
        if len(owners) >= AHEAD or owner_of(scope) in owners:
            return 2 * level + 1
        owners.add(owner_of(scope))
        return 2 * level


class QueueRanks:
    """What is known of an agent's queue for a moment: its lowest rank, and owners' highest."""

    __slots__ = ("highest", "lowest")

    def __init__(self, lowest: float | None = None) -> None:
        self.lowest = lowest
        self.highest: dict[Scope, float | None] = {}

    def add(self, ranks: Ranks, scope: Scope, base: int = 0) -> int:
        """The rank of one more; it is known from now on."""
        rank = ranks.give(scope, self.lowest, self.highest.get(scope), base)
        self.highest[scope] = rank
        self.lowest = rank if self.lowest is None else min(self.lowest, rank)
        return rank


def owners(limit: int) -> int:
    """How many owners are looked at together, of each of whom so many are wanted."""
    return max(8, min(64, WINDOW // limit))


def fair(rows: Sequence[R], passing: Collection[Owner] = NOBODY) -> list[R]:
    """These rows, one of every owner's before the second of any; those passed over at the end."""
    seen: dict[Scope, int] = {}
    order = []
    for place, row in enumerate(rows):
        seen[row.scope] = turn = seen.get(row.scope, -1) + 1
        order.append((owner_of(row.scope) in passing, turn, place))
    return [rows[place] for _, _, place in sorted(order)]
