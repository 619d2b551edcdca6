"""PostgreSQL behind PgBouncer, which lends a connection for one transaction at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dragoman import Agent, App, Turn
from dragoman.client import Client
from dragoman.model.types import TaskState
from dragoman.server.settings import Settings
from dragoman.stores import connect
from dragoman.stores.store import Store
from tests.harness.services import Bouncer, Missing, Postgres
from tests.harness.stores import C, accept, claim, say, task

pytestmark = pytest.mark.slow  # it needs PostgreSQL


@pytest.fixture(scope="module")
def bouncer(postgres: Postgres) -> Iterator[Bouncer]:
    """PgBouncer before the server that tests share."""
    try:
        with Bouncer(postgres) as found:
            yield found
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def through(bouncer: Bouncer, database: str) -> str:
    """The URL of a new database, through PgBouncer."""
    return f"{bouncer.dsn(database.rpartition('/')[2])}?prepared=false"


async def test_many_at_once(through: str) -> None:
    stores = [connect(Settings(store=through)) for _ in range(3)]
    for store in stores:
        await store.open()
    try:
        names = [f"t{number}" for number in range(60)]
        await asyncio.gather(
            *(accept(stores[number % 3], name) for number, name in enumerate(names))
        )

        async def work(store: Store) -> int:
            count = 0
            while claims := await store.claim(["agent"], "w", 60.0, 4):
                await asyncio.gather(*(say(store, held, C, release=True) for held in claims))
                count += len(claims)
            return count

        assert sum(await asyncio.gather(*map(work, stores))) == len(names)
        for number, name in enumerate(names):
            assert (await task(stores[(number + 1) % 3], name)).status.state is C
    finally:
        for store in stores:
            await store.close()


async def test_an_application(through: str, database: str) -> None:
    """Tasks go through it, and the bell goes directly: who listens must stay on one connection."""
    agent = Agent("Echo", description="Says it again.")

    @agent.handler
    async def echo(turn: Turn) -> str:
        """Say it again."""
        return turn.text

    served = App(agent, store=through, bell=database, serve_only=True, drain_timeout=0.0, poll=60.0)
    works = App(agent, store=through, bell=database, drain_timeout=0.0, poll=60.0)
    async with asyncio.timeout(20), works, served, Client.connect(app=served) as client:
        for number in range(10):
            result = await client.send(f"hello {number}")
            assert (result.state, result.text) == (TaskState.COMPLETED, f"hello {number}")


async def test_a_claim_is_renewed(through: str) -> None:
    store = connect(Settings(store=through))
    await store.open()
    try:
        await accept(store)
        held = await claim(store)
        assert not (await store.renew([held], 60.0)).lost
    finally:
        await store.close()
