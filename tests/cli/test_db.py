"""`dragoman db`: beside a running server as processes, and in detail in this one."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from dragoman import clock
from dragoman.cli import main, table
from dragoman.stores import clerk
from dragoman.stores.clerk import Choice, Missing, Pruned
from dragoman.stores.postgres import clerk as postgres
from dragoman.stores.postgres import schema as versions
from dragoman.stores.sqlite import clerk as clerks
from dragoman.stores.sqlite import schema
from dragoman.stores.sqlite.clerk import Clerk
from dragoman.stores.sqlite.lock import Lock
from dragoman.types import TaskState
from tests.cli.test_cli import AGENTS, Serving, environment, eventually, run, serving
from tests.unit.stores import database

DAY = 86400.0
QUICK = ("--set", "poll=0.1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: agents, and no store yet."""
    (tmp_path / "booking.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("DRAGOMAN_"):
            monkeypatch.delenv(name)
    return tmp_path


def line(
    id: str,
    state: str = "COMPLETED",
    *,
    age: float = 0.0,
    agent: str = "echo",
    tenant: str = "",
    owner: str = "",
    context: str = "c",
    text: str = "hello",
    webhooks: list[dict[str, Any]] | None = None,
    receipts: tuple[str, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """A task as it is exported, whose status is so old."""
    at = clock.stamp(time.time() - age)
    message = {"messageId": "m", "contextId": context, "taskId": id, "role": "ROLE_USER"}
    received = {"message": {**message, "parts": [{"text": text}]}, "caller": {}, "at": at}
    entries = [{"turn": 0, "kind": "received", "body": {"type": "received", **received}}]
    if state != "SUBMITTED":
        status = {"state": f"TASK_STATE_{state}", "timestamp": at}
        event = {"taskId": id, "contextId": context, "status": status}
        entries.append({"turn": 1, "kind": "status", "body": {"statusUpdate": event}})
    ended = TaskState[state].terminal
    return {
        "format": 1,
        "id": id,
        "context": context,
        "scope": {"agent": agent, "tenant": tenant, "owner": owner},
        "skill": "",
        "state": f"TASK_STATE_{state}",
        "changed": at,
        "version": 4,
        "born": True,
        "replied": False,
        "epoch": 2,
        "holder": "",
        "turn": 1 if state != "SUBMITTED" else 0,
        "settled": 0,
        "attempt": 0,
        "inbox": [] if state != "SUBMITTED" else [1],
        "canceling": False,
        "canceled": None,
        "ended": time.time() - age if ended else None,
        "entries": entries,
        "receipts": [{"key": key, "digest": "AAAA", "number": 1} for key in receipts],
        "webhooks": webhooks or [],
        **more,
    }


def hook(
    task: str, id: str = "w", *, url: str = "https://hook.example/s3cret?t=s3cret", **more: Any
):
    """A webhook of a task that has had nothing yet."""
    config = {"id": id, "taskId": task, "url": url, "token": "s3cret"}
    config |= {"authentication": {"scheme": "Bearer", "credentials": "s3cret"}}
    state = {"cursor": 1, "attempts": 2, "due": 5.0, "parked": False, "reason": "answered 500"}
    return {"webhook": {"config": config, "version": "1.0"}, **state, **more}


def write(path: Path, *lines: dict[str, Any]) -> Path:
    """A file of exported tasks."""
    text = "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in lines)
    path.write_text(text)
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def backend(here: Path, request: pytest.FixtureRequest) -> str:
    """The store that the settings name, which is no file for the second time."""
    if request.param == "postgres":
        (here / "dragoman.toml").write_text(f'store = "{database()}"\n')
    return str(request.param)


BOTH = pytest.mark.usefixtures("backend")


def store(here: Path, name: str = "echo.db") -> list[str]:
    """The arguments that name a store: the file, unless the settings do."""
    if name == "echo.db" and (here / "dragoman.toml").exists():
        return []
    return ["--store", f"sqlite:///{here / name}"]


def url(here: Path) -> str:
    """The store that the settings name; empty for the file."""
    found = here / "dragoman.toml"
    return str(tomllib.loads(found.read_text())["store"]) if found.exists() else ""


def execute(here: Path, sql: str) -> list[tuple[Any, ...]]:
    """What a statement finds."""
    if where := url(here):
        return asyncio.run(fetched(where, sql))
    with closing(sqlite3.connect(here / "echo.db")) as file, file:
        return file.execute(sql).fetchall()


async def fetched(where: str, sql: str) -> list[tuple[Any, ...]]:
    """What a statement finds in PostgreSQL."""
    connection = await asyncpg.connect(where)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


def seed(here: Path, *lines: dict[str, Any], name: str = "echo.db") -> Path:
    """A store with these tasks in it."""
    write(here / "seed.jsonl", *lines)
    assert main(["db", "import", "seed.jsonl", *store(here, name)]) == 0
    return here / name


def opened(here: Path, **options: Any) -> clerk.Clerk:
    """The store that the settings name."""
    if where := url(here):
        return postgres.Clerk(where, **options)
    return Clerk(here / "echo.db", **options)


class Outcome:
    """What a command came to."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    def json(self) -> Any:
        """What it printed."""
        return json.loads(self.out)


@pytest.fixture
def db(here: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command in this process."""

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        try:
            status = main(["db", *arguments])
        except SystemExit as error:  # argparse
            status = int(str(error.code))
        return Outcome(status, *capsys.readouterr())

    return call


def ids(outcome: Outcome) -> list[str]:
    """The tasks of a listing."""
    assert outcome.status == 0, outcome.err
    return [item["id"] for item in outcome.json()]


def sound(here: Path, name: str = "echo.db") -> None:
    """The store has no problem."""
    assert main(["db", "check", *store(here, name)]) == 0


# ---- beside a running server ---------------------------------------------------------------


@contextmanager
def following(here: Path, task: str) -> Iterator[subprocess.Popen[str]]:
    """`dragoman db follow`; one that never ends is ended."""
    with subprocess.Popen(
        [sys.executable, "-m", "dragoman", "db", "follow", task],
        cwd=here,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        timer = threading.Timer(10, process.kill)
        timer.start()
        yield process
        process.wait()
        timer.cancel()


def total(served: Serving) -> int:
    """How many tasks the server counts, which is how many it lists."""
    found = httpx.get(f"{served.url}/tasks").json()
    assert len(found["tasks"]) == found["totalSize"]
    return int(found["totalSize"])


def follow_up(served: Serving, task: str, text: str) -> dict[str, Any]:
    """Say something more."""
    return served.send(text, taskId=task, messageId=f"m-{time.monotonic_ns()}")


@BOTH
def test_looking_beside_a_server(here: Path) -> None:
    with serving(here, "booking:agent", *QUICK) as served:
        asked = served.send("ask")["id"]
        served.until(asked, "INPUT_REQUIRED")
        said = served.send("hello")["id"]
        served.until(said, "COMPLETED")

        listed = run(here, "db", "list", "--json")  # the only store that is here
        assert [item["id"] for item in json.loads(listed.stdout)] == [said, asked]
        shown = run(here, "db", "show", said)
        assert shown.returncode == 0
        assert "completed" in shown.stdout and "hello" in shown.stdout

        with following(here, asked) as follower:
            assert follower.stdout is not None
            first = [follower.stdout.readline() for _ in range(3)]
            assert "input-required" in first[2]
            follow_up(served, asked, "now")
            rest = follower.stdout.read().splitlines()  # it ends with the task
        assert follower.returncode == 0
        numbers = [int(text.split()[0]) for text in [*first, *rest]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert rest[-1].split()[2] == "completed"

        sound(here)
        assert served.end() == 0
        assert "Traceback" not in served.text()


def test_backup_beside_a_server(here: Path) -> None:
    with serving(here, "booking:agent", *QUICK) as served:
        asked = served.send("ask")["id"]
        served.until(asked, "INPUT_REQUIRED")
        assert run(here, "db", "backup", "copy.db").returncode == 0
        follow_up(served, asked, "after the backup")
        served.until(asked, "COMPLETED")
        assert served.end() == 0
    sound(here, "copy.db")
    with serving(here, "booking:agent", "--store", "sqlite:///copy.db") as served:
        assert total(served) == 1
        assert served.until(asked, "INPUT_REQUIRED")["id"] == asked


@BOTH
def test_leaving_what_is_followed(here: Path) -> None:
    seed(here, line("t", "WORKING"))
    with following(here, "t") as follower:
        assert follower.stdout is not None and follower.stderr is not None
        follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        assert follower.wait(5) == 0
        assert follower.stderr.read() == ""


@BOTH
def test_pruning_beside_a_server(here: Path) -> None:
    with serving(here, "booking:agent", *QUICK) as served:
        asked = served.send("ask")["id"]
        served.until(asked, "INPUT_REQUIRED")
        said = [served.send("hello")["id"] for _ in range(3)]
        for task in said:
            served.until(task, "COMPLETED")
        assert total(served) == 4
        done = run(here, "db", "prune", "--older", "0s")
        assert done.returncode == 0 and done.stdout.startswith("3 tasks forgotten, ")

        # the server notices when it looks at the file again, which is often
        eventually(lambda: httpx.get(f"{served.url}/tasks/{said[0]}").status_code == 404, 5)
        assert total(served) == 1
        more = served.send("hello again")["id"]
        assert served.until(more, "COMPLETED")["artifacts"][0]["parts"] == [{"text": "hello again"}]
        follow_up(served, asked, "go on")
        assert len(served.until(asked, "COMPLETED")["history"]) == 3
        assert total(served) == 2
        assert httpx.get(f"{served.url}/tasks/{said[2]}").status_code == 404
        assert httpx.get(f"{served.url}/tasks/{said[2]}:subscribe").status_code == 404
        sound(here)
        assert served.end() == 0
        assert "Traceback" not in served.text()


@BOTH
def test_importing_beside_a_server(here: Path) -> None:
    with serving(here, "booking:agent", *QUICK) as served:
        asked = served.send("ask")["id"]
        served.until(asked, "INPUT_REQUIRED")
        write(
            here / "more.jsonl",
            line("done"),
            line("fresh", "SUBMITTED", text="imported"),
            line("held", "WORKING", holder="dead", inbox=[1], attempt=1),
        )
        assert run(here, "db", "import", "more.jsonl").returncode == 0
        found = served.until("fresh", "COMPLETED")  # nobody told the server but the file
        assert found["artifacts"][0]["parts"] == [{"text": "imported"}]
        served.until("held", "FAILED")  # its worker is not here; this agent is not run twice
        assert total(served) == 4
        follow_up(served, asked, "go on")
        served.until(asked, "COMPLETED")
        served.until(served.send("hello")["id"], "COMPLETED")
        assert total(served) == 5

        # one that the server knows is replaced by what it was before
        assert run(here, "db", "export", "all.jsonl").returncode == 0
        write(here / "less.jsonl", line(asked, "INPUT_REQUIRED", context="c"))
        refused = run(here, "db", "import", "less.jsonl")
        assert refused.returncode == 1 and asked in refused.stderr
        served.until(asked, "COMPLETED")
        assert run(here, "db", "import", "less.jsonl", "--replace").returncode == 0
        served.until(asked, "INPUT_REQUIRED")
        follow_up(served, asked, "once more")
        assert served.until(asked, "COMPLETED")["history"][-1]["parts"] == [{"text": "once more"}]
        assert total(served) == 5
        sound(here)
        assert served.end() == 0
        assert "Traceback" not in served.text()


@contextmanager
def receiver(answers: list[int], got: list[str]) -> Iterator[str]:
    """A webhook's receiver that answers with the first of the statuses."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if answers[0] == 200:
                got.append(next(iter(body)))
            self.send_response(answers[0])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hidden"
        server.shutdown()


@BOTH
def test_redriving_beside_a_server(here: Path) -> None:
    answers, got = [410], []
    options = ("--push", "--set", "egress_allow=127.0.0.1", *QUICK)
    with receiver(answers, got) as url, serving(here, "booking:agent", *options) as served:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        configuration = {"taskPushNotificationConfig": {"url": url, "token": "s3cret"}}
        body = {"message": message, "configuration": configuration}
        task = httpx.post(f"{served.url}/message:send", json=body).json()["task"]["id"]

        def parked() -> list[dict[str, Any]]:
            done = run(here, "db", "webhooks", "--parked", "--json")
            found: list[dict[str, Any]] = json.loads(done.stdout)
            return found

        (waiting,) = eventually(parked)
        assert waiting["task"] == task and waiting["reason"] == "answered 410"
        assert "hidden" not in json.dumps(waiting)
        kept = run(here, "db", "prune", "--older", "0s", "--dry-run")
        assert kept.stdout.startswith("1 task would be")  # parked: nothing waits for it
        answers[:] = [200]
        done = run(here, "db", "redrive", "--task", task)
        assert (done.returncode, done.stdout) == (0, "1 webhook redriven\n")
        eventually(lambda: len(got) == 3)
        assert got == ["statusUpdate", "artifactUpdate", "statusUpdate"]
        assert eventually(lambda: not parked())
        sound(here)
        assert served.end() == 0


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


COMMANDS: list[list[str]] = [
    ["list"],
    ["show", "t"],
    ["follow", "t"],
    ["prune", "--older", "1d"],
    ["webhooks"],
    ["redrive", "--all"],
    ["backup", "copy"],
    ["check"],
    ["export"],
    ["migrate"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_files_that_are_not_stores(here: Path, db: Any, command: list[str]) -> None:
    store = ("--store", "sqlite:///gone.db")
    done = db(*command, *store)
    assert (done.status, done.err) == (1, "dragoman: there is no file gone.db\n")
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
    assert f"Example: dragoman db {name}" in done.out and "--store" in done.out


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
    Choice(state=TaskState.WORKING),
    Choice(state=TaskState.WORKING, since="2026"),
    Choice(context="c"),
    Choice(context="c", state=TaskState.WORKING, since="2026"),
]


def plans(clerk: Clerk, statements: list[str]) -> list[str]:
    """How SQLite does the statements that were seen."""
    clerk.db.set_trace_callback(None)
    return [
        step
        for sql in statements
        if sql.startswith(("SELECT", "UPDATE", "DELETE"))
        for *_, step in clerk.db.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()
    ]


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
def test_list_uses_indexes(here: Path, choice: Choice) -> None:
    path = seed(here, line("a"), line("b", "WORKING", owner="ann"))
    with Clerk(path) as clerk:
        seen: list[str] = []
        clerk.db.set_trace_callback(seen.append)
        clerk.tasks(choice)
        steps = plans(clerk, seen)
    assert any("SEARCH task USING INDEX task_" in step for step in steps), steps
    assert not any("SCAN task" in step or "TEMP B-TREE" in step for step in steps), steps


def test_other_looks_use_indexes(here: Path) -> None:
    path = seed(here, line("a", webhooks=[hook("a")]))
    with Clerk(path, write=True) as clerk:
        seen: list[str] = []
        clerk.db.set_trace_callback(seen.append)
        clerk.lines(5)
        clerk.redrive()
        list(clerk.prune(time.time()))
        steps = plans(clerk, seen)
    assert any("task_ended" in step for step in steps)
    for word in ("SCAN task", "SCAN receipt"):
        assert not any(word in step for step in steps), steps
    scans = [step for step in steps if step.startswith("SCAN line")]
    assert scans and all("line_parked" in step or "line_due" in step for step in scans), steps


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

    with opened(here) as clerk:
        following = clerk.follow("t", 0, 0.01)
        assert next(following).number == 1
        assert next(following).number == 2
        forget()
        with pytest.raises(Missing, match="no task t"):
            next(following)


# ---- prune ---------------------------------------------------------------------------------


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
    assert done.out.startswith("5 tasks would be forgotten, ")
    assert "1 task kept: webhooks" in done.out
    assert set(ids(db("list", "--json"))) == everything
    assert db("prune", "--older", "30d", "--state", "failed").out.startswith("1 task forgotten, ")
    assert set(ids(db("list", "--json"))) == everything - {"failed"}
    assert db("prune", "--older", "30d").out.startswith("4 tasks forgotten, ")
    assert set(ids(db("list", "--json"))) == {"working", "young", "pending"}
    sound(here)
    assert db("prune", "--older", "30d", "--force").out.startswith("1 task forgotten, ")
    assert set(ids(db("list", "--json"))) == {"working", "young"}
    sound(here)
    for name, number in (("entry", 4), ("line", 0), ("receipt", 0)):
        assert execute(here, f"SELECT count(*) FROM {name}") == [(number,)]


@BOTH
def test_prune_keeps_sends_that_may_come_again(here: Path, db: Any) -> None:
    seed(here, line("a", age=3600, receipts=("key",)), line("b", age=3600))
    done = db("prune", "--older", "10m")
    assert done.out.startswith("1 task forgotten") and "may come again" in done.out
    assert ids(db("list", "--json")) == ["a"]
    assert db("prune", "--older", "10m", "--force").out.startswith("1 task forgotten")


@BOTH
def test_prune_forgets_direct_replies(here: Path, db: Any) -> None:
    reply = line("r", "SUBMITTED", born=False, replied=True, inbox=[], ended=5.0)
    message = {"messageId": "n", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}
    reply["entries"].append({"turn": 1, "kind": "reply", "body": {"message": message}})
    seed(here, reply)
    assert "replied" in db("show", "r").out
    assert db("prune", "--older", "1d", "--state", "completed").out.startswith("0 tasks")
    assert db("prune", "--older", "1d").out.startswith("1 task forgotten")
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
    for module in (clerks, postgres):
        monkeypatch.setattr(module, small, 3 if small == "BATCH" else 1)
    with opened(here, write=True) as clerk:
        steps = list(clerk.prune(time.time() - DAY))  # each is a transaction
        assert len(steps) >= 5
    assert (steps[-1].tasks, steps[-1].pending) == (13, 7)
    assert steps[-1].size > 0
    assert [step.tasks for step in steps] == sorted(step.tasks for step in steps)
    sound(here)


@BOTH
def test_prune_of_nothing(here: Path) -> None:
    seed(here, line("t"))
    with opened(here, write=True) as clerk:
        assert list(clerk.prune(5.0)) == [Pruned()]


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
    monkeypatch.setattr(clerks, "PAGES", 5)
    steps = 0

    def meanwhile(done: int, of: int) -> None:
        nonlocal steps
        steps += 1
        seed(here, line(f"u{steps}", text="y" * 20_000))
        assert done <= of

    with Clerk(path) as clerk:
        clerk.backup(here / "copy.sqlite", force=False, progress=meanwhile)
    assert steps > 10
    with Clerk(here / "copy.sqlite") as copy:
        assert {row.id for row in copy.tasks(Choice())} == {f"t{n}" for n in range(20)}
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
        ("UPDATE task SET state = 4 WHERE id = 't'", "its log ends completed"),
        ("UPDATE task SET state = 99 WHERE id = 't'", "task t: its head cannot be read"),
        ("UPDATE task SET size = 5 WHERE id = 't'", "bytes"),
        ("UPDATE task SET scope = 77 WHERE id = 't'", "task t: it has no scope"),
        ("INSERT INTO entry VALUES (9 << 24, 0, 1, 'x')", "1 entries have no task"),
        ("INSERT INTO entry VALUES ((2 << 24) + 1, 0, 1, 'x')", "1 entries have no task"),
        ("UPDATE tally SET number = 7", "the count of echo"),
        ("DELETE FROM tally", "0 tasks completed, and there are 1"),
        ("INSERT INTO snapshot VALUES (9, 1, '{}')", "snapshot of key 9 has no task"),
        ("INSERT INTO snapshot VALUES (1, 9, '{}')", "task t: its snapshot is of entry 9"),
        ("UPDATE receipt SET task = 9", "receipt 'key' has no task"),
        ("UPDATE receipt SET number = 9", "task t: a receipt is for entry 9"),
        ("UPDATE line SET task = 9", "webhook w has no task"),
        ("UPDATE line SET behind = 0", "task t: webhook w"),
        ("DROP TABLE receipt", "cannot be read on"),
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
    assert "pages: " in done.out or "cannot be read on" in done.out
    assert "Traceback" not in done.err


# ---- export and import ---------------------------------------------------------------------


def variety() -> list[dict[str, Any]]:
    """Tasks of every kind, not in the order of their ids."""
    return [
        line("z", age=5, receipts=("one", "two")),
        line("a", "SUBMITTED", owner="ann", tenant="blue"),
        line("h", "WORKING", holder="w", inbox=[1], attempt=1, agent="second"),
        line(
            "c", "CANCELED", text="\u2028 é \U0001f600", webhooks=[hook("c", "w2"), hook("c", "w1")]
        ),
        line("w", "INPUT_REQUIRED", webhooks=[hook("w", parked=True, due=1.5)]),
    ]


@BOTH
def test_round_trip(here: Path, db: Any) -> None:
    seed(here, *variety())
    assert db("export", "first.jsonl").status == 0
    first = (here / "first.jsonl").read_bytes()
    assert (here / "first.jsonl").stat().st_mode & 0o777 == 0o600
    assert first.count(b"\n") == 5
    assert [json.loads(text)["id"] for text in first.splitlines()] == ["z", "a", "h", "c", "w"]
    to = ("--store", "sqlite:///new.db")
    done = db("import", "first.jsonl", *to)
    assert done.out == "5 tasks imported, 0 replaced, 0 already there\n"
    sound(here, "new.db")
    assert db("export", "second.jsonl", *to).status == 0
    assert (here / "second.jsonl").read_bytes() == first
    done = db("import", "first.jsonl", *to)
    assert (done.status, done.out) == (0, "0 tasks imported, 0 replaced, 5 already there\n")


@BOTH
def test_export_of_a_served_store(here: Path) -> None:
    with serving(here, "booking:agent", "--push", *QUICK) as served:
        for text in ("hello", "ask", "raise", "wait"):
            body = {
                "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]},
                "configuration": {
                    "returnImmediately": True,
                    "taskPushNotificationConfig": {"url": "https://hook.invalid/", "token": "t"},
                },
            }
            key = {"idempotency-key": text}
            sent = httpx.post(f"{served.url}/message:send", json=body, headers=key)
            served.until(sent.json()["task"]["id"], "WORKING", "COMPLETED", "REQUIRED", "FAILED")
        served.process.kill()
    first = run(here, "db", "export").stdout
    held = [json.loads(text)["holder"] for text in first.splitlines()]
    assert len(held) == 4 and any(held)
    (here / "x.jsonl").write_text(first)
    to = ("--store", "sqlite:///new.db")
    assert run(here, "db", "import", "x.jsonl", *to).returncode == 0
    assert run(here, "db", "export", *to).stdout == first
    sound(here, "new.db")
    with serving(here, "booking:agent", *to, *QUICK) as served:
        assert total(served) == 4
        # the one that was in work when its server died
        task = next(json.loads(text)["id"] for text in first.splitlines() if '"wait"' in text)
        served.until(task, "FAILED")
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        again = httpx.post(
            f"{served.url}/message:send",
            json={"message": message},
            headers={"idempotency-key": "hello"},
        )
        assert again.json()["task"]["id"] in first  # its receipt came along
        assert total(served) == 4


@BOTH
def test_export_chooses(here: Path, db: Any) -> None:
    seed(here, line("a", age=DAY), line("b"), line("c", agent="second"))

    def exported(*arguments: str) -> list[str]:
        return [json.loads(text)["id"] for text in db("export", *arguments).out.splitlines()]

    assert exported() == ["a", "b", "c"]
    assert exported("-", "--agent", "second") == ["c"]
    assert exported("--since", "1h") == ["b", "c"]


def test_export_overwrites_nothing(here: Path, db: Any) -> None:
    seed(here, line("a"))
    (here / "x.jsonl").write_text("mine")
    done = db("export", "x.jsonl")
    assert done.status == 1 and "--force" in done.err
    assert (here / "x.jsonl").read_text() == "mine"
    assert db("export", "x.jsonl", "--force").status == 0
    assert json.loads((here / "x.jsonl").read_text())["id"] == "a"
    before = (here / "echo.db").read_bytes()
    done = db("export", "echo.db", "--force")
    assert done.status == 1 and "itself" in done.err
    assert (here / "echo.db").read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM entry WHERE place = (2 << 24) + 2",
        "UPDATE entry SET kind = 9 WHERE place = (2 << 24) + 2",
        "UPDATE task SET state = 99 WHERE id = 'b'",
        "UPDATE task SET canceled = x'78' WHERE id = 'b'",
    ],
)
def test_export_of_what_can_still_be_read(here: Path, db: Any, damage: str) -> None:
    path = seed(here, line("a"), line("b"), line("c"))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(damage)
    done = db("export", "x.jsonl")
    assert done.status == 1 and "task b cannot be read" in done.err and "db check" in done.err
    rest = (here / "x.jsonl").read_text().splitlines()
    assert [json.loads(text)["id"] for text in rest] == ["a", "c"]


def test_import_mends_a_log_with_a_gap(here: Path, db: Any) -> None:
    whole = line("a")
    path = seed(here, whole)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("DELETE FROM entry WHERE turn = 1")
    write(here / "x.jsonl", whole)
    done = db("import", "x.jsonl")
    assert done.status == 1 and "task a is there already" in done.err
    assert db("import", "x.jsonl", "--replace").status == 0
    sound(here)


def test_import_from_standard_input(here: Path, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(line("a")).encode() + b"\n\n" + json.dumps(line("b")).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert db("import", "--store", "sqlite:///new.db").status == 0
    assert set(ids(db("list", "--json"))) == {"a", "b"}


@BOTH
def test_import_of_what_differs(here: Path, db: Any) -> None:
    seed(here, line("a", "WORKING"), line("b"))
    before = db("export").out
    write(here / "x.jsonl", line("a", "FAILED", webhooks=[hook("a")]), line("c"))
    done = db("import", "x.jsonl")
    assert done.status == 1
    assert "task a is there already, and is not the same" in done.err
    assert done.out.startswith("1 task imported")
    assert set(before.splitlines()) < set(db("export").out.splitlines())
    done = db("import", "x.jsonl", "--replace")
    assert done.out == "0 tasks imported, 1 replaced, 1 already there\n"
    found = db("show", "a", "--json").json()
    assert found["head"]["state"] == "failed" and found["webhooks"]
    sound(here)
    if not url(here):
        keys = dict(execute(here, "SELECT id, key FROM task"))
        assert keys == {"a": 1, "b": 2, "c": 3}  # a server may remember them


@BOTH
def test_import_does_not_replace_what_is_in_work(here: Path, db: Any) -> None:
    seed(here, line("a", "WORKING", holder="w", inbox=[1], epoch=8))
    now = time.time() if url(here) else time.monotonic()
    execute(here, f"UPDATE task SET lease = {now + 30}")
    write(here / "x.jsonl", line("a"))
    done = db("import", "x.jsonl", "--replace")
    assert done.status == 1 and "task a is in work" in done.err
    assert db("show", "a", "--json").json()["head"]["state"] == "working"
    execute(here, "UPDATE task SET lease = 1e-9")
    assert db("import", "x.jsonl", "--replace").status == 0
    assert db("show", "a", "--json").json()["head"]["epoch"] == 9  # its worker is too late


@BOTH
def test_import_makes_deliveries_under_way_stale(here: Path, db: Any) -> None:
    seed(here, line("a", webhooks=[hook("a")]))
    execute(here, "UPDATE line SET ticket = 4")
    write(here / "x.jsonl", line("a", "FAILED", webhooks=[hook("a")]))
    assert db("import", "x.jsonl", "--replace").status == 0
    assert execute(here, "SELECT ticket FROM line") == [(5,)]


@BOTH
def test_import_does_not_share_receipts(here: Path, db: Any) -> None:
    seed(here, line("a", receipts=("key",)))
    write(
        here / "x.jsonl",
        line("b", receipts=("other", "key")),
        line("c", owner="ann", receipts=("key",)),
    )
    for extra in ([], ["--replace"]):
        done = db("import", "x.jsonl", *extra)
        assert done.status == 1 and "task b: its receipt 'key' is that of task a" in done.err
    assert set(ids(db("list", "--json"))) == {"a", "c"}
    sound(here)


def changed(**more: Any) -> dict[str, Any]:
    """A task of which something is wrong."""
    return {**line("t"), **more}


STATUS = line("t")["entries"][1]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "line 2: "),
        ("[]", "line 2: "),
        ("\udcff", "line 2: "),
        (changed(format=2), "it is of format 2; this dragoman knows 1"),
        (changed(extra=1), "unknown field `extra`"),
        (changed(id=""), "id"),
        (changed(id="u"), "its log is that of another task"),
        (changed(context="d"), "its log is that of another task"),
        (changed(state="TASK_STATE_FAILED"), "its log ends completed"),
        (changed(state="WORKING"), "state"),
        (changed(entries=[]), "a log begins with a message"),
        (changed(entries=[STATUS]), "a log begins with a message"),
        (changed(entries=[*line("t")["entries"], STATUS]), "already ended"),
        (changed(entries=[*line("t")["entries"][:1], {**STATUS, "kind": "reply"}]), "entry 2"),
        (changed(entries=[*line("t")["entries"][:1], {**STATUS, "body": {}}]), "entry 2"),
        (changed(entries=[{**STATUS, "kind": "received"}]), "entry 1"),
        (changed(replied=True), "replied"),
        (changed(inbox=[1]), "inbox"),
        (changed(holder="w"), "holder"),
        (changed(ended=None), "ended"),
        (changed(turn=9), "turn"),
        (changed(settled=-1), "settled"),
        (changed(epoch=1 << 70), "epoch"),
        (changed(canceled={"x": 1}), "x"),
        (line("t", receipts=("a", "a")), "receipts"),
        (changed(receipts=[{"key": "a", "digest": "AAAA", "number": 2}]), "receipts"),
        (line("t", webhooks=[hook("t"), hook("t")]), "webhooks"),
        (line("t", webhooks=[hook("t", cursor=3)]), "webhooks"),
        (line("t", webhooks=[{**hook("t"), "webhook": {"config": {}}}]), "url"),
    ],
)
def test_import_of_what_cannot_be(here: Path, db: Any, bad: Any, words: str) -> None:
    text = bad if isinstance(bad, str) else json.dumps(bad)
    good = [json.dumps(line(name)) for name in ("a", "b")]
    raw = f"{good[0]}\n{text}\n{good[1]}\n".encode("utf-8", "surrogateescape")
    (here / "x.jsonl").write_bytes(raw)
    done = db("import", "x.jsonl", "--store", "sqlite:///new.db")
    assert done.status == 1
    assert words in done.err and "line 2" in done.err
    assert set(ids(db("list", "--json"))) == {"a", "b"}  # the others are not its fault
    sound(here, "new.db")


def test_import_of_no_file(here: Path, db: Any) -> None:
    done = db("import", "nothing.jsonl", "--store", "sqlite:///new.db")
    assert done.status == 1 and "nothing.jsonl" in done.err
    assert not (here / "new.db").exists()


# ---- migrate -------------------------------------------------------------------------------


def test_migrate(here: Path, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = seed(here, line("t"))
    now = schema.VERSION
    assert db("migrate").out == f"echo.db is up to date: schema {now}\n"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE more (x)"))
    for module in (schema, clerks):
        monkeypatch.setattr(module, "VERSION", now + 1)
    done = db("list")
    assert done.status == 1 and "dragoman db migrate" in done.err
    lock = Lock(path)
    lock.take()
    done = db("migrate")  # not under a server
    assert done.status == 1 and "in use by another server" in done.err
    lock.release()
    assert db("migrate").out == f"echo.db: schema {now} brought to {now + 1}\n"
    assert ids(db("list", "--json")) == ["t"]
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM more").fetchone() == (0,)


# ---- text ----------------------------------------------------------------------------------


def test_sizes() -> None:
    sizes = [table.size(number) for number in (0, 1023, 1024, 1536, 5 << 20, 7 << 30, 9 << 40)]
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
    assert table.host(url) == shown


def test_a_meter_is_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with table.Meter() as meter:
        meter.show("quiet")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with table.Meter() as meter:
        meter.part("pages", 5, 10)
        meter.part("pages", 6, 10)  # too soon to be seen
    shown = capsys.readouterr().err
    assert "pages: 5 of 10 (50 %)" in shown and "6 of" not in shown
    assert shown.endswith("\r")


# ---- PostgreSQL ----------------------------------------------------------------------------


def test_from_a_file_to_postgres_and_back(here: Path, db: Any) -> None:
    with serving(here, "booking:agent", *QUICK, "--store", "sqlite:///echo.db") as served:
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
    with serving(here, "booking:agent", *QUICK, *to) as served:
        again = httpx.post(f"{served.url}/message:send", json=body, headers=key).json()
        assert again["task"]["id"] == sent  # its receipt came along
        follow_up(served, asked, "go on")
        served.until(asked, "COMPLETED")
        assert served.end() == 0
    assert db("check", *to).status == 0

    # and back: what was not touched there is the same here
    assert db("export", "back.jsonl", *to).status == 0
    done = db("import", "back.jsonl", *file)
    assert f"task {asked} is there already" in done.err
    assert db("import", "back.jsonl", "--replace", *file).status == 0
    sound(here)
    assert db("import", "back.jsonl", *file).out.endswith("0 replaced, 7 already there\n")
    with serving(here, "booking:agent", *QUICK, "--store", "sqlite:///echo.db") as served:
        again = httpx.post(f"{served.url}/message:send", json=body, headers=key).json()
        assert again["task"]["id"] == sent


def test_migrate_postgres(here: Path, db: Any) -> None:
    where = database()
    to = ("--store", where)
    done = db("list", *to)
    assert done.status == 1 and "no tables of ours; see `dragoman db migrate`" in done.err
    now = versions.VERSION
    assert db("migrate", *to).out.endswith(f"/postgres: schema 0 brought to {now}\n")
    assert db("migrate", *to).out.endswith(f"is up to date: schema {now}\n")
    assert db("migrate", "--row-security", *to).out.endswith("row security is on\n")
    assert db("list", *to).status == 0
    policies = "SELECT count(*) FROM pg_policies WHERE schemaname = current_schema()"
    assert asyncio.run(fetched(where, policies)) == [(6,)]
    assert db("migrate", "--no-row-security", *to).out.endswith("row security is off\n")
    assert asyncio.run(fetched(where, policies)) == [(0,)]
    asyncio.run(fetched(where, "UPDATE about SET version = 99"))
    for command in (*COMMANDS, ["import", "x.jsonl"]):
        write(here / "x.jsonl", line("a"))
        done = db(*command, *to)
        assert done.status == 1 and "newer dragoman" in done.err, command


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
        ("UPDATE task SET state = 4", "its log ends completed"),
        ("UPDATE task SET state = 99", "task t: its head cannot be read"),
        ("UPDATE task SET size = 5", "bytes"),
        ("UPDATE task SET ready = 5", "task t: it is in the queue, and nothing waits"),
        ("UPDATE task SET ended = NULL", "on whether it has ended"),
        ("INSERT INTO entry VALUES (99999, 1, 0, 1, 'x')", "1 entries have no task"),
        ("UPDATE tally SET number = 7", "the count of echo"),
        ("DELETE FROM tally", "0 tasks completed, and there are 1"),
        ("INSERT INTO snapshot VALUES (99999, 1, '{}')", "snapshot of key 99999 has no task"),
        (
            "INSERT INTO snapshot SELECT key, 9, '{}' FROM task",
            "task t: its snapshot is of entry 9",
        ),
        ("UPDATE receipt SET task = 99999", "has no task"),
        ("UPDATE receipt SET number = 9", "task t: a receipt is for entry 9"),
        ("UPDATE receipt SET owner = 'eve'", "is another's"),
        ("UPDATE line SET task = 99999", "webhook w has no task"),
        ("UPDATE line SET behind = false", "task t: webhook w"),
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
    assert "task b: PostgreSQL keeps no text with a NUL" in done.err
    assert "task c: a number is too large" in done.err
    assert "task d is there already" in done.err
    assert db("check", *to).status == 0
