"""Tasks out of a file and into one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Raw

from dragoman.caller import Scope
from dragoman.stores import dump
from dragoman.stores.clerk import Differs, Fate
from dragoman.stores.dump import Dump, Hook, Item, Stub
from dragoman.stores.ranks import Ranks
from dragoman.stores.sqlite.driver import Connection
from dragoman.stores.sqlite.ledger import COLUMNS, FOUND, Leaf
from dragoman.stores.sqlite.schema import BITS
from dragoman.stores.sqlite.view import View

_INSERT = f"INSERT INTO task ({COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS.split(', ')))})"


def tasks(
    db: Connection, broken: Callable[[str], None], *, agent: str = "", since: str = ""
) -> Iterator[Dump]:
    """All tasks in the order in which they came, each from one state of the file, which is held
    no longer than that: a server's write-ahead log need not grow. Those that cannot be read are
    told, and left out."""
    key = 0
    while True:
        db.execute("BEGIN")
        try:
            found = db.execute(
                f"{FOUND} WHERE task.key > ? AND (? = '' OR task.agent = ?) "
                "AND (? = '' OR task.changed >= ?) ORDER BY task.key LIMIT 1",
                (key, agent, agent, since, since),
            ).fetchone()
            if found is None:
                return
            key = found[0]
            try:
                one = take(db, Leaf.restored(found))
            except (sqlite3.DatabaseError, KeyError, ValueError) as error:
                broken(f"task {found[1]} cannot be read: {error}; see `dragoman db check`")
                continue
        finally:
            db.execute("COMMIT")
        yield one


def take(db: Connection, row: Leaf) -> Dump:
    """A task of the file. Broken, when its log has a gap."""
    base = row.key << BITS
    entries = tuple(
        Item(turn, dump.KINDS[kind], Raw(body))
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
        Hook(
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
    return dump.dumped(row, entries, receipts, webhooks)


def put(db: Connection, given: Dump, *, replace: bool) -> Fate:
    """Write a task in the transaction that is open; Differs, and then nothing was written."""
    row = View(db).row(given.id)
    epoch, tickets = given.epoch, {}
    if row is not None:
        if _same(db, row, given):
            return "same"
        if not replace:
            raise Differs(f"task {given.id} is there already, and is not the same")
        if row.holder and row.lease > time.monotonic():
            raise Differs(f"task {given.id} is in work; it can be replaced when that is over")
        if row.holder:  # whoever held it and wakes up late must not write here
            epoch = max(row.epoch, given.epoch) + 1
    for stub in given.receipts:
        _unclaimed(db, given, stub)
    if row is not None:
        # a delivery that is under way must find that the line is not its own any more
        tickets = dict(
            db.execute("SELECT id, ticket + 1 FROM line WHERE task = ?", (row.key,)).fetchall()
        )
        _clear(db, row)
    # a running server may remember the key of the one that is replaced
    key = row.key if row else _next(db, "SELECT max(key) FROM task")
    _write(db, given, key, epoch, tickets)
    return "new" if row is None else "replaced"


def _same(db: Connection, row: Leaf, given: Dump) -> bool:
    try:
        return dump.same(take(db, row), given)
    except dump.Broken:
        return False


def _write(db: Connection, given: Dump, key: int, epoch: int, tickets: dict[str, int]) -> None:
    scope = _scope(db, given.scope)
    last, base = len(given.entries), key << BITS
    offer = _rank(db, given.scope, scope) if given.ready else None
    values = dump.columns(given) | {"key": key, "scope": scope, "epoch": epoch, "ready": offer}
    db.execute(_INSERT, tuple(values[name] for name in COLUMNS.split(", ")))
    db.executemany(
        "INSERT INTO entry (place, turn, kind, body) VALUES (?, ?, ?, ?)",
        (
            (base + number, item.turn, dump.NUMBERS[item.kind], bytes(item.body))
            for number, item in enumerate(given.entries, start=1)
        ),
    )
    db.executemany(
        "INSERT INTO receipt (scope, name, digest, task, number) VALUES (?, ?, ?, ?, ?)",
        ((scope, stub.key, stub.digest, key, stub.number) for stub in given.receipts),
    )
    for hook in given.webhooks:
        id = dump.webhook(hook).config.id
        db.execute(
            "INSERT INTO line (task, id, agent, webhook, cursor, attempts, due, taken, behind, "
            "parked, reason, ticket, lane) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)",
            (
                *(key, id, given.scope.agent, bytes(hook.webhook), hook.cursor, hook.attempts),
                *(hook.due, hook.cursor < last, hook.parked, hook.reason, tickets.get(id, 0)),
                scope,
            ),
        )
    if given.born:
        _count(db, scope, given.state.number, 1)


def _rank(db: Connection, scope: Scope, key: int) -> int:
    """The rank of one more that is ready."""
    (lowest,) = db.execute(
        "SELECT min(ready) FROM task WHERE agent = ? AND ready NOTNULL", (scope.agent,)
    ).fetchone()
    (highest,) = db.execute(
        "SELECT max(ready) FROM task WHERE agent = ? AND scope = ? AND ready NOTNULL",
        (scope.agent, key),
    ).fetchone()
    return Ranks().give(scope, lowest, highest)


def _clear(db: Connection, row: Leaf) -> None:
    base = row.key << BITS
    db.execute("DELETE FROM entry WHERE place > ? AND place < ?", (base, base + (1 << BITS)))
    for table in ("snapshot", "receipt", "line"):
        db.execute(f"DELETE FROM {table} WHERE task = ?", (row.key,))
    db.execute("DELETE FROM task WHERE key = ?", (row.key,))
    if row.told is not None:
        _count(db, _scope(db, row.scope), row.told.number, -1)


def _unclaimed(db: Connection, given: Dump, stub: Stub) -> None:
    """Refuse a receipt that another task has."""
    found = db.execute(
        "SELECT task.id FROM receipt JOIN scope ON scope.key = receipt.scope "
        "JOIN task ON task.key = receipt.task WHERE scope.agent = ? AND scope.tenant = ? "
        "AND scope.owner = ? AND receipt.name IN (?, ?)",
        (given.scope.agent, given.scope.tenant, given.scope.owner, stub.key, dump.veiled(stub.key)),
    ).fetchone()
    if found is not None and found[0] != given.id:
        raise Differs(f"task {given.id}: its receipt {stub.key!r} is that of task {found[0]}")


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
