"""The tables, and the migrations from one version to the next."""

from __future__ import annotations

from dragoman.model.caller import INDEXED, owner_key
from dragoman.model.errors import Unavailable
from dragoman.stores.codec import RECEIVED, accepted_at
from dragoman.stores.sqlite.driver import Connection, fetch

APPLICATION = 0x64726167
"""The `PRAGMA application_id` of a store."""

BITS = 24
"""The position of an entry is its task's key, shifted by this many bits, plus its number. So
neighbours in a log are neighbours on disk, and reading on is one range of one tree."""

ADD_MESSAGE = "INSERT INTO message (task, number, scope, context, at) VALUES (?, ?, ?, ?, ?)"

_FIRST = """
CREATE TABLE scope (
  key INTEGER PRIMARY KEY,
  agent TEXT NOT NULL,
  tenant TEXT NOT NULL,
  owner TEXT NOT NULL,
  UNIQUE (agent, tenant, owner)
) STRICT;

CREATE TABLE task (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  scope INTEGER NOT NULL,
  agent TEXT NOT NULL,
  context TEXT NOT NULL,
  skill TEXT NOT NULL,
  state INTEGER NOT NULL,
  changed TEXT NOT NULL,
  last INTEGER NOT NULL,
  version INTEGER NOT NULL,
  born INTEGER NOT NULL,
  replied INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  holder TEXT NOT NULL,
  lease REAL NOT NULL,
  turn INTEGER NOT NULL,
  settled INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  inbox TEXT NOT NULL,
  cancel_at REAL NOT NULL,
  canceled BLOB,
  hooked INTEGER NOT NULL,
  size INTEGER NOT NULL,
  ready INTEGER,
  ended REAL
) STRICT;

CREATE INDEX task_changed ON task (scope, changed, id) WHERE born = 1;
CREATE INDEX task_state ON task (scope, state, changed, id) WHERE born = 1;
CREATE INDEX task_context ON task (scope, context, changed, id, state) WHERE born = 1;
CREATE INDEX task_ready ON task (agent, ready) WHERE ready IS NOT NULL;
CREATE INDEX task_held ON task (lease) WHERE lease > 0;
CREATE INDEX task_ended ON task (ended) WHERE ended IS NOT NULL;
CREATE INDEX task_replied ON task (ended) WHERE replied = 1;

CREATE TABLE tally (
  scope INTEGER NOT NULL,
  state INTEGER NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (scope, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE entry (
  place INTEGER PRIMARY KEY,
  turn INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT;

CREATE TABLE snapshot (
  task INTEGER PRIMARY KEY,
  number INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT;

CREATE TABLE receipt (
  scope INTEGER NOT NULL,
  name TEXT NOT NULL,
  digest BLOB NOT NULL,
  task INTEGER NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX receipt_task ON receipt (task);

CREATE TABLE line (
  task INTEGER NOT NULL,
  id TEXT NOT NULL,
  agent TEXT NOT NULL,
  webhook BLOB NOT NULL,
  cursor INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  due REAL NOT NULL,
  taken INTEGER NOT NULL,
  behind INTEGER NOT NULL,
  parked INTEGER NOT NULL,
  reason TEXT NOT NULL,
  ticket INTEGER NOT NULL,
  PRIMARY KEY (task, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX line_due ON line (agent, due) WHERE behind = 1 AND parked = 0;
CREATE INDEX line_parked ON line (task) WHERE parked = 1;
"""

_ABOUT = """
CREATE TABLE about (
  id TEXT NOT NULL
) STRICT;

INSERT INTO about (id) VALUES (lower(hex(randomblob(16))));
"""

# For the highest rank of an owner, and for the owners with something waiting.
_WAITING = """
CREATE INDEX task_waiting ON task (agent, scope, ready) WHERE ready IS NOT NULL;
"""

# For the owners with something due.
_LANES = """
ALTER TABLE line ADD COLUMN lane INTEGER NOT NULL DEFAULT 0;

UPDATE line SET lane = coalesce((SELECT scope FROM task WHERE key = line.task), 0);

CREATE INDEX line_lane ON line (agent, lane, due) WHERE behind = 1 AND parked = 0;
"""

# For suspended handlers, and for tasks without a worker that are to be canceled.
_SUSPENDED = """
ALTER TABLE task ADD COLUMN due REAL;
ALTER TABLE task ADD COLUMN deadline REAL;
ALTER TABLE task ADD COLUMN plan TEXT;

CREATE INDEX task_due ON task (due) WHERE due > 0;
CREATE INDEX task_deadline ON task (deadline) WHERE deadline > 0;
CREATE INDEX task_canceling ON task (cancel_at)
  WHERE cancel_at > 0 AND holder = '' AND ended IS NULL;
"""

# For conversations: the messages of a context in the order of their acceptance. Direct replies are
# kept as long as tasks, so they need no index of their own.
_MESSAGES = """
CREATE TABLE message (
  task INTEGER NOT NULL,
  number INTEGER NOT NULL,
  scope INTEGER NOT NULL,
  context TEXT NOT NULL,
  at TEXT NOT NULL,
  PRIMARY KEY (task, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX message_context ON message (scope, context, at, task, number);
DROP INDEX task_replied;
"""

# What handlers save for a context. Bodies are large, so the index does not contain them.
_CONTEXT_VALUES = """
CREATE TABLE context_value (
  scope INTEGER NOT NULL,
  context TEXT NOT NULL,
  version INTEGER NOT NULL,
  saver TEXT NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (scope, context)
) STRICT;
"""

# Values that belong to no task. Bodies are large, so the index does not contain them.
_RESERVATIONS = """
CREATE TABLE reservation (
  space TEXT NOT NULL,
  key TEXT NOT NULL,
  body BLOB NOT NULL,
  expires REAL,
  PRIMARY KEY (space, key)
) STRICT;

CREATE INDEX reservation_expires ON reservation (expires) WHERE expires IS NOT NULL;
"""

# What only the replay of an unfinished turn needs, see `Private.beside`.
_REPLAY_VALUES = """
CREATE TABLE replay_value (
  task INTEGER NOT NULL,
  number INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (task, number)
) STRICT;
"""

MIGRATIONS: tuple[str, ...] = (
    *(_FIRST, _ABOUT, _WAITING, _LANES, _SUSPENDED, _MESSAGES, _CONTEXT_VALUES, _RESERVATIONS),
    _REPLAY_VALUES,
)
"""Each leads from the version that is its index to the next one."""

VERSION = len(MIGRATIONS)


class Unusable(Unavailable):
    """This program cannot use the file. The message gives the reason."""


def version(db: Connection) -> int:
    """Return the version of the file's tables, 0 if it is new. Raises Unusable if the file belongs
    to another program."""
    (found,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION:
        raise Unusable("it is a database of another application")
    if found > VERSION:
        raise Unusable(
            f"a newer dragoman wrote it (schema {found}, this version supports {VERSION}); "
            "upgrade dragoman, or use another file"
        )
    return int(found)


def identity(db: Connection) -> str:
    """Return the id of the store. Raises Unusable if the file has none."""
    found = fetch(db, "SELECT id FROM about")
    if len(found) != 1 or not isinstance(found[0][0], str) or not found[0][0]:
        raise Unusable(
            "it is damaged: its table about must have one row with an id, but has "
            f"{len(found)}; see `dragoman db check`"
        )
    return found[0][0]


def migrate(db: Connection) -> int:
    """Update the tables to the present version. Returns the old one."""
    before = version(db)
    if before == VERSION:
        return before
    db.execute("BEGIN IMMEDIATE")
    try:
        before = version(db)  # another process may have done it meanwhile
        for script in MIGRATIONS[before:]:
            for statement in script.split(";"):
                if statement.strip():
                    db.execute(statement)
        if 0 < before < 3:
            _shorten(db)
        if 0 < before <= MIGRATIONS.index(_MESSAGES):
            _index_messages(db)
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return before


def _index_messages(db: Connection) -> None:
    """Add the messages that are older than their table."""
    key = -1
    while tasks := fetch(
        db, "SELECT key, scope, context FROM task WHERE key > ? ORDER BY key LIMIT 1000", (key,)
    ):
        for key, scope, context in tasks:
            base = key << BITS
            found = db.execute(
                "SELECT place - ?1, body FROM entry WHERE place > ?1 AND place < ?2 AND kind = ?3",
                (base, base + (1 << BITS), RECEIVED),
            )
            noted = [
                (key, number, scope, context, at)
                for number, body in found.fetchall()
                if (at := accepted_at(body))
            ]
            if isinstance(context, str):  # `dragoman db check` reports one that is not UTF-8
                db.executemany(ADD_MESSAGE, noted)


def _shorten(db: Connection) -> None:
    """Store owners by their digest if they are too long for other stores."""
    found = "SELECT key, owner FROM scope WHERE length(CAST(owner AS BLOB)) > ?"
    for key, owner in fetch(db, found, (INDEXED,)):
        if isinstance(owner, str):  # `dragoman db check` reports one that is not UTF-8
            db.execute("UPDATE scope SET owner = ? WHERE key = ?", (owner_key(owner), key))
