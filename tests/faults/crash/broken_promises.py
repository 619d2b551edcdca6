"""Switches that break one promise each, so that it can be seen that its breach is found.

Never part of the product: the tests' own process is broken for one test, a served one by its
agent's module.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from dragoman.agent.durable import Journal
from dragoman.agent.turn import Turn
from dragoman.model.events import Entry
from dragoman.server import handover_writes
from dragoman.server.maintenance import Maintenance
from dragoman.server.run import Run
from dragoman.server.service import Service
from dragoman.stores import sqlite
from dragoman.stores.codec import ARTIFACT
from dragoman.stores.sqlite import SqliteStore, context_values
from dragoman.stores.sqlite.schema import BITS
from dragoman.stores.sqlite.transaction import Transaction
from dragoman.stores.store import NOTIFICATION, Claim, Pause
from dragoman.stores.task_head import TaskHead

Patch = Callable[[Any, str, Any], None]
LATE = 0.3


def fsync(patch: Patch) -> None:
    """A commit does not wait for the disk."""
    prepare = sqlite.prepare
    patch(sqlite, "prepare", lambda db, **more: prepare(db, **(more | {"synchronous": "off"})))


def receipts(patch: Patch) -> None:
    """A send that comes again is a new one."""
    accept = SqliteStore.accept
    patch(
        SqliteStore,
        "accept",
        lambda self, scope, draft: accept(self, scope, replace(draft, receipt=None)),
    )


def epochs(patch: Patch) -> None:
    """Whoever has had a claim may write."""

    def append(
        self: SqliteStore,
        claim: Claim,
        entries: Sequence[Entry],
        *,
        release: bool = False,
        pause: Pause | None = None,
    ) -> asyncio.Future[bool]:
        def work(transaction: Transaction) -> bool:
            row = transaction.row(claim.head.id)
            assert row is not None
            try:
                held = replace(claim, head=replace(claim.head, epoch=row.epoch))
                return row.append(held, entries, release, pause, transaction.wall)
            finally:
                transaction.touch(row)

        return self._writer.submit(work)

    patch(SqliteStore, "append", append)


def order(patch: Patch) -> None:
    """Readers see neighbours the other way round."""
    read = SqliteStore.read

    async def swapped(self: SqliteStore, *arguments: Any) -> Any:
        entries = await read(self, *arguments)
        if entries and len(entries) > 1:
            first, second = entries[-2:]
            first.event, second.event = second.event, first.event
            first.wire, second.wire = second.wire, first.wire
        return entries

    patch(SqliteStore, "read", swapped)


def writing(patch: Patch) -> None:
    """What is said together is written the other way round."""
    written = Transaction._entries

    def swapped(self: Transaction, row: Any) -> Iterator[Any]:
        fresh = list(written(self, row))
        chunks = [n for n, item in enumerate(fresh) if item[2] == ARTIFACT]
        if len(chunks) > 1:
            one, two = chunks[-2:]
            fresh[one], fresh[two] = (
                (fresh[one][0], *fresh[two][1:]),
                (fresh[two][0], *fresh[one][1:]),
            )
        yield from fresh

    patch(Transaction, "_entries", swapped)


def numbers(patch: Patch) -> None:
    """No entry has the number 5."""
    written = Transaction._entries

    def skipping(self: Transaction, row: Any) -> Iterator[Any]:
        for place, *rest in written(self, row):
            yield place + (place % (1 << BITS) >= 5), *rest

    patch(Transaction, "_entries", skipping)


class Lazy:
    """A connection that does not commit."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def execute(self, sql: str, *values: Any) -> Any:
        return None if sql == "COMMIT" else self._db.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def showing(patch: Patch) -> None:
    """What is written is shown at once, and persisted some time later."""
    begin, commit = Transaction.begin, Transaction.commit
    since = 0.0

    def joined(self: Transaction) -> None:
        nonlocal since
        if not self.db.in_transaction:
            begin(self)
            since = time.monotonic()

    def late(self: Transaction) -> Any:
        db = self.db
        if time.monotonic() - since < LATE:
            self.db = Lazy(db)
        try:
            return commit(self)
        finally:
            self.db = db

    patch(Transaction, "begin", joined)
    patch(Transaction, "commit", late)


def _shifted(by: int) -> Callable[[Patch], None]:
    def shift(patch: Patch) -> None:
        place = Service._place

        def other(self: Service, *arguments: Any) -> int | None:
            found = place(self, *arguments)
            return found + by if found else found

        patch(Service, "_place", other)

    return shift


skipping = _shifted(1)
"""A resumed stream leaves something out."""
repeating = _shifted(-1)
"""A resumed stream shows something again."""


def attempts(patch: Patch) -> None:
    """A second run says that it is the first."""
    take = TaskHead.take

    def first(self: TaskHead, *arguments: Any) -> int:
        self.attempt = 0
        return take(self, *arguments)

    patch(TaskHead, "take", first)


def replacing(patch: Patch) -> None:
    """What a second run says comes beside what the first one said."""
    name = Turn._next_id
    patch(Turn, "_next_id", lambda self: f"{self.attempt}.{name(self)}")


def reaping(patch: Patch) -> None:
    """Nobody looks after the tasks of the dead."""

    async def nothing(self: Maintenance) -> None:
        return

    patch(Maintenance, "reap", nothing)


def steps(patch: Patch) -> None:
    """What a step returned is not logged."""
    _unlogged(patch, "step")


def intentions(patch: Patch) -> None:
    """That a step with `once` begins is not logged."""
    _unlogged(patch, "begun")


def sent(patch: Patch) -> None:
    """Which task a send has begun is not logged."""
    _unlogged(patch, "sent")


def written(patch: Patch) -> None:
    """A write from outside that comes again is a new one."""
    _unlogged(patch, "written")


def handover_ends(patch: Patch) -> None:
    """Whoever was given a task may always write to it."""
    patch(handover_writes, "_is_running", lambda head, turn: bool(head.holder))


def handover_turns(patch: Patch) -> None:
    """A handover of an earlier turn opens a later one."""
    is_running = handover_writes._is_running
    patch(handover_writes, "_is_running", lambda head, turn: is_running(head, head.turn))


def waited(patch: Patch) -> None:
    """What a wait for another agent has found is not logged."""
    _unlogged(patch, "waited")


def looks(patch: Patch) -> None:
    """Whoever waits for a notification never looks without one."""
    suspend = TaskHead._suspend

    def trusting(self: TaskHead, pause: Pause, wall: float) -> None:
        waits = pause.waits == NOTIFICATION
        suspend(self, replace(pause, seconds=0.0 if waits else pause.seconds), wall)
        if waits and self.due == 0:
            self.due = wall + 1e9  # for ever

    patch(TaskHead, "_suspend", trusting)


def notifications(patch: Patch) -> None:
    """A notification wakes nobody."""
    patch(TaskHead, "wake_now", lambda self: False)


def _unlogged(patch: Patch, kind: str) -> None:
    append = TaskHead.append

    def less(self: TaskHead, claim: Claim, entries: Sequence[Entry], *more: Any) -> bool:
        kept = [entry for entry in entries if getattr(entry.event, "kind", "") != kind]
        return append(self, claim, kept, *more)

    patch(TaskHead, "append", less)


def skipping_said(patch: Patch) -> None:
    """A handler that runs again says everything again."""
    patch(Journal, "skip", lambda self, event: False)


def rewriting(patch: Patch) -> None:
    """What a run before added to an artifact stays there."""
    patch(Run, "_rewrite", lambda self: setattr(self, "_grown", ()))


def due_times(patch: Patch) -> None:
    """Whoever sleeps is woken at once."""
    patch(TaskHead, "_suspend", _soon(TaskHead._suspend))


def _soon(suspend: Any) -> Any:
    def soon(self: TaskHead, pause: Any, wall: float) -> None:
        suspend(self, replace(pause, seconds=min(pause.seconds, 0.001)), wall)

    return soon


def beginning(patch: Patch) -> None:
    """A step begins although the claim has run out."""
    patch(Run, "begin", lambda self: None)


def saver_keys(patch: Patch) -> None:
    """A turn that runs again is a stranger to the value that it has saved."""
    right = context_values.next_version
    patch(context_values, "next_version", lambda found, version, key: right(found, version, "?"))


def reading(patch: Patch) -> None:
    """A turn that runs again reads its context as it is now."""
    right = Journal.keep

    async def keep(self: Journal, name: str, call: Any, *, beside: bool = False) -> bytes:
        found = await right(self, name, call, beside=beside)
        return await call() if beside else found

    patch(Journal, "keep", keep)


SWITCHES: dict[str, Callable[[Patch], None]] = {
    "fsync": fsync,
    "receipts": receipts,
    "epochs": epochs,
    "order": order,
    "writing": writing,
    "numbers": numbers,
    "showing": showing,
    "skipping": skipping,
    "repeating": repeating,
    "attempts": attempts,
    "replacing": replacing,
    "reaping": reaping,
    "steps": steps,
    "intentions": intentions,
    "sent": sent,
    "skipping_said": skipping_said,
    "rewriting": rewriting,
    "due_times": due_times,
    "beginning": beginning,
    "saver_keys": saver_keys,
    "reading": reading,
    "written": written,
    "handover_ends": handover_ends,
    "handover_turns": handover_turns,
    "waited": waited,
    "looks": looks,
    "notifications": notifications,
}


def switch(name: str) -> None:
    """Break a promise for the rest of this process; the empty name breaks none."""
    if name:
        SWITCHES[name](setattr)


@contextmanager
def promise(name: str) -> Iterator[None]:
    """Break a promise for the length of a block."""
    import pytest  # a served process does without it

    with pytest.MonkeyPatch.context() as patch:
        if name:
            SWITCHES[name](patch.setattr)
        yield
