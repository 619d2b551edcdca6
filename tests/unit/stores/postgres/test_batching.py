"""What the store in PostgreSQL does once for many: questions, writes, and no look at all rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from dragoman.stores.postgres import PostgresStore
from dragoman.stores.postgres.queries import Gather
from dragoman.stores.store import Claim, Draft
from tests.harness.stores import SCOPE, C, accept, claim, database, received, say

pytestmark = pytest.mark.slow  # it needs PostgreSQL


@pytest.fixture
async def url() -> str:
    """The URL of new tables."""
    return database()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    """A store in them, with a single connection."""
    store = PostgresStore(url, pool_size=1)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class Oracle:
    """Answers with what it is asked, and remembers that."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def __call__(self, questions: Sequence[str]) -> list[list[str]]:
        """Each question is its own answer."""
        self.asked.append(list(questions))
        return [[question] for question in questions]


async def test_the_same_question_is_asked_once() -> None:
    oracle = Oracle()
    ask = Gather(oracle)
    one, other, again = await asyncio.gather(ask("a"), ask("b"), ask("a"))
    assert oracle.asked == [["a", "b"]]
    assert one is again
    assert (one, other) == (["a"], ["b"])


async def test_what_comes_later_is_asked_again() -> None:
    oracle = Oracle()
    ask = Gather(oracle)
    await ask("a")
    await ask("a")
    assert oracle.asked == [["a"], ["a"]]


async def test_one_who_goes_away_leaves_the_answer_to_the_others() -> None:
    ask = Gather(Oracle())
    gone, left = (asyncio.ensure_future(ask("a")) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert await left == ["a"]


async def test_what_nobody_waits_for_is_not_asked() -> None:
    oracle = Oracle()
    ask = Gather(oracle)
    gone = asyncio.ensure_future(ask("a"))
    other = asyncio.ensure_future(ask("b"))
    await asyncio.sleep(0)
    gone.cancel()
    await other
    assert oracle.asked == [["b"]]


async def test_a_failure_is_told_to_all() -> None:
    async def ask(questions: Sequence[str]) -> list[str]:
        raise OSError("gone")

    asked = Gather(ask)
    found = await asyncio.gather(*(asked("a") for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in found] == [OSError] * 3


async def test_a_claim_shares_the_write_of_what_it_takes(store: PostgresStore, url: str) -> None:
    assert not await store.claim(["agent"], "w", 600, 9)  # so that nobody else's is waiting
    claims: list[asyncio.Future[Sequence[Claim]]] = []

    def look() -> None:
        claims.append(store.claim(["agent"], "w", 600, 9))

    async def send(name: str) -> None:
        accepting = store.accept(SCOPE, Draft(task=name, received=received(name), new=True))
        asyncio.get_running_loop().call_soon(look)  # as a worker does that is busy claiming
        await accepting

    await asyncio.gather(*(send(f"t{number}") for number in range(3)))
    taken = [held.head.id for found in claims for held in await found]
    assert sorted(taken) == ["t0", "t1", "t2"]
    db = await asyncpg.connect(url)
    try:
        query = (
            "SELECT count(*) FROM task JOIN entry ON entry.task = key WHERE task.xmin{}entry.xmin"
        )
        assert await db.fetchval(query.format("=")) == 3
        assert await db.fetchval(query.format("<>")) == 0
    finally:
        await db.close()


async def test_a_table_that_grows_is_not_read_from_end_to_end(
    store: PostgresStore, url: str
) -> None:
    for number in range(40):
        name = f"t{number}"
        await accept(store, name)
        await say(store, await claim(store), C)
        await store.load(SCOPE, name)
    async with store._pool.connection() as own:
        await own.execute("SELECT pg_stat_force_next_flush()")
    db = await asyncpg.connect(url)
    try:
        query = (
            "SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relid = ANY($1::regclass[])"
        )
        assert await db.fetchval(query, ["task", "entry"]) == 0
    finally:
        await db.close()
