"""`dragoman db check` reads every column: whatever is damaged is named, in both databases."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from dragoman.model.caller import Caller
from dragoman.model.events import CancelRequested, Private, Received
from dragoman.model.lifecycle import birth
from dragoman.model.types import Message, Part, Role, Task, TaskState, TaskStatus
from dragoman.stores.codec import encode, keep
from tests.cli.filled_stores import (
    BOTH,
    execute,
    hook,
    ids,
    line,
    reservation,
    seed,
    sound,
    url,
    value,
)
from tests.harness.stores import database

FILE, DATABASE = "sqlite", "postgres"
OTHER = "{" + '"config":{"id":"v","taskId":"t","url":"https://hook.example/"}' + "}"
UNKNOWN = OTHER.replace('"v"', '"w"')[:-1] + ',"version":"7"}'
UNSEALED = OTHER.replace('"v"', '"w"').replace('/"}', '/","token":"sealed:v1:x"}')
FAR = 4e9
"""A time in the year 2096."""
GARBLED = "CAST(x'ff' AS TEXT)"
"""A text that is not UTF-8, which PostgreSQL refuses."""
T = "WHERE id = 't'"
ITS = "WHERE task = (SELECT key FROM task WHERE id = 't')"


class Damage(NamedTuple):
    """What is done to a store, to which column, and what the check says of it."""

    column: str
    sql: str
    words: str
    only: str = ""
    """The one kind of store that has this column, or takes this value."""


def head(name: str, value: str, only: str = "", words: str = "") -> Damage:
    """A value in the head of task t that its log does not agree with."""
    said = words or f"task t: {name} in its head does not agree with its log"
    return Damage(f"task.{name}", f"UPDATE task SET {name} = {value} {T}", said, only)


def beside(table: str, name: str, value: str, words: str, only: str = "") -> Damage:
    """A value beside the log of task t."""
    return Damage(f"{table}.{name}", f"UPDATE {table} SET {name} = {value} {ITS}", words, only)


def of_context(name: str, value: str, words: str, only: str = "") -> Damage:
    """A value that is kept with the value of a context."""
    return Damage(
        f"context_value.{name}", f"UPDATE context_value SET {name} = {value}", words, only
    )


def of_reservation(name: str, value: str, words: str, only: str = "") -> Damage:
    """A value of a reservation."""
    return Damage(f"reservation.{name}", f"UPDATE reservation SET {name} = {value}", words, only)


def replayed(name: str, value: str, words: str) -> Damage:
    """A value that is beside the log of task s, for its next replay."""
    return Damage(f"replay_value.{name}", f"UPDATE replay_value SET {name} = {value}", words)


NO_TASK = " has no task"
NUMBER = "UPDATE message SET number ="
CONVERSATION = "task t: its message 1 is in another conversation"
UNREADABLE = "task t: its head cannot be read: "
PLACE = "task t: the cursor of webhook w does not agree with its log"
FLAGS = "task t: born, replied and hooked in its head must be 0 or 1"
MARKS = "task t: webhook w: taken, behind and parked must be 0 or 1"

DAMAGES = [
    # -- about
    Damage("about.id", "DELETE FROM about", "table about must have one row with an id, but has 0"),
    Damage("about.id", "UPDATE about SET id = ''", "table about must have one row with an id"),
    Damage("about.id", f"UPDATE about SET id = {GARBLED}", "table about must have", FILE),
    Damage("about.version", "UPDATE about SET version = 0", "has no dragoman tables", DATABASE),
    Damage("about.version", "UPDATE about SET version = 99", "newer dragoman", DATABASE),
    # -- the head
    head("key", "9999", words="task t: its log has 0 entries"),
    head("id", "'u'", words="task u: entry 1 belongs to task t in context c"),
    head("scope", "77", FILE, "task t: it has no scope"),
    head("agent", "'other'", FILE, "task t: its scope belongs to another agent"),
    head("agent", "'other'", DATABASE, "the count of other"),
    head("tenant", "'other'", DATABASE, "task t: its receipt"),
    head("owner", "'eve'", DATABASE, "belongs to another owner"),
    head("context", "'d'", words="entry 1 belongs to task t in context c, but its head says d"),
    head("context", GARBLED, FILE, UNREADABLE),
    head("skill", "'other'"),
    head("skill", GARBLED, FILE, UNREADABLE),
    head("state", "2", words="task t: its log ends with input_required, but its head says working"),
    head("state", "99", words=UNREADABLE + "unknown state 99"),
    head("changed", "'2026-01-01T00:00:00.000Z'"),
    head("last", "0", words=UNREADABLE + "last is 0"),
    head("last", "9", words="task t: its log has 3 entries, but its head says 9"),
    head("version", "1"),
    head("born", "7", FILE, FLAGS),
    head("born", "false", DATABASE),
    head("replied", "7", FILE, FLAGS),
    head("replied", "true", DATABASE, UNREADABLE + "it has ended, but a message waits"),
    head("epoch", "-1"),
    head("epoch", "2147483647", DATABASE, UNREADABLE + "a number is too large"),
    head("holder", "'w'", words="task t: lease in its head"),
    head("lease", "5"),
    head("lease", "9e999", FILE),
    head("lease", "'NaN'", DATABASE),
    head("turn", "2"),
    head("turn", "0", words="task t: inbox in its head"),
    head("settled", "0"),
    head("attempt", "-1"),
    head("inbox", "''"),
    head("inbox", "'1'"),
    head("inbox", "'x'", words=UNREADABLE),
    head("inbox", "'9'", words=UNREADABLE + "inbox names messages that are not in its log"),
    head("cancel_at", "5"),
    head("cancel_at", "9e999", FILE),
    head("cancel_at", "'Infinity'", DATABASE),
    head("canceled", "x'78'", words=UNREADABLE),
    head("canceled", "(SELECT canceled FROM task WHERE id = 'k')"),
    head("hooked", "7", FILE, FLAGS),
    head("hooked", "false", DATABASE, "task t: it has webhooks, but its head does not say so"),
    head("size", "5", words="bytes, but its head says 5"),
    head("ready", "NULL", words="task t: it is not in the queue"),
    head("ready", "'NaN'", DATABASE),
    Damage(
        "task.ready", "UPDATE task SET ready = 5 WHERE id = 'e'", "in the queue, but no message"
    ),
    head("ready", "9200000000000000000"),
    head("ready", "'Infinity'", DATABASE),
    head("owner", "repeat('o', 600)", DATABASE, "task t: its owner is longer than 512 bytes"),
    Damage("task.ready", "UPDATE task SET ready = -5 WHERE id = 't'", "task t: ready in its head"),
    head("ended", "5", words="task t: its head is not consistent on whether the task has"),
    Damage("task.ended", "UPDATE task SET ended = -5 WHERE id = 'e'", "task e: ended in its head"),
    head("due", "-5"),
    head("deadline", "-5"),
    head("plan", "'x'", words=UNREADABLE),
    head("plan", "'0,0,1'", words="task t: private in its head"),
    head("plan", "'9,1,0'", words="task t: waits in its head"),
    # -- scopes of a file
    Damage("scope.key", "UPDATE scope SET key = 99", "task t: it has no scope", FILE),
    Damage("scope.agent", "UPDATE scope SET agent = 'x'", "scope belongs to another agent", FILE),
    Damage("scope.tenant", f"UPDATE scope SET tenant = {GARBLED}", UNREADABLE, FILE),
    Damage("scope.owner", f"UPDATE scope SET owner = {GARBLED}", UNREADABLE, FILE),
    Damage(
        "scope.owner",
        "UPDATE scope SET owner = printf('%600d', 1)",
        "is longer than 512 bytes",
        FILE,
    ),
    # -- entries
    Damage("entry.place", "UPDATE entry SET place = place + 50 WHERE kind = 2", "missing", FILE),
    Damage("entry.place", "DELETE FROM entry WHERE kind = 2", "task t: entry 2 is missing", FILE),
    Damage("entry.place", "INSERT INTO entry VALUES (99 << 24, 0, 1, x'78')", "no task", FILE),
    beside("entry", "number", "number + 50", "task t: entry 1 is missing", DATABASE),
    beside("entry", "task", "9999", "entries have no task", DATABASE),
    Damage("entry.turn", "UPDATE entry SET turn = 2 WHERE kind = 2", "which does not exist"),
    Damage("entry.kind", "UPDATE entry SET kind = 3 WHERE kind = 2", "entry 2: its kind is not 3"),
    Damage("entry.kind", "UPDATE entry SET kind = 5 WHERE kind = 1", "entry 1 cannot be read"),
    Damage("entry.body", "UPDATE entry SET body = x'78' WHERE kind = 2", "entry 2 cannot be read"),
    Damage(
        "entry.body",
        "UPDATE entry SET body = (SELECT body FROM snapshot) WHERE kind = 1",
        "entry 1 cannot be read",
    ),
    # -- snapshots
    beside("snapshot", "task", "9999", "the snapshot of key 9999 has no task"),
    beside("snapshot", "number", "9", "task t: its snapshot is for entry 9"),
    beside(
        "snapshot", "number", "2", "task t: its snapshot does not agree with its log at entry 2"
    ),
    beside("snapshot", "body", "x'78'", "task t: its snapshot cannot be read"),
    # -- conversations
    beside("message", "scope", "77", CONVERSATION, FILE),
    beside("message", "agent", "'x'", CONVERSATION, DATABASE),
    beside("message", "tenant", "'x'", CONVERSATION, DATABASE),
    beside("message", "owner", "'x'", CONVERSATION, DATABASE),
    beside("message", "context", "'x'", CONVERSATION),
    beside("message", "task", "9999", "of a conversation has no task"),
    Damage("message.number", f"{NUMBER} 9 {ITS} AND number = 1", "conversation is not in its log"),
    Damage("message.number", f"{NUMBER} 2 {ITS} AND number = 1", "is not a message of its log"),
    beside("message", "at", "'x'", "message 1 of its conversation has another time in its log"),
    # -- values of contexts
    of_context("scope", "77", NO_TASK, FILE),
    of_context("agent", "'x'", NO_TASK, DATABASE),
    of_context("tenant", "'x'", NO_TASK, DATABASE),
    of_context("owner", "'x'", NO_TASK, DATABASE),
    of_context("context", "'x'", "the value of context x has no task", FILE),
    of_context("context", GARBLED, "has no task", FILE),
    of_context("context", "x'78'", "the value of context 78 has no task", DATABASE),
    of_context("version", "0", ": its version is not valid: 0"),
    of_context("saver", "''", ": it does not say which turn saved it"),
    of_context("saver", GARBLED, ": it does not say which turn saved it", FILE),
    of_context("body", "x'78'", ": it cannot be read: "),
    of_context("body", "x'22ff22'", ": it cannot be read: "),
    of_context("body", f"x'{b'sealed:v1:'.hex()}'", ": it is encrypted, and damaged"),
    # -- reservations
    of_reservation("space", "''", "the reservation '' 'k': its space must not be empty"),
    of_reservation("space", GARBLED, "its space is not valid Unicode", FILE),
    of_reservation("key", "''", "the reservation 's' '': its key must not be empty"),
    of_reservation("key", "printf('%600d', 1)", "its key is longer than 512 bytes", FILE),
    of_reservation("key", "repeat('o', 600)", "its key is longer than 512 bytes", DATABASE),
    of_reservation("key", GARBLED, "its key is not valid Unicode", FILE),
    of_reservation("body", "x'78'", "its value cannot be read: "),
    of_reservation("body", "x'ff'", "its value cannot be read: "),
    of_reservation("body", f"x'{b'sealed:v1:'.hex()}'", "its value is encrypted, and damaged"),
    of_reservation("body", f"x'{b'AAAA'.hex() * 22000}'", "its value has more than 65536 bytes"),
    of_reservation("expires", "-5", "its time is not valid: -5"),
    of_reservation("expires", "9e999", "its time is not valid: inf", FILE),
    of_reservation("expires", "'NaN'", "its time is not valid: nan", DATABASE),
    # -- what a replay needs
    replayed("task", "9999", "the value beside entry 3 has no task"),
    replayed("number", "1", "task s: a value is beside its log for entry 1, which has none"),
    replayed("number", "9", "task s: the value of entry 3, which is beside its log, is missing"),
    replayed("body", "x'7b'", "the value of entry 3, which is beside its log, cannot be read"),
    # -- receipts
    Damage("receipt.scope", "UPDATE receipt SET scope = 77", "belongs to another owner", FILE),
    Damage("receipt.agent", "UPDATE receipt SET agent = 'x'", "belongs to another owner", DATABASE),
    Damage(
        "receipt.tenant", "UPDATE receipt SET tenant = 'x'", "belongs to another owner", DATABASE
    ),
    Damage("receipt.owner", "UPDATE receipt SET owner = 'x'", "belongs to another owner", DATABASE),
    Damage(
        "receipt.name",
        "UPDATE receipt SET name = 'message:m:abc'",
        "task t: the digest of the receipt for entry 1",
        FILE,
    ),
    Damage("receipt.name", "UPDATE receipt SET name = 'sha256:78'", "is not a digest", FILE),
    Damage("receipt.name", "UPDATE receipt SET name = x'78'", "name is not a digest", DATABASE),
    Damage("receipt.digest", "UPDATE receipt SET digest = x'78'", "digest of the receipt for"),
    Damage("receipt.task", "UPDATE receipt SET task = 9999", "has no task"),
    Damage("receipt.number", "UPDATE receipt SET number = 9", "a receipt is for entry 9"),
    Damage("receipt.number", "UPDATE receipt SET number = 2", "entry 2, which is not a message"),
    # -- webhooks
    beside("line", "task", "9999", "webhook w has no task"),
    beside("line", "id", "'x'", "webhook x: it cannot be read: its configuration belongs to"),
    beside("line", "agent", "'x'", "task t: webhook w is in the queue of another agent"),
    beside("line", "webhook", "x'78'", "task t: webhook w: it cannot be read"),
    beside("line", "webhook", f"x'{OTHER.encode().hex()}'", "webhook w: it cannot be read"),
    beside("line", "webhook", f"x'{UNKNOWN.encode().hex()}'", "its version is '7'"),
    beside("line", "webhook", f"x'{UNSEALED.encode().hex()}'", "its encrypted secret is damaged"),
    beside("line", "cursor", "9", PLACE),
    beside("line", "cursor", "-1", PLACE),
    beside("line", "attempts", "-1", "task t: webhook w: its attempts is not valid: -1"),
    beside("line", "due", "-1", "task t: webhook w: its due is not valid: -1"),
    beside("line", "due", "'Infinity'", "its due is not valid: inf", DATABASE),
    beside("line", "lane", "77", "task t: webhook w is in the lane of another owner"),
    beside("line", "taken", "7", MARKS, FILE),
    beside("line", "behind", "7", MARKS, FILE),
    beside("line", "behind", "false", PLACE),
    beside("line", "parked", "7", MARKS, FILE),
    beside("line", "reason", GARBLED, "task t: webhook w: its reason is not valid", FILE),
    beside("line", "ticket", "-1", "task t: webhook w: its ticket is not valid: -1"),
    # -- counts
    Damage("tally.scope", "UPDATE tally SET scope = 77 WHERE state = 3", "the count of", FILE),
    Damage("tally.agent", "UPDATE tally SET agent = 'x'", "the count of x", DATABASE),
    Damage("tally.tenant", "UPDATE tally SET tenant = 'x'", "the count of echo x", DATABASE),
    Damage("tally.owner", "UPDATE tally SET owner = 'x'", "the count of echo  x", DATABASE),
    Damage("tally.state", "UPDATE tally SET state = 99 WHERE state = 3", "tasks state 99"),
    Damage("tally.number", "UPDATE tally SET number = 7", "the count of echo"),
    # -- what is no column of a table, and is read
    Damage("task_key", f"UPDATE task SET key = 9999 {T}", "the sequence task_key is at", DATABASE),
]

NOTHING_TO_CHECK = {
    "line.parked": "in PostgreSQL: any webhook may be parked or not",
    "line.reason": "in PostgreSQL: any text may be the reason",
    "tally.shard": "a count is the sum of its parts, whatever their numbers",
}
"""Columns without a value that could be told to be wrong, and why."""


def filled(here: Path) -> None:
    """A store with something in every column. Task t waits, e has ended, k was to be canceled, s
    sleeps."""
    message = {"messageId": "m2", "contextId": "c", "taskId": "t", "role": "ROLE_USER"}
    at = "2026-01-31T12:00:00.000Z"
    second = {"message": {**message, "parts": [{"text": "x"}]}, "caller": {}, "at": at}
    task = line(
        "t",
        "INPUT_REQUIRED",
        webhooks=[hook("t", cursor=2)],
        receipts=("key",),
        inbox=[3],
        version=9,
    )
    task["entries"].append({"turn": 0, "kind": "received", "body": {"type": "received", **second}})
    canceled = line("k", "CANCELED", canceling=True)
    canceled["canceled"] = canceled["entries"][1]["body"]["statusUpdate"]
    asked = json.loads(encode(CancelRequested(caller=Caller(), at=at)))
    canceled["entries"].insert(1, {"turn": 0, "kind": "cancel", "body": asked})
    read = Private(kind="step", name="read", at=at, form=1, ordered=True, beside=True)
    asleep = line("s", "WORKING", began=1, waits=1, due=FAR, format=2)
    asleep["entries"].append({"turn": 1, "kind": "private", "body": json.loads(encode(read))})
    asleep["replay_values"] = [{"number": 3, "value": {"likes": "tea"}}]
    seed(here, line("e"), task, canceled, asleep, value(), reservation())
    first = Received(
        message=Message(
            message_id="m",
            context_id="c",
            task_id="t",
            role=Role.USER,
            parts=(Part(text="hello"),),
        ),
        caller=Caller(),
        at=task["entries"][0]["body"]["at"],
    )
    body = keep(birth(first)).hex()
    key = "(SELECT key FROM task WHERE id = 't')"
    change(here, f"INSERT INTO snapshot VALUES ({key}, 1, x'{body}')")
    sound(here)


def change(here: Path, sql: str) -> None:
    """Change the store by hand; `x'…'` is bytes, and entries of kinds are those of task t."""
    if not url(here):
        with closing(sqlite3.connect(here / "echo.db")) as file, file:
            (key,) = file.execute("SELECT key FROM task WHERE id = 't'").fetchone()
            its = f"place > {key} << 24 AND place < ({key} + 1) << 24 AND kind ="
            file.execute(sql.replace("WHERE kind =", f"WHERE {its}"))
        return
    sql = re.sub(r"\bx'([0-9a-f]*)'", r"'\\x\1'", sql)
    sql = sql.replace("WHERE kind =", f"{ITS} AND kind =")
    execute(here, sql)


TABLES = (
    *("about", "task", "entry", "snapshot", "receipt", "line", "tally", "message"),
    *("context_value", "reservation", "replay_value"),
)
_files: list[bytes] = []
_databases: list[str] = []


def ready_made(here: Path, kind: str) -> None:
    """The same store, made once: a copy of a file, or tables whose rows are put back."""
    if kind == FILE:
        if not _files:
            filled(here)
            _files.append((here / "echo.db").read_bytes())
        (here / "echo.db").write_bytes(_files[0])
        return
    made = bool(_databases)
    if not made:
        _databases.append(database())
    (here / "dragoman.toml").write_text(f'store = "{_databases[0]}"\n')
    kept = f"kept_{_databases[0].rpartition('=')[2]}"
    if not made:
        filled(here)
        copies = (f"CREATE TABLE {kept}.{name} AS TABLE {name}" for name in TABLES)
        statements = [f"CREATE SCHEMA {kept}", *copies]
    else:
        statements = [f"DELETE FROM {name}" for name in TABLES]
        statements += [f"INSERT INTO {name} SELECT * FROM {kept}.{name}" for name in TABLES]
    asyncio.run(done(_databases[0], *statements))


async def done(where: str, *statements: str) -> None:
    """Do all of them in PostgreSQL."""
    connection = await asyncpg.connect(where)
    try:
        await connection.execute("; ".join(statements))
    finally:
        await connection.close()


CASES = [(kind, item) for kind in (FILE, DATABASE) for item in DAMAGES if item.only in ("", kind)]


@pytest.mark.parametrize(
    ("kind", "damage"), CASES, ids=[f"{kind}-{item.sql}"[:80] for kind, item in CASES]
)
def test_each_damage_is_named(here: Path, db: Any, kind: str, damage: Damage) -> None:
    ready_made(here, kind)
    change(here, damage.sql)
    done = db("check")
    assert done.status == 1, done.out
    assert damage.words in done.out + done.err, done.out + done.err
    assert "sound" not in done.out and "Traceback" not in done.err


@BOTH
def test_every_column_has_a_damage(here: Path, backend: str) -> None:
    """A column that is added needs a line above, or a reason why there is nothing to check."""
    seed(here)
    if backend == FILE:
        found = execute(
            here,
            "SELECT t.name, c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c "
            "WHERE t.type = 'table'",
        )
    else:
        found = execute(
            here,
            "SELECT table_name::text, column_name::text FROM information_schema.columns "
            "WHERE table_schema = current_schema()",
        )
    columns = {f"{table}.{column}" for table, column in found}
    damaged = {item.column for item in DAMAGES if item.only in ("", backend)}
    assert len(columns) > 40
    assert columns - damaged - set(NOTHING_TO_CHECK) == set()
    assert damaged - columns <= {"task_key"}


@BOTH
def test_a_snapshot_of_an_older_form_is_no_damage(here: Path, backend: str) -> None:
    seed(here, line("t"))
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))
    key = "(SELECT key FROM task WHERE id = 't')"
    change(here, f"INSERT INTO snapshot VALUES ({key}, 1, x'{encode(task).hex()}')")
    sound(here)


# ---- what else is done with damaged stores ------------------------------------------------------


@BOTH
def test_a_store_without_an_id_is_not_served(here: Path, db: Any, backend: str) -> None:
    seed(here, line("t"))
    change(here, "DELETE FROM about")
    command = [sys.executable, "-m", "dragoman", "serve", "booking:agent", "--port", "0"]
    if backend == FILE:
        command += ["--store", f"sqlite:///{here}/echo.db"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr and "TypeError" not in done.stderr
    (said,) = [text for text in done.stderr.splitlines() if "about" in text]
    assert "table about must have one row with an id, but has 0; see `dragoman db check`" in said


@BOTH
def test_a_damaged_task_is_shown_as_far_as_it_can_be(here: Path, db: Any, caplog: Any) -> None:
    seed(here, line("t", webhooks=[hook("t")]), line("u", webhooks=[hook("u")]))
    change(here, "UPDATE task SET inbox = 'x' WHERE id = 't'")
    change(here, f"UPDATE line SET webhook = x'78' {ITS}")
    assert ids(db("list", "--json")) == ["u"]
    assert any("task t: its head cannot be read" in text for text in caplog.messages)
    for command in (["show", "t"], ["follow", "t"]):
        done = db(*command)
        assert done.status == 1
        assert done.err == "dragoman: task t: its head cannot be read: " + UNPARSED, done.err
    found = {item["task"]: item for item in db("webhooks", "--json").json()}
    assert "cannot be read" in found["t"]["reason"] and found["u"]["reason"] == "answered 500"
    done = db("export", "all.jsonl")
    assert done.status == 1 and "task t cannot be read" in done.err
    assert [json.loads(text)["id"] for text in Path("all.jsonl").read_text().splitlines()] == ["u"]


UNPARSED = "invalid literal for int() with base 10: 'x'\n"


@BOTH
def test_a_damaged_task_is_taken_from_a_backup(here: Path, db: Any) -> None:
    seed(here, line("t", "SUBMITTED", webhooks=[hook("t", cursor=0)]), line("u"))
    assert db("export", "backup.jsonl").status == 0
    for sql in (
        "UPDATE task SET inbox = 'x' WHERE id = 't'",
        "UPDATE task SET inbox = 'x', holder = 'unreadable', lease = 9e15 WHERE id = 't'",
        "UPDATE task SET holder = 'unreadable', lease = 9e15, ready = NULL WHERE id = 't'",
        "UPDATE entry SET body = x'78' WHERE kind = 1",
        f"UPDATE line SET webhook = x'78' {ITS}",
    ):
        change(here, sql)
        refused = db("import", "backup.jsonl")
        assert refused.status == 1 and "task t exists and differs" in refused.err
        assert db("import", "backup.jsonl", "--replace").out.startswith(
            "0 tasks imported, 1 replaced, 1 already there"
        )
        sound(here)
    assert set(ids(db("list", "--json"))) == {"t", "u"}


@BOTH
def test_a_damaged_task_is_pruned(here: Path, db: Any) -> None:
    seed(here, line("t", age=9e6), line("u", age=9e6))
    change(here, "UPDATE task SET canceled = x'78' WHERE id = 't'")
    assert db("prune", "--older", "30d").out.startswith("2 tasks deleted")
    sound(here)
