"""The rows of a SQLite file: how heads and entries are selected, read and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dragoman.model.events import Entry, Event
from dragoman.stores.codec import ARTIFACT, PRIVATE, encode, entry
from dragoman.stores.sql_head import SqlHead
from dragoman.stores.sqlite.driver import Connection
from dragoman.stores.sqlite.schema import BITS
from dragoman.stores.store import LARGE

HANGING = ("snapshot", "receipt", "line", "message", "replay_value")
"""The tables whose rows belong to a task."""

_CHANGING = SqlHead.CHANGING
COLUMNS = ("key", "id", "scope", "agent", "context", *_CHANGING)
"""The columns of the table."""
_SELECTED = ", ".join(
    f"scope.{name}" if name in ("tenant", "owner") else f"task.{name}"
    for name in SqlHead.FIXED + _CHANGING
)
FOUND = f"SELECT {_SELECTED} FROM task JOIN scope ON scope.key = task.scope"
MINE = "WHERE task.id = ? AND scope.agent = ? AND scope.tenant = ? AND scope.owner = ?"
"""Selects a task of a scope. The row of another scope is not read, so it costs as much as no
row."""
INSERT = f"INSERT INTO task ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
"""Writes all columns. (An ordinary new row has nothing in those of `SUSPENDED`.)"""
_OPTIONAL = ("canceled", "ready", "ended")
"""The usual columns that may be NULL. They get an empty text instead, see `SqliteHead`."""
_USUAL = {
    name: "nullif(?, '')" if name in _OPTIONAL else "?"
    for name in (*COLUMNS[: -len(_CHANGING)], *SqlHead.USUAL)
}
ADD = f"INSERT INTO task ({', '.join(_USUAL)}) VALUES ({', '.join(_USUAL.values())})"
UPDATE = (
    f"UPDATE task SET {', '.join(f'{name} = {_USUAL[name]}' for name in SqlHead.USUAL)} "
    "WHERE key = ?"
)
ADD_VALUE = "INSERT INTO replay_value (task, number, body) VALUES (?, ?, ?)"
SUSPEND = f"UPDATE task SET {', '.join(f'{name} = ?' for name in SqlHead.SUSPENDED)} WHERE key = ?"


class SqliteHead(SqlHead):
    """A row of the file.

    `sqlite3` takes numbers, texts and bytearrays as they are. For None, booleans and bytes it
    searches an adapter, which takes longer than writing a row. So it gets none of them.
    """

    __slots__ = ("unusual",)
    unusual: bool
    """Whether its columns of `SUSPENDED` have values in the file."""

    def _clear(self) -> None:
        super()._clear()
        self.unusual = False

    def usual(self) -> tuple[Any, ...]:
        """Return the values of `USUAL`."""
        return (
            self.skill, self.state.number, self.changed, self.last, self.version,
            1 if self.born else 0, 1 if self.replied else 0, self.epoch, self.holder, self.lease,
            self.turn, self.settled, self.attempt, self._inbox(), self.cancel_at,
            "" if self.canceled is None else bytearray(encode(self.canceled)),
            1 if self.hooked else 0, self.size,
            "" if self.offered is None else self.offered,
            "" if self.ended_at is None else self.ended_at,
        )  # fmt: skip

    def _restore(self, columns: Sequence[Any]) -> None:
        id, agent, tenant, owner, context, skill = columns[1:7]
        texts = (id, agent, tenant, owner, context, skill, columns[8], columns[14])
        if any(type(text) is not str for text in texts):
            raise ValueError("a text is not UTF-8")
        super()._restore(columns)
        self.unusual = columns[-3:] != (None, None, None)


def named(task: object) -> str:
    """Return an id in a form that can be shown, even if it is not UTF-8."""
    return task if isinstance(task, str) else repr(task)


def entries(
    db: Connection, key: int, after: int, limit: int, *, private: bool = False
) -> list[Entry]:
    """Return the entries of a log after a number, until there are enough or they reach LARGE. The
    content of private entries is returned only if requested."""
    body = "body" if private else f"CASE WHEN kind < {PRIVATE} THEN body ELSE x'' END"
    base = key << BITS
    found = []
    size = 0
    for place, turn, kind, data in db.execute(
        f"SELECT place, turn, kind, {body} FROM entry "
        "WHERE place > ? AND place < ? ORDER BY place LIMIT ?",
        (base + after, base + (1 << BITS), limit),
    ):
        found.append(entry(place - base, turn, kind, data))
        size += len(data)
        if size >= LARGE:
            break
    return found


def events(
    db: Connection, key: int, after: int, *, artifacts: bool = True
) -> Iterator[tuple[int, Event]]:
    """Return the events of a log after a number, and their sizes; without artifacts if
    requested."""
    base = key << BITS
    for turn, kind, data in db.execute(
        "SELECT turn, kind, body FROM entry WHERE place > ? AND place < ? AND kind <> ? "
        f"AND kind < {PRIVATE} ORDER BY place",
        (base + after, base + (1 << BITS), 0 if artifacts else ARTIFACT),
    ):
        yield len(data), entry(0, turn, kind, data).event  # type: ignore[misc]


class Old(NamedTuple):
    """What is needed to delete a task."""

    key: int
    id: str
    scope: int
    state: int
    born: bool


OLD = ", ".join(f"task.{name}" for name in Old._fields)
