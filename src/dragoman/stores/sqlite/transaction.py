"""One transaction on a SQLite file: head rows that are changed and written together."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from dragoman.model.caller import Scope, long
from dragoman.model.errors import LimitExceeded, TaskNotFound
from dragoman.model.events import Entry, Received
from dragoman.stores.cache import Commit
from dragoman.stores.claim_order import RANKED, QueueRanks, Ranks, fair, owners
from dragoman.stores.codec import RECEIVED, body, encode, private_value
from dragoman.stores.export_format import veiled
from dragoman.stores.sqlite import context_values
from dragoman.stores.sqlite.driver import Connection, fetch
from dragoman.stores.sqlite.rows import (
    ADD,
    ADD_VALUE,
    FOUND,
    HANGING,
    MINE,
    OLD,
    SUSPEND,
    UPDATE,
    Old,
    SqliteHead,
    entries,
)
from dragoman.stores.sqlite.schema import ADD_MESSAGE, BITS
from dragoman.stores.store import PROBE, Draft, Owner, Receipt, Unreadable, Webhook, owner_of
from dragoman.stores.unreadable_rows import ASIDE, DECODING, PAUSE, UnreadableRows

KEPT = 4096
"""The maximum number of rows and scopes that are cached between commits."""


class Transaction:
    """Runs one transaction after the other. A job finds rows, changes them and marks them as
    changed."""

    def __init__(
        self, db: Connection, *, max_task_bytes: int, damage: UnreadableRows | None = None
    ) -> None:
        self.db = db
        self.damage = damage or UnreadableRows()
        self.max_task_bytes = max_task_bytes
        self._rows: dict[str, SqliteHead] = {}
        self._touched: dict[str, SqliteHead] = {}
        self._changes: dict[str, list[Entry]] = {}
        self._sizes: dict[str, int] = {}
        self._scopes: dict[Scope, int] = {}
        self._tally: dict[tuple[int, int], int] = {}
        self._version = -1
        self._sound = False
        self._key = 0
        self._receipts: dict[tuple[Scope, str], tuple[SqliteHead, bytes, int]] = {}
        self._messages: list[tuple[int, int, int, str, str]] = []
        self._ranks = Ranks()
        self._empty: set[str] = set()
        """Agents without waiting rows that have a rank."""
        self._queues: dict[str, QueueRanks] = {}
        """What this transaction knows about the other agents."""
        self._after = 0
        """Where the search for owners that are not skipped continues."""

    # -- the transaction

    def begin(self) -> bool:
        """Start a transaction. Returns whether another process has changed the file; then the cache
        is cleared."""
        db = self.db
        if db.in_transaction:  # not even the rollback of the last one succeeded
            db.execute("ROLLBACK")
        db.execute("BEGIN IMMEDIATE")
        (version,) = db.execute("PRAGMA data_version").fetchone()
        foreign: bool = version != self._version
        if foreign or not self._sound:
            self._forget()
            self._sound = False
            (key,) = db.execute("SELECT coalesce(max(key), 0) FROM task").fetchone()
            # a key is used only once, because readers may have its owner in their cache
            self._key = max(self._key, key)
            self._version, self._sound = version, True
        self._queues.clear()
        return foreign

    def commit(self) -> list[Commit]:
        """Write the changed rows, wait for the disk, and publish the new state."""
        self.flush()
        self.db.execute("COMMIT")
        commits: list[Commit] = []
        for task, fresh in self._changes.items():
            row = self._rows.get(task)
            commits.append((task, row.head() if row else None, fresh, self._sizes.get(task, 0)))
        self._changes, self._sizes = {}, {}
        if len(self._rows) > KEPT:
            self._rows.clear()
        if len(self._scopes) > KEPT:
            self._scopes.clear()
        return commits

    def rollback(self) -> None:
        """Undo the transaction."""
        self._forget()  # first, so that nothing is committed even if the rollback fails now
        self._sound = False
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    def _forget(self) -> None:
        self._rows.clear()
        self._touched.clear()
        self._changes, self._sizes = {}, {}
        self._scopes.clear()
        self._tally.clear()
        self._receipts.clear()
        self._messages.clear()
        self._empty.clear()
        self._queues.clear()

    # -- rows

    def scope(self, scope: Scope) -> int:
        """Return the key of a scope. Creates it if the scope is new."""
        known = self._scopes.get(scope)
        if known is None:
            names = (scope.agent, scope.tenant, scope.owner)
            self.db.execute(
                "INSERT INTO scope (agent, tenant, owner) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                names,
            )
            (known,) = self.db.execute(
                "SELECT key FROM scope WHERE agent = ? AND tenant = ? AND owner = ?", names
            ).fetchone()
            self._scopes[scope] = known
        return known

    def add(self, scope: Scope, draft: Draft) -> SqliteHead:
        """Create a row."""
        row = self._rows[draft.task] = SqliteHead(scope, draft)
        return row

    @property
    def now(self) -> float:
        """The time of the leases: the machine's monotonic clock."""
        return time.monotonic()

    @property
    def wall(self) -> float:
        """The Unix time."""
        return time.time()

    def row(self, task: str) -> SqliteHead | None:
        """Return the row of this task. Raises Unreadable."""
        row = self._rows.get(task)
        if row is None:
            found = list(self.rows("WHERE id = ?", (task,)))
            row = found[0] if found else None
        return row

    def claimed(self, task: str) -> SqliteHead | None:
        """Return the row of a claim. If it has become unreadable, it is set aside and the claim is
        lost."""
        try:
            return self.row(task)
        except Unreadable as error:
            self.set_aside(task, error)
            return None

    def rows(self, where: str, values: Iterable[Any]) -> Iterator[SqliteHead]:
        """Return stored rows; rows that are in use, with their present values. Raises
        Unreadable."""
        for columns in fetch(self.db, f"{FOUND} {where}", tuple(values)):
            row = self._rows.get(columns[1])
            if row is None:
                row = self._rows[columns[1]] = SqliteHead.restored(columns)
            yield row

    def set_aside(self, task: str | int, error: Unreadable) -> None:
        """Set a task with an unreadable head aside, by its id or its key."""
        self.flush()
        which = "key" if isinstance(task, int) else "id"
        self.db.execute(
            "UPDATE task SET ready = NULL, holder = ?, lease = ?, epoch = epoch + 1, "
            f"version = version + 1 WHERE {which} = ?",
            (ASIDE, time.monotonic() + PAUSE, task),
        )
        self._rows.pop(error.task, None)
        self._changes[error.task] = []
        self.damage.found(error, "the task is set aside")

    def ready(self, agent: str, limit: int) -> list[SqliteHead]:
        """Return rows of an agent that wait for a worker, lowest rank first."""
        fresh = self._fresh(agent)
        if agent in self._empty and len(fresh) <= limit:
            return fresh
        for row in fresh:
            self._offer(row)
        # One row more for each row that this transaction has claimed.
        where = "WHERE task.agent = ? AND task.ready NOTNULL ORDER BY task.ready, task.key LIMIT ?"
        stored = self._readable(where, (agent, limit + len(self._touched)))
        known = {row.id: row for row in stored if row.ready}
        if fresh:
            known |= {row.id: row for row in fresh}
            return sorted(known.values(), key=_order)[:limit]
        return list(known.values())[:limit]

    def others(self, agent: str, limit: int, passing: Collection[Owner]) -> list[SqliteHead]:
        """The same, without the rows of these owners. However many of them wait, they are not read:
        the search goes from owner to owner."""
        fresh = [row for row in self._fresh(agent) if owner_of(row.scope) not in passing]
        if agent in self._empty and len(fresh) <= limit:
            return fresh
        self.flush()
        passed = {key for each in passing if (key := self._scope(agent, each))}
        window = owners(limit)
        found: list[SqliteHead] = []
        after = began = self._after
        while True:
            keys = self._owners(agent, after, window)
            for key in keys:
                if key not in passed:
                    found += self._readable(
                        "WHERE task.agent = ? AND task.scope = ? AND task.ready NOTNULL "
                        "ORDER BY task.ready, task.key LIMIT ?",
                        (agent, key, limit),
                    )
            more = len(keys) == window
            if len(found) >= limit or not (more or began):
                break
            if not more:  # from the beginning to the start of the search
                began = 0
            after = keys[-1] if more else 0
        self._after = keys[-1] if more else 0
        return sorted(dict.fromkeys(found), key=_order)[:limit]

    def taken(self, agent: str) -> None:
        """Note that nothing of this agent waits."""
        self._empty.add(agent)
        self._queues.pop(agent, None)

    def _fresh(self, agent: str) -> list[SqliteHead]:
        """Return rows that have become ready since this transaction began. Owners take turns."""
        rows = [row for row in self._touched.values() if row.ready and row.scope.agent == agent]
        return rows if len(rows) < 2 else fair(rows)

    def _owners(self, agent: str, after: int, limit: int) -> list[int]:
        """Return the keys of scopes with waiting rows."""
        found: list[int] = []
        while len(found) < limit:
            next_ = self.db.execute(
                "SELECT scope FROM task WHERE agent = ? AND ready NOTNULL AND scope > ? "
                "ORDER BY scope LIMIT 1",
                (agent, found[-1] if found else after),
            ).fetchone()
            if next_ is None:
                break
            found += next_
        return found

    def _scope(self, agent: str, owner: Owner) -> int | None:
        """Return the key of a scope, which may not exist."""
        scope = Scope(agent, *owner)
        if (known := self._scopes.get(scope)) is None:
            known = self.db.execute(
                "SELECT max(key) FROM scope WHERE agent = ? AND tenant = ? AND owner = ?",
                (agent, *owner),
            ).fetchone()[0]
        return known

    def _offer(self, row: SqliteHead) -> None:
        """Give a waiting row its rank."""
        if row.offered is not None:
            return
        agent = row.scope.agent
        queue = self._queues.get(agent)
        if queue is None:
            queue = self._queues[agent] = QueueRanks()
            if agent in self._empty:
                self._empty.discard(agent)
            else:
                queue.lowest = self._probe("agent = ?", (agent,), "ASC")
        if queue.lowest is not None and row.scope not in queue.highest:
            found = self._probe("agent = ? AND scope = ?", (agent, self.scope(row.scope)), "DESC")
            queue.highest[row.scope] = found
        row.offered = queue.add(self._ranks, row.scope)

    def _probe(self, where: str, values: tuple[Any, ...], order: str) -> int | None:
        """Return the lowest or the highest rank."""
        found = self.db.execute(
            f"SELECT ready FROM task WHERE {where} AND {RANKED} ORDER BY ready {order} LIMIT 1",
            values,
        ).fetchone()
        return found[0] if found else None

    def _readable(self, where: str, values: tuple[Any, ...]) -> list[SqliteHead]:
        """Return rows that are stored and ready. Unreadable ones are set aside, and the next ones
        replace them."""
        while True:
            try:
                return list(self.rows(where, values))
            except Unreadable:
                for columns in fetch(self.db, f"{FOUND} {where}", values):
                    if columns[1] not in self._rows:
                        try:
                            SqliteHead.restored(columns)
                        except Unreadable as error:
                            self.set_aside(columns[0], error)

    def mine(self, scope: Scope, task: str) -> SqliteHead:
        """Return a row of this scope whose task has begun. Raises TaskNotFound."""
        row = self._rows.get(task)
        if row is None or row.scope != scope:
            found = list(self.rows(MINE, (task, scope.agent, scope.tenant, scope.owner)))
            row = found[0] if found else None
        if row is None or not row.born:
            raise TaskNotFound
        return row

    def receipt(self, scope: Scope, name: str) -> tuple[bytes, str, int] | None:
        """Return the digest, the task and the message number of an earlier request with this
        key."""
        if fresh := self._receipts.get((scope, name)):
            row, digest, number = fresh
            return digest, row.id, number
        found: tuple[bytes, str, int] | None = self.db.execute(
            "SELECT receipt.digest, task.id, receipt.number FROM receipt "
            "JOIN task ON task.key = receipt.task "
            "WHERE receipt.scope = ? AND receipt.name IN (?, ?)",
            # only the digest of an imported receipt may be known
            (self.scope(scope), name, veiled(name)),
        ).fetchone()
        return found

    def add_receipt(self, row: SqliteHead, receipt: Receipt, number: int) -> None:
        """Store the receipt of a request."""
        self._receipts[row.scope, receipt.key] = (row, receipt.digest, number)

    def add_webhook(self, row: SqliteHead, webhook: Webhook, cursor: int) -> None:
        """Add or replace a webhook. Its secrets are encrypted already."""
        row.hooked = True
        row.version += 1
        self.touch(row)
        self.flush()
        self.db.execute(
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
                # after a deletion it must not get a ticket that a delivery still holds
                time.time_ns(),
            ),
        )

    def received(self, row: SqliteHead, number: int) -> Received:
        """Return the message with this number. Raises Unreadable."""
        if row.latest is not None and row.latest[0] == number:
            return row.latest[1]
        self.flush()
        try:
            event = entries(self.db, row.key, number - 1, 1)[0].event
            assert isinstance(event, Received)
        except DECODING as error:
            raise Unreadable("log", row.id, error) from None
        return event

    def old(self, floor: float, ended: float, receipts: float, limit: int) -> list[Old]:
        """Return tasks that ended between two times, with nothing to deliver and no recent receipt.
        It reads only what the deletion needs."""
        self.flush()
        found = fetch(
            self.db,
            f"SELECT {OLD} FROM task WHERE task.ended >= ? AND task.ended < ? "
            "AND NOT EXISTS (SELECT 1 FROM line WHERE line.task = task.key AND behind = 1 "
            "AND parked = 0) AND (task.ended < ? "
            "OR NOT EXISTS (SELECT 1 FROM receipt WHERE receipt.task = task.key)) LIMIT ?",
            (floor, ended, receipts, limit),
        )
        return [Old(*columns) for columns in found]

    def room(self, row: SqliteHead, fresh: Iterable[Entry] = ()) -> None:
        """Raise LimitExceeded if a task would become too large."""
        size = row.size + sum(len(entry.wire or private_value(entry)) for entry in fresh)
        if size > self.max_task_bytes:
            raise LimitExceeded(f"The task is larger than {self.max_task_bytes} bytes")

    def touch(self, row: SqliteHead) -> None:
        """Mark a row as changed."""
        self._touched[row.id] = row

    def drop(self, row: Old, *, values: bool) -> None:
        """Delete a task and everything that belongs to it; with `values` also the value of its
        context, if this is the last task there."""
        db, key = self.db, row.key
        base = key << BITS
        if values:
            context_values.forget(db, key)
        db.execute("DELETE FROM entry WHERE place > ? AND place < ?", (base, base + (1 << BITS)))
        for table in HANGING:
            db.execute(f"DELETE FROM {table} WHERE task = ?", (key,))
        db.execute("DELETE FROM task WHERE key = ?", (key,))
        self._rows.pop(row.id, None)
        self._touched.pop(row.id, None)
        self._changes[row.id] = []
        if row.born:
            self._count(row.scope, row.state, -1)

    def probe(self) -> None:
        """Write PROBE bytes, and remove them in the same transaction."""
        self.db.execute(
            "INSERT OR REPLACE INTO snapshot (task, number, body) VALUES (0, 0, zeroblob(?))",
            (PROBE,),
        )
        self.db.execute("DELETE FROM snapshot WHERE task = 0")

    # -- writing

    def flush(self) -> None:
        """Write rows, entries and counts."""
        if not self._touched and not self._tally:
            return
        rows, self._touched = self._touched, {}
        new: list[SqliteHead] = []
        known: list[SqliteHead] = []
        fresh: list[tuple[int, int, int, bytearray]] = []
        hooked: list[tuple[int]] = []
        suspended: list[tuple[Any, ...]] = []
        replays: list[tuple[int, int, bytearray]] = []
        finished: list[tuple[int]] = []
        for row in rows.values():
            if not row.key:
                self._key += 1
                row.key = self._key
                new.append(row)
            else:
                known.append(row)
            changes = self._changes.setdefault(row.id, [])
            if row.entries:
                changes += row.entries
                before = row.size
                fresh.extend(self._entries(row))
                self._sizes[row.id] = self._sizes.get(row.id, 0) + row.size - before
                if row.hooked:
                    hooked.append((row.key,))
            if row.unusual or row.private or row.began or row.due or row.deadline:
                values = row.suspended()
                suspended.append((*values, row.key))
                row.unusual = values != (None, None, None)
            if row.replays:
                replays += [
                    (row.key, item.number, bytearray(private_value(item))) for item in row.replays
                ]
                row.replays = ()
            if row.finished:
                finished.append((row.key,))
                row.finished = False
            self._views(row)
        db = self.db
        if new:
            db.executemany(ADD, [self._columns(row) for row in new])
        if known:
            db.executemany(UPDATE, [(*row.usual(), row.key) for row in known])
        if suspended:
            db.executemany(SUSPEND, suspended)
        if fresh:
            db.executemany("INSERT INTO entry (place, turn, kind, body) VALUES (?, ?, ?, ?)", fresh)
        if self._messages:
            db.executemany(ADD_MESSAGE, self._messages)
            self._messages = []
        if replays:
            db.executemany(ADD_VALUE, replays)
        if finished:
            db.executemany("DELETE FROM replay_value WHERE task = ?", finished)
        if self._receipts:
            db.executemany(
                "INSERT INTO receipt (scope, name, digest, task, number) VALUES (?, ?, ?, ?, ?)",
                [
                    (
                        self.scope(scope),
                        veiled(name) if long(name) else name,
                        bytearray(digest),
                        row.key,
                        number,
                    )
                    for (scope, name), (row, digest, number) in self._receipts.items()
                ],
            )
            self._receipts.clear()
        if hooked:
            db.executemany("UPDATE line SET behind = 1 WHERE task = ?", hooked)
        if self._tally:
            db.executemany(
                "INSERT INTO tally (scope, state, number) VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET number = number + excluded.number",
                [(*place, number) for place, number in self._tally.items() if number],
            )
            self._tally.clear()

    def _columns(self, row: SqliteHead) -> tuple[Any, ...]:
        scope = row.scope
        fixed = (row.key, row.id, self.scope(scope), scope.agent, row.context)
        return (*fixed, *row.usual())

    def _entries(self, row: SqliteHead) -> Iterator[tuple[int, int, int, bytearray]]:
        base = row.key << BITS
        fresh, row.entries = row.entries, []
        for item in fresh:
            kind, data = body(item)
            row.size += len(data)
            if kind == RECEIVED:
                at = item.event.at  # type: ignore[union-attr]
                scope = self.scope(row.scope)
                self._messages.append((row.key, item.number, scope, row.context, at))
            yield base + item.number, item.turn, kind, bytearray(data)

    def _views(self, row: SqliteHead) -> None:
        """Update what is derived from the row: its rank, its end, its count."""
        if not row.ready:
            row.offered = None
        else:
            self._offer(row)
        if row.ended and row.ended_at is None:
            row.ended_at = time.time()
        if row.born and row.counted is not row.state:
            scope = self.scope(row.scope)
            if row.counted is not None:
                self._count(scope, row.counted.number, -1)
            self._count(scope, row.state.number, 1)
            row.counted = row.state

    def _count(self, scope: int, state: int, number: int) -> None:
        place = (scope, state)
        self._tally[place] = self._tally.get(place, 0) + number


def _order(row: SqliteHead) -> tuple[float, int]:
    """The order by rank. A new row, which has no key yet, is the last of its rank."""
    return row.offered or 0, row.key or 1 << 62
