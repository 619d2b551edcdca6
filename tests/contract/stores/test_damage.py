"""A damaged row: the store names it and sets it aside, and all others work."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from dragoman.model.caller import Scope
from dragoman.model.errors import TaskNotFound
from dragoman.model.lifecycle import fold
from dragoman.model.types import Part, TaskState
from dragoman.stores import unreadable_rows
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Query, Receipt, Stale, Store, Unreadable
from tests.harness.stores import (
    LONG,
    SCOPE,
    SOON,
    STRANGERS,
    accept,
    artifact,
    cancel,
    claim,
    database,
    ended,
    events,
    followed,
    hook,
    one,
    pause,
    said,
    say,
    stamp,
    take,
    task,
    waiting,
    write,
)

Damaged = Callable[..., Awaitable[Any]]
BOB, CID = (Scope("agent", "tenant", name) for name in ("bob", "cid"))


class Shelter:
    """A store that can be damaged while it is closed."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.where = str(folder / "a.db") if kind == "sqlite" else database()
        self.store: Any = None

    @property
    def entry(self) -> str:
        """The key of an entry's task, in SQL."""
        return "place >> 24" if self.kind == "sqlite" else "task"

    async def open(self, **options: Any) -> Any:
        """The store, opened anew: it remembers nothing."""
        await self.close()
        make: Any = SqliteStore if self.kind == "sqlite" else PostgresStore
        self.store = make(self.where, **options)
        await self.store.open()
        return self.store

    async def close(self) -> None:
        """Close it, if it is open."""
        if self.store is not None:
            store, self.store = self.store, None
            await store.close()

    async def value(self, query: str) -> Any:
        """One value."""
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.where)) as db:
                return db.execute(query).fetchone()[0]
        connection = await asyncpg.connect(self.where)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    async def sql(self, statement: str) -> None:
        """Change something by hand; `x'…'` is bytes."""
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.where)) as db, db:
                db.execute(statement)
            return
        connection = await asyncpg.connect(self.where)
        await connection.execute(re.sub(r"\bx'([0-9a-f]+)'", r"'\\x\1'", statement))
        await connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def shelter(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shelter]:
    """A store of each kind."""
    found = Shelter(request.param, tmp_path)
    await found.open()
    yield found
    await found.close()


@pytest.fixture(autouse=True)
def words(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged of tasks that cannot be read."""
    caplog.set_level(logging.ERROR)
    return lambda: [text for text in caplog.messages if "cannot be read" in text]


HEADS = {
    "state": "state = 99",
    "inbox": "inbox = 'x'",
    "inbox of another": "inbox = '9'",
    "inbox after the end": "state = 3",
    "canceled": "canceled = x'78'",
    "last": "last = 0",
    "number": "epoch = 2147483647",
    "text": "skill = CAST(x'ff' AS TEXT)",
}
ONLY = {"number": "postgres", "text": "sqlite"}


@pytest.mark.parametrize("what", HEADS)
async def test_a_head_holds_up_no_claim(
    shelter: Shelter, what: str, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ONLY.get(what, shelter.kind) != shelter.kind:
        pytest.skip("this database refuses it")
    before = dict(await shelter_columns(shelter, "bad"))
    await shelter.sql(f"UPDATE task SET {HEADS[what]} WHERE id = 'bad'")
    for module in ("sqlite.transaction", "postgres.claims"):
        monkeypatch.setattr(f"dragoman.stores.{module}.PAUSE", SOON)
    store = await shelter.open()
    await accept(store, "good")
    assert (await store.census(["agent"]))["agent"].oldest > 0
    assert (await claim(store)).head.id == "good", "though the other one was first"
    (logged,) = words()
    assert "task bad: its head cannot be read: " in logged and "set aside" in logged
    assert store.unreadable["head"] == 1
    census = (await store.census(["agent"]))["agent"]
    assert (census.aside, census.ready) == (1, 0)
    assert [found.id for found in (await store.list(SCOPE, Query())).tasks] == ["good"]
    await accept(store, "later")
    assert (await claim(store)).head.id == "later"
    for name in ("head", "load"):
        with pytest.raises(Unreadable, match="task bad"):
            await getattr(store, name)(SCOPE, "bad")
    await pause()
    assert await store.expired(["agent"], 9) == []  # looked at again, and set aside again
    assert len(words()) == 1, "it is not logged all the time"
    await shelter.sql(f"UPDATE task SET {before_of(before, HEADS[what])} WHERE id = 'bad'")
    await pause()
    (head,) = await store.expired(["agent"], 9)
    assert (head.id, head.holder) == ("bad", unreadable_rows.ASIDE)
    assert await store.revoke(head, None, expired=True)
    assert (await claim(store)).head.id == "bad", "it was repaired"
    assert (await store.census(["agent"]))["agent"].aside == 0


async def shelter_columns(shelter: Shelter, name: str) -> Any:
    """The head of a task that is accepted now, before it is damaged."""
    await accept(shelter.store, name)
    await shelter.close()
    if shelter.kind == "sqlite":
        with closing(sqlite3.connect(shelter.where)) as db:
            db.row_factory = sqlite3.Row
            (row,) = db.execute("SELECT * FROM task").fetchall()
            return dict(row)
    connection = await asyncpg.connect(shelter.where)
    (row,) = await connection.fetch("SELECT * FROM task")
    await connection.close()
    return dict(row)


def before_of(columns: dict[str, Any], change: str) -> str:
    """The change that undoes one."""
    name = change.partition(" ")[0]
    value = columns[name]
    return f"{name} = {'NULL' if value is None else repr(value)}"


async def test_many_heads_in_front(shelter: Shelter) -> None:
    for number in range(20):
        await accept(shelter.store, f"bad{number}")
    await shelter.close()
    await shelter.sql("UPDATE task SET inbox = 'x'")
    store = await shelter.open()
    await accept(store, "good")
    assert (await claim(store)).head.id == "good"
    assert (await store.census(["agent"]))["agent"].aside == 20


@pytest.mark.parametrize("what", [*HEADS, "message"])
async def test_one_of_others_holds_up_no_claim_that_passes_somebody_over(
    shelter: Shelter, what: str, words: Any
) -> None:
    if ONLY.get(what, shelter.kind) != shelter.kind:
        pytest.skip("this database refuses it")
    for name in ("bad1", "bad2", "bob"):
        await accept(shelter.store, name, scope=BOB)
    await accept(shelter.store, "cid", scope=CID)
    await accept(shelter.store, "mine")
    await shelter.close()
    if what == "message":
        await shelter.sql(
            f"UPDATE entry SET body = x'78' WHERE {shelter.entry} IN "
            "(SELECT key FROM task WHERE id LIKE 'bad%')"
        )
    else:
        await shelter.sql(f"UPDATE task SET {HEADS[what]} WHERE id LIKE 'bad%'")
    store = await shelter.open()
    passing = frozenset([(SCOPE.tenant, SCOPE.owner)])
    taken: list[str] = []
    for _ in range(4):
        taken += [item.head.id for item in await store.claim(["agent"], "w", LONG, 2, passing)]
    assert sorted(taken) == ["bob", "cid", "mine"]
    assert len(words()) == 2
    assert (await store.census(["agent"]))["agent"].ready == 0


RANKS = {
    "high": "9200000000000000000",
    "negative": "-9200000000000000000",
    "no number": "'NaN'",
    "infinite": "'Infinity'",
}


@pytest.mark.parametrize("what", RANKS)
async def test_a_rank_holds_up_nobody(shelter: Shelter, what: str) -> None:
    """No rank is made of one that cannot be: the same owner's, and those of others, are given."""
    if shelter.kind == "sqlite" and RANKS[what].startswith("'"):
        pytest.skip("this database refuses it")
    for name in ("bad", "good"):
        await accept(shelter.store, name)
    await shelter.close()
    await shelter.sql(f"UPDATE task SET ready = {RANKS[what]} WHERE id = 'bad'")
    store = await shelter.open()
    for number in range(3):
        await accept(store, f"mine{number}")
        await accept(store, f"bob{number}", scope=BOB)
    first = await store.claim(["agent"], "w", LONG, 4)
    assert {"good", "bob0"} < {item.head.id for item in first}
    rest = await store.claim(["agent"], "w", LONG, 9)
    assert len({item.head.id for item in (*first, *rest)}) == 8


async def test_a_head_holds_up_no_reaper(shelter: Shelter, words: Any) -> None:
    store: Store = shelter.store
    for name in ("bad", "good"):
        await accept(store, name)
        await claim(store, lease=SOON)
    await cancel(store, "bad", grace=0)
    await shelter.close()
    await shelter.sql("UPDATE task SET state = 99 WHERE id = 'bad'")
    await pause()
    store = await shelter.open()
    (head,) = await store.expired(["agent"], 9)
    assert head.id == "good"
    assert len(words()) == 1
    assert await store.revoke(head, head.ending(TaskState.FAILED), expired=True)
    assert await store.expired(["agent"], 9) == []
    assert [head.id for head in await store.held("w")] == []


async def test_a_head_holds_up_no_renewal(shelter: Shelter) -> None:
    store: Store = shelter.store
    claims = []
    for name in ("bad", "good"):
        await accept(store, name)
        claims.append(await claim(store, lease=SOON))
    await shelter.close()
    await shelter.sql("UPDATE task SET state = 99 WHERE id = 'bad'")
    store = await shelter.open()
    if shelter.kind == "sqlite":  # which lets all claims of a dead server go
        await shelter.sql("UPDATE task SET lease = 1e9 WHERE id = 'good'")
    renewal = await store.renew(claims, LONG)
    assert "good" not in renewal.lost
    with pytest.raises(Stale):
        await store.append(claims[0], said(claims[0], artifact("bad", "x")))
    await write(store, claims[1], artifact("good", "x"))
    assert await store.revoke(claims[0].head, None) is None
    assert (await store.census(["agent"]))["agent"].aside == 1


async def test_only_its_own_caller_notices(shelter: Shelter) -> None:
    await waiting(shelter.store, "bad")
    await waiting(shelter.store, "good")
    receipt = Receipt("key", b"d" * 32)
    await accept(shelter.store, "sent", receipt=receipt)
    await shelter.close()
    await shelter.sql("UPDATE task SET state = 99 WHERE id = 'bad'")
    await shelter.sql("UPDATE task SET canceled = x'78' WHERE id = 'sent'")
    store = await shelter.open()

    async def each(*calls: Awaitable[Any]) -> list[Any]:
        return await asyncio.gather(*calls, return_exceptions=True)

    for found in (
        await each(*(accept(store, name, "m2", new=False) for name in ("bad", "good"))),
        await each(*(store.head(SCOPE, name) for name in ("bad", "good"))),
        await each(*(store.load(SCOPE, name) for name in ("bad", "good"))),
        await each(
            *(store.put_webhook(SCOPE, hook(task=name)) for name in ("bad", "good")),
        ),
        await each(
            accept(store, "again", receipt=receipt), accept(store, "new", receipt=Receipt("k", b""))
        ),
    ):
        assert isinstance(found[0], Unreadable), found
        assert not isinstance(found[1], Exception), found
    assert await store.owner(SCOPE, "bad") == SCOPE.owner
    for scope in STRANGERS:
        assert await store.head(scope, "bad") is None
        with pytest.raises(TaskNotFound):
            await accept(store, "bad", "m3", new=False, scope=scope)


async def test_it_shares_a_write_with_one_that_cannot_be_stored(shelter: Shelter) -> None:
    await waiting(shelter.store, "bad")
    await waiting(shelter.store, "good")
    await shelter.close()
    await shelter.sql("UPDATE task SET state = 99 WHERE id = 'bad'")
    store = await shelter.open()
    sending = [accept(store, f"t{number}") for number in range(9)]
    sending += [accept(store, name, "m2", new=False) for name in ("bad", "good")]
    # in a file a lone surrogate cannot be encoded, in PostgreSQL a NUL
    poison = "x\0" if shelter.kind == "postgres" else "x\ud800"
    sending += [accept(store, "poison", context=poison, scope=BOB), accept(store, "last")]
    *others, bad, good, poisoned, last = await asyncio.gather(*sending, return_exceptions=True)
    assert isinstance(bad, Unreadable) and isinstance(poisoned, Exception)
    assert not isinstance(poisoned, Unreadable)
    for accepted in (*others, good, last):
        assert not isinstance(accepted, BaseException), accepted
    await store.probe()
    assert (await store.census(["agent"]))["agent"].ready == 11


async def pages(store: Store, size: int) -> list[list[str]]:
    """The ids of all pages; there are less than 20."""
    found: list[list[str]] = []
    cursor = None
    for _ in range(20):
        page = await store.list(SCOPE, Query(size=size, cursor=cursor, artifacts=True))
        found.append([item.id for item in page.tasks])
        if (cursor := page.cursor) is None:
            return found
    pytest.fail(f"there is no end of it: {found}")


TASKS = {
    "head": "UPDATE task SET state = 99 WHERE id LIKE 'bad%'",
    "size": "UPDATE task SET size = -9000000000000000000 WHERE id LIKE 'bad%'",
    "text": "UPDATE task SET changed = CAST(x'32ff' AS TEXT) WHERE id LIKE 'bad%'",
    "log": "UPDATE entry SET body = x'78' WHERE {} IN (SELECT key FROM task WHERE id LIKE 'bad%')",
}


@pytest.mark.parametrize("what", TASKS)
async def test_a_page_of_few_bytes_goes_past_it(
    shelter: Shelter, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ONLY.get(what, shelter.kind) != shelter.kind:
        pytest.skip("this database refuses it")
    names = ["bad1", "good1", "bad2", "bad3", "good2", "bad4"]
    for number, name in enumerate(names):
        await accept(shelter.store, name, at=stamp(number))
    await shelter.close()
    await shelter.sql(TASKS[what].format(shelter.entry))
    store = await shelter.open()
    shown = ["good2", "good1"] if what != "size" else names[::-1]
    for size in (1, 2, 50):
        assert list(chain.from_iterable(await pages(store, size))) == shown
    for kind in ("sqlite", "postgres"):
        monkeypatch.setattr(f"dragoman.stores.{kind}.queries.PAGE_BYTES", 1)
    found = await pages(store, 50)
    assert list(chain.from_iterable(found)) == shown
    assert len(found) > 1


async def test_a_log_is_not_read_by_others(shelter: Shelter, words: Any) -> None:
    for name in ("bad", "good"):
        await waiting(shelter.store, name)
    await shelter.close()
    await shelter.sql("UPDATE entry SET body = x'7b7d' WHERE turn = 1 AND kind = 2")
    await shelter.sql("UPDATE task SET inbox = '1', ready = 1 WHERE id = 'good'")
    store = await shelter.open()
    await accept(store, "fine")
    await accept(store, "bad", "m2", new=False)
    await accept(store, "sound")
    store._recent.clear()
    claims = await store.claim(["agent"], "w", LONG, 9)
    assert {item.head.id for item in claims} == {"good", "fine", "sound"}
    head = await store.head(SCOPE, "bad")
    assert head is not None and head.state is TaskState.FAILED
    assert [found.id for found in (await store.list(SCOPE, Query())).tasks] == ["sound", "fine"]
    for name in ("bad", "good"):
        with pytest.raises(Unreadable, match=f"task {name}: its log"):
            await store.read(SCOPE, name, 0, 9)
    both = await asyncio.gather(
        *(store.read(SCOPE, name, 0, 9) for name in ("bad", "fine")), return_exceptions=True
    )
    assert isinstance(both[0], Unreadable) and len(both[1]) == 1  # type: ignore[arg-type]
    assert store.unreadable["log"] == 2
    assert any("task bad: its log cannot be read" in text for text in words())


async def test_a_message_that_is_gone(shelter: Shelter) -> None:
    await accept(shelter.store, "bad")
    await shelter.close()
    await shelter.sql("DELETE FROM entry")
    store = await shelter.open()
    await accept(store, "good")
    assert [item.head.id for item in await store.claim(["agent"], "w", LONG, 9)] == ["good"]
    head = await store.head(SCOPE, "bad")
    assert head is not None and head.state is TaskState.FAILED


WEBHOOKS = {
    "webhook": "webhook = x'78'",
    "another": "id = x'78'",
    "text": "reason = CAST(x'ff' AS TEXT)",
}


@pytest.mark.parametrize("what", WEBHOOKS)
async def test_a_webhook_holds_up_no_delivery(shelter: Shelter, what: str, words: Any) -> None:
    if ONLY.get(what, shelter.kind) != shelter.kind:
        pytest.skip("this database refuses it")
    for name in ("bad", "good"):
        await followed(shelter.store, name)
    await shelter.close()
    change = WEBHOOKS[what]
    if shelter.kind == "sqlite":
        change = change.replace("id = x'78'", "id = 'x'")
    await shelter.sql(
        f"UPDATE line SET {change} WHERE task = (SELECT key FROM task WHERE id = 'bad')"
    )
    store = await shelter.open()
    assert (await one(store)).task == "good"
    (logged,) = words()
    assert "task bad: its webhook cannot be read" in logged and "parked" in logged
    assert store.unreadable["webhook"] == 1
    (line,) = await store.undelivered(9, parked=True)
    assert line.task == "bad" and "cannot be read" in line.reason
    assert (await store.census(["agent"]))["agent"].parked == 1
    assert await store.redrive("bad") == 1
    if what == "text":  # the damaged reason was replaced by ours
        assert (await one(store)).task == "bad"
        return
    assert await take(store) == []  # and it is parked again
    assert len(await store.undelivered(9, parked=True)) == 1
    with pytest.raises(Unreadable, match="task bad: its webhook"):
        await store.webhooks(SCOPE, "bad")
    if what == "webhook":
        await store.put_webhook(SCOPE, hook(task="bad"))
        assert (await one(store)).task == "bad", "it was set again"


@pytest.mark.parametrize("passing", [True, False])
async def test_webhooks_hold_up_no_turns_of_owners(
    shelter: Shelter, passing: bool, words: Any
) -> None:
    names = [f"bad{number}" for number in range(6)]
    for name in (*names, "good"):
        await followed(shelter.store, name, scope=BOB)
    await followed(shelter.store, "mine")
    await shelter.close()
    await shelter.sql(
        "UPDATE line SET webhook = x'78' WHERE task IN (SELECT key FROM task WHERE id LIKE 'bad%')"
    )
    store = await shelter.open()
    passed = {(SCOPE.tenant, SCOPE.owner)} if passing else set()
    found = await store.dispatch(["agent"], 2, LONG, passed)
    assert [line.task for line in found] == (["good"] if passing else ["good", "mine"])
    assert len(words()) == 6
    assert {line.task for line in await store.undelivered(99, parked=True)} == set(names)


@pytest.mark.parametrize("change", ["body = x'78'", "body = x'7b7d'", "number = 99"])
async def test_a_snapshot_is_done_without(shelter: Shelter, change: str, words: Any) -> None:
    store: Any = shelter.store
    await accept(store)
    held = await claim(store)
    for n in range(3):
        await write(store, held, artifact("t", f"{n}" * 50_000, append=n > 0))
    whole = await task(store)
    store = await shelter.open()
    assert await task(store) == whole  # and a snapshot is kept
    await accept(store, "u")
    store = await shelter.open()
    await shelter.sql(f"UPDATE snapshot SET {change}")
    assert [found.id for found in (await store.list(SCOPE, Query())).tasks] == ["u", "t"]
    assert await task(store) == whole
    assert store.unreadable["snapshot"] == 1
    (logged,) = words()
    assert "task t: its snapshot cannot be read" in logged
    store = await shelter.open()
    assert await task(store) == whole
    assert store.unreadable["snapshot"] == 0, "it was written anew"


async def test_a_snapshot_of_an_older_form_is_dropped(shelter: Shelter, words: Any) -> None:
    """Each chunk of text was a part of its own once."""
    store: Any = shelter.store
    await accept(store)
    held = await claim(store)
    texts = [f"{n}" * 50_000 for n in range(3)]
    for n, text in enumerate(texts):
        await write(store, held, artifact("t", text, append=n > 0))
    store = await shelter.open()
    whole = await task(store)  # and a snapshot is kept
    assert whole.artifacts[0].parts == (Part(text="".join(texts)),)
    await shelter.close()
    assert (await shelter.value("SELECT body FROM snapshot")).startswith(b'{"form":2,')
    parts = tuple(Part(text=text) for text in texts)
    old = whole.replace(artifacts=(whole.artifacts[0].replace(parts=parts),))
    await shelter.sql(f"UPDATE snapshot SET body = x'{msgspec.json.encode(old).hex()}'")
    store = await shelter.open()
    assert (await store.list(SCOPE, Query(artifacts=True))).tasks == [whole]
    assert await task(store) == whole
    await shelter.close()
    assert (await shelter.value("SELECT body FROM snapshot")).startswith(b'{"form":2,')
    store = await shelter.open()
    assert await task(store) == whole
    assert store.unreadable["snapshot"] == 0
    assert words() == []


async def test_the_fold_of_a_snapshot_and_what_follows_it(shelter: Shelter) -> None:
    store: Any = shelter.store
    await accept(store)
    held = await claim(store)
    for n in range(4):
        await write(store, held, artifact("t", f"{n}" * 30_000, append=n > 0))
    await say(store, held, TaskState.INPUT_REQUIRED, release=True)
    await task(await shelter.open())  # and a snapshot is kept
    store = await shelter.open()
    await accept(store, "t", "m2", new=False)
    await write(store, await claim(store), artifact("t", "more", append=True))
    store = await shelter.open()
    assert await shelter.value("SELECT number FROM snapshot") == 6
    found = await task(store)
    assert found == fold(None, await events(store))
    assert len(found.artifacts[0].parts) == 1


async def test_what_is_old_is_forgotten(shelter: Shelter) -> None:
    for name in ("bad", "good"):
        await ended(shelter.store, name)
    await shelter.close()
    await shelter.sql("UPDATE task SET canceled = x'78' WHERE id = 'bad'")
    store = await shelter.open(retention=SOON)
    await pause()
    assert await store.prune() == 2
    assert sum((await store.tally(SCOPE)).values()) == 0


async def test_a_count_of_no_state(shelter: Shelter) -> None:
    await accept(shelter.store)
    await shelter.close()
    await shelter.sql("UPDATE tally SET state = 99")
    store = await shelter.open()
    await accept(store, "u")
    assert await store.tally(SCOPE) == {TaskState.SUBMITTED: 1}
    assert (await store.census(["agent"]))["agent"].tasks == {TaskState.SUBMITTED: 1}
    assert store.unreadable["count"] == 1


async def test_one_that_is_remembered_is_written_as_it_was(shelter: Shelter) -> None:
    """A damage that nobody has read is undone by the next write."""
    store = shelter.store
    await accept(store)
    held = await claim(store)
    if shelter.kind == "sqlite":
        pytest.skip("a file that another process has written to is read again")
    await shelter.sql("UPDATE task SET state = 99")
    assert (await say(store, held, TaskState.WORKING)).state is TaskState.WORKING


def test_the_same_is_logged_seldom(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = unreadable_rows.UnreadableRows()
    for _ in range(3):
        found.found(Unreadable("head", "t", "why"), "set aside")
        found.found(Unreadable("log", "t", "why"))
    assert (found.counts["head"], found.counts["log"]) == (1, 1)
    assert words()[0] == (
        "task t: its head cannot be read: why; set aside; see `dragoman db check`"
    )
    monkeypatch.setattr(unreadable_rows, "REPEAT", -1.0)
    found.found(Unreadable("head", "t", "why"))
    assert found.counts["head"] == 2
    monkeypatch.setattr(unreadable_rows, "REPEAT", 600.0)
    for number in range(2 * unreadable_rows.REMEMBERED):
        found.found(Unreadable("head", f"t{number}", "why"))
    assert len(found._reported) <= unreadable_rows.REMEMBERED
