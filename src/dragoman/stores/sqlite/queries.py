"""Queries on a SQLite file. Each result comes from one state of the file."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dragoman.model.caller import Scope
from dragoman.model.events import Entry, Received
from dragoman.model.lifecycle import fold
from dragoman.model.types import Task, TaskState
from dragoman.stores.codec import PRIVATE, Outdated, private, snapshot, webhook_of, with_value
from dragoman.stores.sqlite.deliveries import LINE, shown
from dragoman.stores.sqlite.driver import Connection, fetch
from dragoman.stores.sqlite.rows import FOUND, MINE, SqliteHead, entries, events
from dragoman.stores.sqlite.schema import BITS
from dragoman.stores.store import (
    PAGE_BYTES,
    Census,
    Head,
    MessagePlace,
    Owner,
    Page,
    Query,
    Unreadable,
    Webhook,
    WebhookCursor,
)
from dragoman.stores.task_head import age
from dragoman.stores.task_reads import FIRST, SMALL, Folded, counts, heads
from dragoman.stores.unreadable_rows import ASIDE, DECODING, UnreadableRows


class Queries:
    """The connection of a reader. Two threads must not use it at the same time."""

    def __init__(self, db: Connection, damage: UnreadableRows | None = None) -> None:
        self.db = db
        self.damage = damage or UnreadableRows()

    def row(self, task: str, scope: Scope | None = None) -> SqliteHead | None:
        """Return the row of this task, of any scope or of the given one. Raises Unreadable."""
        if scope is None:
            found = fetch(self.db, f"{FOUND} WHERE task.id = ?", (task,))
        else:
            whose = (task, scope.agent, scope.tenant, scope.owner)
            found = fetch(self.db, f"{FOUND} {MINE}", whose)
        if not found:
            return None
        try:
            return SqliteHead.restored(found[0])
        except Unreadable as error:
            self.damage.found(error)
            raise

    def read(
        self, task: str, key: int, after: int, limit: int, *, private: bool = False
    ) -> Sequence[Entry]:
        """Return the entries after a number. Raises Unreadable."""
        try:
            return entries(self.db, key, after, limit, private=private)
        except DECODING as error:
            raise self._unreadable("log", task, error) from None

    def _unreadable(self, kind: str, task: str, why: object) -> Unreadable:
        """Log and count the problem, and return the error to raise."""
        error = Unreadable(kind, task, why)
        self.damage.found(error)
        return error

    def load(self, task: str, scope: Scope | None = None) -> Folded | None:
        """Return the folded task of this id."""
        self.db.execute("BEGIN")
        try:
            row = self.row(task, scope)
            return None if row is None else self._fold(row)
        finally:
            self.db.execute("COMMIT")

    def small(self, task: str, scope: Scope) -> Folded | SqliteHead | None:
        """The same if that takes little time, otherwise only the row."""
        self.db.execute("BEGIN")
        try:
            row = self.row(task, scope)
            return row if row is None or row.size >= SMALL else self._fold(row)
        finally:
            self.db.execute("COMMIT")

    def _fold(self, row: SqliteHead, *, artifacts: bool = True) -> Folded:
        start: Task | None = None
        found = None
        number, size = 0, 0
        if artifacts and row.size >= SMALL:
            found = self.db.execute(
                "SELECT number, body FROM snapshot WHERE task = ?", (row.key,)
            ).fetchone()
            if found is not None:
                number, data = found
                start, size = self._snapshot(row, number, data), len(data)
            if found is not None and start is None:
                number = size = 0
        tail = 0

        def counted() -> Any:
            nonlocal tail
            for length, event in events(self.db, row.key, number, artifacts=artifacts):
                tail += length
                yield event

        try:
            task = fold(start, counted())
        except DECODING as error:
            raise self._unreadable("log", row.id, error) from None
        broken = found is not None and start is None
        return Folded(task, row.head(), key=row.key, snapshot=size, tail=tail, broken=broken)

    def _snapshot(self, row: SqliteHead, number: int, data: bytes) -> Task | None:
        """Return the task of a snapshot; None if it is unusable, because the log has the same
        content."""
        try:
            return snapshot(data, row.id, number, row.last)
        except Outdated:
            return None
        except DECODING as error:
            damage = Unreadable("snapshot", row.id, error)
            self.damage.found(damage, "the log is read from its beginning")
            return None

    def page(self, scope: Scope, query: Query) -> Page:
        """Return a page of folded tasks."""
        db = self.db
        db.execute("BEGIN")
        try:
            found = db.execute(
                "SELECT key FROM scope WHERE agent = ? AND tenant = ? AND owner = ?",
                (scope.agent, scope.tenant, scope.owner),
            ).fetchone()
            if found is None:
                return Page((), None, 0)
            where, values = _where(found[0], query)
            total = self._total(found[0], query, where, values)
            if query.cursor is not None:
                where += " AND (changed, id) < (?, ?)"
                values += query.cursor
            chosen = fetch(
                db,
                f"SELECT changed, id FROM task WHERE {where} "
                "ORDER BY changed DESC, id DESC LIMIT ?",
                (*values, query.size + 1),
            )
            cursor = None
            if len(chosen) > query.size:
                chosen.pop()
                cursor = _place(*chosen[-1])
            tasks: list[Task] = []
            size = 0
            for number, (changed, id) in enumerate(chosen, start=1):
                task, read = self._task(id, query.artifacts)
                if task is not None:
                    tasks.append(task)
                size += read
                if size >= PAGE_BYTES and number < len(chosen):
                    cursor = _place(changed, id)
                    break
            return Page(tasks, cursor, total)
        finally:
            db.execute("COMMIT")

    def _task(self, id: str, artifacts: bool) -> tuple[Task | None, int]:
        """Return the task and how many bytes were read for it; None if it is unreadable, so that
        the others are listed."""
        row = None
        try:
            if row := self.row(id):
                folded = self._fold(row, artifacts=artifacts)
                return folded.task, folded.snapshot + folded.tail
        except Unreadable:
            pass
        return None, row.size if row else 0

    def _total(self, scope: int, query: Query, where: str, values: tuple[Any, ...]) -> int:
        """The number is counted while writing. With a context or a time, it is a count of index
        entries."""
        if query.context or query.since:
            sql = f"SELECT count(*) FROM task WHERE {where}"
        elif query.state is not None:
            sql = "SELECT coalesce(sum(number), 0) FROM tally WHERE scope = ? AND state = ?"
        else:
            sql = "SELECT coalesce(sum(number), 0) FROM tally WHERE scope = ?"
        (total,) = self.db.execute(sql, values).fetchone()
        return int(total)

    def messages(
        self, scope: Scope, context: str, before: MessagePlace, limit: int, task: str
    ) -> list[MessagePlace]:
        """Return the messages of a context before one, latest first."""
        found = fetch(
            self.db,
            "SELECT task.id, message.number, message.at FROM scope "
            "JOIN message ON message.scope = scope.key JOIN task ON task.key = message.task "
            "WHERE scope.agent = ? AND scope.tenant = ? AND scope.owner = ? "
            "AND message.context = ? AND (message.at, message.task, message.number) < "
            "(?, (SELECT key FROM task WHERE id = ?), ?) AND (? = '' OR task.id = ?) "
            "ORDER BY message.at DESC, message.task DESC, message.number DESC LIMIT ?",
            (
                *(scope.agent, scope.tenant, scope.owner, context),
                *(before.at, before.task, before.number, task, task, limit),
            ),
        )
        return [MessagePlace(*columns) for columns in found if isinstance(columns[0], str)]

    def tally(self, scope: Scope) -> dict[TaskState, int]:
        """Count the tasks that have begun, by state."""
        found = self.db.execute(
            "SELECT state, number FROM tally JOIN scope ON scope.key = tally.scope "
            "WHERE agent = ? AND tenant = ? AND owner = ?",
            (scope.agent, scope.tenant, scope.owner),
        )
        return counts(found.fetchall(), self.damage)

    def owner(self, scope: Scope, task: str) -> str | None:
        """Return the owner of the task. Other callers must not notice that its head is
        unreadable."""
        found = fetch(
            self.db,
            "SELECT scope.owner FROM task JOIN scope ON scope.key = task.scope "
            "WHERE task.id = ? AND scope.agent = ? AND scope.tenant = ? AND task.born = 1",
            (task, scope.agent, scope.tenant),
        )
        return found[0][0] if found and isinstance(found[0][0], str) else None

    def census(self, agents: Collection[str]) -> dict[str, Census]:
        """Return the numbers of each of these agents."""
        self.db.execute("BEGIN")
        try:
            return {agent: self._count(agent) for agent in agents}
        finally:
            self.db.execute("COMMIT")

    def _count(self, agent: str) -> Census:
        db = self.db
        tasks = db.execute(
            "SELECT state, sum(number) FROM tally JOIN scope ON scope.key = tally.scope "
            "WHERE scope.agent = ? GROUP BY state",
            (agent,),
        ).fetchall()
        queue = "FROM task WHERE agent = ? AND ready NOTNULL"
        ready, oldest = db.execute(f"SELECT count(*), min(key) {queue}", (agent,)).fetchone()
        # The first in order of age may have a new message, and the next one may be a new task. The
        # claim sets an unreadable one aside.
        waiting = fetch(
            db,
            f"SELECT key, inbox FROM task WHERE key = ? OR key IN (SELECT key {queue} "
            f"ORDER BY ready, key LIMIT {FIRST})",
            (oldest, agent),
        )
        ages = []
        for key, inbox in waiting:
            with suppress(*DECODING):
                (entry,) = entries(db, key, int(inbox.partition(",")[0]) - 1, 1)
                assert isinstance(entry.event, Received)
                ages.append(age(entry.event))
        lines = "SELECT count(*) FROM line WHERE agent = ? AND behind = 1 AND parked ="
        (behind,) = db.execute(f"{lines} 0", (agent,)).fetchone()
        (parked,) = db.execute(f"{lines} 1", (agent,)).fetchone()
        (aside,) = db.execute(
            "SELECT count(*) FROM task WHERE lease > 0 AND holder = ? AND agent = ?", (ASIDE, agent)
        ).fetchone()
        (sleeping,) = db.execute(
            "SELECT count(*) FROM task WHERE due > 0 AND agent = ?", (agent,)
        ).fetchone()
        return Census(
            aside=aside,
            sleeping=sleeping,
            tasks=counts(tasks, self.damage),
            ready=ready,
            oldest=max(ages, default=0.0),
            behind=behind,
            parked=parked,
        )

    def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """Return those with another version, and those that are gone."""
        found = dict(
            self.db.execute(
                "SELECT id, version FROM task WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(list(places)),),
            ).fetchall()
        )
        return [task for task, version in places.items() if found.get(task) != version]

    def expired(
        self, agents: Collection[str], limit: int
    ) -> tuple[list[Head], list[tuple[int, Unreadable]]]:
        """Return rows whose lease or grace period has expired, and the unreadable ones among
        them."""
        now = time.monotonic()
        return self._heads(
            "task.agent IN (SELECT value FROM json_each(?1)) AND task.key IN ("
            "SELECT key FROM task WHERE lease > 0 AND (lease < ?2 OR "
            "cancel_at BETWEEN 1e-9 AND ?2 AND holder <> ?3) "
            "UNION ALL SELECT key FROM task WHERE cancel_at > 0 AND cancel_at < ?2 "
            "AND holder = '' AND ended IS NULL "
            "UNION ALL SELECT key FROM task WHERE deadline > 0 AND deadline < ?4 AND holder = ''"
            ") LIMIT ?5",
            (json.dumps(list(agents)), now, ASIDE, time.time(), limit),
        )

    def due_tasks(self, agents: Collection[str], limit: int) -> list[str]:
        """Return the tasks whose time has come."""
        found = fetch(
            self.db,
            "SELECT id FROM task WHERE due > 0 AND due <= ? AND holder = '' "
            "AND agent IN (SELECT value FROM json_each(?)) ORDER BY due LIMIT ?",
            (time.time(), json.dumps(list(agents)), limit),
        )
        return [id for (id,) in found if isinstance(id, str)]

    def private(self, task: str, scope: Scope) -> list[Entry]:
        """Return the private entries of a log. Raises Unreadable or UnknownEntry."""
        if (row := self.row(task, scope)) is None:
            return []
        base = row.key << BITS
        found = fetch(
            self.db,
            "SELECT place - ?1, turn, kind, entry.body, replay_value.body FROM entry "
            "LEFT JOIN replay_value ON task = ?2 AND number = place - ?1 "
            f"WHERE place > ?1 AND place < ?3 AND kind >= {PRIVATE} ORDER BY place",
            (base, row.key, base + (1 << BITS)),
        )
        try:
            return [with_value(private(*columns), value) for *columns, value in found]
        except DECODING as error:
            raise self._unreadable("log", task, error) from None

    def held(self, worker: str) -> Sequence[Head]:
        """Return the readable rows that a worker has claimed."""
        return self._heads("task.lease > 0 AND task.holder = ?", (worker,))[0]

    def _heads(
        self, where: str, values: tuple[Any, ...]
    ) -> tuple[list[Head], list[tuple[int, Unreadable]]]:
        return heads(SqliteHead, fetch(self.db, f"{FOUND} WHERE {where}", values))

    def webhooks(self, row: SqliteHead) -> list[Webhook]:
        """Return the webhooks of a task, ordered by id, with their secrets as stored. Raises
        Unreadable."""
        found = fetch(
            self.db, "SELECT webhook, id FROM line WHERE task = ? ORDER BY id", (row.key,)
        )
        try:
            return [webhook_of(data, id, row.id) for data, id in found]
        except DECODING as error:
            raise self._unreadable("webhook", row.id, error) from None

    def due(self, agents: Collection[str]) -> bool:
        """Whether any webhook is due."""
        found = self.db.execute(
            "SELECT 1 FROM line WHERE behind = 1 AND parked = 0 AND due <= ? "
            "AND agent IN (SELECT value FROM json_each(?)) LIMIT 1",
            (time.time(), json.dumps(list(agents))),
        )
        return found.fetchone() is not None

    def passed(self, agent: str, passing: Collection[Owner]) -> set[int]:
        """Return the lanes of these owners."""
        found = (
            self.db.execute(
                "SELECT key FROM scope WHERE agent = ? AND tenant = ? AND owner = ?", (agent, *one)
            ).fetchone()
            for one in passing
        )
        return {row[0] for row in found if row is not None}

    def walk(self, agent: str, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return the lanes of an agent after a position, and whether a webhook in each is due."""
        found: list[tuple[int, bool]] = []
        now = time.time()
        while len(found) < limit:
            row = self.db.execute(
                "SELECT lane, due FROM line WHERE agent = ? AND behind = 1 AND parked = 0 "
                "AND lane > ? ORDER BY lane, due LIMIT 1",
                (agent, after),
            ).fetchone()
            if row is None:
                break
            after = row[0]
            found.append((after, row[1] <= now))
        return found

    def undelivered(self, limit: int, parked: bool | None) -> list[WebhookCursor]:
        """Return webhooks with undelivered events."""
        which = {None: "", True: " AND line.parked = 1", False: " AND line.parked = 0"}[parked]
        found = fetch(
            self.db, f"{LINE} WHERE line.behind = 1{which} ORDER BY line.due LIMIT ?", (limit,)
        )
        return [shown(columns) for columns in found]


def _place(changed: str | bytes, id: str | bytes) -> tuple[str, str]:
    """Return a position in a listing as a cursor."""
    return _before(changed), _before(id)


def _before(text: str | bytes) -> str:
    """Return a text; for one that is not UTF-8 a smaller one, so that the listing continues after
    it."""
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode() + "\x7f"


def _where(scope: int, query: Query) -> tuple[str, tuple[Any, ...]]:
    where, values = "born = 1 AND scope = ?", [scope]
    found: list[Any] = values
    if query.context:
        where += " AND context = ?"
        found.append(query.context)
    if query.state is not None:
        where += " AND state = ?"
        found.append(query.state.number)
    if query.since:
        where += " AND changed >= ?"
        found.append(query.since)
    return where, tuple(found)
