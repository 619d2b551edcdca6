"""Gives the tasks of one owner to another."""

from __future__ import annotations

import sqlite3

from dragoman.dialects.versions import CHOSEN_ID_PREFIX
from dragoman.model.caller import Scope
from dragoman.security.encryption import Encryption
from dragoman.stores.admin import Renamed
from dragoman.stores.codec import digested
from dragoman.stores.context_values import decrypt_value, encrypt_value, encrypted

_WHOSE = "owner = ? AND (? IS NULL OR agent = ?) AND (? IS NULL OR tenant = ?)"


def rename(
    db: sqlite3.Connection,
    old: str,
    new: str,
    *,
    agent: str | None,
    tenant: str | None,
    dry: bool,
    encryption: Encryption,
) -> Renamed:
    """Move the tasks in the open transaction; or only count them, without a transaction. Raises
    UnknownEntry if a value is encrypted and the key is missing."""
    tasks = receipts = dropped = named = values = doubles = 0
    found = db.execute(
        f"SELECT key, agent, tenant FROM scope WHERE {_WHOSE}", (old, agent, agent, tenant, tenant)
    ).fetchall()
    for source, *names in found:
        if not dry:
            db.execute(
                "INSERT INTO scope (agent, tenant, owner) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (*names, new),
            )
        row = db.execute(
            "SELECT key FROM scope WHERE agent = ? AND tenant = ? AND owner = ?", (*names, new)
        ).fetchone()
        target = row[0] if row else 0
        tasks += _one(db, "SELECT count(*) FROM task WHERE scope = ?", source)
        named += _one(
            db,
            "SELECT count(*) FROM task WHERE scope = ? AND id GLOB ?",
            source,
            f"{CHOSEN_ID_PREFIX}*",
        )
        receipts += _one(db, "SELECT count(*) FROM receipt WHERE scope = ?", source)
        dropped += _one(db, f"SELECT count(*) FROM receipt WHERE {_DOUBLE}", source, target)
        values += _one(db, "SELECT count(*) FROM context_value WHERE scope = ?", source)
        doubles += _one(db, f"SELECT count(*) FROM context_value WHERE {_BOTH}", source, target)
        if not dry:
            whose = Scope(names[0], names[1], old), Scope(names[0], names[1], new)
            _move_values(db, source, target, *whose, encryption)
            _move(db, source, target)
    return Renamed(tasks, receipts - dropped, dropped, named, values - doubles, doubles)


_DOUBLE = "scope = ? AND name IN (SELECT name FROM receipt WHERE scope = ?)"
_BOTH = "scope = ? AND context IN (SELECT context FROM context_value WHERE scope = ?)"


def _move(db: sqlite3.Connection, source: int, target: int) -> None:
    db.execute(f"DELETE FROM receipt WHERE {_DOUBLE}", (source, target))
    db.execute("UPDATE receipt SET scope = ? WHERE scope = ?", (target, source))
    db.execute("UPDATE message SET scope = ? WHERE scope = ?", (target, source))
    db.execute(
        "INSERT INTO tally (scope, state, number) SELECT ?, state, number FROM tally "
        "WHERE scope = ? ON CONFLICT DO UPDATE SET number = number + excluded.number",
        (target, source),
    )
    db.execute("DELETE FROM tally WHERE scope = ?", (source,))
    db.execute(
        "UPDATE line SET lane = ? WHERE task IN (SELECT key FROM task WHERE scope = ?)",
        (target, source),
    )
    # a server that has the row in its cache reads it again
    db.execute("UPDATE task SET scope = ?, version = version + 1 WHERE scope = ?", (target, source))


def _move_values(
    db: sqlite3.Connection, source: int, target: int, old: Scope, new: Scope, encryption: Encryption
) -> None:
    """Give the values of contexts to another owner. The values that the new owner has stay
    unchanged."""
    db.execute(f"DELETE FROM context_value WHERE {_BOTH}", (source, target))
    for (row,) in db.execute(
        "SELECT rowid FROM context_value WHERE scope = ?", (source,)
    ).fetchall():
        context, body = db.execute(
            "SELECT context, body FROM context_value WHERE rowid = ?", (row,)
        ).fetchone()
        if encrypted(body):  # the encryption is bound to the owner
            digest = digested(context)
            body = encrypt_value(
                decrypt_value(body, old, digest, encryption), new, digest, encryption
            )
        db.execute(
            "UPDATE context_value SET scope = ?, body = ? WHERE rowid = ?", (target, body, row)
        )


def _one(db: sqlite3.Connection, sql: str, *values: object) -> int:
    (number,) = db.execute(sql, values).fetchone()
    return int(number)
