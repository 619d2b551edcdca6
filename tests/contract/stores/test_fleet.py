"""The rows that processes write about themselves, on every store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, Turn
from dragoman.admin import AdminThread, Fleet, ProcessRow, processes
from dragoman.client import Client
from dragoman.model.errors import Unavailable
from dragoman.security.encryption import Encryption, key
from dragoman.server.fleet import FleetReporter
from dragoman.stores import process_rows
from dragoman.stores.admin import is_database
from dragoman.stores.store import Store
from tests.harness.stores import BACKENDS, Make


def row(number: int, process: str = "p1") -> ProcessRow:
    """A row of a process."""
    return ProcessRow(
        id=process,
        name="host:1",
        role="server",
        version="1",
        agents=("a", "b"),
        running=number,
        streams=2,
        turns=3,
        key=f"2026-01-31T12:00:{number:02d}.000Z {process}",
    )


async def fleet(store: Store, after: str = "") -> Fleet:
    """The rows, as an operator reads them."""

    def make() -> Any:
        assert store.admin is not None
        return store.admin()

    async with AdminThread(make) as admin:
        return await admin.call(lambda store: store.fleet(after))


async def test_rows_come_back_in_order(store: Store) -> None:
    for number in (3, 1, 2):
        await store.report(row(number))
    found = await fleet(store)
    assert [replace(one, at=0.0) for one in found.rows] == [row(1), row(2), row(3)]
    assert all(abs(one.at - found.now) < 30 for one in found.rows)
    later = await fleet(store, found.rows[1].key)
    assert [one.running for one in later.rows] == [3]


async def test_rows_live_an_hour(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("dragoman.stores.memory", "dragoman.stores.sql_store"):
        monkeypatch.setattr(f"{module}.LIVES", 0.05)
    monkeypatch.setattr("dragoman.stores.sql_store.PRUNE_EVERY", 0.0)
    await store.report(row(1))
    await asyncio.sleep(0.06)
    assert (await fleet(store)).rows == []
    assert await store.prune() == 1


async def test_they_are_neither_encrypted_nor_exported(make: Make) -> None:
    store = await make()
    if store.admin is None or not is_database(store.admin()):
        pytest.skip("it is no database")
    store = await make(encryption=Encryption([key()]))
    await store.report(row(1))
    await store.reserve("s", "k", b"1", None)
    assert len((await fleet(store)).rows) == 1

    def exported() -> list[str]:
        assert store.admin is not None
        with store.admin() as admin:
            assert list(admin.check(lambda *_: None)) == []
            return [one.space for one in admin.export_reservations(lambda _: None)]

    assert await asyncio.to_thread(exported) == ["s"]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_server_writes_rows(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BACKENDS[backend](tmp_path)
    agent = Agent("Counter", description="Fails at times.")

    @agent.handler
    async def handle(turn: Turn) -> str:
        if turn.text == "fail":
            raise ValueError
        return "ok"

    monkeypatch.setattr("dragoman.server.fleet.EVERY", 0.02)
    async with App(agent, store=store, fleet=True) as app, Client.connect(app=app) as client:
        for text in ("a", "b"):
            await client.send(text)
        await client.send("fail")
        async with asyncio.timeout(30):
            while True:
                found = await fleet(store)
                if sum(one.turns for one in found.rows) == 3:
                    break
    assert sum(one.messages for one in found.rows) == 3
    assert sum(one.failed for one in found.rows) == 1
    (process,) = processes(found)
    latest = process.latest
    assert (latest.role, latest.agents, process.gone) == ("server", ("counter",), False)
    assert ":" in latest.name and latest.version and process.first <= latest.at


@pytest.mark.parametrize("backend", BACKENDS)
async def test_without_the_setting_there_are_none(backend: str, tmp_path: Path) -> None:
    store = BACKENDS[backend](tmp_path)
    agent = Agent("Quiet", description="Says nothing.")
    agent.handler(lambda turn: "ok")
    async with App(agent, store=store) as app, Client.connect(app=app) as client:
        await client.send("x")
        assert (await fleet(store)).rows == []


def test_who_is_gone() -> None:
    rows = [replace(row(1), at=100.0), replace(row(2), at=110.0), replace(row(3, "p2"), at=80.0)]
    found = processes(Fleet(110.5, rows))
    assert [(one.latest.id, one.latest.running, one.gone) for one in found] == [
        ("p1", 2, False),
        ("p2", 3, True),
    ]
    assert found[0].first == 100.0


def test_rows_of_newer_versions_are_left_out() -> None:
    body = process_rows.row_body(row(1))
    found = process_rows.read_rows([("a", b"%", 1.0), ("b", b"e30=", 1.0), ("c", body, 3700.0)])
    assert [(one.key, one.at) for one in found] == [("c", 100.0)]


class Refusing:
    """A store that cannot be written for a while."""

    def __init__(self) -> None:
        self.rows: list[ProcessRow] = []
        self.down = True

    async def report(self, row: ProcessRow) -> None:
        """Refuse it, or keep it."""
        if self.down:
            raise Unavailable("the store is away")
        self.rows.append(row)


async def test_what_could_not_be_written_is_in_the_next_row() -> None:
    store: Any = Refusing()
    numbers = (1, 2, 5, 4, 1, 0)
    reporter = FleetReporter(store, "server", ["a"], lambda: numbers)
    with pytest.raises(Unavailable):
        await reporter.report()
    store.down = False
    await reporter.report()
    numbers = (0, 0, 6, 4, 1, 0)
    await reporter.report()
    assert [(one.messages, one.turns, one.running) for one in store.rows] == [(5, 4, 1), (1, 0, 0)]
