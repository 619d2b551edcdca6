"""`dragoman payments`, with the books of a store that a server uses."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.cli import main
from dragoman.payments import PaymentRecord
from dragoman.payments.books import GateBooks
from dragoman.security.encryption import Encryption
from dragoman.security.encryption import key as new_key
from dragoman.server.gate_store import StoreOfGate
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore
from tests.harness.stores import database
from tests.products.payments.loopback_facilitator import LoopbackFacilitator
from tests.products.payments.test_books import looked_up, open_payments
from tests.products.payments.test_crashes import Shop, delays  # noqa: F401

KEY = new_key()
RECORD = PaymentRecord(
    kind="settled",
    agent="shop",
    task="t1",
    skill="analyze",
    payer="0x" + "1" * 40,
    to="0x" + "2" * 40,
    network="eip155:84532",
    asset="0x036CbD53842c5426634e7929541eC2318f3dCF7e",
    amount=100_000,
    nonce="0x" + "a" * 64,
    transaction="0x" + "b" * 64,
    at=1_790_000_000.0,
)


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a store with some records, encrypted, while a server has it open."""
    encryption = Encryption([KEY])
    store: Any
    if request.param == "sqlite":
        found = f"sqlite:///{tmp_path / 'tasks.db'}"
        store = SqliteStore(tmp_path / "tasks.db", encryption=encryption)
    else:
        found = database()
        store = PostgresStore(found, encryption=encryption)
    await store.open()
    books = GateBooks(StoreOfGate(store, "shop", "analyze", None, audits=False), None)
    nonces = ["0x" + digit * 64 for digit in "abcd"]
    one = RECORD
    await books.write(replace(one, kind="offered", nonce="", payer="", transaction=""))
    await books.write(one)
    await books.write(replace(one, task="t2", kind="unsettled", transaction=""))
    await books.write(replace(one, task="t3", nonce=nonces[1], transaction="=1+1"))
    await books.write(replace(one, task="t3", nonce=nonces[1], kind="owed", at=one.at + 9))
    await books.write(replace(one, task="t4", nonce=nonces[2], kind="unsettled"))
    await books.write(replace(one, task="t4", nonce=nonces[2], kind="unused"))
    yield found
    await store.close()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_ENCRYPTION_KEYS", KEY)


async def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = await asyncio.to_thread(main, words)
    out, err = capsys.readouterr()
    return status, out, err


async def test_lists(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = await run(capsys, "payments", "list", "--store", url)
    assert status == 0
    header, *lines = out.splitlines()
    assert header.split() == ["at", "state", "task", "skill", "price", "payer", "transaction"]
    assert [line.split()[1:3] for line in lines] == [
        ["settled", "t1"],
        ["unsettled", "t2"],
        ["owed", "t3"],
        ["unused", "t4"],
    ]
    assert "0.1 USDC" in lines[0]
    for what, task in (("owed", "t3"), ("unsettled", "t2")):
        status, out, _ = await run(capsys, "payments", what, "--store", url, "--json")
        assert [row["task"] for row in json.loads(out)] == [task]
    _, out, _ = await run(capsys, "payments", "list", "--offers", "--store", url, "--json")
    assert [(row["task"], row["state"]) for row in json.loads(out)] == [("t1", "offered")]
    _, out, _ = await run(capsys, "payments", "list", "--task", "t", "--store", url, "--json")
    assert json.loads(out) == []
    since = ("--since", "2026-09-22")
    status, out, err = await run(capsys, "payments", "list", *since, "--store", url)
    assert (status, out, err) == (0, "", "none\n")


async def test_csv(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await run(capsys, "payments", "list", "--csv", "--store", url)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["task"] for row in rows] == ["t1", "t2", "t3", "t4"]
    assert rows[0] == {
        "at": "2026-09-21T14:13:20.000Z",
        "state": "settled",
        "agent": "shop",
        "skill": "analyze",
        "task": "t1",
        "payer": RECORD.payer,
        "to": RECORD.to,
        "network": "eip155:84532",
        "asset": RECORD.asset,
        "amount": "100000",
        "price": "0.1 USDC",
        "nonce": RECORD.nonce,
        "transaction": RECORD.transaction,
        "refund_amount": "",
        "refund_transaction": "",
        "refund_at": "",
    }
    assert rows[2]["transaction"] == "'=1+1"  # no formula


async def test_a_refund(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    refund = ("payments", "refund", "t3", "--transaction", "0xab", "--store", url)
    for words, why in (
        (("--amount", "100001"), "at most 100000"),
        (("--nonce", "0x1"), "no payment of the task t3"),
    ):
        status, _, err = await run(capsys, *refund, *words)
        assert status == 2 and why in err
    status, out, _ = await run(capsys, *refund, "--amount", "50000")
    assert (status, out) == (0, f"recorded: 0.05 USDC refunded to {RECORD.payer}\n")
    status, _, err = await run(capsys, *refund)
    assert status == 2 and "already recorded" in err
    _, out, _ = await run(capsys, "payments", "list", "--task", "t3", "--json", "--store", url)
    (row,) = json.loads(out)
    assert (row["state"], row["refund_amount"], row["refund_transaction"]) == (
        "refunded",
        50000,
        "0xab",
    )
    _, out, _ = await run(capsys, "payments", "owed", "--json", "--store", url)
    assert json.loads(out) == []


@pytest.mark.parametrize("how", ["--unused", "--transaction=0xab"])
async def test_what_came_of_it(url: str, capsys: pytest.CaptureFixture[str], how: str) -> None:
    resolve = ("payments", "resolve", "--store", url, how)
    for task, why in (("t1", "not unsettled"), ("t4", "no payment"), ("t9", "no payment")):
        status, _, err = await run(capsys, *resolve, task)
        assert status == 2 and why in err
    status, out, _ = await run(capsys, *resolve, "t2")
    state = "unused" if how == "--unused" else "owed"
    assert (status, out) == (0, f"recorded: 0.1 USDC of {RECORD.payer} is {state}\n")
    _, out, _ = await run(capsys, "payments", "list", "--task", "t2", "--json", "--store", url)
    (row,) = json.loads(out)
    assert (row["state"], row["transaction"]) == (state, "" if state == "unused" else "0xab")
    _, out, _ = await run(capsys, "payments", "unsettled", "--json", "--store", url)
    assert json.loads(out) == []
    status, _, err = await run(capsys, *resolve, "t2")
    assert status == 2


async def test_a_payment_that_can_still_be_carried_out(
    facilitator: LoopbackFacilitator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqliteStore(tmp_path / "tasks.db", encryption=Encryption([KEY]))
    await store.open()
    shop = Shop(store, facilitator)
    facilitator.trouble = ["lost"]
    task = await shop.paid()
    await shop.life()
    place = ("--store", f"sqlite:///{tmp_path / 'tasks.db'}")
    status, _, err = await run(capsys, "payments", "resolve", task, "--unused", *place)
    assert status == 2 and "can still be carried out" in err
    status, _, _ = await run(capsys, "payments", "resolve", task, "--transaction", "0xab", *place)
    assert status == 0
    # maintenance sees that, and asks nobody
    await looked_up(shop)
    assert (shop.kinds, await open_payments(store)) == (["unsettled", "settled", "owed"], 0)
    await store.close()


async def test_without_the_key(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_ENCRYPTION_KEYS", new_key())
    status, out, err = await run(capsys, "payments", "list", "--store", url)
    assert (status, out) == (1, "") and "cannot be read" in err
