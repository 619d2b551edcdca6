"""A store says itself whether others can work on its tasks, however it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman import Agent, App
from dragoman.bells.memory import MemoryBell
from dragoman.bells.remote import RemoteBell
from dragoman.model.caller import Call, Caller
from dragoman.model.errors import Unavailable
from dragoman.model.types import SendMessageConfiguration, SendMessageRequest, TaskState
from dragoman.server.settings import SettingsError
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Store
from dragoman.testing import message
from tests.harness.stores import database


def agent() -> Agent:
    """Something to ask."""
    made = Agent("Shared", description="Answers.")
    made.skill()(lambda turn: "hello")
    return made


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each of them, as an object."""
    if request.param == "memory":
        return MemoryStore()
    return (
        SqliteStore(tmp_path / "a.db") if request.param == "sqlite" else PostgresStore(database())
    )


async def test_new_work_is_taken_at_drain_where_others_can_do_it(store: Store) -> None:
    app = App(agent(), store=store, drain_timeout=0.0)
    assert app.settings.store == store.url
    # the bell is the one that fits
    assert isinstance(app.bell, RemoteBell if store.shared else MemoryBell)
    async with app:
        service = app.endpoints["shared"].service
        await app.drain()
        immediately = SendMessageConfiguration(return_immediately=True)
        late = service.send(
            SendMessageRequest(message=message("late"), configuration=immediately), Call(Caller())
        )
        if isinstance(store, PostgresStore):
            answer = await late
            assert answer.task is not None
            assert answer.task.status.state is TaskState.SUBMITTED
        else:
            with pytest.raises(Unavailable, match="shutting down"):
                await late


async def test_serve_only_needs_a_store_that_others_can_reach(tmp_path: Path) -> None:
    for where in ("memory:", f"sqlite:///{tmp_path}/a.db"):
        app = App(agent(), store=where, serve_only=True)  # the command may still replace the store
        with pytest.raises(SettingsError, match=f"serve_only: .* cannot reach the store {where};"):
            await app.start()
    assert not list(tmp_path.iterdir())
    async with (
        App(agent(), store=database(), serve_only=True),
        App(agent(), store=MemoryStore(), serve_only=True),  # another App may have that one
    ):
        pass


def test_a_password_of_the_store_is_kept_out_of_the_log() -> None:
    app = App(agent(), store=PostgresStore("postgresql://me:s3cret-word@127.0.0.1:1/tasks"))
    assert "s3cret-word" not in str(app.settings.masked())
    assert "s3cret-word" in app.settings.secrets()
