"""What is read from the file. Every answer comes from one state of it."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.caller import Scope
from dragoman.events import Entry, Received
from dragoman.lifecycle import fold
from dragoman.store import PAGE_BYTES, Census, Head, Line, Page, Party, Query, Webhook
from dragoman.stores.codec import STATES, decode_task, decode_webhook
from dragoman.stores.row import age
from dragoman.stores.sqlite.driver import Connection
from dragoman.stores.sqlite.ledger import FOUND, MINE, Leaf, entries, events
from dragoman.stores.sqlite.lines import LINE, line
from dragoman.types import Task, TaskState

SMALL = 64 * 1024
"""A log of fewer bytes is folded from its beginning; a larger one gets snapshots."""


class Folded(msgspec.Struct, frozen=True):
    """A task, and what it took to fold it."""

    row: Leaf
    task: Task
    snapshot: int
    """The bytes of the snapshot that it began with."""
    tail: int
    """The bytes that were folded onto it."""

    @property
    def grown(self) -> bool:
        """The tail has grown as large as the snapshot: time for another."""
        return self.tail >= max(SMALL, self.snapshot)


class View:
    """A reader's connection. Not to be used by two threads at once."""

    def __init__(self, db: Connection) -> None:
        self.db = db

    def row(self, task: str, scope: Scope | None = None) -> Leaf | None:
        """The row of this id, of whomever; or that of this scope."""
        if scope is None:
            found = self.db.execute(f"{FOUND} WHERE task.id = ?", (task,)).fetchone()
        else:
            whose = (task, scope.agent, scope.tenant, scope.owner)
            found = self.db.execute(f"{FOUND} {MINE}", whose).fetchone()
        return None if found is None else Leaf.restored(found)

    def read(self, key: int, after: int, limit: int) -> Sequence[Entry]:
        """Entries after a place."""
        return entries(self.db, key, after, limit)

    def load(self, task: str, scope: Scope | None = None) -> Folded | None:
        """The task of this id, folded."""
        self.db.execute("BEGIN")
        try:
            row = self.row(task, scope)
            return None if row is None else self._fold(row)
        finally:
            self.db.execute("COMMIT")

    def small(self, task: str, scope: Scope) -> Folded | Leaf | None:
        """The same if that is quickly done, else only the row."""
        self.db.execute("BEGIN")
        try:
            row = self.row(task, scope)
            return row if row is None or row.size >= SMALL else self._fold(row)
        finally:
            self.db.execute("COMMIT")

    def _fold(self, row: Leaf, *, artifacts: bool = True) -> Folded:
        start: Task | None = None
        number, size = 0, 0
        if artifacts and row.size >= SMALL:
            found = self.db.execute(
                "SELECT number, body FROM snapshot WHERE task = ?", (row.key,)
            ).fetchone()
            if found is not None:
                number, data = found
                start, size = decode_task(data), len(data)
        tail = 0

        def counted() -> Any:
            nonlocal tail
            for length, event in events(self.db, row.key, number, artifacts=artifacts):
                tail += length
                yield event

        task = fold(start, counted())
        return Folded(row, task, size, tail)

    def page(self, scope: Scope, query: Query) -> Page:
        """A page of tasks, folded."""
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
            chosen = db.execute(
                f"SELECT changed, id FROM task WHERE {where} "
                "ORDER BY changed DESC, id DESC LIMIT ?",
                (*values, query.size + 1),
            ).fetchall()
            cursor = None
            if len(chosen) > query.size:
                chosen.pop()
                cursor = (chosen[-1][0], chosen[-1][1])
            tasks: list[Task] = []
            size = 0
            for place in chosen:
                row = self.row(place[1])
                assert row is not None  # it is one state of the file
                folded = self._fold(row, artifacts=query.artifacts)
                tasks.append(folded.task)
                size += folded.snapshot + folded.tail
                if size >= PAGE_BYTES and place is not chosen[-1]:
                    cursor = (place[0], place[1])
                    break
            return Page(tasks, cursor, total)
        finally:
            db.execute("COMMIT")

    def _total(self, scope: int, query: Query, where: str, values: tuple[Any, ...]) -> int:
        """Counted while writing; a context or a time makes it a count of index entries."""
        if query.context or query.since:
            sql = f"SELECT count(*) FROM task WHERE {where}"
        elif query.state is not None:
            sql = "SELECT coalesce(sum(number), 0) FROM tally WHERE scope = ? AND state = ?"
        else:
            sql = "SELECT coalesce(sum(number), 0) FROM tally WHERE scope = ?"
        (total,) = self.db.execute(sql, values).fetchone()
        return int(total)

    def tally(self, scope: Scope) -> dict[TaskState, int]:
        """How many born tasks there are in each state."""
        found = self.db.execute(
            "SELECT state, number FROM tally JOIN scope ON scope.key = tally.scope "
            "WHERE agent = ? AND tenant = ? AND owner = ?",
            (scope.agent, scope.tenant, scope.owner),
        )
        return {STATES[state]: number for state, number in found.fetchall()}

    def census(self, agents: Collection[str]) -> dict[str, Census]:
        """What there is of each of these agents."""
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
        # the first in order of age may have a new message, and the next one may be a new task
        waiting = db.execute(
            f"SELECT key, inbox FROM task WHERE key IN (?, (SELECT key {queue} "
            "ORDER BY ready, key LIMIT 1))",
            (oldest, agent),
        ).fetchall()
        ages = []
        for key, inbox in waiting:
            (entry,) = entries(db, key, int(inbox.partition(",")[0]) - 1, 1)
            assert isinstance(entry.event, Received)
            ages.append(age(entry.event))
        lines = "SELECT count(*) FROM line WHERE agent = ? AND behind = 1 AND parked ="
        (behind,) = db.execute(f"{lines} 0", (agent,)).fetchone()
        (parked,) = db.execute(f"{lines} 1", (agent,)).fetchone()
        return Census(
            tasks={STATES[state]: number for state, number in tasks},
            ready=ready,
            oldest=max(ages, default=0.0),
            behind=behind,
            parked=parked,
        )

    def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """Those whose version is another, or that are gone."""
        found = dict(
            self.db.execute(
                "SELECT id, version FROM task WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(list(places)),),
            ).fetchall()
        )
        return [task for task, version in places.items() if found.get(task) != version]

    def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """Rows whose lease, or grace, has run out."""
        now = time.monotonic()
        found = self.db.execute(
            f"{FOUND} WHERE task.lease > 0 AND (task.lease < ? OR task.cancel_at BETWEEN 1e-9 "
            "AND ?) AND task.agent IN (SELECT value FROM json_each(?)) LIMIT ?",
            (now, now, json.dumps(list(agents)), limit),
        )
        return [Leaf.restored(columns).head() for columns in found.fetchall()]

    def held(self, worker: str) -> Sequence[Head]:
        """Rows that a worker has claimed."""
        found = self.db.execute(f"{FOUND} WHERE task.lease > 0 AND task.holder = ?", (worker,))
        return [Leaf.restored(columns).head() for columns in found.fetchall()]

    def webhooks(self, key: int) -> list[Webhook]:
        """The webhooks of a task, in order of id, their secrets as they are stored."""
        found = self.db.execute("SELECT webhook FROM line WHERE task = ? ORDER BY id", (key,))
        return [decode_webhook(row[0]) for row in found.fetchall()]

    def due(self, agents: Collection[str]) -> bool:
        """Whether any line is due."""
        found = self.db.execute(
            "SELECT 1 FROM line WHERE behind = 1 AND parked = 0 AND due <= ? "
            "AND agent IN (SELECT value FROM json_each(?)) LIMIT 1",
            (time.time(), json.dumps(list(agents))),
        )
        return found.fetchone() is not None

    def passed(self, agent: str, passing: Collection[Party]) -> set[int]:
        """The lanes of these owners."""
        found = (
            self.db.execute(
                "SELECT key FROM scope WHERE agent = ? AND tenant = ? AND owner = ?", (agent, *one)
            ).fetchone()
            for one in passing
        )
        return {row[0] for row in found if row is not None}

    def walk(self, agent: str, after: int, limit: int) -> list[tuple[int, bool]]:
        """The lanes of an agent from a place on, and whether a line of each is due."""
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

    def lines(self, limit: int, parked: bool | None) -> list[Line]:
        """Lines with something to deliver."""
        which = {None: "", True: " AND line.parked = 1", False: " AND line.parked = 0"}[parked]
        found = self.db.execute(
            f"{LINE} WHERE line.behind = 1{which} ORDER BY line.due LIMIT ?", (limit,)
        )
        return [line(columns) for columns in found.fetchall()]


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
