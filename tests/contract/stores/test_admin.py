"""What every store shows to operators: the table of tasks, logs, webhooks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from dragoman.admin import (
    AdminThread,
    Choice,
    Counts,
    Missing,
    Private,
    TaskRow,
    open_store,
    search,
    task_at,
)
from dragoman.model.caller import Scope
from dragoman.model.errors import Unavailable
from dragoman.model.types import (
    Message,
    Part,
    Role,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.store import TIME, Pause, Store
from tests.harness.stores import (
    AT,
    LONG,
    SCOPE,
    C,
    I,
    Make,
    W,
    accept,
    artifact,
    cancel,
    claim,
    database,
    ended,
    followed,
    hook,
    one,
    park,
    said,
    say,
    stamp,
    status,
    waiting,
    write,
)


@pytest.fixture
async def admin(store: Store) -> AsyncIterator[AdminThread]:
    """The admin interface of the store, which may write."""

    def make():  # type: ignore[no-untyped-def]
        assert store.admin is not None
        return store.admin(write=True)

    async with AdminThread(make) as thread:
        yield thread


async def ids(admin: AdminThread, **choice: object) -> list[str]:
    """The ids of a page."""
    page = await admin.call(lambda store: store.tasks(Choice(**choice)))  # type: ignore[arg-type]
    return [row.id for row in page.rows]


async def row(admin: AdminThread, task: str = "t") -> TaskRow:
    """The row of a task."""
    return await admin.call(lambda store: store.row(task))


def saying(task: str, text: str, state: TaskState = W, at: str = AT) -> TaskStatusUpdateEvent:
    """A status with a text."""
    message = Message(message_id="s", role=Role.AGENT, parts=(Part(text=text),))
    return TaskStatusUpdateEvent(
        task_id=task, context_id="c", status=TaskStatus(state=state, message=message, timestamp=at)
    )


async def several(store: Store) -> None:
    """Tasks of several agents, tenants, owners, contexts, skills and states."""
    await ended(store, "a1", at=stamp(1))
    await accept(store, "a2", at=stamp(2), context="other", skill="book")
    await accept(store, "b1", at=stamp(3), scope=Scope("agent", "tenant", "other"))
    await accept(store, "b2", at=stamp(4), scope=Scope("agent", "", ""))
    await accept(store, "c1", at=stamp(5), scope=Scope("second", "tenant", "owner"))
    await accept(store, "unborn", at=stamp(6), born=False)


FILTERS: list[tuple[dict[str, object], list[str]]] = [
    ({}, ["c1", "b2", "b1", "a2", "a1"]),
    ({"agent": "second"}, ["c1"]),
    ({"tenant": "tenant"}, ["c1", "b1", "a2", "a1"]),
    ({"tenant": ""}, ["b2"]),
    ({"owner": "owner"}, ["c1", "a2", "a1"]),
    ({"owner": ""}, ["b2"]),
    ({"context": "other"}, ["a2"]),
    ({"context": "c", "owner": "owner"}, ["c1", "a1"]),
    ({"context": "nowhere"}, []),
    ({"states": (C,)}, ["a1"]),
    ({"states": (C, TaskState.SUBMITTED)}, ["c1", "b2", "b1", "a2", "a1"]),
    ({"states": (W,)}, []),
    ({"skill": "book"}, ["a2"]),
    ({"skill": "", "agent": "agent"}, ["b2", "b1", "a1"]),
    ({"id": "a"}, ["a2", "a1"]),
    ({"id": "a", "states": (C,), "tenant": "tenant"}, ["a1"]),
    ({"id": "a", "context": "other"}, ["a2"]),
    ({"id": "a2x"}, []),
    ({"since": stamp(3)}, ["c1", "b2", "b1"]),
    ({"until": stamp(3)}, ["a2", "a1"]),
    ({"since": stamp(2), "until": stamp(5), "agent": "agent"}, ["b2", "b1", "a2"]),
    ({"agent": "nobody"}, []),
]


@pytest.mark.parametrize("prepared", [False, True])
async def test_the_table_has_filters(
    store: Store, admin: AdminThread, prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await several(store)
    if prepared:
        await admin.call(lambda store: store.prepare())
    for few in (0, 1000):  # by the index of all tasks, and scope by scope
        for module in ("sqlite", "postgres"):
            monkeypatch.setattr(f"dragoman.stores.{module}.listing.FEW", few)
            monkeypatch.setattr(f"dragoman.stores.{module}.listing.NAMED", few)
        for choice, expected in FILTERS:
            assert await ids(admin, **choice) == expected, choice
            counts = await admin.call(
                lambda store, choice=choice: store.counts(Choice(**choice))  # type: ignore[misc]
            )
            assert sum(counts.states.values()) == len(expected), choice
            assert counts.complete
    await admin.call(lambda store: store.unprepare())
    assert await ids(admin) == FILTERS[0][1]


@pytest.mark.parametrize("prepared", [False, True])
async def test_pages_follow_each_other(
    store: Store, admin: AdminThread, prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(11):  # two of one time are ordered by their ids
        await accept(store, f"t{number:02}", at=stamp(number // 2), scope=Scope("agent", "", "x"))
    if prepared:
        await admin.call(lambda store: store.prepare())
        monkeypatch.setattr("dragoman.stores.sqlite.listing.FEW", 0)
        monkeypatch.setattr("dragoman.stores.postgres.listing.FEW", 0)
    found, cursor, pages = [], None, 0
    while True:
        choice = Choice(limit=4, cursor=cursor)
        page = await admin.call(lambda store, choice=choice: store.tasks(choice))  # type: ignore[misc]
        found += [row.id for row in page.rows]
        cursor, pages = page.cursor, pages + 1
        if cursor is None:
            break
    assert (found, pages) == ([f"t{number:02}" for number in range(10, -1, -1)], 3)


async def test_counts_say_when_they_stopped(store: Store, admin: AdminThread) -> None:
    await ended(store, "z")
    for number in range(5):
        await accept(store, f"t{number}")
    found = await admin.call(lambda store: store.counts(Choice()))
    assert found == Counts({TaskState.SUBMITTED: 5, C: 1}, True)
    few = await admin.call(lambda store: store.counts(Choice(context="c"), most=3))
    if not few.complete:  # a store in memory counts them all
        assert max(few.states.values()) == 3


async def test_a_row_says_who_holds_a_task(store: Store, admin: AdminThread) -> None:
    await accept(store, skill="book")
    new = await row(admin)
    assert (new.state, new.holder, new.attempt, new.unread) == (TaskState.SUBMITTED, "", 0, 1)
    assert (new.created, new.changed, new.skill, new.last) == (AT, AT, "book", 1)
    assert (new.realm, new.identity, new.tenant, new.agent) == ("", "owner", "tenant", "agent")
    held = await claim(store, "worker:1")
    await store.append(held, said(held, saying("t", "Looking for seats")))
    busy = await row(admin)
    assert (busy.state, busy.holder, busy.attempt) == (W, "worker:1", 1)
    assert busy.text == "Looking for seats"
    assert 0 < busy.lease - time.time() <= LONG
    assert busy.version > new.version and busy.size > new.size >= 0
    await cancel(store)
    assert (await row(admin)).canceling


async def test_a_row_has_the_last_text_of_a_status(store: Store, admin: AdminThread) -> None:
    await accept(store)
    held = await claim(store)
    await write(store, held, saying("t", "first"), saying("t", "x" * 500))
    await write(store, held, artifact("t", "chunk"), status("t", C), release=True)
    assert (await row(admin)).text == "x" * 200
    assert (await admin.call(lambda store: store.tasks(Choice()))).rows[0] == await row(admin)


async def test_a_row_says_what_a_task_waits_for(store: Store, admin: AdminThread) -> None:
    await accept(store)
    held = await claim(store)
    entries = said(held, status("t", W), Private(kind="sleep"))
    pause = Pause(waits=TIME, began=1, seconds=3600, timeout=7200)
    await store.append(held, entries, release=True, pause=pause)
    found = await row(admin)
    assert (found.waits, found.holder, found.private) == ("time", "", 1)
    assert found.due and found.deadline > found.due
    await ended(store, "done")
    over = await row(admin, "done")
    assert over.over and over.waits == ""


async def test_a_task_and_its_log(store: Store, admin: AdminThread) -> None:
    await accept(store)
    held = await claim(store)
    await write(store, held, saying("t", "one"), artifact("t", "a"), Private(kind="step"))
    await write(store, held, artifact("t", "b", append=True), saying("t", "two", C), release=True)
    found, task = await admin.call(lambda store: store.load("t"))
    assert found == await row(admin) and task.artifacts[0].parts[0].text == "ab"
    entries = await admin.call(lambda store: list(store.read("t")))
    assert [entry.number for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert isinstance(entries[3].event, Private) and entries[3].event.kind == "step"
    assert task_at(entries) == task
    then = task_at(entries, 4)
    assert then.artifacts[0].parts[0].text == "a" and then.status.state is W
    assert task_at(entries[4:], 5, then).artifacts[0].parts[0].text == "ab"
    assert [entry.number for entry in await admin.call(lambda store: list(store.read("t", 5)))] == [
        6
    ]
    followed = await admin.call(lambda store: list(store.follow("t", 4, 0.01)))
    assert [entry.number for entry in followed] == [5, 6]
    assert await admin.call(lambda store: store.sums()) == (1, 6)


async def test_what_is_missing(store: Store, admin: AdminThread) -> None:
    for ask in (
        lambda store: store.row("gone"),
        lambda store: store.load("gone\0"),
        lambda store: list(store.read("gone")),
        lambda store: list(store.follow("gone", 0, 0.01)),
        lambda store: store.webhooks("gone"),
        lambda store: store.context_value("gone"),
        lambda store: store.redrive("gone"),
    ):
        with pytest.raises(Missing):
            await admin.call(ask)


async def test_webhooks_are_shown_without_secrets(store: Store, admin: AdminThread) -> None:
    url = "https://me:pass@x.example:444/secret?token=1"
    await accept(store, webhook=hook(url=url, token="s3cret"))
    await say(store, await claim(store), W)
    (found,) = await admin.call(lambda store: store.webhooks("t"))
    assert (found.task, found.id, found.owner, found.url) == (
        "t",
        "h",
        "owner",
        "https://x.example:444/…",
    )
    assert (found.cursor, found.last, found.behind, found.parked) == (1, 2, True, False)
    assert "s3cret" not in repr(found) and "pass" not in repr(found)
    line = await one(store)
    await park(store, line)
    assert [line.parked for line in await admin.call(lambda store: store.undelivered(9))] == [True]
    assert await admin.call(lambda store: store.redrive("t", "h")) == 1
    assert await admin.call(lambda store: list(store.undelivered(9, parked=True))) == []
    assert len(await admin.call(lambda store: store.undelivered(9))) == 1
    assert await one(store)


async def test_parked_webhooks_come_first(store: Store, admin: AdminThread) -> None:
    await followed(store, "a")
    await followed(store, "b")
    lines = {line.task: line for line in await store.dispatch(["agent"], 9, LONG)}
    await park(store, lines["b"])
    found = await admin.call(lambda store: store.undelivered(9))
    assert [line.task for line in found] == ["b", "a"]


async def test_text_is_found(store: Store, admin: AdminThread) -> None:
    for number in range(6):
        await accept(store, f"t{number}", at=stamp(number), context=f"c{number % 2}")
    for _ in range(6):
        held = await claim(store)
        task = held.head.id
        await write(store, held, artifact(task, f"A Needle in {task[:1]}"))
        await write(
            store,
            held,
            artifact(task, f"{task[1:]}!", append=True),
            status(task, C, held.received.at),
            release=True,
        )
    found = await admin.call(lambda store: search(store, Choice(), "needle in T3"))
    assert [(hit.row.id, hit.number, hit.text) for hit in found.hits] == [
        ("t3", 2, "A Needle in t3!")
    ]
    assert (found.looked, found.until, found.cursor) == (6, stamp(0), None)
    found = await admin.call(lambda store: search(store, Choice(context="c1", limit=2), "needle"))
    assert [hit.row.id for hit in found.hits] == ["t5", "t3"]
    assert (found.looked, found.until) == (2, stamp(3)) and found.cursor
    rest = Choice(context="c1", cursor=found.cursor)
    found = await admin.call(lambda store: search(store, rest, "needle"))
    assert [hit.row.id for hit in found.hits] == ["t1"]
    found = await admin.call(lambda store: search(store, Choice(), "t0", looked=4))
    assert (found.hits, found.looked, found.until) == ([], 4, stamp(2)) and found.cursor
    found = await admin.call(lambda store: search(store, Choice(agent="nobody"), "x"))
    assert (found.looked, found.until, found.cursor) == (0, "", None)


async def test_an_interface_for_reading_writes_nothing(store: Store) -> None:
    await followed(store)
    await park(store, await one(store))

    def redrive() -> int:
        assert store.admin is not None
        with store.admin() as admin:
            return admin.redrive()

    with pytest.raises(Unavailable):
        await asyncio.to_thread(redrive)
    assert len(await store.undelivered(9, parked=True)) == 1


async def test_a_store_is_opened_by_its_url(store: Store) -> None:
    await waiting(store, "t")

    def read() -> list[str]:
        with open_store(store.url) as admin:
            return [row.id for row in admin.tasks(Choice(states=(I,))).rows]

    if store.url == "memory:":
        with pytest.raises(Missing, match="only in its process"):
            await asyncio.to_thread(read)
    else:
        assert await asyncio.to_thread(read) == ["t"]


def test_a_wrong_url(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no backend"):
        open_store("nonsense:x")
    with pytest.raises(Missing, match="does not exist"), open_store(f"sqlite:///{tmp_path}/x.db"):
        pass


async def test_many_read_while_it_is_written(make: Make) -> None:
    store = await make()

    def make_admin():  # type: ignore[no-untyped-def]
        assert store.admin is not None
        return store.admin()

    async def write() -> None:
        for number in range(50):
            await accept(store, f"t{number}", scope=SCOPE)
            await asyncio.sleep(0)

    async with AdminThread(make_admin) as admin:
        reading = admin.call(lambda admin: [len(admin.tasks(Choice()).rows) for _ in range(100)])
        lengths, _ = await asyncio.gather(reading, write())
        assert lengths == sorted(lengths)
        assert len(await ids(admin)) == 50


async def test_several_prepare_at_once(store: Store) -> None:
    for number in range(3):
        await accept(store, f"t{number}")

    def make():  # type: ignore[no-untyped-def]
        assert store.admin is not None
        return store.admin(write=True)

    async with AdminThread(make) as one, AdminThread(make) as two, AdminThread(make) as three:
        everyone = (one, two, three)
        await asyncio.gather(*(each.call(lambda admin: admin.prepare()) for each in everyone))
        assert await ids(one) == ["t2", "t1", "t0"]
        await accept(store, "t3")
        assert len(await ids(two)) == 4


async def test_a_lost_connection_is_opened_again() -> None:
    url = database()
    store = PostgresStore(url)
    await store.open()
    try:
        await accept(store, "t")
        async with AdminThread(lambda: open_store(url)) as admin:
            assert await ids(admin) == ["t"]
            db = await asyncpg.connect(url)
            await db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'dragoman db'"
            )
            await db.close()
            with pytest.raises(Unavailable):
                while True:
                    await ids(admin)
            assert await ids(admin) == ["t"]
    finally:
        await store.close()
