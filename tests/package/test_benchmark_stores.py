"""The stores that benchmarks fill by themselves are as sound as those that a server has filled."""

from __future__ import annotations

from pathlib import Path

from benchmarks import fill, pgfill
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Query, Store
from tests.harness.command import run
from tests.harness.stores import database

TASKS = 250


async def _look(store: Store) -> None:
    """The store has these tasks, each with its log."""
    await store.open()
    try:
        page = await store.list(fill.SCOPE, Query(size=10))
        assert page.total == TASKS
        record = await store.load(fill.SCOPE, fill.task(TASKS - 1))
        assert record is not None
        assert record.task.context_id == fill.context(TASKS - 1)
        assert record.task.artifacts
    finally:
        await store.close()


async def test_a_sqlite_store(tmp_path: Path) -> None:
    fill.fill(tmp_path / "scale.db", TASKS)
    checked = run(tmp_path, "db", "check", "--store", f"sqlite:///{tmp_path / 'scale.db'}")
    assert checked.returncode == 0, checked.stdout
    await _look(SqliteStore(tmp_path / "scale.db"))


async def test_a_postgres_store(tmp_path: Path) -> None:
    url = database()
    await pgfill.write(url, TASKS)
    checked = run(tmp_path, "db", "check", "--store", url)
    assert checked.returncode == 0, checked.stdout
    await _look(PostgresStore(url))
