"""What only the store in a file has to stand: a disk that fails at any statement, logs that cannot
be read, and its own memory of what was written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman.model.caller import Caller, Scope
from dragoman.model.errors import Unavailable
from dragoman.model.events import Entry, Received
from dragoman.model.types import Message, Part, Role, TaskState
from dragoman.stores.cache import ROOM
from dragoman.stores.sqlite import SqliteStore, schema
from dragoman.stores.sqlite.driver import STANDARD, Driver
from dragoman.stores.sqlite.schema import Unusable
from dragoman.stores.store import Draft, MessagePlace
from tests.harness.stores import SCOPE, accept, artifact, claim, followed, status


class Flaky:
    """A connection whose statements fail when they are told to."""

    def __init__(self, db: Any, failing: list[str]) -> None:
        self._db = db
        self._failing = failing

    def execute(self, sql: str, *values: Any) -> Any:
        """Run it, or fail once."""
        for start in self._failing:
            if sql.startswith(start):
                self._failing.remove(start)
                raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def flaky(path: Path, failing: list[str]) -> SqliteStore:
    """A store on such connections."""
    connect: Callable[[Path], Any] = lambda file: Flaky(STANDARD.connect(file), failing)  # noqa: E731
    return SqliteStore(path, driver=Driver(connect, sqlite3.Error))


def numbers(path: Path) -> list[int]:
    """The numbers of all entries in the file."""
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT place & 16777215 FROM entry ORDER BY place")
        return [number for (number,) in found]


async def test_a_rollback_that_fails_leaves_no_gap(tmp_path: Path) -> None:
    failing: list[str] = []
    store = flaky(tmp_path / "a.db", failing)
    await store.open()
    await accept(store)
    held = await claim(store)
    failing += ["COMMIT", "ROLLBACK"]
    with pytest.raises(Unavailable):
        await store.append(held, [Entry(0, artifact("t", "one"))])
    assert not failing
    await store.append(held, [Entry(0, artifact("t", "two"))])
    head = await store.head(SCOPE, "t")
    await store.close()
    assert head is not None
    assert numbers(tmp_path / "a.db") == list(range(1, head.last + 1)) == [1, 2]


async def test_a_beginning_that_fails_is_begun_again(tmp_path: Path) -> None:
    failing: list[str] = []
    store = flaky(tmp_path / "a.db", failing)
    await store.open()
    await accept(store, "first")
    await store.close()
    store = flaky(tmp_path / "a.db", failing)
    await store.open()
    failing.append("SELECT coalesce(max(key), 0)")
    with pytest.raises(Unavailable):
        await accept(store, "second")
    await accept(store, "third")
    await store.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as db:
        keys = db.execute("SELECT key, id FROM task").fetchall()
    assert keys == [(1, "first"), (2, "third")]


def poisoned(path: Path, task: str, kind: int) -> None:
    """Make the first entry of this kind in a log unreadable."""
    db = sqlite3.connect(path)
    with db:
        db.execute(
            "UPDATE entry SET body = x'7b7d' WHERE place = (SELECT min(place) FROM entry, task "
            "WHERE task.id = ? AND place >> 24 = task.key AND kind = ?)",
            (task, kind),
        )
    db.close()


async def test_a_log_that_cannot_be_read_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(path)
    await store.open()
    for task in ("bad", "good"):
        await accept(store, task)
        held = await claim(store)
        entries = [Entry(0, artifact(task, "x")), Entry(0, status(task, TaskState.INPUT_REQUIRED))]
        await store.append(held, entries, release=True)
    await store.close()
    poisoned(path, "bad", 2)
    store = SqliteStore(path)
    await store.open()
    for task in ("bad", "good"):
        await accept(store, task, "m2", new=False)
    store._recent.clear()
    claims = await store.claim(["agent"], "w", 30.0, 9)
    assert [item.head.id for item in claims] == ["good"]
    head = await store.head(SCOPE, "bad")
    assert head is not None
    assert (head.state, head.holder) == (TaskState.FAILED, "")
    await store.close()


async def test_a_message_that_cannot_be_read_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(path)
    await store.open()
    await accept(store, "bad")
    await accept(store, "good")
    await store.close()
    poisoned(path, "bad", 1)
    store = SqliteStore(path)
    await store.open()
    claims = await store.claim(["agent"], "w", 30.0, 9)
    assert [item.head.id for item in claims] == ["good"]
    head = await store.head(SCOPE, "bad")
    assert head is not None
    assert head.state is TaskState.FAILED
    await store.close()


async def test_a_claim_that_is_read_from_the_file_is_written_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(path)
    await store.open()
    await accept(store)
    await store.close()
    for attempt in (1, 2, 3):
        store = SqliteStore(path)
        await store.open()
        for head in await store.expired(["agent"], 9):
            await store.revoke(head, None)
        assert (await claim(store)).attempt == attempt
        await store.close()


async def test_what_is_remembered_is_bounded_by_what_it_weighs(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    big = Message(
        message_id="m",
        task_id="",
        context_id="c",
        role=Role.USER,
        parts=(Part(text="x" * 600_000),),
    )
    from msgspec.structs import replace

    from dragoman.stores.store import Draft

    for number in range(60):
        message = replace(big, task_id=f"t{number}")
        received = Received(message=message, caller=Caller(), at="2026-01-31T12:00:00.000Z")
        await store.accept(SCOPE, Draft(task=f"t{number}", received=received, new=True))
    held = sum(
        len(entry.event.message.parts[0].text or "")  # type: ignore[union-attr]
        for live in store._recent._logs.values()
        for entry in live.entries
    )
    assert held < 20 * 1024 * 1024
    await store.close()


async def test_opening_twice_is_refused_and_hurts_nobody(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    with pytest.raises(Unusable, match="already open"):
        await store.open()
    await accept(store)
    await store.close()


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "none" / "a.db")
    with pytest.raises(Unusable, match="does not exist"):
        await store.open()
    assert not (tmp_path / "none").exists()


async def test_others_on_the_machine_cannot_read_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    await accept(store)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    await store.close()
    assert set(modes.values()) == {0o600}, modes


async def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(schema.MIGRATIONS[0])
        db.execute(f"PRAGMA application_id = {schema.APPLICATION}")
        db.execute("PRAGMA user_version = 1")
    ids = []
    for _ in range(2):
        store = SqliteStore(path)
        await store.open()
        ids.append(store.id)
        await store.close()
    assert ids[0] == ids[1] != ""


async def test_messages_of_older_files_are_in_their_conversations(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    store = SqliteStore(path)
    await store.open()
    scope = Scope("agent", "tenant", "owner")
    await accept(store, "t", scope=scope)
    await accept(store, "t", scope=scope, new=False)
    context, last = "c", MessagePlace("t", 9, "9999")
    before = await store.messages(scope, context, last, 9)
    await store.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE message")
        db.execute("DROP TABLE context_value")
        db.execute("DROP TABLE reservation")
        db.execute("DROP TABLE replay_value")
        db.execute("CREATE INDEX task_replied ON task (ended) WHERE replied = 1")
        db.execute(f"PRAGMA user_version = {schema.MIGRATIONS.index(schema._MESSAGES)}")
        db.commit()
    await store.open()
    assert await store.messages(scope, context, last, 9) == before
    assert [place.number for place in before] == [2, 1]
    await store.close()


async def test_lines_of_older_files_get_the_lanes_of_their_owners(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    store = SqliteStore(path)
    await store.open()
    for name in ("a", "b"):
        await followed(store, name, scope=Scope("agent", "", name))
    await store.close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP INDEX line_lane; ALTER TABLE line DROP COLUMN lane")
        db.executescript(schema._LANES)
    await store.open()
    (line,) = await store.dispatch(["agent"], 9, 30.0, {("", "a")})
    assert line.task == "b"
    await store.close()


async def test_what_is_remembered_is_weighed_by_its_elements(tmp_path: Path) -> None:
    """A list of empty lists takes twenty times as much memory as text on disk."""
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    try:
        for number in range(200):
            received = Received(
                message=Message(
                    message_id="m",
                    task_id=f"t{number}",
                    context_id="c",
                    role=Role.USER,
                    parts=(Part(data=[[] for _ in range(4_000)]),),
                ),
                caller=Caller(),
                at="2026-01-31T12:00:00.000Z",
            )
            await store.accept(SCOPE, Draft(task=f"t{number}", received=received, new=True))
        assert sum(live.size for live in store._recent._logs.values()) <= ROOM
        # each is 12 KB on disk, and half a megabyte in memory
        assert 10 < len(store._recent._logs) < 50
    finally:
        await store.close()
