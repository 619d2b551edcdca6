"""`dragoman db` on PostgreSQL, where that differs from a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.stores.postgres import schema as versions
from tests.cli.filled_stores import (
    COMMANDS,
    QUICK,
    execute,
    fetched,
    follow_up,
    hook,
    line,
    seed,
    sound,
    variety,
    write,
)
from tests.harness.command import server_process
from tests.harness.stores import database
from tests.unit.stores.postgres.test_schema import another


def test_from_a_file_to_postgres_and_back(here: Path, db: Any) -> None:
    with server_process(here, "booking:agent", *QUICK, "--store", "sqlite:///echo.db") as served:
        asked = served.send("ask")["id"]
        served.until(asked, "INPUT_REQUIRED")
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        key = {"idempotency-key": "once"}
        body = {"message": message}
        sent = httpx.post(f"{served.url}/message:send", json=body, headers=key).json()["task"]["id"]
        served.until(sent, "COMPLETED")
        assert served.end() == 0
    seed(here, *variety())
    file, to = ("--store", "sqlite:///echo.db"), ("--store", database())
    assert db("export", "out.jsonl", *file).status == 0
    done = db("import", "out.jsonl", *to)
    assert (done.status, done.out) == (0, "7 tasks imported, 0 replaced, 0 already there\n")
    assert db("check", *to).out.endswith("7 tasks, 16 events: sound\n")
    assert db("import", "out.jsonl", *to).out.endswith("0 replaced, 7 already there\n")
    with server_process(here, "booking:agent", *QUICK, *to) as served:
        again = httpx.post(f"{served.url}/message:send", json=body, headers=key).json()
        assert again["task"]["id"] == sent  # its receipt came along
        follow_up(served, asked, "go on")
        served.until(asked, "COMPLETED")
        assert served.end() == 0
    assert db("check", *to).status == 0

    # and back: what was not touched there is the same here
    assert db("export", "back.jsonl", *to).status == 0
    done = db("import", "back.jsonl", *file)
    assert f"task {asked} exists" in done.err
    assert db("import", "back.jsonl", "--replace", *file).status == 0
    sound(here)
    assert db("import", "back.jsonl", *file).out.endswith("0 replaced, 7 already there\n")
    with server_process(here, "booking:agent", *QUICK, "--store", "sqlite:///echo.db") as served:
        again = httpx.post(f"{served.url}/message:send", json=body, headers=key).json()
        assert again["task"]["id"] == sent


def test_migrate_postgres(here: Path, db: Any) -> None:
    where = database()
    to = ("--store", where)
    done = db("list", *to)
    assert done.status == 1 and "no dragoman tables; run `dragoman db migrate`" in done.err
    now = versions.VERSION
    assert db("migrate", *to).out.endswith(f"/postgres: updated from schema 0 to schema {now}\n")
    assert db("migrate", *to).out.endswith(f"is up to date: schema {now}\n")
    assert db("migrate", "--row-security", *to).out.endswith("row security is on\n")
    assert db("list", *to).status == 0
    policies = "SELECT count(*) FROM pg_policies WHERE schemaname = current_schema()"
    assert asyncio.run(fetched(where, policies)) == [(10,)]
    assert db("migrate", "--no-row-security", *to).out.endswith("row security is off\n")
    assert asyncio.run(fetched(where, policies)) == [(0,)]
    asyncio.run(fetched(where, "UPDATE about SET version = 99"))
    for command in (*COMMANDS, ["import", "x.jsonl"]):
        write(here / "x.jsonl", line("a"))
        done = db(*command, *to)
        assert done.status == 1 and "newer dragoman" in done.err, command


def test_a_role_that_may_not_read_the_tables(db: Any) -> None:
    where = database()
    assert db("migrate", "--store", where).status == 0
    role = asyncio.run(another(where))
    for command in (["list"], ["check"], ["migrate"]):
        done = db(*command, "--store", role)
        assert done.status == 1
        assert "this role lacks the permission (permission denied for table about)" in done.err
        assert "use the role that owns the tables" in done.err
        assert done.err.count("\n") == 1


def test_row_security_is_not_for_files(here: Path, db: Any) -> None:
    seed(here, line("a"))
    done = db("migrate", "--row-security")
    assert done.status == 1 and "PostgreSQL" in done.err


def test_a_database_that_is_not_there(db: Any) -> None:
    secret = "postgresql://me:s3cret@127.0.0.1:1/tasks"
    for command in (*COMMANDS, ["backup", "copy"]):
        done = db(*command, "--store", secret)
        assert done.status == 1 and done.err.startswith(
            "dragoman: postgresql://127.0.0.1:1/tasks: "
        )
        assert "s3cret" not in done.err and "Traceback" not in done.err


def test_backup_of_postgres(db: Any) -> None:
    to = ("--store", database())
    assert db("migrate", *to).status == 0
    done = db("backup", "copy", *to)
    assert done.status == 1 and "pg_dump" in done.err


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("DELETE FROM entry WHERE number = 1", "task t: entry 1 is missing"),
        ("DELETE FROM entry WHERE number = 2", "task t: its log has 1 entries"),
        ("UPDATE entry SET body = 'x' WHERE turn = 1", "task t: entry 2 cannot be read"),
        ("UPDATE task SET state = 4", "its log ends with completed"),
        ("UPDATE task SET state = 99", "task t: its head cannot be read"),
        ("UPDATE task SET size = 5", "bytes"),
        ("UPDATE task SET ready = 5", "task t: it is in the queue, but no message waits"),
        ("UPDATE task SET ended = NULL", "on whether the task has ended"),
        ("INSERT INTO entry VALUES (99999, 1, 0, 1, 'x')", "1 entries have no task"),
        ("UPDATE tally SET number = 7", "the count of echo"),
        ("DELETE FROM tally", "0 tasks completed, but there are 1"),
        ("INSERT INTO snapshot VALUES (99999, 1, '{}')", "snapshot of key 99999 has no task"),
        (
            "INSERT INTO snapshot SELECT key, 9, '{}' FROM task",
            "task t: its snapshot is for entry 9",
        ),
        ("UPDATE receipt SET task = 99999", "has no task"),
        ("UPDATE receipt SET number = 9", "task t: a receipt is for entry 9"),
        ("UPDATE receipt SET owner = 'eve'", "belongs to another owner"),
        ("UPDATE line SET task = 99999", "webhook w has no task"),
        ("UPDATE line SET behind = false", "task t: the cursor of webhook w"),
    ],
)
def test_check_of_postgres(here: Path, db: Any, damage: str, words: str) -> None:
    (here / "dragoman.toml").write_text(f'store = "{database()}"\n')
    seed(here, line("t", webhooks=[hook("t")], receipts=("key",)))
    sound(here)
    execute(here, damage)
    done = db("check")
    assert done.status == 1
    assert words in done.out, done.out
    assert "problem" in done.err


def test_postgres_refuses_what_it_cannot_keep(here: Path, db: Any) -> None:
    to = ("--store", database())
    twice = line("d")
    write(
        here / "x.jsonl",
        line("a"),
        line("b", context="c\0d"),
        line("c", epoch=1 << 40),
        twice,
        twice,
        line("d", "FAILED"),
    )
    done = db("import", "x.jsonl", *to)
    assert done.status == 1
    assert done.out == "2 tasks imported, 0 replaced, 1 already there\n"
    assert "task b: PostgreSQL cannot store text with a NUL" in done.err
    assert "task c: a number is too large" in done.err
    assert "task d exists and differs" in done.err
    assert db("check", *to).status == 0
