"""Reservations in a SQLite file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dragoman.stores.reservations import PRUNE_AT_ONCE
from dragoman.stores.sqlite.driver import Connection

if TYPE_CHECKING:
    from dragoman.stores.sqlite.transaction import Transaction

PUT = "INSERT OR REPLACE INTO reservation (space, key, body, expires) VALUES (?, ?, ?, ?)"


def reserve(
    transaction: Transaction, space: str, key: str, body: bytes, keep: float | None
) -> bytes:
    """Return the stored form that is there, or else this one, which is there from now on."""
    db, now = transaction.db, time.time()
    if (found := valid(db, space, key, now)) is not None:
        return found[0]
    db.execute(PUT, (space, key, body, None if keep is None else now + keep))
    return body


def reserved(transaction: Transaction, space: str, key: str) -> bytes | None:
    """Return the stored form that is there and has not expired."""
    found = valid(transaction.db, space, key, time.time())
    return None if found is None else found[0]


def valid(db: Connection, space: str, key: str, now: float) -> tuple[bytes, float | None] | None:
    """Return the stored form and the time of a reservation that has not expired."""
    found: tuple[bytes, float | None] | None = db.execute(
        "SELECT body, expires FROM reservation WHERE space = ? AND key = ? "
        "AND (expires IS NULL OR expires > ?)",
        (space, key, now),
    ).fetchone()
    return found


def prune(db: Connection) -> int:
    """Delete some expired reservations. Returns how many."""
    found = db.execute(
        "DELETE FROM reservation WHERE rowid IN (SELECT rowid FROM reservation "
        "WHERE expires <= ? ORDER BY expires LIMIT ?) RETURNING 1",
        (time.time(), PRUNE_AT_ONCE),
    )
    return len(found.fetchall())
