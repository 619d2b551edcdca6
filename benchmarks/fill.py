"""`python -m benchmarks.fill FILE TASKS`: creates a SQLite store with many tasks, with the store's
own code.

Nine of ten tasks are completed, the tenth waits for input; a hundred tasks share a context. The ids
of task and context follow from the number of the task.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from benchmarks import wire
from benchmarks.servers import script
from dragoman.model import clock
from dragoman.model.caller import Caller, Scope
from dragoman.model.events import Entry, Received
from dragoman.model.lifecycle import birth
from dragoman.model.types import (
    Artifact,
    Message,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.stores.sqlite.driver import STANDARD, prepare
from dragoman.stores.sqlite.schema import MIGRATIONS, migrate
from dragoman.stores.sqlite.transaction import Transaction
from dragoman.stores.store import Draft

SCOPE = Scope("echo")
WAITING, CONTEXT = 10, 100
GROUP = 4000
BEGAN = 1_750_000_000
MIX = 0x79B97F4A7C15


def task(number: int) -> str:
    """The id of a task, in the order of time as real ones are."""
    return f"{number >> 16:08x}-{number & 0xFFFF:04x}-7000-8000-{_mixed(number):012x}"


def context(number: int) -> str:
    """The context of a task."""
    return f"{number // CONTEXT:08x}-0000-7000-9000-{_mixed(number // CONTEXT):012x}"


def _mixed(number: int) -> int:
    return number * MIX % (1 << 48)


def name(tasks: int) -> str:
    """The name of the file, which is another for other tables or other tasks in them."""
    made = "".join(MIGRATIONS).encode() + Path(__file__).read_bytes()
    return f"scale-{tasks}-{hashlib.sha256(made).hexdigest()[:8]}.db"


def fill(path: Path, tasks: int) -> None:
    """Write them; the file has its name only when it is whole."""
    draft = path.with_suffix(".part")
    for left in path.parent.glob(f"{draft.name}*"):
        left.unlink()
    db = STANDARD.connect(draft)
    prepare(db, synchronous="off")
    db.execute("PRAGMA cache_size = -200000")
    migrate(db)
    transaction = Transaction(db, max_task_bytes=1 << 30)
    for first in range(0, tasks, GROUP):
        transaction.begin()
        for number in range(first, min(first + GROUP, tasks)):
            transaction.touch(row(transaction, number))
        transaction.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    db.close()
    draft.rename(path)


def row(transaction: Any, number: int) -> Any:
    """A row of a transaction, of whichever store, with its log."""
    id, group = task(number), context(number)
    at = clock.stamp(BEGAN + number / 1000)
    message = Message(
        message_id=f"message-{number}",
        role=Role.USER,
        parts=(Part(text=wire.ECHO),),
        task_id=id,
        context_id=group,
    )
    received = Received(message=message, caller=Caller(), at=at, skill="echo")
    row = transaction.add(SCOPE, Draft(task=id, received=received, new=True))
    row.receive(received)
    turn = row.take("fill", 1.0)
    claim = row.claim(birth(received), received)
    events: list[TaskStatusUpdateEvent | TaskArtifactUpdateEvent] = [
        _status(id, group, TaskState.WORKING, at)
    ]
    if number % WAITING:
        artifact = Artifact(artifact_id="answer", name="echo", parts=(Part(text=wire.ECHO),))
        events.append(TaskArtifactUpdateEvent(task_id=id, context_id=group, artifact=artifact))
        events.append(_status(id, group, TaskState.COMPLETED, at))
    else:
        events.append(_status(id, group, TaskState.INPUT_REQUIRED, at, script.QUESTION))
    row.append(claim, [Entry(0, event, turn) for event in events], release=True)
    return row


def _status(
    id: str, group: str, state: TaskState, at: str, text: str = ""
) -> TaskStatusUpdateEvent:
    message = None
    if text:
        message = Message(
            message_id=f"answer-{id}",
            role=Role.AGENT,
            parts=(Part(text=text),),
            task_id=id,
            context_id=group,
        )
    status = TaskStatus(state=state, timestamp=at, message=message)
    return TaskStatusUpdateEvent(task_id=id, context_id=group, status=status)


if __name__ == "__main__":
    fill(Path(sys.argv[1]), int(sys.argv[2]))
