"""The changes that callers and workers make, written once for every store.

A change finds a head row in a transaction, lets one of the row's rules work on it and marks it as
changed. How rows are found, locked and committed is each store's own affair.
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
    """What a change needs of a store."""

    @property
    def now(self) -> float:
        """The time by the clock that leases count by."""

    @property
    def wall(self) -> float:
        """The Unix time."""

    def row(self, task: str, /) -> H | None:
        """The head row of this id; Unreadable."""

    def claimed(self, task: str, /) -> H | None:
        """The same for a claim: a row that cannot be read is reported, and None."""

    def mine(self, scope: Scope, task: str, /) -> H:
        """A born row of this scope; TaskNotFound, Unreadable."""

    def add(self, scope: Scope, draft: Draft, /) -> H:
        """A new row; LimitExceeded."""

    def room(self, row: H, fresh: Sequence[Entry] = (), /) -> None:
        """Refuse entries that would make the log too large; LimitExceeded."""

    def touch(self, row: H, /) -> None:
        """Mark a row as changed."""

    def receipt(self, scope: Scope, key: str, /) -> tuple[bytes, str, int] | None:
        """The digest, the task and the message number of an earlier request with this key."""

    def keep(self, row: H, receipt: Receipt, number: int, /) -> None:
        """Store the receipt of a request."""

    def hook(self, row: H, webhook: Webhook, cursor: int, /) -> None:
        """Add a webhook, or replace it. Its secrets are encrypted already."""


def accept(
    transaction: Transaction[H], scope: Scope, draft: Draft, webhook: Webhook | None
) -> tuple[H, int, bool]:
    """Take a message: its row and number, and whether it is new. A repeated send changes
    nothing."""
    receipt = draft.receipt
    if receipt is not None and (known := _known(transaction, scope, receipt)):
        _, task, number = known
        row = transaction.row(task)
        if row is None:  # deleted since the receipt was read
            raise TaskNotFound
        return row, number, False
    if draft.new and draft.full:
        raise LimitExceeded(draft.full)
    row = transaction.add(scope, draft) if draft.new else transaction.mine(scope, draft.task)
    transaction.room(row)
    number = row.receive(draft.received)
    transaction.touch(row)
    if webhook is not None:
        transaction.hook(row, webhook, number)
    if receipt is not None:
        transaction.keep(row, receipt, number)
    return row, number, True


def append(
    transaction: Transaction[H],
    claim: Claim,
    entries: Sequence[Entry],
    release: bool,
    pause: Pause | None = None,
) -> bool:
    """Write what a worker says. True if more messages wait; Stale, LimitExceeded, IllegalEvent."""
    row = transaction.claimed(claim.head.id)
    if row is None or row.epoch != claim.epoch:
        raise Stale(claim.head.id)
    transaction.room(row, entries)
    try:
        return row.append(claim, entries, release, pause, transaction.wall if pause else 0.0)
    finally:  # an illegal event is refused; those before it are written
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
    """Ask a task to end, or end it if nobody works on it and there is nothing to undo."""
    row = transaction.mine(scope, task)
    if receipt is not None and _known(transaction, scope, receipt):
        return row.head()
    row.cancel(request, canceled, transaction.now + grace, undo=undo)
    if receipt is not None:
        transaction.keep(row, receipt, CANCEL_RECEIPT)
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
) -> Head | None:
    """End a claim; None if it has ended already. Unreadable."""
    row = transaction.row(head.id)
    now = transaction.now if expired else None
    if row is None or not row.revoke(
        head.epoch, event, now, begun=begun, wall=transaction.wall, delay=delay
    ):
        return None
    transaction.touch(row)
    return row.head()


def wake(transaction: Transaction[H], tasks: Iterable[str]) -> Counter[str]:
    """Have tasks run whose time has come: how many of each agent."""
    agents: Counter[str] = Counter()
    for task in tasks:
        row = transaction.claimed(task)
        if row is not None and row.wake(transaction.wall):
            transaction.touch(row)
            agents[row.scope.agent] += 1
    return agents


def wake_now(transaction: Transaction[H], tasks: Iterable[str]) -> Counter[str]:
    """Have tasks run that wait for a notification, or whose turn was postponed: how many of each
    agent."""
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
    """Add a webhook to a task; it gets what comes from now on."""
    row = transaction.mine(scope, webhook.config.task_id)
    transaction.touch(row)
    transaction.hook(row, webhook, row.last)


def _known(
    transaction: Transaction[H], scope: Scope, receipt: Receipt
) -> tuple[bytes, str, int] | None:
    """The earlier request with this key, if any; Conflict if it was another one."""
    known = transaction.receipt(scope, receipt.key)
    if known is not None and known[0] != receipt.digest:
        raise Conflict(receipt.key)
    return known
