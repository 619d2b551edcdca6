"""`dragoman db export` and `import`."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.filled_stores import (
    BOTH,
    DAY,
    QUICK,
    execute,
    hook,
    ids,
    line,
    reservation,
    seed,
    sound,
    total,
    url,
    value,
    variety,
    write,
)
from tests.harness.command import run, server_process


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
    with server_process(here, "booking:agent", "--push", *QUICK) as served:
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
    with server_process(here, "booking:agent", *to, *QUICK) as served:
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
    assert done.status == 1 and "task a exists and differs" in done.err
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
    assert "task a exists and differs" in done.err
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
    assert done.status == 1 and "task a is being processed" in done.err
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
        assert done.status == 1 and "task b: its receipt 'key' belongs to task a" in done.err
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
        (changed(format=3), "its format is 3; this version of dragoman supports 1 to 2"),
        (changed(extra=1), "unknown field `extra`"),
        (changed(id=""), "id"),
        (changed(id="u"), "its log belongs to another task"),
        (changed(context="d"), "its log belongs to another task"),
        (changed(state="TASK_STATE_FAILED"), "its log ends with completed"),
        (changed(state="WORKING"), "state"),
        (changed(entries=[]), "a log must start with a message"),
        (changed(entries=[STATUS]), "a log must start with a message"),
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


# ---- values of contexts ------------------------------------------------------------------------


@BOTH
def test_values_of_contexts_are_exported_after_the_tasks(here: Path, db: Any) -> None:
    seed(
        here,
        line("a", age=DAY),
        line("b", owner="ann", context="d"),
        line("c", agent="second"),
        value(),
        value('"é"', owner="ann", context="d"),
        value("7", agent="second"),
    )
    sound(here)

    def exported(*arguments: str) -> list[str]:
        lines = map(json.loads, db("export", *arguments).out.splitlines())
        return [item["body"] for item in lines if "kind" in item]

    assert exported("-", "--agent", "second") == ["7"]
    assert sorted(exported("--since", "1h")) == ['"é"', "7"]
    done = db("export", "first.jsonl")
    assert done.err == "3 tasks and 3 values of contexts exported\n"
    first = (here / "first.jsonl").read_bytes()
    kinds = [json.loads(text).get("kind", "task") for text in first.splitlines()]
    assert kinds == ["task"] * 3 + ["context"] * 3
    to = ("--store", "sqlite:///new.db")
    told = "3 values of contexts imported, 0 replaced, 0 already there\n"
    assert db("import", "first.jsonl", *to).out.splitlines(keepends=True)[1:] == [told]
    sound(here, "new.db")
    assert db("export", "second.jsonl", *to).status == 0
    assert sorted((here / "second.jsonl").read_bytes().splitlines()) == sorted(first.splitlines())
    again = db("import", "first.jsonl", *to)
    assert again.out.endswith("0 values of contexts imported, 0 replaced, 3 already there\n")


@BOTH
def test_a_value_that_differs_is_replaced_only_if_told(here: Path, db: Any) -> None:
    seed(here, line("a"), value(), value("1", context="d"))
    assert execute(here, "SELECT count(*) FROM context_value") == [(1,)]
    write(here / "x.jsonl", value("8", version=2), value("9", context="gone"))
    done = db("import", "x.jsonl")
    assert done.status == 1 and "the value of context c exists and differs" in done.err
    assert "1 value skipped: the context has no task here" in done.out
    assert "1 value not imported" in done.err
    done = db("import", "x.jsonl", "--replace")
    assert done.status == 0
    assert "0 values of contexts imported, 1 replaced, 0 already there" in done.out
    # a turn that has read the old one notices
    assert execute(here, "SELECT version FROM context_value") == [(4,)]
    sound(here)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"body": "{"}, "the value of context c: it cannot be read"),
        ({"body": "sealed:v1:x"}, "it is encrypted, and damaged"),
        ({"saver": ""}, "it does not say which turn saved it"),
        ({"version": 0}, "version"),
        ({"kind": "other"}, "kind"),
        ({"more": 1}, "more"),
        ({"format": 3}, "its format is 3"),
    ],
)
def test_a_value_that_no_store_wrote_is_refused(
    here: Path, db: Any, change: dict[str, Any], told: str
) -> None:
    write(here / "x.jsonl", line("a"), value(**change))
    done = db("import", "x.jsonl", "--store", "sqlite:///new.db")
    assert done.status == 1 and "line 2: " in done.err and told in done.err
    assert done.out.startswith("1 task imported")


@BOTH
def test_a_value_that_cannot_be_read_is_not_exported(here: Path, db: Any) -> None:
    seed(here, line("a"), line("b", context="d"), value(), value("1", context="d"))
    broken = "decode('78', 'hex')" if url(here) else "x'78'"
    execute(here, f"UPDATE context_value SET body = {broken} WHERE length(body) = 1")
    done = db("export", "x.jsonl")
    assert done.status == 1 and "the value of context d cannot be read" in done.err
    lines = [json.loads(text) for text in (here / "x.jsonl").read_text().splitlines()]
    assert [item["context"] for item in lines if "kind" in item] == ["c"]


@BOTH
def test_show_tells_of_a_value_but_not_what_it_is(here: Path, db: Any) -> None:
    seed(here, line("a"), line("b", context="d"), value())
    shown = db("show", "a").out
    assert "value    15 B, saved by t:1\n" in shown and "tea" not in shown
    assert db("show", "a", "--json").json()["context_value"] == {
        "version": 3,
        "saver": "t:1",
        "size": 15,
    }
    assert "saved by" not in db("show", "b").out
    assert db("show", "b", "--json").json()["context_value"] is None


@BOTH
def test_prune_forgets_values_with_the_last_task(here: Path, db: Any) -> None:
    seed(
        here,
        *(line(f"a{n}", age=40 * DAY) for n in range(2)),
        line("b", context="d", age=40 * DAY),
        line("c", context="d"),
        value(),
        value("1", context="d"),
    )
    assert db("prune", "--older", "30d", "--dry-run").status == 0
    assert execute(here, "SELECT count(*) FROM context_value") == [(2,)]
    assert db("prune", "--older", "30d").out.startswith("3 tasks deleted")
    assert execute(here, "SELECT count(*) FROM context_value") == [(1,)]
    sound(here)


@BOTH
def test_a_task_that_comes_back_in_another_context_takes_no_value_along(
    here: Path, db: Any
) -> None:
    seed(here, line("a"), value())
    write(here / "x.jsonl", line("a", context="d"))
    assert db("import", "x.jsonl", "--replace").status == 0
    assert execute(here, "SELECT count(*) FROM context_value") == [(0,)]
    sound(here)


# ---- reservations -------------------------------------------------------------------------------


@BOTH
def test_reservations_are_exported_last(here: Path, db: Any) -> None:
    later = time.time() + 600
    seed(
        here,
        line("a", age=DAY),
        value(),
        reservation(b"\xff\x00", key="é"),
        reservation(b"", key="k", expires=later),
        reservation(b"x" * 65536, space="t"),
    )
    sound(here)
    done = db("export", "first.jsonl")
    assert done.err == "1 task, 1 value of contexts and 3 reservations exported\n"
    first = (here / "first.jsonl").read_bytes()
    found = [json.loads(text) for text in first.splitlines()]
    assert [item.get("kind", "task") for item in found] == ["task", "context"] + ["reservation"] * 3
    assert {item["key"]: item["expires"] for item in found[2:4]} == {"é": None, "k": later}
    # they belong to no agent, and have no time of their own
    assert db("export", "-", "--agent", "echo").err.startswith("1 task and 1 value of contexts exp")
    assert db("export", "-", "--since", "1h").err == "0 tasks and 3 reservations exported\n"
    to = ("--store", "sqlite:///new.db")
    told = "3 reservations imported, 0 replaced, 0 already there"
    assert db("import", "first.jsonl", *to).out.splitlines()[-1] == told
    sound(here, "new.db")
    assert db("export", "second.jsonl", *to).status == 0
    assert sorted((here / "second.jsonl").read_bytes().splitlines()) == sorted(first.splitlines())
    again = db("import", "first.jsonl", *to)
    assert again.out.endswith("0 reservations imported, 0 replaced, 3 already there\n")


@BOTH
def test_a_reservation_that_differs_is_replaced_only_if_told(here: Path, db: Any) -> None:
    now = time.time()
    seed(here, reservation(b"old"), reservation(b"same", key="later", expires=now + 600))
    given = [
        reservation(b"new"),
        reservation(b"same", key="later", expires=now + 900),
        reservation(b"gone", key="gone", expires=now - 1),
    ]
    write(here / "x.jsonl", *given)
    done = db("import", "x.jsonl")
    assert done.status == 1
    assert "the reservation 's' 'k' exists and differs" in done.err
    assert done.err.endswith("1 reservation not imported\n")
    assert "0 reservations imported, 0 replaced, 1 already there" in done.out
    assert "1 reservation skipped: their time is over" in done.out
    rows = "SELECT key, expires FROM reservation ORDER BY key"
    # of equal ones, the later time counts, whatever is imported first
    assert execute(here, rows) == [("k", None), ("later", now + 900)]
    write(here / "y.jsonl", reservation(b"same", key="later", expires=now + 700))
    assert db("import", "y.jsonl").status == 0
    assert execute(here, rows) == [("k", None), ("later", now + 900)]
    assert db("import", "x.jsonl", "--replace").status == 0
    exported = map(json.loads, db("export", "-").out.splitlines())
    assert {item["body"] for item in exported if item["key"] == "k"} == {"bmV3"}
    # what has expired gives way
    expired = "UPDATE reservation SET expires = 5 WHERE key = 'k'"
    assert execute(here, f"{expired} RETURNING 1") == [(1,)]
    write(here / "z.jsonl", reservation(b"next"))
    assert db("import", "z.jsonl").out.endswith(
        "1 reservation imported, 0 replaced, 0 already there\n"
    )
    sound(here)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"space": ""}, "the reservation '' 'k': its space must not be empty"),
        ({"key": "x" * 600}, "its key is longer than 512 bytes"),
        ({"key": "a\nb"}, "its key contains a control character"),
        ({"body": "{"}, "its value cannot be read"),
        ({"body": "sealed:v1:x"}, "its value is encrypted, and damaged"),
        ({"body": "AAAA" * 22000}, "its value has more than 65536 bytes"),
        ({"expires": -1}, "its time is not valid"),
        ({"more": 1}, "more"),
        ({"format": 3}, "its format is 3"),
    ],
)
def test_a_reservation_that_no_store_wrote_is_refused(
    here: Path, db: Any, change: dict[str, Any], told: str
) -> None:
    write(here / "x.jsonl", line("a"), {**reservation(), **change})
    done = db("import", "x.jsonl", "--store", "sqlite:///new.db")
    assert done.status == 1 and "line 2: " in done.err and told in done.err
    assert done.out.startswith("1 task imported")


@BOTH
def test_a_reservation_that_cannot_be_read_is_not_exported(here: Path, db: Any) -> None:
    seed(here, reservation(), reservation(key="other"))
    broken = "decode('78', 'hex')" if url(here) else "x'78'"
    execute(here, f"UPDATE reservation SET body = {broken} WHERE key = 'k' RETURNING 1")
    done = db("export", "x.jsonl")
    assert done.status == 1 and "the reservation 's' 'k' cannot be read" in done.err
    lines = [json.loads(text) for text in (here / "x.jsonl").read_text().splitlines()]
    assert [item["key"] for item in lines] == ["other"]


@BOTH
def test_prune_deletes_reservations_whose_time_is_over(here: Path, db: Any) -> None:
    later = time.time() + 600
    seed(here, line("a"), *(reservation(key=f"k{n}", expires=later) for n in range(300)))
    seed(here, reservation())
    execute(here, "UPDATE reservation SET expires = 5 WHERE key LIKE 'k_%' RETURNING 1")
    assert "reservation" not in db("prune", "--older", "30d", "--dry-run").out
    assert execute(here, "SELECT count(*) FROM reservation") == [(301,)]
    done = db("prune", "--older", "30d")
    assert "0 tasks deleted" in done.out
    assert "300 reservations deleted, because they had expired" in done.out
    assert execute(here, "SELECT key FROM reservation") == [("k",)]
