"""The changes that callers and workers make, written once for all stores.

A change finds a head row in a transaction, applies one of the row's rules, and marks the row as
changed. Each store has its own way to find, lock and commit rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from dragoman.model.caller import Scope
from dragoman.model.errors import LimitExceeded, TaskNotFound
from dragoman.model.events import CancelRequested, Entry
from dragoman.model.types import TaskStatusUpdateEvent
from dragoman.stores.store import (
    CANCEL_RECEIPT,
    Claim,
    Conflict,
    Draft,
    Head,
    Pause,
    Receipt,
    Stale,
    Webhook,
)
from dragoman.stores.task_head import TaskHead

H = TypeVar("H", bound=TaskHead)


class Transaction(Protocol[H]):
    """What a change needs from a store."""

    @property
    def now(self) -> float:
        """The time by the clock of the leases."""

    @property
    def wall(self) -> float:
        """The Unix time."""

    def row(self, task: str, /) -> H | None:
        """Return the head row of this task. Raises Unreadable."""

    def claimed(self, task: str, /) -> H | None:
        """Return the head row of a claim. An unreadable row is reported, and the result is None."""

    def mine(self, scope: Scope, task: str, /) -> H:
        """Return the row of a task of this scope that has begun. Raises TaskNotFound or
        Unreadable."""

    def add(self, scope: Scope, draft: Draft, /) -> H:
        """Create a row. Raises LimitExceeded."""

    def room(self, row: H, fresh: Sequence[Entry] = (), /) -> None:
        """Raise LimitExceeded if these entries would make the log too large."""

    def touch(self, row: H, /) -> None:
        """Mark a row as changed."""

    def receipt(self, scope: Scope, key: str, /) -> tuple[bytes, str, int] | None:
        """Return the digest, the task and the message number of an earlier request with this
        key."""

    def add_receipt(self, row: H, receipt: Receipt, number: int, /) -> None:
        """Store the receipt of a request."""

    def add_webhook(self, row: H, webhook: Webhook, cursor: int, /) -> None:
        """Add or replace a webhook. Its secrets are encrypted already."""


def accept(
    transaction: Transaction[H], scope: Scope, draft: Draft, webhook: Webhook | None
) -> tuple[H, int, bool]:
    """Accept a message. Returns its row, its number, and whether it is new. A repeated send changes
    nothing."""
    receipt = draft.receipt
    if receipt is not None and (known := _known(transaction, scope, receipt)):
        _, task, number = known
        row = transaction.row(task)
        if row is None:  # the task was deleted after the receipt was read
            raise TaskNotFound
        return row, number, False
    if draft.new and draft.full:
        raise LimitExceeded(draft.full)
    row = transaction.add(scope, draft) if draft.new else transaction.mine(scope, draft.task)
    transaction.room(row)
    number = row.receive(draft.received)
    transaction.touch(row)
    if webhook is not None:
        transaction.add_webhook(row, webhook, number)
    if receipt is not None:
        transaction.add_receipt(row, receipt, number)
    return row, number, True


def append(
    transaction: Transaction[H],
    claim: Claim,
    entries: Sequence[Entry],
    release: bool,
    pause: Pause | None = None,
) -> bool:
    """Write the events of a worker. Returns True if more messages wait. Raises Stale, LimitExceeded
    or IllegalEvent."""
    row = transaction.claimed(claim.head.id)
    if row is None or row.epoch != claim.epoch:
        raise Stale(claim.head.id)
    transaction.room(row, entries)
    try:
        return row.append(claim, entries, release, pause, transaction.wall if pause else 0.0)
    finally:  # an illegal event is refused; the events before it are written
        transaction.touch(row)


def cancel(
    transaction: Transaction[H],
    scope: Scope,
    task: str,
    request: CancelRequested,
    canceled: TaskStatusUpdateEvent,
    grace: float,
    receipt: Receipt | None,
    undo: bool,
) -> Head:
    """Request the end of a task. It ends at once if it has no worker and nothing to undo."""
    row = transaction.mine(scope, task)
    if receipt is not None and _known(transaction, scope, receipt):
        return row.head()
    row.cancel(request, canceled, transaction.now + grace, undo=undo)
    if receipt is not None:
        transaction.add_receipt(row, receipt, CANCEL_RECEIPT)
    transaction.touch(row)
    return row.head()


def revoke(
    transaction: Transaction[H],
    head: Head,
    event: TaskStatusUpdateEvent | None,
    *,
    expired: bool,
    begun: bool,
    delay: float,
    note: Entry | None = None,
) -> Head | None:
    """End a claim. Returns None if it has ended already. Raises Unreadable."""
    row = transaction.row(head.id)
    now = transaction.now if expired else None
    if row is None or not row.revoke(
        head.epoch, event, now, begun=begun, wall=transaction.wall, delay=delay, note=note
    ):
        return None
    transaction.touch(row)
    return row.head()


def wake(transaction: Transaction[H], tasks: Iterable[str]) -> Counter[str]:
    """Make tasks ready whose time has come. Returns how many per agent."""
    agents: Counter[str] = Counter()
    for task in tasks:
        row = transaction.claimed(task)
        if row is not None and row.wake(transaction.wall):
            transaction.touch(row)
            agents[row.scope.agent] += 1
    return agents


def wake_now(transaction: Transaction[H], tasks: Iterable[str]) -> Counter[str]:
    """Make tasks ready that wait for a notification, or whose turn was postponed. Returns how many
    per agent."""
    agents: Counter[str] = Counter()
    for task in tasks:
        row = transaction.claimed(task)
        if row is None:
            continue
        before = row.version
        if row.wake_now():
            agents[row.scope.agent] += 1
        if row.version != before:
            transaction.touch(row)
    return agents


def put_webhook(transaction: Transaction[H], scope: Scope, webhook: Webhook) -> None:
    """Add a webhook to a task. It receives the events from now on."""
    row = transaction.mine(scope, webhook.config.task_id)
    transaction.touch(row)
    transaction.add_webhook(row, webhook, row.last)


def _known(
    transaction: Transaction[H], scope: Scope, receipt: Receipt
) -> tuple[bytes, str, int] | None:
    """Return the earlier request with this key, if there is one. Raises Conflict if its content was
    different."""
    known = transaction.receipt(scope, receipt.key)
    if known is not None and known[0] != receipt.digest:
        raise Conflict(receipt.key)
    return known
