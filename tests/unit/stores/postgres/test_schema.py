"""The tables in PostgreSQL: who makes them, who sees them, and counts in many parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from dragoman.model.caller import Scope
from dragoman.model.errors import Unavailable
from dragoman.model.events import Entry
from dragoman.model.types import TaskState
from dragoman.server.settings import Settings
from dragoman.stores import connect
from dragoman.stores.postgres import PostgresStore, prune, schema
from dragoman.stores.postgres.admin import PostgresAdmin
from dragoman.stores.store import MessagePlace
from tests.harness.stores import C, accept, database, followed, hook, status

pytestmark = pytest.mark.slow  # it needs PostgreSQL


async def ask(url: str, *statements: str) -> list[Any]:
    """What the last of some statements finds."""
    db = await asyncpg.connect(url)
    try:
        for sql in statements[:-1]:
            await db.execute(sql)
        return [tuple(row) for row in await db.fetch(statements[-1])]
    finally:
        await db.close()


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """New tables, not yet made."""
    yield database()


async def another(url: str, *grants: str) -> str:
    """The same tables as another role sees them."""
    name = f"r_{urlsplit(url).query.partition('=')[2]}"
    scheme = urlsplit(url).query.partition("=")[2]
    await ask(
        url, f"CREATE ROLE {name} LOGIN", f"GRANT USAGE ON SCHEMA {scheme} TO {name}", "SELECT"
    )
    for grant in grants:
        await ask(url, f"{grant} IN SCHEMA {scheme} TO {name}", "SELECT")
    return url.replace("postgres@", f"{name}@")


# ---- migrate -------------------------------------------------------------------------------


async def test_many_migrate_at_once(url: str) -> None:
    async def one() -> int:
        db = await asyncpg.connect(url)
        try:
            return await schema.migrate(db)
        finally:
            await db.close()

    found = await asyncio.gather(*(one() for _ in range(12)))
    assert found.count(0) >= 1 and set(found) <= {0, schema.VERSION}
    assert await ask(url, "SELECT version FROM about") == [(schema.VERSION,)]


async def test_older_tables(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PostgresStore(url, migrate=False)
    with pytest.raises(Unavailable, match="migrate is off; run `dragoman db migrate`"):
        await store.open()
    first = PostgresStore(url)
    await first.open()
    await accept(first)
    await first.close()
    await store.open()
    await store.close()

    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE more (x int)"))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    now = schema.VERSION
    with pytest.raises(
        Unavailable, match=f"schema of the database is {now - 1}, not {now}, and migrate is off"
    ):
        await store.open()
    await first.open()  # which brings them up to date
    assert await ask(url, "SELECT count(*) FROM more") == [(0,)]
    await first.close()
    await store.open()
    assert await store.head(Scope("agent", "tenant", "owner"), "t")
    await store.close()
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="newer dragoman"):
        await first.open()


async def test_messages_of_older_tables_are_in_their_conversations(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    scope = Scope("agent", "tenant", "owner")
    await accept(store, "t", scope=scope)
    await accept(store, "t", scope=scope, new=False)
    await accept(store, "broken", scope=scope)
    context, last = "c", MessagePlace("t", 9, "9999")
    await secured(url, True)
    await ask(
        url,
        "UPDATE entry SET body = 'x' WHERE task = (SELECT key FROM task WHERE id = 'broken')",
        "DROP TABLE message, context_value, reservation, replay_value",
        "CREATE INDEX task_replied ON task (ended) WHERE replied",
        f"UPDATE about SET version = {schema.MIGRATIONS.index(schema._MESSAGES)}",
        "SELECT",
    )
    db = await asyncpg.connect(url)
    await schema.migrate(db)
    for table in schema.ADDED:
        secure = f"SELECT relrowsecurity FROM pg_class WHERE oid = '{table}'::regclass"
        assert await db.fetchval(secure), table
    await db.close()
    found = await store.messages(scope, context, last, 9)
    assert [(place.task, place.number) for place in found] == [("t", 2), ("t", 1)]
    await store.close()


async def test_lines_of_older_tables_get_the_lanes_of_their_owners(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    for name in ("a", "b"):
        await followed(store, name, scope=Scope("agent", "", name))
    await ask(url, "DROP INDEX line_lane", "ALTER TABLE line DROP COLUMN lane")
    await ask(url, *filter(str.strip, schema._LANES.split(";")))
    (line,) = await store.dispatch(["agent"], 9, 30.0, {("", "a")})
    assert line.task == "b"
    # a process of the version before, which does not know the column
    await ask(url, "UPDATE line SET lane = DEFAULT")
    assert len(await store.dispatch(["agent"], 9, 30.0)) == 1
    await store.close()


def test_the_setting() -> None:
    for chosen in (True, False):
        store = connect(Settings(store=f"postgresql://x/y?migrate={str(chosen).lower()}"))
        assert isinstance(store, PostgresStore) and store.migrate is chosen


async def test_a_role_that_may_not_create(url: str) -> None:
    role = await another(url)
    with pytest.raises(Unavailable, match=r"permission denied.*dragoman db migrate"):
        await PostgresStore(role).open()
    owner = PostgresStore(url)
    await owner.open()
    await owner.close()
    name = urlsplit(role).username
    place = urlsplit(url).query.partition("=")[2]
    for what in ("SELECT, INSERT, UPDATE, DELETE ON ALL TABLES", "USAGE ON ALL SEQUENCES"):
        await ask(url, f"GRANT {what} IN SCHEMA {place} TO {name}", "SELECT")
    store = PostgresStore(role, migrate=False)
    await store.open()
    await accept(store)
    (claim,) = await store.claim(["agent"], "w", 60, 1)
    await store.append(claim, [Entry(0, status("t", C), 1)], release=True)
    await store.close()


async def test_tables_of_another_application(url: str) -> None:
    await ask(url, "CREATE TABLE about (words text)", "SELECT")
    with pytest.raises(Unavailable, match=r"another application.*search_path"):
        await PostgresStore(url).open()
    await ask(url, "DROP TABLE about", "CREATE TABLE task (words text)", "SELECT")
    with pytest.raises(Unavailable, match=r"another application.*search_path"):
        await PostgresStore(url).open()


# ---- row security --------------------------------------------------------------------------

TABLES = (
    *("task", "entry", "snapshot", "receipt", "line", "tally", "message", "context_value"),
    "replay_value",
)


async def tenants(url: str) -> PostgresStore:
    """A store with one task of each of three tenants."""
    store = PostgresStore(url)
    await store.open()
    for name in ("blue", "green", ""):
        task = f"task-{name}"
        await accept(store, task, scope=Scope("agent", name, "owner"), webhook=hook(task=task))
    await ask(url, "INSERT INTO snapshot SELECT key, 1, '{}' FROM task", "SELECT")
    await ask(
        url,
        "INSERT INTO receipt SELECT agent, tenant, owner, id::bytea, '', key, 1 FROM task",
        "INSERT INTO context_value SELECT agent, tenant, owner, id::bytea, 1, '', '' FROM task",
        "INSERT INTO reservation SELECT 'space', id, '', NULL FROM task",
        "INSERT INTO replay_value SELECT key, 1, '' FROM task",
        "SELECT",
    )
    return store


async def secured(url: str, on: bool) -> None:
    """Turn row security on or off."""
    db = await asyncpg.connect(url)
    await schema.secure(db, on)
    await db.close()


async def test_another_role_sees_one_tenant(url: str) -> None:
    store = await tenants(url)
    role = await another(url, "GRANT SELECT ON ALL TABLES")
    for name in (*TABLES, "reservation"):
        assert await ask(role, f"SELECT count(*) FROM {name}") == [(3,)]
    await secured(url, True)
    await secured(url, True)  # again changes nothing
    for name in TABLES:
        count = f"SELECT count(*) FROM {name}"
        assert await ask(role, count) == [(0,)], name
        for tenant, number in (("blue", 1), ("green", 1), ("red", 0), ("", 0)):
            assert await ask(role, f"SET dragoman.tenant = '{tenant}'", count) == [(number,)], name
        # what was set for a transaction leaves nothing behind
        left = ("BEGIN", "SET LOCAL dragoman.tenant = 'blue'", "COMMIT")
        assert await ask(role, *left, count) == [(0,)], name
    count = "SELECT count(*) FROM reservation"  # they belong to no tenant
    for tenant in ("blue", ""):
        assert await ask(role, f"SET dragoman.tenant = '{tenant}'", count) == [(0,)]
    found = await ask(role, "SET dragoman.tenant = 'blue'", "SELECT id FROM task")
    assert found == [("task-blue",)]
    # and writes nothing, whatever it was granted
    place = urlsplit(url).query.partition("=")[2]
    await ask(
        url, f"GRANT ALL ON ALL TABLES IN SCHEMA {place} TO {urlsplit(role).username}", "SELECT"
    )
    for sql in ("DELETE FROM task RETURNING 1", "UPDATE task SET version = 9 RETURNING 1"):
        assert await ask(role, "SET dragoman.tenant = 'blue'", sql) == []

    # whoever owns the tables goes on as before
    for name in ("blue", "green"):
        assert await store.head(Scope("agent", name, "owner"), f"task-{name}")
    assert len(await store.claim(["agent"], "w", 60, 9)) == 3
    await store.close()
    with pytest.raises(Unavailable, match="row security hides tasks from this role"):
        await PostgresStore(role, migrate=False).open()
    await secured(url, False)
    assert await ask(role, "SELECT count(*) FROM task") == [(3,)]


async def test_a_role_can_be_bound_to_a_tenant(url: str) -> None:
    store = await tenants(url)
    await store.close()
    role = await another(url, "GRANT SELECT ON ALL TABLES")
    await secured(url, True)
    for name in ("task", "receipt", "tally", "context_value"):  # the others go by their task
        await ask(
            url,
            f"CREATE POLICY bound ON {name} AS RESTRICTIVE FOR SELECT "
            f"TO {urlsplit(role).username} USING (tenant = 'blue')",
            "SELECT",
        )
    for name in TABLES:
        for tenant, number in (("blue", 1), ("green", 0)):
            count = f"SELECT count(*) FROM {name}"
            assert await ask(role, f"SET dragoman.tenant = '{tenant}'", count) == [(number,)], name


# ---- counts --------------------------------------------------------------------------------


async def problems(url: str) -> list[str]:
    """What `dragoman db check` finds."""

    def found() -> list[str]:
        with PostgresAdmin(url) as admin:
            return list(admin.check(lambda *_: None))

    return await asyncio.to_thread(found)


async def shards(url: str) -> int:
    """In how many parts the counts are."""
    ((found,),) = await ask(url, "SELECT count(*) FROM tally")
    return int(found)


async def scattered(url: str, number: int) -> None:
    """Counts as many processes that are gone have left them."""
    await ask(
        url,
        "INSERT INTO tally SELECT agent, tenant, owner, state, s, CASE WHEN s % 2 = 0 THEN 1 "
        f"ELSE -1 END FROM tally, generate_series(2000, {1999 + number}) AS s",
        "SELECT",
    )


async def test_counts_are_added_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PostgresStore(url)
    await store.open()
    for n in range(20):
        await accept(store, f"t{n}", scope=Scope("agent", "", f"o{n}"))
    await scattered(url, prune.FEW)
    before = await shards(url)
    await store.prune()
    assert await shards(url) == 20 < before
    assert await store.tally(Scope("agent", "", "o7")) == {TaskState.SUBMITTED: 1}

    await scattered(url, prune.FEW)
    await store.prune()
    assert await shards(url) > 100  # not yet again
    monkeypatch.setattr(prune, "PAGE", 50)
    db = await asyncpg.connect(url)
    place: prune.CountKey | None = prune.START
    pages = 0
    while place is not None:
        place = await prune.merge(db, place)
        pages += 1
    await db.close()
    assert pages > 3
    assert await shards(url) == 20
    assert await problems(url) == []

    # counts of nothing go away
    await ask(
        url,
        "UPDATE tally SET number = 0 WHERE owner = 'o7'",
        "DELETE FROM task WHERE owner = 'o7'",
        "SELECT",
    )
    monkeypatch.setattr("dragoman.stores.postgres.SWEEP", -1)
    await store.prune()
    assert await shards(url) == 19
    await store.close()


async def test_adding_up_under_writers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "FEW", 0)  # also the parts that are in use
    stores = [PostgresStore(url) for _ in range(3)]
    for store in stores:
        await store.open()
    scopes = [Scope("agent", "", f"o{n}") for n in range(4)]
    ended = asyncio.Event()
    merges = 0

    async def write(store: PostgresStore, name: str) -> None:
        for n in range(120):
            await accept(store, f"{name}-{n}", scope=scopes[n % 4])
            if n % 4 == 0:
                for claim in await store.claim(["agent"], name, 60, 4):
                    await store.append(claim, [Entry(0, status(claim.head.id, C), 1)], release=True)

    async def merge() -> None:
        nonlocal merges
        db = await asyncpg.connect(url)
        while not ended.is_set():
            await prune.merge(db)
            ((total,),) = await db.fetch("SELECT coalesce(sum(number), 0) FROM tally")
            ((real,),) = await db.fetch("SELECT count(*) FROM task")
            assert total <= real  # it was asked first, and no count is lost or doubled meanwhile
            merges += 1
        await db.close()

    merging = [asyncio.create_task(merge()) for _ in range(2)]
    await asyncio.gather(*(write(store, f"w{n}") for n, store in enumerate(stores)))
    ended.set()
    await asyncio.gather(*merging)
    assert merges > 20
    found = await ask(
        url,
        "SELECT sum(number) FROM tally UNION ALL SELECT count(*) FROM task",
    )
    assert found == [(360,), (360,)]
    assert await problems(url) == []
    for store in stores:
        await store.close()
