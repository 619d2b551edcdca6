"""`dragoman db`: what is deleted, redriven, copied and checked."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dragoman.admin import Choice
from dragoman.model.caller import qualified
from dragoman.stores.admin import Pruned
from dragoman.stores.postgres import admin as postgres
from dragoman.stores.postgres import schema as versions
from dragoman.stores.sqlite import admin as sqlite
from dragoman.stores.sqlite import schema
from dragoman.stores.sqlite.admin import SqliteAdmin
from dragoman.stores.sqlite.lock import Lock
from tests.cli.filled_stores import (
    BOTH,
    DAY,
    execute,
    hook,
    ids,
    line,
    opened,
    seed,
    sound,
    url,
    write,
)

# ---- prune ---------------------------------------------------------------------------------


@pytest.mark.clause("data.retention")
@BOTH
def test_prune(here: Path, db: Any) -> None:
    seed(
        here,
        line("old", age=40 * DAY),
        line("failed", "FAILED", age=40 * DAY),
        line("working", "WORKING", age=40 * DAY),
        line("young", age=DAY),
        line("pending", age=40 * DAY, webhooks=[hook("pending")]),
        line("parked", age=40 * DAY, webhooks=[hook("parked", parked=True)]),
        line("drained", age=40 * DAY, webhooks=[hook("drained", cursor=2)]),
        line("sent", age=40 * DAY, receipts=("key",)),
    )
    everything = set(ids(db("list", "--json")))
    done = db("prune", "--older", "30d", "--dry-run")
    assert done.out.startswith("5 tasks would be deleted, ")
    assert "1 task kept: webhooks" in done.out
    assert set(ids(db("list", "--json"))) == everything
    assert db("prune", "--older", "30d", "--state", "failed").out.startswith("1 task deleted, ")
    assert set(ids(db("list", "--json"))) == everything - {"failed"}
    assert db("prune", "--older", "30d").out.startswith("4 tasks deleted, ")
    assert set(ids(db("list", "--json"))) == {"working", "young", "pending"}
    sound(here)
    assert db("prune", "--older", "30d", "--force").out.startswith("1 task deleted, ")
    assert set(ids(db("list", "--json"))) == {"working", "young"}
    sound(here)
    for name, number in (("entry", 4), ("line", 0), ("receipt", 0)):
        assert execute(here, f"SELECT count(*) FROM {name}") == [(number,)]


@BOTH
@pytest.mark.clause("data.retention")
def test_prune_of_one_owner(here: Path, db: Any) -> None:
    keys = qualified("keys", "ann")
    seed(
        here,
        line("a", age=60, owner="ann", receipts=("key",)),
        line("b", age=60, owner="ann", tenant="blue", webhooks=[hook("b")]),
        line("open", "WORKING", age=60, owner="ann"),
        line("c", age=60, owner="bob"),
        line("d", age=60),
        line("e", age=60, owner=keys),
    )
    arguments = ("prune", "--older", "0s", "--owner", "ann", "--force")
    assert db(*arguments, "--dry-run").out.startswith("2 tasks would be deleted, ")
    assert db(*arguments).out.startswith("2 tasks deleted, ")
    assert set(ids(db("list", "--json"))) == {"open", "c", "d", "e"}
    assert db(*arguments, "--realm", "keys").out.startswith("1 task deleted, ")
    assert db("prune", "--older", "0s", "--owner", "nobody").out.startswith("0 tasks deleted, ")
    assert db("prune", "--older", "0s", "--owner", "").out.startswith("1 task deleted, ")
    assert set(ids(db("list", "--json"))) == {"open", "c"}
    assert execute(here, "SELECT count(*) FROM receipt") == [(0,)]
    assert execute(here, "SELECT count(*) FROM line") == [(0,)]
    sound(here)
    refused = db("prune", "--older", "0s", "--realm", "keys")
    assert "--realm needs --owner" in refused.err


@BOTH
def test_prune_keeps_sends_that_may_come_again(here: Path, db: Any) -> None:
    seed(here, line("a", age=3600, receipts=("key",)), line("b", age=3600))
    done = db("prune", "--older", "10m")
    assert done.out.startswith("1 task deleted") and "may resend" in done.out
    assert ids(db("list", "--json")) == ["a"]
    assert db("prune", "--older", "10m", "--force").out.startswith("1 task deleted")


@BOTH
def test_prune_forgets_direct_replies(here: Path, db: Any) -> None:
    reply = line("r", "SUBMITTED", born=False, replied=True, inbox=[], ended=5.0)
    message = {"messageId": "n", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}
    reply["entries"].append({"turn": 1, "kind": "reply", "body": {"message": message}})
    seed(here, reply)
    assert "replied" in db("show", "r").out
    assert db("prune", "--older", "1d", "--state", "completed").out.startswith("0 tasks")
    assert db("prune", "--older", "1d").out.startswith("1 task deleted")
    sound(here)


@pytest.mark.parametrize("small", ["BATCH", "HEAVY"])
@BOTH
def test_prune_in_batches(here: Path, monkeypatch: pytest.MonkeyPatch, small: str) -> None:
    seed(
        here,
        *(
            line(f"t{n}", age=9 * DAY, webhooks=[hook(f"t{n}")] if n % 3 == 0 else [])
            for n in range(20)
        ),
    )
    for module in (sqlite, postgres):
        monkeypatch.setattr(module, small, 3 if small == "BATCH" else 1)
    with opened(here, write=True) as admin:
        steps = list(admin.prune(time.time() - DAY))  # each is a transaction
        assert len(steps) >= 5
    assert (steps[-1].tasks, steps[-1].pending) == (13, 7)
    assert steps[-1].size > 0
    assert [step.tasks for step in steps] == sorted(step.tasks for step in steps)
    sound(here)


@BOTH
def test_prune_of_nothing(here: Path) -> None:
    seed(here, line("t"))
    with opened(here, write=True) as admin:
        assert set(admin.prune(5.0)) == {Pruned()}


# ---- webhooks and redrive ------------------------------------------------------------------


def lines(here: Path) -> None:
    """A store with lines of every kind."""
    seed(
        here,
        line("a", webhooks=[hook("a", "one", parked=True), hook("a", "two", parked=True)]),
        line("b", webhooks=[hook("b", "one", parked=True), hook("b", "late")]),
        line("c", webhooks=[hook("c", "drained", cursor=2)]),
    )


def parked(db: Any) -> set[tuple[str, str]]:
    """Which lines are parked."""
    found = db("webhooks", "--parked", "--json").json()
    return {(item["task"], item["webhook"]) for item in found}


@BOTH
def test_webhooks(here: Path, db: Any) -> None:
    lines(here)
    found = db("webhooks", "--json").json()
    assert [(item["task"], item["webhook"]) for item in found][3] == ("b", "late")
    assert len(found) == 4
    late = found[3]
    assert (late["cursor"], late["last"], late["attempts"]) == (1, 2, 2)
    assert late["reason"] == "answered 500" and late["next"] == "1970-01-01T00:00:05.000Z"
    assert parked(db) == {("a", "one"), ("a", "two"), ("b", "one")}
    assert len(db("webhooks", "--json", "--limit", "2").json()) == 2
    text = db("webhooks")
    assert text.out.count("https://hook.example/…") == 4
    assert "s3cret" not in text.out
    assert "parked" in text.out and "1 of 2" in text.out


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [
        (["--all"], set()),
        (["--task", "a"], {("b", "one")}),
        (["--webhook", "one"], {("a", "two")}),
        (["--task", "a", "--webhook", "one"], {("a", "two"), ("b", "one")}),
    ],
)
@BOTH
def test_redrive(here: Path, db: Any, arguments: list[str], rest: set[tuple[str, str]]) -> None:
    lines(here)
    done = db("redrive", *arguments)
    assert done.status == 0
    assert done.out.split()[0] == str(3 - len(rest))
    assert parked(db) == rest
    freed = [item for item in db("webhooks", "--json").json() if not item["parked"]]
    assert {item["attempts"] for item in freed if item["webhook"] != "late"} == {0}


@BOTH
def test_redrive_of_nothing(here: Path, db: Any) -> None:
    lines(here)
    assert db("redrive", "--task", "c").status == 1
    assert db("redrive", "--webhook", "nobody").status == 1
    assert db("redrive", "--all").status == 0
    assert db("redrive", "--all").out == "0 webhooks redriven\n"


# ---- backup --------------------------------------------------------------------------------


def test_backup(here: Path, db: Any) -> None:
    path = seed(here, line("t"))
    path.chmod(0o640)
    assert db("backup", "copy.sqlite").status == 0
    copy = here / "copy.sqlite"
    assert copy.stat().st_mode & 0o777 == 0o640
    assert ids(db("list", "--json", "--store", "sqlite:///copy.sqlite")) == ["t"]
    sound(here, "copy.sqlite")

    before = copy.read_bytes()
    seed(here, line("u"))
    done = db("backup", "copy.sqlite")
    assert done.status == 1 and "--force" in done.err
    assert copy.read_bytes() == before
    (here / "copy.sqlite-wal").write_bytes(b"of the one before")
    assert db("backup", "copy.sqlite", "--force").status == 0
    assert not (here / "copy.sqlite-wal").exists()
    assert set(ids(db("list", "--json", "--store", "sqlite:///copy.sqlite"))) == {"t", "u"}

    for extra in ([], ["--force"]):
        done = db("backup", "echo.db", *extra)
        assert done.status == 1 and "itself" in done.err
    done = db("backup", "nowhere/copy.db")
    assert done.status == 1 and "nowhere" in done.err
    assert not list(here.glob("*.part*"))


def test_a_backup_beside_the_store_is_not_taken_for_one(here: Path, db: Any) -> None:
    seed(here, line("a"))
    assert db("backup", "b.db").status == 0
    assert ids(db("list", "--json")) == ["a"]
    write(here / "more.jsonl", line("c"))
    assert db("import", "more.jsonl").status == 0  # into the store, not into the copy
    assert sorted(ids(db("list", "--json"))) == ["a", "c"]
    assert ids(db("list", "--json", "--store", "sqlite:///b.db")) == ["a"]
    assert db("backup", "c.db").status == 0
    assert db("check").out.startswith("echo.db: ")

    seed(here, line("x"), name="second.db")  # another store is another store
    done = db("list")
    assert done.status == 2
    assert "(echo.db, second.db)" in done.err
    (here / "second.db").unlink()

    (here / "b.db-lock").touch()  # a server has had it: it may be the one that is meant
    assert "(b.db, echo.db)" in db("list").err
    for name in ("echo.db", "b.db-lock", "c.db"):
        (here / name).unlink()
    assert ids(db("list", "--json")) == ["a"]  # what is left of it


def test_backup_over_a_store_in_use(here: Path, db: Any) -> None:
    path = seed(here, line("t"))
    other = seed(here, line("u"), name="used.db")
    lock = Lock(other)
    lock.take()
    try:
        done = db("backup", "used.db", "--force", "--store", f"sqlite:///{path}")
        assert done.status == 1 and "in use by another server" in done.err
    finally:
        lock.release()
    assert ids(db("list", "--json", "--store", "sqlite:///used.db")) == ["u"]
    assert not list(here.glob("*.part*"))


def test_a_backup_is_of_one_moment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = seed(here, *(line(f"t{n}", text="x" * 20_000) for n in range(20)))
    monkeypatch.setattr(sqlite, "PAGES", 5)
    steps = 0

    def meanwhile(done: int, of: int) -> None:
        nonlocal steps
        steps += 1
        seed(here, line(f"u{steps}", text="y" * 20_000))
        assert done <= of

    with SqliteAdmin(path) as admin:
        admin.backup(here / "copy.sqlite", force=False, progress=meanwhile)
    assert steps > 10
    with SqliteAdmin(here / "copy.sqlite") as copy:
        assert {row.id for row in copy.tasks(Choice()).rows} == {f"t{n}" for n in range(20)}
    sound(here, "copy.sqlite")


# ---- check ---------------------------------------------------------------------------------


@BOTH
def test_check(here: Path, db: Any) -> None:
    seed(here, line("t"))
    done = db("check")
    assert done.status == 0
    name = urlsplit(url(here)).path or "echo.db"
    version = len(versions.MIGRATIONS) if url(here) else schema.VERSION
    assert f"{name}: schema {version}, " in done.out
    assert done.out.endswith("1 task, 2 events: sound\n")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("DELETE FROM entry WHERE place = (1 << 24) + 1", "task t: entry 1 is missing"),
        ("DELETE FROM entry WHERE place = (1 << 24) + 2", "task t: its log has 1 entries"),
        ("UPDATE entry SET body = 'x' WHERE turn = 1", "task t: entry 2 cannot be read"),
        ("UPDATE task SET state = 4 WHERE id = 't'", "its log ends with completed"),
        ("UPDATE task SET state = 99 WHERE id = 't'", "task t: its head cannot be read"),
        ("UPDATE task SET size = 5 WHERE id = 't'", "bytes"),
        ("UPDATE task SET scope = 77 WHERE id = 't'", "task t: it has no scope"),
        ("INSERT INTO entry VALUES (9 << 24, 0, 1, 'x')", "1 entries have no task"),
        ("INSERT INTO entry VALUES ((2 << 24) + 1, 0, 1, 'x')", "1 entries have no task"),
        ("UPDATE tally SET number = 7", "the count of echo"),
        ("DELETE FROM tally", "0 tasks completed, but there are 1"),
        ("INSERT INTO snapshot VALUES (9, 1, '{}')", "snapshot of key 9 has no task"),
        ("INSERT INTO snapshot VALUES (1, 9, '{}')", "task t: its snapshot is for entry 9"),
        ("UPDATE receipt SET task = 9", "receipt 'key' has no task"),
        ("UPDATE receipt SET number = 9", "task t: a receipt is for entry 9"),
        ("UPDATE line SET task = 9", "webhook w has no task"),
        ("UPDATE line SET behind = 0", "task t: the cursor of webhook w"),
        ("DROP TABLE receipt", "the rest of the file cannot be read"),
    ],
)
def test_check_names_what_is_wrong(here: Path, db: Any, damage: str, words: str) -> None:
    path = seed(here, line("t", webhooks=[hook("t")], receipts=("key",)), line("z", "WORKING"))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE task SET key = 3 WHERE id = 'z'")
        file.execute("UPDATE entry SET place = place + (1 << 24) WHERE place > 2 << 24")
        file.execute("PRAGMA ignore_check_constraints = 1")
        file.execute(damage.replace("'x'", "x'78'").replace("'{}'", "x'7b7d'"))
    done = db("check")
    assert done.status == 1
    assert words in done.out, done.out
    assert "problem" in done.err


def test_check_of_damaged_pages(here: Path, db: Any) -> None:
    path = seed(here, *(line(f"t{n}", text="x" * 3000) for n in range(50)))
    with path.open("rb+") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 8192)
    done = db("check")
    assert done.status == 1
    assert "pages: " in done.out or "the rest of the file cannot be read" in done.out
    assert "Traceback" not in done.err
