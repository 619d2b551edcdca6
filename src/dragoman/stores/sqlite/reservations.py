"""Reservations in a SQLite file."""

from __future__ import annotations

import time

from dragoman.stores.reservations import PRUNE_AT_ONCE, last_key
from dragoman.stores.sqlite.driver import Connection

PUT = "INSERT OR REPLACE INTO reservation (space, key, body, expires) VALUES (?, ?, ?, ?)"


def reserve(db: Connection, space: str, key: str, body: bytes, keep: float | None) -> bytes:
    """Return the stored form that is there, or else this one, which is there from now on."""
    now = time.time()
    if (found := valid(db, space, key, now)) is not None:
        return found[0]
    db.execute(PUT, (space, key, body, None if keep is None else now + keep))
    return body


def reserved(db: Connection, space: str, key: str) -> bytes | None:
    """Return the stored form that is there and has not expired."""
    found = valid(db, space, key, time.time())
    return None if found is None else found[0]


def valid(db: Connection, space: str, key: str, now: float) -> tuple[bytes, float | None] | None:
    """Return the stored form and the time of a reservation that has not expired."""
    found: tuple[bytes, float | None] | None = db.execute(
        "SELECT body, expires FROM reservation WHERE space = ? AND key = ? "
        "AND (expires IS NULL OR expires > ?)",
        (space, key, now),
    ).fetchone()
    return found


def release(db: Connection, space: str, key: str) -> bool:
    """Delete a reservation. Returns whether there was one that had not expired."""
    there = valid(db, space, key, time.time()) is not None
    db.execute("DELETE FROM reservation WHERE space = ? AND key = ?", (space, key))
    return there


def listed(
    db: Connection, space: str, prefix: str, after: str, limit: int
) -> list[tuple[str, bytes, float | None]]:
    """Return the key, the stored form and the time of reservations; see `Store.reservations`."""
    found: list[tuple[str, bytes, float | None]] = db.execute(
        "SELECT key, body, expires FROM reservation WHERE space = ? AND key >= ? AND key > ? "
        "AND key <= ? AND (expires IS NULL OR expires > ?) ORDER BY key LIMIT ?",
        (space, prefix, after, last_key(prefix), time.time(), limit),
    ).fetchall()
    return found


def prune(db: Connection) -> int:
    """Delete some expired reservations. Returns how many."""
    found = db.execute(
        "DELETE FROM reservation WHERE rowid IN (SELECT rowid FROM reservation "
        "WHERE expires <= ? ORDER BY expires LIMIT ?) RETURNING 1",
        (time.time(), PRUNE_AT_ONCE),
    )
    return len(found.fetchall())
