"""A store that can be read and not written: a process with such a store is not ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from dragoman import App
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.sqlite.driver import STANDARD, Driver
from dragoman.telemetry import store_health
from tests.harness.server import serving
from tests.harness.stores import BACKENDS, _shared, accept, database
from tests.telemetry.monitored_agent import office, port
from tests.telemetry.scrape import scrape

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x" * 30_000}]}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the store whenever somebody asks."""
    monkeypatch.setattr(store_health, "FRESH", 0.01)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of this size, where the machine lets us mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if os.getuid() or not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def send(http: httpx.AsyncClient) -> int:
    """The status of a send."""
    body = {"message": MESSAGE, "configuration": {"returnImmediately": True}}
    answer = await http.post("/message:send", json=body, headers={"a2a-version": "1.0"})
    return answer.status_code


async def until(http: httpx.AsyncClient, status: int) -> Any:
    """What /readyz says once it has this status."""
    async with asyncio.timeout(20):
        while (answer := await http.get("/readyz")).status_code != status:
            await asyncio.sleep(0.02)
    return answer.json()["status"]


async def fill_up(app: App, http: httpx.AsyncClient, full: Callable[[bool], None]) -> None:
    """Ready before, not ready while writes fail, ready again when they succeed."""
    assert await send(http) == 200
    assert await until(http, 200) == "ok"
    full(True)
    async with asyncio.timeout(20):
        while await send(http) == 200:
            pass
    assert await until(http, 503) == "store not writable"
    for _ in range(3):
        await asyncio.sleep(0.02)
        assert (await http.get("/readyz")).status_code == 503, "it stays so"
    assert (await http.get("/tasks", headers={"a2a-version": "1.0"})).status_code == 200
    found = await scrape(port(app))
    assert found.get("dragoman_store_up") == found.get("dragoman_ready") == 0
    assert [name for name, _ in found.samples if name == "dragoman_tasks"], "it can be counted"
    full(False)
    assert await until(http, 200) == "ok"
    assert await send(http) == 200


@pytest.mark.parametrize("trouble", ["max_page_count", "query_only"])
async def test_a_file_that_cannot_be_written(tmp_path: Path, trouble: str) -> None:
    opened: list[Any] = []

    def connect(path: Path) -> Any:
        opened.append(STANDARD.connect(path))
        return opened[-1]

    def full(on: bool) -> None:
        (pages,) = opened[0].execute("PRAGMA page_count").fetchone()
        value = {"max_page_count": pages if on else 1 << 30, "query_only": int(on)}[trouble]
        opened[0].execute(f"PRAGMA {trouble} = {value}").fetchone()

    store = SqliteStore(tmp_path / "a.db", driver=Driver(connect, sqlite3.Error))
    app = App(office(), store=store, metrics=0, poll=0.1, serve_only=True)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        await fill_up(app, http, full)


async def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "3m") as disk:

        def full(on: bool) -> None:
            fill(disk / "filler", on)

        app = App(office(), store=SqliteStore(disk / "a.db"), metrics=0, poll=0.1, serve_only=True)
        async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
            await fill_up(app, http, full)


def fill(file: Path, on: bool) -> None:
    """Take all the room that there is on a disk; or give it back."""
    if not on:
        file.unlink()
        return
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


async def test_a_database_whose_disk_is_full(tmp_path: Path) -> None:
    where = database()
    server = _shared[0]
    name = where.partition("search_path=")[2]
    with small_disk(server.folder / f"disk_{name}", "4m") as disk:
        (disk / "tables").mkdir()
        if server.options:
            shutil.chown(disk / "tables", server.options["user"], server.options["group"])
        server.sql(f"CREATE TABLESPACE {name} LOCATION '{disk / 'tables'}'")
        store = PostgresStore(where)
        await store.open()
        await store.close()
        for table in ("task", "entry", "snapshot", "receipt", "line", "tally"):
            server.sql(f"ALTER TABLE {name}.{table} SET TABLESPACE {name}")
        try:
            app = App(office(), store=store, metrics=0, poll=0.1, serve_only=True)
            async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
                await fill_up(app, http, lambda on: fill(disk / "filler", on))
        finally:
            server.sql(f"DROP SCHEMA {name} CASCADE")
            server.sql(f"DROP TABLESPACE {name}")


async def test_a_role_that_may_not_write_any_more() -> None:
    where = database()
    name = where.partition("search_path=")[2]
    store = PostgresStore(where)
    await store.open()
    await store.close()
    db = await asyncpg.connect(where)
    await db.execute(f"CREATE ROLE full_{name} LOGIN")
    await db.execute(f"GRANT USAGE ON SCHEMA {name} TO full_{name}")
    await db.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {name} TO full_{name}")
    await db.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {name} TO full_{name}")
    await db.close()
    server = _shared[0]

    def full(on: bool) -> None:
        verb = "REVOKE INSERT, UPDATE ON {} FROM {}" if on else "GRANT INSERT, UPDATE ON {} TO {}"
        server.sql(verb.format(f"ALL TABLES IN SCHEMA {name}", f"full_{name}"))

    store = PostgresStore(where.replace("postgres@", f"full_{name}@"), migrate=False)
    app = App(office(), store=store, metrics=0, poll=0.1, serve_only=True)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        await fill_up(app, http, full)


@pytest.mark.parametrize("kind", BACKENDS)
async def test_who_asks_often_does_not_write_often(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BACKENDS[kind](tmp_path)
    await store.open()
    looks = store_health.StoreHealth(store)
    if kind == "memory":
        assert await looks.beats()
        return
    writer: Any = store._writer  # type: ignore[attr-defined]
    assert await looks.beats()
    first = writer.wrote
    assert first <= time.monotonic(), "nothing had been written: it was tried"
    for _ in range(3):
        await asyncio.sleep(0.02)
        assert await looks.beats()
    assert writer.wrote == first, "that was enough"
    await accept(store)
    later = writer.wrote
    assert later > first
    monkeypatch.setattr(f"dragoman.stores.{kind}.writer.WRITTEN", 0.0)
    await asyncio.sleep(0.02)
    assert await looks.beats()
    assert writer.wrote > later, "none was written for long enough"
    await store.close()
