"""Export and import of tasks in PostgreSQL, many at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import Raw

from dragoman.model.caller import Scope, long
from dragoman.stores import context_values, export_format
from dragoman.stores.admin import HEAVY, Differs, Fate, ValueFate, fate
from dragoman.stores.claim_order import QueueRanks, Ranks
from dragoman.stores.codec import digested
from dragoman.stores.export_format import (
    ExportedContext,
    ExportedReservation,
    ExportedTask,
    ExportedWebhook,
    Item,
    Stub,
)
from dragoman.stores.postgres.deliveries import key as webhook_key
from dragoman.stores.postgres.prune import SHARDS, THESE, forget_values
from dragoman.stores.postgres.queue import probe
from dragoman.stores.postgres.schema import BLOCK, LANE
from dragoman.stores.postgres.transaction import COLUMNS, NAMES, NOW, PostgresHead
from dragoman.stores.store import Unreadable
from dragoman.stores.unreadable_rows import ASIDE

BATCH = 64
"""How many tasks are read in one state of the database."""
MOST = 2**31 - 1
"""The largest number that a column can store."""

_NEXT = (
    f"SELECT {COLUMNS} FROM task WHERE key > $1 AND ($2 = '' OR agent = $2) "
    "AND ($3 = '' OR changed >= $3) ORDER BY key LIMIT $4"
)
_ENTRIES = "SELECT task, turn, kind, body FROM entry WHERE task = ANY($1) ORDER BY task, number"
_RECEIPTS = "SELECT task, name, digest, number FROM receipt WHERE task = ANY($1) ORDER BY name"
_LINES = (
    "SELECT task, webhook, cursor, attempts, due, parked, reason FROM line WHERE task = ANY($1) "
    "ORDER BY id"
)
_REPLAYS = "SELECT task, number, body FROM replay_value WHERE task = ANY($1) ORDER BY number"
_TAKEN = (
    "SELECT u.place, task.id FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], "
    "$5::bytea[]) AS u(place, agent, tenant, owner, name) "
    "JOIN receipt USING (agent, tenant, owner, name) JOIN task ON task.key = receipt.task"
)
_LINE = (
    *("task", "id", "agent", "webhook", "cursor", "attempts"),
    *("due", "behind", "parked", "reason", "ticket"),
)
_LANED = (
    f"UPDATE line SET lane = {LANE.format('task')} FROM task "
    "WHERE task.key = line.task AND task.key = ANY($1)"
)
_COUNT = (
    "INSERT INTO tally SELECT agent, tenant, owner, state, $5, count(*) FROM unnest($1::text[], "
    "$2::text[], $3::text[], $4::smallint[]) AS u(agent, tenant, owner, state) "
    "GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4 ON CONFLICT (agent, tenant, owner, state, shard) "
    "DO UPDATE SET number = tally.number + excluded.number"
)


# -- out


async def page(
    db: Any, key: int, broken: Callable[[str], None], *, agent: str, since: str
) -> tuple[int, list[ExportedTask]] | None:
    """Return the tasks after a key, and the last key; None at the end."""
    async with db.transaction(isolation="repeatable_read", readonly=True):
        found = await db.fetch(_NEXT, key, agent, since, BATCH)
        if not found:
            return None
        rows: list[PostgresHead] = []
        heavy = 0
        for columns in found:
            key = columns[0]
            try:
                rows.append(PostgresHead.restored(columns))
            except Unreadable as error:
                broken(_broken(columns[1], error.why))
                continue
            heavy += rows[-1].size
            if heavy >= HEAVY:
                break
        return key, await take(db, rows, broken)


async def take(
    db: Any, rows: Sequence[PostgresHead], broken: Callable[[str], None]
) -> list[ExportedTask]:
    """Return the tasks of these rows. Those whose log has a gap are reported."""
    keys = [row.key for row in rows]
    entries: dict[int, list[Any]] = {key: [] for key in keys}
    receipts: dict[int, list[Stub]] = {key: [] for key in keys}
    webhooks: dict[int, list[ExportedWebhook]] = {key: [] for key in keys}
    for key, *columns in await db.fetch(_ENTRIES, keys):
        entries[key].append(columns)
    for key, name, digest, number in await db.fetch(_RECEIPTS, keys):
        receipts[key].append(Stub(export_format.veil(name), digest, number))
    for key, webhook, cursor, attempts, due, parked, reason in await db.fetch(_LINES, keys):
        webhooks[key].append(
            ExportedWebhook(
                webhook=Raw(webhook),
                cursor=cursor,
                attempts=attempts,
                due=due,
                parked=parked,
                reason=reason,
            )
        )
    values: dict[int, list[tuple[int, bytes]]] = {key: [] for key in keys}
    for key, number, body in await db.fetch(_REPLAYS, keys):
        values[key].append((number, body))
    found = []
    for row in rows:
        try:
            items = [
                Item(turn, export_format.KINDS[kind], Raw(body))
                for turn, kind, body in entries[row.key]
            ]
            found.append(
                export_format.exported_task(
                    row, items, receipts[row.key], webhooks[row.key], values[row.key]
                )
            )
        except (KeyError, ValueError) as error:
            broken(_broken(row.id, error))
    return found


def _broken(task: str, error: object) -> str:
    return f"task {task} cannot be read: {error}; see `dragoman db check`"


# -- in


class Tray:
    """Tasks that are written together. It first decides on each, and then writes."""

    def __init__(self, db: Any, *, replace: bool) -> None:
        self.db = db
        self.replace = replace
        self._rows: dict[str, PostgresHead] = {}
        self._there: dict[str, ExportedTask] = {}
        self._tickets: dict[int, dict[bytes, int]] = {}
        self._taken: dict[tuple[Scope, bytes], str] = {}
        self._now = 0.0
        self._ranks = Ranks()
        self._queues: dict[str, QueueRanks] = {}
        self._old: list[int] = []
        self._new: list[tuple[ExportedTask, PostgresHead | None]] = []

    async def put(self, tasks: Sequence[ExportedTask]) -> list[Fate | Differs]:
        """Write tasks in the open transaction. None of them comes twice."""
        await self._look([task for task in tasks if _able(task) is None])
        found: list[Fate | Differs] = []
        for task in tasks:
            try:
                found.append(self._decide(task))
            except Differs as error:
                found.append(error)
        await self._write()
        return found

    async def _look(self, tasks: Sequence[ExportedTask]) -> None:
        """Read what the database has of these tasks, with a lock."""
        self._now = await self.db.fetchval(f"SELECT {NOW}")
        ids = [task.id for task in tasks]
        for columns in await self.db.fetch(
            f"SELECT {COLUMNS} FROM task WHERE id = ANY($1::text[]) ORDER BY key FOR UPDATE", ids
        ):
            row = _there(columns)
            self._rows[row.id] = row
        for task in await take(self.db, list(self._rows.values()), lambda _: None):
            self._there[task.id] = task
        for key, id, ticket in await self.db.fetch(
            "SELECT task, id, ticket FROM line WHERE task = ANY($1)",
            [row.key for row in self._rows.values()],
        ):
            self._tickets.setdefault(key, {})[id] = ticket + 1
        stubs = [
            (task.scope, export_format.unveiled(stub.key))
            for task in tasks
            for stub in task.receipts
        ]
        if stubs:
            columns = zip(*((s.agent, s.tenant, s.owner, name) for s, name in stubs), strict=True)
            places = list(range(len(stubs)))
            for place, id in await self.db.fetch(_TAKEN, places, *map(list, columns)):
                self._taken[stubs[place]] = id

    def _decide(self, given: ExportedTask) -> Fate:
        if reason := _able(given):
            raise Differs(f"task {given.id}: {reason}")
        row = self._rows.get(given.id)
        if row is not None:
            there = self._there.get(given.id)
            if there is not None and export_format.same(there, given):
                return "same"
            if not self.replace:
                raise Differs(f"task {given.id} exists and differs")
            if row.holder not in ("", ASIDE) and row.lease > self._now:
                raise Differs(f"task {given.id} is being processed; it can be replaced after that")
        for stub in given.receipts:
            other = self._taken.get((given.scope, export_format.unveiled(stub.key)), given.id)
            if other != given.id:
                raise Differs(f"task {given.id}: its receipt {stub.key!r} belongs to task {other}")
        for stub in given.receipts:
            self._taken[given.scope, export_format.unveiled(stub.key)] = given.id
        if row is not None:
            self._old.append(row.key)
        self._new.append((given, row))
        return "new" if row is None else "replaced"

    async def _write(self) -> None:
        if self._old:
            answer = await self.db.fetch(THESE, self._old, random.randrange(SHARDS))
            await self._write_new()
            await forget_values(self.db, answer)  # a task may have come back in another context
        elif self._new:
            await self._write_new()

    async def _write_new(self) -> None:
        ready = [given.scope for given, _ in self._new if given.ready]
        self._queues = await probe(self.db, ready) if ready else {}
        keys = await self._keys(len(self._new))
        tasks = [(key, *item) for key, item in zip(keys, self._new, strict=True)]
        await self._copy("task", (self._head(*item) for item in tasks))
        await self._copy("entry", (row for key, given, _ in tasks for row in _entries(key, given)))
        await self._copy("receipt", (row for key, given, _ in tasks for row in _stubs(key, given)))
        await self._copy("message", (row for key, given, _ in tasks for row in _sent(key, given)))
        await self._copy(
            "replay_value", (row for key, given, _ in tasks for row in _values(key, given))
        )
        lines = [row for item in tasks for row in self._lines(*item)]
        await self.db.copy_records_to_table("line", records=lines, columns=_LINE)
        await self.db.execute(_LANED, list({row[0] for row in lines}))
        counts = [
            (given.scope.agent, given.scope.tenant, given.scope.owner, given.state.number)
            for given, _ in self._new
            if given.born
        ]
        if counts:
            columns = zip(*counts, strict=True)
            await self.db.fetch(_COUNT, *map(list, columns), random.randrange(SHARDS))

    async def _keys(self, number: int) -> list[int]:
        """Return unused keys. A replaced task gets a new key, so that nothing that was read of the
        old log can be written into the new one."""
        keys: list[int] = []
        while len(keys) < number:
            first = await self.db.fetchval("SELECT nextval('task_key')")
            keys.extend(range(first, first + BLOCK))
        return keys[:number]

    async def _copy(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        await self.db.copy_records_to_table(table, records=rows)

    def _head(self, key: int, given: ExportedTask, before: PostgresHead | None) -> tuple[Any, ...]:
        values = export_format.columns(given) | {
            "key": key,
            "tenant": given.scope.tenant,
            "owner": given.scope.owner,
            "ready": None,
        }
        if given.ready:
            queue = self._queues[given.scope.agent]
            values["ready"] = float(queue.add(self._ranks, given.scope, int(self._now)))
        if before is not None:
            # Readers notice the new version. A worker that held the task and wakes up late must not
            # write here.
            values["version"] = max(before.version, given.version) + 1
            if before.holder:
                values["epoch"] = max(before.epoch, given.epoch) + 1
        return tuple(values[name] for name in NAMES)

    def _lines(
        self, key: int, given: ExportedTask, before: PostgresHead | None
    ) -> Iterable[tuple[Any, ...]]:
        # a running delivery must notice that it has lost its lease
        tickets = {} if before is None else self._tickets.get(before.key, {})
        last = len(given.entries)
        for each in given.webhooks:
            id = webhook_key(export_format.webhook(each).config.id)
            yield (
                *(key, id, given.scope.agent, bytes(each.webhook), each.cursor, each.attempts),
                *(each.due, each.cursor < last, each.parked, each.reason, tickets.get(id, 0)),
            )


def _there(columns: Any) -> PostgresHead:
    """What is needed of a task that is replaced, readable or not."""
    try:
        return PostgresHead.restored(columns)
    except Unreadable:
        found = dict(zip(NAMES, columns, strict=True))
        row = PostgresHead.__new__(PostgresHead)
        row._clear()
        row.last = -1  # no log is this long, so it differs from every other one
        for name in ("key", "id", "version", "epoch", "holder", "lease"):
            setattr(row, name, found[name])
        return row


def _entries(key: int, given: ExportedTask) -> Iterable[tuple[Any, ...]]:
    for number, item in enumerate(given.entries, start=1):
        yield key, number, item.turn, export_format.NUMBERS[item.kind], bytes(item.body)


def _stubs(key: int, given: ExportedTask) -> Iterable[tuple[Any, ...]]:
    scope = (given.scope.agent, given.scope.tenant, given.scope.owner)
    for stub in given.receipts:
        yield *scope, export_format.unveiled(stub.key), stub.digest, key, stub.number


def _sent(key: int, given: ExportedTask) -> Iterable[tuple[Any, ...]]:
    scope = (given.scope.agent, given.scope.tenant, given.scope.owner)
    for number, at in export_format.messages(given):
        yield *scope, digested(given.context), at, key, number


def _values(key: int, given: ExportedTask) -> Iterable[tuple[Any, ...]]:
    for each in given.replay_values:
        yield key, each.number, bytes(each.value)


def _able(given: ExportedTask) -> str | None:
    """Return why PostgreSQL cannot store a task."""
    scope = given.scope
    texts = [given.id, given.context, given.skill, given.changed, given.holder]
    texts += [scope.agent, scope.tenant, scope.owner, *(each.reason for each in given.webhooks)]
    if any("\0" in text for text in texts):
        return "PostgreSQL cannot store text with a NUL character"
    keys = [given.id, scope.agent, scope.tenant, scope.owner]
    for text in (*keys, *(export_format.webhook(each).config.id for each in given.webhooks)):
        if why := long(text):
            return f"{text[:40]!r}… {why}"
    numbers = [given.version, given.epoch, given.turn, given.settled, given.attempt]
    numbers += [each.attempts for each in given.webhooks]
    if max(numbers) >= MOST:
        return "a number is too large for PostgreSQL"
    return None


# -- values of contexts

ValueKey: TypeAlias = tuple[str, str, str, bytes]
"""The position of a value: agent, tenant, owner, and the digest of its context."""
FIRST: ValueKey = ("", "", "", b"")
VALUES = 16
"""How many values are read at once. Each may be large."""

_NEXT_VALUES = """
SELECT value.agent, value.tenant, value.owner, value.context, value.version, value.saver,
  value.body, named.context FROM context_value AS value CROSS JOIN LATERAL (
  SELECT task.context FROM message JOIN task ON task.key = message.task
  WHERE message.agent = value.agent AND message.tenant = value.tenant
  AND message.owner = value.owner AND message.context = value.context
  AND ($6 = '' OR task.changed >= $6) LIMIT 1
) AS named
WHERE (value.agent, value.tenant, value.owner, value.context) > ($1, $2, $3, $4)
AND ($5 = '' OR value.agent = $5)
ORDER BY value.agent, value.tenant, value.owner, value.context LIMIT $7
"""
_WHERE = "agent = $1 AND tenant = $2 AND owner = $3 AND context = $4"


async def contexts(db: Any, place: ValueKey, *, agent: str, since: str) -> list[Any]:
    """Return the values of contexts with one of these tasks, after a position."""
    found: list[Any] = await db.fetch(_NEXT_VALUES, *place, agent, since, VALUES)
    return found


def exported(row: Any, broken: Callable[[str], None]) -> ExportedContext | None:
    """Return one of them. An unreadable one is reported."""
    agent, tenant, owner, _, version, saver, body, context = row
    for fault in context_values.faults(version, saver, body):
        broken(f"the value of context {context} cannot be read: {fault}; see `dragoman db check`")
        return None
    scope = Scope(agent, tenant, owner)
    return ExportedContext(
        context=context, scope=scope, version=version, saver=saver, body=body.decode()
    )


async def put_context(db: Any, given: ExportedContext, *, replace: bool) -> ValueFate:
    """Write a value in the open transaction. Raises Differs; then nothing was written."""
    scope = given.scope
    where = (scope.agent, scope.tenant, scope.owner, digested(given.context))
    if any("\0" in text for text in (*where[:3], given.saver)):
        raise Differs(
            f"the value of context {given.context}: PostgreSQL cannot store text with a NUL "
            "character"
        )
    if not await db.fetchval(f"SELECT 1 FROM message WHERE {_WHERE} LIMIT 1", *where):
        return "skipped"
    there = await db.fetchrow(
        f"SELECT version, saver, body FROM context_value WHERE {_WHERE} FOR UPDATE", *where
    )
    version, body = given.version, given.body.encode()
    if there is not None:
        if (there[1], there[2]) == (given.saver, body):
            return "same"
        if not replace:
            raise Differs(f"the value of context {given.context} exists and differs")
        version = max(there[0], version) + 1  # so that turns that have read the old value notice
    await db.execute(
        "INSERT INTO context_value VALUES ($1, $2, $3, $4, $5, $6, $7) "
        "ON CONFLICT (agent, tenant, owner, context) DO UPDATE SET version = excluded.version, "
        "saver = excluded.saver, body = excluded.body",
        *(*where, version, given.saver, body),
    )
    return "new" if there is None else "replaced"


# -- reservations

NEXT_RESERVATIONS = """
SELECT space, key, body, expires FROM reservation WHERE (space, key) > ($1, $2)
ORDER BY space, key LIMIT $3
"""


async def reservations(db: Any, place: tuple[str, str]) -> tuple[list[Any], float]:
    """Return the reservations after a position, and the time."""
    found: list[Any] = await db.fetch(NEXT_RESERVATIONS, *place, VALUES)
    return found, await db.fetchval(f"SELECT {NOW}")


async def put_reservation(db: Any, given: ExportedReservation, *, replace: bool) -> ValueFate:
    """Write a reservation in the open transaction. Raises Differs; then nothing was written."""
    now = await db.fetchval(f"SELECT {NOW}")
    there = await db.fetchrow(
        "SELECT body, expires FROM reservation WHERE space = $1 AND key = $2 "
        "AND (expires IS NULL OR expires > $3) FOR UPDATE",
        *(given.space, given.key, now),
    )
    found, expires = fate(given, None if there is None else tuple(there), now, replace=replace)
    if found != "skipped":
        await db.execute(
            "INSERT INTO reservation (space, key, body, expires) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (space, key) DO UPDATE SET body = excluded.body, "
            "expires = excluded.expires",
            *(given.space, given.key, given.body.encode(), expires),
        )
    return found
