"""PostgreSQL: connections that break, and others who write at the same time."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import asyncpg
import pytest

from dragoman import ContextChanged
from dragoman.model.caller import Scope
from dragoman.model.errors import A2AError, Unavailable
from dragoman.model.events import Entry
from dragoman.model.lifecycle import IllegalEvent
from dragoman.model.types import TaskState
from dragoman.stores.postgres import PostgresStore, prune
from dragoman.stores.postgres.pool import IDLE, Hold
from dragoman.stores.store import Claim, ContextValue, Draft, Receipt, Stale
from tests.faults.cluster import history
from tests.faults.crash import checker
from tests.harness.stores import (
    LONG,
    SCOPE,
    C,
    I,
    W,
    accept,
    artifact,
    cancel,
    claim,
    database,
    events,
    head,
    hook,
    log,
    received,
    said,
    say,
    status,
    task,
)

pytestmark = pytest.mark.slow  # it needs PostgreSQL


@pytest.fixture
async def pair() -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two stores on one database, as in two processes."""
    url = database()
    one, other = PostgresStore(url), PostgresStore(url)
    await asyncio.gather(one.open(), other.open())
    yield one, other
    await asyncio.gather(one.close(), other.close())


class Breaking:
    """A connection that breaks at the next write: before it was done, or just after."""

    def __init__(self, db: Any, plan: list[str]) -> None:
        self._db = db
        self._plan = plan

    async def fetch(self, sql: str, *values: Any) -> Any:
        """Do it, and perhaps lose the answer."""
        when = self._plan.pop(0) if self._plan and "ok AS" in sql else ""
        found = await self._db.fetch(sql, *values) if when != "before" else None
        if when:
            raise asyncpg.ConnectionDoesNotExistError("connection was closed")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def breaking(store: PostgresStore, plan: list[str]) -> None:
    """Let the connections that a store writes with break as planned."""

    class Broken(Hold):
        async def __aenter__(self) -> Any:
            return Breaking(await super().__aenter__(), plan)

    store._writer._hold.__class__ = Broken


async def again(store: PostgresStore, held: Claim, entries: list[Entry], release: bool) -> bool:
    """Append as a worker does: once more when nobody knows what became of it."""
    with pytest.raises(Unavailable):
        await store.append(held, entries, release=release)
    return await store.append(held, entries, release=release)


WHEN = pytest.mark.parametrize("when", ["before", "after"])


@WHEN
async def test_chunks_land_once_whatever_becomes_of_the_answer(
    pair: tuple[PostgresStore, PostgresStore], when: str
) -> None:
    store, _ = pair
    await accept(store)
    held = await claim(store)
    breaking(store, [when])
    await again(store, held, said(held, artifact("t", "a"), artifact("t", "b", append=True)), False)
    await store.append(held, said(held, status("t", C)), release=True)
    assert [entry.number for entry in await log(store)] == [1, 2, 3, 4]
    assert (await task(store)).artifacts[0].text == "ab"


@WHEN
@pytest.mark.parametrize("release", [False, True])
async def test_an_end_lands_once(
    pair: tuple[PostgresStore, PostgresStore], when: str, release: bool
) -> None:
    store, _ = pair
    await accept(store)
    held = await claim(store)
    breaking(store, [when])
    assert not await again(store, held, said(held, status("t", C)), release)
    found = await head(store)
    assert (found.last, found.state, found.holder) == (2, C, "")


@WHEN
@pytest.mark.parametrize("release", [False, True])
async def test_an_end_that_is_none_yet_lands_once(
    pair: tuple[PostgresStore, PostgresStore], when: str, release: bool
) -> None:
    """More was said meanwhile, so that `completed` is `working`."""
    store, other = pair
    await accept(store)
    held = await claim(store)
    await accept(other, name="m2", new=False)
    await say(store, held, W)  # so that it knows of the message
    breaking(store, [when])
    assert await again(store, held, said(held, status("t", C)), release)
    assert len(await events(store)) == 4
    found = await head(store)
    assert (found.state, found.holder == "", found.unread) == (W, release, True)


@WHEN
async def test_a_claim_is_let_go_once(pair: tuple[PostgresStore, PostgresStore], when: str) -> None:
    store, _ = pair
    await accept(store)
    held = await claim(store)
    await say(store, held, I)
    breaking(store, [when])
    if when == "before":
        assert not await again(store, held, [], True)
    else:
        with pytest.raises(Stale):
            await again(store, held, [], True)
    found = await head(store)
    assert (found.holder, found.unread, found.settled) == ("", False, 1)


async def test_what_another_has_said_alike_is_not_ours(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    store, other = pair
    await accept(store)
    held = await claim(store)
    entries = said(held, artifact("t", "a"))
    breaking(store, ["before"])
    with pytest.raises(Unavailable):
        await store.append(held, entries)
    assert await other.revoke(await head(other), None)
    second = await claim(other, "v")
    await other.append(second, said(second, artifact("t", "a")))
    with pytest.raises(Stale):
        await store.append(held, entries)


@WHEN
async def test_a_message_is_accepted_once(
    pair: tuple[PostgresStore, PostgresStore], when: str
) -> None:
    store, other = pair
    breaking(store, [when])
    receipt = Receipt("k", b"d")
    with pytest.raises(Unavailable):
        await accept(store, "t1", receipt=receipt)
    found = await accept(other, "t2", receipt=receipt)
    assert (found.head.id, found.fresh) == (("t1", False) if when == "after" else ("t2", True))


async def test_what_is_illegal_is_written_up_to_there_and_only_once(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    store, _ = pair
    await accept(store)
    held = await claim(store)
    await say(store, held, W)
    wrong = said(held, artifact("t", "a"), status("t", TaskState.SUBMITTED))
    with pytest.raises(IllegalEvent):
        await store.append(held, wrong)
    assert (await head(store)).last == 3


async def test_the_same_send_to_both_at_once(pair: tuple[PostgresStore, PostgresStore]) -> None:
    for number in range(30):
        receipt = Receipt(f"k{number}", b"d")
        found = await asyncio.gather(
            *(
                accept(store, f"{number}.{place}", f"m{number}", receipt=receipt)
                for place, store in enumerate(pair)
            )
        )
        assert len({accepted.head.id for accepted in found}) == 1
        assert sorted(accepted.fresh for accepted in found) == [False, True]


async def test_many_open_a_new_database_at_once() -> None:
    url = database()
    stores = [PostgresStore(url, pool_size=1) for _ in range(8)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        assert len({store.id for store in stores}) == 1
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_busy_agent_gets_what_the_others_leave(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    store, other = pair
    for number in range(10):
        await accept(other, f"t{number}")
    for _ in range(2):  # they take turns at being the first
        assert len(await store.claim(["agent", "idle"], "w", LONG, 4)) == 4


async def test_what_others_accepted_is_found_though_enough_comes_in_here(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    store, other = pair
    await store.claim(["agent"], "w", LONG, 8)  # now it believes that nothing waits
    await accept(other, "theirs")
    until = time.monotonic() + 5
    for number in range(10_000):
        mine = asyncio.create_task(accept(store, f"t{number}"))
        await asyncio.sleep(0)  # now it has begun
        taken = [held.head.id for held in await store.claim(["agent"], "w", LONG, 8)]
        await mine
        if "theirs" in taken:
            break
        assert time.monotonic() < until


async def test_a_lease_is_renewed_without_waiting_for_those_who_write(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    store, other = pair
    await accept(store, "one")
    await accept(store, "two")
    held = await store.claim(["agent"], "w", LONG, 2)
    async with other._pool.connection() as db, db.transaction():
        await db.execute("SELECT 1 FROM task WHERE id = 'one' FOR UPDATE")
        async with asyncio.timeout(5):
            renewal = await store.renew(held, 2 * LONG)
        assert not renewal.lost
    rows = await store._pool.fetch("SELECT id FROM task WHERE lease > $1", time.time() + 1.5 * LONG)
    assert [id for (id,) in rows] == ["two"]


@pytest.mark.parametrize("size", [3, 8])
async def test_a_lease_is_renewed_while_all_other_connections_are_in_use(size: int) -> None:
    store = PostgresStore(database(), pool_size=size)
    await store.open()
    try:
        await accept(store)
        held = await store.claim(["agent"], "w", LONG, 1)
        await store.renew(held, LONG)
        busy = [asyncio.create_task(store._pool.fetch("SELECT pg_sleep(20)")) for _ in range(20)]
        try:
            for _ in range(3):
                await asyncio.sleep(0.1)
                async with asyncio.timeout(3):
                    assert not (await store.renew(held, LONG)).lost
        finally:
            for each in busy:
                each.cancel()
            await asyncio.wait(busy)
    finally:
        await store.close()


async def test_two_replicas_cancel_a_task_under_one_key(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    store, other = pair
    for number in range(5):
        receipt = Receipt(f"key:{number}", b"d")
        await accept(store, f"t{number}")
        found = await asyncio.gather(
            *(cancel(each, f"t{number}", receipt=receipt) for each in (*pair, *pair))
        )
        assert {head.state for head in found} == {TaskState.CANCELED}
        assert len({head.version for head in found}) == 1
        again = await cancel(other, f"t{number}", receipt=receipt)
        assert again.version == found[0].version


@pytest.mark.parametrize("size", [1, 2])
async def test_a_connection_that_was_closed_is_replaced(size: int) -> None:
    """Whoever writes just then is told so; writes go on."""
    url = database()
    store = PostgresStore(url, pool_size=size)
    await store.open()
    db = await asyncpg.connect(url)
    for number in range(4):
        async with asyncio.timeout(5):
            while True:
                try:
                    await accept(store, f"t{number}")
                    break
                except Unavailable:
                    await asyncio.sleep(0.01)
        await db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'dragoman'"
        )
        held = store._writer._hold._db
        while number % 2 and held is not None and held._con is not None:
            await asyncio.sleep(0.005)  # every other time it has been noticed before the next
    await db.close()
    await store.close()


async def test_a_connection_that_may_not_write_is_replaced(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    """As after a failover, when it leads to what is a standby now."""
    store, _ = pair
    await accept(store)
    await store._writer._hold._db.execute("SET default_transaction_read_only = on")
    with pytest.raises(Unavailable):
        await accept(store, "u")
    await accept(store, "v")


async def test_one_that_was_not_used_for_long_is_replaced(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    store, _ = pair
    await accept(store)
    hold = store._writer._hold
    before = hold._db
    await accept(store, "u")
    assert hold._db is before
    hold._used -= 2 * IDLE
    await accept(store, "v")
    assert hold._db is not before


async def test_who_accepts_hears_who_works_on_it(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    """What is claimed in the write that accepts it need not be told to anybody else."""
    store, _ = pair
    await accept(store, "before")
    await claim(store)  # nothing waits
    assert not await store.claim(["agent"], "w", LONG, 8)
    accepting = store.accept(SCOPE, Draft(task="t", received=received("t"), new=True, born=True))
    (held,) = await store.claim(["agent"], "w", LONG, 8)
    accepted = await accepting
    assert (held.head.id, accepted.head.holder) == ("t", "w")
    await store.append(held, said(held, status("t", C)), release=True)
    accepted = await store.accept(
        SCOPE, Draft(task="u", received=received("u"), new=True, born=True)
    )
    assert accepted.head.holder == ""


async def test_who_lost_an_answer_can_ask_what_it_was(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    store, _ = pair
    assert not await store.claim(["agent"], "w", LONG, 8)  # nothing waits
    breaking(store, ["after"])
    accepting = store.accept(SCOPE, Draft(task="t", received=received("t"), new=True, born=True))
    claiming = store.claim(["agent"], "w", LONG, 8)
    with pytest.raises(Unavailable):
        await accepting
    with pytest.raises(Unavailable):
        await claiming
    (held,) = await store.held("w")
    assert (held.id, held.attempt) == ("t", 1)
    assert await store.revoke(held, None) is not None
    assert (await claim(store)).head.id == "t"


async def test_nobody_hears_of_half_a_claim(pair: tuple[PostgresStore, PostgresStore]) -> None:
    """Of several agents, one could not be asked for: whoever asked finds out what it holds."""
    store, other = pair
    for agent in ("one", "two"):
        await accept(other, agent, scope=Scope(agent))
    fetch, asked = store._pool.fetch, []

    async def broken(sql: str, *values: Any) -> Any:
        found = await fetch(sql, *values)
        asked.append(values)
        if len(asked) == 2:
            raise Unavailable("The store is not available")
        return found

    store._pool.fetch = broken  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await store.claim(["one", "two"], "w", LONG, 8)
    assert {held.id for held in await store.held("w")} == {"one", "two"}


async def test_who_is_canceled_waits_for_nobody() -> None:
    """A statement that hangs does not keep its connection, nor whoever gave it up."""
    url = database()
    store = PostgresStore(url, pool_size=1)
    await store.open()
    hanging = asyncio.create_task(store._pool.fetch("SELECT pg_sleep(30)"))
    await asyncio.sleep(0.1)
    began = time.monotonic()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert await store._pool.fetch("SELECT 1")
    hanging = asyncio.create_task(store._pool.fetch("SELECT pg_sleep(30)"))
    await asyncio.sleep(0.1)
    await store.close()
    assert time.monotonic() - began < 8
    await asyncio.wait([hanging])


# ---- two stores, whatever comes ------------------------------------------------------------


class Play:
    """Clients, workers, maintenance and deliveries of two stores, in random order from a seed."""

    def __init__(self, stores: Sequence[PostgresStore], seed: int) -> None:
        self.stores = stores
        self.chance = random.Random(seed)
        self.over = False
        self.sent: dict[str, str] = {}
        """The task of each message that was accepted."""
        self.places: dict[str, list[tuple[int, int]]] = {}
        """How far the webhook of each task has come, by the ticket that it had."""
        self.deeds: Counter[str] = Counter()

    @property
    def store(self) -> PostgresStore:
        return self.chance.choice(self.stores)

    async def run(self, tasks: int) -> None:
        """Begin so many tasks; until all have come to an end."""
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for place, store in enumerate(self.stores):
                group.create_task(self.each(lambda s=store, n=place: self.work(s, f"w{n}")))
                group.create_task(self.each(lambda s=store: self.keep(s)))
                group.create_task(self.each(lambda s=store: self.deliver(s)))
            left = iter(range(tasks))
            clients = [group.create_task(self.client(left)) for _ in range(6)]
            await asyncio.wait(clients)
            while await self.open():
                await asyncio.sleep(0.02)
            self.over = True

    async def each(self, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self.over:
            await do()
            await asyncio.sleep(self.chance.uniform(0, 0.02))

    async def open(self) -> int:
        """How many tasks, and lines, are not at their end; those that ask are answered."""
        asking = await self.store._pool.fetch(
            "SELECT id, last FROM task WHERE state = $1 AND inbox = ''", I.number
        )
        for id, last in asking:
            await self.accept(id, f"{id}.{last}.end", new=False)
        ((count,),) = await self.store._pool.fetch(
            "SELECT (SELECT count(*) FROM task WHERE ended IS NULL) + "
            "(SELECT count(*) FROM line WHERE behind)"
        )
        return int(count)

    async def accept(self, task: str, name: str, *, new: bool, hooked: bool = False) -> None:
        receipt = Receipt(name, b"d")
        webhook = hook(task=task) if hooked else None
        copies = self.chance.choice((1, 1, 2))
        stores = self.chance.choices(self.stores, k=copies)
        found = await asyncio.gather(
            *(
                accept(
                    store,
                    f"{task}{'x' * n}" if new else task,
                    name,
                    new=new,
                    receipt=receipt,
                    webhook=webhook and hook(task=f"{task}{'x' * n}" if new else task),
                )
                for n, store in enumerate(stores)
            ),
            return_exceptions=True,
        )
        for accepted in found:
            if isinstance(accepted, BaseException):
                assert isinstance(accepted, A2AError) and not isinstance(accepted, Unavailable), (
                    accepted
                )
                self.deeds["refused"] += 1
            else:
                assert self.sent.setdefault(name, accepted.head.id) == accepted.head.id

    async def client(self, left: Any) -> None:
        chance = self.chance
        for number in left:
            name = f"m{number}"
            await self.accept(f"t{number}", name, new=True, hooked=chance.random() < 0.5)
            task = self.sent[name]
            for more in range(chance.choice((0, 0, 1, 2))):
                await asyncio.sleep(chance.uniform(0, 0.03))
                await self.accept(task, f"{name}.{more}", new=False)
            try:
                if chance.random() < 0.2:
                    await cancel(self.store, task, grace=chance.choice((0.01, 0.05)))
                    self.deeds["canceled"] += 1
                if chance.random() < 0.3:
                    await self.store.put_webhook(SCOPE, hook("late", task))
            except A2AError as error:
                assert not isinstance(error, Unavailable)

    async def work(self, store: PostgresStore, worker: str) -> None:
        lease = self.chance.choice((0.05, LONG))
        claims = await store.claim(["agent"], worker, lease, 4)
        await asyncio.gather(*(self.turn(store, held) for held in claims))

    async def turn(self, store: PostgresStore, held: Claim) -> None:
        chance, id = self.chance, held.head.id
        try:
            for index in range(chance.randint(0, 3)):
                text = f"{held.turn}/{held.epoch}/{index}"
                await store.append(held, said(held, artifact(id, text, append=index > 0)))
                await asyncio.sleep(chance.choice((0, 0, 0.01, 0.08)))
                if chance.random() < 0.3 and id in (await store.renew([held], 0.05)).lost:
                    self.deeds["lost"] += 1
            state = chance.choice((I, C, C, TaskState.FAILED))
            await store.append(held, said(held, status(id, state)), release=True)
        except Stale:
            self.deeds["stale"] += 1

    async def keep(self, store: PostgresStore) -> None:
        found = await store.expired(["agent"], 8)
        results = await asyncio.gather(
            *(
                store.revoke(
                    head,
                    head.ending(TaskState.CANCELED) if head.canceling else None,
                    expired=True,
                )
                for head in found
            )
        )
        self.deeds["revoked"] += sum(head is not None for head in results)

    async def deliver(self, store: PostgresStore) -> None:
        for line in await store.dispatch(["agent"], 4, 0.2):
            name = f"{line.task}/{line.webhook.config.id}"
            entries = await store.read(SCOPE, line.task, line.cursor, 3)
            assert entries is not None
            cursor = entries[-1].number if entries else line.cursor
            if self.chance.random() < 0.1:
                await store.dispatched(line, line.cursor, failed="no", wait=0.01)
            elif await store.dispatched(line, cursor):
                self.places.setdefault(name, []).append((line.ticket, cursor))


@pytest.mark.parametrize("seed", range(4))
async def test_two_stores_agree_whatever_comes(
    pair: tuple[PostgresStore, PostgresStore], seed: int
) -> None:
    play = Play(pair, seed)
    await play.run(60)
    url = pair[0]._pool.url
    found = await history.logs(url)
    breaches = [*checker.check([], found, []), *await history.rest(url)]
    assert not breaches, breaches[:9]
    homes = [
        (body["message"]["messageId"], task)
        for task, log in found.items()
        for kind, body in zip(log.kinds, log.bodies, strict=True)
        if kind == checker.RECEIVED
    ]
    assert sorted(homes) == sorted(play.sent.items())
    for name, places in play.places.items():
        cursors = [cursor for _, cursor in sorted(places)]
        assert cursors == sorted(cursors), (name, places)
        assert cursors[-1] == found[name.split("/")[0]].last
    assert not [entry for store in pair for entry in store._transaction._touched]
    assert play.deeds["stale"] and play.deeds["revoked"] and play.deeds["canceled"], play.deeds


# ---- values of contexts -----------------------------------------------------------------------


async def test_a_value_goes_with_its_last_task_whoever_forgets_that(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    """Two processes forget one of the last two tasks each, at the same time."""
    store, _ = pair
    for name in "ab":
        await accept(store, name)
    held = await claim(store)
    await store.save_context(held, b"1", 0, "a:1")
    one, other = [await asyncpg.connect(store._pool.url) for _ in range(2)]
    keys = dict(await one.fetch("SELECT id, key FROM task"))

    async def forget(db: Any, task: str) -> None:
        shard = keys[task] % prune.SHARDS  # or they wait for the count
        await prune.forget_values(db, await db.fetch(prune.THESE, [keys[task]], shard))

    async def second() -> None:
        async with other.transaction():
            await forget(other, "b")

    async with one.transaction():
        await forget(one, "a")
        running = asyncio.create_task(second())
        waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
        async with asyncio.timeout(5):
            while not await one.fetchval(waits, other.get_server_pid()):
                await one.execute("SELECT pg_stat_clear_snapshot()")
                await asyncio.sleep(0.01)
        assert await one.fetchval("SELECT count(*) FROM context_value") == 1
    await running
    assert await one.fetchval("SELECT count(*) FROM context_value") == 0
    await asyncio.gather(one.close(), other.close())


async def test_a_save_waits_for_whoever_ends_the_claim(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    """The epoch is checked in the statement that saves, not before it."""
    store, other = pair
    await accept(store)
    held = await claim(store)
    db = await asyncpg.connect(store._pool.url)
    async with db.transaction():
        await db.execute("UPDATE task SET epoch = epoch + 1, holder = '', lease = 0")
        saving = asyncio.create_task(other.save_context(held, b"1", 0, "t:1"))
        await asyncio.wait([saving], timeout=0.1)
        assert not saving.done()
    with pytest.raises(Stale):
        await saving
    assert await store.context_value(held) is None
    await db.close()


async def test_two_stores_share_the_values(pair: tuple[PostgresStore, PostgresStore]) -> None:
    store, other = pair
    for name in "ab":
        await accept(store, name)
    first, second = [await claim(store), await claim(other)]
    version = await store.save_context(first, b"1", 0, "a:1")
    assert await other.context_value(second) == ContextValue(b"1", version)
    saves = [
        store.save_context(first, b"2", version, "a:1"),
        other.save_context(second, b"3", version, "b:1"),
    ]
    found = await asyncio.gather(*saves, return_exceptions=True)
    # whichever comes second
    assert sum(isinstance(one, ContextChanged) for one in found) == 1, found
