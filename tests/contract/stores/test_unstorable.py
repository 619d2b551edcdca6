"""Values that a database cannot store: the store rejects them, and writes that share the
transaction succeed."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from dragoman.model.caller import INDEXED, Scope, owner_key
from dragoman.model.errors import A2AError, InvalidParams
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Accepted, Draft, Receipt, Store
from tests.harness.stores import SCOPE, accept, claim, database, head, hook, received

pytestmark = pytest.mark.slow  # it needs PostgreSQL

ODD = random.Random(14)
ATTACKER = Scope("agent", "tenant", "attacker")


def noise(size: int) -> str:
    """Text that cannot be compressed."""
    return "".join(chr(ODD.randrange(0x21, 0x7F)) for _ in range(size))


def astral(size: int) -> str:
    """So many bytes of text, four for each character."""
    return "".join(chr(ODD.randrange(0x10000, 0x18000)) for _ in range(size // 4))


POISON: dict[str, tuple[Scope, dict[str, Any]]] = {
    "a NUL in its id": (ATTACKER, {"task": "x\0"}),
    "a NUL in its context": (ATTACKER, {"context": "x\0"}),
    "a long tenant": (Scope("agent", noise(4000), "attacker"), {}),
    "a long owner": (Scope("agent", "", noise(4000)), {}),
    "a long id": (ATTACKER, {"task": noise(4000)}),
    "a long webhook": (ATTACKER, {"webhook": noise(4000)}),
}


class Counted:
    """A connection that counts the statements which are sent with it."""

    def __init__(self, db: Any, store: CountingStore) -> None:
        self._db, self._store = db, store

    async def fetch(self, sql: str, *values: Any) -> Any:
        """Count, and do it."""
        self._store.statements += "ok AS" in sql
        return await self._db.fetch(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class CountingStore(PostgresStore):
    """Counts the statements that write."""

    statements = 0

    async def open(self) -> None:
        """See `Store.open`."""
        await super().open()
        hold = self._writer._hold
        inner = hold.__class__.__aenter__

        class Watched(hold.__class__):  # type: ignore[name-defined,misc]
            async def __aenter__(self) -> Any:
                return Counted(await inner(self), store)

        store = self
        hold.__class__ = Watched


@pytest.fixture
async def store() -> AsyncIterator[CountingStore]:
    """A store that counts."""
    store = CountingStore(database())
    await store.open()
    yield store
    await store.close()


def send(
    store: Store, name: str, scope: Scope = SCOPE, *, task: str = "", context: str = "c",
    webhook: str = "",
) -> asyncio.Future[Accepted]:  # fmt: skip
    """Begin to accept a message."""
    task = task or name
    draft = Draft(
        task=task,
        received=received(task, context=context),
        new=True,
        webhook=hook(webhook, task) if webhook else None,
    )
    return store.accept(scope, draft)


@pytest.mark.parametrize("what", POISON)
async def test_one_that_cannot_be_stored_is_taken_out(store: CountingStore, what: str) -> None:
    scope, more = POISON[what]
    before = [send(store, f"t{n}") for n in range(40)]
    poison = send(store, "poison", scope, **more)
    after = [send(store, f"u{n}") for n in range(40)]
    with pytest.raises(InvalidParams, match="cannot be stored"):
        await poison
    for number, accepted in enumerate(await asyncio.gather(*before)):
        assert accepted.head.id == f"t{number}"
    await asyncio.gather(*after)
    assert store.statements < 25, "they are not written one by one"
    assert (await head(store, "u39")).unread
    assert (await claim(store)).head.id == "t0"


async def test_who_keeps_sending_it_does_not_slow_down_others(store: CountingStore) -> None:
    rounds = 20
    for number in range(rounds):
        good = [send(store, f"t{number}-{n}") for n in range(20)]
        bad = [send(store, f"x{number}-{n}", ATTACKER, task=f"{number}-{n}\0") for n in range(2)]
        await asyncio.gather(*good)
        for refused in await asyncio.gather(*bad, return_exceptions=True):
            assert isinstance(refused, InvalidParams)
    # one for all the good, three for the bad
    assert store.statements < 5 * rounds + 20
    # what it sends beside is stored
    await send(store, "fine", ATTACKER)
    assert await store.head(ATTACKER, "fine") is not None


async def test_a_fault_of_ours_is_not_called_unavailable(store: CountingStore) -> None:
    def broken(_: Any) -> None:
        raise ZeroDivisionError("oops")

    others = [send(store, f"t{n}") for n in range(5)]
    wrong: asyncio.Future[None] = store._writer.submit(broken, owner=ATTACKER)
    with pytest.raises(ZeroDivisionError):
        await wrong
    assert len(await asyncio.gather(*others)) == 5


async def test_all_that_may_be_long_fits_an_index_together() -> None:
    store = PostgresStore(database())
    await store.open()
    scope = Scope(noise(INDEXED), astral(INDEXED), noise(INDEXED))
    task = noise(INDEXED)
    receipt = Receipt(noise(9000), b"x")
    draft = Draft(
        task=task,
        received=received(task, context=noise(9000)),
        new=True,
        receipt=receipt,
        webhook=hook(noise(INDEXED), task),
    )
    assert (await store.accept(scope, draft)).fresh
    assert not (await store.accept(scope, draft)).fresh
    (held,) = await store.claim([scope.agent], "w", 30.0, 1)
    assert held.head.id == task
    await store.close()


async def test_in_a_file_too_one_is_taken_out(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    before = [send(store, f"t{n}") for n in range(20)]
    poison = send(store, "poison", task="\ud800")
    after = [send(store, f"u{n}") for n in range(20)]
    with pytest.raises((A2AError, UnicodeEncodeError)):
        await poison
    assert len(await asyncio.gather(*before, *after)) == 40
    await store.close()


async def test_in_a_file_a_long_name_of_a_receipt_is_kept_as_its_digest(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    name = noise(100_000)
    assert (await accept(store, "a", receipt=Receipt(name, b"x"))).fresh
    again = await accept(store, "b", receipt=Receipt(name, b"x"))
    assert (again.fresh, again.head.id) == (False, "a")
    ((kept,),) = store._readers.view.db.execute("SELECT name FROM receipt").fetchall()
    assert kept.startswith("sha256:") and len(kept) < 100
    await store.close()


# ---- owners --------------------------------------------------------------------------------


def test_a_long_owner_is_known_by_its_digest() -> None:
    for name in ("", "ann", "x" * INDEXED, "\xe9" * (INDEXED // 2), "sha256:ann"):
        assert owner_key(name) == name
    digest = owner_key("x" * (INDEXED + 1))
    assert digest != owner_key("x" * (INDEXED + 2))
    assert len(digest) < 100
    # nobody can be called as the digest of another
    assert owner_key(digest) != digest
    assert len({owner_key("\xe9" * 257), owner_key("\xe9" * 258)}) == 2


ADDED_COLUMNS = (("task", "due"), ("task", "deadline"), ("task", "plan"), ("line", "lane"))
ADDED_INDEXES = ("task_due", "task_deadline", "task_waiting", "line_lane")


async def test_long_owners_of_older_files_are_found(tmp_path: Path) -> None:
    long = noise(600)
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    await accept(store, "old", scope=Scope("agent", "", long))
    await accept(store, "short", scope=Scope("agent", "", "ann"))
    await store.close()
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as db:
        db.execute("DROP TABLE reservation")
        db.execute("DROP TABLE replay_value")
        db.execute("DROP TABLE context_value")
        db.execute("DROP TABLE message")
        db.execute("CREATE INDEX task_replied ON task (ended)")
        for index in (*ADDED_INDEXES, "task_canceling"):
            db.execute(f"DROP INDEX {index}")
        for table, column in ADDED_COLUMNS:
            db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 2")
    await store.open()
    assert await store.head(Scope("agent", "", owner_key(long)), "old")
    assert await store.head(Scope("agent", "", "ann"), "short")
    assert len(await store.claim(["agent"], "w", 30.0, 9)) == 2
    await store.close()


async def test_long_owners_of_older_tables_are_found() -> None:
    url, long = database(), noise(600)
    store = PostgresStore(url)
    await store.open()
    owner = Scope("agent", "", long)
    await accept(store, "old", scope=owner, receipt=Receipt("key", b"x"))
    await store.close()
    db = await asyncpg.connect(url)
    await db.execute("DROP TABLE context_value, reservation, replay_value")
    await db.execute("DROP TABLE message")
    await db.execute("CREATE INDEX task_replied ON task (ended)")
    for index in (*ADDED_INDEXES, "task_undoing"):
        await db.execute(f"DROP INDEX {index}")
    for table, column in ADDED_COLUMNS:
        await db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    await db.execute("UPDATE about SET version = 1")
    await db.execute("UPDATE task SET ready = 1763300000.25")  # as it was before
    await db.close()
    await store.open()
    scope = Scope("agent", "", owner_key(long))
    assert await store.head(scope, "old")
    assert not (await accept(store, "x", scope=scope, receipt=Receipt("key", b"x"))).fresh
    assert sum((await store.tally(scope)).values()) == 1
    await accept(store, "new", scope=SCOPE)
    assert len(await store.claim(["agent"], "w", 30.0, 9)) == 2
    await store.close()
