"""The order of claims: owners take turns, however many tasks they have."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from dragoman.model.caller import Scope
from dragoman.stores.claim_order import AHEAD
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.postgres.admin import PostgresAdmin as PostgresClerk
from dragoman.stores.postgres.queue import CLAIM
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.sqlite.admin import SqliteAdmin as FileClerk
from dragoman.stores.store import Claim, Draft, Receipt, Store
from tests.harness.stores import LONG, I, accept, database, received, say

MANY = 10_000
ANN, BOB, CID = (Scope("agent", "tenant", name) for name in ("ann", "bob", "cid"))
ALL = {"a": ANN, "b": BOB, "c": CID}


async def send(store: Store, *names: str, keyed: bool = False) -> None:
    """Accept tasks all at once; the first letter of each says whose it is."""
    drafts = [
        Draft(
            task=name,
            received=received(name),
            new=True,
            receipt=Receipt(name, b"x") if keyed else None,
        )
        for name in names
    ]
    accepting = [
        store.accept(ALL[name[0]], draft) for name, draft in zip(names, drafts, strict=True)
    ]
    await asyncio.gather(*accepting)


async def flood(store: Store, number: int = MANY, owner: str = "a") -> None:
    """Many tasks of one owner."""
    for first in range(0, number, 500):
        await send(store, *(f"{owner}{n}" for n in range(first, min(first + 500, number))))


def ids(claims: Sequence[Claim]) -> list[str]:
    """Which tasks were claimed."""
    return [claim.head.id for claim in claims]


async def claim(store: Store, limit: int = 1, *passing: Scope) -> list[str]:
    """Claim some, and hear which."""
    passed = frozenset((scope.tenant, scope.owner) for scope in passing)
    return ids(await store.claim(["agent"], "w", LONG, limit, passed))


@pytest.mark.parametrize("keyed", [False, True])
async def test_with_many_of_one_owner_the_first_of_another_is_next(
    store: Store, keyed: bool
) -> None:
    await flood(store)
    assert await claim(store, 40) == [f"a{n}" for n in range(40)]
    await send(store, "b0", "b1", keyed=keyed)
    await send(store, "c0", keyed=keyed)
    assert await claim(store, 2) == ["b0", "c0"]
    assert await claim(store, 4) == ["a40", "a41", "b1", "a42"]


async def test_owners_take_turns(store: Store) -> None:
    for owner in "abc":
        await send(store, *(f"{owner}{n}" for n in range(10)))
    for turn in range(10):
        assert sorted(await claim(store, 3)) == [f"a{turn}", f"b{turn}", f"c{turn}"]
    assert not await claim(store)


async def test_one_that_waits_is_not_overtaken_for_ever(store: Store) -> None:
    """Whoever has nothing waiting goes before the others of that level once, not each time."""
    await send(store, *(f"b{n}" for n in range(4)))
    taken: list[str] = []
    for number in range(12):
        await send(store, f"a{number}")
        taken += await claim(store)
    assert {"b0", "b1", "b2"} <= set(taken)
    places = [taken.index(f"b{n}") for n in range(3)]
    assert all(after - before <= 3 for before, after in pairwise(places))


async def test_nor_by_ever_new_owners(store: Store) -> None:
    await send(store, "b0", "b1")
    assert await claim(store) == ["b0"]
    for number in range(AHEAD + 2):
        await accept(store, f"n{number}", scope=Scope("agent", "", f"new-{number}"))
        if await claim(store) == ["b1"]:
            return
    pytest.fail("b1 was overtaken by all of them")


async def test_what_is_just_accepted_does_not_go_before_what_waits(store: Store) -> None:
    assert not await claim(store, 9)  # now nothing is believed to wait
    await send(store, *(f"a{n}" for n in range(5)), "b0")
    assert len(await claim(store, 2)) == 2
    accepting = store.accept(ANN, Draft(task="a5", received=received("a5"), new=True))
    claiming = store.claim(["agent"], "w", LONG, 3)
    assert ids(await claiming) == ["a1", "a2", "a3"]
    await accepting
    assert await claim(store, 9) == ["a4", "a5"]


async def test_of_what_is_just_accepted_each_owner_gets_some(store: Store) -> None:
    assert not await claim(store, 9)
    names = [*(f"a{n}" for n in range(8)), "b0", "c0"]
    accepting = [
        store.accept(ALL[name[0]], Draft(task=name, received=received(name), new=True))
        for name in names
    ]
    claiming = store.claim(["agent"], "w", LONG, 4)
    await asyncio.gather(*accepting)
    assert sorted(ids(await claiming))[-2:] == ["b0", "c0"]
    assert len(await claim(store, 9)) == 6


async def test_who_is_passed_over_gets_what_nobody_else_waits_for(store: Store) -> None:
    await flood(store, 20)
    await send(store, "b0", "b1", "b2")
    assert await claim(store, 2, ANN) == ["b0", "b1"]
    assert await claim(store, 3, ANN) == ["b2", "a0", "a1"]
    assert await claim(store, 3, ANN, BOB) == ["a2", "a3", "a4"]
    assert len(await claim(store, 64, ANN)) == 15
    assert not await claim(store, 9, ANN)


async def test_who_is_passed_over_gets_no_more_than_is_spared(store: Store) -> None:
    await flood(store, 20)
    await send(store, "b0")
    passed = frozenset([("tenant", "ann")])
    assert ids(await store.claim(["agent"], "w", LONG, 9, passed, 2)) == ["b0", "a0", "a1"]
    assert not await store.claim(["agent"], "w", LONG, 9, passed, 0)
    accepting = [
        store.accept(ANN, Draft(task=f"x{n}", received=received(f"x{n}"), new=True))
        for n in range(3)
    ]
    assert len(await store.claim(["agent"], "w", LONG, 9, passed, 1)) == 1
    await asyncio.gather(*accepting)
    assert len(await claim(store, 64)) == 20


async def test_of_what_is_just_accepted_too(store: Store) -> None:
    assert not await claim(store, 9)  # nothing else waits
    passed = frozenset([("tenant", "ann")])
    accepting = [
        store.accept(ANN, Draft(task=f"a{n}", received=received(f"a{n}"), new=True))
        for n in range(3)
    ]
    claiming = store.claim(["agent"], "w", LONG, 9, passed, 1)
    await asyncio.gather(*accepting)
    assert len(await claiming) == 1
    assert len(await claim(store, 9)) == 2


async def test_who_is_passed_over_gets_it_at_once_too(store: Store) -> None:
    assert not await claim(store, 9)
    accepting = store.accept(ANN, Draft(task="a", received=received("a"), new=True))
    claiming = store.claim(["agent"], "w", LONG, 3, frozenset([("tenant", "ann")]))
    await accepting
    assert ids(await claiming) == ["a"]


async def test_many_owners_beside_one_that_is_passed_over(store: Store) -> None:
    await flood(store, 30)
    names = [f"o{n:03}" for n in range(150)]
    for name in names:
        await accept(store, name, scope=Scope("agent", "t", name))
    taken: list[str] = []
    while len(taken) < 150:
        taken += await claim(store, 7, ANN)
    assert sorted(taken[:150]) == names
    assert all(name.startswith("a") for name in taken[150:])


async def test_what_becomes_ready_again_has_its_turn(store: Store) -> None:
    await send(store, "a0")
    (held,) = await store.claim(["agent"], "w", LONG, 1)
    await flood(store, 50, "b")
    await accept(store, "a0", "m2", scope=ANN, new=False)
    await say(store, held, I, release=True)
    assert "a0" in await claim(store, 2)
    again = await store.head(ANN, "a0")
    assert again is not None
    assert await store.revoke(again, None) is not None
    assert "a0" in await claim(store, 2)


async def test_the_turns_of_all_are_shared_evenly(store: Store) -> None:
    """Whatever the number that each has waiting."""
    await flood(store, 300, "a")
    await flood(store, 30, "b")
    await flood(store, 60, "c")
    got = Counter(name[0] for name in await claim(store, 64))
    assert max(got.values()) - min(got.values()) <= 2, got


# ---- what it costs -------------------------------------------------------------------------


async def steps(store: SqliteStore, *passing: Scope) -> int:
    """How many steps SQLite takes for a claim and for a message that waits."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    db = store._writer._transaction.db
    db.set_progress_handler(step, 1)  # type: ignore[attr-defined]
    await claim(store, 4, *passing)
    await send(store, f"c{count}")
    db.set_progress_handler(None, 0)  # type: ignore[attr-defined]
    return count


@pytest.mark.slow
async def test_a_claim_costs_the_same_whatever_waits_in_a_file(tmp_path: Path) -> None:
    cost = {}
    for number in (100, MANY):
        store = SqliteStore(f"{tmp_path}/{number}.db")
        await store.open()
        await flood(store, number, "a")
        await flood(store, 100, "b")
        for _ in range(20):  # the one who is passed over falls far behind
            await claim(store, 4, ANN)
        cost[number] = await steps(store), await steps(store, ANN)
        await store.close()
    for few, many in zip(cost[100], cost[MANY], strict=True):
        assert many < 1.5 * few + 100, cost


@pytest.fixture
async def queue() -> AsyncIterator[PostgresStore]:
    """A store of one connection."""
    store = PostgresStore(database(), pool_size=1)
    await store.open()
    yield store
    await store.close()


@pytest.mark.slow  # it needs PostgreSQL
async def test_a_claim_reads_the_same_whatever_waits_in_postgresql(queue: PostgresStore) -> None:
    await flood(queue, MANY, "a")
    await flood(queue, 100, "b")
    for _ in range(20):
        await claim(queue, 4, ANN)
    async with queue._pool.connection() as db:
        seen: list[tuple[str, tuple[object, ...]]] = []
        with db.query_logger(lambda record: seen.append((record.query, record.args))):
            await queue._claims.others.claim(_Of(db), "agent", 4, "w", LONG, {("tenant", "ann")})
        await db.execute("ANALYZE task")
        for sql, values in [*seen, (CLAIM, ("agent", 4, "w", LONG))]:
            assert await buffers(db, sql, values) < 120, sql


class _Of:
    """A connection as what lends one."""

    def __init__(self, db: asyncpg.Connection) -> None:
        self.fetch = db.fetch


async def buffers(db: asyncpg.Connection, sql: str, values: Sequence[object]) -> int:
    """How many pages a statement touches; it is undone."""
    transaction = db.transaction()
    await transaction.start()
    text = await db.fetchval(f"EXPLAIN (FORMAT JSON, ANALYZE, BUFFERS) {sql}", *values)
    await transaction.rollback()
    plan = json.loads(text)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


# ---- what is imported ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_is_imported_takes_turns_too(kind: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    store: Store = SqliteStore(source)
    await store.open()
    await flood(store, 50, "a")
    await store.close()
    url = "" if kind == "sqlite" else database()
    store = PostgresStore(url) if url else SqliteStore(target)
    await store.open()
    await send(store, "b0", "b1", "b2")
    await store.close()

    def move() -> None:
        with FileClerk(source) as given:
            tasks = list(given.export(pytest.fail))
        with PostgresClerk(url, write=True) if url else FileClerk(target, write=True) as taker:
            assert set(taker.put(tasks, replace=False)) == {"new"}

    await asyncio.to_thread(move)
    await store.open()
    assert [name[0] for name in await claim(store, 6)] == ["b", "a", "b", "a", "b", "a"]
    await store.close()
