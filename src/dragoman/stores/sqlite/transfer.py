"""Export and import of tasks in a SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Raw

from dragoman.model.caller import Scope
from dragoman.stores import context_values, export_format
from dragoman.stores.admin import Differs, Fate, ValueFate, fate, restored
from dragoman.stores.claim_order import RANKED, Ranks
from dragoman.stores.export_format import (
    ExportedContext,
    ExportedReservation,
    ExportedTask,
    ExportedWebhook,
    Item,
    Stub,
)
from dragoman.stores.sqlite.context_values import PUT, forget
from dragoman.stores.sqlite.driver import Connection, fetch
from dragoman.stores.sqlite.queries import Queries
from dragoman.stores.sqlite.reservations import PUT as PUT_RESERVATION
from dragoman.stores.sqlite.reservations import valid
from dragoman.stores.sqlite.rows import (
    ADD_VALUE,
    COLUMNS,
    FOUND,
    HANGING,
    INSERT,
    SqliteHead,
    named,
)
from dragoman.stores.sqlite.schema import ADD_MESSAGE, BITS
from dragoman.stores.store import Unreadable
from dragoman.stores.unreadable_rows import ASIDE, DECODING


def tasks(
    db: Connection, broken: Callable[[str], None], *, agent: str = "", since: str = ""
) -> Iterator[ExportedTask]:
    """Yield all tasks in the order of their creation, each from one state of the file. That state
    is held only for one task, so that a server's write-ahead log can shrink. Unreadable tasks are
    reported and skipped."""
    key = 0
    while True:
        db.execute("BEGIN")
        try:
            found = fetch(
                db,
                f"{FOUND} WHERE task.key > ? AND (? = '' OR task.agent = ?) "
                "AND (? = '' OR task.changed >= ?) ORDER BY task.key LIMIT 1",
                (key, agent, agent, since, since),
            )
            if not found:
                return
            ((key, id, *_),) = found
            try:
                one = take(db, SqliteHead.restored(found[0]))
            except (sqlite3.DatabaseError, KeyError, ValueError, Unreadable) as error:
                why = error.why if isinstance(error, Unreadable) else error
                broken(f"task {named(id)} cannot be read: {why}; see `dragoman db check`")
                continue
        finally:
            db.execute("COMMIT")
        yield one


def take(db: Connection, row: SqliteHead) -> ExportedTask:
    """Return a task of the file. Raises BadExport if its log has a gap."""
    base = row.key << BITS
    entries = tuple(
        Item(turn, export_format.KINDS[kind], Raw(body))
        for turn, kind, body in db.execute(
            "SELECT turn, kind, body FROM entry WHERE place > ? AND place < ? ORDER BY place",
            (base, base + (1 << BITS)),
        )
    )
    receipts = tuple(
        Stub(*found)
        for found in db.execute(
            "SELECT name, digest, number FROM receipt WHERE task = ? ORDER BY name", (row.key,)
        )
    )
    webhooks = tuple(
        ExportedWebhook(
            webhook=Raw(webhook),
            cursor=cursor,
            attempts=attempts,
            due=due,
            parked=bool(parked),
            reason=reason,
        )
        for webhook, cursor, attempts, due, parked, reason in db.execute(
            "SELECT webhook, cursor, attempts, due, parked, reason FROM line WHERE task = ? "
            "ORDER BY id",
            (row.key,),
        )
    )
    values = fetch(
        db, "SELECT number, body FROM replay_value WHERE task = ? ORDER BY number", (row.key,)
    )
    return export_format.exported_task(row, entries, receipts, webhooks, values)


def put(db: Connection, given: ExportedTask, *, replace: bool) -> Fate:
    """Write a task in the open transaction. Raises Differs; then nothing was written."""
    there = db.execute(
        "SELECT key, epoch, CAST(holder AS BLOB), lease FROM task WHERE id = ?", (given.id,)
    ).fetchone()
    epoch, tickets = given.epoch, {}
    if there is not None:
        key, before, holder, lease = there
        if _same(db, given):
            return "same"
        if not replace:
            raise Differs(f"task {given.id} exists and differs")
        if holder not in (b"", ASIDE.encode()) and lease > time.monotonic():
            raise Differs(f"task {given.id} is being processed; it can be replaced after that")
        if holder:  # a worker that held the task and wakes up late must not write here
            epoch = max(before, given.epoch) + 1
    for stub in given.receipts:
        _unclaimed(db, given, stub)
    if there is None:
        key = _next(db, "SELECT max(key) FROM task")
    else:  # a running server may have the key of the replaced task in its cache
        # a running delivery must notice that it has lost its lease
        tickets = dict(fetch(db, "SELECT id, ticket + 1 FROM line WHERE task = ?", (key,)))
        if not _same_context(db, given, key):
            forget(db, key)
        _clear(db, key)
    _write(db, given, key, epoch, tickets)
    return "new" if there is None else "replaced"


def _same_context(db: Connection, given: ExportedTask, key: int) -> bool:
    """Whether the task with this key is in the context of the given one."""
    found = db.execute(
        "SELECT 1 FROM task WHERE key = ? AND scope = ? AND context = ?",
        (key, _scope(db, given.scope), given.context),
    )
    return found.fetchone() is not None


def _same(db: Connection, given: ExportedTask) -> bool:
    """Whether the store has exactly this task. An unreadable one is different."""
    try:
        row = Queries(db).row(given.id)
        return row is not None and export_format.same(take(db, row), given)
    except (*DECODING, Unreadable):
        return False


def _write(
    db: Connection, given: ExportedTask, key: int, epoch: int, tickets: dict[str, int]
) -> None:
    scope = _scope(db, given.scope)
    last, base = len(given.entries), key << BITS
    offer = _rank(db, given.scope, scope) if given.ready else None
    values = export_format.columns(given) | {
        "key": key,
        "scope": scope,
        "epoch": epoch,
        "ready": offer,
    }
    db.execute(INSERT, tuple(values[name] for name in COLUMNS))
    db.executemany(
        "INSERT INTO entry (place, turn, kind, body) VALUES (?, ?, ?, ?)",
        (
            (base + number, item.turn, export_format.NUMBERS[item.kind], bytes(item.body))
            for number, item in enumerate(given.entries, start=1)
        ),
    )
    db.executemany(
        ADD_MESSAGE,
        ((key, number, scope, given.context, at) for number, at in export_format.messages(given)),
    )
    db.executemany(
        "INSERT INTO receipt (scope, name, digest, task, number) VALUES (?, ?, ?, ?, ?)",
        ((scope, stub.key, stub.digest, key, stub.number) for stub in given.receipts),
    )
    db.executemany(
        ADD_VALUE, ((key, each.number, bytes(each.value)) for each in given.replay_values)
    )
    for each in given.webhooks:
        id = export_format.webhook(each).config.id
        db.execute(
            "INSERT INTO line (task, id, agent, webhook, cursor, attempts, due, taken, behind, "
            "parked, reason, ticket, lane) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)",
            (
                *(key, id, given.scope.agent, bytes(each.webhook), each.cursor, each.attempts),
                *(each.due, each.cursor < last, each.parked, each.reason, tickets.get(id, 0)),
                scope,
            ),
        )
    if given.born:
        _count(db, scope, given.state.number, 1)


def _rank(db: Connection, scope: Scope, key: int) -> int:
    """Return the rank of one more ready task."""
    (lowest,) = db.execute(
        f"SELECT min(ready) FROM task WHERE agent = ? AND {RANKED}", (scope.agent,)
    ).fetchone()
    (highest,) = db.execute(
        f"SELECT max(ready) FROM task WHERE agent = ? AND scope = ? AND {RANKED}",
        (scope.agent, key),
    ).fetchone()
    return Ranks().give(scope, lowest, highest)


def _clear(db: Connection, key: int) -> None:
    base = key << BITS
    db.execute("DELETE FROM entry WHERE place > ? AND place < ?", (base, base + (1 << BITS)))
    for table in HANGING:
        db.execute(f"DELETE FROM {table} WHERE task = ?", (key,))
    for scope, state in db.execute(
        "SELECT scope, state FROM task WHERE key = ? AND born = 1", (key,)
    ).fetchall():
        _count(db, scope, state, -1)
    db.execute("DELETE FROM task WHERE key = ?", (key,))


def _unclaimed(db: Connection, given: ExportedTask, stub: Stub) -> None:
    """Raise Differs if another task has this receipt."""
    found = db.execute(
        "SELECT task.id FROM receipt JOIN scope ON scope.key = receipt.scope "
        "JOIN task ON task.key = receipt.task WHERE scope.agent = ? AND scope.tenant = ? "
        "AND scope.owner = ? AND receipt.name IN (?, ?)",
        (
            given.scope.agent,
            given.scope.tenant,
            given.scope.owner,
            stub.key,
            export_format.veiled(stub.key),
        ),
    ).fetchone()
    if found is not None and found[0] != given.id:
        raise Differs(f"task {given.id}: its receipt {stub.key!r} belongs to task {found[0]}")


def _scope(db: Connection, scope: Scope) -> int:
    names = (scope.agent, scope.tenant, scope.owner)
    db.execute(
        "INSERT INTO scope (agent, tenant, owner) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", names
    )
    (key,) = db.execute(
        "SELECT key FROM scope WHERE agent = ? AND tenant = ? AND owner = ?", names
    ).fetchone()
    return int(key)


def _count(db: Connection, scope: int, state: int, number: int) -> None:
    db.execute(
        "INSERT INTO tally (scope, state, number) VALUES (?, ?, ?) "
        "ON CONFLICT DO UPDATE SET number = number + excluded.number",
        (scope, state, number),
    )


def _next(db: Connection, sql: str, *values: Any) -> int:
    (found,) = db.execute(sql, values).fetchone()
    return int(found or 0) + 1


# -- values of contexts


def contexts(
    db: Connection, broken: Callable[[str], None], *, agent: str = "", since: str = ""
) -> Iterator[ExportedContext]:
    """Yield the values of the contexts of these tasks. Unreadable values are reported and
    skipped."""
    row = 0
    while found := fetch(db, _NEXT_VALUE, (row, agent, since)):
        ((row, context, version, saver, body, *names),) = found
        if any(type(text) is not str for text in (context, saver, *names)):
            faults = ["a text is not UTF-8"]
        else:
            faults = list(context_values.faults(version, saver, body))
        if faults:
            broken(
                f"the value of context {named(context)} cannot be read: {faults[0]}; see "
                "`dragoman db check`"
            )
            continue
        scope = Scope(*names)
        yield ExportedContext(
            context=context, scope=scope, version=version, saver=saver, body=body.decode()
        )


_NEXT_VALUE = (
    "SELECT context_value.rowid, context_value.context, version, saver, body, "
    "scope.agent, scope.tenant, scope.owner FROM context_value "
    "JOIN scope ON scope.key = context_value.scope WHERE context_value.rowid > ?1 "
    "AND (?2 = '' OR scope.agent = ?2) AND EXISTS (SELECT 1 FROM message "
    "JOIN task ON task.key = message.task WHERE message.scope = context_value.scope "
    "AND message.context = context_value.context AND (?3 = '' OR task.changed >= ?3)) "
    "ORDER BY context_value.rowid LIMIT 1"
)


def put_context(db: Connection, given: ExportedContext, *, replace: bool) -> ValueFate:
    """Write a value in the open transaction. Raises Differs; then nothing was written."""
    scope = db.execute(
        "SELECT scope.key FROM scope WHERE agent = ? AND tenant = ? AND owner = ? AND EXISTS "
        "(SELECT 1 FROM message WHERE message.scope = scope.key AND message.context = ?)",
        (given.scope.agent, given.scope.tenant, given.scope.owner, given.context),
    ).fetchone()
    if scope is None:
        return "skipped"
    there = db.execute(
        "SELECT version, CAST(saver AS BLOB), body FROM context_value "
        "WHERE scope = ? AND context = ?",
        (scope[0], given.context),
    ).fetchone()
    version = given.version
    if there is not None:
        if there[1:] == (given.saver.encode(), given.body.encode()):
            return "same"
        if not replace:
            raise Differs(f"the value of context {given.context} exists and differs")
        version = max(there[0], version) + 1  # so that turns that have read the old value notice
    db.execute(PUT, (scope[0], given.context, version, given.saver, given.body.encode()))
    return "new" if there is None else "replaced"


# -- reservations


def reservations(db: Connection, broken: Callable[[str], None]) -> Iterator[ExportedReservation]:
    """Yield the reservations that have not expired. Unreadable ones are reported and skipped."""
    row, now = 0, time.time()
    while found := fetch(db, NEXT_RESERVATION, (row,)):
        ((row, *columns),) = found
        if (one := restored(columns, now, broken)) is not None:
            yield one


NEXT_RESERVATION = (
    "SELECT rowid, space, key, body, expires FROM reservation WHERE rowid > ? "
    "ORDER BY rowid LIMIT 1"
)


def put_reservation(db: Connection, given: ExportedReservation, *, replace: bool) -> ValueFate:
    """Write a reservation in the open transaction. Raises Differs; then nothing was written."""
    now = time.time()
    there = valid(db, given.space, given.key, now)
    found, expires = fate(given, there, now, replace=replace)
    if found != "skipped":
        db.execute(PUT_RESERVATION, (given.space, given.key, given.body.encode(), expires))
    return found
