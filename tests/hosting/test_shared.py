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
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Store
from dragoman.testing import message
from tests.unit.stores import database


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
    app = App(agent(), store=store, drain=0.0)
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


async def test_work_that_nobody_can_do_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for where in ("memory:", f"sqlite:///{tmp_path}/a.db"):
        async with App(agent(), store=where, workers=0):
            pass
        assert "no other process can access the store" in caplog.text
        caplog.clear()
    async with App(agent(), store=database(), workers=0), App(agent(), store=MemoryStore()):
        assert "no other process can access the store" not in caplog.text


def test_a_password_of_the_store_is_kept_out_of_the_log() -> None:
    app = App(agent(), store=PostgresStore("postgresql://me:s3cret-word@127.0.0.1:1/tasks"))
    assert "s3cret-word" not in str(app.settings.masked())
    assert "s3cret-word" in app.settings.secrets()
