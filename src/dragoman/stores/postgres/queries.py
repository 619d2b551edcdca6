"""Queries on PostgreSQL. Queries of the same kind that arrive together are sent as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from dragoman.model.caller import Scope
from dragoman.model.events import Entry, Received
from dragoman.model.lifecycle import fold
from dragoman.model.types import Task, TaskState
from dragoman.stores import codec
from dragoman.stores.codec import ARTIFACT, PRIVATE, entry, private, with_value
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.postgres.transaction import ASKED, COLUMNS, NAMES, NEXT, PostgresHead
from dragoman.stores.store import (
    LARGE,
    PAGE_BYTES,
    Census,
    Head,
    MessagePlace,
    Page,
    Query,
    Unreadable,
)
from dragoman.stores.task_head import age
from dragoman.stores.task_reads import FIRST, SMALL, Folded, counts, heads
from dragoman.stores.unreadable_rows import ASIDE, DECODING, UnreadableRows

Q = TypeVar("Q")
A = TypeVar("A")

MOST = 128
"""The maximum number of questions in one query."""

_ASKED = (
    "unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::text[]) "
    "AS u(place, id, agent, tenant, owner) JOIN task USING (id, agent, tenant, owner)"
)
HEAD = f"SELECT u.place, {COLUMNS} FROM {_ASKED}"
_LOG = """
  LEFT JOIN snapshot ON snapshot.task = task.key AND {snapshots}
  CROSS JOIN LATERAL (
    SELECT array_agg(turn ORDER BY number) AS turns, array_agg(kind ORDER BY number) AS kinds,
    array_agg(body ORDER BY number) AS bodies
    FROM entry WHERE entry.task = task.key AND number > coalesce(snapshot.number, 0)
    AND kind <> {without} AND kind < {private}
  ) AS log
"""
_WITHOUT_ARTIFACTS = f"""
  CASE WHEN size < {SMALL} THEN size ELSE (
    SELECT coalesce(sum(length(body)), 0) FROM entry
    WHERE entry.task = task.key AND kind <> {ARTIFACT}
  ) END
"""
"""What is read of a task's bytes if artifacts are not requested."""
_FOLDED = "snapshot.number, snapshot.body, log.turns, log.kinds, log.bodies"
LOAD = f"SELECT u.place, {COLUMNS}, {_FOLDED} FROM {_ASKED} " + _LOG.format(
    snapshots="true", without=0, private=PRIVATE
)
WHOLE = f"SELECT {COLUMNS}, {_FOLDED} FROM task " + _LOG.format(
    snapshots="false", without=0, private=PRIVATE
)
"""A log from its beginning."""
READ = f"""
SELECT u.place, e.number, e.turn, e.kind, e.body FROM unnest($1::int[], $2::text[], $3::text[],
  $4::text[], $5::text[], $6::int[], $7::int[])
  AS u(place, id, agent, tenant, owner, after, most) JOIN task USING (id, agent, tenant, owner)
LEFT JOIN LATERAL (
  SELECT number, turn, kind, body FROM (
    SELECT *, sum(length(body)) OVER (ORDER BY number) - length(body) AS before
    FROM (SELECT number, turn, kind, CASE WHEN kind < {PRIVATE} THEN body ELSE '' END AS body
          FROM entry WHERE entry.task = task.key AND number > u.after
          ORDER BY number LIMIT u.most) AS next
  ) AS counted WHERE before < {LARGE}
) AS e ON true ORDER BY u.place, e.number
"""

_FREE = f"SELECT {COLUMNS} FROM task WHERE holder = '' AND agent = ANY($1::text[])"
_HELD = f"SELECT {COLUMNS} FROM task WHERE holder <> '' AND agent = ANY($1::text[])"


class Gather(Generic[Q, A]):
    """Sends all questions of the same moment at once, and equal ones only once: when a log grows,
    all its readers ask the same."""

    def __init__(self, ask: Callable[[Sequence[Q]], Awaitable[Sequence[A | Unreadable]]]) -> None:
        self._ask = ask
        self._waiting: dict[Q, list[asyncio.Future[A]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def __call__(self, question: Q) -> A:
        """Return the answer to this question. Others may get the same object."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._go)
        self._waiting.setdefault(question, []).append(future)
        return await future

    def _go(self) -> None:
        waiting, self._waiting = list(self._waiting.items()), {}
        for start in range(0, len(waiting), MOST):
            asking = asyncio.ensure_future(self._answer(waiting[start : start + MOST]))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _answer(self, waiting: Sequence[tuple[Q, list[asyncio.Future[A]]]]) -> None:
        wanted = [each for each in waiting if not all(future.done() for future in each[1])]
        try:
            answers = await self._ask([question for question, _ in wanted])
        except BaseException as error:
            for future in (future for _, futures in wanted for future in futures):
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, futures), answer in zip(wanted, answers, strict=True):
            for future in futures:
                if future.done():
                    continue
                if isinstance(answer, Unreadable):  # the others have their answers
                    future.set_exception(answer)
                else:
                    future.set_result(answer)


class Queries:
    """The queries of readers."""

    def __init__(self, pool: Pool, damage: UnreadableRows) -> None:
        self._pool = pool
        self._damage = damage
        self.head: Gather[tuple[Scope, str], Head | None] = Gather(self._heads)
        self.load: Gather[tuple[Scope, str], Folded | None] = Gather(self._loads)
        self.read: Gather[tuple[Scope, str, int, int], list[Entry] | None] = Gather(self._reads)

    async def _heads(
        self, asked: Sequence[tuple[Scope, str]]
    ) -> Sequence[Head | Unreadable | None]:
        found: list[Head | Unreadable | None] = [None] * len(asked)
        for place, *columns in await self._pool.fetch(HEAD, *_named(asked)):
            try:
                found[place] = PostgresHead.restored(columns).head()
            except Unreadable as error:
                found[place] = self._reported(error)
        return found

    async def _loads(
        self, asked: Sequence[tuple[Scope, str]]
    ) -> Sequence[Folded | Unreadable | None]:
        found: list[Folded | Unreadable | None] = [None] * len(asked)
        for place, *columns in await self._pool.fetch(LOAD, *_named(asked)):
            found[place] = await self._whole(_tried(columns), columns[0])
        return found

    async def _whole(
        self, tried: Folded | Unreadable | None, key: int
    ) -> Folded | Unreadable | None:
        """Return a task as it was read. An unusable snapshot is ignored, because the log has the
        same content."""
        if not isinstance(tried, Unreadable):
            return tried
        if tried.kind != "snapshot":
            return self._reported(tried)
        if not isinstance(tried, _OldSnapshot):
            self._damage.found(tried, "the log is read from its beginning")
        found = await self._pool.fetch(f"{WHOLE} WHERE task.key = $1", key)
        whole = _tried(found[0]) if found else None
        if isinstance(whole, Unreadable):
            return self._reported(whole)
        return None if whole is None else replace(whole, broken=True)

    def _reported(self, error: Unreadable) -> Unreadable:
        self._damage.found(error)
        return error

    async def _reads(
        self, asked: Sequence[tuple[Scope, str, int, int]]
    ) -> Sequence[list[Entry] | Unreadable | None]:
        found: list[list[Entry] | Unreadable | None] = [None] * len(asked)
        named = _named([(scope, task) for scope, task, _, _ in asked])
        after = [min(after, 2**31 - 1) for _, _, after, _ in asked]
        most = [most for _, _, _, most in asked]
        for place, number, turn, kind, body in await self._pool.fetch(READ, *named, after, most):
            entries = found[place]
            if entries is None:
                entries = found[place] = []
            if number is None or isinstance(entries, Unreadable):
                continue
            try:
                entries.append(entry(number, turn, kind, body))
            except DECODING as error:
                why = f"entry {number}: {error}"
                found[place] = self._reported(Unreadable("log", asked[place][1], why))
        return found

    async def page(self, scope: Scope, query: Query) -> Page:
        """Return a page of folded tasks, and the number of matching tasks, from one state of the
        database."""
        where, values = _where(scope, query)
        counted = f"(SELECT count(*) FROM task WHERE {where})"
        if not query.context and not query.since:  # these are counted while writing
            tallied = "agent = $1 AND tenant = $2 AND owner = $3"
            tallied += "" if query.state is None else " AND state = $4"
            counted = f"(SELECT coalesce(sum(number), 0) FROM tally WHERE {tallied})"
        further = ""
        if query.cursor is not None:
            further = f" AND (changed, id) < (${len(values) + 1}, ${len(values) + 2})"
            values += _clean(query.cursor)
        snapshots, without = ("true", 0) if query.artifacts else ("false", ARTIFACT)
        size = "size" if query.artifacts else _WITHOUT_ARTIFACTS
        size = f"greatest({size}, 0)"  # a damaged task must not take the place of another one
        sql = (
            f"WITH chosen AS MATERIALIZED (SELECT *, {size} AS bytes FROM task "
            f"WHERE {where}{further} ORDER BY changed DESC, id DESC LIMIT {query.size + 1}), "
            "page AS MATERIALIZED (SELECT *, sum(bytes) OVER (ORDER BY changed DESC, id DESC) "
            "- bytes AS before FROM chosen), "
            f"total AS (SELECT {counted} AS number, (SELECT count(*) FROM chosen) AS chosen) "
            f"SELECT total.number, total.chosen, {COLUMNS}, {_FOLDED} FROM total LEFT JOIN ("
            f"(SELECT * FROM page WHERE before < {PAGE_BYTES}) AS task "
            f"{_LOG.format(snapshots=snapshots, without=without, private=PRIVATE)}) "
            "ON true ORDER BY task.changed DESC, task.id DESC"
        )
        found = await self._pool.fetch(sql, *values)
        total, chosen = int(found[0][0]), int(found[0][1])
        rows = [columns[2:] for columns in found if columns[2] is not None][: query.size]
        cursor = None
        if rows and len(rows) < chosen:  # also after one that is unreadable
            cursor = (rows[-1][NAMES.index("changed")], rows[-1][NAMES.index("id")])
        if sum(sum(map(len, columns[-1] or ())) for columns in rows) > LARGE:  # this takes long
            tried = await asyncio.to_thread(lambda: [_tried(columns) for columns in rows])
        else:
            tried = [_tried(columns) for columns in rows]
        tasks = []
        for columns, one in zip(rows, tried, strict=True):
            record = await self._whole(one, columns[0])
            if isinstance(record, Folded):  # the others are listed
                tasks.append(record.task)
        return Page(tasks, cursor, total)

    async def messages(
        self, scope: Scope, context: str, before: MessagePlace, limit: int, task: str
    ) -> list[MessagePlace]:
        """Return the messages of a context before one, latest first."""
        found = await self._pool.fetch(
            "SELECT task.id, message.number, message.at FROM message "
            "JOIN task ON task.key = message.task WHERE message.agent = $1 "
            "AND message.tenant = $2 AND message.owner = $3 AND message.context = $4 "
            "AND (message.at, message.task, message.number) < "
            "($5, (SELECT key FROM task WHERE id = $6), $7) AND ($8 = '' OR task.id = $8) "
            "ORDER BY message.at DESC, message.task DESC, message.number DESC LIMIT $9",
            *(*_scope(scope), codec.digested(context), before.at, before.task, before.number),
            *(task, limit),
        )
        return [MessagePlace(*columns) for columns in found]

    async def tally(self, scope: Scope) -> Mapping[TaskState, int]:
        """Count the tasks that have begun, by state."""
        found = await self._pool.fetch(
            "SELECT state, sum(number) FROM tally WHERE agent = $1 AND tenant = $2 AND owner = $3 "
            "GROUP BY state",
            *_scope(scope),
        )
        return counts(found, self._damage)

    async def find(self, agent: str, task: str) -> Head | None:
        """Return the head of a task of this agent, of any owner. Raises Unreadable."""
        found = await self._pool.fetch(
            f"SELECT {COLUMNS} FROM task WHERE id = $1 AND agent = $2", *_clean((task, agent))
        )
        try:
            return PostgresHead.restored(found[0]).head() if found else None
        except Unreadable as error:
            raise self._reported(error) from None

    async def owner(self, scope: Scope, task: str) -> str | None:
        """Return the owner of the task."""
        found = await self._pool.fetch(
            "SELECT owner FROM task WHERE id = $1 AND agent = $2 AND tenant = $3 AND born",
            *_clean((task, scope.agent, scope.tenant)),
        )
        return str(found[0][0]) if found else None

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """Return those with another version, and those that are gone."""
        found = dict(
            await self._pool.fetch(
                "SELECT id, version FROM task WHERE id = ANY($1::text[])",
                list(_clean(list(places))),
            )
        )
        return [task for task, version in places.items() if found.get(task) != version]

    async def expired(
        self, agents: Collection[str], limit: int
    ) -> tuple[list[Head], list[tuple[int, Unreadable]]]:
        """Return rows whose lease or grace period has expired, and the unreadable ones among
        them."""
        found = await self._pool.fetch(
            f"{_HELD} AND lease < {ASKED} UNION ALL {_HELD} AND cancel_at > 0 "
            f"AND cancel_at <= {ASKED} AND lease >= {ASKED} AND holder <> $3 "
            f"UNION ALL {_FREE} AND cancel_at > 0 AND cancel_at <= {ASKED} AND ended IS NULL "
            f"UNION ALL {_FREE} AND deadline > 0 AND deadline <= {ASKED} LIMIT $2",
            *(list(agents), limit, ASIDE),
        )
        return heads(PostgresHead, found)

    async def due_tasks(self, agents: Collection[str], limit: int) -> list[str]:
        """Return the tasks whose time has come."""
        found = await self._pool.fetch(
            f"SELECT id FROM task WHERE due > 0 AND due <= {ASKED} AND holder = '' "
            "AND agent = ANY($1::text[]) ORDER BY due LIMIT $2",
            *(list(agents), limit),
        )
        return [id for (id,) in found]

    async def private(self, scope: Scope, task: str) -> list[Entry]:
        """Return the private entries of a log. Raises Unreadable or UnknownEntry."""
        found = await self._pool.fetch(
            "SELECT entry.number, entry.turn, entry.kind, entry.body, value.body FROM entry "
            "JOIN task ON task.key = entry.task LEFT JOIN replay_value AS value "
            "ON value.task = entry.task AND value.number = entry.number "
            "WHERE task.id = $1 AND task.agent = $2 AND task.tenant = $3 AND task.owner = $4 "
            f"AND kind >= {PRIVATE} ORDER BY entry.number",
            *_clean((task,)),
            *_scope(scope),
        )
        try:
            return [with_value(private(*columns), value) for *columns, value in found]
        except DECODING as error:
            raise self._reported(Unreadable("log", task, error)) from None

    async def held(self, worker: str) -> Sequence[Head]:
        """Return the readable rows that a worker has claimed."""
        found = await self._pool.fetch(
            f"SELECT {COLUMNS} FROM task WHERE holder <> '' AND holder = $1", worker
        )
        return heads(PostgresHead, found)[0]

    async def census(self, agents: Collection[str]) -> Mapping[str, Census]:
        """Return the numbers of each of these agents."""
        found = {}
        for agent in agents:
            tasks = await self._pool.fetch(
                "SELECT state, sum(number) FROM tally WHERE agent = $1 GROUP BY state", agent
            )
            ((ready, oldest),) = await self._pool.fetch(
                "SELECT count(*), min(key) FROM task WHERE agent = $1 AND ready IS NOT NULL", agent
            )
            ((behind, parked, aside, sleeping),) = await self._pool.fetch(
                "SELECT (SELECT count(*) FROM line WHERE agent = $1 AND behind AND NOT parked), "
                "(SELECT count(*) FROM line WHERE agent = $1 AND behind AND parked), "
                "(SELECT count(*) FROM task WHERE agent = $1 AND holder <> '' AND holder = $2), "
                "(SELECT count(*) FROM task WHERE agent = $1 AND due > 0)",
                *(agent, ASIDE),
            )
            # the first in order of age may have a new message, and the next may be a new task
            waiting = await self._pool.fetch(
                "SELECT entry.number, entry.turn, entry.kind, entry.body FROM ("
                "SELECT key, inbox FROM task WHERE key = $2 UNION (SELECT key, inbox FROM task "
                f"WHERE agent = $1 AND ready IS NOT NULL ORDER BY ready, key LIMIT {FIRST})"
                ") AS task JOIN entry ON entry.task = task.key "
                f"AND entry.number = {NEXT.format('task.inbox')}",
                *(agent, oldest),
            )
            found[agent] = Census(
                tasks=counts(tasks, self._damage),
                aside=aside,
                sleeping=sleeping,
                ready=ready,
                oldest=_oldest(waiting),
                behind=behind,
                parked=parked,
            )
        return found

    async def keep(self, folded: Folded) -> None:
        """Store a snapshot."""
        if folded.broken:
            await self._pool.fetch("DELETE FROM snapshot WHERE task = $1", folded.key)
        await self._pool.fetch(
            "INSERT INTO snapshot SELECT $1, $2, $3 WHERE EXISTS (SELECT 1 FROM task WHERE "
            "key = $1) ON CONFLICT (task) DO UPDATE SET number = excluded.number, "
            "body = excluded.body WHERE snapshot.number < excluded.number",
            *(folded.key, folded.head.last, codec.keep(folded.task)),
        )


class _OldSnapshot(Unreadable):
    """Whether the snapshot has an older form."""


def _tried(columns: Sequence[Any]) -> Folded | Unreadable | None:
    """Return the task of a row and its log, if it has begun; or the error if it is unreadable."""
    try:
        row = PostgresHead.restored(columns[: len(NAMES)])
        return _folded(row, *columns[len(NAMES) :]) if row.born else None
    except Unreadable as error:
        return error


def _folded(
    row: PostgresHead, number: int, snapshot: bytes | None, turns: Any, kinds: Any, bodies: Any
) -> Folded:
    start: Task | None = None
    try:
        if snapshot is not None:
            start = codec.snapshot(snapshot, row.id, number, row.last)
    except codec.Outdated as error:
        raise _OldSnapshot("snapshot", row.id, error) from None
    except DECODING as error:
        raise Unreadable("snapshot", row.id, error) from None
    events = (
        entry(0, turn, kind, body).event
        for turn, kind, body in zip(turns or (), kinds or (), bodies or (), strict=True)
    )
    try:
        task = fold(start, events)  # type: ignore[arg-type]
    except DECODING as error:
        raise Unreadable("log", row.id, error) from None
    tail = sum(map(len, bodies or ()))
    return Folded(task, row.head(), key=row.key, snapshot=len(snapshot or b""), tail=tail)


def _oldest(found: Iterable[Any]) -> float:
    """Return how long the oldest readable message of these has waited."""
    ages = []
    for columns in found:
        with suppress(*DECODING):
            event = entry(*columns).event
            assert isinstance(event, Received)
            ages.append(age(event))
    return max(ages, default=0.0)


def _named(asked: Sequence[tuple[Scope, str]]) -> tuple[list[Any], ...]:
    return (
        list(range(len(asked))),
        list(_clean([task for _, task in asked])),
        [scope.agent for scope, _ in asked],
        [scope.tenant for scope, _ in asked],
        [scope.owner for scope, _ in asked],
    )


def _scope(scope: Scope) -> tuple[str, str, str]:
    return scope.agent, scope.tenant, scope.owner


def _clean(texts: Sequence[str]) -> tuple[str, ...]:
    """Replace names with NUL, which PostgreSQL cannot store, by a name that no row has."""
    return tuple("\1" if "\0" in text else text for text in texts)


def _where(scope: Scope, query: Query) -> tuple[str, tuple[Any, ...]]:
    where = "born AND agent = $1 AND tenant = $2 AND owner = $3"
    values: tuple[Any, ...] = _scope(scope)
    if query.state is not None:
        values += (query.state.number,)
        where += f" AND state = ${len(values)}"
    if query.context:
        values += _clean((query.context,))
        where += f" AND md5(context) = md5(${len(values)}) AND context = ${len(values)}"
    if query.since:
        values += (query.since,)
        where += f" AND changed >= ${len(values)}"
    return where, values
