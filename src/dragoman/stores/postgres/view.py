"""What is read from PostgreSQL. Questions of the same kind that come together are one query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dragoman.caller import Scope
from dragoman.events import Entry, Received
from dragoman.lifecycle import fold
from dragoman.store import LARGE, PAGE_BYTES, Census, Head, Page, Query, Record
from dragoman.stores.codec import ARTIFACT, STATES, decode_task, encode, entry
from dragoman.stores.postgres.ledger import ASKED, COLUMNS, NAMES, Leaf
from dragoman.stores.postgres.link import Link
from dragoman.stores.row import age
from dragoman.types import Task, TaskState

Q = TypeVar("Q")
A = TypeVar("A")

SMALL = 64 * 1024
"""A log of fewer bytes is folded from its beginning; a larger one gets snapshots."""
MOST = 128
"""So many questions are one query, at most."""

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
    AND kind <> {without}
  ) AS log
"""
_WITHOUT_ARTIFACTS = f"""
  CASE WHEN size < {SMALL} THEN size ELSE (
    SELECT coalesce(sum(length(body)), 0) FROM entry
    WHERE entry.task = task.key AND kind <> {ARTIFACT}
  ) END
"""
"""What of a task's bytes is read where artifacts are not asked for."""
_FOLDED = "snapshot.body, log.turns, log.kinds, log.bodies"
LOAD = f"SELECT u.place, {COLUMNS}, {_FOLDED} FROM {_ASKED} " + _LOG.format(
    snapshots="true", without=0
)
READ = f"""
SELECT u.place, e.number, e.turn, e.kind, e.body FROM unnest($1::int[], $2::text[], $3::text[],
  $4::text[], $5::text[], $6::int[], $7::int[])
  AS u(place, id, agent, tenant, owner, after, most) JOIN task USING (id, agent, tenant, owner)
LEFT JOIN LATERAL (
  SELECT number, turn, kind, body FROM (
    SELECT *, sum(length(body)) OVER (ORDER BY number) - length(body) AS before
    FROM (SELECT * FROM entry WHERE entry.task = task.key AND number > u.after
          ORDER BY number LIMIT u.most) AS next
  ) AS counted WHERE before < {LARGE}
) AS e ON true ORDER BY u.place, e.number
"""

_HELD = f"SELECT {COLUMNS} FROM task WHERE holder <> '' AND agent = ANY($1::text[])"


class Gather(Generic[Q, A]):
    """Asks for all that is wanted in the same moment at once, and for the same thing once: when a
    log moves on, all who follow it ask the same."""

    def __init__(self, ask: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]) -> None:
        self._ask = ask
        self._waiting: dict[Q, list[asyncio.Future[A]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def __call__(self, question: Q) -> A:
        """The answer to this question, which others may be given as well."""
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
                if not future.done():
                    future.set_result(answer)


class Folded(Record, frozen=True, gc=False):
    """A task folded from its log, and what that took."""

    key: int = 0
    snapshot: int = 0
    """The bytes of the snapshot that it began with."""
    tail: int = 0
    """The bytes that were folded onto it."""

    @property
    def grown(self) -> bool:
        """The tail has grown as large as the snapshot: time for another."""
        return self.tail >= max(SMALL, self.snapshot)


class View:
    """The readers."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.head: Gather[tuple[Scope, str], Head | None] = Gather(self._heads)
        self.load: Gather[tuple[Scope, str], Folded | None] = Gather(self._loads)
        self.read: Gather[tuple[Scope, str, int, int], list[Entry] | None] = Gather(self._reads)

    async def _heads(self, asked: Sequence[tuple[Scope, str]]) -> Sequence[Head | None]:
        found: list[Head | None] = [None] * len(asked)
        for place, *columns in await self._link.fetch(HEAD, *_named(asked)):
            found[place] = Leaf.restored(columns).head()
        return found

    async def _loads(self, asked: Sequence[tuple[Scope, str]]) -> Sequence[Folded | None]:
        found: list[Folded | None] = [None] * len(asked)
        width = len(NAMES) + 1
        for columns in await self._link.fetch(LOAD, *_named(asked)):
            row = Leaf.restored(columns[1:width])
            found[columns[0]] = _folded(row, *columns[width:]) if row.born else None
        return found

    async def _reads(
        self, asked: Sequence[tuple[Scope, str, int, int]]
    ) -> Sequence[list[Entry] | None]:
        found: list[list[Entry] | None] = [None] * len(asked)
        named = _named([(scope, task) for scope, task, _, _ in asked])
        after = [min(after, 2**31 - 1) for _, _, after, _ in asked]
        most = [most for _, _, _, most in asked]
        for place, number, turn, kind, body in await self._link.fetch(READ, *named, after, most):
            entries = found[place]
            if entries is None:
                entries = found[place] = []
            if number is not None:
                entries.append(entry(number, turn, kind, body))
        return found

    async def page(self, scope: Scope, query: Query) -> Page:
        """A page of tasks, folded, and how many there are; of one state of the database."""
        where, values = _where(scope, query)
        counted = f"(SELECT count(*) FROM task WHERE {where})"
        if not query.context and not query.since:  # those are counted while writing
            tallied = "agent = $1 AND tenant = $2 AND owner = $3"
            tallied += "" if query.state is None else " AND state = $4"
            counted = f"(SELECT coalesce(sum(number), 0) FROM tally WHERE {tallied})"
        further = ""
        if query.cursor is not None:
            further = f" AND (changed, id) < (${len(values) + 1}, ${len(values) + 2})"
            values += _clean(query.cursor)
        snapshots, without = ("true", 0) if query.artifacts else ("false", ARTIFACT)
        size = "size" if query.artifacts else _WITHOUT_ARTIFACTS
        sql = (
            f"WITH chosen AS MATERIALIZED (SELECT *, {size} AS bytes FROM task "
            f"WHERE {where}{further} ORDER BY changed DESC, id DESC LIMIT {query.size + 1}), "
            "page AS MATERIALIZED (SELECT *, sum(bytes) OVER (ORDER BY changed DESC, id DESC) "
            "- bytes AS before FROM chosen), "
            f"total AS (SELECT {counted} AS number, (SELECT count(*) FROM chosen) AS chosen) "
            f"SELECT total.number, total.chosen, {COLUMNS}, {_FOLDED} FROM total LEFT JOIN ("
            f"(SELECT * FROM page WHERE before < {PAGE_BYTES}) AS task "
            f"{_LOG.format(snapshots=snapshots, without=without)}) "
            "ON true ORDER BY task.changed DESC, task.id DESC"
        )
        found = await self._link.fetch(sql, *values)
        total, chosen = int(found[0][0]), int(found[0][1])
        width = len(NAMES) + 2
        rows = [columns for columns in found if columns[2] is not None][: query.size]
        cursor = None
        if rows and len(rows) < chosen:
            last = Leaf.restored(rows[-1][2:width])
            cursor = (last.changed, last.id)

        def tasks() -> list[Task]:
            return [_folded(Leaf.restored(c[2:width]), *c[width:]).task for c in rows]

        if sum(sum(map(len, columns[-1] or ())) for columns in rows) > LARGE:
            return Page(await asyncio.to_thread(tasks), cursor, total)  # it takes long
        return Page(tasks(), cursor, total)

    async def tally(self, scope: Scope) -> Mapping[TaskState, int]:
        """How many born tasks there are in each state."""
        found = await self._link.fetch(
            "SELECT state, sum(number) FROM tally WHERE agent = $1 AND tenant = $2 AND owner = $3 "
            "GROUP BY state",
            *_scope(scope),
        )
        return {STATES[state]: int(number) for state, number in found}

    async def owner(self, scope: Scope, task: str) -> str | None:
        """Whose task this is."""
        found = await self._link.fetch(
            "SELECT owner FROM task WHERE id = $1 AND agent = $2 AND tenant = $3 AND born",
            *_clean((task, scope.agent, scope.tenant)),
        )
        return str(found[0][0]) if found else None

    async def moved(self, places: Mapping[str, int]) -> Collection[str]:
        """Those whose version is another, or that are gone."""
        found = dict(
            await self._link.fetch(
                "SELECT id, version FROM task WHERE id = ANY($1::text[])",
                list(_clean(list(places))),
            )
        )
        return [task for task, version in places.items() if found.get(task) != version]

    async def expired(self, agents: Collection[str], limit: int) -> Sequence[Head]:
        """Rows whose lease, or grace, has run out."""
        found = await self._link.fetch(
            f"{_HELD} AND lease < {ASKED} UNION ALL {_HELD} AND cancel_at > 0 "
            f"AND cancel_at <= {ASKED} AND lease >= {ASKED} LIMIT $2",
            list(agents),
            limit,
        )
        return [Leaf.restored(columns).head() for columns in found]

    async def held(self, worker: str) -> Sequence[Head]:
        """Rows that a worker has claimed."""
        found = await self._link.fetch(
            f"SELECT {COLUMNS} FROM task WHERE holder <> '' AND holder = $1", worker
        )
        return [Leaf.restored(columns).head() for columns in found]

    async def census(self, agents: Collection[str]) -> Mapping[str, Census]:
        """What there is of each of these agents."""
        found = {}
        for agent in agents:
            tasks = await self._link.fetch(
                "SELECT state, sum(number) FROM tally WHERE agent = $1 GROUP BY state", agent
            )
            ((ready, oldest),) = await self._link.fetch(
                "SELECT count(*), min(key) FROM task WHERE agent = $1 AND ready IS NOT NULL", agent
            )
            ((behind, parked),) = await self._link.fetch(
                "SELECT (SELECT count(*) FROM line WHERE agent = $1 AND behind AND NOT parked), "
                "(SELECT count(*) FROM line WHERE agent = $1 AND behind AND parked)",
                agent,
            )
            # the first in order of age may have a new message, and the next may be a new task
            waiting = await self._link.fetch(
                "SELECT entry.number, entry.turn, entry.kind, entry.body FROM task "
                "JOIN entry ON entry.task = task.key "
                "AND entry.number = split_part(task.inbox, ',', 1)::int WHERE task.key IN ($2, "
                "(SELECT key FROM task WHERE agent = $1 AND ready IS NOT NULL "
                "ORDER BY ready, key LIMIT 1))",
                *(agent, oldest),
            )
            events = (entry(*columns).event for columns in waiting)
            ages = [age(event) for event in events if isinstance(event, Received)]
            found[agent] = Census(
                tasks={STATES[state]: int(number) for state, number in tasks},
                ready=ready,
                oldest=max(ages, default=0.0),
                behind=behind,
                parked=parked,
            )
        return found

    async def keep(self, folded: Folded) -> None:
        """Keep what was folded."""
        await self._link.fetch(
            "INSERT INTO snapshot SELECT $1, $2, $3 WHERE EXISTS (SELECT 1 FROM task WHERE "
            "key = $1) ON CONFLICT (task) DO UPDATE SET number = excluded.number, "
            "body = excluded.body WHERE snapshot.number < excluded.number",
            *(folded.key, folded.head.last, encode(folded.task)),
        )


def _folded(row: Leaf, snapshot: bytes | None, turns: Any, kinds: Any, bodies: Any) -> Folded:
    start: Task | None = None if snapshot is None else decode_task(snapshot)
    events = (
        entry(0, turn, kind, body).event
        for turn, kind, body in zip(turns or (), kinds or (), bodies or (), strict=True)
    )
    task = fold(start, events)  # type: ignore[arg-type]
    tail = sum(map(len, bodies or ()))
    return Folded(task, row.head(), key=row.key, snapshot=len(snapshot or b""), tail=tail)


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
    """What PostgreSQL can be asked for; a name with NUL in it names nothing there."""
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
