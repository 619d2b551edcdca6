"""Reservations, on every store: the first value of a space and key stays."""

from __future__ import annotations

import asyncio
import base64
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from dragoman import App
from dragoman.model.errors import Unavailable
from dragoman.security.encryption import Encryption, key
from dragoman.stores.admin import is_database
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore, reservations
from dragoman.stores.postgres import schema as tables
from dragoman.stores.reservations import LARGEST, PAGE
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.sqlite import schema as file
from dragoman.stores.store import Store
from dragoman.telemetry.logs import logger
from dragoman.testing import SilentBell
from tests.contract.stores.test_context_values import forgotten, sound
from tests.contract.stores.test_conversation import administer
from tests.harness.agents import make as agent
from tests.harness.stores import SCOPE, Make, accept, database, ended

BINARY = bytes(range(256))


async def test_the_first_value_stays(store: Store) -> None:
    assert await store.reserve("s", "k", BINARY, None) == BINARY
    for keep in (None, 600.0):
        assert await store.reserve("s", "k", b"later", keep) == BINARY
    # other spaces and keys have values of their own
    for space, name in (("s", "K"), ("s", "k "), ("S", "k"), ("k", "s"), ("s", "é😀"), ("sk", "k")):
        value = f"{space} {name}".encode()
        assert await store.reserve(space, name, value, 600.0) == value
        assert await store.reserve(space, name, b"later", 600.0) == value
    await sound(store)


@pytest.mark.parametrize("value", [b"", b"sealed:v1:x", b"\xff" * LARGEST], ids=len)
async def test_values_and_names_of_every_size(store: Store, value: bytes) -> None:
    longest = ("x" * 512, "é" * 256)
    for name in ("s", *longest):
        assert await store.reserve("'; DROP TABLE task; --", name, value, None) == value
        assert await store.reserve(longest[0], name, value, None) == value
        assert await store.reserve(longest[0], name, b"later", None) == value
    await sound(store)


async def test_of_many_at_once_one_wins(store: Store) -> None:
    values = [b"%d" % number for number in range(40)]
    calls = (store.reserve("s", "k", value, None) for value in values)
    found = set(await asyncio.gather(*calls))
    assert len(found) == 1 and found < set(values)


async def test_of_many_replicas_one_wins() -> None:
    url = database()
    async with AsyncExitStack() as stack:
        stores = [PostgresStore(url) for _ in range(4)]
        for each in stores:
            await each.open()
            stack.push_async_callback(each.close)
        for number in range(30):
            values = [b"%d" % one for one in range(len(stores) * 3)]
            calls = (
                each.reserve("s", f"k{number}", value, 600.0)
                for each, value in zip(stores * 3, values, strict=True)
            )
            found = set(await asyncio.gather(*calls))
            assert len(found) == 1 and found < set(values)
        # also where an expired one is there
        for number in range(10):
            await stores[0].reserve("s", f"e{number}", b"expired", 0.001)
            await asyncio.sleep(0.01)
            calls = (
                each.reserve("s", f"e{number}", value, 600.0)
                for each, value in zip(stores * 3, values, strict=True)
            )
            found = set(await asyncio.gather(*calls))
            assert len(found) == 1 and found < set(values)


async def test_one_that_expires_while_it_is_read_gives_way() -> None:
    store = PostgresStore(database())
    await store.open()
    assert await store.reserve("s", "k", b"1", None) == b"1"

    class Slow:
        """What was there expires between the two statements."""

        async def fetch(self, sql: str, *values: Any) -> list[Any]:
            if "SELECT body" in sql:
                await store._pool.fetch("UPDATE reservation SET expires = 5")
            return await store._pool.fetch(sql, *values)

    assert await reservations.reserve(Slow(), "s", "k", b"Mg==", None) == b"Mg=="
    assert await store.reserve("s", "k", b"3", None) == b"2"
    await store.close()


async def test_it_survives_a_restart(make: Make) -> None:
    store = await make()
    await store.reserve("s", "k", b"1", None)
    await store.reserve("s", "l", b"2", 600.0)
    await store.close()
    await store.open()
    assert await store.reserve("s", "k", b"later", None) == b"1"
    assert await store.reserve("s", "l", b"later", None) == b"2"


# ---- lists, and the end of a reservation ----------------------------------------------------


async def listed(store: Store, prefix: str = "", after: str = "", limit: int = 99) -> list[str]:
    """The keys of the space `s`."""
    return [one.key for one in await store.reservations("s", prefix, after, limit)]


async def test_they_are_listed_by_prefix(store: Store) -> None:
    keys = ["a", "a/", "a/1", "a/2", "a/\U0010ffff", "a0", "b", "é/1", "😀", "\uff05"]
    for name in keys:
        await store.reserve("s", name, name.encode(), None)
    await store.reserve("t", "a/3", b"3", None)
    await store.reserve("s", "a/gone", b"3", 0.001)
    await asyncio.sleep(0.01)
    assert await listed(store) == sorted(keys)
    assert await listed(store, "a/") == ["a/", "a/1", "a/2", "a/\U0010ffff"]
    assert await listed(store, "a/", "a/1") == ["a/2", "a/\U0010ffff"]
    assert await listed(store, "a/", limit=2) == ["a/", "a/1"]
    assert await listed(store, "b", "a/1") == ["b"]
    assert await listed(store, "a/1", "b") == await listed(store, "c") == []
    for one in await store.reservations("s", "", "", 99):
        assert (one.value, one.expires) == (one.key.encode(), None)


async def test_a_list_has_times(store: Store) -> None:
    await store.reserve("s", "k", BINARY, 600.0)
    (found,) = await store.reservations("s", "k", "", 1)
    assert found.value == BINARY
    assert found.expires is not None and abs(found.expires - time.time() - 600) < 60


async def test_what_is_released_can_be_reserved_again(store: Store) -> None:
    await store.reserve("s", "k", b"1", 600.0)
    await store.reserve("s", "l", b"1", None)
    await store.reserve("t", "k", b"1", None)
    assert await store.release("s", "k")
    assert not await store.release("s", "k")
    assert await listed(store) == ["l"]
    assert await store.reserve("s", "k", b"2", 0.001) == b"2"
    await asyncio.sleep(0.01)
    assert not await store.release("s", "k")  # it has expired
    assert await store.reserve("s", "k", b"3", None) == b"3"
    assert await store.reserve("t", "k", b"2", None) == b"1"
    while await store.prune():
        pass
    assert await store.reserve("s", "k", b"4", None) == b"3"
    await sound(store)


async def test_an_operator_reads_and_writes_them(make: Make) -> None:
    try:
        store: Any = await make(encryption=Encryption([key()]))
    except TypeError:
        store = await make()
    if store.admin is None:
        return
    keys = [f"k{number:03d}" for number in range(PAGE * 2)]  # several pages
    for name in keys:
        await store.reserve("s", name, name.encode(), None)
    await store.reserve("dragoman.secret", "k", b"1", None)

    def work(admin: Any) -> None:
        assert [one.key for one in admin.reservations("s")] == keys
        assert [one.value for one in admin.reservations("s", "k01")] == [
            name.encode() for name in keys if name.startswith("k01")
        ]
        assert admin.reserve("s", "k000", b"later", keep=None) == b"k000"
        assert admin.reserve("s", "new", b"1", keep=600.0) == b"1"
        assert admin.release("s", "k001") and not admin.release("s", "k001")
        for wrong in (
            lambda: list(admin.reservations("dragoman.secret")),
            lambda: admin.reserve("dragoman.secret", "x", b"", keep=None),
            lambda: admin.release("dragoman.secret", "k"),
        ):
            with pytest.raises(ValueError, match="must not begin with"):
                wrong()

    def read(admin: Any) -> None:
        with pytest.raises(Exception, match="read"):
            admin.reserve("s", "other", b"1", keep=None)

    make_admin = store.admin
    await asyncio.to_thread(_with, lambda: make_admin(write=True), work)
    with suppress(sqlite3.Error):  # SQLite raises it again when it is closed
        await asyncio.to_thread(_with, make_admin, read)
    assert await store.reserve("s", "new", b"2", None) == b"1"
    assert await store.reserve("s", "k001", b"2", None) == b"2"


def _with(make: Callable[[], Any], work: Callable[[Any], None]) -> None:
    with make() as admin:
        work(admin)


# ---- how long it is kept --------------------------------------------------------------------


async def test_it_expires(store: Store) -> None:
    assert await store.reserve("s", "k", b"1", 0.05) == b"1"
    assert await store.reserve("s", "stays", b"1", None) == b"1"
    async with asyncio.timeout(5):
        while await store.reserve("s", "k", b"2", 600.0) == b"1":
            await asyncio.sleep(0.01)
    assert await store.reserve("s", "k", b"3", 600.0) == b"2"
    assert await store.reserve("s", "stays", b"3", 600.0) == b"1"


async def test_it_is_kept_for_so_long(store: Store) -> None:
    began = time.monotonic()
    await store.reserve("s", "k", b"1", 0.3)
    while await store.reserve("s", "k", b"2", 0.3) == b"1":
        await asyncio.sleep(0.01)
        assert time.monotonic() - began < 10
    assert time.monotonic() - began >= 0.29


async def test_the_store_has_the_clock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this process may be wrong, where the store is on another machine."""
    if not isinstance(store, MemoryStore | SqliteStore | PostgresStore):
        pytest.skip("it is not known which clock another store has")
    await store.reserve("s", "k", b"1", 600.0)
    wall, ticks = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: wall() + 3600)
    kept = await store.reserve("s", "k", b"2", 600.0)
    monkeypatch.setattr(time, "time", wall)
    assert kept == (b"2" if isinstance(store, SqliteStore) else b"1")
    if isinstance(store, MemoryStore):  # its clock cannot be set
        monkeypatch.setattr(time, "monotonic", lambda: ticks() + 3600)
        assert await store.reserve("s", "k", b"2", 600.0) == b"2"


async def rows(store: Store) -> int:
    """How many reservations are stored, expired or not."""
    if isinstance(store, MemoryStore):
        return len(store._reservations.reserved)
    count = "SELECT count(*) FROM reservation"
    if isinstance(store, SqliteStore):
        return int(store._readers.view.db.execute(count).fetchone()[0])
    if isinstance(store, PostgresStore):
        return int((await store._pool.fetch(count))[0][0])
    pytest.skip("another store shows no rows")


async def test_maintenance_deletes_what_has_expired(store: Store) -> None:
    for number in range(300):
        await store.reserve("s", f"k{number}", b"1", 0.001)
    await store.reserve("s", "stays", b"1", None)
    await store.reserve("s", "later", b"1", 600.0)
    await store.reserve("s", "again", b"1", 0.001)
    await asyncio.sleep(0.05)
    assert await store.reserve("s", "again", b"2", 600.0) == b"2"
    assert await rows(store) == 303
    deleted = 0
    while found := await store.prune():
        deleted += found
    assert (deleted, await rows(store)) == (300, 3)
    assert await store.reserve("s", "again", b"3", 600.0) == b"2"


async def test_it_outlives_tasks(make: Make) -> None:
    store = await make(retention=0.001)
    await store.reserve("s", "k", b"1", 600.0)
    await ended(store, "t")
    await forgotten(store, "t")
    assert await store.reserve("s", "k", b"2", 600.0) == b"1"
    await sound(store)


# ---- encryption -----------------------------------------------------------------------------


async def test_it_is_encrypted_with_a_key(make: Make) -> None:
    try:
        store: Any = await make(encryption=Encryption([key()]))
    except TypeError:
        return  # memory writes nothing down
    values = {"k": b"tell nobody", "l": b"nothing"}
    for name, value in values.items():
        assert await store.reserve("s", name, value, None) == value
        assert await store.reserve("s", name, b"later", None) == value
    export = lambda admin: list(admin.export_reservations(lambda _: None))  # noqa: E731
    found = await administer(store, export)
    assert [one.body[:10] for one in found] == ["sealed:v1:"] * 2
    for value in values.values():
        assert value.decode() not in str(found)
        assert base64.b64encode(value).decode() not in str(found)
    await sound(store)
    # what is put under another key is not read there
    moved = [replace(given, body=found[1 - n].body) for n, given in enumerate(found)]
    await administer(store, lambda admin: admin.put_reservations(moved, replace=True))
    with pytest.raises(Unavailable, match="was changed or moved"):
        await store.reserve("s", "k", b"later", None)
    await administer(store, lambda admin: admin.put_reservations(found, replace=True))
    assert await store.reserve("s", "k", b"later", None) == values["k"]
    right, store._encryption = store._encryption, Encryption([key()])
    with pytest.raises(Unavailable, match=r"'s' cannot be read: .*its key .* is not among"):
        await store.reserve("s", "k", b"later", None)
    store._encryption = right
    # what was stored before there was a key stays readable
    store._encryption = Encryption(())
    assert await store.reserve("s", "plain", b"1", None) == b"1"
    store._encryption = right
    assert await store.reserve("s", "plain", b"2", None) == b"1"


# ---- operators, and older stores ------------------------------------------------------------


async def test_reservations_can_be_moved(make: Make) -> None:
    store, other = await make(), await make()
    if store.admin is None or not is_database(store.admin()):
        return
    await store.reserve("s", "k", BINARY, None)
    await store.reserve("s", "l", b"2", 600.0)
    await store.reserve("s", "expired", b"3", 0.001)
    await asyncio.sleep(0.01)
    export = lambda admin: list(admin.export_reservations(lambda _: None))  # noqa: E731
    found = await administer(store, export)
    assert found is not None and {one.key for one in found} == {"k", "l"}
    for fate in ("new", "same"):
        put = await administer(other, lambda a: a.put_reservations(found, replace=False))
        assert put == [fate] * 2
    assert await other.reserve("s", "k", b"later", None) == BINARY
    assert await other.reserve("s", "l", b"later", None) == b"2"
    assert await administer(other, export) == found
    await sound(other)


async def test_an_older_file_gets_the_table(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    before = await _older(
        store, lambda: store._writer.submit(lambda transaction: _downgrade(transaction.db))
    )
    assert before and await _exported(store) == before
    assert await store.reserve("s", "k", b"1", None) == b"1"
    await sound(store)
    await store.close()


async def test_older_tables_get_the_table() -> None:
    url = database()
    store = PostgresStore(url)
    await store.open()

    async def downgrade() -> None:
        db = await asyncpg.connect(url)
        await tables.secure(db, True)
        await db.execute("DROP TABLE reservation, replay_value")
        await db.execute("UPDATE about SET version = $1", _before(tables))
        await db.close()

    before = await _older(store, downgrade)
    assert before and await _exported(store) == before
    assert await store.reserve("s", "k", b"1", None) == b"1"
    ((hidden,),) = await store._pool.fetch(
        "SELECT relrowsecurity FROM pg_class WHERE oid = 'reservation'::regclass"
    )
    assert hidden  # row security was on
    await sound(store)
    await store.close()


async def _older(store: Any, downgrade: Callable[[], Any]) -> list[Any]:
    """Fill a store, make it one of the version before, and open it again. Returns its tasks."""
    await ended(store, "t")
    await accept(store, "u")
    found = await _exported(store)
    await downgrade()
    await store.close()
    await store.open()
    assert await store.load(SCOPE, "t") is not None
    return found


async def _exported(store: Store) -> list[Any]:
    return await administer(store, lambda admin: list(admin.export(lambda _: None))) or []


def _downgrade(db: Any) -> None:
    db.execute("DROP TABLE reservation")
    db.execute("DROP TABLE replay_value")
    db.execute(f"PRAGMA user_version = {_before(file)}")


def _before(schema: Any) -> int:
    return int(schema.MIGRATIONS.index(schema._RESERVATIONS))


# ---- App.reserve and App.secret -------------------------------------------------------------


@asynccontextmanager
async def running(*stores: Store) -> AsyncIterator[list[App]]:
    """Applications on these stores, whose bells never ring."""
    async with AsyncExitStack() as stack:
        apps = [App(agent(), store=store, bell=SilentBell()) for store in stores]
        yield [await stack.enter_async_context(app) for app in apps]


async def test_an_application_reserves(make: Make) -> None:
    store = await make()
    await store.close()
    for expected in ("first", "again"):
        async with running(store) as (app,):
            async with asyncio.timeout(2):  # without a poll, nor a bell
                assert await app.reserve("s", "k", expected.encode(), keep=None) == b"first"
    await store.open()


async def test_a_secret_is_the_same_in_all_replicas(caplog: pytest.LogCaptureFixture) -> None:
    url = database()
    async with running(PostgresStore(url), PostgresStore(url)) as apps:
        found = await asyncio.gather(*(app.secret("signing") for app in apps * 5))
        (secret,) = set(found)
        assert len(secret) == 32
        assert await apps[0].secret("other") != secret
        with caplog.at_level(logging.DEBUG):
            for shown in (secret.hex(), base64.b64encode(secret).decode(), repr(secret), secret):
                logger.info("it is %s.", shown)
            logger.info("%s", base64.urlsafe_b64encode(secret).decode().rstrip("="))
        for form in (secret.hex(), base64.b64encode(secret).decode()[:-1], repr(secret)[2:-1]):
            assert form not in caplog.text
        assert caplog.text.count("***") == 5
    async with running(PostgresStore(url)) as (app,):
        assert await app.secret("signing") == secret


async def test_a_secret_survives_a_restart(make: Make) -> None:
    store = await make()
    await store.close()
    found = []
    for _ in range(2):
        async with running(store) as (app,):
            found += [await app.secret("signing"), await app.secret("signing")]
    assert len(set(found)) == 1
    await store.open()


async def test_a_mounted_application_has_it_from_its_start() -> None:
    made: list[bytes] = []

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            made.append(await scope["dragoman.app"].secret("cookies"))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    async with asyncio.timeout(10), App(mounts={"/": mounted}) as app:
        assert made == [await app.secret("cookies")]


async def test_what_cannot_be_reserved() -> None:
    app = App(agent())
    early = (app.reserve("s", "k", b"", keep=None), app.secret("x"), app.release("s", "k"))
    for call in early:
        with pytest.raises(RuntimeError, match="has not started"):
            await call
    wrong: list[tuple[Any, str]] = [
        (("", "k", b"", None), "reserve: space must not be empty"),
        (("s", "", b"", None), "reserve: key must not be empty"),
        (("x" * 513, "k", b"", None), "reserve: space is longer than 512 bytes"),
        (("s", "é" * 257, b"", None), "reserve: key is longer than 512 bytes"),
        (("s", "a\0", b"", None), "reserve: key contains a control character"),
        (("s", "\ud800", b"", None), "reserve: key contains a control character, or is not"),
        (("s", "k", b"x" * (LARGEST + 1), None), "reserve: value has 65537 bytes; at most 65536"),
        (("s", "k", b"", 0), "reserve: keep must be greater than 0"),
        (("s", "k", b"", -1.0), "reserve: keep must be greater than 0"),
        (("s", "k", b"", float("inf")), "reserve: keep must be greater than 0, or None"),
        (("s", "k", b"", float("nan")), "reserve: keep must be greater than 0"),
        (("dragoman.secret", "k", b"", None), "reserve: space must not begin with 'dragoman.'"),
        (("s", b"k", b"", None), "reserve: key must be a str, not bytes"),
        (("s", "k", "text", None), "reserve: value must be bytes, not str"),
    ]
    async with app:
        for (*given, keep), words in wrong:
            with pytest.raises((ValueError, TypeError), match=words):
                await app.reserve(*given, keep=keep)
        with pytest.raises(ValueError, match="space must not begin with"):
            await app.release("dragoman.secret", "k")
        for name in ("", "x" * 513, "a\n"):
            with pytest.raises(ValueError, match="secret: name "):
                await app.secret(name)
        assert await app.reserve("s", "k", b"1", keep=1) == b"1"  # nothing was kept of these
        assert await app.release("s", "k") and not await app.release("s", "k")
    with pytest.raises(RuntimeError, match="has not started"):
        await app.reserve("s", "k", b"", keep=None)
