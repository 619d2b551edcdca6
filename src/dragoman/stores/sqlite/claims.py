"""How tasks in a SQLite file are claimed, and released after the death of their server."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from dragoman.model.events import Received
from dragoman.model.types import TaskState
from dragoman.stores.sql_store import UNREADABLE
from dragoman.stores.sqlite.driver import Connection
from dragoman.stores.sqlite.rows import SqliteHead
from dragoman.stores.sqlite.transaction import Transaction
from dragoman.stores.store import GIVEN_UP, Head, Owner, Unreadable


def release(db: Connection) -> None:
    """Release all claims. Nobody else uses the file, so the holder of each is dead."""
    db.execute(
        "UPDATE task SET lease = ?1, cancel_at = min(cancel_at, ?1) WHERE lease > 0",
        (GIVEN_UP,),
    )
    # The time of a cancel without a worker is by the clock of the process that accepted it.
    db.execute(
        "UPDATE task SET cancel_at = ? WHERE cancel_at > 0 AND holder = '' AND ended IS NULL",
        (GIVEN_UP,),
    )
    db.execute("UPDATE line SET due = 0, taken = 0 WHERE behind = 1 AND parked = 0 AND taken = 1")


def take(
    transaction: Transaction,
    agents: Sequence[str],
    worker: str,
    lease: float,
    limit: int,
    passing: Collection[Owner],
    spare: int,
) -> Sequence[tuple[Head, Received]]:
    """Claim ready tasks, as `Store.claim` says. Returns their heads and messages."""
    taken: list[tuple[Head, Received]] = []
    until, left = time.monotonic() + lease, limit
    if passing:
        queues = [transaction.others(agent, left, passing) for agent in agents]
        taken += _take(transaction, queues, worker, until, left)
        left = min(left - len(taken), spare)
    if left:
        queues = [transaction.ready(agent, left) for agent in agents]
        taken += _take(transaction, queues, worker, until, left)
        for agent, queue in zip(agents, queues, strict=True):
            if len(queue) < left and not any(row.ready for row in queue):
                transaction.taken(agent)
    return taken


def _take(
    transaction: Transaction,
    queues: Sequence[Sequence[SqliteHead]],
    worker: str,
    until: float,
    limit: int,
) -> list[tuple[Head, Received]]:
    """Claim rows: one of each agent in turn, so that a busy agent does not starve the others."""
    taken: list[tuple[Head, Received]] = []
    for place in range(max(map(len, queues), default=0)):
        for queue in queues:
            if place < len(queue) and len(taken) < limit:
                row = queue[place]
                try:
                    received = transaction.received(row, row.next_turn)
                except Unreadable as error:  # it must not delay the others
                    transaction.damage.found(error, "the task has failed")
                    row.revoke(row.epoch, row.head().ending(TaskState.FAILED, UNREADABLE))
                else:
                    row.take(worker, until)
                    row.latest = None
                    taken.append((row.head(), received))
                transaction.touch(row)
    return taken
