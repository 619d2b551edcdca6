"""A transaction on PostgreSQL: rows that change, and the one statement that writes them.

A row is written only if no other process has changed it since it was read, which its version shows.
Everything that belongs to the change (entries, receipts, counts, webhooks) is written in the same
statement, for the rows that passed this check. So nothing is locked while a change is made, and a
change that lost is made again on the new row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dragoman.model.caller import Scope
from dragoman.model.errors import LimitExceeded, TaskNotFound
from dragoman.model.events import Entry
from dragoman.stores.cache import Commit
from dragoman.stores.claim_order import QueueRanks, Ranks
from dragoman.stores.codec import RECEIVED, body, digested, encode, private_value
from dragoman.stores.postgres.schema import BLOCK, LANE
from dragoman.stores.sql_head import SqlHead
from dragoman.stores.store import Draft, Receipt, Unreadable, Webhook
from dragoman.stores.unreadable_rows import UnreadableRows

MOST = 2**31 - 1
"""The largest number that a column can store."""
KEPT = 4096
"""The maximum number of rows that are cached between writes."""
NOW = "extract(epoch FROM clock_timestamp())::float8"
ASKED = "extract(epoch FROM statement_timestamp())::float8"
"""The time when the statement arrived. Unlike `NOW`, which continues meanwhile, an index can use
it."""

NEXT = "CASE WHEN {0} ~ '^[0-9]{{1,9}}(,|$)' THEN split_part({0}, ',', 1)::int ELSE 0 END"
"""The first number of an inbox; 0 if there is none. A damaged inbox does not fail the statement."""
MORE = f"least({{0}}, {MOST - 1}) + 1"
"""A number plus 1. If the number is too large, the statement does not fail."""

NAMES = SqlHead.FIXED + SqlHead.CHANGING
"""The columns of a task, in the order of the table."""
COLUMNS = ", ".join(f"task.{name}" for name in NAMES)
_SET = ", ".join(f"{name} = u.{name}" for name in SqlHead.CHANGING if name != "lease")

FETCH = f"SELECT {COLUMNS} FROM task WHERE id = ANY($1::text[])"
RECEIPTS = (
    "SELECT u.place, receipt.digest, task.id, receipt.number "
    "FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bytea[]) "
    "AS u(place, agent, tenant, owner, name) JOIN receipt USING (agent, tenant, owner, name) "
    "JOIN task ON task.key = receipt.task"
)

_RETURNED = "task.key, task.hooked, task.agent, task.tenant, task.owner"
_ADDED = """added AS (
  INSERT INTO task SELECT * FROM unnest({0}::task[]) RETURNING {returned}
)"""
_MOVED = """moved AS (
  UPDATE task SET {set}, lease = CASE WHEN u.lease < 0 THEN task.lease ELSE u.lease END
  FROM unnest({0}::task[], {1}::int[]) AS u({names}, before)
  WHERE task.key = u.key AND task.version = u.before RETURNING {returned}
)"""
_WRITTEN = """written AS (
  INSERT INTO entry SELECT e.* FROM unnest({0}::bigint[], {1}::int[], {2}::int[], {3}::smallint[],
  {4}::bytea[]) AS e(task, number, turn, kind, body) JOIN ok ON ok.key = e.task
)"""
_ACCEPTED = """accepted AS (
  INSERT INTO message SELECT m.* FROM unnest({0}::message[]) AS m JOIN ok ON ok.key = m.task
)"""
_REPLAYS = """replayed AS (
  INSERT INTO replay_value SELECT v.* FROM unnest({0}::replay_value[]) AS v
  JOIN ok ON ok.key = v.task
)"""
_FINISHED = """finished AS (
  DELETE FROM replay_value USING ok WHERE replay_value.task = ok.key
  AND replay_value.task = ANY({0}::bigint[])
)"""
_BEHIND = """behind AS (
  UPDATE line SET behind = true FROM ok WHERE ok.hooked AND line.task = ok.key {but}
)"""
_BUT = "AND NOT EXISTS (SELECT 1 FROM new_webhook w WHERE w.task = line.task AND w.id = line.id)"
_RECEIVED = """received AS (
  INSERT INTO receipt SELECT ok.agent, ok.tenant, ok.owner, r.* FROM unnest({0}::bytea[],
  {1}::bytea[], {2}::bigint[], {3}::int[]) AS r(name, digest, task, number)
  JOIN ok ON ok.key = r.task ORDER BY 1, 2, 3, 4
)"""
# (after a deletion, a webhook must not get a ticket that a delivery still holds)
_WEBHOOKS = """new_webhook AS (
  SELECT h.*, ok.agent, LANE AS lane FROM unnest({0}::bigint[], {1}::bytea[], {2}::bytea[],
  {3}::int[], {4}::int[]) AS h(task, id, webhook, cursor, last) JOIN ok ON ok.key = h.task
), hooked AS (
  INSERT INTO line SELECT task, id, agent, webhook, cursor, 0, 0, cursor < last, false, '',
  (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, lane FROM new_webhook
  ON CONFLICT (task, id) DO UPDATE SET webhook = excluded.webhook, attempts = 0, due = 0,
  behind = line.cursor < (
    SELECT last FROM new_webhook w WHERE w.task = line.task AND w.id = line.id
  ), parked = false, reason = '', ticket = line.ticket + 1
)""".replace("LANE", LANE.format("ok"))
_COUNTED = """counted AS (
  INSERT INTO tally SELECT ok.agent, ok.tenant, ok.owner, c.state, {3}, sum(c.delta)
  FROM unnest({0}::bigint[], {1}::smallint[], {2}::int[]) AS c(task, state, delta)
  JOIN ok ON ok.key = c.task
  GROUP BY 1, 2, 3, 4 HAVING sum(c.delta) <> 0 ORDER BY 1, 2, 3, 4
  ON CONFLICT (agent, tenant, owner, state, shard) DO UPDATE
  SET number = tally.number + excluded.number
)"""


class PostgresHead(SqlHead):
    """A row of the database."""

    __slots__ = ("before", "leased")
    before: int
    """Its version in the database; -1 if it is not stored."""
    leased: float
    """The lease at the time of reading."""

    def _clear(self) -> None:
        super()._clear()
        self.before, self.leased = -1, 0.0

    def _restore(self, columns: Sequence[Any]) -> None:
        super()._restore(columns)
        if max(self.last, self.version, self.epoch, self.attempt) >= MOST:
            raise ValueError("a number is too large to be stored")
        self.before, self.leased = self.version, self.lease

    def columns(self) -> tuple[Any, ...]:
        """Return all values for the database. A lease that was not changed here stays as it is,
        because it may have been renewed meanwhile."""
        scope = self.scope
        fixed = (self.key, self.id, scope.agent, scope.tenant, scope.owner, self.context)
        lease = -1.0 if self.before >= 0 and self.lease == self.leased else self.lease
        return (*fixed, *self.changing(lease))


class Transaction:
    """The rows in use, and the changes to write."""

    def __init__(self, *, max_task_bytes: int, shard: int, damage: UnreadableRows) -> None:
        self.max_task_bytes = max_task_bytes
        self.shard = shard
        self.damage = damage
        self.now = 0.0
        """The time of the database's clock."""
        self._rows: dict[str, PostgresHead] = {}
        self._broken: dict[str, tuple[Scope, Unreadable]] = {}
        """Rows that were read for these jobs and are unreadable."""
        self._known: dict[tuple[Scope, str], tuple[bytes, str, int]] = {}
        self._touched: dict[str, PostgresHead] = {}
        self._receipts: list[tuple[PostgresHead, Receipt, int]] = []
        self._webhooks: list[tuple[PostgresHead, Webhook, int]] = []
        self._messages: list[tuple[Any, ...]] = []
        self._keys: list[int] = []
        self._written: dict[str, tuple[list[Entry], int]] = {}
        self._ranks = Ranks()
        self.left = -math.inf
        """When a task was last left for any worker to claim (monotonic time)."""

    @property
    def wall(self) -> float:
        """The Unix time. Leases use the same clock."""
        return self.now

    # -- reading

    async def fetch(
        self, db: Any, tasks: Collection[str], receipts: Collection[tuple[Scope, str]]
    ) -> None:
        """Read these rows and receipts. The receipts are read later, so that the receipt of every
        change of a row is there as well."""
        self._known.clear()
        self._broken.clear()
        await self._read(db, set(tasks))
        named_tasks: set[str] = set()
        if receipts:
            named = list(receipts)
            found = await db.fetch(
                RECEIPTS,
                list(range(len(named))),
                [scope.agent for scope, _ in named],
                [scope.tenant for scope, _ in named],
                [scope.owner for scope, _ in named],
                [digested(name) for _, name in named],
            )
            for place, digest, task, number in found:
                self._known[named[place]] = (digest, task, number)
                named_tasks.add(task)
        await self._read(db, named_tasks)

    async def _read(self, db: Any, tasks: Collection[str]) -> None:
        for task in tasks:
            self._rows.pop(task, None)
            self._broken.pop(task, None)
        if tasks:
            for columns in await db.fetch(FETCH, [task for task in tasks if "\0" not in task]):
                try:
                    self._rows[columns[1]] = PostgresHead.restored(columns)
                except Unreadable as error:  # the jobs that ask for it raise the error
                    self._broken[columns[1]] = Scope(*columns[2:5]), error

    def missing(self, tasks: Iterable[str]) -> list[str]:
        """Return those that have to be read."""
        return [task for task in tasks if task not in self._rows]

    async def keys(self, db: Any, number: int) -> None:
        """Reserve this many keys for new tasks."""
        while len(self._keys) < number:
            first = await db.fetchval("SELECT nextval('task_key')")
            self._keys.extend(range(first, first + BLOCK))

    # -- for jobs

    def row(self, task: str) -> PostgresHead | None:
        """Return the row of this task. Raises Unreadable."""
        if task in self._broken:
            raise self._broken[task][1]
        return self._rows.get(task)

    def claimed(self, task: str) -> PostgresHead | None:
        """Return the row of a claim. An unreadable one is set aside when its lease has expired."""
        try:
            return self.row(task)
        except Unreadable as error:
            self.damage.found(error)
            return None

    def mine(self, scope: Scope, task: str) -> PostgresHead:
        """Return a row of this scope whose task has begun. Raises TaskNotFound or Unreadable."""
        if task in self._broken and self._broken[task][0] == scope:
            raise self._broken[task][1]
        row = self._rows.get(task)
        if row is None or row.scope != scope or not row.born:
            raise TaskNotFound
        return row

    def add(self, scope: Scope, draft: Draft) -> PostgresHead:
        """Create a row."""
        row = self._rows[draft.task] = PostgresHead(scope, draft)
        row.key = self._keys.pop(0)
        return row

    def receipt(self, scope: Scope, name: str) -> tuple[bytes, str, int] | None:
        """Return the digest, the task and the message number of an earlier request with this
        key."""
        return self._known.get((scope, name))

    def add_receipt(self, row: PostgresHead, receipt: Receipt, number: int) -> None:
        """Store the receipt of a request."""
        self._receipts.append((row, receipt, number))
        self._known[row.scope, receipt.key] = (receipt.digest, row.id, number)

    def add_webhook(self, row: PostgresHead, webhook: Webhook, cursor: int) -> None:
        """Add or replace a webhook. Its secrets are encrypted already."""
        row.hooked = True
        row.version += 1
        self._webhooks.append((row, webhook, cursor))

    def touch(self, row: PostgresHead) -> None:
        """Mark a row as changed."""
        self._touched[row.id] = row

    def room(self, row: PostgresHead, fresh: Iterable[Entry] = ()) -> None:
        """Raise LimitExceeded if a task would become too large."""
        size = row.size + sum(len(entry.wire or private_value(entry)) for entry in fresh)
        if size > self.max_task_bytes:
            raise LimitExceeded(f"The task is larger than {self.max_task_bytes} bytes")

    def fresh(self, agent: str) -> list[PostgresHead]:
        """Return the new rows of an agent that wait for a worker. No other process knows them
        yet."""
        rows = self._touched.values()
        return [row for row in rows if row.before < 0 and row.ready and row.scope.agent == agent]

    def prime(self, row: PostgresHead) -> None:
        """Add a row as it was a moment ago."""
        known = self._rows.get(row.id)
        if row.id not in self._touched and (known is None or known.version < row.version):
            self._rows[row.id] = row

    # -- writing

    def waiting(self) -> list[Scope]:
        """Return the scopes whose rows wait for a worker and have no rank."""
        rows = self._touched.values()
        return [row.scope for row in rows if row.ready and row.offered is None]

    def offer(self, queues: Mapping[str, QueueRanks]) -> None:
        """Give these rows their ranks."""
        for row in self._touched.values():
            if row.ready and row.offered is None:
                queue = queues[row.scope.agent]
                row.offered = queue.add(self._ranks, row.scope, int(self.now))

    def statement(self) -> tuple[str, list[Any], list[PostgresHead]]:
        """Return the statement that writes all changes. It returns the keys of the existing rows
        that passed the check."""
        rows = list(self._touched.values())
        parts: list[str] = []
        values: list[Any] = []

        def part(text: str, *arrays: Any, **names: str) -> None:
            places = [f"${len(values) + n + 1}" for n in range(len(arrays))]
            values.extend(arrays)
            parts.append(text.format(*places, **names))

        self._messages.clear()
        entries = [fresh for row in rows for fresh in self._entries(row)]
        finished = [row.key for row in rows if row.finished]
        replays = [
            (row.key, item.number, bytes(private_value(item)))
            for row in rows
            for item in row.replays
            if not row.finished
        ]
        counts = [count for row in rows for count in self._views(row)]
        new = [row for row in rows if row.before < 0]
        # in one order, so that processes that write to the same rows do not wait for each other
        known = sorted((row for row in rows if row.before >= 0), key=lambda row: row.key)
        ok = []
        if new:
            part(_ADDED, [row.columns() for row in new], returned=_RETURNED)
            ok.append("SELECT * FROM added")
        if known:
            part(
                _MOVED,
                [row.columns() for row in known],
                [row.before for row in known],
                returned=_RETURNED,
                set=_SET,
                names=", ".join(NAMES),
            )
            ok.append("SELECT * FROM moved")
        parts.append(f"ok AS ({' UNION ALL '.join(ok)})")
        if entries:
            part(_WRITTEN, *map(list, zip(*entries, strict=True)))
        if self._messages:
            part(_ACCEPTED, list(self._messages))
        if replays:
            part(_REPLAYS, replays)
        if finished:
            part(_FINISHED, finished)
        if self._receipts:
            part(_RECEIVED, *map(list, zip(*map(_receipt_columns, self._receipts), strict=True)))
        if self._webhooks:
            part(_WEBHOOKS, *map(list, zip(*map(_webhook_columns, self._webhooks), strict=True)))
        if entries and any(row.hooked for row in rows):
            part(_BEHIND, but=_BUT if self._webhooks else "")
        if counts:
            part(_COUNTED, *map(list, zip(*counts, strict=True)), self.shard)
        last = "SELECT key FROM moved" if known else "SELECT 0::bigint WHERE false"
        return f"WITH {', '.join(parts)} {last}", values, rows

    def settle(
        self, rows: Iterable[PostgresHead], passed: Collection[int]
    ) -> tuple[set[str], list[Commit]]:
        """Keep the written rows in the cache, forget the rows that did not pass, and return
        these."""
        lost: set[str] = set()
        commits: list[Commit] = []
        for row in rows:
            row.latest = None
            if row.before >= 0 and row.key not in passed:
                lost.add(row.id)
                self._rows.pop(row.id, None)
            else:
                if row.ready:
                    self.left = time.monotonic()
                row.before, row.leased = row.version, row.lease
                row.finished = False
                row.replays = ()
                commits.append((row.id, row.head(), *self._written.get(row.id, ((), 0))))
        self._clear()
        if len(self._rows) > KEPT:
            self._rows.clear()
        return lost, commits

    def forget(self) -> None:
        """Forget everything: it is not known what was written."""
        self._clear()
        self._rows.clear()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to write."""
        return not self._touched

    def _clear(self) -> None:
        self._touched.clear()
        self._receipts.clear()
        self._webhooks.clear()
        self._written.clear()

    def _entries(self, row: PostgresHead) -> list[tuple[int, int, int, int, bytes]]:
        fresh, row.entries = row.entries, []
        if not fresh:
            return []
        before = row.size
        found = []
        for item in fresh:
            kind, data = body(item)
            row.size += len(data)
            if kind == RECEIVED:
                scope, at = row.scope, item.event.at  # type: ignore[union-attr]
                whose = (scope.agent, scope.tenant, scope.owner, digested(row.context))
                self._messages.append((*whose, at, row.key, item.number))
            found.append((row.key, item.number, item.turn, kind, data))
        self._written[row.id] = fresh, row.size - before
        return found

    def _views(self, row: PostgresHead) -> list[tuple[int, int, int]]:
        """Update what is derived from the row: its end, its counts, and that it has no rank."""
        if not row.ready:
            row.offered = None
        if row.ended and row.ended_at is None:
            row.ended_at = self.now
        if not row.born or row.counted is row.state:
            return []
        before, row.counted = row.counted, row.state
        found = [(row.key, row.state.number, 1)]
        return [*found, (row.key, before.number, -1)] if before is not None else found


def _receipt_columns(item: tuple[PostgresHead, Receipt, int]) -> tuple[Any, ...]:
    row, receipt, number = item
    return digested(receipt.key), receipt.digest, row.key, number


def _webhook_columns(item: tuple[PostgresHead, Webhook, int]) -> tuple[Any, ...]:
    row, webhook, cursor = item
    id = webhook.config.id.encode("utf-8", "surrogatepass")
    return row.key, id, encode(webhook), cursor, row.last
