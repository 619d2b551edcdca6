"""Connections to the file, and the meaning of its errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from dragoman.model.errors import Unavailable

OLDEST = (3, 37, 0)
BUSY = 10.0
"""How long to wait for another process that has locked the file."""


class Cursor(Protocol):
    """The used part of a cursor."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""

    def __iter__(self) -> Any: ...


class Connection(Protocol):
    """The used part of a connection: little, so that another driver can replace it."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Cursor:
        """Run one statement."""

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        """Run one statement many times."""

    def close(self) -> None:
        """Close the file."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""


class Driver(Struct, frozen=True):
    """A library that opens SQLite files, and the base class of its errors."""

    connect: Callable[[Path], Connection]
    error: type[Exception]


def _connect(path: Path) -> Connection:
    if sqlite3.sqlite_version_info < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise Unavailable(
            f"SQLite {sqlite3.sqlite_version} is too old; at least {wanted} is required"
        )
    return sqlite3.connect(
        path, timeout=BUSY, isolation_level=None, check_same_thread=False, cached_statements=256
    )


STANDARD = Driver(_connect, sqlite3.Error)
"""The library of Python."""


def fetch(db: Any, sql: str, values: Any = ()) -> list[Any]:
    """Return all rows of a statement. A text that is not UTF-8 is returned as bytes, so that the
    other rows stay readable."""
    try:
        found: list[Any] = db.execute(sql, values).fetchall()
    except Exception as error:
        if "Could not decode" not in str(error):
            raise
        factory, db.text_factory = db.text_factory, _text
        try:
            found = db.execute(sql, values).fetchall()
        finally:
            db.text_factory = factory
    return found


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def prepare(db: Connection, *, synchronous: str, query_only: bool = False) -> Connection:
    """Configure a connection."""
    db.execute("PRAGMA journal_mode = WAL").fetchone()
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA cache_size = -16000")
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA journal_size_limit = 67108864").fetchone()
    if query_only:
        db.execute("PRAGMA query_only = 1")
    return db


_WORDS = (
    ("full", "the disk is full"),
    ("readonly", "the file cannot be written"),
    ("read-only", "the file cannot be written"),
    ("readonly database", "the file cannot be written"),
    ("locked", "another process has locked the file"),
    ("busy", "another process has locked the file"),
    ("malformed", "the file is damaged; see `dragoman db check`"),
    ("not a database", "the file is damaged; see `dragoman db check`"),
    ("disk I/O", "the disk has an error"),
    ("unable to open", "the file cannot be opened"),
)


def unavailable(error: BaseException) -> Unavailable:
    """Convert a driver's error to the error that callers see."""
    text = str(error)
    reason = next((words for mark, words in _WORDS if mark in text), text)
    return Unavailable(f"The store is not available: {reason}", headers={"retry-after": "5"})
