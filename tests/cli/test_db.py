"""`dragoman db`: which store, and what is in it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dragoman import Turn
from dragoman.admin import Choice
from dragoman.cli import main, terminal_format
from dragoman.model import clock
from dragoman.model.types import TaskState
from dragoman.security import encryption
from dragoman.stores.admin import Missing, beginning
from dragoman.stores.sqlite import SqliteStore, admin, schema
from dragoman.stores.sqlite.admin import SqliteAdmin
from dragoman.stores.sqlite.lock import Lock
from tests.cli.filled_stores import (
    BOTH,
    COMMANDS,
    DAY,
    hook,
    ids,
    line,
    opened,
    seed,
    sound,
    url,
    write,
)
from tests.harness.lives import Lives
from tests.harness.workers import WorkerHarness

# ---- which store ---------------------------------------------------------------------------


def test_no_store_here(db: Any) -> None:
    done = db("list")
    assert done.status == 2 and "--store" in done.err


def test_the_one_store_here(here: Path, db: Any) -> None:
    seed(here, line("a"))
    with closing(sqlite3.connect(here / "other.db")) as other:
        other.execute("CREATE TABLE x (y)")
    (here / "text.db").write_text("SQLite? no")
    assert ids(db("list", "--json")) == ["a"]
    seed(here, line("b"), name="second.db")
    done = db("list")
    assert done.status == 2
    assert "echo.db, second.db" in done.err and "--store" in done.err
    assert "other.db" not in done.err
    assert ids(db("list", "--json", "--store", "sqlite:///second.db")) == ["b"]


def test_the_store_of_the_settings(here: Path, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seed(here, line("a"))
    seed(here, line("b"), name="second.db")
    (here / "dragoman.toml").write_text('store = "sqlite:///second.db"\n')
    assert ids(db("list", "--json")) == ["b"]
    monkeypatch.setenv("DRAGOMAN_STORE", "sqlite:///echo.db")
    assert ids(db("list", "--json")) == ["a"]
    assert ids(db("list", "--json", "--store", f"sqlite:///{here}/second.db")) == ["b"]


@pytest.mark.parametrize("store", ["memory:", "sqlite://", "nonsense"])
def test_a_store_that_does_not_last(db: Any, store: str) -> None:
    done = db("list", "--store", store)
    assert done.status == 2
    assert "sqlite:" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_files_that_are_not_stores(here: Path, db: Any, command: list[str]) -> None:
    store = ("--store", "sqlite:///gone.db")
    done = db(*command, *store)
    assert (done.status, done.err) == (1, "dragoman: the file gone.db does not exist\n")
    assert not (here / "gone.db").exists()

    with closing(sqlite3.connect(here / "gone.db")) as other:
        other.execute("CREATE TABLE x (y)")
    before = (here / "gone.db").read_bytes()
    done = db(*command, *store)
    assert done.status == 1 and "gone.db: it is a database of another application" in done.err
    assert (here / "gone.db").read_bytes() == before

    (here / "gone.db").unlink()
    seed(here, line("t"), name="gone.db")
    with closing(sqlite3.connect(here / "gone.db")) as ours:
        ours.execute("PRAGMA user_version = 99")
    done = db(*command, *store)
    assert done.status == 1 and "newer dragoman" in done.err

    (here / "gone.db").write_text("nothing of the kind" * 100)
    done = db(*command, *store)
    assert done.status == 1 and "damaged" in done.err
    assert "Traceback" not in done.err


def test_import_refuses_a_database_of_another(here: Path, db: Any) -> None:
    with closing(sqlite3.connect(here / "other.db")) as other:
        other.execute("CREATE TABLE x (y)")
    before = (here / "other.db").read_bytes()
    write(here / "x.jsonl", line("a"))
    done = db("import", "x.jsonl", "--store", "sqlite:///other.db")
    assert done.status == 1 and "another application" in done.err
    assert (here / "other.db").read_bytes() == before


@pytest.mark.parametrize("task", ["show", "follow", "redrive"])
@BOTH
def test_an_unknown_task(here: Path, db: Any, task: str) -> None:
    seed(here, line("t"))
    arguments = ["--task", "nobody"] if task == "redrive" else ["nobody"]
    done = db(task, *arguments)
    where = urlsplit(url(here)).path or "echo.db"
    assert done.status == 1 and done.err.startswith("dragoman: there is no task nobody in ")
    assert done.err.endswith(f"{where}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "--state", "sleeping"], "--state"),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--limit", "many"], "--limit"),
        (["list", "--since", "yesterday"], "--since"),
        (["list", "--since", "2026-13-01"], "--since"),
        (["follow", "t", "--after", "-1"], "--after"),
        (["prune"], "--older"),
        (["prune", "--older", "30"], "--older"),
        (["prune", "--older", "1d", "--state", "working"], "--state"),
        (["redrive"], "--all"),
        (["redrive", "--all", "--task", "t"], "--all"),
        ([], "command"),
    ],
)
def test_bad_arguments(here: Path, db: Any, arguments: list[str], words: str) -> None:
    seed(here, line("t"))
    done = db(*arguments)
    assert done.status == 2
    assert words in done.err and done.out == ""


@pytest.mark.parametrize("name", [command[0] for command in COMMANDS] + ["import"])
def test_help(db: Any, name: str) -> None:
    done = db(name, "--help")
    assert done.status == 0
    assert f"dragoman db {name}" in done.out and "--store" in done.out


# ---- list ----------------------------------------------------------------------------------


@BOTH
def test_list_chooses(here: Path, db: Any) -> None:
    seed(
        here,
        line("old", age=3 * DAY),
        line("mid", "WORKING", age=2 * DAY, owner="ann", context="trip"),
        line("blue", "WORKING", age=DAY, tenant="blue", owner="ann"),
        line("other", "INPUT_REQUIRED", agent="second"),
    )
    assert ids(db("list", "--json")) == ["other", "blue", "mid", "old"]
    assert ids(db("list", "--json", "--limit", "2")) == ["other", "blue"]
    assert ids(db("list", "--json", "--agent", "echo")) == ["blue", "mid", "old"]
    assert ids(db("list", "--json", "--owner", "ann")) == ["blue", "mid"]
    assert ids(db("list", "--json", "--owner", "")) == ["other", "old"]
    assert ids(db("list", "--json", "--owner", "ann", "--tenant", "")) == ["mid"]
    assert ids(db("list", "--json", "--tenant", "blue")) == ["blue"]
    assert ids(db("list", "--json", "--context", "trip")) == ["mid"]
    assert ids(db("list", "--json", "--state", "working")) == ["blue", "mid"]
    assert ids(db("list", "--json", "--state", "input-required")) == ["other"]
    assert ids(db("list", "--json", "--since", "36h")) == ["other", "blue"]
    assert ids(db("list", "--json", "--since", "60h", "--state", "working")) == ["blue", "mid"]
    assert ids(db("list", "--json", "--since", clock.now()[:10])) in (["other"], [])
    assert ids(db("list", "--json", "--since", clock.stamp(time.time() - 1.5 * DAY)))[1] == "blue"
    assert ids(db("list", "--json", "--agent", "nobody")) == []
    done = db("list")
    lines = done.out.splitlines()
    assert lines[0].split()[:6] == ["task", "state", "changed", "agent", "tenant", "owner"]
    assert [text.split()[0] for text in lines[1:]] == ["other", "blue", "mid", "old"]
    assert len({text.index("echo") for text in lines[2:]}) == 1  # one below the other
    assert "owner" not in db("list", "--owner", "").out.splitlines()[0]
    assert db("list", "--agent", "nobody").out == ""


@BOTH
def test_list_is_in_order_over_many_owners(here: Path, db: Any) -> None:
    seed(
        here,
        *(
            line(f"t{n:03}", age=100 + (n * 37) % 101, owner=f"o{n % 7}", tenant=f"t{n % 3}")
            for n in range(100)
        ),
    )
    expected = [f"t{n:03}" for n in sorted(range(100), key=lambda n: (n * 37) % 101)]
    assert ids(db("list", "--json", "--limit", "200")) == expected
    for limit in (1, 2, 13, 99, 100):
        assert ids(db("list", "--json", "--limit", str(limit))) == expected[:limit]


@BOTH
def test_unborn_logs_are_not_listed(here: Path, db: Any) -> None:
    seed(here, line("a"), line("unborn", "SUBMITTED", born=False))
    assert ids(db("list", "--json")) == ["a"]
    assert "not yet" in db("show", "unborn").out
    sound(here)


CHOICES = [
    Choice(),
    Choice(agent="echo"),
    Choice(owner="", since="2026"),
    Choice(states=(TaskState.WORKING,)),
    Choice(states=(TaskState.WORKING,), since="2026"),
    Choice(context="c"),
    Choice(context="c", states=(TaskState.WORKING,), since="2026"),
]


def plans(admin: SqliteAdmin, statements: list[str]) -> list[str]:
    """How SQLite does the statements that were seen."""
    admin.db.set_trace_callback(None)
    return [
        step
        for sql in statements
        if sql.startswith(("SELECT", "UPDATE", "DELETE"))
        for *_, step in admin.db.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()
    ]


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
def test_list_uses_indexes(here: Path, choice: Choice) -> None:
    path = seed(here, line("a"), line("b", "WORKING", owner="ann"))
    with SqliteAdmin(path) as admin:
        seen: list[str] = []
        admin.db.set_trace_callback(seen.append)
        admin.tasks(choice)
        steps = plans(admin, seen)
    assert any("SEARCH task USING INDEX task_" in step for step in steps), steps
    assert not any("SCAN task" in step or "TEMP B-TREE" in step for step in steps), steps


def test_other_looks_use_indexes(here: Path) -> None:
    path = seed(here, line("a", webhooks=[hook("a")]))
    with SqliteAdmin(path, write=True) as admin:
        seen: list[str] = []
        admin.db.set_trace_callback(seen.append)
        admin.undelivered(5)
        admin.redrive()
        list(admin.prune(time.time()))
        steps = plans(admin, seen)
    assert any("task_ended" in step for step in steps)
    for word in ("SCAN task", "SCAN receipt"):
        assert not any(word in step for step in steps), steps
    scans = [step for step in steps if step.startswith("SCAN line")]
    indexes = ("line_parked", "line_due", "line_lane")
    assert scans and all(any(name in step for name in indexes) for step in scans), steps


# ---- show and follow -----------------------------------------------------------------------

NASTY = "\x1b[2J\x9b31mred\u202etxt\nnext"


@BOTH
def test_show(here: Path, db: Any) -> None:
    seed(here, line("t", "INPUT_REQUIRED", owner="ann", webhooks=[hook("t", parked=True)]))
    done = db("show", "t", "--events")
    for word in ("input-required", "ann", "echo", "hello", "nobody", "parked", "1 of 2"):
        assert word in done.out
    assert "s3cret" not in done.out
    assert "https://hook.example/…" in done.out
    assert [text.split()[2] for text in done.out.splitlines()[-2:]] == [
        "received",
        "input-required",
    ]
    found = db("show", "t", "--json", "--events")
    assert "s3cret" not in found.out
    value = found.json()
    assert value["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert value["head"]["owner"] == "ann" and value["head"]["last"] == 2
    assert [event["kind"] for event in value["events"]] == ["received", "status"]
    assert value["webhooks"][0]["parked"] is True
    assert "events" not in db("show", "t", "--json").json()


def test_show_says_why_a_turn_is_postponed(here: Path, db: Any) -> None:
    name = "old"

    async def handler(turn: Turn) -> None:
        await turn.step(name, lambda: 1)
        await turn.ask_for("?")

    async def postponed() -> str:
        nonlocal name
        store = SqliteStore(here / "dragoman.db")
        await store.open()
        lives = Lives(handler, store)
        task = (await lives.send()).head.id
        await lives.life()
        name = "new"
        await lives.send("x", task)
        await lives.life()
        await asyncio.gather(*lives.workers[-1]._returned)
        await store.close()
        return task

    task = asyncio.run(postponed())
    why = "the log has step 'old' (1) next, but the handler does step 'new' (1)"
    assert f"because  {why}\n" in db("show", task).out
    assert db("show", task, "--json").json()["postponed"] == why
    assert f"postponed       {why}\n" in db("show", task, "--events").out


@pytest.mark.parametrize("encrypted", [False, True])
def test_show_says_how_a_turn_failed(
    here: Path, db: Any, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = encryption.key()

    async def handler(turn: Turn) -> None:
        raise ValueError("no seats left")

    async def failed() -> str:
        keys = encryption.Encryption([secret] if encrypted else ())
        store = SqliteStore(here / "dragoman.db", encryption=keys)
        await store.open()
        harness = WorkerHarness(handler, store=store)
        task = (await harness.send()).head.id
        await harness.run()
        await store.close()
        return task

    task = asyncio.run(failed())
    done = db("show", task, "--events").out
    if encrypted:
        assert "encrypted; set encryption_keys" in done and "no seats" not in done
        assert db("show", task, "--json").json()["failed_turns"][0]["sealed"] is True
        monkeypatch.setenv("DRAGOMAN_ENCRYPTION_KEYS", secret)
        done = db("show", task, "--events").out
    assert "the handler raised ValueError (attempt 1 of the turn 1 on worker:" in done
    assert "ValueError: no seats left" in done and "failed_turn     attempt 1: the handler" in done
    (found,) = db("show", task, "--json").json()["failed_turns"]
    assert (found["reason"], found["attempt"], found["sealed"]) == ("error", 1, False)
    assert "in handler" in found["traceback"]


@BOTH
def test_what_a_task_says_does_not_steer_the_terminal(here: Path, db: Any) -> None:
    seed(here, line("t", context=NASTY, owner=NASTY, text=NASTY))
    for command in (["show", "t", "--events"], ["list"], ["follow", "t"]):
        out = db(*command).out
        assert "red" in out
        assert all(mark.isprintable() or mark == "\n" for mark in out)


def test_show_counts_unread(here: Path, db: Any) -> None:
    waiting = line("t", "SUBMITTED")
    seed(here, waiting)
    assert db("show", "t", "--json").json()["head"]["unread"] == 1
    seed(here, line("u", "WORKING", holder="worker-1", inbox=[1], attempt=3), name="u.db")
    found = db("show", "u", "--store", "sqlite:///u.db")
    assert "worker-1, attempt 3" in found.out and "0 messages" in found.out


@BOTH
def test_follow_ends_with_the_task(here: Path, db: Any) -> None:
    seed(here, line("t"))
    assert [text.split()[0] for text in db("follow", "t").out.splitlines()] == ["1", "2"]
    assert [text.split()[0] for text in db("follow", "t", "--after", "1").out.splitlines()] == ["2"]
    assert db("follow", "t", "--after", "9").out == ""
    (event,) = map(json.loads, db("follow", "t", "--after", "1", "--json").out.splitlines())
    assert (event["number"], event["kind"]) == (2, "status")


@BOTH
def test_follow_says_when_the_task_is_forgotten(here: Path) -> None:
    seed(here, line("t", "WORKING"))

    def forget() -> None:
        write(here / "end.jsonl", line("t", "FAILED", age=9))
        assert main(["db", "import", "end.jsonl", "--replace"]) == 0
        assert main(["db", "prune", "--older", "1s"]) == 0

    with opened(here) as admin:
        following = admin.follow("t", 0, 0.01)
        assert next(following).number == 1
        assert next(following).number == 2
        forget()
        with pytest.raises(Missing, match="no task t"):
            next(following)


# ---- migrate -------------------------------------------------------------------------------


def test_migrate(here: Path, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = seed(here, line("t"))
    now = schema.VERSION
    assert db("migrate").out == f"echo.db is up to date: schema {now}\n"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE more (x)"))
    for module in (schema, admin):
        monkeypatch.setattr(module, "VERSION", now + 1)
    done = db("list")
    assert done.status == 1 and "dragoman db migrate" in done.err
    lock = Lock(path)
    lock.take()
    done = db("migrate")  # not under a server
    assert done.status == 1 and "in use by another server" in done.err
    lock.release()
    assert db("migrate").out == f"echo.db: updated from schema {now} to schema {now + 1}\n"
    assert ids(db("list", "--json")) == ["t"]
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM more").fetchone() == (0,)


# ---- text ----------------------------------------------------------------------------------


def test_sizes() -> None:
    sizes = [
        terminal_format.size(number) for number in (0, 1023, 1024, 1536, 5 << 20, 7 << 30, 9 << 40)
    ]
    assert sizes == ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "7.0 GiB", "9216.0 GiB"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:s3cret@host.example:8443/s3cret?x=s3cret#y", "https://host.example:8443/…"),
        ("http://[::1]:80/", "http://[::1]:80/…"),
        ("http://[broken", "?"),
        ("http://x:port/", "?"),
    ],
)
def test_urls_keep_their_secrets(url: str, shown: str) -> None:
    assert beginning(url) == shown


def test_a_meter_is_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with terminal_format.Meter() as meter:
        meter.show("quiet")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal_format.Meter() as meter:
        meter.part("pages", 5, 10)
        meter.part("pages", 6, 10)  # too soon to be seen
    shown = capsys.readouterr().err
    assert "pages: 5 of 10 (50 %)" in shown and "6 of" not in shown
    assert shown.endswith("\r")
