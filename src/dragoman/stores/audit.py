"""Whether a log is whole and says what its head says: the same in every database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from dragoman.lifecycle import IllegalEvent, fold
from dragoman.stores.codec import STATES, entry
from dragoman.stores.row import Stored

BATCH = 256
"""How many tasks are looked at in one state of the store."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Is told what is looked at, how much of it is done, and of how much."""

HANGING = (
    (
        "SELECT task, id FROM line WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = line.task)",
        "webhook {1} has no task",
    ),
    (
        "SELECT task, number FROM snapshot "
        "WHERE NOT EXISTS (SELECT 1 FROM task WHERE key = snapshot.task)",
        "the snapshot of key {0} has no task",
    ),
    (
        "SELECT task.id, snapshot.number FROM snapshot JOIN task ON task.key = snapshot.task "
        "WHERE snapshot.number > task.last",
        "task {0}: its snapshot is of entry {1}, which is not in its log",
    ),
    (
        "SELECT task.id, line.id FROM line JOIN task ON task.key = line.task "
        "WHERE line.cursor > task.last OR line.behind <> (line.cursor < task.last)",
        "task {0}: webhook {1} is at a place that does not agree with its log",
    ),
    (
        "SELECT task.id, receipt.number FROM receipt JOIN task ON task.key = receipt.task "
        "WHERE receipt.number NOT BETWEEN 1 AND task.last",
        "task {0}: a receipt is for entry {1}, which is not in its log",
    ),
)
"""Statements that find what hangs on a task and has none, or does not agree with it."""


def log(row: Stored, entries: Iterable[tuple[int, int, int, bytes]]) -> Iterator[str]:
    """The problems of one log, given as numbers, turns, kinds and bodies."""
    size = numbers = 0
    events = []
    for number, turn, kind, body in entries:
        numbers += 1
        size += len(body)
        if number != numbers:
            yield f"task {row.id}: entry {numbers} is missing"
            return
        try:
            events.append(entry(number, turn, kind, body).event)
        except (msgspec.DecodeError, AssertionError) as error:
            yield f"task {row.id}: entry {number} cannot be read: {error}"
            return
    if numbers != row.last:
        yield f"task {row.id}: its log has {numbers} entries, and its head says {row.last}"
        return
    if size != row.size:
        yield f"task {row.id}: its log has {size} bytes, and its head says {row.size}"
    try:
        state = fold(None, events).status.state  # type: ignore[arg-type]
    except IllegalEvent as error:
        yield f"task {row.id}: its log cannot be: {error}"
        return
    if state is not row.state:
        says = row.state.name.lower()
        yield f"task {row.id}: its log ends {state.name.lower()}, and its head says {says}"
    elif (row.offered is not None) != row.ready:
        place = "is not in the queue" if row.ready else "is in the queue, and nothing waits"
        yield f"task {row.id}: it {place}"
    elif (row.ended_at is not None) != row.ended:
        yield f"task {row.id}: its head does not agree with itself on whether it has ended"


def counted(whose: str, state: int, said: int, number: int) -> str:
    """The problem of a count."""
    name = STATES[state].name.lower() if state in STATES else f"state {state}"
    return f"the count of {whose}: {said} tasks {name}, and there are {number}"
