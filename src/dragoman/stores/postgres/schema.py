"""The tables in PostgreSQL, and the migrations from one version to the next."""

from __future__ import annotations

from typing import Any

import asyncpg

from dragoman.model.caller import INDEXED
from dragoman.model.errors import Unavailable

LOCK = 0x64726167
"""The advisory lock for changes of the tables."""
LONG = 3600.0
"""The time limit for a change of the tables."""
BLOCK = 256
"""How many keys for tasks a process reserves at once."""

# Text is compared by bytes, whatever the language of the database. What callers choose freely
# (contexts, names of receipts, ids of webhooks) is indexed by its digest, or stored as bytes.
_FIRST = f"""
CREATE TABLE about (id TEXT NOT NULL, version INTEGER NOT NULL);
INSERT INTO about VALUES (replace(gen_random_uuid()::text, '-', ''), 0);

CREATE SEQUENCE task_key INCREMENT BY {BLOCK};

CREATE TABLE task (
  key BIGINT PRIMARY KEY,
  id TEXT COLLATE "C" NOT NULL UNIQUE,
  agent TEXT COLLATE "C" NOT NULL,
  tenant TEXT COLLATE "C" NOT NULL,
  owner TEXT COLLATE "C" NOT NULL,
  context TEXT COLLATE "C" NOT NULL,
  skill TEXT NOT NULL,
  state SMALLINT NOT NULL,
  changed TEXT COLLATE "C" NOT NULL,
  last INTEGER NOT NULL,
  version INTEGER NOT NULL,
  born BOOLEAN NOT NULL,
  replied BOOLEAN NOT NULL,
  epoch INTEGER NOT NULL,
  holder TEXT NOT NULL,
  lease DOUBLE PRECISION NOT NULL,
  turn INTEGER NOT NULL,
  settled INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  inbox TEXT NOT NULL,
  cancel_at DOUBLE PRECISION NOT NULL,
  canceled BYTEA,
  hooked BOOLEAN NOT NULL,
  size BIGINT NOT NULL,
  ready DOUBLE PRECISION,
  ended DOUBLE PRECISION
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX task_changed ON task (agent, tenant, owner, changed, id) WHERE born;
CREATE INDEX task_state ON task (agent, tenant, owner, state, changed, id) WHERE born;
CREATE INDEX task_context ON task (agent, tenant, owner, md5(context), changed, id) WHERE born;
CREATE INDEX task_ready ON task (agent, ready, key) WHERE ready IS NOT NULL;
CREATE INDEX task_held ON task (lease) WHERE holder <> '';
CREATE INDEX task_canceling ON task (cancel_at) WHERE holder <> '' AND cancel_at > 0;
CREATE INDEX task_ended ON task (ended) WHERE ended IS NOT NULL;
CREATE INDEX task_replied ON task (ended) WHERE replied;

CREATE TABLE entry (
  task BIGINT NOT NULL,
  number INTEGER NOT NULL,
  turn INTEGER NOT NULL,
  kind SMALLINT NOT NULL,
  body BYTEA NOT NULL,
  PRIMARY KEY (task, number)
);

CREATE TABLE snapshot (
  task BIGINT PRIMARY KEY,
  number INTEGER NOT NULL,
  body BYTEA NOT NULL
);

CREATE TABLE receipt (
  agent TEXT COLLATE "C" NOT NULL,
  tenant TEXT COLLATE "C" NOT NULL,
  owner TEXT COLLATE "C" NOT NULL,
  name BYTEA NOT NULL,
  digest BYTEA NOT NULL,
  task BIGINT NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (agent, tenant, owner, name)
);
CREATE INDEX receipt_task ON receipt (task);

CREATE TABLE line (
  task BIGINT NOT NULL,
  id BYTEA NOT NULL,
  agent TEXT COLLATE "C" NOT NULL,
  webhook BYTEA NOT NULL,
  cursor INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  due DOUBLE PRECISION NOT NULL,
  behind BOOLEAN NOT NULL,
  parked BOOLEAN NOT NULL,
  reason TEXT NOT NULL,
  ticket BIGINT NOT NULL,
  PRIMARY KEY (task, id)
);
CREATE INDEX line_due ON line (agent, due) WHERE behind AND NOT parked;
CREATE INDEX line_parked ON line (task) WHERE parked;

CREATE TABLE tally (
  agent TEXT COLLATE "C" NOT NULL,
  tenant TEXT COLLATE "C" NOT NULL,
  owner TEXT COLLATE "C" NOT NULL,
  state SMALLINT NOT NULL,
  shard SMALLINT NOT NULL,
  number BIGINT NOT NULL,
  PRIMARY KEY (agent, tenant, owner, state, shard)
) WITH (fillfactor = 50);
"""

# For the highest rank of an owner, and for the owners with something waiting.
_WAITING = """
CREATE INDEX task_waiting ON task (agent, tenant, owner, ready) WHERE ready IS NOT NULL;
"""
# Values that are too long for the index are found by their digest from now on.
_WAITING += "".join(
    f"UPDATE {table} SET owner = 'sha256:' || encode(sha256(convert_to(owner, 'UTF8')), 'hex') "
    f"WHERE octet_length(owner) > {INDEXED};"
    for table in ("task", "receipt", "tally")
)

# For the owners with something due. A lane is the digest of a tenant and an owner.
LANE = "hashtextextended({0}.owner, hashtextextended({0}.tenant, 0))"
_LANES = f"""
ALTER TABLE line ADD COLUMN lane BIGINT NOT NULL DEFAULT 0;
UPDATE line SET lane = {LANE.format("task")} FROM task WHERE task.key = line.task;
CREATE INDEX line_lane ON line (agent, lane, due) WHERE behind AND NOT parked;
"""

# For suspended handlers, and for tasks without a worker that are to be canceled.
_SUSPENDED = """
ALTER TABLE task ADD COLUMN due DOUBLE PRECISION;
ALTER TABLE task ADD COLUMN deadline DOUBLE PRECISION;
ALTER TABLE task ADD COLUMN plan TEXT;
CREATE INDEX task_due ON task (due) WHERE due > 0;
CREATE INDEX task_deadline ON task (deadline) WHERE deadline > 0;
CREATE INDEX task_undoing ON task (cancel_at)
  WHERE cancel_at > 0 AND holder = '' AND ended IS NULL;
"""

# For conversations: the messages of a context (found by its digest) in the order of their
# acceptance. Direct replies are kept as long as tasks, so they need no index of their own.
_MESSAGES = """
CREATE TABLE message (
  agent TEXT COLLATE "C" NOT NULL,
  tenant TEXT COLLATE "C" NOT NULL,
  owner TEXT COLLATE "C" NOT NULL,
  context BYTEA NOT NULL,
  at TEXT COLLATE "C" NOT NULL,
  task BIGINT NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (task, number)
);
CREATE FUNCTION pg_temp.dragoman_at(body BYTEA) RETURNS TEXT LANGUAGE plpgsql AS $$
BEGIN
  RETURN convert_from(body, 'UTF8')::json ->> 'at';
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END $$;
INSERT INTO message
SELECT agent, tenant, owner, sha256(convert_to(context, 'UTF8')), at, key, number FROM (
  SELECT task.*, entry.number, pg_temp.dragoman_at(entry.body) AS at
  FROM entry JOIN task ON task.key = entry.task WHERE entry.kind = 1
) AS found WHERE at IS NOT NULL;
DROP FUNCTION pg_temp.dragoman_at;
CREATE INDEX message_context ON message (agent, tenant, owner, context, at, task, number);
DROP INDEX task_replied;
"""

# What handlers save for a context, which is found by its digest.
_CONTEXT_VALUES = """
CREATE TABLE context_value (
  agent TEXT COLLATE "C" NOT NULL,
  tenant TEXT COLLATE "C" NOT NULL,
  owner TEXT COLLATE "C" NOT NULL,
  context BYTEA NOT NULL,
  version BIGINT NOT NULL,
  saver TEXT NOT NULL,
  body BYTEA NOT NULL,
  PRIMARY KEY (agent, tenant, owner, context)
);
"""

# Values that belong to no task.
_RESERVATIONS = """
CREATE TABLE reservation (
  space TEXT COLLATE "C" NOT NULL,
  key TEXT COLLATE "C" NOT NULL,
  body BYTEA NOT NULL,
  expires DOUBLE PRECISION,
  PRIMARY KEY (space, key)
);
CREATE INDEX reservation_expires ON reservation (expires) WHERE expires IS NOT NULL;
"""

# What only the replay of an unfinished turn needs, see `Private.beside`.
_REPLAY_VALUES = """
CREATE TABLE replay_value (
  task BIGINT NOT NULL,
  number INTEGER NOT NULL,
  body BYTEA NOT NULL,
  PRIMARY KEY (task, number)
);
"""

MIGRATIONS: tuple[str, ...] = (
    *(_FIRST, _WAITING, _LANES, _SUSPENDED, _MESSAGES, _CONTEXT_VALUES, _RESERVATIONS),
    _REPLAY_VALUES,
)
"""Each leads from the version that is its index to the next one."""

VERSION = len(MIGRATIONS)


class Unusable(Unavailable):
    """This program cannot use the database. The message gives the reason."""


OTHERS = (
    "the database has tables of another application with the same names; use a separate "
    "database or schema (postgresql://…?search_path=dragoman)"
)

SECURED = (
    *("task", "entry", "snapshot", "receipt", "line", "tally", "message", "context_value"),
    *("reservation", "replay_value"),
)
ADDED = {
    "message": _MESSAGES,
    "context_value": _CONTEXT_VALUES,
    "reservation": _RESERVATIONS,
    "replay_value": _REPLAY_VALUES,
}
"""Those of them that are not in the first version."""
POLICY = "dragoman_tenant"
# A setting that was set for a transaction is empty afterwards. It must not mean the tenant with the
# empty name.
_TENANT = "tenant = nullif(current_setting('dragoman.tenant', true), '')"


async def version(db: Any) -> int:
    """Return the version of the tables, 0 if there are none. Raises Unusable if they are newer."""
    # (to_regclass may remember that there was no table before the wait for the lock)
    if not await db.fetchval(
        "SELECT count(*) FROM pg_class WHERE relname = 'about' AND pg_table_is_visible(oid)"
    ):
        return 0
    try:
        rows = await db.fetch("SELECT id, version FROM about")
    except asyncpg.UndefinedColumnError:
        raise Unusable(OTHERS) from None
    if len(rows) != 1 or not rows[0][0]:
        raise Unusable(
            "the store is damaged: its table about must have one row with an id, but has "
            f"{len(rows)}; see `dragoman db check`"
        )
    found = int(rows[0][1])
    if found > VERSION:
        raise Unusable(
            f"a newer dragoman wrote the database (schema {found}, this version supports "
            f"{VERSION}); upgrade dragoman, or use another database"
        )
    return found


async def usable(db: Any, *, migrating: bool) -> None:
    """Check that the tables have the present version and that this role sees all rows. Raises
    Unusable."""
    if migrating:
        await migrate(db)
    elif (found := await version(db)) < VERSION:
        raise Unusable(
            f"store: the schema of the database is {found}, not {VERSION}, and migrate is "
            "off; run `dragoman db migrate` as the role that owns the tables"
        )
    if await db.fetchval("SELECT row_security_active('task')"):
        raise Unusable(
            "store: row security hides tasks from this role; use the role that owns the tables, a "
            "member of it, or one with BYPASSRLS"
        )


async def migrate(db: Any) -> int:
    """Update the tables to the present version. Returns the old one."""
    if (before := await version(db)) == VERSION:
        return before
    try:
        async with db.transaction():
            await db.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            before = await version(db)  # another process may have done it meanwhile
            await db.execute("SET LOCAL statement_timeout = 0")  # a large table takes long
            for script in MIGRATIONS[before:]:
                await db.execute(script, timeout=LONG)
            if await db.fetchval(
                "SELECT relrowsecurity FROM pg_class WHERE oid = 'task'::regclass"
            ):
                for table, script in ADDED.items():
                    if before <= MIGRATIONS.index(script):
                        await _secure(db, table, on=True)
            await db.execute("UPDATE about SET version = $1", VERSION)
    except asyncpg.DuplicateTableError:
        raise Unusable(OTHERS) from None
    except asyncpg.InsufficientPrivilegeError as error:
        raise Unusable(
            f"store: cannot update the tables to schema {VERSION}: {error}; run `dragoman "
            "db migrate` as a role with the permission"
        ) from None
    return before


async def secure(db: Any, on: bool) -> None:
    """Restrict roles other than the owner to the tenant in `dragoman.tenant`, or end the
    restriction."""
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        for table in SECURED:
            await _secure(db, table, on=on)


async def _secure(db: Any, table: str, *, on: bool) -> None:
    which = _TENANT
    if table in ("entry", "snapshot", "line", "message", "replay_value"):
        which = f"EXISTS (SELECT 1 FROM task WHERE key = {table}.task AND task.{_TENANT})"
    elif table == "reservation":  # it belongs to no tenant
        which = "false"
    await db.execute(f"DROP POLICY IF EXISTS {POLICY} ON {table}")
    if on:
        await db.execute(f"CREATE POLICY {POLICY} ON {table} FOR SELECT USING ({which})")
    await db.execute(f"ALTER TABLE {table} {'ENABLE' if on else 'DISABLE'} ROW LEVEL SECURITY")
