"""Ranks: the order in which ready logs are claimed, so that owners take turns.

The waiting logs of one owner are one level apart, beginning at the level of the next log to be
claimed. So the first log of another owner comes soon, however many logs one owner has waiting.
Nothing counts the logs: a rank follows from the lowest waiting rank and the highest rank of the
owner, and an index finds both. If a rank is slightly wrong, for example because two replicas gave
one at the same time, this costs a little fairness and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from dragoman.model.caller import Scope
from dragoman.stores.store import NOBODY, Owner, owner_of
from dragoman.stores.task_head import TaskHead

R = TypeVar("R", bound=TaskHead)

AHEAD = 64
"""This many owners may each go once before owners on the same level who have had a turn. With more
of them, the others would wait for as long as new owners come."""
HIGHEST = 2**53
"""A higher rank was not given by this program: the row is damaged, and no other rank is derived
from it."""
RANKED = f"ready IS NOT NULL AND ready BETWEEN 0 AND {HIGHEST}"
"""The condition for a task with a rank, in a database."""
WINDOW = 512
"""How many rows are read to find those of owners who are not skipped (approximate)."""


class Ranks:
    """Gives ranks. A level has two: the even one is for owners with no other waiting log."""

    def __init__(self) -> None:
        self._ahead: dict[str, tuple[int, set[Owner]]] = {}

    def give(self, scope: Scope, lowest: float | None, highest: float | None, base: int = 0) -> int:
        """Return the rank of a log that has become ready: after the lowest that waits for this
        agent, and after the highest of the same owner; `base` if nothing waits."""
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
    """The known ranks of an agent's queue: the lowest one, and the highest one of each owner."""

    __slots__ = ("highest", "lowest")

    def __init__(self, lowest: float | None = None) -> None:
        self.lowest = lowest
        self.highest: dict[Scope, float | None] = {}

    def add(self, ranks: Ranks, scope: Scope, base: int = 0) -> int:
        """Give the rank of one more log, and remember it."""
        rank = ranks.give(scope, self.lowest, self.highest.get(scope), base)
        self.highest[scope] = rank
        self.lowest = rank if self.lowest is None else min(self.lowest, rank)
        return rank


def owners(limit: int) -> int:
    """How many owners are read together, if this many logs of each are wanted."""
    return max(8, min(64, WINDOW // limit))


def fair(rows: Sequence[R], passing: Collection[Owner] = NOBODY) -> list[R]:
    """Order rows: the first row of every owner comes before the second row of any. Rows of skipped
    owners come last."""
    seen: dict[Scope, int] = {}
    order = []
    for place, row in enumerate(rows):
        seen[row.scope] = turn = seen.get(row.scope, -1) + 1
        order.append((owner_of(row.scope) in passing, turn, place))
    return [rows[place] for _, _, place in sorted(order)]
