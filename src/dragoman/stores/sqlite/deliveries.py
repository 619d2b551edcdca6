"""Webhook cursors in a SQLite file."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.model.caller import Scope
from dragoman.stores.codec import stub, webhook_of
from dragoman.stores.delivery_order import DeliveryOrder, Lane
from dragoman.stores.sqlite.driver import fetch
from dragoman.stores.sqlite.rows import named
from dragoman.stores.sqlite.transaction import Transaction
from dragoman.stores.store import Owner, Unreadable, Webhook, WebhookCursor
from dragoman.stores.unreadable_rows import DECODING

if TYPE_CHECKING:
    from dragoman.stores.sqlite.queries import Queries
    from dragoman.stores.sqlite.readers import Readers

LINE = (
    "SELECT line.task, line.id, scope.agent, scope.tenant, scope.owner, task.id, line.webhook, "
    "line.cursor, line.attempts, line.due, line.parked, line.reason, line.ticket "
    "FROM line JOIN task ON task.key = line.task JOIN scope ON scope.key = task.scope"
)


DUE = (
    f"{LINE} WHERE {{}} AND line.due <= ? AND line.behind = 1 AND line.parked = 0 "
    "ORDER BY line.due LIMIT ?"
)


def line(columns: Any) -> WebhookCursor:
    """Return the cursor of the columns that `LINE` selects, with its secrets as stored. Raises
    Unreadable."""
    _, id, agent, tenant, owner, task, webhook, *_ = columns
    try:
        if any(type(text) is not str for text in (id, agent, tenant, owner, task, columns[11])):
            raise ValueError("a text is not UTF-8")
        return _line(columns, webhook_of(webhook, id, task))
    except DECODING as error:
        raise Unreadable("webhook", named(task), f"{named(id)}: {error}") from None


def shown(columns: Any) -> WebhookCursor:
    """Return the cursor for an operator. An unreadable one has no URL."""
    try:
        return line(columns)
    except Unreadable as error:
        _, id, agent, tenant, owner, task, *rest = columns
        texts = map(named, (id, agent, tenant, owner, task))
        rest[-2] = str(error)
        return _line((0, *texts, *rest), stub(named(id), named(task)))


def _line(columns: Any, webhook: Webhook) -> WebhookCursor:
    _, _, agent, tenant, owner, task, _, cursor, attempts, due, parked, reason, ticket = columns
    return WebhookCursor(
        scope=Scope(agent, tenant, owner),
        task=task,
        webhook=webhook,
        cursor=cursor,
        attempts=attempts,
        due=due,
        parked=bool(parked),
        reason=reason,
        ticket=ticket,
    )


async def due_lanes(
    readers: Readers,
    order: DeliveryOrder,
    agents: Collection[str],
    limit: int,
    passing: Collection[Owner],
) -> list[Lane]:
    """Return the lanes whose webhooks are due, in the order of their turns."""
    found: list[Lane] = []
    for agent in agents:
        skipped = await readers.run(partial(_passed, agent, passing))
        found += await order.due(agent, partial(_walk, readers, agent), limit, skipped)
    return found


def _passed(agent: str, passing: Collection[Owner], view: Queries) -> set[int]:
    return view.passed(agent, passing)


async def _walk(readers: Readers, agent: str, after: int, most: int) -> Sequence[tuple[int, bool]]:
    return await readers.run(lambda view: view.walk(agent, after, most))


def take(
    transaction: Transaction, agents: Collection[str], limit: int, lease: float
) -> list[WebhookCursor]:
    """Lease the webhooks that have been due for the longest time."""
    transaction.flush()
    now = time.time()
    found: list[WebhookCursor] = []
    for agent in agents:
        found += _readable(transaction, "line.agent = ?", (agent, now, limit))
    return _taken(transaction, sorted(found, key=lambda item: item.due)[:limit], now, lease)


def take_of(
    transaction: Transaction, lanes: Sequence[Lane], limit: int, lease: float
) -> list[WebhookCursor]:
    """Lease webhooks that are due in these lanes, the same number in each."""
    transaction.flush()
    now = time.time()
    found: list[WebhookCursor] = []
    each = max(1, limit // max(1, len(lanes)))
    for lane in lanes[:limit]:
        found += _readable(transaction, "line.agent = ? AND line.lane = ?", (*lane, now, each))
    return _taken(transaction, found, now, lease)


def _taken(
    transaction: Transaction, taken: Sequence[WebhookCursor], now: float, lease: float
) -> list[WebhookCursor]:
    transaction.db.executemany(
        "UPDATE line SET ticket = ticket + 1, taken = 1, due = ? "
        "WHERE id = ? AND task = (SELECT key FROM task WHERE id = ?)",
        [(now + lease, item.webhook.config.id, item.task) for item in taken],
    )
    return [replace(item, ticket=item.ticket + 1, due=now + lease) for item in taken]


def _readable(transaction: Transaction, where: str, values: tuple[Any, ...]) -> list[WebhookCursor]:
    """Return webhooks that are due. Unreadable ones are parked, and the next ones replace them."""
    while True:
        found: list[WebhookCursor] = []
        parked = False
        for columns in fetch(transaction.db, DUE.format(where), values):
            try:
                found.append(line(columns))
            except Unreadable as error:
                transaction.damage.found(error, "the webhook is parked")
                parked = True
                transaction.db.execute(
                    "UPDATE line SET parked = 1, taken = 0, reason = ?, ticket = ticket + 1 "
                    "WHERE task = ? AND CAST(id AS BLOB) = CAST(? AS BLOB)",
                    (f"it cannot be read: {error.why}", *columns[:2]),
                )
        if not parked:
            return found


def record(
    transaction: Transaction,
    line: WebhookCursor,
    cursor: int,
    *,
    wait: float,
    failed: str,
    parked: bool,
) -> bool:
    """Record the result of a delivery. Returns False if the lease was lost."""
    row = transaction.row(line.task)
    if row is None:
        return False
    transaction.flush()
    found = transaction.db.execute(
        "UPDATE line SET cursor = :cursor, behind = :behind, due = :due, taken = :taken, "
        "parked = :parked, attempts = CASE WHEN :failed <> '' THEN attempts + 1 "
        "WHEN cursor = :cursor THEN attempts ELSE 0 END, reason = CASE "
        "WHEN :failed = '' AND cursor = :cursor THEN reason ELSE :failed END "
        "WHERE task = :task AND id = :id AND ticket = :ticket RETURNING 1",
        {
            "cursor": cursor,
            "behind": cursor < row.last,
            "due": time.time() + wait,
            "taken": wait > 0 and not failed,
            "parked": parked,
            "failed": failed,
            "task": row.key,
            "id": line.webhook.config.id,
            "ticket": line.ticket,
        },
    )
    return bool(found.fetchall())


def redrive(transaction: Transaction, task: str, webhook: str) -> int:
    """Resume parked webhooks."""
    found = transaction.db.execute(
        "UPDATE line SET parked = 0, attempts = 0, due = 0 WHERE parked = 1 "
        "AND (? = '' OR task = (SELECT key FROM task WHERE id = ?)) "
        "AND (? = '' OR id = ?) RETURNING 1",
        (task, task, webhook, webhook),
    )
    return len(found.fetchall())
