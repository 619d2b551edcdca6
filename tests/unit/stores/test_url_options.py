"""The options of a store in its URL: parsed, checked, and gone from what others see."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import App, stores
from dragoman.model.errors import Unavailable
from dragoman.server.load_settings import load
from dragoman.server.settings import Settings, SettingsError
from dragoman.server.wiring import CHECKS
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.url_options import OPTIONS, split
from dragoman.testing import local_client
from tests.harness.agents import make
from tests.harness.stores import database

POSTGRES = {"pool_size": 8, "migrate": True, "prepared": True}


@pytest.mark.parametrize(
    ("url", "rest", "values"),
    [
        ("memory:", "memory:", {"max_tasks": 50_000}),
        ("memory:?max_tasks=7", "memory:", {"max_tasks": 7}),
        ("sqlite:///x.db", "sqlite:///x.db", {"synchronous": "full"}),
        ("sqlite:///a#b.db?synchronous=normal", "sqlite:///a#b.db", {"synchronous": "normal"}),
        (
            "postgresql://h/d?sslmode=require&pool_size=16&migrate=false",
            "postgresql://h/d?sslmode=require",
            {**POSTGRES, "pool_size": 16, "migrate": False},
        ),
        ("postgres://h/d?prepared=false", "postgres://h/d", {**POSTGRES, "prepared": False}),
        # what is not ours is not touched
        ("postgresql://h/d?x=%2F&y=+", "postgresql://h/d?x=%2F&y=+", POSTGRES),
        ("shelf:a?b=c", "shelf:a?b=c", {}),
    ],
)
def test_options_are_taken_out(url: str, rest: str, values: dict[str, Any]) -> None:
    assert split(url) == (rest, values)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("memory:?max_task=7", r"store\?max_task: there is no such option; memory: has max_tasks$"),
        ("sqlite:///x.db?sync=full", r"store\?sync: .*; sqlite: has synchronous$"),
        ("sqlite:///x.db?synchronous=off", r"store\?synchronous: must be one of full, normal; "),
        ("memory:?max_tasks=0", r"store\?max_tasks: must be greater than 0$"),
        ("memory:?max_tasks=-1", r"store\?max_tasks: must not be negative$"),
        (
            "postgresql://h/d?pool_size=many",
            r"store\?pool_size: must be a whole number, not 'many'$",
        ),
        ("postgresql://h/d?migrate=no", r"store\?migrate: must be true or false, not 'no'$"),
    ],
)
def test_wrong_options_are_refused(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"^{why}"):
        load({"store": url}, environ={}, checks=CHECKS)
    with pytest.raises(ValueError, match=f"^{why}"):
        stores.connect(Settings(store=url))
    with pytest.raises(ValueError, match=f"^{why}"):
        App(make(), store=url)


def test_stores_get_their_options() -> None:
    memory = stores.connect(Settings(store="memory:?max_tasks=3"))
    assert isinstance(memory, MemoryStore) and memory.max_tasks == 3
    sqlite = stores.connect(Settings(store="sqlite:///x.db?synchronous=normal"))
    assert isinstance(sqlite, SqliteStore) and sqlite.synchronous == "normal"
    assert str(sqlite.path) == sqlite.name == "x.db"
    postgres = stores.connect(Settings(store="postgresql://u:p@h/d?pool_size=3&prepared=false"))
    assert isinstance(postgres, PostgresStore)
    assert (postgres.url, postgres.bell) == ("postgresql://u:p@h/d",) * 2
    assert (postgres._pool.size, postgres._pool.prepared) == (3, False)


def test_each_option_has_a_default_of_its_type() -> None:
    for scheme, options in OPTIONS.items():
        text = "&".join(f"{name}={option.text(option.default)}" for name, option in options.items())
        assert split(f"{scheme}:?{text}") == split(f"{scheme}:")


async def test_an_application_with_options() -> None:
    async with local_client(make(), store="memory:?max_tasks=9") as client:
        assert (await client.send("hi")).text == "hi"


async def test_the_database_refuses_options_that_nobody_knows() -> None:
    store = stores.connect(Settings(store=f"{database()}&pool_sice=3"))
    with pytest.raises(Unavailable, match=r"pool_sice.*; options of the store are pool_size, migr"):
        await store.open()
