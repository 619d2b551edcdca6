"""Entries, their history and the search index, in one SQLite file that several processes may use.

Every call is one transaction. The calls block; `Database.run` makes them in the one thread that has
the connection.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from dragoman import Caller
from dragoman.registry import search as index
from dragoman.registry.entries import (
    MOST_LISTED,
    Change,
    Entry,
    Hits,
    NotFound,
    Query,
    RegistryError,
    State,
    change,
    now,
)

P = ParamSpec("P")
T = TypeVar("T")
Rule = Callable[[Entry | None], Entry]

MARK, VERSION = 0x64726772, 1
"""What SQLite's `application_id` and `user_version` of our files are. The stores of tasks have
another `application_id`: neither takes a file of the other for its own."""
PREFIX = "sqlite:///"
WAIT = 10.0
"""Seconds to wait for another process that writes."""

SCHEMA = """
CREATE TABLE entries (
  id INTEGER PRIMARY KEY,
  urn TEXT NOT NULL UNIQUE,
  alias TEXT UNIQUE,
  state TEXT NOT NULL,
  name TEXT NOT NULL,
  shown INTEGER NOT NULL,
  audience TEXT NOT NULL,
  publisher TEXT NOT NULL,
  version TEXT NOT NULL,
  signed INTEGER NOT NULL,
  healthy INTEGER NOT NULL,
  checked TEXT NOT NULL,
  data BLOB NOT NULL
);
CREATE INDEX entries_by_check ON entries (checked) WHERE state NOT IN ('rejected', 'removed');
CREATE INDEX entries_by_audience ON entries (audience) WHERE audience <> '';
CREATE TABLE features (
  id INTEGER NOT NULL,
  kind TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (kind, value, id)
) WITHOUT ROWID;
CREATE INDEX features_by_entry ON features (id);
CREATE TABLE changes (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  urn TEXT NOT NULL,
  data BLOB NOT NULL
);
CREATE INDEX changes_by_urn ON changes (urn, number);
CREATE VIRTUAL TABLE words USING fts5(
  name, description, skills, tags, examples, queries,
  tokenize = 'porter unicode61 remove_diacritics 2'
);
"""

_entry = msgspec.json.Decoder(Entry).decode
_change = msgspec.json.Decoder(Change).decode


class Database:
    """The file of a registry. Open it with `with` for blocking calls, or with `async with` and use
    `run`."""

    def __init__(self, url: str) -> None:
        self.path = path(url)
        self._thread: ThreadPoolExecutor | None = None
        self._opened: sqlite3.Connection | None = None

    # -- open and close

    def __enter__(self) -> Database:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    async def __aenter__(self) -> Database:
        self._thread = ThreadPoolExecutor(1, "dragoman-registry")
        try:
            await self.run(Database._open)
        except BaseException:
            self._thread.shutdown()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._thread is not None
        await self.run(Database._close)
        self._thread.shutdown()

    async def run(
        self,
        call: Callable[Concatenate[Database, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """Make a call in the thread of the database."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(self, *arguments, **named))

    def _open(self) -> None:
        try:
            connection = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)
            self._opened = connection
            (mark,) = connection.execute("PRAGMA application_id").fetchone()
            tables = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            if tables and mark != MARK:
                raise RegistryError(f"{self.path}: is a database, but not one of a registry")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                self._create()
        except sqlite3.Error as error:
            self._close()
            raise RegistryError(f"{self.path}: cannot be opened: {error}") from None
        except BaseException:
            self._close()
            raise

    def _create(self) -> None:
        """Make the tables, unless another process has."""
        (version,) = self._one("PRAGMA user_version")
        if version > VERSION:
            raise RegistryError(
                f"{self.path}: was written by a newer version of dragoman (schema {version}; this "
                f"one knows {VERSION})"
            )
        if version == VERSION:
            return
        for statement in SCHEMA.split(";\n"):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA application_id = {MARK}")
        self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            raise RuntimeError("the database is not open; use `with` or `async with`")
        return self._opened

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One transaction that writes. Other processes wait."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _one(self, statement: str, *values: object) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._connection.execute(statement, values).fetchone()
        return found

    # -- read

    def get(self, name: str, caller: Caller | None = None) -> Entry:
        """The entry with this URN or alias. A caller gets only what is shown to it; None is the
        operator. Raises NotFound."""
        row = self._connection.execute(
            "SELECT data FROM entries WHERE urn = ?1 OR alias = ?1", (name,)
        ).fetchone()
        entry = _entry(row[0]) if row else None
        if entry is None or (
            caller is not None and not (entry.shown and entry.audience.admits(caller))
        ):
            raise NotFound(f"the registry has no entry {name[:200]!r}")
        return entry

    def find(self, urn: str) -> Entry | None:
        """The entry with this URN, whatever its state."""
        row = self._connection.execute("SELECT data FROM entries WHERE urn = ?", (urn,)).fetchone()
        return _entry(row[0]) if row else None

    def waiting(self) -> int:
        """How many entries wait for approval."""
        (number,) = self._one("SELECT COUNT(*) FROM entries WHERE state = 'pending'")
        return int(number)

    def names(self, other: str) -> list[tuple[str, str]]:
        """The URNs and names of the shown entries, without one."""
        return self._connection.execute(
            "SELECT urn, name FROM entries WHERE shown AND urn <> ?", (other,)
        ).fetchall()

    def entries(
        self, state: State | None = None, limit: int = MOST_LISTED, after: str = ""
    ) -> list[Entry]:
        """Entries by their URN, for the operator."""
        rows = self._connection.execute(
            "SELECT data FROM entries WHERE urn > ?1 AND (?2 IS NULL OR state = ?2)"
            " ORDER BY urn LIMIT ?3",
            (after, state, limit),
        )
        return [_entry(data) for (data,) in rows]

    def due(self, before: str, limit: int) -> list[Entry]:
        """The entries whose card was last fetched before this time, the oldest first."""
        rows = self._connection.execute(
            "SELECT data FROM entries WHERE state NOT IN ('rejected', 'removed') AND checked < ?"
            " ORDER BY checked LIMIT ?",
            (before, limit),
        )
        return [_entry(data) for (data,) in rows]

    def changes(self, urn: str = "", limit: int = MOST_LISTED, before: int = 0) -> list[Change]:
        """What has happened, the last first; all of it, or to one entry."""
        rows = self._connection.execute(
            "SELECT number, data FROM changes WHERE (?1 = '' OR urn = ?1)"
            " AND (?2 = 0 OR number < ?2) ORDER BY number DESC LIMIT ?3",
            (urn, before, limit),
        )
        return [replace(_change(data), number=number) for number, data in rows]

    def search(self, query: Query, caller: Caller | None = None) -> Hits:
        """What a caller may see of what the query finds; None is the operator."""
        return index.search(self._connection, query, caller)

    def facets(
        self, query: Query, kind: index.Facet, limit: int, caller: Caller | None = None
    ) -> list[tuple[str, int]]:
        """The most frequent values of what the query finds, with their counts."""
        return index.facets(self._connection, query, kind, limit, caller)

    # -- write

    def write(self, urn: str, rule: Rule, who: str, what: str) -> tuple[Entry, Entry | None]:
        """Apply a rule to an entry (None if there is none yet), and record the change. Returns the
        entry afterwards and before. What the rule raises undoes everything."""
        with self._transaction():
            before = self.find(urn)
            after = rule(before)
            if after == before:
                return after, before
            at = now()
            record = change(before, after, who, what, at)
            if record is not None:
                after = replace(after, updated=at, added=after.added or at)
                self._connection.execute(
                    "INSERT INTO changes (urn, data) VALUES (?, ?)",
                    (urn, msgspec.json.encode(record)),
                )
            self._save(after, indexed=before is None or index.text(before) != index.text(after))
        return after, before

    def _save(self, entry: Entry, *, indexed: bool) -> None:
        card = entry.approved.card if entry.approved is not None else None
        checked = max(entry.health.good, entry.health.failed)
        try:
            (number,) = self._one(
                "INSERT INTO entries (urn, alias, state, name, shown, audience, publisher, version,"
                " signed, healthy, checked, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (urn) DO UPDATE SET alias = excluded.alias, state = excluded.state,"
                " name = excluded.name, shown = excluded.shown, audience = excluded.audience,"
                " publisher = excluded.publisher, version = excluded.version,"
                " signed = excluded.signed, healthy = excluded.healthy,"
                " checked = excluded.checked, data = excluded.data RETURNING id",
                *(
                    entry.urn,
                    entry.alias or None,
                    entry.state,
                    card.name if card else "",
                    entry.shown,
                ),
                *(index.audience(entry), entry.publisher, card.version if card else ""),
                *(bool(entry.pins), entry.health.ok, checked, msgspec.json.encode(entry)),
            )
        except sqlite3.IntegrityError:
            raise RegistryError(
                f"the alias {entry.alias!r} belongs to another entry; choose another one"
            ) from None
        if indexed:
            self._index(number, entry)

    def _index(self, number: object, entry: Entry) -> None:
        """Replace what the search finds of an entry."""
        self._connection.execute("DELETE FROM words WHERE rowid = ?", (number,))
        self._connection.execute("DELETE FROM features WHERE id = ?", (number,))
        texts = index.text(entry)
        if texts is None:
            return
        self._connection.execute(
            "INSERT INTO words (rowid, name, description, skills, tags, examples, queries)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, *texts),
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO features (id, kind, value) VALUES (?, ?, ?)",
            [(number, kind, value) for kind, value in index.features(entry.card)],
        )


def path(url: str) -> Path:
    """The file that a URL names. Raises RegistryError for any other store."""
    if not url.startswith(PREFIX) or "?" in url or "#" in url or len(url) == len(PREFIX):
        scheme = url.partition(":")[0]
        raise RegistryError(
            f"store: a registry keeps its entries in a SQLite file, sqlite:///agents.db, not in "
            f"{scheme}:"
        )
    return Path(unquote(url.removeprefix(PREFIX)))
