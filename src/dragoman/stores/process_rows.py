"""The rows that processes write about themselves, so that operators see all replicas.

A row is stored like a reservation that expires, under the time of its process. So it needs no table
of its own, and processes of older versions delete it, too. It is never encrypted, because it has
no secrets.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

FLEET = "dragoman.fleet"
"""The space of the rows."""
EVERY = 10.0
"""How many seconds pass between two rows of a process."""
LIVES = 3600.0
"""How many seconds a row is kept."""
GONE = 30.0
"""A process counts as gone after this many seconds without a row."""


class ProcessRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process was doing when it wrote this row."""

    id: str
    """Another one after each start."""
    name: str
    """The machine and the number of the process."""
    role: str
    """`server` (serves and runs turns), `serve only`, or `worker`."""
    version: str
    """The version of dragoman."""
    agents: tuple[str, ...] = ()
    running: int = 0
    """How many turns it runs."""
    streams: int = 0
    """How many streams are open."""
    messages: int = 0
    """How many messages it has accepted since its row before."""
    turns: int = 0
    """How many turns have ended in it since then."""
    failed: int = 0
    """How many of them ended their task as failed."""
    lost: int = 0
    """How many of them had lost their claim."""
    at: float = 0.0
    """When the store received the row, by the store's clock (Unix time)."""
    key: str = ""
    """Its place among all rows: `fleet` returns what comes after one."""


class Fleet(Struct, frozen=True):
    """The rows of all processes."""

    now: float
    """The time by the store's clock."""
    rows: Sequence[ProcessRow]
    """In the order of their keys."""


class Process(Struct, frozen=True):
    """A process, as its rows show it."""

    latest: ProcessRow
    first: float
    """The time of its first row that is still kept."""
    gone: bool
    """Whether it has written nothing for `GONE` seconds."""


_row = msgspec.json.Decoder(ProcessRow).decode


def row_body(row: ProcessRow) -> bytes:
    """The stored form of a row."""
    return base64.b64encode(msgspec.json.encode(row))


def read_rows(found: Iterable[tuple[str, bytes, float]]) -> list[ProcessRow]:
    """Read rows: each has a key, the stored form, and the time at which it expires. Rows of newer
    versions that cannot be read are left out."""
    rows = []
    for key, body, expires in found:
        try:
            row = _row(base64.b64decode(body, validate=True))
        except (ValueError, msgspec.MsgspecError):
            continue
        rows.append(replace(row, key=key, at=expires - LIVES))
    return rows


def processes(fleet: Fleet) -> tuple[Process, ...]:
    """Return each process of a fleet, those that write first."""
    found: dict[str, list[ProcessRow]] = {}
    for row in fleet.rows:
        found.setdefault(row.id, []).append(row)
    all_ = []
    for rows in found.values():
        latest = max(rows, key=lambda row: row.at)
        first = min(row.at for row in rows)
        all_.append(Process(latest, first, fleet.now - latest.at > GONE))
    return tuple(sorted(all_, key=lambda one: (one.gone, one.latest.name, one.latest.id)))
