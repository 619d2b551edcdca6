"""The lines of webhooks in the file, and their secrets, which are sealed there."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.caller import Scope
from dragoman.store import Line, Webhook
from dragoman.stores.codec import decode_webhook, encode
from dragoman.stores.lanes import Lane
from dragoman.stores.sqlite.ledger import Leaf, Ledger

LINE = (
    "SELECT scope.agent, scope.tenant, scope.owner, task.id, line.webhook, line.cursor, "
    "line.attempts, line.due, line.parked, line.reason, line.ticket "
    "FROM line JOIN task ON task.key = line.task JOIN scope ON scope.key = task.scope"
)


def line(columns: Any) -> Line:
    """The line of the columns that `LINE` selects; its secrets as they are stored."""
    agent, tenant, owner, task, webhook, cursor, attempts, due, parked, reason, ticket = columns
    return Line(
        scope=Scope(agent, tenant, owner),
        task=task,
        webhook=decode_webhook(webhook),
        cursor=cursor,
        attempts=attempts,
        due=due,
        parked=bool(parked),
        reason=reason,
        ticket=ticket,
    )


def put(ledger: Ledger, row: Leaf, webhook: Webhook, cursor: int) -> None:
    """Add a line, or replace its webhook; its secrets are sealed already."""
    row.hooked = True
    row.version += 1
    ledger.touch(row)
    ledger.flush()
    ledger.db.execute(
        "INSERT INTO line (task, id, agent, webhook, cursor, attempts, due, taken, behind, "
        "parked, reason, ticket, lane) VALUES (?1, ?, ?, ?, ?, 0, 0, 0, ?, 0, '', ?, "
        "(SELECT scope FROM task WHERE key = ?1)) "
        "ON CONFLICT DO UPDATE SET webhook = excluded.webhook, attempts = 0, due = 0, "
        "taken = 0, parked = 0, reason = '', ticket = ticket + 1",
        (
            row.key,
            webhook.config.id,
            row.scope.agent,
            encode(webhook),
            cursor,
            cursor < row.last,
            time.time_ns(),  # after a deletion it must not meet a ticket that is still out
        ),
    )


def take(ledger: Ledger, agents: Collection[str], limit: int, lease: float) -> list[Line]:
    """Take those that are due, the longest first."""
    ledger.flush()
    now = time.time()
    found: list[Line] = []
    for agent in agents:
        columns = ledger.db.execute(
            f"{LINE} WHERE line.agent = ? AND line.due <= ? AND line.behind = 1 "
            "AND line.parked = 0 ORDER BY line.due LIMIT ?",
            (agent, now, limit),
        ).fetchall()
        found.extend(map(line, columns))
    return _taken(ledger, sorted(found, key=lambda item: item.due)[:limit], now, lease)


def take_of(ledger: Ledger, lanes: Sequence[Lane], limit: int, lease: float) -> list[Line]:
    """Take those that are due in these lanes, as many of each."""
    ledger.flush()
    now = time.time()
    found: list[Line] = []
    each = max(1, limit // max(1, len(lanes)))
    for agent, lane in lanes[:limit]:
        columns = ledger.db.execute(
            f"{LINE} WHERE line.agent = ? AND line.lane = ? AND line.due <= ? "
            "AND line.behind = 1 AND line.parked = 0 ORDER BY line.due LIMIT ?",
            (agent, lane, now, each),
        ).fetchall()
        found.extend(map(line, columns))
    return _taken(ledger, found, now, lease)


def _taken(ledger: Ledger, taken: Sequence[Line], now: float, lease: float) -> list[Line]:
    ledger.db.executemany(
        "UPDATE line SET ticket = ticket + 1, taken = 1, due = ? "
        "WHERE id = ? AND task = (SELECT key FROM task WHERE id = ?)",
        [(now + lease, item.webhook.config.id, item.task) for item in taken],
    )
    return [replace(item, ticket=item.ticket + 1, due=now + lease) for item in taken]


def record(
    ledger: Ledger, line: Line, cursor: int, *, wait: float, failed: str, parked: bool
) -> bool:
    """Record what came of a line that was taken; False if it is not the taker's any more."""
    row = ledger.row(line.task)
    if row is None:
        return False
    ledger.flush()
    found = ledger.db.execute(
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


def redrive(ledger: Ledger, task: str, webhook: str) -> int:
    """Let parked lines go on."""
    found = ledger.db.execute(
        "UPDATE line SET parked = 0, attempts = 0, due = 0 WHERE parked = 1 "
        "AND (? = '' OR task = (SELECT key FROM task WHERE id = ?)) "
        "AND (? = '' OR id = ?) RETURNING 1",
        (task, task, webhook, webhook),
    )
    return len(found.fetchall())
